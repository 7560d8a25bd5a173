"""report.html of a run and of a comparison.

html_page        writes the file; everything below is found from there
run_page         the page of a run; run_scores, run_labels, run_selection, run_record: its sections
comparison_page  the page of a comparison; figures: the same for print
run_reader       reads a run folder; run_facts derives numbers
elements         tables, galleries and other parts of a page, without HTML; templates/ renders them
plots            colours, style and inline SVG of all plots
"""
