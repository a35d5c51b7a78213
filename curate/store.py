"""Parts: parquet files named by their content key, and the table that they make up.

The rows of an input are sorted by `row_id` and cut into hash ranges. A step's output for a range is one
part: `row_id`, the columns it writes, its decisions, and whether they make the row dead. Reading a column
for a range joins the parts that cover it, so every later question (resume, plan, why, report) is a read
of these files.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curate.atomic import write_atomic
from curate.ledger import DECISION

DIGITS = 32  # of a row_id
SPACE = 16**DIGITS
DATABASE_SPACE = 16 ** (DIGITS - 8)  # row_ids that share the database's digits
ROW_GROUP = 16_384

DECISIONS = "decisions"
DEAD = "dead"
DECISION_STRUCT = pl.List(
    pl.Struct(
        {
            "action": pl.String(),
            "reason": pl.String(),
            "detail": pl.String(),
            "partner_id": pl.String(),
            "score": pl.Float64(),
        }
    )
)


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Row ids from `low` up to but not including `high`, as integers."""

    low: int
    high: int

    def overlaps(self, other: "Range") -> bool:
        return self.low < other.high and other.low < self.high

    @property
    def first(self) -> str:
        return f"{self.low:0{DIGITS}x}"

    @property
    def last(self) -> str:
        return f"{self.high - 1:0{DIGITS}x}"

    def of(self, column: pl.Expr) -> pl.Expr:
        return column.is_between(pl.lit(self.first), pl.lit(self.last))


WHOLE = Range(0, SPACE)


def ranges(row_ids: pl.Series, part_rows: int, *, whole_databases: bool = False) -> list[Range]:
    """Cut sorted `row_ids` into ranges of at most `part_rows` rows by halving the id space.

    Halving means that adding rows changes only the ranges they fall in (one that overflows splits in
    two). With `whole_databases` no range separates rows of one database. Empty ranges are left out.
    """
    smallest = DATABASE_SPACE if whole_databases else 1
    found: list[Range] = []
    pending = [(WHOLE, 0, len(row_ids))]
    while pending:
        span, start, stop = pending.pop()
        if stop == start:
            continue
        if stop - start <= part_rows or span.high - span.low <= smallest:
            found.append(span)
            continue
        middle = (span.low + span.high) // 2
        cut = start + int(
            row_ids.slice(start, stop - start).search_sorted(f"{middle:0{DIGITS}x}", side="left")
        )
        pending.append((Range(middle, span.high), cut, stop))
        pending.append((Range(span.low, middle), start, cut))
    return found


def fingerprint(frame: pl.DataFrame) -> str:
    """Digest of a frame's column names, types and values, row by row."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr([(c, str(t)) for c, t in frame.schema.items()]).encode())
    for piece in frame.iter_slices(65_536):
        digest.update(piece.write_ndjson().encode())
    return digest.hexdigest()


def content_key(*parts: Any) -> str:
    """Digest of JSON-able values: the name of what they determine."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a layer."""

    input: str
    range: Range
    path: Path
    rows: int
    dead: int  # rows that the step dropped or could not decide


