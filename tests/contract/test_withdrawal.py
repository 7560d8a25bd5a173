"""A patient leaves a running study: nothing of them comes back, and the study goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.config import Config, load_config
from fedgsca.data.cache import list_cache
from fedgsca.data.load import load
from fedgsca.errors import DataError, RunFolderError
from fedgsca.federation.base import Reply
from fedgsca.federation.changed_samples import read_changes
from fedgsca.federation.deployment import prepare_coordinator
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import RunFolder, read_rounds
from fedgsca.federation.simulation import prepare
from fedgsca.hospital import answers
from fedgsca.hospital.answers import ResidentSite
from fedgsca.hospital.ledger import Ledger
from fedgsca.hospital.messages import terms_of
from fedgsca.hospital.settings import SiteSettings, read_settings, state_folder
from fedgsca.labels.audits import audit_run
from fedgsca.labels.withdrawal import withdraw
from fedgsca.methods.base import load_methods
from fedgsca.methods.site_store import Store
from fedgsca.support.csv_table import read_label_lines
from fedgsca.support.files import try_lock
from fedgsca.wire import Payload
from tests.toys import CLASSES, outcome, toy_config, toy_images

PATIENT = "patient-03"
SECRET = "Schoellermann-7731"  # a name that occurs nowhere else


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """24 patients with six images each, and a cache of the test's own."""
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    return write_images(tmp_path / "images")


