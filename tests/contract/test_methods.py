"""What every registered method must do. No method is named here: a new one gets all of this for free."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from toys import CLASSES, ROUNDS, SITES, Listener, Meddler, outcome, toy_config, toy_folder

from fedgsca.config import Config
from fedgsca.engine import checkpoint
from fedgsca.engine.local import Reply
from fedgsca.engine.rounds import run
from fedgsca.errors import QuorumError, UpdateError
from fedgsca.experiment.run_folder import read_lines
from fedgsca.methods.base import load_methods, make_method
from fedgsca.models.build import feature_width
from fedgsca.wire import Payload, Update, check_extras, check_update

METHODS = sorted(load_methods())
CODES = {
    "C": CLASSES,
    "D": feature_width("cnn"),
    "K": SITES,
}  # the toy's numbers for the symbols of a declaration


@dataclass(frozen=True)
class Done:
    """A finished run and all that crossed."""

    config: Config
    folder: Path
    payloads: list[Payload]
    replies: list[Reply]
    said: list[str]

    @property
    def updates(self) -> list[Update]:
        return [reply.update for reply in self.replies if reply.update is not None]

    @property
    def lines(self) -> list[dict[str, object]]:
        return read_lines(self.folder / "metrics.jsonl")


def complete(config: Config, folder: Path, **meddling: object) -> Done:
    engine, listener = Meddler(config, folder, **meddling), Listener()  # type: ignore[arg-type]
    run(config, folder, engine=engine, observer=listener)
    return Done(config, folder, engine.payloads, engine.replies, listener.messages)


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reference(method: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A small network on images, six rounds without interruption, all that crosses recorded."""
    return complete(toy_config(method), tmp_path_factory.mktemp("reference") / "run")


# ---- what crosses ----


def shapes(messages: list[Payload] | list[Update]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for message in messages for name, value in message.extras.items()}


def test_everything_that_crosses_is_declared(reference: Done) -> None:
    kind = load_methods()[reference.config.method]
    assert len(reference.updates) == ROUNDS * 4
    for payload in reference.payloads:
        check_extras("payload", payload.extras, kind.downloads, CODES)
    for update in reference.updates:
        sent = reference.payloads[0].weights
        check_update(update, sent, kind.uploads, CODES)


def test_declarations_are_in_words_and_in_sizes_that_no_site_chooses(method: str) -> None:
    kind = load_methods()[method]
    for extra in [*kind.uploads.values(), *kind.downloads.values()]:
        assert len(extra.what) > 5, "a hospital reads this before it agrees"
        assert all(isinstance(part, int) or part in CODES for part in extra.shape), (
            "C, D, K or a fixed number; never samples"
        )


@pytest.mark.parametrize("odd", ["one_class", "five_samples"])
def test_runs_with_an_odd_site_and_its_messages_look_like_all_others(
    method: str, odd: str, reference: Done, tmp_path: Path
) -> None:
    """A site with one class, a site with five samples: both are heard; and nothing that crosses grows with the samples."""
    done = complete(
        toy_config(method, source=toy_folder(odd), noise__spec="0-S40-P20-0"), tmp_path / "run"
    )
    assert [sorted(line["sites"]) for line in done.lines] == [["a", "b", "c", "d"]] * ROUNDS  # type: ignore[call-overload]
    assert not any(line["refused"] for line in done.lines)
    for ours, theirs in ((done.payloads, reference.payloads), (done.updates, reference.updates)):
        mine, other = shapes(ours), shapes(theirs)  # type: ignore[arg-type]
        common = set(mine) & set(other)
        assert {name: mine[name] for name in common} == {name: other[name] for name in common}


def test_messages_survive_the_wire(reference: Done) -> None:
    from fedgsca.wire import decode_payload, decode_update, encode_payload, encode_update

    def same(a: object, b: object) -> bool:
        return (
            isinstance(a, np.ndarray)
            and isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.tobytes() == b.tobytes()
        )

    for sent, got in (
        (reference.payloads[-1], decode_payload(encode_payload(reference.payloads[-1]))),
        (reference.updates[-1], decode_update(encode_update(reference.updates[-1]))),
    ):
        for before, after in ((sent.weights, got.weights), (sent.extras, got.extras)):  # type: ignore[attr-defined]
            assert set(before) == set(after)
            assert all(
                np.shape(before[n]) == np.shape(after[n]) and same(np.asarray(before[n]), after[n])
                for n in before
            )


