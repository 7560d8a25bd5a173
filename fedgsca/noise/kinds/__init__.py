"""One registered class per kind of label noise. The modules are discovered automatically."""
