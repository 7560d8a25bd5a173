"""The sections of a comparison's page; fedgsca.lab.report.run_sections says how to add one."""
