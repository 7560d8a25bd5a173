"""The sections of a comparison's page. Modules of this package are found by themselves.

fedgsca.report.page_sections describes how to add one.
"""
