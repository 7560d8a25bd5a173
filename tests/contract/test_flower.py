"""Flower as the transport: the same bytes as without it, and rounds that do not hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from fedgsca.config import Config, load_config
from fedgsca.errors import ClassListError, QuorumError, RunFolderError
from fedgsca.federation.base import Reply
from fedgsca.federation.deployment import prepare_coordinator
from fedgsca.federation.filters.claims import describe_aggregation
from fedgsca.federation.local import SiteRunner
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.round_status import read_status
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_lines, read_rounds
from fedgsca.hospital.answers import ResidentSite
from fedgsca.hospital.coordinator import coordinate
from fedgsca.hospital.messages import MessageKind, Terms, decode, encode, from_records, to_records
from fedgsca.hospital.settings import SiteSettings, read_settings
from fedgsca.lab.report.html_page import write_report
from fedgsca.methods.base import load_methods
from fedgsca.wire import Payload, pack
from tests.localgrid import (
    FindSettings,
    Intercept,
    LocalGrid,
    client_app,
    run_over_flower,
    simulated_sites,
)
from tests.toys import SITES, RecordingObserver, outcome, toy_config, toy_images, toy_npz

Deliver = Callable[[], Message]


def run_simulated(
    config: Config, out: Path, intercept: Intercept | None = None
) -> tuple[list[RoundRecord], list[str]]:
    """A run over the grid: its records, and the messages for people."""
    observer = RecordingObserver()
    grid = LocalGrid(client_app(simulated_sites(out)), SITES, intercept)
    run_over_flower(config, grid, out, observer)
    return read_rounds(out), observer.messages


def training_round(message: Message) -> int | None:
    """The round of a training message; None for other messages."""
    if message.metadata.message_type != "train":
        return None
    return int(message.metadata.group_id)


def with_federation(config: Config, **keys: Any) -> Config:
    federation = config.federation.model_copy(update=keys)
    return config.model_copy(update={"federation": federation})


# ---- the same bytes ----


# the wire of every method is checked in test_methods.py; Flower does not know methods
@pytest.mark.parametrize("method", sorted(load_methods())[::3])
def test_flower_changes_no_byte(method: str, tmp_path: Path) -> None:
    config = toy_config(method, train__rounds=3)
    run(config, tmp_path / "local")
    _, messages = run_simulated(config, tmp_path / "flower")
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")
    assert messages == []


def test_flower_changes_no_byte_of_a_score_without_true_labels(tmp_path: Path) -> None:
    config = toy_config("fedgsca", frozen=True, train__rounds=7, evidence__holdout=0.4)
    run(config, tmp_path / "local")
    rounds, _ = run_simulated(config, tmp_path / "flower")
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")
    assert rounds[-1].expected_f1 is not None


def test_a_message_is_one_float_record_and_one_block() -> None:
    weights = {
        "w": np.array([[1.5, np.nan], [np.inf, -0.0]], np.float32),
        "n": np.array(7),
        "wide": np.arange(3.0),
        "h": np.ones(2, np.float16),
    }
    extras = {"few": np.array([np.nan, 1e-300]), "flag": np.array(True)}
    records = to_records(encode("train", {"round": 3}, weights, extras))
    assert set(records) == {"weights", "rest"}
    assert isinstance(records["weights"], ArrayRecord)
    assert isinstance(records["rest"], ConfigRecord)
    shapes = {name: array.numpy().shape for name, array in records["weights"].items()}
    # one array per type, whatever the network; Flower's mods multiply these
    assert shapes == {"float32": (4,), "float64": (3,), "float16": (2,)}
    header, decoded_weights, decoded_extras = decode(from_records("train", records))
    assert header == {"round": 3}
    for original, decoded in ((weights, decoded_weights), (extras, decoded_extras)):
        assert set(original) == set(decoded)
        for name, value in original.items():
            assert (decoded[name].dtype, decoded[name].shape) == (value.dtype, value.shape)
            assert decoded[name].tobytes() == value.tobytes()


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
def test_a_layout_that_does_not_fit_is_refused(layout: object) -> None:
    records = to_records(encode("train", {"round": 3}, {"w": np.ones(4, np.float32)}, {}))
    block = pack({"round": 3, "layout": layout}, extras={}, buffers={})
    records["rest"] = ConfigRecord({"fedgsca": block})
    with pytest.raises(ValueError, match="cannot be read"):
        decode(from_records("train", records))


def test_a_repeated_message_changes_nothing(tmp_path: Path) -> None:
    config = toy_config("fedcorr", train__rounds=4)  # a method with memory at the sites
    run(config, tmp_path / "local")

    def deliver_twice(site: int, message: Message, deliver: Deliver) -> Message:
        deliver()
        return deliver()

    run_simulated(config, tmp_path / "flower", deliver_twice)
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")


# ---- rounds that do not hang ----


@pytest.fixture(scope="module")
def config() -> Config:
    return toy_config("fedavg", frozen=True, train__rounds=4)


def test_late_and_missing_sites_are_named_and_return(config: Config, tmp_path: Path) -> None:
    late_messages: list[Message] = []
    grid = LocalGrid(client_app(simulated_sites(tmp_path)), SITES)

    def delay(site: int, message: Message, deliver: Deliver) -> Message | None:
        # site-3 leaves in round 0, and is back in time for round 2
        grid.offline = {3} if training_round(message) == 0 else set()
        if training_round(message) == 1 and site == 2:
            late_messages.append(deliver())
            return None  # too slow
        if late_messages and training_round(message) == 2:
            late_message = late_messages.pop()
            grid.replies[late_message.metadata.reply_to_message_id] = late_message
        return deliver()

    grid.intercept = delay
    observer = RecordingObserver()
    run_over_flower(with_federation(config, deadline=0.2), grid, tmp_path, observer)
    refusals = [record.refusals for record in read_rounds(tmp_path)]
    absent = {"site-2": "no answer within 0.2 s", "site-3": "not connected"}
    assert refusals == [{}, absent, {}, {}]
    assert any("site-2 answered too late" in message for message in observer.messages)


def test_a_round_without_answers_ends_the_run_and_it_can_be_resumed(
    config: Config, tmp_path: Path
) -> None:
    config = with_federation(config, deadline=0.1)
    run(config, tmp_path / "local")

    def lose_round(site: int, message: Message, deliver: Deliver) -> Message | None:
        return None if training_round(message) == 2 else deliver()

    with pytest.raises(QuorumError) as error:
        run_simulated(config, tmp_path / "flower", lose_round)
    assert error.value.code == "round.quorum-not-reached"
    status = read_status(tmp_path / "flower")
    assert status is not None
    assert status.round == 2
    assert "0 of 4 sites" in status.state
    run_simulated(config, tmp_path / "flower")
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")
    status = read_status(tmp_path / "flower")
    assert status is not None
    assert status.state == "finished"
    assert status.f1 is not None


def test_a_round_without_a_quorum_is_tried_again(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sites are away twice in the third round; the run pauses, says so, and ends as ever."""
    notes = tmp_path / "notes.txt"
    monkeypatch.setenv("FEDGSCA_NOTIFY", f"tee -a {notes}")
    config = with_federation(config, deadline=0.1)
    run(config, tmp_path / "local")
    lost_sites: list[int] = []

    def lose_two_attempts(site: int, message: Message, deliver: Deliver) -> Message | None:
        if training_round(message) == 2 and len(lost_sites) < 2 * SITES:
            lost_sites.append(site)
            return None
        return deliver()

    out = tmp_path / "flower"
    observer = RecordingObserver()
    grid = LocalGrid(client_app(simulated_sites(out)), SITES, lose_two_attempts)
    coordinate(
        grid,
        config,
        out,
        deadline=0.1,
        observer=observer,
        poll=0.001,
        patience=600.0,
        first_pause=0.05,
    )
    assert outcome(out) == outcome(tmp_path / "local")
    pauses = [message for message in observer.messages if "tried again" in message]
    assert len(pauses) == 2
    assert notes.read_text().count("tried again") == 2
    status = read_status(out)
    assert status is not None and status.state == "finished"


