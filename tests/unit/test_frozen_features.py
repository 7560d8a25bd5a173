"""Features of a frozen backbone are computed once, whatever happens to the labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.config import Config
from fedgsca.data.load import take_rows
from fedgsca.federation.data_source import load_table
from fedgsca.federation.samples import frozen_features
from tests.toys import toy_config, toy_images


def write_folder(root: Path) -> Path:
    """20 images in two class folders, without a split."""
    labels = np.arange(20) % 2
    for i, image in enumerate(toy_images(labels, seed=31)):
        folder = root / "ab"[labels[i]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    return root


def frozen_config(root: Path, seed: int = 0) -> Config:
    return toy_config("fedavg", frozen=True, data__source=str(root), noise__spec="0", seed=seed)


def test_another_split_or_other_labels_need_no_new_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_folder(tmp_path / "images")
    config = frozen_config(root)
    table = load_table(config)
    features = frozen_features(config, table)
    monkeypatch.setattr("fedgsca.models.features.extract", pytest.fail)
    other_seed = frozen_config(root, seed=1)
    other_split = load_table(other_seed)
    assert other_split.split.tolist() != table.split.tolist()
    assert np.array_equal(frozen_features(other_seed, other_split), features)
    corrected = replace(table, labels=1 - table.labels, fingerprint="other")
    assert np.array_equal(frozen_features(config, corrected), features)


def test_a_part_of_the_images_has_features_of_its_own(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images")
    config = frozen_config(root)
    table = load_table(config)
    features = frozen_features(config, table)
    rows = np.array([3, 1])
    part = take_rows(table, rows)
    assert np.allclose(frozen_features(config, part), features[rows], atol=1e-5)
