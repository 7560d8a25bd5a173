"""Configuration: every problem at once, nearest names, and nothing lost between a file and a run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from fedgsca.config import build, differences, load_config, parse_set, to_toml
from fedgsca.errors import ConfigError
from fedgsca.methods.base import load_methods, make_method


def test_file_then_set_then_flags(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("seed = 1\n[train]\nrounds = 10\nlr = 0.5\nepochs = 2\n")
    config = load_config(path, ["train.lr=0.25", "train.epochs=3"], train__epochs=4, seed=None)
    assert (config.seed, config.train.rounds, config.train.lr, config.train.epochs) == (
        1,
        10,
        0.25,
        4,
    )


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ConfigError, match="5 problems") as caught:
        load_config(
            sets=["train.lr=-1", "train.round=3", "data.sites=0", "seeds=1", "fedgsca.alpha=2"]
        )
    text = str(caught.value)
    for part in (
        "train.lr",
        "did you mean rounds",
        "data.sites",
        "did you mean seed",
        "fedgsca.alpha",
        "Fix:",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        ("method=fedgcsa", "did you mean fedgsca"),
        ("preset=papr", "choose one of: default, paper"),
        (
            "fedgsca.selector.memmory=1",
            "fedgsca.selector.memmory: unknown key; did you mean memory",
        ),
        ("train.lr=fast", "train.lr"),
        ("train.lr=inf", "train.lr"),
        ("train=3", "train"),
        ("noise.spec=[1]", "noise.spec"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(item: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(sets=[item])
    assert hint in caught.value.message


@pytest.mark.parametrize("item", ["train.lr", "=3", "  =3"])
def test_set_needs_a_key_and_a_value(item: str) -> None:
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        parse_set([item])


def test_set_takes_toml_values_and_bare_words() -> None:
    assert parse_set(["a.b=3", "a.c=[1, 2]", "a.d=true", "e=word", "f=0-S40"]) == {
        "a": {"b": 3, "c": [1, 2], "d": True}, "e": "word", "f": "0-S40",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "hint"), [("seed = ", "not valid TOML"), ("\xff", "not valid TOML")]
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=hint):
        load_config(path)
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("method", sorted(load_methods()))
def test_written_and_read_back_is_the_same_experiment(method: str, preset: str) -> None:
    config = load_config(method=method, preset=preset, data__labels="x.csv", train__rounds=7)
    back = build(tomllib.loads(to_toml(config)))
    assert (
        back == config
        and back.fingerprint() == config.fingerprint()
        and differences(config, back) == []
    )
    assert (
        make_method(method, back.options, 7).options
        == make_method(method, config.options, 7).options
    )  # type: ignore[attr-defined]


def test_every_option_of_the_method_is_filled_in() -> None:
    assert load_config(method="fedprox").options == {"mu": 0.01}
    assert load_config(method="fedavg").options == {}
    assert "fedprox" in to_toml(load_config(method="fedprox"))


def test_none_survives_where_the_default_is_something_else() -> None:
    """TOML has no null. The literal preset switches the loss clip off; lost on the way, it would come back as the default."""
    for config in (load_config(preset="paper"), load_config(sets=["fedgsca.selector.clip=none"])):
        for c in (config, build(tomllib.loads(to_toml(config)))):
            assert make_method("fedgsca", c.options, 3).options.selector.clip is None  # type: ignore[attr-defined]
    assert load_config(sets=["data.image_size=none", "train.augment=none"]).train.augment == "none"


def test_options_of_other_methods_may_stand_in_the_file() -> None:
    config = load_config(method="fedavg", sets=["fedprox.mu=1.0"])
    assert (
        config.options == {} and config.fingerprint() == load_config(method="fedavg").fingerprint()
    )


def test_the_fingerprint_follows_every_value() -> None:
    base = load_config()
    others = [
        load_config(sets=[s])
        for s in (
            "seed=1",
            "train.lr=0.021",
            "fedgsca.alpha=0.06",
            "noise.spec=S40",
            "train.threads=1",
        )
    ]
    assert len({c.fingerprint() for c in (base, *others)}) == 6
    assert load_config(sets=["seed=0"]).fingerprint() == base.fingerprint()


def test_frozen_features_get_a_step_size_of_their_own_unless_told() -> None:
    assert load_config(model__frozen=True).train.lr != load_config().train.lr
    assert load_config(model__frozen=True, train__lr=0.3).train.lr == 0.3
    assert load_config(model__frozen=True).model.weights == "packaged"


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_config().train.lr = 1.0  # type: ignore[misc]


def test_learning_rate_steps_are_counted_over_rounds() -> None:
    train = load_config(train__rounds=100, train__lr=1.0).train
    assert [round(train.lr_at(t), 3) for t in (0, 69, 70, 89, 90, 99)] == [
        1.0,
        1.0,
        0.1,
        0.1,
        0.01,
        0.01,
    ]
