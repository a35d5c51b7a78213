"""Readers, one file a format. Each yields a row (a dict) or, for what is no row, a Reject.

Rows have question, sql, db_id, dialect, gold_sqls (`sql` first), evidence, language, source, split, domain, and
`extra`: the input's other columns.
"""

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# format -> module with `raw(path) -> Iterator[Raw | Reject]` and a COLUMNS mapping.
_MODULES = {
    "records": "jsonl",
    "spider": "spider",
    "bird": "bird",
    "jsonl": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
    "datasets": "huggingface",
}

FORMATS: tuple[str, ...] = tuple(_MODULES)

OPTIONAL_TEXT = ("dialect", "evidence", "language", "source", "split", "domain")
KNOWN = ("question", "sql", "db_id", "gold_sqls", *OPTIONAL_TEXT)


class InputError(Exception):
    """A whole input cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Reject:
    """What is no row. line: 1-based line of the file, or place in a JSON array. raw: what stood there."""

    file: str
    line: int | None
    field: str | None
    reason: str
    detail: str
    raw: str


@dataclass(frozen=True, slots=True)
class Raw:
    """One record as the file has it."""

    line: int
    values: Mapping[str, Any]


def read(
    path: Path | str,
    format: str,
    *,
    columns: Mapping[str, str] | None = None,
    source: str | None = None,
    split: str | None = None,
    dialect: str = "sqlite",
    require_sql: bool = True,
) -> Iterator[dict[str, Any] | Reject]:
    """Rows and rejects of one input, in file order.

    columns: canonical name -> the input's name, on top of what the format implies. source, split, dialect:
    for rows that do not say. require_sql=False: a row may be a question only (sql and db_id are then '').

    Raises InputError for a missing, empty or unreadable file and for a mapped column that is not there.
    """
    path = Path(path)
    module = importlib.import_module(f"curate.data.{_MODULES[format]}")
    mapping = {**getattr(module, "COLUMNS", {}), **(columns or {})}
    unknown = [name for name in mapping if name not in KNOWN]
    if unknown:
        raise InputError(f"columns: '{unknown[0]}' is not a column of ours{_nearest(unknown[0], KNOWN)}")
    defaults = {
        "dialect": dialect,
        "source": source or getattr(module, "SOURCE", None) or _stem(path),
        "split": split or getattr(module, "split_of", lambda _: "train")(path),
    }
    seen = False
    for item in module.raw(path):
        if isinstance(item, Raw):
            if not seen and columns:
                _mapped_columns_exist(path, item.values, columns)
            yield _row(path, item, mapping, defaults, require_sql)
        else:
            yield item
        seen = True
    if not seen:
        raise InputError(f"no rows: {path} is empty")


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or path.name


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{found[0]}'?)" if found else ""


def _mapped_columns_exist(path: Path, values: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    for ours, theirs in columns.items():
        if theirs not in values:
            near = _nearest(theirs, values)
            raise InputError(
                f"{path}: no column '{theirs}' (mapped to {ours}){near}; it has {', '.join(values)}"
            )


def _row(
    path: Path, raw: Raw, mapping: Mapping[str, str], defaults: Mapping[str, str], require_sql: bool
) -> dict[str, Any] | Reject:
    values = dict(raw.values)
    row: dict[str, Any] = {}
    for ours in KNOWN:
        theirs = mapping.get(ours, ours)
        row[ours] = values.pop(theirs, None)
    for name in ("question", "sql", "db_id"):
        value = row[name]
        if not require_sql and name != "question" and value in (None, ""):
            row[name] = ""
            continue
        problem = _text_problem(value)
        if problem:
            return _refused(path, raw, mapping.get(name, name), problem)
    for name in OPTIONAL_TEXT:
        value = row[name]
        if value is not None and not isinstance(value, str):
            return _refused(path, raw, mapping.get(name, name), f"is {_kind(value)}, not text")
        row[name] = value or defaults.get(name)
    golds = row["gold_sqls"]
    if golds is None or golds == []:
        golds = [row["sql"]]
    elif not isinstance(golds, list) or not all(isinstance(g, str) and g.strip() for g in golds):
        return _refused(path, raw, mapping.get("gold_sqls", "gold_sqls"), "is not a list of SQL texts")
    row["gold_sqls"] = [row["sql"], *(g for g in golds if g != row["sql"])]
    row["extra"] = values
    return row


def _text_problem(value: Any) -> str | None:
    if value is None:
        return "is missing"
    if not isinstance(value, str):
        return f"is {_kind(value)}, not text"
    if not value.strip():
        return "is empty"
    if "\0" in value:
        return "holds a NUL character"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no valid Unicode"
    return None


def _kind(value: Any) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _refused(path: Path, raw: Raw, field: str, detail: str) -> Reject:
    reason = "missing_field" if detail == "is missing" else "bad_field"
    return Reject(path.name, raw.line, field, reason, detail, shown(raw.values))


def shown(value: Any) -> str:
    """A record as text for the rejects."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
