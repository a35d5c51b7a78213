"""Decisions of a person on gold SQL: the file that `curate audit` writes, filled in, and read back."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from curate.rows import ROW_ID_DIGITS

Decision = Literal["keep", "drop", "fix"]
DECISIONS = ("keep", "drop", "fix")
COLUMNS = ("row_id", "decision", "fixed_sql", "note")  # of the file; it may have others


class ReviewError(ValueError):
    """The file cannot be used; one problem a line, each with file, row and field."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """keep: the gold is right. drop: the row leaves. fix: `sql` takes the gold's place, and of all accepted SQL."""

    decision: Decision
    sql: str | None = None
    note: str = ""


def read_reviews(path: Path) -> dict[str, Reviewed]:
    """row_id to what was decided on it. A line without a decision is one that nobody decided.

    CSV in UTF-8 (a byte-order mark is allowed) with the columns row_id and decision, and fixed_sql and note where
    needed. Raises ReviewError naming every line that cannot be used.
    """
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    found: dict[str, Reviewed] = {}
    problems = []
    try:
        fields = reader.fieldnames or ()
        missing = [c for c in COLUMNS[:2] if c not in fields]
        if missing:
            raise ReviewError(
                f"{path}: no column {', '.join(missing)}; its first line is {', '.join(fields)}"
            )
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            trouble = _take(found, row)
            if trouble:
                problems.append(f"{where}: {trouble}")
    except csv.Error as error:
        problems.append(f"{path}: line {reader.line_num}: not valid CSV: {error}")
    if problems:
        raise ReviewError("\n".join(problems))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReviewError(f"{path}: not UTF-8 (byte {error.start}); save it as CSV UTF-8") from None
    except OSError as error:
        raise ReviewError(f"{path}: {error.strerror}") from None


def _take(found: dict[str, Reviewed], row: Mapping[str, str | None]) -> str | None:
    """Add the decision of a line; or what is wrong with it."""
    row_id = (row.get("row_id") or "").strip().lower()
    decision = (row.get("decision") or "").strip().lower()
    sql = (row.get("fixed_sql") or "").strip()
    if not decision:
        return "field fixed_sql: a SQL without the decision fix" if sql else None
    if decision not in DECISIONS:
        return f"field decision: {decision!r} is none of {', '.join(DECISIONS)}"
    if len(row_id) != ROW_ID_DIGITS or set(row_id) - set("0123456789abcdef"):
        return f"field row_id: {row_id!r} is not a row_id of {ROW_ID_DIGITS} hexadecimal digits"
    if decision == "fix" and not sql:
        return "field fixed_sql: empty, though the decision is fix"
    if decision != "fix" and sql:
        return f"field fixed_sql: a SQL, though the decision is {decision}"
    new = Reviewed(cast(Decision, decision), sql or None, (row.get("note") or "").strip())
    if found.setdefault(row_id, new) != new:
        return f"field row_id: {row_id} was decided otherwise on an earlier line"
    return None