class ReturnObserver(RecordingObserver):
    """Lets the absent sites come back as soon as the run pauses."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__()
        self.grid = grid

    def on_message(self, message: str) -> None:
        super().on_message(message)
        if "tried again in" in message:
            self.grid.offline.clear()


def test_a_pause_ends_when_the_sites_are_back(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four sites lose their connection; the pause of an hour is not waited out."""
    notes = tmp_path / "notes.txt"
    monkeypatch.setenv("FEDGSCA_NOTIFY", f"tee -a {notes}")
    config = with_federation(config, deadline=0.1)
    run(config, tmp_path / "local")
    out = tmp_path / "flower"
    grid = LocalGrid(client_app(simulated_sites(out)), SITES)
    lost_sites: list[int] = []

    def lose_connections(site: int, message: Message, deliver: Deliver) -> Message | None:
        if training_round(message) == 2 and len(lost_sites) < SITES:
            lost_sites.append(site)
            grid.offline |= {1, 2, 3}
            return None
        return deliver()

    grid.intercept = lose_connections
    observer = ReturnObserver(grid)
    coordinate(
        grid,
        config,
        out,
        deadline=0.1,
        observer=observer,
        poll=0.001,
        patience=7200.0,
        first_pause=3600.0,
    )
    assert outcome(out) == outcome(tmp_path / "local")
    [remark] = [message for message in observer.messages if "connected again" in message][1:]
    assert remark == "connected again: site-1, site-2, site-3; the round is tried again now"
    assert remark in notes.read_text()


