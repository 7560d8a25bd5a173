"""When what the sites of a machine remember reaches the disk: after a site, or after a round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedgsca.federation.base import Reply
from fedgsca.federation.local import LocalEngine, SiteRunner
from fedgsca.support.files import FileBatch
from fedgsca.wire import Payload

PAYLOAD = Payload(0, {})


class WritingRunner(SiteRunner):
    """A runner whose sites write one file each and train nothing."""

    def __init__(self, folder: Path, broken_site: str = "") -> None:
        self.folder = folder
        self.broken_site = broken_site
        self.files = FileBatch()
        self._commits_each_site = True
        self.experiment = SimpleNamespace(sites={"a": None, "b": None})  # type: ignore[assignment]

    def _train_site(self, name: str, payload: Payload) -> Reply:
        self.files.write(self.folder / name, b"memory")
        if name == self.broken_site:
            raise ZeroDivisionError
        return Reply(name, None, "no update")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".tmp")


def test_a_site_s_files_are_there_when_its_reply_is(tmp_path: Path) -> None:
    runner = WritingRunner(tmp_path)
    runner.run_round("a", PAYLOAD)
    assert names(tmp_path) == ["a"]
    runner.run_round("b", PAYLOAD)
    assert names(tmp_path) == ["a", "b"] and not list(tmp_path.glob("*.tmp"))


def test_the_files_of_a_local_round_appear_together_at_its_end(tmp_path: Path) -> None:
    runner = WritingRunner(tmp_path)
    replies = LocalEngine(runner).exchange(PAYLOAD)
    next(replies)
    next(replies)
    assert names(tmp_path) == []
    assert list(replies) == []
    assert names(tmp_path) == ["a", "b"] and not list(tmp_path.glob("*.tmp"))


def test_a_method_that_takes_no_more_replies_loses_no_file(tmp_path: Path) -> None:
    replies = LocalEngine(WritingRunner(tmp_path)).exchange(PAYLOAD)
    next(replies)
    replies.close()  # type: ignore[attr-defined]
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_round_that_fails_leaves_nothing_and_can_be_repeated(
    is_local: bool, tmp_path: Path
) -> None:
    runner = WritingRunner(tmp_path, broken_site="b")
    with pytest.raises(ZeroDivisionError):
        if is_local:
            list(LocalEngine(runner).exchange(PAYLOAD))
        else:
            runner.run_round("b", PAYLOAD)
    assert list(tmp_path.iterdir()) == []
    runner.broken_site = ""
    list(LocalEngine(runner).exchange(PAYLOAD))
    assert names(tmp_path) == ["a", "b"]
