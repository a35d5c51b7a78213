"""Hugging Face data sets: a folder written by `save_to_disk`, any other local data set, or a hub name.

`name:split` and `name:config:split` choose a part; without, the split `train` is read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from curate.data import InputError, Raw, Reject, parquet


def raw(path: Path) -> Iterator[Raw | Reject]:
    if path.is_dir() and not (path / "dataset_info.json").exists() and any(path.glob("*.parquet")):
        yield from parquet.raw(path)
        return
    for place, row in enumerate(_loaded(path), start=1):
        yield Raw(place, dict(row))


def _loaded(path: Path) -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise InputError('format datasets needs: pip install "nl2sql-curate[train]"') from error
    name, _, part = str(path).partition(":")
    config, _, split = part.rpartition(":")
    try:
        if Path(name).is_dir() and _saved(Path(name)):
            found = datasets.load_from_disk(name)
            return found[split or "train"] if isinstance(found, datasets.DatasetDict) else found
        return datasets.load_dataset(name, config or None, split=split or "train")
    except (OSError, ValueError, KeyError, ConnectionError) as error:
        raise InputError(f"data set {path}: cannot be loaded: {error}") from error


def _saved(folder: Path) -> bool:
    return (folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists()
