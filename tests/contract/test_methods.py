"""What every registered method must do. No method is named here: a new one is tested for free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgsca.config import Config, ModelConfig
from fedgsca.errors import QuorumError, UpdateError
from fedgsca.federation import checkpoint
from fedgsca.federation.base import Reply
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import prepare
from fedgsca.methods.base import compose_method, load_methods, make_method
from fedgsca.models.build import feature_width
from fedgsca.wire import (
    Arrays,
    Payload,
    Update,
    check_extras,
    check_update,
    decode_payload,
    decode_update,
    encode_payload,
    encode_update,
)
from tests.toys import (
    CLASSES,
    ROUNDS,
    SITES,
    FaultyEngine,
    RecordingObserver,
    generator_states,
    keep_reply,
    outcome,
    toy_config,
    toy_folder,
)

METHODS = sorted(load_methods())
# the toy's numbers for the symbols of a declaration
WIDTH = feature_width(ModelConfig(name="cnn"))
DIMS = {"C": CLASSES, "D": WIDTH, "E": WIDTH, "K": SITES}


@dataclass(frozen=True)
class FinishedRun:
    """A finished run and all its messages."""

    config: Config
    folder: Path
    payloads: list[Payload]
    replies: list[Reply]
    notices: list[str]
    # global generators that the run has moved
    moved_generators: list[str]

    @property
    def updates(self) -> list[Update]:
        return [reply.update for reply in self.replies if reply.update is not None]

    @property
    def rounds(self) -> list[RoundRecord]:
        return read_rounds(self.folder)


def complete(
    config: Config,
    folder: Path,
    change: Callable[[int, Reply], Reply] = keep_reply,
    absent: Mapping[int, str] | None = None,
) -> FinishedRun:
    engine = FaultyEngine(config, folder, change, absent or {})
    observer = RecordingObserver()
    states = generator_states()
    run(config, folder, engine=engine, observer=observer)
    moved = [name for name, state in generator_states().items() if state != states[name]]
    return FinishedRun(config, folder, engine.payloads, engine.replies, observer.messages, moved)


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reference(method: str, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A small network on images, six rounds without interruption, all messages recorded."""
    return complete(toy_config(method), tmp_path_factory.mktemp("reference") / "run")


# ---- messages ----


