"""Signs of life: long work says how far it is, in a pipe one line a minute."""

from __future__ import annotations

import numpy as np
import pytest

from fedgsca.config import ModelConfig
from fedgsca.federation.progress import LineDisplay
from fedgsca.models.build import build_backbone
from fedgsca.models.features import extract
from fedgsca.support.console import activity, listen

MODEL = ModelConfig(name="cnn", frozen=True, feature_size=16)


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []

    def on_activity(self, phase: str, position: int, total: int, seconds: float) -> None:
        self.events.append((phase, position, total))


def test_work_says_how_far_it_is() -> None:
    recorder = Recorder()
    with listen(recorder), activity("decoding images", 5) as advance:
        advance(2)
        advance(3)
    with activity("nobody listens", 1) as advance:
        advance(1)
    assert recorder.events == [("decoding images", n, 5) for n in (0, 2, 5)]


def test_features_and_files_are_counted() -> None:
    recorder = Recorder()
    images = np.zeros((10, 16, 16, 3), np.uint8)
    with listen(recorder):
        backbone = build_backbone("cnn", seed=0)
        extract(backbone, MODEL, images, np.empty((10, 128), np.float32), batch=4)
    assert [position for _, position, _ in recorder.events] == [0, 4, 8, 10]


def test_a_pipe_gets_one_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay(runs=1)
    for second in range(200):
        lines.on_activity("decoding images", second, 200, float(second))
    lines.on_activity("decoding images", 200, 200, 200.0)
    texts = capsys.readouterr().err.splitlines()
    assert [text.partition(":")[2] for text in texts] == [
        " 10 of 200, 3 min 10 s left",
        " 70 of 200, 2 min 10 s left",
        " 130 of 200, 1 min 10 s left",
        " 190 of 200, 10 s left",
        " 200 of 200, took 3 min 20 s",
    ]


def test_short_work_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay(runs=1)
    lines.on_activity("decoding images", 0, 2, 0.0)
    lines.on_activity("decoding images", 2, 2, 3.0)
    assert capsys.readouterr().err == ""
