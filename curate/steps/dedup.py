"""dedup: rows that teach the same thing again leave; rows that only look alike stay."""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
from pydantic import Field

from curate.ledger import decisions
from curate.step import Context, Output, Step
from curate.text.near import near_pairs


@dataclass(frozen=True, slots=True)
class _Row:
    row_id: str
    db_id: str
    asked: str  # case and space folded
    question: str  # normalised
    folded: str
    canonical: str
    masked: str
    digest: str | None


class Dedup(Step):
    """Duplicates by what matters in NL2SQL, on the live rows, rung by rung.

    exact_duplicate: same database, question and SQL, case and space folded.
    same_question: same database and canonical SQL, same normalised question.
    near_duplicate: same database and canonical SQL, questions whose character 4-grams have a Jaccard
        similarity of at least `near_threshold`.
    paraphrase_cap: more than `max_paraphrases` questions for one (database, canonical SQL).
    skeleton_cap: more than `max_per_skeleton` rows for one (database, SQL with literals masked); off by
        default (null).

    Who stays: a row with evidence before one without, then the lowest row_id. Every dropped row names the
    row it repeats. Questions alike with *different* SQL are never dropped: they are the minimal contrasts
    that teach most ("older than", "younger than"), or one of them is wrong, so both are flagged:
    `same_question_other_sql` (the same normalised question) and `near_question_other_sql`.
    """

    name: ClassVar[str] = "dedup"
    scope: ClassVar[Any] = "table"
    reads: ClassVar[tuple[str, ...]] = (
        "db_id",
        "question_folded",
        "question_norm",
        "sql_folded",
        "sql_canonical",
        "sql_masked",
    )
    optional: ClassVar[tuple[str, ...]] = ("evidence", "gold_digest")
    libraries: ClassVar[tuple[str, ...]] = ("rensa",)
    threshold_field: ClassVar[str | None] = "near_threshold"

    max_paraphrases: int = Field(4, ge=1)
    max_per_skeleton: int | None = Field(None, ge=1)
    near_threshold: float = Field(0.7, gt=0, le=1)

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        rows = _in_keeping_order(frame)
        said: list[dict[str, Any]] = []
        rows = _capped(rows, lambda r: (r.db_id, r.asked, r.folded), 1, "exact_duplicate", said)
        rows = _capped(rows, lambda r: (r.db_id, r.question, r.canonical), 1, "same_question", said)
        pairs = near_pairs([r.question for r in rows], [r.db_id for r in rows], self.near_threshold)
        said += _conflicts(rows, pairs)
        rows = _without_near(rows, pairs, said)
        rows = _capped(rows, lambda r: (r.db_id, r.canonical), self.max_paraphrases, "paraphrase_cap", said)
        if self.max_per_skeleton is not None:
            rows = _capped(rows, lambda r: (r.db_id, r.masked), self.max_per_skeleton, "skeleton_cap", said)
        return Output(decisions=decisions(said))


def _in_keeping_order(frame: pl.DataFrame) -> list[_Row]:
    """The rows, those first that stay when others repeat them."""
    for column in ("evidence", "gold_digest"):
        if column not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.String).alias(column))
    ordered = frame.sort(pl.col("evidence").fill_null("") == "", "row_id")
    columns = ["row_id", "db_id", "question_folded", "question_norm", "sql_folded", "sql_canonical"]
    columns += ["sql_masked", "gold_digest"]
    return [_Row(*values) for values in ordered.select(columns).iter_rows()]


def _capped(
    rows: list[_Row],
    key: Callable[[_Row], Hashable],
    most: int,
    reason: str,
    said: list[dict[str, Any]],
) -> list[_Row]:
    """At most `most` rows of each key; the others are dropped, with the key's first row as partner."""
    seen: dict[Hashable, tuple[str, int]] = {}
    kept = []
    for row in rows:
        first, count = seen.get(key(row), (row.row_id, 0))
        seen[key(row)] = (first, count + 1)
        if count < most:
            kept.append(row)
            continue
        detail = None if most == 1 else f"more than {most}"
        said.append(_decision(row, "drop", reason, first, 1.0 if most == 1 else None, detail))
    return kept


def _without_near(
    rows: list[_Row], pairs: list[tuple[int, int, float]], said: list[dict[str, Any]]
) -> list[_Row]:
    """Drop a row that is near-same to a kept row of its own SQL; never through a chain of others."""
    nearer: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for i, j, score in pairs:
        if rows[i].canonical == rows[j].canonical:
            nearer[j].append((i, score))
    gone: set[int] = set()
    for j in sorted(nearer):
        alive = [(score, -i) for i, score in nearer[j] if i not in gone]
        if alive:
            score, i = max(alive)
            gone.add(j)
            said.append(_decision(rows[j], "drop", "near_duplicate", rows[-i].row_id, score))
    return [row for i, row in enumerate(rows) if i not in gone]


def _conflicts(rows: list[_Row], pairs: list[tuple[int, int, float]]) -> list[dict[str, Any]]:
    """Flags for both rows of each pair with different SQL: for each row its most similar partner."""
    best: dict[int, tuple[float, int]] = {}
    for i, j, score in pairs:
        if rows[i].canonical == rows[j].canonical:
            continue
        for here, there in ((i, j), (j, i)):
            if here not in best or (score, -there) > (best[here][0], -best[here][1]):
                best[here] = (score, there)
    said = []
    for here, (score, there) in sorted(best.items()):
        row, other = rows[here], rows[there]
        reason = "same" if row.question == other.question else "near"
        said.append(
            _decision(row, "flag", f"{reason}_question_other_sql", other.row_id, score, _results(row, other))
        )
    return said


def _results(row: _Row, other: _Row) -> str | None:
    if row.digest is None or other.digest is None:
        return None
    return "the results agree" if row.digest == other.digest else "the results differ"


def _decision(
    row: _Row, action: str, reason: str, partner: str, score: float | None, detail: str | None = None
) -> dict[str, Any]:
    return {
        "row_id": row.row_id,
        "action": action,
        "reason": reason,
        "detail": detail,
        "partner_id": partner,
        "score": score,
    }
