"""Records of runs: `--track tensorboard`, `--track mlflow`, `--track wandb` (always offline).

Tracking only watches. It never changes a byte of a run and never stops one: whatever goes wrong is
a warning, and the run continues without it. Nothing is sent over a network unless an address of
another machine is given.
"""