def extra_shapes(messages: Sequence[Payload | Update]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for message in messages:
        for name, value in message.extras.items():
            shapes[name] = np.shape(value)
    return shapes


def test_every_message_is_declared(reference: FinishedRun) -> None:
    method = compose_method(reference.config)
    dims = prepare(reference.config).dims
    assert len(reference.updates) == ROUNDS * SITES
    for payload in reference.payloads:
        check_extras("payload", payload.extras, method.downloads, dims)
    for update in reference.updates:
        check_update(update, reference.payloads[0].weights, method.uploads, dims)


def test_declarations_have_descriptions_and_sizes_that_no_site_chooses(method: str) -> None:
    composition = compose_method(toy_config(method))
    for extra in [*composition.uploads.values(), *composition.downloads.values()]:
        assert len(extra.description) > 5, "a hospital reads this before it agrees"
        for part in extra.shape:
            assert isinstance(part, int) or part in DIMS, "C, D, K or a number; never samples"


def test_odd_sites_take_part_and_their_messages_have_the_usual_size(
    method: str, reference: FinishedRun, tmp_path: Path
) -> None:
    """A site with one class, a site with five samples: no message grows with the samples."""
    config = toy_config(method, source=toy_folder("both"), noise__spec="S40-P20-0-0")
    odd = complete(config, tmp_path / "run")
    assert [sorted(record.sites) for record in odd.rounds] == [["a", "b", "c", "d"]] * ROUNDS
    assert not any(record.refusals for record in odd.rounds)
    pairs: list[tuple[Sequence[Payload | Update], Sequence[Payload | Update]]] = [
        (odd.payloads, reference.payloads),
        (odd.updates, reference.updates),
    ]
    for odd_messages, usual_messages in pairs:
        odd_shapes = extra_shapes(odd_messages)
        usual_shapes = extra_shapes(usual_messages)
        for name in odd_shapes.keys() & usual_shapes.keys():
            assert odd_shapes[name] == usual_shapes[name]


def assert_same_arrays(expected: Arrays, actual: Arrays) -> None:
    assert set(expected) == set(actual)
    for name, value in expected.items():
        array = np.asarray(value)
        assert array.shape == actual[name].shape
        assert array.dtype == actual[name].dtype
        assert array.tobytes() == actual[name].tobytes()


def test_messages_survive_encoding(reference: FinishedRun) -> None:
    payload, update = reference.payloads[-1], reference.updates[-1]
    decoded_payload = decode_payload(encode_payload(payload))
    decoded_update = decode_update(encode_update(update))
    assert_same_arrays(payload.weights, decoded_payload.weights)
    assert_same_arrays(payload.extras, decoded_payload.extras)
    assert_same_arrays(update.weights, decoded_update.weights)
    assert_same_arrays(update.extras, decoded_update.extras)


def test_an_undeclared_download_is_refused(
    reference: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method_class = load_methods()[reference.config.method]
    genuine_broadcast = method_class.broadcast

    def leaky_broadcast(self: object, state: object, round: int) -> Payload:
        payload = genuine_broadcast(self, state, round)  # type: ignore[arg-type]
        return replace(payload, extras={**payload.extras, "everybody": np.zeros(3)})

    monkeypatch.setattr(method_class, "broadcast", leaky_broadcast)
    with pytest.raises(UpdateError) as error:
        run(reference.config, tmp_path / "run")
    assert "everybody" in error.value.message


# ---- the same bytes ----


def test_learns_something(reference: FinishedRun) -> None:
    first, last = reference.payloads[0].weights, reference.payloads[-1].weights
    assert any(not np.array_equal(first[name], last[name]) for name in first)
    assert all(np.isfinite(value).all() for value in last.values())
    assert all(record.f1 is not None for record in reference.rounds)


def test_remembers_nothing_outside_state_and_store(reference: FinishedRun, tmp_path: Path) -> None:
    """Stopped and started again in a new engine: the same bytes.

    After every round where sites have a memory, which has to follow the checkpoint; else once.
    """
    has_memory = any((reference.folder / "store").rglob("*.safetensors"))
    for rounds in range(1, ROUNDS + 1) if has_memory else (ROUNDS // 2, ROUNDS):
        run(reference.config, tmp_path / "run", stop_after=rounds)
        assert (tmp_path / "run" / "result.json").exists() == (rounds == ROUNDS)
    assert outcome(tmp_path / "run") == outcome(reference.folder)


def test_draws_from_named_streams_only(reference: FinishedRun) -> None:
    """A draw from a global generator would move it."""
    assert reference.moved_generators == []


def test_another_seed_gives_another_model(reference: FinishedRun, tmp_path: Path) -> None:
    config = reference.config.model_copy(update={"seed": 1})
    run(config, tmp_path / "run", stop_after=1)
    state = checkpoint.latest(tmp_path / "run" / "checkpoint", config.fingerprint())
    assert state is not None
    weights = reference.payloads[1].weights
    assert any(not np.array_equal(state.weights[name], weights[name]) for name in weights)


# ---- frozen backbones are quick, so faults are injected here ----


@pytest.fixture(scope="module")
def frozen(method: str, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return complete(toy_config(method, frozen=True), tmp_path_factory.mktemp("frozen") / "run")


def test_runs_on_frozen_features_and_sends_only_the_head(
    frozen: FinishedRun, reference: FinishedRun
) -> None:
    head = frozen.payloads[0].weights
    assert all(name.startswith("head.") for name in head)
    assert len(frozen.rounds) == ROUNDS
    assert not any(record.refusals for record in frozen.rounds)
    for name, value in head.items():
        assert np.array_equal(value, reference.payloads[0].weights[name]), "one start for both"


def test_runs_without_noise(method: str, tmp_path: Path) -> None:
    clean = complete(toy_config(method, frozen=True, noise__spec="0"), tmp_path / "run")
    assert len(clean.rounds) == ROUNDS
    assert not any(record.refusals for record in clean.rounds)
    assert max(record.f1 or 0.0 for record in clean.rounds) > 45


def without_numbers(update: Update, method: str) -> dict[str, np.ndarray]:
    """The extras with NaN wherever the method declares that it is allowed."""
    uploads = compose_method(toy_config(method)).uploads
    extras = {}
    for name, value in update.extras.items():
        extras[name] = np.full_like(value, np.nan) if uploads[name].nan else value
    return extras


def with_huge_numbers(update: Update) -> dict[str, np.ndarray]:
    return {name: np.full(np.shape(value), 1e30) for name, value in update.extras.items()}


ABSENT_SITES = {1: "site-1", 4: "site-4"}


def spoil(method: str, round_index: int, reply: Reply) -> Reply:
    """In most rounds one site sends something that must not be averaged.

    Once a site has no numbers to send, which every method accepts.
    """
    update = reply.update
    if update is None:
        return reply
    weights, extras = dict(update.weights), dict(update.extras)
    name = next(name for name, value in weights.items() if value.dtype.kind == "f")
    match round_index, reply.site:
        case 1, "site-2":
            return Reply("site-2", None, "the disk of site-2 is full")
        case 2, "site-3":
            weights[name] = weights[name] * np.nan
        case 3, "site-1":
            extras["patients"] = np.zeros(25)
        case 3, "site-3":
            extras = without_numbers(update, method)
        case 4, "site-2":
            weights[name] = np.zeros(2, np.float32)
        case 5, "site-2":
            extras = with_huge_numbers(update)
    return replace(reply, update=replace(update, weights=weights, extras=extras))


@pytest.fixture(scope="module")
def faulty(method: str, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("faulty") / "run"
    config = toy_config(method, frozen=True)
    return complete(config, folder, partial(spoil, method), ABSENT_SITES)


def test_a_missing_site_does_not_stop_the_others(faulty: FinishedRun) -> None:
    for record in faulty.rounds:
        assert ABSENT_SITES.get(record.round) not in record.sites
    assert len(faulty.rounds) == ROUNDS
    assert {"site-1", "site-4"} <= set(faulty.rounds[-1].sites), "absent sites return"


def test_a_bad_update_is_named_and_left_out(faulty: FinishedRun) -> None:
    expected = {1: ["site-2"], 2: ["site-3"], 3: ["site-1"], 4: ["site-2"]}
    reasons = ["disk of site-2", "finite", "patients", "(2,)"]
    if faulty.updates[-1].extras:  # the method has extras, and one site sent 1e30 in the last round
        expected[5] = ["site-2"]
        reasons.append("1e+30")
    refusals = {record.round: record.refusals for record in faulty.rounds if record.refusals}
    assert {index: list(sites) for index, sites in refusals.items()} == expected
    for reason in reasons:
        assert reason in str(refusals)
        assert any(reason in notice for notice in faulty.notices), "a person can read it"
    for payload in faulty.payloads:
        assert all(np.isfinite(value).all() for value in payload.weights.values())


def test_without_a_quorum_the_run_stops_and_can_be_resumed(
    frozen: FinishedRun, tmp_path: Path
) -> None:
    """The sites have stored their memory of a round that does not count."""
    folder = tmp_path / "run"

    def ruin(round_index: int, reply: Reply) -> Reply:
        if round_index != 2 or reply.update is None:
            return reply
        weights = {}
        for name, value in reply.update.weights.items():
            weights[name] = np.full_like(value, np.nan) if value.dtype.kind == "f" else value
        return replace(reply, update=replace(reply.update, weights=weights))

    with pytest.raises(QuorumError) as error:
        run(frozen.config, folder, engine=FaultyEngine(frozen.config, folder, ruin))
    assert error.value.code == "round.quorum-not-reached"
    assert "round 3: 0 of 4 sites" in error.value.message
    assert "site-1" in error.value.message
    assert "resume" in error.value.fix
    state = checkpoint.latest(folder / "checkpoint", frozen.config.fingerprint())
    assert state is not None
    assert state.round == 2
    run(frozen.config, folder)
    assert outcome(folder) == outcome(frozen.folder)


# ---- what a method says about itself ----


def test_introduces_itself(method: str) -> None:
    method_class = load_methods()[method]
    assert method_class.name == method == method.lower()
    assert method_class.card.paper and method_class.card.title
    for info in method_class.Options.model_fields.values():
        assert info.description or info.annotation
    assert make_method(method, {}, 10) is not None


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"train__lr": 0.05},
    "another rate": {"train__lr": 0.5},
    "balanced classes": {"train__lr": 0.05, "train__class_balance": 1.0},
}


def test_settings_of_the_training_reach_the_method(
    method: str, frozen: FinishedRun, tmp_path: Path
) -> None:
    """Another rate is another model. So is another balance: labels of the toy are 3 : 2 : 2."""
    models = {}
    for name, setting in SETTINGS.items():
        run(toy_config(method, frozen=True, train__rounds=2, **setting), tmp_path / name)
        assert read_rounds(tmp_path / name)[0].lr == setting["train__lr"], "the log has the rate"
        models[name] = load_file(tmp_path / name / "model.safetensors")
    plain = models.pop("plain")
    for changed in models.values():
        assert any(not np.array_equal(plain[name], changed[name]) for name in plain)
    automatic_rate = frozen.rounds[0].lr
    assert automatic_rate is not None and automatic_rate > 0
