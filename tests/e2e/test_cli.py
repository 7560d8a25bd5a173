"""The command line as a person or a script meets it. Runs in this process, so that torch is imported once."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from toys import outcome, toy_npz

from fedgsca import cli
from fedgsca.engine import rounds as federation
from fedgsca.errors import QuorumError, RunFolderError


class Shell:
    """Types a command, returns exit code, stdout and stderr."""

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
        *more,
    ]


# selects as soon as there is a fit, and fits the narrow heaps of losses that a few rounds on toys give
EAGER = (
    "--set",
    "fedgsca.warmup=0",
    "--set",
    "fedgsca.wait_for_health=false",
    "--set",
    "fedgsca.selector.var_floor=0.001",
)


# ---- help ----


def test_help_imports_nothing_heavy() -> None:
    """0.5 s is the budget; what would break it is an import, and that can be seen on a busy machine, too."""
    program = (
        "import sys\nfrom fedgsca.cli import execute\ncode = execute(['--help'])\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'matplotlib', 'pydantic', 'monai', 'PIL', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
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
        assert command in done.stdout


def test_every_command_explains_itself(shell: Shell) -> None:
    for words in (
        ["run"],
        ["compare"],
        ["resume"],
        ["data", "check"],
        ["noise", "preview"],
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
    code, out, err = shell("run", *tiny("--noise", "0-S40-P20-C20", "--rounds", "5", *EAGER))
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
    assert "wrong found" in out and "AUROC" in out  # the selector against the truth, per site
    assert "site-4" in out and "C20" in out
    assert str(folder.relative_to(tmp_path) / "report.html") in out
    assert "round 5/5" in err and "round 5/5" not in out  # progress is no result


def test_a_selector_that_never_started_is_told(shell: Shell) -> None:
    idle = "The selector has not started"
    assert idle in shell("run", *tiny("--out", "a"))[1]
    assert idle not in shell("run", *tiny("--method", "fedavg", "--out", "b"))[1]


def test_a_folder_is_the_same_with_a_slash_at_its_end() -> None:
    from fedgsca.cli.options import make_config, make_tree

    for typed, kept in (
        ("x/", "x"),
        ("x//", "x"),
        ("x", "x"),
        ("kvasir:a/b/", "kvasir:a/b"),
        ("/", "/"),
        ("dicom:/", "dicom:/"),
    ):
        assert (
            make_config(None, None, data=typed).data.source
            == make_tree(None, None, data=typed)["data"]["source"]
            == kept
        )


def test_run_json_is_all_there_is_on_stdout(shell: Shell) -> None:
    found = shell.json("run", *tiny("--method", "fedavg", "--out", "a"))
    assert found["method"] == "fedavg" and 0 <= found["f1"] <= 100
    assert Path(found["path"]) == Path("a") and Path(found["report"]).is_file()


def test_quiet_means_silent(shell: Shell) -> None:
    assert shell("run", *tiny("--method", "fedavg", "--out", "a"), "--quiet") == (0, "", "")


def test_ctrl_c_says_how_to_go_on_and_resume_ends_in_the_same_bytes(
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
    assert code == 0 and "going on after round 1 of 2" in err
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
    assert "fedgsca.selector.var_floor" in err and "warning: preset paper" in err
    _, _, err = shell("run", *tiny("--preset", "paper", "--method", "fedavg", "--out", "b"))
    assert "train.momentum" in err and "warning: preset paper" not in err


# ---- compare, demo ----


def test_compare_writes_tables_and_goes_on_where_it_stopped(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedgsca.grid.runner

    run, broken = fedgsca.grid.runner.run, True

    def sometimes(config: Any, out: Path, **more: Any) -> Any:
        if broken and out.name == "fedgsca-S40-s1":
            raise QuorumError("todo.test-cli-1", "site-2 is on fire", fix="put it out")
        return run(config, out, **more)

    monkeypatch.setattr(fedgsca.grid.runner, "run", sometimes)
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
    assert "fedgsca-S40-s1 failed: site-2 is on fire" in err and "1 of 6 runs failed" in err
    assert "FedGSCA" in out and "±" in out  # the others are shown

    broken = False
    code, out, err = shell("compare", *words)
    assert code == 0
    assert "5 of 6 runs are done" in err and "fedavg-S40-s0" in err
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
    code, _, err = shell("compare", *words, "--rounds", "3")
    assert (
        code == 7 and "holds another comparison" in err and "train.rounds: 2 there, 3 here" in err
    )


def test_demo_is_a_tour(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedgsca.grid.demo_plan

    small = {
        "data": {"source": "synthetic", "train": 96, "test": 48, "sites": 4},
        "train": {"rounds": 2, "threads": 1},
    }
    monkeypatch.setattr(fedgsca.grid.demo_plan, "RECIPE", small)
    code, out, err = shell("demo", "--out", "d")
    assert code == 0, err
    assert "4 hospitals" in out and "40 % (any class) at hospital 2" in out
    assert "FedAvg" in out and "FedGSCA" in out and str(Path("d/report.html")) in out
    assert (Path("d") / "report.html").is_file() and (Path("d") / "images.png").is_file()
    assert sorted(path.name for path in (Path("d") / "cells").iterdir()) == [
        "ceiling-0-S40-P20-C20-s0",
        "fedavg-0-S40-P20-C20-s0",
        "fedgsca-0-S40-P20-C20-s0",
    ]


# ---- looking ----


def test_data_list_check_and_sheet(shell: Shell) -> None:
    assert "synthetic" in {source["name"] for source in shell.json("data", "list")["sources"]}
    assert "FILE.npz" in shell("data", "list")[1]
    found = shell.json("data", "check", toy_npz())
    assert found["ok"] and found["counts"]["train"]
    code, out, _ = shell("data", "check", toy_npz())
    assert code == 0 and "ready to train on" in out
    code, out, _ = shell("data", "sheet", toy_npz(), "-o", "new/sheet.png")
    assert code == 0 and Path("new/sheet.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = shell("data", "sheet", toy_npz(), "-o", "sheet.nonsense")
    assert code == 7 and "Fix:" in err
    code, _, err = shell("data", "sheet", toy_npz(), "--label", "drawn", "-o", "sheet.png")
    assert code == 2 and "data.label = 'drawn' is not known to the source FILE.npz" in err


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
    assert code == 3 and "3.png" in err and "--skip-unreadable" in err
    code, out, _ = shell("data", "check", folder, "--list-bad")
    assert code == 3 and [line.split("\t")[0] for line in out.splitlines()] == ["3.png"]
    code, out, _ = shell("data", "check", folder, "--json")
    assert code == 3 and json.loads(out)["ok"] is False


def test_list_bad_fails_where_a_run_would_not_start(shell: Shell) -> None:
    from PIL import Image

    Path("empty").mkdir()
    code, out, err = shell("data", "check", "empty", "--list-bad")
    assert code == 3 and out == "" and "1 folder without images" in err and "Fix:" in err
    Path("gone").mkdir()
    Path("gone/labels.csv").write_text("file,label\n1.png,a\n")
    code, out, _ = shell("data", "check", "gone", "--list-bad", "--json")
    assert (
        code == 3
        and json.loads(out)["bad"] == []
        and "1 missing file" in json.loads(out)["problems"][0]["text"]
    )
    Path("one/a").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save("one/a/1.png")
    code, _, err = shell("data", "check", "one")
    assert code == 3 and err.count("one:") + err.count("one cannot") == 1
    assert shell("data", "check", toy_npz(), "--list-bad")[:2] == (0, "")


def test_noise_preview_tells_nominal_and_realised(shell: Shell) -> None:
    words = ("noise", "preview", "0-S40-P20-C20", "--data", toy_npz())
    found = shell.json(*words)
    nominal = [site["nominal"] for site in found["sites"]]
    assert nominal == [0, 0.4, 0.2, 0.2]
    assert found["sites"][0]["rate"] == 0 and 0.1 < found["sites"][1]["rate"] < 0.8
    pair = found["matrices"]["P20"]
    assert pair[0][:2] == pytest.approx([0.8, 0.2]) and sum(pair[0]) == pytest.approx(1)
    assert shell.json(*words, "--seed", "1")["sites"][1]["counts"] != found["sites"][1]["counts"]
    code, out, _ = shell(*words)
    assert code == 0 and "P20: transition matrix" in out and "realised" in out
    assert (
        len(shell.json("noise", "preview", "S40", "--data", toy_npz(), "--sites", "3")["sites"])
        == 3
    )


def test_the_preview_is_what_a_run_gets(shell: Shell) -> None:
    shell(
        "run",
        *tiny(
            "--method", "fedavg", "--noise", "0-S40-P20-C20", "--seed", "5", "--out", "a", "--quiet"
        ),
    )
    sites = json.loads((Path("a") / "setup.json").read_text())["sites"]
    found = shell.json("noise", "preview", "0-S40-P20-C20", "--data", toy_npz(), "--seed", "5")
    assert [site["counts"] for site in found["sites"]] == [
        site["realised"]["counts"] for site in sites.values()
    ]


def test_wire_tells_what_a_run_sends(shell: Shell) -> None:
    found = shell.json("wire", "fedgsca", "--data", toy_npz())
    up = found["leaves"]
    assert {extra["name"]: extra["shape"] for extra in up["extras"]}["selector"] == [6]
    assert {extra["name"]: extra["shape"] for extra in up["extras"]}["thresholds"] == [
        found["classes"]
    ]
    assert (
        sum(group["bytes"] for group in up["weights"]) == up["weights_bytes"] < up["message_bytes"]
    )
    result = shell.json("run", *tiny("--out", "a"))
    sent = found["sites"] * (up["weights_bytes"] + up["extras_bytes"])
    assert result["bytes_per_round"]["up"] == sent
    beside = {row["name"]: row["shape"] for row in found["deployment"]}
    assert beside == {
        "seconds": [],
        "error": None,
        "confusion": [found["classes"]] * 2,
        "test_loss": [],
    }
    down = found["arrives"]
    assert result["bytes_per_round"]["down"] == found["sites"] * (
        down["weights_bytes"] + down["extras_bytes"]
    )


def test_wire_in_words(shell: Shell) -> None:
    code, out, _ = shell("wire", "fedgsca", "--set", "fedgsca.diagnostics=false")
    assert code == 0
    assert "two Gaussians" in out and "weights head" in out and "num_samples" in out
    assert "not in this round" in out  # declared, but not sent with these options
    assert "in a deployment, too" in out and "confusion" in out and "seconds" in out
    code, out, _ = shell("wire", "fedavg")
    assert code == 0 and "selector" not in out and "Privacy is off" in out


def test_wire_tells_what_privacy_does_to_each_number(shell: Shell) -> None:
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
    code, out, _ = shell("wire", "fedgp")
    assert code == 0 and "cannot be protected" in out and "fedgp cannot run under privacy" in out
    assert (
        "noise of std 6 on each"
        in shell("wire", "fedavg", "--set", "privacy.clip=2", "--set", "privacy.noise=3")[1]
    )


def test_the_budget_before_a_run(shell: Shell) -> None:
    pytest.importorskip("opacus")
    asked = shell.json("privacy", "fedgsca", "--rounds", "100", "--epsilon", "8")
    told = shell.json("privacy", "fedgsca", "--rounds", "100", "--noise", str(asked["noise"]))
    assert 7.8 < told["epsilon"] == asked["epsilon"] <= 8
    assert (
        shell.json("privacy", "fedavg", "--rounds", "100", "--epsilon", "8")["noise"]
        < asked["noise"]
    ), "it sends less"
    code, out, _ = shell("privacy", "fedavg", "--rounds", "100", "--noise", "4")
    assert code == 0 and "epsilon 35.1 at delta 1e-05" in out


def test_a_file_of_another_user_is_named_and_no_bug(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", closed)
    code, _, err = shell("audit", "/opt/fedgsca/berlin")
    assert (
        code == RunFolderError.exit_code
        and "Error: /opt/fedgsca/berlin" in err
        and "sudo -u fedgsca" in err
    )


def test_methods_and_their_options(shell: Shell) -> None:
    names = [method["name"] for method in shell.json("methods")["methods"]]
    assert {"fedavg", "fedprox", "fedgsca"} <= set(names)
    options = {option["key"]: option for option in shell.json("methods", "fedgsca")["options"]}
    assert options["fedgsca.warmup"]["type"] == "int ≥ 0"
    assert options["fedgsca.selector.clip"]["type"] == "float > 0 | none"
    assert options["fedgsca.guard.enabled"]["default"] is True
    code, out, _ = shell("methods", "fedgsca")
    assert code == 0 and "fedgsca.selector.scope" in out and "global | own" in out
    assert "no options" in shell("methods", "fedavg")[1]


def test_config_resolves_and_differs(shell: Shell) -> None:
    code, out, _ = shell("config", "--noise", "S40", "--set", "fedgsca.guard.max_delta=0.6")
    tree = tomllib.loads(out)
    assert (
        code == 0
        and tree["noise"]["spec"] == "S40"
        and tree["fedgsca"]["guard"]["max_delta"] == 0.6
    )
    Path("c.toml").write_text(out)
    assert shell("config", "--config", "c.toml")[1] == out  # what is written reads back as itself
    keys = {row["key"] for row in shell.json("config", "--diff", "paper")}
    assert "fedgsca.warmup" in keys and "train.rounds" in keys and "data.source" not in keys
    assert "the same as preset paper" in shell("config", "--preset", "paper", "--diff", "paper")[1]


# ---- mistakes: a clear message that names the fix, and an exit code that tells them apart ----


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "--method", "fedgcsa"], 2, "did you mean fedgsca?"),
        (["wire", "fedgcsa"], 2, "did you mean fedgsca?"),
        (["methods", "fedgcsa"], 2, "did you mean fedgsca?"),
        (
            ["privacy", "fedgp", "--rounds", "9", "--noise", "1"],
            2,
            "cannot run under privacy: it needs centroids",
        ),
        (["privacy", "fedavg", "--rounds", "9"], 2, "give --noise or --epsilon"),
        (["privacy", "fedavg", "--rounds", "9", "--noise", "-1"], 2, "above 0"),
        (["privacy", "fedavg", "--rounds", "9", "--noise", "nan"], 2, "above 0"),
        (["privacy", "fedavg", "--rounds", "9", "--epsilon", "inf"], 2, "above 0"),
        (["run", "--set", "privacy.clip=-1"], 2, "privacy.clip: Input should be greater than 0"),
        (["run", "--set", "privacy.noise=2"], 2, "privacy.clip: Field required"),
        (
            ["run", "--method", "fednoro", "--set", "privacy.clip=1"],
            2,
            "cannot be protected: class_losses",
        ),
        (["compare", "--methods", "fedavg,fedgcsa"], 2, "did you mean fedgsca?"),
        (["run", "--set", "train.rouns=3", "--set", "train.lr=fast"], 2, "did you mean rounds?"),
        (["run", "--set", "train.rouns=3", "--set", "train.lr=fast"], 2, "2 problems"),
        (["run", "--set", "nonsense"], 2, "section.key=value"),
        (["run", "--preset", "papers"], 2, "default, paper"),
        (["run", "--config", "missing.toml"], 2, "missing.toml does not exist"),
        (["run", "--noise", "0-S40-Q20-C20"], 2, "part 3 is 'Q20'"),
        (["run", "--noise", "0-S40"], 2, "describes 2 sites, but there are 4"),
        (
            ["compare", "--noise", "S40", "--noise", "0-S40"],
            2,
            "describes 2 sites, but there are 4",
        ),
        (["compare", "--seeds", "many"], 2, "--seeds"),
        (["run", "--model", "resnet19"], 2, "resnet18"),
        (["run", "--data", "empty"], 3, "Fix:"),
        (["data", "check", "empty"], 3, "Fix:"),
        (["run", "--data", "syntetic"], 3, "did you mean synthetic?"),
        (["resume", "empty"], 7, "not a run folder"),
        (["resume", "missing"], 7, "not a folder"),
        (["report", "empty"], 7, "neither a run nor a comparison"),
        (["run", "--jobs", "0"], 2, "--jobs"),
        (["runn"], 2, "runn"),
    ],
)
def test_mistakes(shell: Shell, words: list[str], code: int, message: str) -> None:
    Path("empty").mkdir()
    found, out, err = shell(*words)
    assert (found, out) == (code, "")
    assert message in err and "Traceback" not in err
    assert not Path("runs").exists() or not list(
        Path("runs").iterdir()
    )  # nothing is left that blocks the corrected command


def test_a_folder_belongs_to_its_experiment(shell: Shell) -> None:
    shell("run", *tiny("--method", "fedavg", "--out", "a", "--quiet"))
    code, _, err = shell("run", *tiny("--method", "fedavg", "--seed", "1", "--out", "a"))
    assert code == 7 and "a belongs to another experiment" in err and "seed: 0 there, 1 here" in err
    Path("thesis").mkdir()
    (Path("thesis") / "chapter1.txt").write_text("years of work")
    for command in ("run", "compare"):
        code, _, err = shell(command, *tiny("--out", "thesis"))
        assert code == 7 and "not empty" in err


def test_a_bug_is_called_a_bug(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(federation, "run", broken)
    code, _, err = shell("run", *tiny("--out", "a"))
    assert code == 70 and "Traceback" in err and "Please report it" in err
