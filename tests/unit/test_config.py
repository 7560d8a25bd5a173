"""Configuration: all problems at once, nearest names, nothing lost between a file and a run."""

from __future__ import annotations

import tomllib
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from fedgsca.config import Config, build, differences, load_config, parse_set, to_toml
from fedgsca.config.schema import SHORT_NAMES
from fedgsca.errors import ConfigError
from fedgsca.methods.base import load_methods, make_method
from fedgsca.models.training import resolve_rate


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
    with pytest.raises(ConfigError) as error:
        load_config(
            sets=[
                "train.lr=-1",
                "train.round=3",
                "data.sites=0",
                "seeds=1",
                "fedgsca-e.diagnostics=7",
            ]
        )
    assert error.value.code == "config.invalid" and error.value.fix
    problems = sorted((problem.code, problem.message) for problem in error.value.problems)
    expected = [
        ("config.invalid-value", "data.sites:"),
        ("config.invalid-value", "fedgsca-e.diagnostics:"),
        ("config.invalid-value", "train.lr:"),
        ("config.unknown-key", "seeds:"),
        ("config.unknown-key", "train.round:"),
    ]
    assert len(problems) == len(expected)
    for (code, message), (expected_code, key) in zip(problems, expected, strict=True):
        assert code == expected_code and message.startswith(key)
        assert message in error.value.message


