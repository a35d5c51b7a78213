"""A JSON file that is one array of objects, as Spider and BIRD are published."""

import json
from collections.abc import Iterator
from pathlib import Path

from curate.data import InputError, Raw, Reject, shown


def raw(path: Path) -> Iterator[Raw | Reject]:
    """The array's objects; `line` is the place in the array, from 1."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not data.strip():
        return
    try:
        values = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, list):
        raise InputError(f"{path}: not a JSON array of objects")
    for place, value in enumerate(values, start=1):
        if isinstance(value, dict):
            yield Raw(place, value)
        else:
            yield Reject(path.name, place, None, "invalid_json", "not a JSON object", shown(value))
