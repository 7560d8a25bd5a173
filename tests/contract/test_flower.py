"""Flower as the carrier: the same bytes as without it, for every method; and rounds that neither hang nor take what they should not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import SITES, Listener, outcome, toy_config, toy_images, toy_npz

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from localgrid import LocalGrid, Meddle, over_flower, simulated

from fedgsca.config import Config, load_config
from fedgsca.engine import site_node as remote
from fedgsca.engine.flower import client_app, from_node_config, from_records, to_records
from fedgsca.engine.round_status import read_status
from fedgsca.engine.rounds import run
from fedgsca.engine.site_node import SiteSettings
from fedgsca.errors import ClassListError, QuorumError
from fedgsca.experiment.deployment import prepare_coordinator
from fedgsca.experiment.run_folder import read_lines
from fedgsca.methods.base import load_methods
from fedgsca.report.html_page import write_report
from fedgsca.wire import pack

Do = Callable[[], Message]


def go(
    config: Config, out: Path, meddle: Meddle | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """A run over the grid: its log and what a person was told."""
    told = Listener()
    over_flower(config, LocalGrid(client_app(simulated(out)), SITES, meddle), out, told)
    return read_lines(out / "metrics.jsonl"), told.messages


def training(message: Message) -> int | None:
    """The round of a training message; None for other messages."""
    return int(message.metadata.group_id) if message.metadata.message_type == "train" else None


# ---- the same bytes ----


@pytest.mark.parametrize("method", sorted(load_methods()))
def test_flower_changes_no_byte(method: str, tmp_path: Path) -> None:
    config = toy_config(method, train__rounds=3)
    run(config, tmp_path / "here")
    _, told = go(config, tmp_path / "flower")
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "here")
    assert told == []


def test_a_message_is_one_float_record_and_one_block() -> None:
    weights = {
        "w": np.array([[1.5, np.nan], [np.inf, -0.0]], np.float32),
        "n": np.array(7),
        "wide": np.arange(3.0),
        "h": np.ones(2, np.float16),
    }
    extras = {"few": np.array([np.nan, 1e-300]), "flag": np.array(True)}
    records = to_records({"round": 3}, weights, extras)
    assert (
        isinstance(records["weights"], ArrayRecord)
        and isinstance(records["rest"], ConfigRecord)
        and len(records) == 2
    )
    assert {name: array.numpy().shape for name, array in records["weights"].items()} == {
        "float32": (4,),
        "float64": (3,),
        "float16": (2,),
    }  # one array per type, whatever the network; Flower's mods multiply these
    header, got, beside = from_records(records)
    assert header == {"round": 3}
    for before, after in ((weights, got), (extras, beside)):
        assert set(before) == set(after)
        for name, value in before.items():
            assert (after[name].dtype, after[name].shape) == (value.dtype, value.shape)
            assert after[name].tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "layout",
    [
        [["w", "float32", [3]]],  # less than came
        [["w", "float32", [5]]],  # more than came
        [["w", "float32", [-1, 4]]],
        [["w", "float64", [4]]],  # another type than came
        [["w", "float32", [2]], ["w", "float32", [2]]],
        [["w", "float32", ["4"]]],
        None,
    ],
)
def test_a_layout_that_does_not_fit_is_no_message(layout: object) -> None:
    records = to_records({"round": 3}, {"w": np.ones(4, np.float32)}, {})
    records["rest"] = ConfigRecord(
        {"fedgsca": pack({"round": 3, "layout": layout}, extras={}, buffers={})}
    )
    with pytest.raises(ValueError, match="cannot be read"):
        from_records(records)


def test_a_repeated_message_changes_nothing(tmp_path: Path) -> None:
    config = toy_config("fedcorr", train__rounds=4)  # a method with memory at the sites
    run(config, tmp_path / "here")

    def twice(site: int, message: Message, do: Do) -> Message:
        do()
        return do()

    go(config, tmp_path / "flower", twice)
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "here")


# ---- rounds that do not hang ----


@pytest.fixture(scope="module")
def config() -> Config:
    return toy_config("fedavg", frozen=True, train__rounds=4)


def test_late_and_missing_sites_are_named_and_come_back(config: Config, tmp_path: Path) -> None:
    kept: list[Message] = []
    grid = LocalGrid(client_app(simulated(tmp_path)), SITES)

    def meddle(site: int, message: Message, do: Do) -> Message | None:
        grid.offline = (
            {3} if training(message) == 0 else set()
        )  # site-3 leaves in round 0, and is back in time for round 2
        if training(message) == 1 and site == 2:
            kept.append(do())
            return None  # too slow
        if kept and training(message) == 2:
            late = kept.pop()
            grid.replies[late.metadata.reply_to_message_id] = late
        return do()

    grid.meddle = meddle
    told = Listener()
    patient = config.model_copy(
        update={"federation": config.federation.model_copy(update={"deadline": 0.2})}
    )
    over_flower(patient, grid, tmp_path, told)
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [sorted(line["refused"]) for line in lines] == [[], ["site-2", "site-3"], [], []]
    assert lines[1]["refused"] == {"site-2": "no answer within 0.2 s", "site-3": "not connected"}
    assert any("site-2 answered too late" in message for message in told.messages)


def test_no_answer_at_all_ends_the_run_and_it_can_go_on(config: Config, tmp_path: Path) -> None:
    config = config.model_copy(
        update={"federation": config.federation.model_copy(update={"deadline": 0.1})}
    )
    run(config, tmp_path / "here")
    with pytest.raises(QuorumError, match="round 3: 0 of 4 sites"):
        go(
            config,
            tmp_path / "flower",
            lambda site, message, do: None if training(message) == 2 else do(),
        )
    status = read_status(tmp_path / "flower")
    assert status is not None and status["round"] == 2 and "0 of 4 sites" in status["state"]
    go(config, tmp_path / "flower")
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "here")
    status = read_status(tmp_path / "flower")
    assert status is not None and status["state"] == "finished" and status["f1"] is not None


def spoiled(message: Message, **changes: Any) -> Message:
    header, weights, extras = from_records(message.content)
    weights, extras = (
        {**weights, **changes.pop("weights", {})},
        {**extras, **changes.pop("extras", {})},
    )
    message.content = to_records({**header, **changes}, weights, extras)
    return message


def test_bad_messages_are_refused_and_named(config: Config, tmp_path: Path) -> None:
    def meddle(site: int, message: Message, do: Do) -> Message:
        reply = do()
        match training(message), site:
            case 0, 1:
                reply.content = RecordDict({"rest": ConfigRecord({"fedgsca": b"nonsense"})})
            case 1, 2:
                return spoiled(reply, extras={"patients": np.zeros(25)})
            case 2, 3:
                return spoiled(reply, site="site-1")
            case 3, 4:
                return spoiled(reply, round=1)
            case 3, 1:
                return spoiled(reply, num_samples=-5)
        return reply

    lines, told = go(config, tmp_path, meddle)
    refused = [line["refused"] for line in lines]
    reasons = (
        ("site-1", "cannot be read"),
        ("site-2", "patients is not declared"),
        ("site-3", "signed"),
        ("site-4", "of round 2"),
    )
    for round, (site, words) in enumerate(reasons):
        assert words in refused[round][site] and any(
            site in text and words in text for text in told
        )
    assert "num_samples" in refused[3]["site-1"]


def test_an_error_of_flower_is_charged_to_the_site_it_was_sent_to(
    config: Config, tmp_path: Path
) -> None:
    def meddle(site: int, message: Message, do: Do) -> Message:
        if training(message) == 1 and site == 4:
            message.content = RecordDict({})  # what arrives there is unreadable, and the app fails
        return do()

    lines, _ = go(config, tmp_path, meddle)
    assert (
        list(lines[1]["refused"]) == ["site-4"]
        and "Flower reports error" in lines[1]["refused"]["site-4"]
    )


# ---- who may take part ----


def refusals(config: Config, out: Path, place: Any, **names: Any) -> dict[str, str]:
    hurried = config.model_copy(
        update={"federation": config.federation.model_copy(update={"deadline": 0.5})}
    )
    over_flower(hurried, LocalGrid(client_app(place), SITES, **names), out)
    return dict(read_lines(out / "metrics.jsonl")[0]["refused"])


def one_differs(out: Path, number: int, **settings: Any) -> Any:
    """All sites as in a simulation, but for one."""

    def place(context: Context) -> tuple[SiteSettings, Path | None]:
        made, folder = simulated(out)(context)
        odd = made.name == f"site-{number}"
        return (made.model_copy(update=settings), None) if odd else (made, folder)

    return place


def test_another_version_takes_no_part(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = remote.answer

    def older(kind: Any, terms: Any, payload: Any, settings: Any, folder: Path, **rest: Any) -> Any:
        terms = (
            {**terms, "version": "0.0.9", "config": {"new": "key"}}
            if settings.name == "site-2"
            else terms
        )
        return honest(kind, terms, payload, settings, folder, **rest)

    monkeypatch.setattr("fedgsca.engine.flower.answer", older)
    found = refusals(config, tmp_path, simulated(tmp_path))
    assert list(found) == ["site-2"] and "the coordinator 0.0.9" in found["site-2"]


def test_an_experiment_that_was_not_agreed_on_is_refused(config: Config, tmp_path: Path) -> None:
    found = refusals(
        config, tmp_path, one_differs(tmp_path, 3, fingerprint="another", state=str(tmp_path / "s"))
    )
    assert found == {"site-3": "it has agreed to another experiment than this one"}


def test_two_nodes_with_one_name_and_a_strange_name(config: Config, tmp_path: Path) -> None:
    found = refusals(
        config,
        tmp_path / "a",
        one_differs(tmp_path / "a", 2, name="site-1", state=str(tmp_path / "s")),
    )
    assert found == {"site-2": "not connected"}
    found = refusals(
        config,
        tmp_path / "b",
        one_differs(tmp_path / "b", 2, name="nobody", state=str(tmp_path / "s")),
    )
    assert found == {"site-2": "not connected"}


def test_a_registered_key_speaks_for_its_site_only(config: Config, tmp_path: Path) -> None:
    names = {1: "site-1", 2: "site-2", 3: "site-4", 4: "site-3"}
    found = refusals(config, tmp_path, simulated(tmp_path), names=names)
    assert found["site-3"] == "it calls itself site-4, but its key is registered as site-3" and set(
        found
    ) == {
        "site-3",
        "site-4",
    }


def test_broken_settings_of_a_site_stay_there(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "site.toml").write_text("name = 'site-4'\nsecret = '/data/ward-7'\n")

    def place(context: Context) -> Any:
        if context.node_config["partition-id"] == 3:
            return from_node_config(
                Context(1, 104, {"settings": str(tmp_path / "site.toml")}, RecordDict(), {})
            )
        return simulated(tmp_path / "run")(context)

    found = refusals(config, tmp_path / "run", place, names={k: f"site-{k}" for k in range(1, 5)})
    assert found == {"site-4": "the configuration cannot be used there; its own log says more"}
    assert "secret: unknown key" in caplog.text and "state" in caplog.text, (
        "all problems at once, in the hospital's own log"
    )


# ---- hospitals with their own images ----


def hospital(
    folder: Path, *, classes: tuple[str, ...] = ("class 0", "class 1", "class 2"), seed: int = 0
) -> Path:
    from PIL import Image

    folder.mkdir(parents=True)
    labels = np.arange(30) % len(classes)
    rows = ["file,label,split"]
    for i, (label, picture) in enumerate(zip(labels, toy_images(labels, seed=seed), strict=True)):
        Image.fromarray(picture).save(folder / f"patient-{i}.png")
        rows.append(f"patient-{i}.png,{classes[label]},{'test' if i % 5 == 0 else 'train'}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


NAMES = ("berlin", "lyon", "turin")


def consortium(**sets: Any) -> Config:
    base: dict[str, Any] = {
        "method": "fedgsca", "data__source": "sites", "data__classes": ["class 0", "class 1", "class 2"], "data__image_size": 12,
        "federation__sites": list(NAMES), "train__rounds": 3, "train__threads": 1, "train__batch_size": 8, "train__device": "cpu",
        "federation__deadline": 30, "fedgsca__warmup": 1,
    }  # fmt: skip
    return load_config(**(base | sets))


def at_home(tmp_path: Path, **settings: Any) -> Any:
    def place(context: Context) -> tuple[SiteSettings, None]:
        name = NAMES[int(context.node_config["partition-id"])]
        made = SiteSettings(
            name=name, state=str(tmp_path / "state" / name), data=str(tmp_path / name)
        )
        return made.model_copy(update=settings.get(name, {})), None

    return place


def test_hospitals_train_and_test_on_their_own_images(tmp_path: Path) -> None:
    for seed, name in enumerate(NAMES):
        hospital(
            tmp_path / name,
            classes=("class 1", "class 2")
            if name == "turin"
            else ("class 0", "class 1", "class 2"),
            seed=seed,
        )
    out, told = tmp_path / "run", Listener()
    result = over_flower(consortium(), LocalGrid(client_app(at_home(tmp_path)), 3), out, told)
    lines = read_lines(out / "metrics.jsonl")
    assert [sorted(line["sites"]) for line in lines] == [list(NAMES)] * 3 and not any(
        line["refused"] for line in lines
    )
    assert lines[-1]["tested"] == dict.fromkeys(NAMES, 6) and np.sum(lines[-1]["confusion"]) == 18
    assert result["f1"] > 0 and told.messages == []
    assert not (out / "store").exists() and not (out / "losses").exists(), (
        "what concerns single images stays at the sites"
    )
    assert all("noisy_precision" not in site for site in lines[-1]["sites"].values())
    write_report(out)
    page = (out / "report.html").read_text()
    images = sum(site["num_samples"] for site in lines[-1]["sites"].values())
    assert (
        "berlin" in page
        and f"({images} training images, 3 classes)" in page
        and "the sites&#39; own labels" in page
    )


def test_the_coordinator_may_have_a_test_set_of_its_own(tmp_path: Path) -> None:
    for seed, name in enumerate(NAMES):
        hospital(tmp_path / name, seed=seed)
    with pytest.raises(ClassListError, match="3 of its classes"):
        prepare_coordinator(
            consortium(federation__test=str(toy_npz()), data__classes=["0", "1", "2"])
        )
    config = consortium(federation__test=str(hospital(tmp_path / "reference", seed=9)))
    over_flower(config, LocalGrid(client_app(at_home(tmp_path)), 3), tmp_path / "run")
    line = read_lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert "tested" not in line and np.sum(line["confusion"]) == 6


def test_what_goes_wrong_in_a_hospital_is_named_without_its_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for seed, name in enumerate(NAMES):
        hospital(
            tmp_path / name,
            classes=("class 0", "melanoma") if name == "lyon" else ("class 0", "class 1"),
            seed=seed,
        )
    (tmp_path / "turin" / "patient-3.png").write_bytes(b"damaged")
    out = tmp_path / "run"
    over_flower(
        consortium(federation__quorum=0.3), LocalGrid(client_app(at_home(tmp_path)), 3), out
    )
    refused = read_lines(out / "metrics.jsonl")[0]["refused"]
    assert refused == {
        "lyon": "its class list is not that of the consortium",
        "turin": "its images or labels cannot be used; its own log says more",
    }
    assert "patient-3.png" in caplog.text, "the hospital's own log has the details"


def test_a_site_whose_images_changed_or_whose_disk_is_full_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate(NAMES):
        hospital(tmp_path / name, seed=seed)
    rounds: list[int] = []
    real = remote.SiteRunner.run_round

    def meddle(site: int, message: Message, do: Do) -> Message:
        if training(message) == 1 and site == 1:
            sheet = tmp_path / "berlin" / "labels.csv"
            sheet.write_text(
                sheet.read_text().replace("patient-1.png,class 1", "patient-1.png,class 2")
            )
        return do()

    def full(self: Any, name: str, payload: Any) -> Any:
        if name == "lyon" and payload.round == 2:
            rounds.append(payload.round)
            raise remote.RunFolderError(
                "todo.test-flower-1",
                "no space left to write /data/lyon/memory",
                fix="free some space",
            )
        return real(self, name, payload)

    monkeypatch.setattr(remote.SiteRunner, "run_round", full)
    config = consortium(federation__quorum=0.3)
    over_flower(config, LocalGrid(client_app(at_home(tmp_path)), 3, meddle), tmp_path / "run")
    refused = [line["refused"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert refused[1] == {"berlin": "its images or labels have changed since the run began"}
    assert (
        refused[2]["lyon"]
        == "it cannot write to its disk, or its memory is damaged; its own log says more"
        and rounds
    )
