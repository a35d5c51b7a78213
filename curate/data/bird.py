"""BIRD: a JSON array with question, SQL, db_id, evidence and difficulty."""

from collections.abc import Iterator
from pathlib import Path

from curate.data import Raw, Reject, json_array

COLUMNS = {"sql": "SQL"}
SOURCE = "bird"


def split_of(path: Path) -> str:
    return "dev" if "dev" in path.name else "train"


def raw(path: Path) -> Iterator[Raw | Reject]:
    yield from json_array.raw(path)
