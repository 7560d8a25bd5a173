"""The wheel in an empty environment outside the repository: demo, audit, predict. Slow."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run_command(*command: str | Path, cwd: Path, cache: Path) -> str:
    """The output of a command that must succeed, without anything of the repository on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["FEDGSCA_CACHE"] = str(cache)
    result = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_wheel_works_without_the_repository(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    cache = tmp_path / "cache"
    dist = tmp_path / "dist"
    build = (sys.executable, "-m", "build", "--wheel", "--outdir", dist, ROOT)
    run_command(*build, cwd=tmp_path, cache=cache)
    (wheel,) = dist.glob("fedgsca-*.whl")

    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / "bin"
    install = (scripts / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    run_command(*install, cwd=work, cache=cache)

    fedgsca = scripts / "fedgsca"
    origin = run_command(
        scripts / "python", "-c", "import fedgsca; print(fedgsca.__file__)", cwd=work, cache=cache
    )
    assert str(tmp_path / "venv") in origin

    output = run_command(fedgsca, "demo", "--no-ceiling", "--out", "demo", cwd=work, cache=cache)
    assert "pip install 'fedgsca[weights]'" in output, "the fallback is explained"
    assert (work / "demo" / "report.html").exists()
    (run,) = (work / "demo" / "cells").glob("fedgsca-*")
    output = run_command(fedgsca, "audit", run, cwd=work, cache=cache)
    assert "site-2" in output
    images = work / "images"
    images.mkdir()
    draw = (
        "from PIL import Image; import sys;"
        "[Image.new('RGB', (64, 64), (200, 20 * i, 180)).save(f'{sys.argv[1]}/{i}.png')"
        " for i in range(3)]"
    )
    run_command(scripts / "python", "-c", draw, images, cwd=work, cache=cache)
    output = run_command(fedgsca, "predict", run, images, cwd=work, cache=cache)
    assert output.count(".png") == 3
