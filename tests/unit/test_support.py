"""Text, registries and tables: helpers that every layer uses."""

from __future__ import annotations

import importlib
import io
from pathlib import Path

import pytest

from fedgsca.config import METHODS
from fedgsca.data.reader import READERS
from fedgsca.errors import ConfigError, DataError
from fedgsca.federation.base import ENGINES
from fedgsca.methods.base import load_methods
from fedgsca.noise.base import KINDS
from fedgsca.support.csv_table import read_csv_table, write_cells
from fedgsca.support.markdown import markdown_table
from fedgsca.support.registry import PLUGINS_VARIABLE, Registry, import_plugin
from fedgsca.support.text import (
    did_you_mean,
    duration,
    fold_name,
    join_words,
    number,
    percent,
    plural,
    signed,
    size_text,
    slug,
    suggest,
)

METHOD_NAMES = (
    "fedavg",
    "fedprox",
    "fedrobust",
    "fedcorr",
    "fedgp",
    "fedfixer",
    "fednoro",
    "fedgsca",
)


@pytest.mark.parametrize(
    ("word", "candidate"),
    [
        ("fedavgg", "fedavg"),
        ("FedAVG", "fedavg"),
        ("fed-gsca", "fedgsca"),
        ("fdeavg", "fedavg"),  # neighbours exchanged
        ("gsca", "fedgsca"),  # the only one that contains it
        ("fedgs", "fedgsca"),  # the only one that begins with it, although fedgp is nearer
    ],
)
def test_a_misspelled_or_shortened_name_is_recognised(word: str, candidate: str) -> None:
    assert suggest(word, METHOD_NAMES) == candidate


@pytest.mark.parametrize("word", ["foo", "fed", "fedx", "gp", "", "x"])
def test_a_word_without_a_similar_name_gets_no_suggestion(word: str) -> None:
    assert suggest(word, METHOD_NAMES) is None


def test_short_words_are_not_confused() -> None:
    assert suggest("--gpu", ("--out", "--json", "--device")) is None
    assert suggest("gpu", ("cpu", "cuda", "auto")) is None


def test_the_hint_is_empty_without_a_suggestion() -> None:
    assert did_you_mean("fedavgg", METHOD_NAMES) == "did you mean 'fedavg'? "
    assert did_you_mean("foo", METHOD_NAMES) == ""


def test_folded_names_ignore_capitals_spaces_and_hyphens() -> None:
    assert fold_name("Ulcer - Site_ID") == fold_name("ulcersiteid")
    assert fold_name("-") == "-"


def test_counts_and_lists_read_as_in_a_sentence() -> None:
    assert [plural(n, "site") for n in (0, 1, 1200)] == ["0 sites", "1 site", "1,200 sites"]
    assert plural(3, "class", "classes") == "3 classes"
    assert join_words([]) == ""
    assert join_words(["a"]) == "a"
    assert join_words(["a", "b", "c"]) == "a, b and c"
    assert join_words(["a", "b"], "or") == "a or b"


def test_numbers_as_text() -> None:
    assert number(71.349) == "71.3"
    assert percent(0.204) == "20.4 %"
    assert number(None) == percent(None) == "–"
    assert signed(-0.125, 2) == "−0.12"
    assert signed(0.001, 2) == signed(-0.001, 2) == "0.00"


def test_durations_and_sizes_use_the_unit_that_fits() -> None:
    assert [duration(s) for s in (3.21, 9.96, 59.7, 200, 7300)] == [
        "3.2 s",
        "10 s",
        "1 min 0 s",
        "3 min 20 s",
        "2 h 1 min",
    ]
    assert [size_text(s) for s in (812, 3_400_000, 6 * 10**9, 2 * 10**12)] == [
        "812 B",
        "3.4 MB",
        "6.0 GB",
        "2.0 TB",
    ]


def test_a_slug_is_one_safe_name() -> None:
    assert [slug(text) for text in ("0-S40-P2.5", "D30/10", "S40%", "//")] == [
        "0-S40-P2.5",
        "D30-10",
        "S40",
        "x",
    ]
    assert slug("S40%/a", keep="%") == "S40%-a"


