"""The values of `--engine`, one file each. Light to import: the command line lists them."""
