"""CSV with a header line (also .gz). `line` is where a record begins, quoted newlines counted."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from curate.data import InputError, Raw, Reject
from curate.data.jsonl import opened

FIELD_BYTES = 10_000_000


def raw(path: Path) -> Iterator[Raw | Reject]:
    csv.field_size_limit(FIELD_BYTES)
    try:
        with opened(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            yield from _records(path, csv.reader(text))
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _records(path: Path, reader: "csv._reader") -> Iterator[Raw | Reject]:
    header = next(reader, None)
    if header is None:
        return
    end = reader.line_num
    while True:
        line = end + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            end = reader.line_num
            yield Reject(path.name, line, None, "invalid_csv", f"not CSV: {error}", "")
            continue
        end = reader.line_num
        if not fields:
            continue
        shown = ",".join(fields).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if any("\udc80" <= c <= "\udcff" for field in fields for c in field):
            yield Reject(path.name, line, None, "invalid_utf8", "not UTF-8", shown)
        elif len(fields) != len(header):
            detail = f"{len(fields)} fields, the header has {len(header)}"
            yield Reject(path.name, line, None, "invalid_csv", detail, shown)
        else:
            # An empty cell says nothing, as a missing key does in JSON.
            yield Raw(line, {k: v or None for k, v in zip(header, fields, strict=True)})