# ---- registries ----


def test_a_plugin_module_is_loaded_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_plugin.py").write_text(
        "from fedgsca.noise.base import KINDS\nKINDS.register('my-kind', object())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS_VARIABLE, "my_plugin")
    registry: Registry[object] = Registry("fedgsca.noise.kinds")
    registry.load()
    assert "my-kind" in KINDS.load()
    KINDS.unregister("my-kind")


@pytest.mark.parametrize("content", ["raise ValueError('broken')", "import no_such_package", None])
def test_a_plugin_that_cannot_be_imported_is_reported_every_time(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "broken_plugin.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS_VARIABLE, "broken_plugin")
    registry: Registry[object] = Registry("fedgsca.noise.kinds")
    for _ in range(2):
        with pytest.raises(ConfigError) as error:
            registry.load()
        assert error.value.code == "plugin.cannot-load"
        assert "broken_plugin" in error.value.message


def test_a_name_belongs_to_one_implementation() -> None:
    registry: Registry[str] = Registry("fedgsca.noise.kinds")
    registry.register("x", "first")
    registry.register("x", "first")
    with pytest.raises(ConfigError) as error:
        registry.register("x", "second")
    assert error.value.code == "plugin.duplicate-name"
    assert registry.load()["x"] == "first"
    registry.unregister("x")
    registry.register("x", "second")
    assert registry.load()["x"] == "second"


def test_a_plugin_cannot_take_the_name_of_a_built_in_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "impostor.py").write_text(
        "from fedgsca.methods.base import Method, register\n"
        "class Impostor(Method):\n    name = 'fedavg'\n"
        "register(Impostor)\n"
    )
    methods = load_methods()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        import_plugin("impostor")
    assert error.value.code == "plugin.duplicate-name"
    assert "fedgsca.methods.fedavg.FedAvg" in error.value.message
    assert "impostor.Impostor" in error.value.message
    assert load_methods() == methods


RELOADED_PLUGIN = """
from fedgsca.data.reader import READERS, Reader
from fedgsca.federation.base import register_engine
from fedgsca.methods.base import Method, register
from fedgsca.noise.base import NoiseKind, register_kind

@register
class Again(Method):
    name = "again"

@register_kind
class AgainKind(NoiseKind):
    letter = "AGAIN"

@register_engine("again", "an engine")
def run_again(config, out, *, jobs=1, observer=None): ...

def list_images(root, options): ...

READERS.register("again", Reader("again:ROOT", "a reader", list_images=list_images))
"""


def test_a_module_can_be_executed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "again_plugin.py").write_text(RELOADED_PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("again_plugin")
    try:
        importlib.reload(module)
        assert load_methods()["again"] is module.Again
    finally:
        METHODS.unregister("again")
        KINDS.unregister("AGAIN")
        ENGINES.unregister("again")
        READERS.unregister("again")


# ---- csv and Markdown ----


def test_csv_tables_fold_the_header_and_keep_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("File ;LABEL;\na.png;x\n\nb.png;y\n")
    table = read_csv_table(path)
    assert table.columns == ("file", "label")
    assert table.header == ("File", "LABEL")
    assert [(row.line, row.cells) for row in table.rows] == [
        (2, {"file": "a.png", "label": "x"}),
        (4, {"file": "b.png", "label": "y"}),
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "data.empty-csv"),
        ("file,File\n", "data.duplicate-column"),
        ("file,label\na,b,c\n", "data.csv-row-too-long"),
    ],
)
def test_csv_files_that_cannot_be_used(text: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_csv_table(path)
    assert error.value.code == code
    assert str(path) in error.value.message


def test_a_formula_is_defused() -> None:
    handle = io.BytesIO()
    write_cells(handle, ["=1+1", "a,b", 3])
    assert handle.getvalue() == b'\'=1+1,"a,b",3\n'


def test_markdown_cells_are_escaped() -> None:
    lines = markdown_table(["a", "b"], [["x|y", "1\n2"]])
    assert lines[0] == "| a | b |"
    assert lines[2] == "| x\\|y | 1 2 |"
    assert lines[-1] == ""
