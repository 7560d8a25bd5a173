"""`fedgsca audit` and `audit_run` as users meet them, with correct and with wrong input."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgsca.cli import app, execute
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import Experiment
from fedgsca.hospital.ledger import Ledger
from fedgsca.hospital.settings import read_settings
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.audits import audit_run
from fedgsca.labels.site_data import EvidenceLocation, locate_evidence
from tests.toys import toy_config, toy_folder, toy_npz

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    run(toy_config("fedavg", train__rounds=8, train__lr=0.05, audit__enabled=True), folder)
    return folder


def audit(*arguments: object) -> str:
    result = RUNNER.invoke(app, ["audit", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_sites_of_a_simulation(finished_run: Path) -> None:
    output = audit(finished_run)
    for text in ("site-1", "site-4", "truly wrong", "fedgsca review"):
        assert text in output
    site_audit = read_audit(finished_run / "audit" / "site-2")
    entries = list(site_audit.ranked_labels())
    assert sorted(s.row for s in entries) == list(range(len(site_audit)))
    assert [s.rank for s in entries] == list(range(1, len(site_audit) + 1))
    assert all(a.suspicion >= b.suspicion for a, b in pairwise(entries))
    summary = site_audit.summary
    assert summary.truth is not None and (summary.truth.auroc or 0) > 0.6
    assert sum(entry.labels for entry in summary.per_class) == len(site_audit)
    images = AuditImages.open(site_audit.path)
    assert all(images.hash(s.row) == s.hash for s in entries[:5])
    assert all(s.given != s.suggestion and len(s.runners_up) == 2 for s in entries)


def test_audit_run_gives_python_users_the_same_lists(finished_run: Path, tmp_path: Path) -> None:
    sites: list[tuple[str, int]] = []
    audits = audit_run(
        str(finished_run),
        sites=["site-2", "site-3"],
        out=tmp_path,
        quota=0.2,
        on_site=lambda name, count: sites.append((name, count)),
    )
    assert [site_audit.site for site_audit in audits] == ["site-2", "site-3"]
    assert sites == [(site_audit.site, len(site_audit)) for site_audit in audits]
    for site_audit in audits:
        assert site_audit.path == tmp_path / site_audit.site
        suspects = list(site_audit.suspects())
        assert len(suspects) == site_audit.num_suspects == site_audit.summary.suspects
        assert all(suspect.priority for suspect in suspects)
        assert (site_audit.path / "gallery.html").exists()
        assert read_audit(site_audit.path).header == site_audit.header


def test_audit_run_refuses_a_wrong_quota_and_opinion(finished_run: Path) -> None:
    for arguments, code in (
        ({"quota": 10.0}, "audit.invalid-quota"),
        ({"second_opinions": ["nobody"]}, "audit.unknown-second-opinion"),
    ):
        with pytest.raises(ConfigError) as error:
            audit_run(finished_run, **arguments)  # type: ignore[arg-type]
        assert error.value.code == code


def test_the_gallery_needs_nothing_else(tmp_path: Path) -> None:
    backbone = "efficientnet-lite0"
    config = toy_config("fedgsca-e", train__rounds=8, train__lr=0.05, evidence__backbone=backbone)
    run(config, tmp_path)
    audit(tmp_path, "--site", "site-3", "--second-opinion", "neighbours")
    page = (tmp_path / "audit" / "site-3" / "gallery.html").read_text()
    assert "stays at the site" in page and "nearest neighbours say" in page
    assert re.findall(r'(?:src|href)="(?!data:|#)', page) == []
    assert "<script" not in page and len(page) < 5_000_000


def test_json_is_alone_on_stdout(finished_run: Path) -> None:
    (record,) = json.loads(audit(finished_run, "--site", "site-1", "--json"))["audits"]
    assert record["path"] == str(finished_run / "audit" / "site-1")
    assert record["site"] == "site-1" and record["summary"]["truth"]["wrong"] == 0


def test_moved_data_is_found_with_an_option(tmp_path: Path) -> None:
    old_path = tmp_path / "old.npz"
    new_path = tmp_path / "new.npz"
    shutil.copy(toy_npz(), old_path)
    run(toy_config("fedgsca-e", source=old_path), tmp_path / "run")
    old_path.rename(new_path)
    with pytest.raises(DataError) as error:
        audit(tmp_path / "run")
    assert error.value.code == "audit.data-not-found" and str(old_path) in error.value.message
    assert "--data PATH" in error.value.fix
    audit(tmp_path / "run", "--data", new_path, "--site", "site-2")
    assert len(AuditImages.open(tmp_path / "run").png(0)) > 0


def test_changed_data_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    shutil.copy(toy_npz(), data)
    run(toy_config("fedgsca-e", source=data), tmp_path / "run")
    with np.load(data) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["train_labels"][0] = 2
    np.savez(data, **arrays)
    with pytest.raises(DataError) as error:
        audit(tmp_path / "run")
    assert error.value.code == "audit.data-changed"


def test_an_unfinished_run_is_audited_with_a_warning(tmp_path: Path) -> None:
    config = toy_config("fedavg", audit__enabled=True)
    run(config, tmp_path, stop_after=1)
    with pytest.raises(RunFolderError) as error:
        audit(tmp_path)
    assert error.value.code == "audit.no-evidence"
    assert f"`fedgsca resume {tmp_path}`" in error.value.fix
    run(config, tmp_path, stop_after=4)
    audit(tmp_path, "--site", "site-2")
    assert "not finished" in (tmp_path / "audit" / "site-2" / "gallery.html").read_text()


def test_wrong_arguments_are_reported(finished_run: Path, tmp_path: Path) -> None:
    for arguments, code in (
        ((finished_run, "--site", "site-9"), "audit.unknown-site"),
        ((tmp_path / "nothing",), "run.folder-not-found"),
        ((tmp_path,), "audit.no-evidence"),
    ):
        with pytest.raises(RunFolderError) as error:
            audit(*arguments)
        assert error.value.code == code
    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    for path in (copy / "evidence" / "site-2").glob("round-*"):
        path.write_bytes(b"\0")
    with pytest.raises(RunFolderError) as damage:
        audit(copy, "--site", "site-2")
    assert "damaged" in damage.value.code


def test_one_run_of_a_comparison_must_be_chosen(tmp_path: Path) -> None:
    for name in ("fedavg-S40-s0", "fedgsca-S40-s0", "fedgsca-S40-s1"):
        (tmp_path / "cells" / name / "evidence").mkdir(parents=True)
    with pytest.raises(RunFolderError) as error:
        audit(tmp_path)
    assert error.value.code == "audit.several-runs" and "3 runs" in error.value.message
    assert f"fedgsca audit {tmp_path}/cells/fedgsca-S40-s0`" in error.value.fix


def train_at_hospital(experiment: Experiment, folder: Path) -> None:
    """What a deployed site does in its state folder."""
    from fedgsca.federation.local import SiteRunner
    from fedgsca.federation.site_rows import keep_samples
    from fedgsca.methods.base import compose_method
    from fedgsca.methods.site import weights_of

    rounds = experiment.config.train.rounds
    runner = SiteRunner(experiment, compose_method(experiment.config), folder)
    keep_samples(folder, experiment)
    state = runner.method.start(weights_of(runner.model), seed=0)
    for round_index in range(rounds):
        reply = runner.run_round("north", runner.method.broadcast(state, round_index))
        assert reply.update is not None
        state = runner.method.aggregate(state, iter([reply.update]))


def test_a_hospital_audits_from_its_own_folder(tmp_path: Path) -> None:
    """The state folder of a deployed site: no config.toml, no model, one site, its own images."""
    from fedgsca.config import build, merge
    from fedgsca.federation.deployment import prepare_site

    data = toy_folder("five_samples")
    classes = ["class 0", "class 1", "class 2"]
    changes = {
        "data": {"source": "sites", "classes": classes, "image_size": 12},
        "noise": {"spec": "0"},
        "federation": {"sites": ["north", "south"]},
    }
    config = build(merge(toy_config("fedavg", audit__enabled=True).to_tree(), changes))
    train_at_hospital(prepare_site(config, "north", str(data)), tmp_path)
    with pytest.raises(ConfigError) as error:
        audit(tmp_path)
    assert error.value.code == "audit.data-required"
    audit(tmp_path, "--data", data)
    site_audit = read_audit(tmp_path)
    assert site_audit.site == "north" and site_audit.summary.truth is None
    assert len(AuditImages.open(site_audit.path).png(0)) > 0


def test_a_hospital_with_its_own_class_names_audits_and_corrects(tmp_path: Path) -> None:
    """[classes] of site.toml holds for training, audit, review, apply and the corrected labels."""
    from fedgsca.config import build, merge
    from fedgsca.federation.deployment import prepare_site, site_table
    from fedgsca.labels.apply_decisions import apply_decisions

    data = toy_folder("five_samples")
    names = {"class 0": "healthy", "class 1": "adenoma", "class 2": "carcinoma"}
    changes = {
        "data": {"source": "sites", "classes": [*names.values(), "polyp"], "image_size": 12},
        "noise": {"spec": "0"},
        "federation": {"sites": ["north", "south"]},
    }
    config = build(merge(toy_config("fedavg", audit__enabled=True).to_tree(), changes))
    experiment = prepare_site(config, "north", str(data), None, names)
    train_at_hospital(experiment, tmp_path / "state" / "a")
    table = "".join(f'"{own}" = "{name}"\n' for own, name in names.items())
    (tmp_path / "site.toml").write_text(
        f'name = "north"\nstate = "{tmp_path / "state"}"\ndata = "{data}"\n[classes]\n{table}'
    )
    audit(tmp_path)
    site_audit = read_audit(tmp_path / "state" / "a")
    assert site_audit.classes == (*names.values(), "polyp")
    assert len(AuditImages.open(site_audit.path).png(0)) > 0
    suspect = next(site_audit.ranked_labels())
    new_label = "healthy" if suspect.given != "healthy" else "adenoma"
    site_audit.open_decisions().record(suspect, new_label, reviewer="anna")
    result = apply_decisions(site_audit.path, out=tmp_path / "corrected.csv")
    assert [(change.old, change.new) for change in result.changes] == [(suspect.given, new_label)]
    assert "class " not in (tmp_path / "corrected.csv").read_text(), "one spelling in the file"
    corrected = site_table(config, str(data), tmp_path / "corrected.csv", names)
    assert int((corrected.labels != experiment.table.labels).sum()) == 1


def test_a_hospital_gives_its_kit_or_its_settings_instead_of_a_folder(tmp_path: Path) -> None:
    state, kit = tmp_path / "state", tmp_path / "kit"
    kit.mkdir()
    (kit / "site.toml").write_text(
        f'name = "north"\nstate = "{state}"\ndata = "/images"\nlabels = "~/new.csv"\n'
    )
    with pytest.raises(RunFolderError) as error:
        locate_evidence(kit)
    assert error.value.code == "audit.no-evidence"
    (state / ("a" * 16) / "evidence").mkdir(parents=True)
    for given in (kit, kit / "site.toml"):
        assert locate_evidence(given) == EvidenceLocation(
            state / ("a" * 16), "/images", str(Path("~/new.csv").expanduser())
        )
    experiment = EvidenceLocation(state / ("a" * 16))
    assert locate_evidence(state) == experiment == locate_evidence(experiment.folder)
    (state / ("b" * 16) / "evidence").mkdir(parents=True)
    with pytest.raises(RunFolderError) as error:
        locate_evidence(kit)
    assert error.value.code == "audit.several-experiments"
    assert all(str(state / (letter * 16)) in error.value.fix for letter in "ab")
    Ledger(read_settings(kit / "site.toml")).append("agreed", "b" * 64, "A", until="9999-01-01")
    assert locate_evidence(kit).folder == state / ("b" * 16)


# ---- a hospital that came back too late ----


def write_late_kit(kit: Path, *, model: str, frozen: str = "true") -> Path:
    """A kit whose state has no evidence; 90 samples with features, 9 of them labelled wrong."""
    kit.mkdir()
    rng = np.random.default_rng(0)
    true = np.arange(90) % 3
    labels = true.copy()
    labels[:9] = (true[:9] + 1) % 3
    features = (3 * np.eye(3, 8)[true] + rng.normal(0, 0.4, (90, 8))).astype(np.float32)
    np.savez(kit / "data.npz", features=features, labels=labels)
    (kit / "site.toml").write_text(
        f'name = "north"\nstate = "{kit / "state"}"\ndata = "{kit / "data.npz"}"\n'
    )
    (kit / "experiment.toml").write_text(
        '[data]\nsource = "sites"\nclasses = ["class 0", "class 1", "class 2"]\nimage_size = 16\n'
        "sites = 2\n"
        f'[federation]\nsites = ["north", "south"]\n[model]\n{model}\nfrozen = {frozen}\n'
    )
    return kit


def test_a_site_that_came_too_late_gets_an_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = write_late_kit(tmp_path / "kit", model='name = "features"\nfeature_width = 8')
    for _ in range(2):  # the second time from the stored evidence
        assert execute(["audit", str(kit)]) == 0
        assert "own images alone" in capsys.readouterr().err
    (path,) = (kit / "state").glob("*/alone/audit/north/audit.csv")
    found = read_audit(path.parent)
    wrong = [suspect for suspect in found.window(0, 6) if suspect.given != suspect.suggestion]
    numbers = [int(re.sub(r"\D", "", suspect.id)) for suspect in wrong]
    assert len(numbers) >= 5 and all(number < 9 for number in numbers)


def test_without_frozen_features_the_printed_fix_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = write_late_kit(tmp_path / "kit", model='name = "cnn"', frozen="false")
    assert execute(["audit", str(kit)]) == 7
    message = capsys.readouterr().err
    command = " ".join(message.split()).partition("others: fedgsca ")[2].split()
    assert command[0] == "audit-folder"
    assert execute([*command[:2], "--out", str(tmp_path / "out")]) == 0
