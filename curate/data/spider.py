"""Spider: a JSON array with question, query and db_id, or the folder that holds it."""

from collections.abc import Iterator
from pathlib import Path

from curate.data import InputError, Raw, Reject, json_array

COLUMNS = {"sql": "query"}
SOURCE = "spider"

TRAIN_FILES = ("train_spider.json", "train.json", "train_others.json")


def split_of(path: Path) -> str:
    for split in ("dev", "test"):
        if path.suffix == ".json" and path.name.startswith(split):
            return split
    return "train"


def raw(path: Path) -> Iterator[Raw | Reject]:
    """A folder is read as its train files (train_spider.json or train.json, and train_others.json)."""
    if not path.is_dir():
        yield from json_array.raw(path)
        return
    found = [path / name for name in TRAIN_FILES if (path / name).is_file()]
    if not found:
        raise InputError(f"{path}: none of {', '.join(TRAIN_FILES)} is there")
    for file in found:
        yield from json_array.raw(file)