def write_images(root: Path) -> Path:
    from PIL import Image

    (root / "img").mkdir(parents=True)
    lines = ["file,label,group"]
    labels = np.arange(144) % CLASSES
    for i, picture in enumerate(toy_images(labels, seed=4)):
        patient = SECRET if i // 6 == 5 else f"patient-{i // 6:02d}"
        name = f"img/{patient}-{i:03d}.png"
        Image.fromarray(picture).save(root / name)
        lines.append(f"{name},class {labels[i]},{patient}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def config_of(images: Path, method: str = "fedgsca-e", **sets: Any) -> Config:
    keys: dict[str, Any] = {
        "data__partition": "stratified",
        "audit__enabled": True,
        "train__rounds": 10,
    }
    return toy_config(method, source=images, **(keys | sets))


@pytest.mark.parametrize("method", sorted(load_methods()))
def test_every_method_goes_on_deterministically(method: str, images: Path, tmp_path: Path) -> None:
    config = config_of(images, method, train__rounds=7, train__loss="ce")
    run(config, tmp_path / "run", stop_after=4)
    withdraw([PATIENT], tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    run(config, tmp_path / "run")
    for rounds in (5, 7):  # with a restart in between, and from the changed memory only
        run(config, tmp_path / "again", stop_after=rounds)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "again")
    sizes = [len(samples) for samples in prepare(config, folder=tmp_path / "run").sites.values()]
    arrays = [
        (name, len(array), size)
        for size, site in zip(sizes, sorted((tmp_path / "run" / "store").iterdir()), strict=False)
        for name, array in Store(site / "evidence").read_before(99).items()
        if name in ("folds", "posterior", "opinion_sum")
    ]
    assert all(length == size for _, length, size in arrays)


def test_the_patient_is_in_no_file_and_others_keep_their_memory(
    images: Path, tmp_path: Path
) -> None:
    config = config_of(images)
    folder = tmp_path / "run"
    run(config, folder)
    audit_run(folder)
    before = prepare(config)
    old = {
        name: Store(folder / "store" / name / "evidence").read_before(99) for name in before.names
    }
    assert any(mentions(path, SECRET) for path in files_below(folder))
    pixels = [row.tobytes() for row in patient_pixels(images)]

    result = withdraw([SECRET], folder)

    assert result.num_images == 6
    assert not [path for path in files_below(folder) if mentions(path, SECRET)]
    (change,) = read_changes(folder)
    assert change.patients == 1 and change.num_removed == 6 and change.rounds == 10
    after = prepare(config, folder=folder)
    for name in after.names:
        kept = np.isin(before.table.ids[before.rows[name]], after.table.ids[after.rows[name]])
        new = Store(folder / "store" / name / "evidence").read_before(99)
        for key in ("folds", "posterior", "opinion_sum"):
            assert np.array_equal(new[key], old[name][key][kept])
        labels = before.sites[name].labels[kept]
        assert np.array_equal(after.sites[name].labels, labels)
    audits = audit_run(folder)
    assert sum(audit.header.num_labels for audit in audits) == sum(map(len, after.rows.values()))
    cached = b"".join(file.path.read_bytes() for file in list_cache())
    assert cached and not any(row in cached for row in pixels)
    assert not [path for path in files_below(folder) if mentions(path, SECRET)]


def patient_pixels(images: Path) -> Iterator[np.ndarray]:
    table = load(str(images))
    for row in np.flatnonzero(table.groups == SECRET):
        yield np.asarray(table.images[row])


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def mentions(path: Path, name: str) -> bool:
    content = path.read_bytes()
    return any(name.encode(code) in content for code in ("utf-8", "utf-32-le"))


def test_a_new_export_or_a_renamed_copy_does_not_bring_a_patient_back(
    images: Path, tmp_path: Path
) -> None:
    withdraw([SECRET], images)
    assert SECRET not in (images / "withdrawn.json").read_text()
    lines = (images / "labels.csv").read_text().splitlines()
    own = [line for line in lines if SECRET in line]
    copy = images / "img" / "renamed.png"
    shutil.copy(images / own[0].split(",")[0], copy)
    (images / own[1].split(",")[0]).unlink()  # its line may stay
    (images / "labels.csv").write_text(
        "\n".join([*lines, "img/renamed.png,class 0,somebody"]) + "\n"
    )
    table = load(str(images))
    assert len(table) == 138 and table.groups is not None and SECRET not in table.groups
    assert any("withdrawn" in note for note in table.notes)


def test_a_run_whose_images_are_deleted_follows_them(images: Path, tmp_path: Path) -> None:
    """The order does not matter: first the files and lines, then the command."""
    config = config_of(images, train__rounds=6)
    run(config, tmp_path / "run", stop_after=4)
    lines = (images / "labels.csv").read_text().splitlines()
    kept = [line for line in lines if SECRET not in line]
    (images / "labels.csv").write_text("\n".join(kept) + "\n")
    for path in images.glob(f"img/{SECRET}*"):
        path.unlink()
    with pytest.raises(RunFolderError, match="withdraw"):
        run(config, tmp_path / "run")
    withdraw([], tmp_path / "run")
    assert run(config, tmp_path / "run") is not None
    assert read_changes(tmp_path / "run")[0].num_removed == 6


def test_the_command_can_be_repeated_and_refuses_what_it_does_not_know(
    images: Path, tmp_path: Path
) -> None:
    config = config_of(images, train__rounds=6)
    run(config, tmp_path / "run", stop_after=3)
    with pytest.raises(DataError, match="without images"):
        withdraw(["patient-99"], tmp_path / "run")
    assert not (images / "withdrawn.json").exists()
    withdraw([PATIENT], images)  # as if it had been cut short after the list
    withdraw([PATIENT], tmp_path / "run")
    assert withdraw([PATIENT], tmp_path / "run").num_images == 0
    assert run(config, tmp_path / "run") is not None
    with RunFolder(tmp_path / "run", config), pytest.raises(RunFolderError):
        withdraw(["patient-04"], tmp_path / "run")


def test_lists_of_corrected_labels_lose_the_lines(images: Path, tmp_path: Path) -> None:
    corrected = tmp_path / "corrected.csv"
    shutil.copy(images / "labels.csv", corrected)
    config = config_of(images, train__rounds=6, data__labels=str(corrected))
    run(config, tmp_path / "run", stop_after=3)
    withdraw([SECRET], tmp_path / "run")
    assert not any(SECRET in line.image_id for line in read_label_lines(corrected))
    assert len(read_label_lines(corrected)) == 138
    assert run(config, tmp_path / "run") is not None


def test_labels_must_not_change_with_a_withdrawal(images: Path, tmp_path: Path) -> None:
    config = config_of(images, train__rounds=6, noise__spec="0")
    run(config, tmp_path / "run", stop_after=3)
    text = (images / "labels.csv").read_text()
    (images / "labels.csv").write_text(text.replace("class 1,patient-07", "class 2,patient-07"))
    with pytest.raises(DataError) as error:
        withdraw([PATIENT], tmp_path / "run")
    assert error.value.code == "withdraw.labels-changed"
    (images / "labels.csv").write_text(text)
    withdraw([PATIENT], tmp_path / "run")
    assert run(config, tmp_path / "run") is not None


# ---- hospitals ----


class HospitalEngine:
    """Two hospitals with images of their own answer as in a deployment."""

    def __init__(self, config: Config, sites: dict[str, SiteSettings]) -> None:
        self.terms = terms_of(prepare_coordinator(config))
        self.sites = sites

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        for name in sites or sorted(self.sites):
            yield self._site(name).reply("train", self.terms, payload)

    def evaluate_at_sites(self, payload: Payload) -> Iterator[Reply]:
        for name in sorted(self.sites):
            yield self._site(name).reply("test", self.terms, payload)

    def _site(self, name: str) -> ResidentSite:
        """A new one for each message: a site worker restarts when its data changes."""
        return ResidentSite(lambda: self.sites[name])

    def close(self) -> None:
        pass


@pytest.fixture
def consortium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """site.toml of two hospitals."""
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    files = {}
    for name in ("north", "south"):
        data = write_images(tmp_path / name / "images")
        files[name] = tmp_path / name / "site.toml"
        files[name].write_text(
            f'name = "{name}"\ndata = "{data}"\nstate = "{tmp_path / name / "state"}"\n'
        )
    return files


def train(config: Config, out: Path, files: dict[str, Path], rounds: int) -> list[RoundRecord]:
    sites = {name: read_settings(path) for name, path in files.items()}
    view = prepare_coordinator(config)
    run(config, out, engine=HospitalEngine(config, sites), experiment=view, stop_after=rounds)
    return read_rounds(out)


def consortium_config(**sets: Any) -> Config:
    keys: dict[str, Any] = {
        "method": "fedgsca-e",
        "data__source": "sites",
        "data__classes": [f"class {c}" for c in range(CLASSES)],
        "data__image_size": 12,
        "federation__sites": ["north", "south"],
        "evidence__backbone": "none",
        "train__rounds": 8,
        "train__threads": 1,
        "train__device": "cpu",
    }
    return load_config(**(keys | sets))


def test_a_hospital_goes_on_without_a_patient(consortium: dict[str, Path], tmp_path: Path) -> None:
    config = consortium_config()
    train(config, tmp_path / "run", consortium, 4)
    images = consortium["north"].parent / "images"
    splits = site_splits(config, consortium["north"])

    for path in images.glob(f"img/{SECRET}*"):  # somebody was quicker than the command
        path.unlink()
    lines = (images / "labels.csv").read_text().splitlines()
    kept = [line for line in lines if SECRET not in line]
    (images / "labels.csv").write_text("\n".join(kept) + "\n")
    refused = train(config, tmp_path / "run", consortium, 5)[4].refusals
    assert list(refused) == ["north"] and "changed" in refused["north"]

    withdraw([], consortium["north"])
    entry = Ledger(read_settings(consortium["north"])).entries()[-1]
    assert entry.event == "withdrawn" and entry.fields[1] == "6 images less"
    later = site_splits(config, consortium["north"])
    assert later == {name: split for name, split in splits.items() if SECRET not in name}
    records = train(config, tmp_path / "run", consortium, 8)
    assert not any(record.refusals for record in records[5:])
    sizes = [record.sites["north"].num_samples for record in records if "north" in record.sites]
    assert sizes[0] - sizes[-1] == sum(
        split == "train" for name, split in splits.items() if SECRET in name
    )
    assert not [path for path in files_below(tmp_path / "north") if mentions(path, SECRET)]
    audit = audit_run(consortium["north"])[0]
    assert audit.header.num_labels == sizes[-1]


def site_splits(config: Config, file: Path) -> dict[str, str]:
    settings = read_settings(file)
    folder = state_folder(settings, config.fingerprint())
    table = answers.open_own_experiment(config, settings, folder).table
    return dict(zip(map(str, table.ids), map(str, table.split), strict=True))


def test_added_images_need_a_yes_and_an_agreed_number(
    consortium: dict[str, Path], tmp_path: Path
) -> None:
    config = consortium_config(aggregation__max_images={"north": 130})
    train(config, tmp_path / "run", consortium, 4)
    images = consortium["north"].parent / "images"
    add_patient(images, "patient-90", 9)
    with pytest.raises(DataError, match="--added"):
        withdraw([], consortium["north"])
    withdraw([], consortium["north"], takes_new=True)
    records = train(config, tmp_path / "run", consortium, 8)
    first, last = (records[i].sites["north"].num_samples for i in (0, -1))
    assert last == first + 9 and not any(record.refusals for record in records)
    add_patient(images, "patient-91", 30)
    withdraw([], consortium["north"], takes_new=True)
    shutil.rmtree(tmp_path / "run")
    refused = train(config, tmp_path / "run", consortium, 1)[0].refusals
    assert "agreed" in refused["north"]


def add_patient(images: Path, patient: str, count: int) -> None:
    from PIL import Image

    labels = np.arange(count) % CLASSES
    with open(images / "labels.csv", "a") as handle:
        for i, picture in enumerate(toy_images(labels, seed=len(patient) + count)):
            Image.fromarray(picture).save(images / "img" / f"{patient}-{i}.png")
            handle.write(f"img/{patient}-{i}.png,class {labels[i]},{patient}\n")


def test_a_running_service_is_not_disturbed(consortium: dict[str, Path], tmp_path: Path) -> None:
    train(consortium_config(), tmp_path / "run", consortium, 3)
    lock = try_lock(consortium["north"].parent / "state" / "worker.lock")
    assert lock is not None
    with pytest.raises(RunFolderError) as error:
        withdraw([PATIENT], consortium["north"])
    lock.release()
    assert error.value.code == "withdraw.site-is-running"
    assert not (consortium["north"].parent / "images" / "withdrawn.json").exists()
