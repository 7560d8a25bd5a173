"""Every text of the review page and of the record to sign is in the table of texts."""

from __future__ import annotations

import re

import pytest

from fedgsca.errors import ConfigError
from fedgsca.labels.protocol import LANGUAGES, load_texts
from tests.review_texts import page_texts, protocol_texts


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "en"])
def test_nothing_is_untranslated(language: str) -> None:
    texts = load_texts(language)
    assert not (page_texts() | protocol_texts()) - texts.keys()
    for english, translation in texts.items():
        places = re.findall(r"\{\d\}", english)
        assert translation and sorted(re.findall(r"\{\d\}", translation)) == sorted(places), english


def test_english_needs_no_table_and_an_unknown_language_is_refused() -> None:
    assert load_texts("en") == load_texts("") == {}
    with pytest.raises(ConfigError) as error:
        load_texts("fy")
    assert error.value.code == "review.unknown-language"
