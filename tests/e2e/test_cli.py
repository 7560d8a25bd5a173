"""The command line as people and scripts use it. One process, so that torch is imported once."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedgsca import cli
from fedgsca.config.schema import AggregationConfig, Config, DataConfig, PrivacyConfig, TrainConfig
from fedgsca.errors import QuorumError, RunFolderError
from fedgsca.federation import rounds as federation
from tests.toys import outcome, toy_npz


class Shell:
    """Runs a command and returns exit code, stdout and stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        code = cli.execute([str(word) for word in words])
        out, err = self.capsys.readouterr()
        return code, out, err

    def json(self, *words: str | Path) -> Any:
        code, out, err = self(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    def error(self, *words: str | Path) -> tuple[int, str, str]:
        """Exit code, error code and message of a command that must fail."""
        exit_code, out, err = self(*words)
        assert out == "" and "Traceback" not in err
        match = re.search(r"^Error \[(\S+)\]: (.*)\nFix: .{5,}", err, re.S | re.M)
        assert match is not None, err
        return exit_code, match[1], match[2]


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def tiny(*more: str) -> list[str]:
    """Flags of an experiment that takes a second."""
    return [
        "--data",
        str(toy_npz()),
        "--rounds",
        "2",
        "--set",
        "train.batch_size=8",
        "--set",
        "train.threads=1",
        # the default is a large frozen network: most of the time is its pass over the images
        "--set",
        "model.feature_size=32",
        *more,
    ]


# selects as soon as there is a fit, and fits the narrow modes of the losses after a few toy rounds
EAGER = (
    "--set",
    "fedgsca.warmup=0",
    "--set",
    "fedgsca.var_floor=0.001",
)


# ---- help ----


def test_help_imports_nothing_heavy() -> None:
    """The budget is 0.3 s. An import would exceed it, which a busy machine can check, too."""
    program = """
import sys
from fedgsca.cli import execute
code = execute(["--help"])
modules = {"torch", "numpy", "sklearn", "matplotlib", "monai", "PIL", "jinja2", "flwr"}
heavy = modules & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else code)
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    for command in (
        "demo",
        "run",
        "resume",
        "compare",
        "report",
        "data",
        "noise",
        "wire",
        "methods",
        "config",
    ):
        assert command in process.stdout


def test_every_command_explains_itself(shell: Shell) -> None:
    for words in (
        ["run"],
        ["compare"],
        ["resume"],
        ["data", "check"],
        ["noise"],
        ["wire"],
        ["demo"],
        ["report"],
        ["config"],
    ):
        code, out, _ = shell(*words, "--help")
        assert code == 0 and "Usage: fedgsca " + " ".join(words) in out


def test_version(shell: Shell) -> None:
    code, out, _ = shell("--version")
    assert (code, out.split()[0]) == (0, "fedgsca")


# ---- run, resume, report ----


def test_run_names_its_folder_and_shows_what_it_found(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell(
        "run", *tiny("--method", "fedgsca", "--noise", "0-S40-P20-C20", "--rounds", "5", *EAGER)
    )
    assert code == 0, err
    folder = tmp_path / "runs" / f"{toy_npz().stem}-fedgsca-0-S40-P20-C20-s0"
    for name in (
        "config.toml",
        "setup.json",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
        "report.html",
    ):
        assert (folder / name).is_file(), name
    result = json.loads((folder / "result.json").read_text())
    assert f"macro F1 {result['f1']:.1f}" in out
    assert "Wrong found" in out and "AUROC" in out  # the selector against the truth, per site
    assert "site-4" in out and "C20" in out
    assert str(folder.relative_to(tmp_path) / "report.html") in out
    assert "round 5/5" in err and "round 5/5" not in out  # progress is not part of the result


def test_a_selector_that_never_started_is_reported(shell: Shell) -> None:
    idle = "The selector has not started"
    assert idle in shell("run", *tiny("--method", "fedgsca", "--out", "a"))[1]
    assert idle not in shell("run", *tiny("--method", "fedavg", "--out", "b"))[1]


def test_json_of_a_run_is_alone_on_stdout(shell: Shell) -> None:
    found = shell.json("run", *tiny("--method", "fedavg", "--out", "a"))
    assert found["method"] == "fedavg" and 0 <= found["f1"] <= 100
    assert Path(found["path"]) == Path("a") and Path(found["report"]).is_file()


def test_quiet_means_silent(shell: Shell) -> None:
    assert shell("run", *tiny("--method", "fedavg", "--out", "a"), "--quiet") == (0, "", "")


def test_ctrl_c_prints_how_to_resume_and_resuming_gives_the_same_bytes(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tiny("--noise", "S40", *EAGER)
    assert shell("run", *words, "--out", "whole", "--quiet")[0] == 0
    run = federation.run

    def interrupted(config: Any, out: Path, **more: Any) -> Any:
        run(config, out, **more, stop_after=1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(federation, "run", interrupted)
        code, _, err = shell("run", *words, "--out", "half")
    assert code == 130
    assert "stopped; continue with `fedgsca resume half`" in err
    assert not (Path("half") / "result.json").exists()
    code, _, err = shell("resume", "half")
    assert code == 0 and "after round 1 of 2" in err
    assert outcome(Path("half")) == outcome(Path("whole"))


def test_resume_of_a_finished_run_says_so_and_changes_nothing(shell: Shell) -> None:
    shell("run", *tiny("--method", "fedavg", "--out", "a", "--quiet"))
    before = outcome(Path("a"))
    code, out, err = shell("resume", "a")
    assert code == 0 and "a is finished: nothing left to run" in err and "macro F1" in out
    assert outcome(Path("a")) == before


def test_report_is_written_again(shell: Shell) -> None:
    shell("run", *tiny("--method", "fedavg", "--out", "a", "--quiet"))
    (Path("a") / "report.html").unlink()
    code, out, _ = shell("report", "a")
    assert code == 0 and str(Path("a/report.html")) in out
    assert (Path("a") / "report.html").stat().st_size > 1000


def test_preset_paper_is_explained_and_warned_about(shell: Shell) -> None:
    code, _, err = shell("run", *tiny("--preset", "paper", "--out", "a"))
    assert code == 0
    assert "fedgsca.var_floor" in err and "warning: preset paper" in err
    _, _, err = shell("run", *tiny("--preset", "paper", "--method", "fedavg", "--out", "b"))
    assert "train.momentum" in err and "warning: preset paper" not in err


def test_preset_paper_says_which_parts_of_the_protocol_it_does_not_set(shell: Shell) -> None:
    _, _, err = shell("run", *tiny("--preset", "paper", "--out", "a"))
    assert "the network is cnn, the paper's is ResNet-50" in err
    assert "the paper's is 224 pixels" in err and "LVM-Med" in err


def test_preset_paper_full_sets_network_and_size() -> None:
    from fedgsca.cli.config import missing_protocol
    from fedgsca.config import load_config

    config = load_config(preset="paper-full")
    assert config.model.name == "resnet50" and config.data.image_size == 224
    assert [part.split(",")[0] for part in missing_protocol(config)] == [
        "the initial weights are random"
    ]
    assert not missing_protocol(load_config(preset="paper-full", model__weights="lvm.torch"))
    assert config.options == load_config(preset="paper").options


# ---- compare, demo ----


def test_compare_writes_tables_and_resumes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedgsca.lab.runner

    is_broken = True

    def run_or_fail(config: Any, out: Path, **options: Any) -> Any:
        if is_broken and out.name == "fedgsca-S40-s1":
            raise QuorumError("round.quorum-not-reached", "site-2 is on fire", fix="put it out")
        return federation.run(config, out, **options)

    monkeypatch.setattr(fedgsca.lab.runner, "run", run_or_fail)
    words = tiny(
        "--methods",
        "fedavg,fedgsca",
        "--noise",
        "S40",
        "--seeds",
        "2",
        "--set",
        "fedgsca.warmup=1",
        "--out",
        "c",
    )
    code, out, err = shell("compare", *words)
    assert code == 1
    assert "fedgsca-S40-s1 failed [round.quorum-not-reached]: site-2 is on fire" in err
    assert "Error [grid.failed-runs]: 1 of 6 runs failed" in err
    assert "FedGSCA" in out and "±" in out  # the others are shown

    is_broken = False
    code, out, err = shell("compare", *words)
    assert code == 0
    assert "5 of 6 runs are done" in err
    folder = Path("c")
    found = json.loads((folder / "compare.json").read_text())
    assert [(cell["method"], cell["seed"]) for cell in found["cells"]] == [
        ("fedavg", 0),
        ("fedgsca", 0),
        ("fedavg", 1),
        ("fedgsca", 1),
    ]
    assert set(found["ceiling"]["S40"]) == {"0", "1"}
    for cell in found["cells"]:
        made = tomllib.loads((folder / cell["path"] / "config.toml").read_text())
        assert made.get("fedgsca", {}).get("warmup") == (1 if cell["method"] == "fedgsca" else None)
    assert "FedGSCA" in (folder / "compare.md").read_text()
    assert {row["method"] for row in csv.DictReader((folder / "compare.csv").open())} >= {
        "fedavg",
        "fedgsca",
    }
    assert (folder / "report.html").stat().st_size > 1000

    again = json.loads(shell("resume", "c", "--json")[1])
    assert again["cells"] == found["cells"] and again["failed"] == {}
    exit_code, error_code, message = shell.error("compare", *words, "--rounds", "3", "--quiet")
    assert (exit_code, error_code) == (7, "grid.other-settings")
    assert "train.rounds: 2 there, 3 here" in message


def test_a_timed_comparison_resumes(shell: Shell) -> None:
    """Every round is scored; `resume` writes the same kind of table."""
    words = tiny("--noise", "S40", "--methods", "fedavg,fedprox", "--seeds", "1", "--timed")
    code, out, err = shell("compare", *words, "--out", "e")
    assert code == 0, err
    assert "Time to FedAvg's best" in out
    cells = json.loads(Path("e/compare.json").read_text())["cells"]
    assert [cell["method"] for cell in cells] == ["fedavg", "fedprox"]
    assert cells[0]["seconds_to_best"] > 0
    shutil.rmtree("e/cells/fedprox-S40-s0")
    again = json.loads(shell("resume", "e", "--json")[1])
    assert again["cells"][0]["seconds_to_best"] == cells[0]["seconds_to_best"]
    assert again["failed"] == {}
    words = tiny("--timed", "--set", "federation.eval_every=5", "--out", "f")
    exit_code, error_code, _ = shell.error("compare", *words)
    assert (exit_code, error_code) == (2, "grid.rounds-without-a-score")


def test_a_table_of_the_paper_is_a_comparison_with_printed_numbers(shell: Shell) -> None:
    words = ["table", "kvasir-symmetric", "--scale", "mini", "--data", str(toy_npz()), "--out", "t"]
    words += ["--methods", "fedavg,fedprox", "--noise", "S40", "--seeds", "1", "--rounds", "2"]
    words += ["--model", "cnn", "--set", "train.batch_size=16", "--no-ceiling"]
    code, out, err = shell(*words)
    assert code == 0, err
    assert "Printed F1" in out and "65.4 ± 0.4" in out
    found = json.loads(Path("t/compare.json").read_text())
    assert [cell["method"] for cell in found["cells"]] == ["fedavg", "fedprox"]
    assert json.loads(shell("resume", "t", "--json")[1])["cells"] == found["cells"]
    assert shell("report", "t")[0] == 0
    listing = json.loads(shell("table", "--json")[1])["experiments"]
    assert "kvasir-symmetric" in [entry["name"] for entry in listing]


def test_a_live_report_ends_with_the_run(shell: Shell) -> None:
    assert shell("run", *tiny("--out", "r"), "--quiet")[0] == 0
    Path("r/report.html").unlink()
    assert shell("report", "r", "--live")[0] == 0
    assert 'http-equiv="refresh"' not in Path("r/report.html").read_text()


@pytest.mark.parametrize("more", [(), ("--quiet",)])
def test_impossible_numbers_of_sites_are_reported_before_the_first_run(
    shell: Shell, more: tuple[str, ...]
) -> None:
    words = tiny("--methods", "fedavg", "--noise", "S40", "--seeds", "1", "--out", "c", *more)
    _, code, message = shell.error("compare", *words, "--sites", "2,5000")
    assert code == "data.more-sites-than-images"
    assert "among 5000 sites" in message
    assert not Path("c").exists()


def test_lists_of_settings_are_rows_of_a_comparison(shell: Shell) -> None:
    words = tiny("--methods", "fedavg", "--noise", "S40", "--seeds", "1", "--no-ceiling")
    words += ["--sites", "2,4", "--participation", "1", "--out", "c"]
    code, out, err = shell("compare", *words)
    assert code == 0, err
    assert "Noise S40 with sites=2" in out and "Noise S40 with sites=4" in out
    found = json.loads(Path("c/compare.json").read_text())
    assert [cell["settings"] for cell in found["cells"]] == [{"data.sites": 2}, {"data.sites": 4}]
    assert found["vary"] == {"data.sites": [2, 4]}
    again = json.loads(shell("resume", "c", "--json")[1])
    assert again["cells"] == found["cells"]
    assert shell.error("compare", *words, "--vary", "seed=1,2")[1] == "grid.variation-has-a-flag"


def test_demo_is_a_tour(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedgsca.lab.demo_plan
    from fedgsca.lab.plan import default_methods

    small = {
        "data": {"source": "synthetic", "train": 96, "test": 48, "sites": 4},
        "train": {"rounds": 2, "threads": 1},
    }
    monkeypatch.setattr(fedgsca.lab.demo_plan, "RECIPE", small)
    code, out, err = shell("demo", "--out", "d")
    assert code == 0, err
    assert "4 hospitals" in out and "40 % (any other class) at hospital 2" in out
    assert "FedAvg" in out and "FedGSCA" in out and str(Path("d/report.html")) in out
    assert (Path("d") / "report.html").is_file() and (Path("d") / "images.png").is_file()
    rows = {path.name.removesuffix("-0-S40-P20-C20-s0") for path in Path("d/cells").iterdir()}
    assert rows == {"ceiling", *default_methods()}


# ---- looking ----


def test_data_list_check_and_sheet(shell: Shell) -> None:
    assert "synthetic" in {source["name"] for source in shell.json("data", "list")["sources"]}
    assert "FILE.npz" in shell("data", "list")[1]
    found = shell.json("data", "check", toy_npz())
    assert found["ok"] and found["counts"]["train"]
    code, out, _ = shell("data", "check", toy_npz())
    assert code == 0 and "ready to train on" in out
    code, out, _ = shell("data", "check", toy_npz(), "--sheet", "new/sheet.png")
    assert code == 0 and Path("new/sheet.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = shell("data", "check", toy_npz(), "--sheet", "sheet.nonsense")
    assert code == 7 and "file.cannot-write" in err


def test_data_check_lists_unreadable_files(shell: Shell) -> None:
    from PIL import Image

    folder = Path("scans")
    folder.mkdir()
    lines = ["file,label"]
    for i in range(8):
        Image.new("RGB", (16, 16), (i * 20, 90, 90)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{'ab'[i % 2]}")
    (folder / "3.png").write_bytes(b"not an image")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    code, _, err = shell("data", "check", folder)
    assert code == 3 and "Error [data.unreadable-images]: " in err
    assert "3.png" in err and "--skip-unreadable" in err
    code, out, _ = shell("data", "check", folder, "--list-bad")
    assert code == 3 and [line.split("\t")[0] for line in out.splitlines()] == ["3.png"]
    code, out, _ = shell("data", "check", folder, "--json")
    assert code == 3 and json.loads(out)["ok"] is False


def test_list_bad_fails_where_a_run_would_not_start(shell: Shell) -> None:
    from PIL import Image

    Path("empty").mkdir()
    assert shell.error("data", "check", "empty", "--list-bad")[:2] == (3, "data.no-images")
    Path("gone").mkdir()
    Path("gone/labels.csv").write_text("file,label\n1.png,a\n")
    code, out, _ = shell("data", "check", "gone", "--list-bad", "--json")
    report = json.loads(out)
    assert (code, report["bad"]) == (3, [])
    assert report["problems"][0]["code"] == "data.file-not-found"
    Path("one/a").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save("one/a/1.png")
    code, _, err = shell("data", "check", "one")
    assert code == 3 and err.count("one:") + err.count("one cannot") == 1
    assert shell("data", "check", toy_npz(), "--list-bad")[:2] == (0, "")


def test_noise_preview_shows_nominal_and_realised_rates(shell: Shell) -> None:
    words = ("noise", "0-S40-P20-C20", "--data", toy_npz(), "--set", "model.feature_size=32")
    found = shell.json(*words)
    nominal = [site["nominal"] for site in found["sites"]]
    assert nominal == [0, 0.4, 0.2, 0.2]
    assert found["sites"][0]["rate"] == 0 and 0.1 < found["sites"][1]["rate"] < 0.8
    pair = found["matrices"]["P20"]
    assert pair[0][:2] == pytest.approx([0.8, 0.2]) and sum(pair[0]) == pytest.approx(1)
    assert shell.json(*words, "--seed", "1")["sites"][1]["counts"] != found["sites"][1]["counts"]
    code, out, _ = shell(*words)
    assert code == 0 and "P20: transition matrix" in out and "realised" in out
    assert len(shell.json("noise", "S40", "--data", toy_npz(), "--sites", "3")["sites"]) == 3


def test_the_preview_is_what_a_run_gets(shell: Shell) -> None:
    shell(
        "run",
        *tiny(
            "--method", "fedavg", "--noise", "0-S40-P20-C20", "--seed", "5", "--out", "a", "--quiet"
        ),
    )
    sites = json.loads((Path("a") / "setup.json").read_text())["sites"]
    found = shell.json("noise", "0-S40-P20-C20", "--data", toy_npz(), "--seed", "5")
    assert [site["counts"] for site in found["sites"]] == [
        site["realised"]["counts"] for site in sites.values()
    ]


def test_wire_shows_what_a_run_sends(shell: Shell) -> None:
    found = shell.json("wire", "fedgsca-e", "--data", toy_npz())
    assert "evidence.weight" in {extra["name"] for extra in found["leaves"]["extras"]}
    found = shell.json("wire", "fedgsca", "--data", toy_npz())
    up = found["leaves"]
    assert {extra["name"]: extra["shape"] for extra in up["extras"]}["selector"] == [6]
    assert {extra["name"]: extra["shape"] for extra in up["extras"]}["thresholds"] == [
        found["classes"]
    ]
    assert (
        sum(group["bytes"] for group in up["weights"]) == up["weights_bytes"] < up["message_bytes"]
    )
    result = shell.json("run", "--method", "fedgsca", *tiny("--out", "a"))
    sent = found["sites"] * (up["weights_bytes"] + up["extras_bytes"])
    assert result["bytes_per_round"]["up"] == sent
    beside = {row["name"]: row["shape"] for row in found["deployment"]}
    assert beside == {
        "seconds": [],
        "memory_since": [],
        "error": None,
        "confusion": [found["classes"]] * 2,
        "test_loss": [],
    }
    down = found["arrives"]
    assert result["bytes_per_round"]["down"] == found["sites"] * (
        down["weights_bytes"] + down["extras_bytes"]
    )


def test_wire_in_words(shell: Shell) -> None:
    off = ("--set", "fedgsca.diagnostics=false")
    code, out, _ = shell("wire", "fedgsca", "--data", toy_npz(), *off)
    assert code == 0
    assert "two Gaussians" in out and "weights head" in out and "num_samples" in out
    assert (
        "switched off" in out and "not in this round" not in out
    )  # declared, but not sent with these options
    assert "Also leaves a site in a deployment" in out and "confusion" in out and "seconds" in out
    code, out, _ = shell("wire", "fedavg", "--data", toy_npz())
    assert "Exceptions: all weights" in " ".join(out.split()), "as docs/privacy.md says"
    assert code == 0 and "selector" not in out and "Privacy is off" in out


def test_wire_shows_what_privacy_does_to_each_number(shell: Shell) -> None:
    found = shell.json(
        "wire",
        "fedgsca",
        "--data",
        toy_npz(),
        "--set",
        "privacy.clip=2",
        "--set",
        "privacy.noise=3",
    )
    fates = {
        extra["name"]: (extra["privacy"], extra["sent"]) for extra in found["leaves"]["extras"]
    }
    assert fates["selector"] == ("clamped, noised", True) and fates["delta"] == ("not sent", False)
    code, out, _ = shell("wire", "fedgp", "--data", toy_npz())
    assert code == 0 and "cannot be protected" in out and "fedgp cannot run under privacy" in out
    privacy = ("--set", "privacy.clip=2", "--set", "privacy.noise=3")
    code, out, _ = shell("wire", "fedavg", "--data", toy_npz(), *privacy)
    assert code == 0 and "noise of std 6 on each" in out


def test_the_budget_before_a_run(shell: Shell) -> None:
    pytest.importorskip("opacus")
    budget = shell.json("privacy", "fedgsca", "--rounds", "100", "--epsilon", "8")
    inverse = shell.json("privacy", "fedgsca", "--rounds", "100", "--noise", str(budget["noise"]))
    assert 7.8 < inverse["epsilon"] == budget["epsilon"] <= 8
    fedavg = shell.json("privacy", "fedavg", "--rounds", "100", "--epsilon", "8")
    assert fedavg["noise"] < budget["noise"], "it sends less"
    assert "fedavg, 1 round, " in shell("privacy", "fedavg", "--rounds", "1", "--noise", "4")[1]
    code, out, _ = shell("privacy", "fedavg", "--rounds", "100", "--noise", "4")
    assert code == 0 and "epsilon 35.1 at delta 1e-05" in out


def test_a_file_of_another_user_is_reported_and_is_not_a_bug(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", closed)
    exit_code, code, message = shell.error("audit", "/opt/fedgsca/berlin")
    assert (exit_code, code) == (RunFolderError.exit_code, "file.permission-denied")
    assert "/opt/fedgsca/berlin" in message


def test_methods_and_their_options(shell: Shell) -> None:
    names = [method["name"] for method in shell.json("methods")["methods"]]
    assert {"fedavg", "fedprox", "fedgsca"} <= set(names)
    options = {option["key"]: option for option in shell.json("methods", "fedgsca")["options"]}
    assert options["fedgsca.warmup"]["type"] == "int ≥ 0"
    assert options["fedgsca.guard"]["default"] is True
    code, out, _ = shell("methods", "fedgsca")
    assert code == 0 and "fedgsca.scope" in out and "global | own" in out
    assert "no options" in shell("methods", "fedavg")[1]


def test_config_resolves_and_differs(shell: Shell) -> None:
    code, out, _ = shell("config", "--noise", "S40", "--set", "fedgsca-e.diagnostics=false")
    tree = tomllib.loads(out)
    assert code == 0 and tree["noise"]["spec"] == "S40" and not tree["fedgsca-e"]["diagnostics"]
    Path("c.toml").write_text(out)
    assert shell("config", "--config", "c.toml")[1] == out  # what is written reads back as itself
    for section in (Config, TrainConfig, DataConfig, AggregationConfig, PrivacyConfig):
        for key in set(section.model_fields) - {"options", "data", "noise", "model", "train"}:
            assert re.search(rf"^(# )?\[?{key}\]?\b", out, re.MULTILINE), f"{key} is not printed"
    keys = {row["key"] for row in shell.json("config", "--diff", "paper")}
    assert "train.lr" in keys and "train.rounds" in keys and "data.source" not in keys
    assert "the same as preset paper" in shell("config", "--preset", "paper", "--diff", "paper")[1]


# ---- mistakes: a stable code, a message with a fix, and an exit code for scripts ----


@pytest.mark.parametrize(
    ("words", "exit_code", "code", "detail"),
    [
        (["run", "--method", "fedgcsa"], 2, "config.invalid", "did you mean fedgsca?"),
        (["wire", "fedgcsa"], 2, "config.unknown-method", "did you mean 'fedgsca'?"),
        (["methods", "fedgcsa"], 2, "config.unknown-method", "did you mean 'fedgsca'?"),
        (
            ["privacy", "fedgp", "--rounds", "9", "--noise", "1"],
            2,
            "privacy.method-cannot-be-protected",
            "centroids",
        ),
        (["privacy", "fedavg", "--rounds", "9"], 2, "privacy.invalid-budget", "--epsilon"),
        (
            ["privacy", "fedavg", "--rounds", "9", "--noise", "-1"],
            2,
            "privacy.invalid-budget",
            "above 0",
        ),
        (
            ["privacy", "fedavg", "--rounds", "9", "--noise", "nan"],
            2,
            "privacy.invalid-budget",
            "above 0",
        ),
        (
            ["privacy", "fedavg", "--rounds", "9", "--epsilon", "inf"],
            2,
            "privacy.invalid-budget",
            "above 0",
        ),
        (["run", "--set", "privacy.clip=-1"], 2, "config.invalid", "privacy.clip: "),
        (["run", "--set", "privacy.noise=2"], 2, "config.invalid", "privacy.clip: Field required"),
        (
            ["run", "--method", "fednoro", "--set", "privacy.clip=1"],
            2,
            "config.invalid",
            "class_losses",
        ),
        (
            ["compare", "--methods", "fedavg,fedgcsa"],
            2,
            "config.invalid",
            "did you mean fedgsca?",
        ),
        (
            ["run", "--set", "train.rouns=3", "--set", "train.lr=fast"],
            2,
            "config.invalid",
            "did you mean rounds?",
        ),
        (
            ["run", "--set", "train.rouns=3", "--set", "train.lr=fast"],
            2,
            "config.invalid",
            "2 problems",
        ),
        (["run", "--set", "nonsense"], 2, "config.invalid-set", "section.key=value"),
        (["run", "--preset", "papers"], 2, "config.invalid", "default, paper"),
        (["run", "--config", "missing.toml"], 2, "config.file-not-found", "missing.toml"),
        (["run", "--noise", "0-S40-Q20-C20"], 2, "noise.invalid-specification", "part 3 is 'Q20'"),
        (["run", "--noise", "0-S40"], 2, "noise.wrong-number-of-parts", "2 parts"),
        (
            ["compare", "--noise", "S40", "--noise", "0-S40"],
            2,
            "noise.wrong-number-of-parts",
            "2 parts",
        ),
        (["compare", "--seeds", "many"], 2, "grid.invalid-seeds", "--seeds"),
        (["run", "--model", "resnet19", "--data", "TOY"], 2, "model.unknown", "resnet18"),
        (["run", "--engine", "locl"], 2, "cli.unknown-engine", "did you mean 'local'?"),
        (["run", "--data", "empty"], 3, "data.no-images", "empty"),
        (["data", "check", "empty"], 3, "data.no-images", "empty"),
        (["run", "--data", "syntetic"], 3, "data.unknown-source", "did you mean"),
        (["resume", "empty"], 7, "run.not-a-run-folder", "empty"),
        (["resume", "missing"], 7, "run.folder-not-found", "missing"),
        (["report", "empty"], 7, "run.not-a-run-folder", "empty"),
        (["run", "--jobs", "0"], 2, "cli.usage", "--jobs"),
        (["runn"], 2, "cli.usage", "did you mean 'run'?"),
    ],
)
def test_mistakes(shell: Shell, words: list[str], exit_code: int, code: str, detail: str) -> None:
    Path("empty").mkdir()
    # not the default images, which take seconds to make
    words = [str(toy_npz()) if word == "TOY" else word for word in words]
    actual_exit_code, out, err = shell(*words)
    assert (actual_exit_code, out) == (exit_code, "")
    # what needed the data is preceded by the line that the data is being read
    lines = [line for line in err.splitlines() if not line.endswith(" ...")]
    assert lines[0].startswith(f"Error [{code}]: ")
    assert len(lines) >= len(err.splitlines()) - 1
    assert detail in err and "\nFix: " in err and "Traceback" not in err
    # nothing is left that blocks the corrected command
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_folder_belongs_to_its_experiment(shell: Shell) -> None:
    shell("run", *tiny("--method", "fedavg", "--out", "a", "--quiet"))
    words = tiny("--method", "fedavg", "--seed", "1", "--out", "a", "--quiet")
    exit_code, code, message = shell.error("run", *words)
    assert (exit_code, code) == (7, "run.other-experiment")
    assert "seed: 0 there, 1 here" in message
    Path("thesis").mkdir()
    (Path("thesis") / "chapter1.txt").write_text("years of work")
    for command, code in (("run", "run.folder-not-empty"), ("compare", "grid.folder-not-empty")):
        assert shell.error(command, *tiny("--out", "thesis", "--quiet"))[:2] == (7, code)


def test_a_bug_is_called_a_bug(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(federation, "run", broken)
    code, _, err = shell("run", *tiny("--out", "a"))
    assert code == 70 and "Traceback" in err and "Please report it" in err
    code, out, err = shell("run", *tiny("--out", "b", "--json"))
    assert code == 70 and "Traceback" in err
    assert json.loads(out)["error"]["code"] == "cli.bug"
