"""The sections of a run's page. The modules are discovered, so that a new plot is one file.

How to add a plot to the page of a run
--------------------------------------
Write one file in fedgsca/lab/report/run_sections/. For example, loss_curve.py:

    from fedgsca.lab.report.elements import PageSection, PlotGallery, PlotImage, run_section
    from fedgsca.lab.report.plots import (
        MAIN, figure_svg, format_round_axis, make_axes, with_plot_style
    )
    from fedgsca.lab.report.run_reader import LoadedRun

    @run_section(position=15)
    def loss_section(run: LoadedRun) -> PageSection | None:
        records = [record for record in run.test_rounds if record.loss is not None]
        if not records:
            return None  # a section without data is left out
        alt = f"Loss on the test set, {records[-1].loss:.2f} in the last round."
        gallery = PlotGallery([PlotImage(draw_loss(run), alt)], "half")
        return PageSection("loss", "Loss on the test set", "Lower is better.", [gallery])

    @with_plot_style
    def draw_loss(run: LoadedRun) -> str:
        figure, axes = make_axes(490, 250)
        records = [record for record in run.test_rounds if record.loss is not None]
        axes.plot([r.round + 1 for r in records], [r.loss for r in records], color=MAIN)
        format_round_axis(axes, run.num_rounds)
        axes.set_title("Mean loss")
        return figure_svg(figure, "loss")

Sections are printed in the order of their positions; those of this package use multiples of 5.
A section reads the records of the run (fedgsca.federation.records) and returns None where they lack
what it needs. The page of a comparison works the same way, with @comparison_section in
fedgsca/lab/report/comparison_sections/.

A section of another package is registered by the same decorator. Offer its module through the entry
point group `fedgsca.lab.report.run_sections` (or `.comparison_sections`), or name it in the
environment variable FEDGSCA_PLUGINS.
"""
