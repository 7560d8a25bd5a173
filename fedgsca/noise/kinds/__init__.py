"""One registered class per kind of label noise. Modules of this package are found by themselves."""
