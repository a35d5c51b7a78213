"""From input files to the first layer: rows in parts by hash range of `row_id`, and the lines refused."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curate import rows as row_schema
from curate.config import InputSpec, Pipeline
from curate.data import Reject, read
from curate.store import WHOLE, Layer, Part, content_key, fingerprint, ranges, to_parquet

TRAIN = "train"  # all inputs of role train together
BATCH = 20_000


@dataclass(frozen=True)
class Ingested:
    """`layer`: the rows. `rejects`: lines that never became a row. `read`: rows and rejects by input."""

    layer: Layer
    rejects: list[tuple[str, Reject]] = field(default_factory=list)
    read: dict[str, dict[str, Any]] = field(default_factory=dict)
    db_ids: tuple[str, ...] = ()  # of every input
    train_db_ids: tuple[str, ...] = ()


def ingest(pipeline: Pipeline, store: Path, limit: int | None = None, *, write: bool = True) -> Ingested:
    """Read every input. With `limit`, that many train rows, drawn by `row_id` and so whatever their order.

    Raises curate.data.InputError for a file that cannot be used at all.
    """
    rejects: list[tuple[str, Reject]] = []
    read_counts: dict[str, dict[str, Any]] = {}
    train: list[pl.DataFrame] = []
    frames: dict[str, pl.DataFrame] = {}
    for name, spec in pipeline.inputs.items():
        frame, refused = read_input(name, spec, is_train=name in pipeline.train)
        rejects += [(name, r) for r in refused]
        read_counts[name] = {"path": str(spec.path), "rows": frame.height, "rejected": len(refused)}
        if name in pipeline.train:
            train.append(frame)
        else:
            frames[name] = row_schema.with_row_ids(frame)
    rows = row_schema.with_row_ids(pl.concat(train))
    if limit is not None:
        rows = rows[rows["row_id"].str.slice(16).arg_sort()[:limit].sort().to_list()]
    parts: list[Part] = []
    for name, frame in {TRAIN: rows, **frames}.items():
        parts += _parts(name, frame, pipeline.part_rows, store, write)
    return Ingested(
        Layer("rows", row_schema.COLUMNS, tuple(parts)),
        rejects,
        read_counts,
        db_ids=_distinct(rows, *frames.values()),
        train_db_ids=_distinct(rows),
    )


def _distinct(*frames: pl.DataFrame) -> tuple[str, ...]:
    return tuple(pl.concat([f["db_id"] for f in frames]).unique().sort())


def read_input(name: str, spec: InputSpec, *, is_train: bool) -> tuple[pl.DataFrame, list[Reject]]:
    """The rows of one input (row schema without `row_id`), in file order, and the lines refused."""
    rejects: list[Reject] = []
    frames = list(_frames(name, spec, is_train, rejects))
    return (pl.concat(frames) if frames else row_schema.frame_of([]).drop("row_id")), rejects


def _frames(name: str, spec: InputSpec, is_train: bool, rejects: list[Reject]) -> Iterator[pl.DataFrame]:
    # A reference that names no split is its own split: its rows then never share a row_id with train's.
    split = spec.split or (None if is_train or spec.format in ("spider", "bird") else name)
    batch: list[dict[str, Any]] = []
    for item in read(
        spec.path,
        spec.format,
        columns=spec.columns,
        source=spec.source,
        split=split,
        dialect=spec.dialect,
        require_sql=is_train,
    ):
        if isinstance(item, Reject):
            rejects.append(item)
            continue
        batch.append(item)
        if len(batch) == BATCH:
            yield row_schema.plain_frame(batch)
            batch = []
    if batch:
        yield row_schema.plain_frame(batch)


def _parts(name: str, frame: pl.DataFrame, part_rows: int, store: Path, write: bool) -> list[Part]:
    ids = frame["row_id"]
    found = []
    # An input without rows still has one (empty) part, so that every step sees it.
    for span in ranges(ids, part_rows) or [WHOLE]:
        start = int(ids.search_sorted(span.first, side="left"))
        stop = int(ids.search_sorted(span.last, side="right"))
        piece = frame.slice(start, stop - start)
        path = store / "rows" / f"{content_key('rows', row_schema.COLUMNS, fingerprint(piece))}.parquet"
        if write and not path.exists():
            to_parquet(piece, path)
        found.append(Part(name, span, path, piece.height, 0))
    return found
