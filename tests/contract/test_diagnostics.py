"""What a hospital says about its labels reaches the coordinator only if the hospital agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Context

from fedgsca.federation.run_folder import read_rounds
from fedgsca.hospital.settings import SiteSettings
from fedgsca.lab.export.model_card import noise_section
from fedgsca.lab.report.html_page import write_report
from fedgsca.lab.report.run_reader import read_run
from fedgsca.methods.base import load_methods
from tests.contract.test_flower import NAMES, consortium, write_hospitals
from tests.localgrid import LocalGrid, client_app, run_over_flower
from tests.toys import outcome

METHODS = sorted(
    name
    for name, kind in load_methods().items()
    if any(extra.diagnostic for extra in kind.uploads.values())
)


def run_consortium(tmp_path: Path, method: str, *agreeing: str) -> Path:
    """A run over Flower to which only these hospitals send diagnostics."""
    out = tmp_path / f"run-{len(agreeing)}"

    def find_settings(context: Context) -> SiteSettings:
        name = NAMES[int(context.node_config["partition-id"])]
        state = tmp_path / f"state-{len(agreeing)}" / name
        return SiteSettings(
            name=name,
            state=str(state),
            data=str(tmp_path / name),
            diagnostics=name in agreeing,
        )

    run_over_flower(
        consortium(method=method),
        LocalGrid(client_app(find_settings), len(NAMES), names=NAMES),
        out,
    )
    return out


@pytest.mark.parametrize("method", METHODS)
def test_only_those_who_agree_are_named(tmp_path: Path, method: str) -> None:
    write_hospitals(tmp_path)
    uploads = load_methods()[method].uploads
    diagnostics = {name for name, extra in uploads.items() if extra.diagnostic}
    silent = run_consortium(tmp_path, method)
    for record in read_rounds(silent):
        for site in record.sites.values():
            assert not set(site.values) & set(uploads), "nothing about a named hospital's labels"
    some = run_consortium(tmp_path, method, "berlin")
    last = read_rounds(some)[-1].sites
    assert set(last["berlin"].values) & diagnostics
    assert not set(last["lyon"].values) & set(uploads)
    weights = "model.safetensors"
    assert outcome(silent)[weights] == outcome(some)[weights], "nobody's training reads them"


def test_card_and_report_show_no_share_of_a_hospital(tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    for agreeing, is_shown in (((), False), (("berlin",), True)):
        out = run_consortium(tmp_path, "fedgsca", *agreeing)
        card = "\n".join(noise_section(read_run(out, with_losses=False)))
        assert ("Labels flagged" in card) == is_shown
        write_report(out)
        assert 'id="estimates"' not in (out / "report.html").read_text() or is_shown