def test_a_deployment_that_gives_up_names_the_command_of_the_kit(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fedgsca resume` would be wrong there; and whoever is notified learns of the end."""
    notes = tmp_path / "notes.txt"
    monkeypatch.setenv("FEDGSCA_NOTIFY", f"tee -a {notes}")
    config = with_federation(config, deadline=0.1)

    def lose_round(site: int, message: Message, deliver: Deliver) -> Message | None:
        return None if training_round(message) == 1 else deliver()

    out = tmp_path / "flower"
    grid = LocalGrid(client_app(simulated_sites(out)), SITES, lose_round)
    with pytest.raises(QuorumError) as error:
        coordinate(grid, config, out, deadline=0.1, poll=0.001, patience=0.1, first_pause=0.06)
    assert "./run.sh" in error.value.fix
    assert "fedgsca resume" not in error.value.fix
    assert "the run has stopped" in notes.read_text()
    status = read_status(out)
    assert status is not None and "./run.sh" in status.state


def test_a_lost_connection_is_described_in_words(config: Config, tmp_path: Path) -> None:
    def report_error(site: int, message: Message, deliver: Deliver) -> Message:
        if (training_round(message), site) == (1, 2):
            return Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
        if (training_round(message), site) == (1, 3):
            return Message(Error(code=7, reason="odd\nand more"), reply_to=message)
        return deliver()

    rounds, _ = run_simulated(config, tmp_path, report_error)
    assert rounds[1].refusals == {
        "site-2": "its connection is lost (error 5 of Flower)",
        "site-3": "Flower reports error 7: odd",
    }


def with_extras(message: Message, **extras: np.ndarray) -> Message:
    header, weights, old_extras = decode(from_records("train", message.content))
    message.content = to_records(encode("train", header, weights, {**old_extras, **extras}))
    return message


def with_header(message: Message, **changes: object) -> Message:
    header, weights, extras = decode(from_records("train", message.content))
    message.content = to_records(encode("train", {**header, **changes}, weights, extras))
    return message


def test_bad_messages_are_refused_and_named(config: Config, tmp_path: Path) -> None:
    def spoil(site: int, message: Message, deliver: Deliver) -> Message:
        reply = deliver()
        match training_round(message), site:
            case 0, 1:
                reply.content = RecordDict({"rest": ConfigRecord({"fedgsca": b"nonsense"})})
            case 1, 2:
                return with_extras(reply, patients=np.zeros(25))
            case 2, 3:
                return with_header(reply, site="site-1")
            case 3, 4:
                return with_header(reply, round=1)
            case 3, 1:
                return with_header(reply, num_samples=-5)
        return reply

    rounds, messages = run_simulated(config, tmp_path, spoil)
    reasons = [
        (0, "site-1", "cannot be read"),
        (1, "site-2", "patients"),
        (2, "site-3", "signed"),
        (3, "site-4", "of round 2"),
        (3, "site-1", "num_samples"),
    ]
    for round_index, site, reason in reasons:
        assert reason in rounds[round_index].refusals[site]
        assert any(site in message and reason in message for message in messages)


def test_an_error_of_flower_is_attributed_to_the_addressee(config: Config, tmp_path: Path) -> None:
    def empty_message(site: int, message: Message, deliver: Deliver) -> Message:
        if training_round(message) == 1 and site == 4:
            message.content = RecordDict({})  # what arrives there is unreadable, and the app fails
        return deliver()

    rounds, _ = run_simulated(config, tmp_path, empty_message)
    assert list(rounds[1].refusals) == ["site-4"]
    assert "Flower reports error" in rounds[1].refusals["site-4"]


# ---- who may take part ----


def first_refusals(
    config: Config, out: Path, find_settings: FindSettings, names: Sequence[str] = ()
) -> dict[str, str]:
    """The refusals of the first round; `names` are those of the sites' keys."""
    grid = LocalGrid(client_app(find_settings), SITES, names=names)
    run_over_flower(with_federation(config, deadline=0.5), grid, out)
    return dict(read_rounds(out)[0].refusals)


def one_different(out: Path, number: int, **settings: Any) -> FindSettings:
    """All sites as in a simulation, except for one."""

    def find_settings(context: Context) -> SiteSettings:
        usual_settings = simulated_sites(out)(context)
        if usual_settings.name != f"site-{number}":
            return usual_settings
        return usual_settings.model_copy(update=settings)

    return find_settings


def test_another_version_does_not_take_part(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine_reply = ResidentSite.reply

    def reply(self: ResidentSite, kind: MessageKind, terms: Terms, payload: Payload) -> Reply:
        if self.read().name == "site-2":
            terms = replace(terms, version="0.0.9", config={"new": "key"})
        return genuine_reply(self, kind, terms, payload)

    monkeypatch.setattr(ResidentSite, "reply", reply)
    refusals = first_refusals(config, tmp_path, simulated_sites(tmp_path))
    assert list(refusals) == ["site-2"]
    assert "0.0.9" in refusals["site-2"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("site-1", "it calls itself site-1, but its key is registered as site-2"),
        ("nobody", "nobody is not one of the experiment's sites"),  # as its own worker says
    ],
)
def test_a_name_that_is_not_that_of_the_key_is_refused(
    name: str, reason: str, config: Config, tmp_path: Path
) -> None:
    find_settings = one_different(tmp_path, 2, name=name, state=str(tmp_path / "s"))
    assert first_refusals(config, tmp_path, find_settings) == {"site-2": reason}


def test_a_registered_key_speaks_for_its_own_site_only(config: Config, tmp_path: Path) -> None:
    names = ["site-1", "site-2", "site-4", "site-3"]
    refusals = first_refusals(config, tmp_path, simulated_sites(tmp_path), names)
    assert set(refusals) == {"site-3", "site-4"}
    assert refusals["site-3"] == "it calls itself site-4, but its key is registered as site-3"


def test_details_of_broken_settings_stay_at_the_site(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "site.toml").write_text("name = 'site-4'\nsecret = '/data/ward-7'\n")

    def find_settings(context: Context) -> SiteSettings:
        if context.node_config["partition-id"] == 3:
            return read_settings(tmp_path / "site.toml")
        return simulated_sites(tmp_path / "run")(context)

    refusals = first_refusals(config, tmp_path / "run", find_settings)
    assert refusals == {"site-4": "the configuration cannot be used there; its own log says more"}
    assert "secret" in caplog.text, "the hospital's own log has all problems"
    assert "state" in caplog.text


# ---- hospitals with their own images ----

CLASS_NAMES = ("class 0", "class 1", "class 2")
NAMES = ("berlin", "lyon", "turin")


def write_hospital(folder: Path, classes: tuple[str, ...] = CLASS_NAMES, seed: int = 0) -> Path:
    """A folder of 30 images with labels.csv."""
    from PIL import Image

    folder.mkdir(parents=True)
    labels = np.arange(30) % len(classes)
    rows = ["file,label,split"]
    for i, (label, picture) in enumerate(zip(labels, toy_images(labels, seed=seed), strict=True)):
        Image.fromarray(picture).save(folder / f"patient-{i}.png")
        split = "test" if i % 5 == 0 else "train"
        rows.append(f"patient-{i}.png,{classes[label]},{split}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def write_hospitals(tmp_path: Path, **classes: tuple[str, ...]) -> None:
    """One folder per name; `classes` are for single hospitals."""
    for seed, name in enumerate(NAMES):
        write_hospital(tmp_path / name, classes.get(name, CLASS_NAMES), seed)


def consortium(**sets: Any) -> Config:
    base: dict[str, Any] = {
        "method": "fedgsca",
        "data__source": "sites",
        "data__classes": list(CLASS_NAMES),
        "data__image_size": 12,
        "federation__sites": list(NAMES),
        "train__rounds": 3,
        "train__threads": 1,
        "train__batch_size": 8,
        "train__device": "cpu",
        "federation__deadline": 30,
        "fedgsca__warmup": 1,
    }
    return load_config(**(base | sets))


def hospital_grid(tmp_path: Path, intercept: Intercept | None = None) -> LocalGrid:
    def find_settings(context: Context) -> SiteSettings:
        name = NAMES[int(context.node_config["partition-id"])]
        state = tmp_path / "state" / name
        return SiteSettings(name=name, state=str(state), data=str(tmp_path / name))

    return LocalGrid(client_app(find_settings), len(NAMES), intercept, NAMES)


def test_hospitals_train_and_test_on_their_own_images(tmp_path: Path) -> None:
    write_hospitals(tmp_path, turin=("class 1", "class 2"))
    out = tmp_path / "run"
    observer = RecordingObserver()
    result = run_over_flower(consortium(), hospital_grid(tmp_path), out, observer)
    rounds = read_rounds(out)
    assert [sorted(record.sites) for record in rounds] == [list(NAMES)] * 3
    assert not any(record.refusals for record in rounds)
    assert rounds[-1].test_counts == dict.fromkeys(NAMES, 6)
    assert np.sum(rounds[-1].confusion or ()) == 18
    assert result.f1 > 0
    statistics = result.statistics
    assert statistics is not None and statistics.images == 18 and statistics.auroc is None
    assert set(statistics.per_site) == set(NAMES), "from the counts that the sites send anyway"
    assert statistics.f1.low is not None and not (out / "test-probabilities.npz").exists()
    assert observer.messages == [describe_aggregation(consortium(), NAMES)]
    assert not (out / "store").exists(), "what concerns single images stays at the sites"
    assert not (out / "losses").exists()
    assert all("noisy_precision" not in site.values for site in rounds[-1].sites.values())
    write_report(out)
    page = (out / "report.html").read_text()
    num_images = sum(site.num_samples for site in rounds[-1].sites.values())
    assert "berlin" in page
    assert f"({num_images} training images, 3 classes)" in page
    assert "labels of the sites" in page


def test_the_coordinator_can_have_a_test_set_of_its_own(tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    with pytest.raises(ClassListError):
        prepare_coordinator(
            consortium(federation__test=str(toy_npz()), data__classes=["0", "1", "2"])
        )
    config = consortium(federation__test=str(write_hospital(tmp_path / "reference", seed=9)))
    run_over_flower(config, hospital_grid(tmp_path), tmp_path / "run")
    line = read_lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert "tested" not in line
    assert np.sum(line["confusion"]) == 6


def test_problems_of_a_hospital_are_named_without_its_file_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two_classes = ("class 0", "class 1")
    write_hospitals(tmp_path, berlin=two_classes, lyon=("class 0", "melanoma"), turin=two_classes)
    (tmp_path / "turin" / "patient-3.png").write_bytes(b"damaged")
    config = consortium(federation__quorum=0.3)
    run_over_flower(config, hospital_grid(tmp_path), tmp_path / "run")
    assert read_rounds(tmp_path / "run")[0].refusals == {
        "lyon": "its class list is not that of the consortium",
        "turin": "its images or labels cannot be used; its own log says more",
    }
    assert "patient-3.png" in caplog.text, "the hospital's own log has the details"


def test_a_site_with_changed_images_or_a_full_disk_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hospitals(tmp_path)
    failures: list[int] = []
    genuine_run_round = SiteRunner.run_round

    def change_label(site: int, message: Message, deliver: Deliver) -> Message:
        if training_round(message) == 1 and site == 1:
            path = tmp_path / "berlin" / "labels.csv"
            old_line, new_line = "patient-1.png,class 1", "patient-1.png,class 2"
            path.write_text(path.read_text().replace(old_line, new_line))
        return deliver()

    def run_round(self: SiteRunner, name: str, payload: Payload) -> Reply:
        if name == "lyon" and payload.round == 2:
            failures.append(payload.round)
            raise RunFolderError(
                "file.disk-full",
                "no space is left to write /data/lyon/memory",
                fix="free some space",
            )
        return genuine_run_round(self, name, payload)

    monkeypatch.setattr(SiteRunner, "run_round", run_round)
    config = consortium(federation__quorum=0.3)
    run_over_flower(config, hospital_grid(tmp_path, change_label), tmp_path / "run")
    refusals = [record.refusals for record in read_rounds(tmp_path / "run")]
    assert refusals[1] == {"berlin": "its images or labels have changed since the run began"}
    assert refusals[2]["lyon"].startswith("it cannot write to its disk")
    assert "/data/lyon" not in refusals[2]["lyon"]
    assert failures
