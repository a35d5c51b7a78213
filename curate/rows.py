"""The row schema and `row_id`.

A `row_id` is 32 hexadecimal digits in three fields, each a blake2b hash:

    8 digits of db_id | 8 digits of (db_id, sql) | 16 digits of (source, split, db_id, question, sql, occurrence)

so a hash range of `row_id` keeps the rows of one database, and the phrasings of one SQL, next to each
other: a part opens few databases and computes each distinct SQL once. The last field tells rows apart.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from curate.data import Reject

ROW_ID_DIGITS = 32
DATABASE_DIGITS = 8

SCHEMA: dict[str, pl.DataType] = {
    "row_id": pl.String(),
    "question": pl.String(),
    "sql": pl.String(),
    "gold_sqls": pl.List(pl.String()),
    "db_id": pl.String(),
    "dialect": pl.String(),
    "evidence": pl.String(),
    "language": pl.String(),
    "source": pl.String(),
    "split": pl.String(),
    "domain": pl.String(),
    "extra": pl.String(),  # JSON object of the input's other columns; unfolded again when emitting
}

COLUMNS = tuple(SCHEMA)

EMITTED = (
    "row_id",
    "question",
    "sql",
    "gold_sqls",
    "db_id",
    "dialect",
    "evidence",
    "language",
    "source",
    "split",
    "schema_text",
    "domain",
    "hardness",
    "difficulty",
    "stage",
    "pass_rate",
    "weight",
    "flags",
    "parent_id",
    "augmentation",
    "gold_digest",
)


def _hash(digits: int, *fields: object) -> str:
    data = "\x1f".join(str(field) for field in fields).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=digits // 2).hexdigest()


def row_id(source: str, split: str, db_id: str, question: str, sql: str, occurrence: int = 0) -> str:
    """Identity of a row: independent of file order; exact duplicates differ by `occurrence` (0, 1, ...)."""
    return _hash(8, db_id) + _hash(8, db_id, sql) + _hash(16, source, split, db_id, question, sql, occurrence)


def reject_id(reject: Reject) -> str:
    """Identity of an input line that never became a row."""
    return _hash(ROW_ID_DIGITS, reject.file, reject.line, reject.raw)


def frame_of(records: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a frame in the row schema, sorted by `row_id`.

    `records` hold question, sql and db_id; the other columns of the schema are filled in. Columns the
    schema does not know are kept in `extra`. Occurrence numbers follow the content of duplicates, not
    their order in the input.
    """
    return with_row_ids(plain_frame(records))


def plain_frame(records: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a frame in the row schema but for `row_id`, in the order given."""
    rows = [_filled(record) for record in records]
    return pl.DataFrame(rows, schema={c: t for c, t in SCHEMA.items() if c != "row_id"})


def _filled(record: Mapping[str, Any]) -> dict[str, Any]:
    sql = record.get("sql") or ""
    golds = [sql, *(g for g in record.get("gold_sqls") or () if g != sql)]
    extra = record.get("extra")
    if extra is None:
        extra = {k: v for k, v in record.items() if k not in SCHEMA}
    return {
        "question": record.get("question") or "",
        "sql": sql,
        "gold_sqls": golds,
        "db_id": record.get("db_id") or "",
        "dialect": record.get("dialect") or "sqlite",
        "evidence": record.get("evidence"),
        "language": record.get("language"),
        "source": record.get("source") or "data",
        "split": record.get("split") or "train",
        "domain": record.get("domain"),
        "extra": json.dumps(extra, ensure_ascii=False, sort_keys=True, default=str) if extra else None,
    }


def with_row_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` (the schema's columns but `row_id`) with `row_id`, sorted by it."""
    identity = ["source", "split", "db_id", "question", "sql"]
    rest = ["gold_sqls", "dialect", "evidence", "language", "domain", "extra"]
    order = frame.with_columns(pl.col("gold_sqls").list.join("\x1f").alias("gold_sqls")).select(
        *identity, *(pl.col(c).fill_null("") for c in rest)
    )
    frame = frame[order.with_row_index("i").sort([*identity, *rest])["i"]]
    occurrence = pl.int_range(pl.len()).over(identity).alias("occurrence")
    keys = frame.select(*identity, occurrence)
    ids = pl.Series("row_id", [row_id(*key) for key in keys.iter_rows()], dtype=pl.String)
    return frame.with_columns(ids).select(COLUMNS).sort("row_id")


def as_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """A notebook's frame made into rows: missing schema columns are filled, other columns are kept.

    Raises ValueError naming the columns if question, sql or db_id is missing.
    """
    missing = [c for c in ("question", "sql", "db_id") if c not in frame.columns]
    if missing:
        raise ValueError(f"a frame of rows needs the columns question, sql and db_id; missing: {missing}")
    if "row_id" in frame.columns:
        have = frame
        for column, dtype in SCHEMA.items():
            if column not in have.columns:
                have = have.with_columns(_default(column, dtype))
        return have.sort("row_id")
    others = [c for c in frame.columns if c not in SCHEMA]
    plain = frame.with_row_index("__position")
    for column, dtype in SCHEMA.items():
        if column not in plain.columns and column != "row_id":
            plain = plain.with_columns(_default(column, dtype))
    rows = with_row_ids(
        plain.with_columns(pl.col("__position").cast(pl.String).alias("extra")).drop("__position", *others)
    )
    position = rows["extra"].cast(pl.Int64)
    kept = frame[position.to_list()].select(others) if others else None
    rows = rows.with_columns(pl.lit(None, dtype=pl.String).alias("extra"))
    return rows.hstack(kept) if kept is not None else rows


def _default(column: str, dtype: pl.DataType) -> pl.Expr:
    if column == "gold_sqls":
        return pl.concat_list("sql").alias(column)
    value = {"dialect": "sqlite", "source": "data", "split": "train"}.get(column)
    return pl.lit(value, dtype=dtype).alias(column)
