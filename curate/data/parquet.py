"""Parquet: a file, or a folder of them. `line` is the row's place, from 1."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from curate.data import InputError, Raw, Reject

BATCH = 10_000


def raw(path: Path) -> Iterator[Raw | Reject]:
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no parquet file is there")
    place = 0
    for file in files:
        for row in _rows(file):
            place += 1
            yield Raw(place, row)


def _rows(file: Path) -> Iterator[dict[str, object]]:
    if file.is_file() and file.stat().st_size == 0:
        return
    try:
        scan = pl.scan_parquet(file, glob=False)
        total = scan.select(pl.len()).collect().item()
        for start in range(0, total, BATCH):
            yield from scan.slice(start, BATCH).collect().iter_rows(named=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{file}: not a readable parquet file: {error}") from error
