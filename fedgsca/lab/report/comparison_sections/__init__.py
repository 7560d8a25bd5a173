"""The sections of a comparison's page. The modules are discovered automatically.

fedgsca.lab.report.page_sections describes how to add one.
"""