@dataclass(frozen=True, slots=True)
class Layer:
    """What one step wrote: the columns, and the parts that hold them."""

    name: str
    columns: tuple[str, ...]
    parts: tuple[Part, ...] = ()

    def covering(self, input: str, span: Range) -> list[Part]:
        return [p for p in self.parts if p.input == input and p.range.overlaps(span)]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows (first layer) and every layer written since."""

    layers: tuple[Layer, ...]

    def with_layer(self, layer: Layer) -> "Table":
        return Table((*self.layers, layer))

    def restricted(self, input: str, span: Range, others: Sequence[str] = ()) -> "Table":
        """Only the parts that reading `span` of `input`, or all of `others`, needs."""
        return Table(
            tuple(
                Layer(
                    layer.name,
                    layer.columns,
                    tuple(
                        p
                        for p in layer.parts
                        if p.input in others or (p.input == input and p.range.overlaps(span))
                    ),
                )
                for layer in self.layers
            )
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c for layer in self.layers for c in layer.columns))

    def read(
        self, input: str, span: Range, columns: Iterable[str], *, dead_too: bool = False
    ) -> pl.DataFrame:
        """`row_id` and `columns` of the live rows of a range, sorted by `row_id`.

        A column written twice is the later step's. Columns that no layer wrote are left out.
        """
        wanted = [c for c in dict.fromkeys(columns) if c != "row_id"]
        writer = {c: i for i, layer in enumerate(self.layers) for c in layer.columns if c in wanted}
        frame = self._layer_frame(0, input, span, [c for c in wanted if writer.get(c) == 0])
        for i in range(1, len(self.layers)):
            mine = [c for c in wanted if writer.get(c) == i]
            parts = self.layers[i].covering(input, span)
            kills = not dead_too and any(p.dead for p in parts)
            if mine and parts:
                frame = frame.join(
                    self._layer_frame(i, input, span, mine), on="row_id", how="left", maintain_order="left"
                )
            if kills:
                gone = _scan(parts, span, [DEAD]).filter(pl.col(DEAD)).select("row_id").collect()
                frame = frame.join(gone, on="row_id", how="anti", maintain_order="left")
        return frame.select("row_id", *(c for c in wanted if c in frame.columns))

    def _layer_frame(self, index: int, input: str, span: Range, columns: list[str]) -> pl.DataFrame:
        layer = self.layers[index]
        parts = layer.covering(input, span)
        if not parts:
            raise LookupError(f"layer '{layer.name}' has no part of input '{input}'")
        whole = [p for p in parts if not (columns and _lost(p, columns))]
        if not whole:
            return pl.DataFrame(schema={"row_id": pl.String, **dict.fromkeys(columns, pl.Null)})
        return _scan(whole, span, columns).collect()

    def decisions(self, index: int, input: str, span: Range = WHOLE) -> pl.DataFrame:
        """The decisions of layer `index` in a range, a line each, sorted by `row_id`."""
        parts = self.layers[index].covering(input, span)
        if not parts:
            return _no_decisions()
        lines = (
            _scan(parts, span, [DECISIONS])
            .filter(pl.col(DECISIONS).list.len() > 0)
            .select("row_id", DECISIONS)
            .explode(DECISIONS)
            .unnest(DECISIONS)
            .collect()
        )
        return lines if lines.height else _no_decisions()


def _no_decisions() -> pl.DataFrame:
    return pl.DataFrame(schema=DECISION)


def _scan(parts: Sequence[Part], span: Range, columns: Sequence[str]) -> pl.LazyFrame:
    """`row_id` and `columns` of the rows of a range, part after part."""
    scans = []
    for part in sorted(parts, key=lambda p: p.range):
        scan = pl.scan_parquet(part.path, glob=False).select("row_id", *columns)
        inside = span.low <= part.range.low and part.range.high <= span.high
        scans.append(scan if inside else scan.filter(span.of(pl.col("row_id"))))
    return pl.concat(scans)


def _lost(part: Part, columns: Sequence[str]) -> bool:
    """A part whose worker died has no columns of its step; its rows are dead, so nobody needs them."""
    return part.dead == part.rows > 0 and not set(columns) <= set(pl.read_parquet_schema(part.path))


def to_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame atomically; the same frame gives the same bytes."""
    buffer = io.BytesIO()
    frame.rechunk().write_parquet(
        buffer, compression="zstd", compression_level=3, row_group_size=ROW_GROUP, statistics=True
    )
    write_atomic(path, buffer.getvalue())


def pack(
    row_ids: pl.Series, columns: pl.DataFrame | None, decisions: pl.DataFrame | None, writes: Sequence[str]
) -> pl.DataFrame:
    """A step's output as the frame of a part: row_id, the written columns, decisions, dead.

    Raises ValueError where the output names rows it was not given, repeats a row, or misses a column.
    """
    frame = pl.DataFrame({"row_id": row_ids})
    if writes:
        frame = frame.join(_checked(row_ids, columns, writes), on="row_id", how="left", maintain_order="left")
    if decisions is None or decisions.is_empty():
        return frame.with_columns(
            pl.lit(None, dtype=DECISION_STRUCT).alias(DECISIONS), pl.lit(False).alias(DEAD)
        )
    lines = decisions.select(pl.col(c).cast(t) for c, t in DECISION.items())
    strange = lines.join(frame, on="row_id", how="anti")
    if strange.height:
        raise ValueError(f"a decision names row {strange['row_id'][0]!r}, which the step was not given")
    bad = lines.filter(~pl.col("action").is_in(["drop", "flag", "error"]))
    if bad.height:
        raise ValueError(f"a decision's action is {bad['action'][0]!r}; it must be drop, flag or error")
    fields = [c for c in DECISION if c != "row_id"]
    grouped = (
        lines.sort(["row_id", *fields], nulls_last=True)
        .group_by("row_id", maintain_order=True)
        .agg(pl.struct(fields).alias(DECISIONS), (pl.col("action") != "flag").any().alias(DEAD))
    )
    return frame.join(grouped, on="row_id", how="left", maintain_order="left").with_columns(
        pl.col(DECISIONS).cast(DECISION_STRUCT), pl.col(DEAD).fill_null(False)
    )


def _checked(row_ids: pl.Series, columns: pl.DataFrame | None, writes: Sequence[str]) -> pl.DataFrame:
    if columns is None:
        raise ValueError(f"the step declares that it writes {list(writes)} but returned no columns")
    missing = [c for c in ("row_id", *writes) if c not in columns.columns]
    if missing:
        raise ValueError(f"the step declares columns {missing} that its output does not have")
    if columns["row_id"].is_duplicated().any():
        raise ValueError("the step returned a row twice")
    if not columns["row_id"].is_in(row_ids.implode()).all():
        raise ValueError("the step returned a row it was not given")
    return columns.select("row_id", *writes)
