"""What passes the filters: every honest update, and no malformed one; and the mean behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.config import Config
from fedgsca.errors import ConfigError, UpdateError
from fedgsca.federation import checkpoint, rounds
from fedgsca.federation.base import Reply
from fedgsca.federation.filters.base import UpdateContext, UpdateFilter
from fedgsca.federation.filters.distance import LOW, ROUNDS
from fedgsca.federation.filters.rule import make_filters
from fedgsca.federation.intake import Intake
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import Experiment
from fedgsca.methods.base import compose_method, load_methods
from fedgsca.wire import Payload, Update
from tests.toys import (
    CLASSES,
    FaultyEngine,
    RecordingObserver,
    digest,
    finished_run,
    outcome,
    toy_config,
    toy_npz,
)

LIAR = "site-2"
Spoil = Callable[[Update], Update | None]


def study_config(method: str = "fedavg", **sets: Any) -> Config:
    return toy_config(
        method, frozen=True, source=toy_npz(240, 300, 12), noise__spec="0", train__rounds=14, **sets
    )


# ---- honest sites ----


@pytest.mark.parametrize("method", list(load_methods()))
def test_no_honest_site_is_refused_where_sites_differ_and_steps_overshoot(method: str) -> None:
    """Ten small sites with few classes each. Usual and odd sites are in test_methods.py."""
    config = toy_config(
        method,
        frozen=True,
        source=toy_npz(240, 30, 12),
        data__sites=10,
        data__partition="dirichlet",
        data__alpha=0.1,
        noise__spec="S40",
        federation__participation=0.5,
        train__lr=0.5,
    )
    assert not any(record.refusals for record in read_rounds(finished_run(config)))


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_clipped_and_noised_updates_of_honest_sites_pass(noise: float, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    run(study_config(privacy__clip=0.05, privacy__noise=noise), tmp_path / "run")
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


def test_images_that_are_held_out_are_no_false_count(tmp_path: Path) -> None:
    """The evidence is about all images, `num_samples` about those that are trained on."""
    run(study_config("fedgsca", evidence__holdout=0.5), tmp_path / "run")
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


def test_weight_decay_alone_makes_no_copies(tmp_path: Path) -> None:
    """Without a loss left, all sites send the received model times the same number."""

    def decay(round_index: int, reply: Reply) -> Reply:
        assert reply.update is not None
        received = engine.payloads[-1].weights
        weights = {}
        for name, value in received.items():
            weights[name] = (
                np.asarray(value * 0.999, value.dtype) if value.dtype.kind == "f" else value
            )
        return replace(reply, update=replace(reply.update, weights=weights))

    config = study_config()
    engine = FaultyEngine(config, tmp_path / "run", decay)
    run(config, tmp_path / "run", engine=engine, stop_after=3)
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


# ---- the mean ----


def test_the_mean_has_the_bytes_of_a_bare_weighted_mean(tmp_path: Path) -> None:
    config = study_config()
    engine = FaultyEngine(config, tmp_path / "run")
    for number in range(1, 4):
        run(config, tmp_path / "run", engine=engine, stop_after=number)
        updates = [reply.update for reply in engine.replies[-4:] if reply.update is not None]
        state = checkpoint.latest(tmp_path / "run" / "checkpoint", config.fingerprint())
        assert state is not None and state.round == number and len(updates) == 4
        for name, value in state.weights.items():
            total = sum(update.num_samples for update in updates)
            mean = np.zeros(value.shape)
            for update in updates:
                mean += update.weights[name].astype(np.float64) * update.num_samples
            assert np.array_equal(value, (mean / total).astype(value.dtype)), name


def test_one_update_at_a_time_is_in_memory(tmp_path: Path) -> None:
    """With the mean, a site trains only after the update of the one before was used."""
    events = []

    class Watcher(UpdateFilter):
        name = "watcher"

        def examine(self, update: Update, context: UpdateContext) -> Update:
            events.append(f"examined {update.site}")
            return update

        def judge(self, updates: Iterator[Update], context: object) -> Iterator[Update]:
            for update in updates:
                yield update
                events.append(f"used {update.site}")

    config = study_config()

    def add_watcher(*arguments: Any) -> list[UpdateFilter]:
        return [*make_filters(*arguments), Watcher()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "make_filters", add_watcher)
        run(config, tmp_path / "run", stop_after=1)
    assert events[:4] == ["examined site-1", "used site-1", "examined site-2", "used site-2"]


# ---- malformed updates ----


def change_weights(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(update: Update) -> Update:
        return replace(update, weights={name: change(a) for name, a in update.weights.items()})

    return spoil


def set_one(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[0] = value
        return array

    return change


SPOILS: dict[str, tuple[Spoil, str]] = {
    "another type": (change_weights(lambda a: a.astype(np.float16)), "update.invalid-weights"),
    "another shape": (change_weights(lambda a: a[..., None]), "update.invalid-weights"),
    "a weight is missing": (
        lambda update: replace(update, weights=dict(list(update.weights.items())[1:])),
        "update.invalid-weights",
    ),
    "not a number": (change_weights(set_one(np.nan)), "update.invalid-weights"),
    "infinity": (change_weights(set_one(np.inf)), "update.invalid-weights"),
    "an absurd number": (change_weights(set_one(1e30)), "update.absurd-number"),
    "an undeclared extra": (
        lambda update: replace(update, extras={**update.extras, "patients": np.zeros(3)}),
        "update.invalid-extras",
    ),
    "a negative number of images": (
        lambda update: replace(update, num_samples=-1),
        "update.invalid-weights",
    ),
    "more images than in the first round": (
        lambda update: replace(update, num_samples=update.num_samples + 1),
        "update.too-many-images",
    ),
    "a message for another site": (
        lambda update: replace(update, site="site-3"),
        "update.wrong-site",
    ),
    "a message that cannot be read": (lambda update: None, "update.malformed-message"),
}


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[set[tuple[str, str]]]:
    """For every round the pairs of a site that was left out and the code of its error."""
    found: list[set[tuple[str, str]]] = []

    class WatchedIntake(Intake):
        def finish(self, experiment: Experiment) -> Any:
            found.append(set(self.num_refusals))
            return super().finish(experiment)

    monkeypatch.setattr(rounds, "Intake", WatchedIntake)
    return found


def spoil_later(spoil: Spoil) -> Callable[[int, Reply], Reply]:
    """The liar is honest in its first round."""

    def change(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or round_index == 0 or reply.update is None:
            return reply
        update = spoil(reply.update)
        error = "its message cannot be used" if update is None else None
        return replace(reply, update=update, error=error, is_malformed=update is None)

    return change


@pytest.mark.parametrize("kind", list(SPOILS))
def test_a_malformed_update_is_refused_and_the_run_goes_on(
    kind: str, codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    spoil, code = SPOILS[kind]
    config = study_config()
    engine = FaultyEngine(config, tmp_path / "run", spoil_later(spoil))
    run(config, tmp_path / "run", engine=engine, stop_after=4)
    assert codes == [set(), *[{(LIAR, code)}] * 3]
    for record in read_rounds(tmp_path / "run")[1:]:
        assert list(record.refusals) == [LIAR] and len(record.sites) == 3


def test_a_negative_variance_and_a_wild_counter_are_refused(
    codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    config = toy_config("fedavg", train__rounds=6)

    def spoil(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or reply.update is None:
            return reply
        weights = dict(reply.update.weights)
        if round_index == 0:
            name = next(name for name in weights if name.endswith("running_var"))
            weights[name] = -weights[name] - 1
        if round_index == 1:
            name = next(name for name, value in weights.items() if value.dtype.kind == "i")
            weights[name] = weights[name] + 10**12
        return replace(reply, update=replace(reply.update, weights=weights))

    engine = FaultyEngine(config, tmp_path / "run", spoil)
    run(config, tmp_path / "run", engine=engine, stop_after=3)
    assert codes == [{(LIAR, "update.absurd-number")}] * 2 + [set()]


def test_sums_fit_the_number_of_images(codes: list[set[tuple[str, str]]], tmp_path: Path) -> None:
    config = study_config("fedgsca-e", evidence__holdout=0.2)

    def exaggerate(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or reply.update is None:
            return reply
        extras = dict(reply.update.extras)
        for name, value in extras.items():
            if name in sums:
                extras[name] = value * 1000
        return replace(reply, update=replace(reply.update, extras=extras))

    sums = [
        name
        for name, extra in compose_method(config).uploads.items()
        if extra.per_image is not None
    ]
    assert sums
    engine = FaultyEngine(config, tmp_path / "run", exaggerate)
    run(config, tmp_path / "run", engine=engine)
    found = set().union(*codes)
    assert {site for site, _ in found} == {LIAR}
    assert (LIAR, "update.false-count") in found


def test_a_site_that_does_not_clip_is_refused(
    codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    config = study_config(privacy__clip=0.05, privacy__noise=0.0)

    def scale(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or reply.update is None:
            return reply
        received = engine.payloads[-1].weights
        weights = {}
        for name, value in reply.update.weights.items():
            weights[name] = (received[name] - 2 * (value - received[name])).astype(value.dtype)
        return replace(reply, update=replace(reply.update, weights=weights))

    engine = FaultyEngine(config, tmp_path / "run", scale)
    run(config, tmp_path / "run", engine=engine, stop_after=2)
    assert codes == [{(LIAR, "update.not-clipped")}] * 2


# ---- updates that were sent before ----


def replay(earlier: dict[int, Update], first_round: int = 0) -> Callable[[int, Reply], Reply]:
    """The liar sends the update of its first round again and again."""

    def change(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or reply.update is None:
            return reply
        earlier.setdefault(round_index, reply.update)
        return replace(reply, update=earlier[first_round])

    return change


def test_an_update_that_is_sent_again_is_refused_also_after_a_restart(
    codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    config, earlier = study_config(), dict[int, Update]()
    for number in range(1, 4):
        engine = FaultyEngine(config, tmp_path / "run", replay(earlier))
        run(config, tmp_path / "run", engine=engine, stop_after=number)
    assert codes == [set(), *[{(LIAR, "update.repeated")}] * 2]


def test_a_copy_of_another_sites_update_is_refused(
    codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    config = study_config()

    def copy(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR:
            return reply
        other = engine.replies[-1].update
        assert other is not None and other.site == "site-1"
        return replace(reply, update=replace(other, site=LIAR))

    engine = FaultyEngine(config, tmp_path / "run", copy)
    run(config, tmp_path / "run", engine=engine, stop_after=2)
    assert codes == [{(LIAR, "update.repeated")}] * 2


@pytest.mark.parametrize("rule", ["mean", "mixing"])
def test_memory_of_filters_survives_a_restart(rule: str, tmp_path: Path) -> None:
    config = study_config(aggregation__rule=rule)
    run(config, tmp_path / "a", engine=FaultyEngine(config, tmp_path / "a", replay({})))
    earlier: dict[int, Update] = {}
    for number in range(1, config.train.rounds + 1):
        engine = FaultyEngine(config, tmp_path / "b", replay(earlier))
        run(config, tmp_path / "b", engine=engine, stop_after=number)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    for path in sorted((tmp_path / "a" / "checkpoint").iterdir()):
        assert digest(path) == digest(tmp_path / "b" / "checkpoint" / path.name)


# ---- numbers of images ----


def test_more_images_than_agreed_are_refused_in_every_round(
    codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    agreed = {"site-1": 60, LIAR: 59, "site-3": 1000}
    config = study_config(aggregation__max_images=agreed)
    run(config, tmp_path / "run", stop_after=3)
    assert codes == [{(LIAR, "update.too-many-images")}] * 3


def test_a_number_of_images_may_shrink_but_not_grow(
    codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    config = study_config()
    sizes = [50, 40, 50, 51]

    def resize(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or reply.update is None:
            return reply
        return replace(reply, update=replace(reply.update, num_samples=sizes[round_index]))

    engine = FaultyEngine(config, tmp_path / "run", resize)
    run(config, tmp_path / "run", engine=engine, stop_after=4)
    assert codes == [set(), set(), set(), {(LIAR, "update.too-many-images")}]


def test_a_site_trains_on_at_most_the_images_that_it_had_when_it_connected(
    codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    config = study_config()

    def declare(round_index: int, reply: Reply) -> Reply:
        assert reply.update is not None
        size = reply.update.num_samples
        return replace(reply, declared_samples=size - 1 if reply.site == LIAR else size)

    engine = FaultyEngine(config, tmp_path / "run", declare)
    run(config, tmp_path / "run", engine=engine, stop_after=2)
    assert codes == [{(LIAR, "update.too-many-images")}] * 2


def test_as_many_images_as_agreed_change_no_byte(tmp_path: Path) -> None:
    config = study_config(aggregation__max_images=60)
    run(config, tmp_path / "run")
    assert digest(tmp_path / "run" / "metrics.jsonl") == digest(
        finished_run(study_config()) / "metrics.jsonl"
    )


@pytest.mark.parametrize("max_images", [0, -1, 2.5, True, "many", {"site-1": 0}])
def test_an_agreement_is_a_positive_number(max_images: object) -> None:
    with pytest.raises(ConfigError, match=r"aggregation\.max_images"):
        study_config(aggregation__max_images=max_images)


def test_an_agreement_with_an_unknown_site_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        run(study_config(aggregation__max_images={"site-9": 10}), tmp_path / "run")
    assert error.value.code == "config.unknown-site"


# ---- answers that nobody asked for ----


class TwiceEngine(FaultyEngine):
    """An engine that delivers the update of one site twice, and one that nobody asked for."""

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        for reply in super().exchange(payload, sites):
            yield reply
            if reply.site == LIAR and reply.update is not None:
                yield reply
                yield Reply("site-9", replace(reply.update, site="site-9"))


@pytest.mark.parametrize("rule", ["mean", "mixing"])
def test_a_second_answer_does_not_count(
    rule: str, codes: list[set[tuple[str, str]]], tmp_path: Path
) -> None:
    config = study_config(aggregation__rule=rule)
    run(config, tmp_path / "a", engine=TwiceEngine(config, tmp_path / "a"), stop_after=2)
    assert codes == [{(LIAR, "update.second-reply"), ("site-9", "update.not-asked")}] * 2
    run(config, tmp_path / "b", stop_after=2)
    models = []
    for name in ("a", "b"):
        state = checkpoint.latest(tmp_path / name / "checkpoint", config.fingerprint())
        assert state is not None
        models.append(state.weights)
    assert all(np.array_equal(models[0][key], models[1][key]) for key in models[0])


# ---- a filter of one's own ----


def test_a_new_filter_is_a_small_class_in_the_list(
    codes: list[set[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class NoSmallSites(UpdateFilter):
        name = "no-small-sites"

        def examine(self, update: Update, context: UpdateContext) -> Update:
            if update.site == LIAR:
                raise UpdateError("update.too-small", "it is too small", fix="find images")
            context.round.note(update.site, "seen", update.num_samples)
            return update

    monkeypatch.setattr(
        rounds, "make_filters", lambda *arguments: [NoSmallSites(), *make_filters(*arguments)]
    )
    run(study_config(), tmp_path / "run", stop_after=1)
    assert codes == [{(LIAR, "update.too-small")}]
    (record,) = read_rounds(tmp_path / "run")
    assert {site: entry.number("seen") for site, entry in record.sites.items()} == {
        "site-1": 60,
        "site-3": 60,
        "site-4": 60,
    }


# ---- how far a site is from the others ----


def reverse_labels(round_index: int, reply: Reply) -> Reply:
    """The liar sends its head with the classes in another order."""
    if reply.site != LIAR or reply.update is None:
        return reply
    weights = {}
    for name, value in reply.update.weights.items():
        is_head = value.ndim > 0 and value.shape[0] == CLASSES
        weights[name] = np.roll(value, 1, axis=0) if is_head else value
    return replace(reply, update=replace(reply.update, weights=weights))


def test_a_site_far_from_all_others_is_named_and_nothing_else_happens(tmp_path: Path) -> None:
    config, observer = study_config(), RecordingObserver()
    engine = FaultyEngine(config, tmp_path / "run", reverse_labels)
    run(config, tmp_path / "run", engine=engine, observer=observer)
    records = observer.rounds
    assert not any(record.refusals for record in records)
    for record in records:
        coefficients = {site: item.number("coefficient") for site, item in record.sites.items()}
        low = [site for site, value in coefficients.items() if value is not None and value < LOW]
        assert low == [LIAR]
        weights = [value * 60 for value in coefficients.values() if value is not None]
        assert sum(weights) == pytest.approx(240, rel=1e-3), "they are shares of the images"
    assert [record.distant_sites for record in records[ROUNDS:]] == [(LIAR,)] * (14 - ROUNDS)
    messages = [text for text in observer.messages if "ask what differs" in text]
    assert len(messages) == 1 and LIAR in messages[0]


def test_equal_sites_are_not_named() -> None:
    for record in read_rounds(finished_run(study_config())):
        assert record.distant_sites is None
        assert all(item.number("coefficient") is not None for item in record.sites.values())


def test_two_sites_have_no_coefficients(tmp_path: Path) -> None:
    run(study_config(data__sites=2), tmp_path / "run", stop_after=2)
    for record in read_rounds(tmp_path / "run"):
        assert all("coefficient" not in item.values for item in record.sites.values())
