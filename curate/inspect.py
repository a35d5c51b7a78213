"""Reads of an output directory: the life of one row, and what changed between two runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curate.store import DEAD, DECISIONS, Layer, Part, Range, Table


class NotThere(Exception):
    """The output directory or the row is not there; the message says which."""


@dataclass(frozen=True)
class Life:
    """`row`: its input columns. `steps`: for each step what it wrote and decided, until the row left."""

    row_id: str
    input: str
    row: dict[str, Any]
    steps: list[tuple[str, dict[str, Any], list[dict[str, Any]]]]
    emitted: str | None  # `stage-2/part-00000.parquet`, or None


def why(row_id: str, out: Path) -> Life:
    """The life of the row whose `row_id` is, or begins with, `row_id`.

    Raises NotThere for an unknown or ambiguous id or an unfinished output directory.
    """
    index = _index(out)
    store = out / "store"
    row_id, input, row = _row(row_id, index, store, out)
    steps = []
    for layer in index[1:]:
        found = _of_row(layer, input, row_id, store)
        if found is None:
            continue
        written = {c: found.get(c) for c in layer["columns"]}
        steps.append((layer["layer"], written, found[DECISIONS] or []))
        if found[DEAD]:
            break
    return Life(row_id, input, row, steps, _shard_of(out, row_id))


def _index(out: Path) -> list[dict[str, Any]]:
    try:
        loaded: list[dict[str, Any]] = json.loads((out / "store" / "index.json").read_text())
    except FileNotFoundError:
        raise NotThere(f"{out} is not the output directory of a finished run") from None
    return loaded


def stored_table(out: Path) -> Table:
    """The rows of a finished run with all that its steps wrote. Raises NotThere."""
    store = out / "store"
    return Table(
        tuple(
            Layer(
                layer["layer"],
                tuple(layer["columns"]),
                tuple(
                    Part(
                        p["input"],
                        Range(int(p["low"], 16), int(p["high"], 16) + 1),
                        store / p["path"],
                        p["rows"],
                        p["dead"],
                    )
                    for p in layer["parts"]
                ),
            )
            for layer in _index(out)
        )
    )


def _row(row_id: str, index: list[dict[str, Any]], store: Path, out: Path) -> tuple[str, str, dict[str, Any]]:
    prefix = row_id.strip().lower()
    matches: list[tuple[str, dict[str, Any]]] = []
    for part in index[0]["parts"]:
        if part["low"][: len(prefix)] <= prefix <= part["high"][: len(prefix)]:
            rows = pl.scan_parquet(store / part["path"], glob=False)
            found = rows.filter(pl.col("row_id").str.starts_with(prefix)).collect()
            matches += [(part["input"], row) for row in found.to_dicts()]
    if not matches:
        matches = _refused(prefix, out)
    if not matches:
        raise NotThere(f"no row '{row_id}' in {out}")
    ids = sorted({row["row_id"] for _, row in matches})
    if len(ids) > 1:
        raise NotThere(f"'{row_id}' begins {len(ids)} row ids: {', '.join(ids[:3])}, ...; give more digits")
    input, row = matches[0]
    return ids[0], input, row


def _refused(prefix: str, out: Path) -> list[tuple[str, dict[str, Any]]]:
    path = out / "rejected.parquet"
    if not path.exists():
        return []
    found = pl.scan_parquet(path, glob=False).filter(pl.col("row_id").str.starts_with(prefix)).collect()
    return [("read", row) for row in found.to_dicts()]


def _of_row(layer: dict[str, Any], input: str, row_id: str, store: Path) -> dict[str, Any] | None:
    for part in layer["parts"]:
        if part["input"] == input and part["low"] <= row_id <= part["high"]:
            found = (
                pl.scan_parquet(store / part["path"], glob=False).filter(pl.col("row_id") == row_id).collect()
            )
            if found.height:
                return found.row(0, named=True)
    return None


def _shard_of(out: Path, row_id: str) -> str | None:
    for path in sorted((out / "shards").glob("*/part-*.parquet")):
        if pl.scan_parquet(path, glob=False).filter(pl.col("row_id") == row_id).collect().height:
            return str(path.relative_to(out / "shards"))
    return None


def diff(a: Path, b: Path) -> pl.DataFrame:
    """Rows that differ between two outputs: row_id, change, reason, before, after, question, sql.

    change is `entered`, `left`, `stage`, `weight` or `place` (train or validation). The reason is the
    decision that keeps the row out of the other side, or `not in the input`.
    """
    rows_a, rows_b = _emitted(a), _emitted(b)
    both = rows_a.join(rows_b, on="row_id", how="inner", suffix="_b")
    changes = [
        _one_sided(rows_b.join(rows_a, on="row_id", how="anti"), a, "entered"),
        _one_sided(rows_a.join(rows_b, on="row_id", how="anti"), b, "left"),
        *(_changed(both, column) for column in ("stage", "weight", "place")),
    ]
    return pl.concat(changes).sort("change", "row_id")


def _emitted(out: Path) -> pl.DataFrame:
    paths = sorted((out / "shards").glob("*/part-*.parquet"))
    if not paths:
        raise NotThere(f"{out} has no shards")
    return pl.concat(
        pl.read_parquet(p, columns=["row_id", "question", "sql", "stage", "weight"], glob=False).with_columns(
            pl.lit("validation" if p.parent.name == "validation" else "train").alias("place")
        )
        for p in paths
    )


_CHANGE = {
    "row_id": pl.String,
    "change": pl.String,
    "reason": pl.String,
    "before": pl.String,
    "after": pl.String,
    "question": pl.String,
    "sql": pl.String,
}


def _one_sided(rows: pl.DataFrame, other: Path, change: str) -> pl.DataFrame:
    ledger = pl.read_parquet(other / "ledger.parquet", glob=False).filter(pl.col("action") != "flag")
    reasons = ledger.unique("row_id", keep="first", maintain_order=True).select(
        "row_id", (pl.col("step") + ": " + pl.col("reason")).alias("reason")
    )
    place = pl.col("place") + ", stage " + pl.col("stage").cast(pl.String)
    nothing = pl.lit(None, dtype=pl.String)
    return rows.join(reasons, on="row_id", how="left", maintain_order="left").select(
        "row_id",
        pl.lit(change).alias("change"),
        pl.col("reason").fill_null("not in the input"),
        (nothing if change == "entered" else place).alias("before"),
        (place if change == "entered" else nothing).alias("after"),
        "question",
        "sql",
    )


def _changed(both: pl.DataFrame, column: str) -> pl.DataFrame:
    other = f"{column}_b"
    moved = both.filter(pl.col(column).ne_missing(pl.col(other)))
    return moved.select(
        "row_id",
        pl.lit(column).alias("change"),
        pl.lit(None, dtype=pl.String).alias("reason"),
        pl.col(column).cast(pl.String).alias("before"),
        pl.col(other).cast(pl.String).alias("after"),
        "question",
        "sql",
    )