def test_an_undeclared_download_is_refused(
    reference: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = load_methods()[reference.config.method]
    honest = kind.broadcast

    def leaky(self: object, state: object, round: int) -> Payload:
        payload = honest(self, state, round)  # type: ignore[arg-type]
        return replace(payload, extras={**payload.extras, "everybody": np.zeros(3)})

    monkeypatch.setattr(kind, "broadcast", leaky)
    with pytest.raises(UpdateError, match="everybody is not declared"):
        run(reference.config, tmp_path / "run")


# ---- the same bytes ----


def test_learns_something(reference: Done) -> None:
    first, last = reference.payloads[0].weights, reference.payloads[-1].weights
    assert any(not np.array_equal(first[name], last[name]) for name in first)
    assert all(np.isfinite(value).all() for value in last.values())
    assert all(line["f1"] is not None for line in reference.lines)


def test_keeps_nothing_outside_state_and_store(reference: Done, tmp_path: Path) -> None:
    """Stopped after every round and started again in a fresh engine: the same bytes as without a stop."""
    for rounds in range(1, ROUNDS + 1):
        run(reference.config, tmp_path / "run", stop_after=rounds)
        assert (tmp_path / "run" / "result.json").exists() == (rounds == ROUNDS)
    assert outcome(tmp_path / "run") == outcome(reference.folder)


@pytest.fixture
def cheap_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes that need not import torch one by one. The kill tests start real ones."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedgsca.engine.rounds"])
    monkeypatch.setattr("fedgsca.engine.local.multiprocessing.get_context", lambda kind: context)


def test_two_processes_give_the_same_bytes(
    reference: Done, tmp_path: Path, cheap_processes: None
) -> None:
    run(reference.config, tmp_path / "run", jobs=2)
    assert outcome(tmp_path / "run") == outcome(reference.folder)


def test_another_seed_gives_another_model(reference: Done, tmp_path: Path) -> None:
    config = reference.config.model_copy(update={"seed": 1})
    run(config, tmp_path / "run", stop_after=1)
    state = checkpoint.latest(tmp_path / "run" / "checkpoint", config.fingerprint())
    assert state is not None
    assert any(
        not np.array_equal(state.weights[n], reference.payloads[1].weights[n])
        for n in state.weights
    )


# ---- frozen backbones: quick, so the trouble is made here ----


