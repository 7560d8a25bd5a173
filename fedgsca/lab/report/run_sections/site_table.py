"""The sites: images, noise, labels that were not used, and which classes each of them holds."""

from __future__ import annotations

from fedgsca.lab.report.elements import (
    Collapsible,
    HeatMatrix,
    MatrixGroup,
    PageElement,
    PageSection,
    fold_long_table,
    row_shares,
)
from fedgsca.lab.report.number_text import count_text, percent_text
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.run_facts import knows_truth, noise_title, site_noise, unused_shares
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Cell, Table


@run_section(position=40)
def site_section(run: LoadedRun) -> PageSection | None:
    """One row per site of the setup."""
    if not run.setup.sites:
        return None
    blocks: list[PageElement] = [_site_table(run)]
    matrix = _class_matrix(run)
    if matrix is not None:
        note = "Percent of the images of the site, with the number below."
        blocks.append(Collapsible("Classes at each site", [MatrixGroup([matrix], note=note)]))
    intro = "Images never leave their site; only model weights and a few numbers do."
    return PageSection("sites", "The sites and their labels", intro, blocks)


def _site_table(run: LoadedRun) -> Table | Collapsible:
    shares = unused_shares(run.metrics, run.settings.noise_level)
    has_truth = knows_truth(run, run.setup.sites)
    head = ["Site", "Images"]
    if has_truth:
        head += ["Noise added", "Labels wrong"]
    if shares:
        head.append("Labels not trained on as given")
    rows: list[list[str | Cell]] = []
    for name, site in run.setup.sites.items():
        row: list[str | Cell] = [name, count_text(site.num_samples)]
        if has_truth:
            row.append(noise_title(site_noise(run, name)))
            row.append(percent_text(run.noise_rate(name), 1))
        if shares:
            row.append(percent_text(shares.get(name), 1))
        rows.append(row)
    caption = "Sites, in the order of the experiment"
    return fold_long_table(Table(caption, head, rows, words=(2,) if has_truth else ()))


def _class_matrix(run: LoadedRun) -> HeatMatrix | None:
    """Given labels by site and class; None if a site keeps them to itself, as in a deployment."""
    counts = [site.given_per_class or () for site in run.setup.sites.values()]
    if not all(counts) or not run.classes:
        return None
    return HeatMatrix(
        "Given labels by site and class",
        list(run.setup.sites),
        run.classes,
        [row_shares(row) for row in counts],
        counts,
        "site ↓ label →",
    )
