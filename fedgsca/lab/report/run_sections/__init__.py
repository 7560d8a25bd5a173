"""The sections of a run's page, one module each. The modules are discovered automatically.

fedgsca.lab.report.page_sections describes how to add one.
"""
