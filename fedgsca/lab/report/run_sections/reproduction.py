"""What is needed to repeat the run: fingerprints, versions and the configuration."""

from __future__ import annotations

from fedgsca.lab.report.elements import Collapsible, PageElement, PageSection
from fedgsca.lab.report.number_text import count_text
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Table


@run_section(position=130)
def configuration_section(run: LoadedRun) -> PageSection | None:
    """From setup.json, result.json and config.toml."""
    blocks: list[PageElement] = []
    rows = [[name, value] for name, value in _facts(run).items() if value]
    if rows:
        head = ["Name", "Value"]
        blocks.append(Table("Fingerprints and versions", head, rows, words=(1,)))
    if run.settings.text:
        summary = "Full configuration (config.toml)"
        blocks.append(Collapsible(summary, text=run.settings.text))
    if not blocks:
        return None
    intro = (
        "On the same machine, the same configuration and data give the same model, byte for byte."
    )
    return PageSection("configuration", "How to repeat this run", intro, blocks)


def _facts(run: LoadedRun) -> dict[str, str]:
    setup = run.setup
    facts = {
        "Configuration": setup.fingerprint,
        "Data": setup.data.fingerprint,
        "Images": " × ".join(map(str, setup.data.shape)),
        "Test images": count_text(setup.test) if setup.data.name else "",
        "fedgsca": setup.version,
        "Machine": "",
    }
    if run.result is not None:
        facts["Configuration"] = setup.fingerprint or run.result.fingerprint
        facts["Data"] = setup.data.fingerprint or run.result.data_fingerprint
        facts["fedgsca"] = setup.version or run.result.version
        facts["Machine"] = run.result.machine
    return facts
