"""The rows to review, most suspicious first: from what a run stored, to a list that takes decisions."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from curate.atomic import write_atomic
from curate.databases import Databases
from curate.ingest import TRAIN
from curate.inspect import NotThere, stored_table
from curate.review import Reviewed, read_reviews
from curate.sql.sandbox import Execution, Query, Sandbox
from curate.store import WHOLE

FILE = "audit.csv"
PAGE = "audit.html"
COLUMNS = ("question", "sql", "gold_sqls", "evidence", "db_id", "dialect", "source", "reviewed")
SUSPICION = ("suspicion", "suspicion_why")  # of the step `agreement`
SHOWN_ROWS = 5
SHOWN_TEXT = 60  # characters of a value
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so


@dataclass(frozen=True)
class Item:
    """A row to look at. suspicion: probability of a wrong gold, or None without the step `agreement`.

    why: what raised it. findings: "check: evidence" of the flags. result: of the gold SQL, in words. dropped: why
    the row left, if it did.
    """

    row_id: str
    question: str
    sql: str
    db_id: str
    evidence: str | None
    suspicion: float | None
    why: tuple[str, ...]
    findings: tuple[str, ...]
    dropped: str | None = None
    result: str = ""


@dataclass(frozen=True)
class Audit:
    """items: most suspicious first. rows: how many there are to choose from. name: of the pipeline."""

    name: str
    items: list[Item]
    rows: int
    scored: bool


def audit(out: Path, *, rows: int = 1000, dropped: bool = False) -> Audit:
    """The `rows` rows of a run's output that most deserve a look.

    Ordered by `suspicion` where the pipeline has the step `agreement`, then by the number of findings. Rows that
    a person has decided on are left out. dropped: also rows whose gold was refused, which a person may fix.
    Raises NotThere where `out` holds no finished run.
    """
    manifest = _manifest(out)
    table = stored_table(out)
    scored = SUSPICION[0] in table.columns
    frame = table.read(TRAIN, WHOLE, [*COLUMNS, *SUSPICION], dead_too=dropped)
    ledger = pl.read_parquet(out / "ledger.parquet", glob=False)
    gone = _gone(ledger) if dropped else {}
    if dropped:
        left = ledger.filter((pl.col("action") != "flag") & (pl.col("step") != "validate"))
        frame = frame.join(left.select("row_id").unique(), on="row_id", how="anti", maintain_order="left")
    if "reviewed" in frame.columns:
        frame = frame.filter(pl.col("reviewed").is_null())
    found = _findings(ledger)
    items = [_item(row, found, gone) for row in frame.iter_rows(named=True)]
    items.sort(key=lambda i: (-(i.suspicion or 0.0), i.dropped is None, -len(i.findings), i.row_id))
    root = manifest.get("databases")
    chosen = _with_results(items[:rows], Databases.open(root))
    return Audit(manifest["name"], chosen, len(items), scored)


def _manifest(out: Path) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotThere(f"{out} is not the output directory of a finished run") from None
    return loaded


def _gone(ledger: pl.DataFrame) -> dict[str, str]:
    lines = ledger.filter((pl.col("action") != "flag") & (pl.col("step") == "validate"))
    return {
        row_id: f"{reason}: {detail}"
        for row_id, reason, detail in lines.select("row_id", "reason", "detail").iter_rows()
    }


def _findings(ledger: pl.DataFrame) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    flags = ledger.filter(pl.col("action") == "flag").unique(maintain_order=True)
    for row_id, reason, detail in flags.select("row_id", "reason", "detail").iter_rows():
        found.setdefault(row_id, []).append(f"{reason}: {detail}" if detail else reason)
    return found


def _item(row: Mapping[str, Any], found: Mapping[str, list[str]], gone: Mapping[str, str]) -> Item:
    return Item(
        row_id=row["row_id"],
        question=row["question"],
        sql=row["sql"],
        db_id=row["db_id"],
        evidence=row.get("evidence"),
        suspicion=row.get(SUSPICION[0]),
        why=tuple(row.get(SUSPICION[1]) or ()),
        findings=tuple(found.get(row["row_id"], ())),
        dropped=gone.get(row["row_id"]),
    )


def _with_results(items: list[Item], databases: Databases) -> list[Item]:
    asked = [(i, path) for i, item in enumerate(items) if (path := databases.path(item.db_id)) is not None]
    with Sandbox() as sandbox:
        done = sandbox.run([Query(str(path), items[i].sql) for i, path in asked])
    for (i, _), execution in zip(asked, done, strict=True):
        items[i] = replace(items[i], result=said_of(execution))
    return items


def said_of(execution: Execution) -> str:
    """The first rows of a result, or why there is none, in a line."""
    if not execution.ok:
        return f"{execution.status}: {execution.error or ''}"
    rows = ["(" + ", ".join(_value(v) for v in row) + ")" for row in execution.rows[:SHOWN_ROWS]]
    more = f" and {execution.row_count - SHOWN_ROWS:,} more" if execution.row_count > SHOWN_ROWS else ""
    rows_word = "row" if execution.row_count == 1 else "rows"
    return f"{execution.row_count:,} {rows_word}" + (f": {' '.join(rows)}{more}" if rows else "")


def _value(value: Any) -> str:
    text = "NULL" if value is None else f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN_TEXT else text[: SHOWN_TEXT - 1] + "…"


HEAD = (
    *("row_id", "decision", "fixed_sql", "note"),
    *("suspicion", "why", "question", "sql", "result", "evidence", "db_id", "findings"),
)


def write_list(found: Audit, path: Path) -> dict[str, Reviewed]:
    """Write the list as CSV and return the decisions in it.

    Decisions that the file held already stay in it, at its end where their rows are no longer on the list. Raises
    curate.review.ReviewError where the old file cannot be read: it may hold a person's work.
    """
    decided = read_reviews(path) if path.exists() else {}
    listed = {item.row_id for item in found.items}
    lines = [_line(item, decided.get(item.row_id)) for item in found.items]
    lines += [[i, *_cells(r), *[""] * (len(HEAD) - 4)] for i, r in decided.items() if i not in listed]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerows([HEAD, *lines])
    write_atomic(path, buffer.getvalue().encode("utf-8-sig", "replace"))
    return decided


def _line(item: Item, decided: Reviewed | None) -> list[str]:
    suspicion = "" if item.suspicion is None else f"{item.suspicion:.3f}"
    why = item.why or ((item.dropped,) if item.dropped else ())
    texts = [item.question, item.sql, item.result, item.evidence or "", item.db_id, "; ".join(item.findings)]
    return [item.row_id, *_cells(decided), suspicion, *(_inert(t) for t in ["; ".join(why), *texts])]


def _cells(decided: Reviewed | None) -> Iterable[str]:
    return (decided.decision, decided.sql or "", decided.note) if decided else ("", "", "")


def _inert(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
