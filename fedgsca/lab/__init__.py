"""Grids of experiments: methods x noises x seeds. Every cell is a run folder of its own."""
