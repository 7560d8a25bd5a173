"""Grids of experiments: methods x noises x seeds, each cell a run folder of its own."""
