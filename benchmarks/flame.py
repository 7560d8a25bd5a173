"""A flame graph of a run on frozen features: where its CPU time goes, as an SVG file.

    python -m benchmarks.flame --method fedgsca --rounds 20 --out after.svg

Every 2 ms of CPU time the stack of the main thread is noted, with the CPU time of all threads since
the last note, so that other work on the machine does not matter. A box is as wide as the share of
the time that a function and everything below it took; hover over a box for its numbers. With the
PYTHONPATH of another checkout and this file's path, the same picture of another version.
"""

from __future__ import annotations

import argparse
import html
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

INTERVAL = 0.002
WIDTH, ROW, MARGIN = 1200.0, 17, 24
# narrower boxes are left out
MIN_WIDTH = 1.5
# width of a letter
LETTER = 6.3


@dataclass
class Box:
    """A function in one place of the stack, and the seconds that it took."""

    name: str
    seconds: float = 0.0
    children: dict[str, Box] = field(default_factory=dict)

    def add(self, names: list[str], seconds: float) -> None:
        """Add the time of one stack, from the outermost function inwards."""
        box = self
        box.seconds += seconds
        for name in names:
            box = box.children.setdefault(name, Box(name))
            box.seconds += seconds

    @property
    def depth(self) -> int:
        """Rows of the picture."""
        return 1 + max((child.depth for child in self.children.values()), default=0)


class Sampler:
    """Notes stacks while it is entered."""

    def __init__(self) -> None:
        self.root = Box("all")
        self._last = 0.0

    def __enter__(self) -> Sampler:
        self._last = time.process_time()
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.process_time()
        names = []
        while frame is not None:
            names.append(describe(frame.f_code))
            frame = frame.f_back
        self.root.add(names[::-1], now - self._last)
        self._last = now


def describe(code: CodeType) -> str:
    """The function and its file, such as `train (train.py)`."""
    return f"{code.co_qualname} ({Path(code.co_filename).name})"


def draw(root: Box, title: str) -> str:
    """The picture as SVG; the outermost function is at the bottom."""
    height = root.depth * ROW + 2 * MARGIN
    boxes = "\n".join(_draw_box(root, 0.0, WIDTH / root.seconds, height - MARGIN, root.seconds))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}"
 font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="#fff"/>
<text x="6" y="16" font-size="13">{html.escape(title)}</text>
{boxes}
</svg>
"""


def _draw_box(box: Box, x: float, scale: float, y: int, total: float) -> Iterator[str]:
    width = box.seconds * scale
    if width < MIN_WIDTH:
        return
    label = html.escape(box.name)
    share = f"{box.seconds:.2f} s, {box.seconds / total:.1%}"
    yield f'<g><title>{label}: {share}</title><rect x="{x:.1f}" y="{y - ROW}" width="{width:.1f}"'
    yield f' height="{ROW - 1}" fill="{_colour(box.name)}"/>'
    num_letters = int(width / LETTER)
    if num_letters > 3:
        yield f'<text x="{x + 2:.1f}" y="{y - 4}">{html.escape(box.name[:num_letters])}</text>'
    yield "</g>"
    for child in sorted(box.children.values(), key=lambda item: item.name):
        yield from _draw_box(child, x, scale, y - ROW, total)
        x += child.seconds * scale


def _colour(name: str) -> str:
    """A warm colour that depends on the name alone."""
    tone = sum(name.encode()) % 40
    return f"hsl({20 + tone} 80% {68 + tone % 10}%)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="fedgsca")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1000, help="samples of each of four sites")
    parser.add_argument("--title", default="")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file")
    options = parser.parse_args()

    from fedgsca.config import load_config
    from fedgsca.federation.rounds import run
    from fedgsca.federation.simulation import prepare

    sets = [
        "model.frozen=true",
        f"data.train={4 * options.samples}",
        "data.test=800",
        f"train.rounds={options.rounds}",
    ]
    config = load_config(
        None, sets, method=options.method, data__source="synthetic", noise__spec="0-S40-P20-C20"
    )
    experiment = prepare(config)
    with tempfile.TemporaryDirectory() as folder, Sampler() as sampler:
        run(config, Path(folder) / "run", experiment=experiment)
    seconds = sampler.root.seconds
    title = f"{options.title} {options.method}, {options.rounds} rounds, 4 x {options.samples:,}"
    options.out.write_text(draw(sampler.root, f"{title.strip()}: {seconds:.1f} s of CPU time"))
    print(f"{options.out}: {seconds:.1f} s of CPU time")


if __name__ == "__main__":
    main()
