"""Records of runs for TensorBoard and MLflow: `--track tensorboard`, `--track mlflow`.

Tracking only watches. It never changes a byte of a run and never stops one: whatever goes wrong is
a warning, and the run continues without it. Nothing is sent over a network unless an address of
another machine is given.
"""
