"""The noise that was added: true against given labels of every noisy site."""

from __future__ import annotations

from fedgsca.lab.report.elements import (
    MAX_ROWS_AT_ONCE,
    Collapsible,
    HeatMatrix,
    MatrixGroup,
    PageElement,
    PageSection,
    matrix_width,
    row_shares,
)
from fedgsca.lab.report.number_text import percent_text
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.run_facts import noise_title, site_noise
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.noise import NO_CLASS_NAME
from fedgsca.support.text import plural

# matrices on the open page, if two of them fit side by side; the others are folded
_OPEN_MATRICES = 4
# classes of a matrix that fits beside another one
_SMALL_MATRIX = 8


@run_section(position=100)
def noise_matrix_section(run: LoadedRun) -> PageSection | None:
    """For simulations with noise."""
    matrices = _matrices(run)
    if not matrices:
        return None
    num_open = _OPEN_MATRICES if len(run.classes) <= _SMALL_MATRIX else 1
    width = matrix_width(len(run.classes))
    blocks: list[PageElement] = [MatrixGroup(matrices[:num_open], width)]
    further = matrices[num_open:MAX_ROWS_AT_ONCE]
    if further:
        summary = f"{len(further)} more of {plural(len(matrices), 'noisy site')}"
        blocks.append(Collapsible(summary, [MatrixGroup(further, width)]))
    intro = (
        "What the noise did to the labels of every noisy site: rows are the true classes, columns "
        "the given labels."
    )
    return PageSection("transitions", "The noise that was added", intro, blocks)


def _matrices(run: LoadedRun) -> list[HeatMatrix]:
    matrices = []
    for site in run.sites:
        noise = run.realised_noise(site)
        if noise is None or not noise.rate:
            continue
        num_foreign = len(noise.counts) - len(run.classes)  # rows for images of no class
        if num_foreign not in (0, 1):
            continue
        title = noise_title(site_noise(run, site))
        caption = f"{site}: {title}, {percent_text(noise.rate, 1)} wrong"
        names = (*run.classes, *[NO_CLASS_NAME] * num_foreign)
        shares = [row_shares(row) for row in noise.counts]
        matrices.append(
            HeatMatrix(caption, names, tuple(run.classes), shares, noise.counts, "true ↓ given →")
        )
    return matrices
