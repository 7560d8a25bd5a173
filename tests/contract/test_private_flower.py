"""Privacy over Flower: a hospital's own noise, one answer a round, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import SITES, outcome, toy_config

pytest.importorskip("flwr")
pytest.importorskip("opacus")

from flwr.app import Context, Message
from localgrid import LocalGrid, over_flower

from fedgsca.config import Config
from fedgsca.engine.flower import client_app, from_records
from fedgsca.engine.rounds import run
from fedgsca.engine.site_node import SiteSettings, answer, terms_of
from fedgsca.experiment.run_folder import read_lines
from fedgsca.experiment.simulation import prepare
from fedgsca.wire import Arrays, Payload

CLIP = 0.2


def private(noise: float) -> Config:
    return toy_config(
        "fedgsca", frozen=True, train__rounds=2, privacy__clip=CLIP, privacy__noise=noise
    )


def at_home(tmp_path: Path) -> Callable[[Context], tuple[SiteSettings, None]]:
    """A rehearsal: every hospital has its own process's folder, as in a deployment."""

    def place(context: Context) -> tuple[SiteSettings, None]:
        name = f"site-{int(context.node_config['partition-id']) + 1}"
        return SiteSettings(name=name, state=str(tmp_path / "homes" / name)), None

    return place


def norm(before: Arrays, after: Arrays) -> float:
    return float(
        np.sqrt(
            sum(
                np.sum((after[n].astype(float) - before[n]) ** 2)
                for n in before
                if before[n].dtype.kind == "f"
            )
        )
    )


@pytest.fixture
def crossed() -> list[tuple[Any, Any]]:
    return []


def go(config: Config, tmp_path: Path, crossed: list[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Both rounds over Flower, every training message sent twice; what crossed, in and out."""

    def twice(site: int, message: Message, do: Callable[[], Message]) -> Message:
        first, second = from_records(do().content), do()
        if message.metadata.message_type == "train":
            crossed.append((from_records(message.content), from_records(second.content)))
            assert all(
                np.array_equal(first[1][name], crossed[-1][1][1][name]) for name in first[1]
            ), "the same noise, or none"
        return second

    over_flower(config, LocalGrid(client_app(at_home(tmp_path)), SITES, twice), tmp_path / "run")
    return read_lines(tmp_path / "run" / "metrics.jsonl")


def test_clipping_alone_gives_the_bytes_of_the_simulation(
    tmp_path: Path, crossed: list[tuple[Any, Any]]
) -> None:
    config = private(0.0)
    lines = go(config, tmp_path, crossed)
    moved = [norm(sent[1], back[1]) for sent, back in crossed]
    assert len(moved) == 2 * SITES and max(moved) <= CLIP * 1.0001 and max(moved) > 0.99 * CLIP, (
        "the clip is felt"
    )
    assert all(set(back[2]) == {"selector"} for _, back in crossed) and all(
        "privacy" not in line for line in lines
    )
    run(config, tmp_path / "here")
    assert (
        outcome(tmp_path / "here")["model.safetensors"]
        == outcome(tmp_path / "run")["model.safetensors"]
    )


def test_noise_is_the_hospitals_own_and_the_budget_is_logged(
    tmp_path: Path, crossed: list[tuple[Any, Any]]
) -> None:
    config = private(4.0)
    lines = go(config, tmp_path, crossed)
    for sent, back in crossed:
        count = sum(value.size for value in sent[1].values() if value.dtype.kind == "f")
        assert 0.7 < norm(sent[1], back[1]) / (4.0 * CLIP * np.sqrt(count)) < 1.3
    here = run(config, tmp_path / "here")
    seen = read_lines(tmp_path / "here" / "metrics.jsonl")
    assert [line["privacy"] for line in lines] == [line["privacy"] for line in seen] and here[
        "privacy"
    ] == lines[-1]["privacy"]
    assert lines[0]["sites"]["site-1"]["selector"] != seen[0]["sites"]["site-1"]["selector"], (
        "the public seed does not tell it"
    )
    assert (
        outcome(tmp_path / "here")["model.safetensors"]
        != outcome(tmp_path / "run")["model.safetensors"]
    )
    assert not any(line["refused"] for line in lines) and set(lines[0]["sites"]["site-1"]) <= {
        "num_samples",
        "selector",
        *OBSERVED,
    }


OBSERVED = {
    "noisy_precision",
    "noisy_recall",
    "noisy_auroc",
    "noisy_f1",
    "pseudo_count",
    "pseudo_accuracy",
}  # of a rehearsal


def test_a_crafted_question_is_not_answered(tmp_path: Path, crossed: list[tuple[Any, Any]]) -> None:
    config = private(4.0)
    go(config, tmp_path, crossed)
    (header, weights, extras), _ = crossed[-1]
    home = SiteSettings(name="site-4", state=str(tmp_path / "homes" / "site-4"))
    folder, terms = Path(home.state) / config.fingerprint()[:16], terms_of(prepare(config))
    asked = Payload(int(header["round"]), weights, extras)
    crafted = Payload(asked.round, {name: value + 1 for name, value in weights.items()}, extras)
    assert answer("train", terms, asked, home, folder).update is not None
    for kind, payload, reason in (
        ("train", crafted, "another model"),
        ("train", Payload(2, weights, extras), "once"),
        ("judge", asked, "no exact counts"),
    ):
        reply = answer(kind, terms, payload, home, folder)  # type: ignore[arg-type]
        assert reply.update is None and reply.error is not None and reason in reply.error
