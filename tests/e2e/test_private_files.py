"""What the commands write is for its owner only, whatever the umask allows."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.labels.audit_table import read_audit

# one small network and small inputs for all: most of the time is its pass over the images
NETWORK = "--set model.name=efficientnet-lite0 --set model.frozen=true --set model.feature_size=32"
# in the order of a hospital that tries everything; the first one makes the cache
COMMANDS = f"""
data example images
data check images --save copies --sheet sheet.png
run --data images --out run --method fedgsca-e --rounds 10 {NETWORK} -q
audit run
exchange export run/audit/site-1 --format cleanlab --out for-cleanlab.csv
exchange export run/audit/site-1 --format label-studio --out for-studio.json
predict run images/img --out new/predictions.csv
export run --out exported
report run
audit-folder images --out own-audit {NETWORK}
compare --data images --methods fedavg,fedgsca --rounds 2 --seeds 1 --out compared {NETWORK} -q
resume run --rounds 11 -q
apply run/audit/site-1
withdraw train-slide-001 --from run --yes
run --data images --labels images/labels.corrected.csv --out again --rounds 2 {NETWORK} -q
deploy init --example consortium.toml
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "home" / "cache"))
    umask = os.umask(0o022)
    yield tmp_path
    os.umask(umask)


def test_nobody_else_can_read_what_the_commands_write(place: Path) -> None:
    for line in COMMANDS.strip().splitlines():
        if line.startswith("apply"):
            audit = read_audit(Path("run/audit/site-1"))
            label = next(row for row in audit.ranked_labels() if row.suggestion != row.given)
            audit.open_decisions().record(label, label.suggestion, reviewer="anna")
        assert execute(line.split()) == 0, line
    paths = [path for path in place.rglob("*") if not path.is_symlink()]
    assert len(paths) > 100
    open_paths = [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert not open_paths, [str(path.relative_to(place)) for path in open_paths]
