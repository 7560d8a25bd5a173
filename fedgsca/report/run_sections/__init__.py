"""The sections of a run's page, one module each. Modules of this package are found by themselves.

fedgsca.report.page_sections describes how to add one.
"""
