"""`fedgsca resume --from`: forget the last rounds of a run, so that they are run again."""

from __future__ import annotations

from pathlib import Path

from fedgsca.errors import ConfigError
from fedgsca.federation import checkpoint
from fedgsca.federation.run_folder import RunFolder, read_config
from fedgsca.support.files import remove_quietly

# written at the end of a run
_RESULTS = ("result.json", "model.safetensors", "test-probabilities.npz", "report.html")


def rewind(folder: Path, first_round: int) -> None:
    """Go back to the checkpoint before `first_round`, counted from 1.

    What came after it is deleted: later checkpoints, lines of the log, and the result. A site's
    memory of later rounds is ignored and overwritten.
    """
    if first_round < 1:
        raise ConfigError(
            "cli.invalid-round",
            f"--from must be at least 1, got {first_round}",
            fix="give the number of the first round that is to be run again",
        )
    config = read_config(folder)
    with RunFolder(folder, config) as run_folder:
        checkpoint.go_back(run_folder.checkpoints, first_round - 1, config.fingerprint())
        for name in _RESULTS:
            remove_quietly(folder / name)
        run_folder.cut_metrics(first_round - 1)