@pytest.mark.parametrize(
    ("item", "code", "hint"),
    [
        ("method=fedgcsa", "config.unknown-method", "fedgsca?"),
        ("method=foo", "config.unknown-method", "fedavg"),
        ("preset=papr", "config.unknown-preset", "default, paper"),
        ("train.round=3", "config.unknown-key", "rounds?"),
        ("seeds=1", "config.unknown-key", "seed?"),
        ("fedgsca-e.diagnostic=1", "config.unknown-key", "diagnostics?"),
        ("privacy.clipp=1", "config.unknown-key", "clip?"),
        ("options.alpha=1", "config.unknown-key", "fedgsca-e.KEY"),
        ("fedgsca=1", "config.not-a-section", "fedgsca.KEY"),
        ("train.lr=fast", "config.invalid-value", "'fast'"),
        ("train.lr=inf", "config.invalid-value", "inf"),
        ("train=3", "config.invalid-value", "3"),
        ("noise.spec=[1]", "config.invalid-value", "[1]"),
        ("aggregation.max_images=0", "config.invalid-value", "aggregation.max_images: write a"),
    ],
)
def test_a_mistake_is_named_with_its_fix(item: str, code: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(sets=[item])
    messages = [problem.message for problem in error.value.problems if problem.code == code]
    assert messages and hint in messages[0]


def test_agreed_numbers_are_those_of_sites_that_take_part() -> None:
    sets = ["data.source=sites", 'federation.sites=["berlin", "lyon"]']
    load_config(sets=[*sets, "aggregation.max_images.lyon=700"])
    with pytest.raises(ConfigError) as error:
        load_config(sets=[*sets, "aggregation.max_images.lyn=700"])
    (problem,) = error.value.problems
    assert problem.code == "config.unknown-site"
    assert problem.message.startswith("aggregation.max_images: ")
    for words in ("'lyn'", "did you mean 'lyon'?", "berlin, lyon"):
        assert words in problem.message


@pytest.mark.parametrize("item", ["train.lr", "=3", "  =3"])
def test_set_needs_a_key_and_a_value(item: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_set([item])
    assert error.value.code == "config.invalid-set" and repr(item) in error.value.message


def test_set_takes_toml_values_and_bare_words() -> None:
    tree = parse_set(["a.b=3", "a.c=[1, 2]", "a.d=true", "e=word", "f=0-S40"])
    assert tree == {"a": {"b": 3, "c": [1, 2], "d": True}, "e": "word", "f": "0-S40"}


@pytest.mark.parametrize("text", ["seed = ", "\xff"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert error.value.code == "config.invalid-toml" and str(path) in error.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, code in (
        (tmp_path / "none.toml", "config.file-not-found"),
        (tmp_path, "config.unreadable-file"),
    ):
        with pytest.raises(ConfigError) as error:
            load_config(path)
        assert error.value.code == code and str(path) in error.value.message


# ---- Config.load ----


def test_short_names_sections_and_dotted_keys(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("seed = 1\n[train]\nrounds = 10\nlr = 0.5\n")
    config = Config.load(
        file,
        data=tmp_path / "x.npz",
        noise="S40",
        sites=3,
        rounds=60,
        lr=None,
        train__epochs=2,
        federation={"quorum": 1.0},
        set={"train.momentum": 0.5, "fedgsca.alpha": 0.1},
    )
    assert config == load_config(
        file,
        [
            "noise.spec=S40",
            "data.sites=3",
            "train.rounds=60",
            "train.epochs=2",
            "federation.quorum=1.0",
            "train.momentum=0.5",
            "fedgsca.alpha=0.1",
        ],
        data__source=str(tmp_path / "x.npz"),
    )
    assert Config.load() == load_config()


SHORT_VALUES: dict[str, Any] = {
    "participation": 0.5,
    "data": "x.npz",
    "method": "fedavg",
    "labels": "labels.csv",
    "partition": "dirichlet",
    "noise": "S40",
    "model": "resnet18",
    "features": "features.npz",
    "frozen": True,
    "device": "cpu",
    "skip_unreadable": True,
    "audit": True,
    "preset": "paper",
    "track": "mlflow",
}


def test_short_names_are_keys() -> None:
    for short_name, key in SHORT_NAMES.items():
        value: Any = SHORT_VALUES.get(short_name, 3)
        config = Config.load(**{short_name: value})
        assert attrgetter(key)(config) == value, short_name


def test_a_folder_is_the_same_with_a_slash_at_its_end() -> None:
    sources = {"x/": "x", "x//": "x", "x": "x", "kvasir:a/b/": "kvasir:a/b", "/": "/"}
    for text, source in {**sources, "dicom:/": "dicom:/"}.items():
        assert Config.load(data=text).data.source == source


def test_a_misspelled_setting_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Config.load(metod="fedavg")
    assert [problem.code for problem in error.value.problems] == ["config.unknown-key"]
    assert "method?" in error.value.problems[0].message


def keys_without_description(model: type[BaseModel]) -> list[str]:
    return [name for name, info in model.model_fields.items() if not info.description]


def test_every_key_has_a_description() -> None:
    models: list[type[BaseModel]] = [Config]
    models += [method.Options for method in load_methods().values()]
    for model in models:
        for info in model.model_fields.values():
            for kind in (info.annotation, *get_args(info.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    models.append(kind)
        assert keys_without_description(model) == [], model.__name__


@pytest.mark.parametrize("preset", ["default", "paper", "paper-full"])
@pytest.mark.parametrize("method", sorted(load_methods()))
def test_written_and_read_back_is_the_same_experiment(method: str, preset: str) -> None:
    config = load_config(method=method, preset=preset, data__labels="x.csv", train__rounds=7)
    back = build(tomllib.loads(to_toml(config)))
    assert (
        back == config
        and back.fingerprint() == config.fingerprint()
        and differences(config, back) == []
    )
    options = [make_method(method, c.options, 7).options for c in (back, config)]
    assert options[0] == options[1]


def test_every_option_of_the_method_is_filled_in() -> None:
    assert load_config(method="fedprox").options == {"official": False, "mu": 0.01}
    assert load_config(method="fedavg").options == {}
    assert "fedprox" in to_toml(load_config(method="fedprox"))


@pytest.mark.parametrize(
    "settings",
    [
        {"evidence__backbone": "none"},
        {"model__name": "efficientnet-lite0", "model__frozen": True, "model__weights": "none"},
    ],
)
def test_a_default_that_is_switched_off_stays_off_in_the_file(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    config = load_config(**settings)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "config.toml") == config


def test_none_is_none_only_where_a_key_may_be_none() -> None:
    """TOML has no null."""
    assert load_config(sets=["data.image_size=none"]).data.image_size is None
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
            "fedgsca-e.diagnostics=false",
            "noise.spec=S40",
            "train.threads=1",
        )
    ]
    assert len({c.fingerprint() for c in (base, *others)}) == 6
    assert load_config(sets=["seed=0"]).fingerprint() == base.fingerprint()


def test_frozen_features_get_a_step_size_of_their_own_unless_told() -> None:
    frozen, cnn = load_config(model__frozen=True), load_config()
    assert resolve_rate(frozen, 1280, 4) != resolve_rate(cnn, 128, 4)
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
