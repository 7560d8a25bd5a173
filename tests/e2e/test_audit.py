"""`fedgsca audit` as a user meets it, right and wrong."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from toys import toy_config, toy_folder, toy_npz
from typer.testing import CliRunner

from fedgsca.cli import app
from fedgsca.engine.rounds import run
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.label_audit.audit_images import AuditImages
from fedgsca.label_audit.audit_table import read_audit
from fedgsca.label_audit.locate import EvidenceLocation, locate_evidence

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    run(toy_config("fedavg", train__rounds=8, train__lr=0.05), folder)
    return folder


def audit(*arguments: object) -> str:
    result = RUNNER.invoke(app, ["audit", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_sites_of_a_simulation(made: Path) -> None:
    shown = audit(made)
    assert (
        "site-1" in shown
        and "site-4" in shown
        and "truly wrong" in shown
        and "fedgsca review" in shown
    )
    found = read_audit(made / "audit" / "site-2")
    entries = list(found.ranked_labels())
    assert sorted(s.row for s in entries) == list(range(len(found)))
    assert [s.rank for s in entries] == list(range(1, len(found) + 1))
    assert all(a.suspicion >= b.suspicion for a, b in pairwise(entries))
    assert found.header["summary"]["truth"]["auroc"] > 0.6
    assert sum(c["labels"] for c in found.header["summary"]["per_class"]) == len(found)
    images = AuditImages.open(found.path)
    assert all(images.hash(s.row) == s.hash for s in entries[:5])
    assert all(s.given != s.suggested and len(s.others) == 2 for s in entries)


def test_the_gallery_needs_nothing_else(made: Path) -> None:
    audit(made, "--site", "site-3", "--second-opinion", "neighbours")
    page = (made / "audit" / "site-3" / "gallery.html").read_text()
    assert "stays at the site" in page and "nearest neighbours say" in page
    assert re.findall(r'(?:src|href)="(?!data:|#)', page) == []
    assert "<script" not in page and len(page) < 5_000_000


def test_json_is_alone_on_stdout(made: Path) -> None:
    found = json.loads(audit(made, "--site", "site-1", "--json"))
    assert found["audits"][0]["site"] == "site-1"
    assert found["audits"][0]["summary"]["truth"]["wrong"] == 0


def test_the_test_labels_are_locked(made: Path) -> None:
    with pytest.raises(ConfigError, match="locked") as refused:
        audit(made, "--split", "test")
    assert "--unlock-test" in refused.value.fix
    assert not (made / "audit" / "test").exists()
    audit(made, "--split", "test", "--unlock-test")
    found = read_audit(made / "audit" / "test")
    assert (
        found.header["split"] == "test"
        and "without making the model better" in found.header["warning"]
    )
    assert len(AuditImages.open(found.path)) == len(found) == 30
    assert "without making the model better" in (found.path / "gallery.html").read_text()
    shutil.rmtree(found.path)


def test_moved_data_is_found_with_an_option(tmp_path: Path) -> None:
    here, there = tmp_path / "here.npz", tmp_path / "there.npz"
    shutil.copy(toy_npz(), here)
    run(toy_config("fedavg", source=here, train__rounds=2), tmp_path / "run")
    here.rename(there)
    with pytest.raises(
        DataError, match=r"the run names its data as .*here\.npz, and that is not found"
    ) as refused:
        audit(tmp_path / "run")
    assert "--data PATH" in refused.value.fix
    audit(tmp_path / "run", "--data", there, "--site", "site-2")
    assert len(AuditImages.open(tmp_path / "run").png(0)) > 0


def test_changed_data_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    shutil.copy(toy_npz(), data)
    run(toy_config("fedavg", source=data, train__rounds=2), tmp_path / "run")
    with np.load(data) as found:
        arrays = {name: found[name] for name in found.files}
    arrays["train_labels"][0] = 2
    np.savez(data, **arrays)
    with pytest.raises(DataError, match="not what the run was made with"):
        audit(tmp_path / "run")


def test_an_unfinished_run_is_audited_and_says_so(tmp_path: Path) -> None:
    config = toy_config("fedavg", audit__first=1)
    run(config, tmp_path, stop_after=1)
    with pytest.raises(RunFolderError, match="no evidence"):
        audit(tmp_path)
    run(config, tmp_path, stop_after=3)
    audit(tmp_path, "--site", "site-2")
    assert "not finished" in (tmp_path / "audit" / "site-2" / "gallery.html").read_text()


def test_mistakes_are_named(made: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no evidence of a site 'site-9'"):
        audit(made, "--site", "site-9")
    with pytest.raises(RunFolderError, match="there is no folder"):
        audit(tmp_path / "nothing")
    with pytest.raises(RunFolderError, match="holds no evidence"):
        audit(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    for path in (copy / "evidence" / "site-2").glob("round-*"):
        path.write_bytes(b"\0")
    with pytest.raises(RunFolderError, match="is damaged"):
        audit(copy, "--site", "site-2")


def test_a_comparison_is_told_to_name_a_cell(tmp_path: Path) -> None:
    for name in ("fedavg-S40-s0", "fedgsca-S40-s0", "fedgsca-S40-s1"):
        (tmp_path / "cells" / name / "evidence").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="is a comparison of 3 runs") as refused:
        audit(tmp_path)
    assert f"fedgsca audit {tmp_path}/cells/fedgsca-S40-s0`" in refused.value.fix


def test_a_hospital_audits_from_its_own_folder(tmp_path: Path) -> None:
    """The state folder of a site of a deployment: no config.toml, no model, one site, images of its own."""
    from fedgsca.config import build, merge
    from fedgsca.engine.local import SiteRunner
    from fedgsca.experiment.deployment import prepare_site
    from fedgsca.methods.base import make_method
    from fedgsca.site import weights_of

    data = toy_folder("five_samples")
    tree = merge(toy_config("fedavg").to_tree(), {
        "data": {"source": "sites", "classes": ["class 0", "class 1", "class 2"], "image_size": 12}, "noise": {"spec": "0"},
        "federation": {"sites": ["north", "south"]}, "train": {"rounds": 4},
    })  # fmt: skip
    config = build(tree)
    runner = SiteRunner(
        prepare_site(config, "north", str(data)), make_method("fedavg", {}, 4), tmp_path
    )
    state = runner.method.start(weights_of(runner.model), seed=0)
    for round in range(4):
        reply = runner.run_round("north", runner.method.broadcast(state, round))
        assert reply.update is not None
        state = runner.method.aggregate(state, iter([reply.update]))
    with pytest.raises(ConfigError, match="images of its own"):
        audit(tmp_path)
    audit(tmp_path, "--data", data)
    found = read_audit(tmp_path)
    assert found.header["site"] == "north" and "truth" not in found.header["summary"]
    assert len(AuditImages.open(found.path).png(0)) > 0


def test_a_hospital_names_its_kit_or_its_settings_instead_of_a_folder(tmp_path: Path) -> None:
    state, kit = tmp_path / "state", tmp_path / "kit"
    kit.mkdir()
    (kit / "site.toml").write_text(
        f'name = "north"\nstate = "{state}"\ndata = "/images"\nlabels = "~/new.csv"\n'
    )
    with pytest.raises(RunFolderError, match="holds no evidence"):
        locate_evidence(kit)
    (state / ("a" * 16) / "evidence").mkdir(parents=True)
    for given in (kit, kit / "site.toml"):
        assert locate_evidence(given) == EvidenceLocation(
            state / ("a" * 16), "/images", str(Path("~/new.csv").expanduser())
        )
    assert locate_evidence(state) == EvidenceLocation(state / ("a" * 16)) == locate_evidence(state / ("a" * 16))
    (state / ("b" * 16) / "evidence").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="of 2 experiments") as told:
        locate_evidence(kit)
    assert all(str(state / (letter * 16)) in told.value.fix for letter in "ab")
    with open(kit / "site.toml", "a") as file:
        file.write(f'fingerprint = "{"b" * 64}"\n')
    assert locate_evidence(kit).folder == state / ("b" * 16)
