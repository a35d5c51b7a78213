"""JSON lines (also .gz): one object a line. `records` is this with our own column names."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from curate.data import InputError, Raw, Reject

BOM = b"\xef\xbb\xbf"


def raw(path: Path) -> Iterator[Raw | Reject]:
    try:
        with opened(path) as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(BOM)
                if line.strip():
                    yield _parsed(path, number, line)
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def opened(path: Path) -> BinaryIO:
    """The file's bytes, unpacked where the name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def _parsed(path: Path, number: int, line: bytes) -> Raw | Reject:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Reject(path.name, number, None, "invalid_utf8", f"not UTF-8: {error}", text)
    except (ValueError, RecursionError) as error:
        return Reject(path.name, number, None, "invalid_json", f"not JSON: {error}", text)
    if not isinstance(value, dict):
        return Reject(path.name, number, None, "invalid_json", "not a JSON object", text)
    return Raw(number, value)