@pytest.fixture(scope="module")
def frozen(method: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return complete(toy_config(method, frozen=True), tmp_path_factory.mktemp("frozen") / "run")


def test_runs_on_frozen_features_and_sends_only_the_head(frozen: Done, reference: Done) -> None:
    sent = frozen.payloads[0].weights
    assert all(name.startswith("head.") for name in sent)
    assert len(frozen.lines) == ROUNDS and not any(line["refused"] for line in frozen.lines)
    assert all(np.array_equal(sent[name], reference.payloads[0].weights[name]) for name in sent), (
        "one start for both modes"
    )


def test_frozen_run_stopped_and_resumed(frozen: Done, tmp_path: Path) -> None:
    run(frozen.config, tmp_path / "run", stop_after=ROUNDS // 2)
    run(frozen.config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(frozen.folder)


def test_runs_without_noise(method: str, tmp_path: Path) -> None:
    done = complete(toy_config(method, frozen=True, noise__spec="0"), tmp_path / "run")
    assert len(done.lines) == ROUNDS and not any(line["refused"] for line in done.lines)
    assert max(float(str(line["f1"])) for line in done.lines) > 45


def nothing_to_say(update: Update, method: str) -> dict[str, np.ndarray]:
    """NaN wherever the method declares that it may come."""
    declared = load_methods()[method].uploads
    return {
        name: np.full_like(value, np.nan) if declared[name].nan else value
        for name, value in update.extras.items()
    }


def absurd(update: Update) -> dict[str, np.ndarray]:
    return {name: np.full(np.shape(value), 1e30) for name, value in update.extras.items()}


ABSENT = {1: "site-1", 4: "site-4"}


def spoil(method: str, round: int, reply: Reply) -> Reply:
    """Most rounds one site sends something that must not be averaged; once a site has no numbers to send, which every method bears."""
    update = reply.update
    if update is None:
        return reply
    name = next(name for name, value in update.weights.items() if value.dtype.kind == "f")
    broken = {
        (1, "site-2"): lambda: Reply("site-2", None, "the disk of site-2 is full"),
        (2, "site-3"): lambda: replace(
            reply,
            update=replace(update, weights={**update.weights, name: update.weights[name] * np.nan}),
        ),
        (3, "site-1"): lambda: replace(
            reply, update=replace(update, extras={**update.extras, "patients": np.zeros(25)})
        ),
        (3, "site-3"): lambda: replace(
            reply, update=replace(update, extras=nothing_to_say(update, method))
        ),
        (4, "site-2"): lambda: replace(
            reply, update=replace(update, weights={**update.weights, name: np.zeros(2, np.float32)})
        ),
        (5, "site-2"): lambda: replace(reply, update=replace(update, extras=absurd(update))),
    }
    return broken.get((round, reply.site), lambda: reply)()


@pytest.fixture(scope="module")
def storm(method: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("storm") / "run"
    return complete(
        toy_config(method, frozen=True), folder, change=partial(spoil, method), absent=ABSENT
    )


def test_a_missing_site_does_not_stop_the_others(storm: Done) -> None:
    for line in storm.lines:
        lost = ABSENT.get(int(str(line["round"])))
        assert lost not in line["sites"]  # type: ignore[operator]
    assert len(storm.lines) == ROUNDS
    assert {"site-1", "site-4"} <= set(storm.lines[-1]["sites"]), "who was away is back"  # type: ignore[call-overload]


def test_a_bad_update_is_named_and_left_out(storm: Done) -> None:
    refused = {int(str(line["round"])): line["refused"] for line in storm.lines if line["refused"]}
    expected = {1: ["site-2"], 2: ["site-3"], 3: ["site-1"], 4: ["site-2"]}
    reasons = [
        "the disk of site-2 is full",
        "not finite",
        "patients is not declared",
        "has shape (2,)",
    ]
    if storm.updates[
        -1
    ].extras:  # the method has numbers of its own, and one site sent 1e30 in the last round
        expected[5] = ["site-2"]
        reasons.append("believable")
    assert {round: list(who) for round, who in refused.items()} == expected  # type: ignore[call-overload]
    text = str(refused)
    for reason in reasons:
        assert reason in text
        assert any(reason in message for message in storm.said), "a person is told"
    assert all(
        np.isfinite(value).all() for payload in storm.payloads for value in payload.weights.values()
    )


def test_without_a_quorum_the_run_stops_and_can_go_on(frozen: Done, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def ruin(round: int, reply: Reply) -> Reply:
        if round != 2 or reply.update is None:
            return reply
        weights = {
            name: np.full_like(value, np.nan) if value.dtype.kind == "f" else value
            for name, value in reply.update.weights.items()
        }
        return replace(reply, update=replace(reply.update, weights=weights))

    with pytest.raises(QuorumError, match="round 3: 0 of 4 sites") as caught:
        run(frozen.config, folder, engine=Meddler(frozen.config, folder, ruin))
    assert "site-1" in caught.value.message and "resume" in caught.value.fix
    state = checkpoint.latest(folder / "checkpoint", frozen.config.fingerprint())
    assert state is not None and state.round == 2
    run(frozen.config, folder)
    assert outcome(folder) == outcome(frozen.folder)


# ---- what a method says about itself ----


def test_introduces_itself(method: str) -> None:
    kind = load_methods()[method]
    assert kind.name == method == method.lower() and len(kind.paper) > 20
    assert all(info.description or info.annotation for info in kind.Options.model_fields.values())
    assert make_method(method, {}, 10) is not None


@pytest.fixture(scope="module", autouse=True)
def stop_forkserver() -> Iterator[None]:
    yield
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]
