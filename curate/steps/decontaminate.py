"""decontaminate: train loses what the reference holds; the reference never loses anything."""

from typing import Any, ClassVar

import polars as pl
from pydantic import Field, field_validator

from curate.ledger import decisions
from curate.step import Context, Output, Step
from curate.text.near import near_pairs


class Decontaminate(Step):
    """Drop train rows that a reference holds too, rung by rung; the partner is the reference row.

    leak_exact: same database, question and SQL, case and space folded.
    leak_question: same database and normalised question, whatever the SQL; for a reference without
        databases, the same normalised question.
    leak_near: same database and canonical SQL, questions whose character 4-grams have a Jaccard similarity
        of at least `near_threshold`.

    The same question on another database is no leak (it has another answer); sharing SQL alone is none
    either (it is coverage).

    against: names of reference inputs.
    """

    name: ClassVar[str] = "decontaminate"
    scope: ClassVar[Any] = "table"
    reads: ClassVar[tuple[str, ...]] = (
        "db_id",
        "question_folded",
        "question_norm",
        "sql_folded",
        "sql_canonical",
    )
    libraries: ClassVar[tuple[str, ...]] = ("rensa",)
    threshold_field: ClassVar[str | None] = "near_threshold"

    against: tuple[str, ...] = ("reference",)
    near_threshold: float = Field(0.7, gt=0, le=1)

    @field_validator("against", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def needs_references(self) -> tuple[str, ...]:
        return self.against

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        missing = [name for name in self.against if name not in ctx.references]
        if missing:
            raise ValueError(f"decontaminate needs the reference {missing[0]!r}: references={{...}}")
        said: dict[str, dict[str, Any]] = {}
        for name in self.against:
            reference = ctx.references[name]
            for row_id, partner, reason, score in (
                *_exact(frame, reference),
                *self._near(frame, reference),
            ):
                said.setdefault(
                    row_id,
                    {
                        "row_id": row_id,
                        "action": "drop",
                        "reason": reason,
                        "detail": f"in '{name}'",
                        "partner_id": partner,
                        "score": score,
                    },
                )
        return Output(decisions=decisions([said[r] for r in sorted(said)]))

    def _near(self, frame: pl.DataFrame, reference: pl.DataFrame) -> list[tuple[str, str, str, float]]:
        """Near-same questions for one (database, canonical SQL), each train row with its nearest."""
        both = ["db_id", "sql_canonical"]
        held = reference.filter(pl.col("sql_canonical").is_not_null() & (pl.col("db_id") != ""))
        train = frame.join(held.select(both).unique(), on=both, how="semi", maintain_order="left")
        held = held.join(train.select(both).unique(), on=both, how="semi", maintain_order="left")
        rows = pl.concat([train, held.select(train.columns)])
        groups = list(rows.select(both).iter_rows())
        best: dict[str, tuple[float, str]] = {}
        ids = rows["row_id"].to_list()
        for i, j, score in near_pairs(rows["question_norm"].to_list(), groups, self.near_threshold):
            if i < train.height <= j and score > best.get(ids[i], (0.0, ""))[0]:
                best[ids[i]] = (score, ids[j])
        return [(row, partner, "leak_near", score) for row, (score, partner) in sorted(best.items())]


def _exact(frame: pl.DataFrame, reference: pl.DataFrame) -> list[tuple[str, str, str, float]]:
    columns = ["row_id", "db_id", "question_folded", "question_norm", "sql_folded"]
    triples: dict[tuple[str, str, str], str] = {}
    questions: dict[tuple[str, str], str] = {}
    anywhere: dict[str, str] = {}
    for row_id, db_id, asked, question, sql in reference.select(columns).iter_rows():
        if not db_id:
            anywhere.setdefault(question, row_id)
            continue
        questions.setdefault((db_id, question), row_id)
        if sql:
            triples.setdefault((db_id, asked, sql), row_id)
    found = []
    for row_id, db_id, asked, question, sql in frame.select(columns).iter_rows():
        if partner := triples.get((db_id, asked, sql)):
            found.append((row_id, partner, "leak_exact", 1.0))
        elif partner := questions.get((db_id, question)) or anywhere.get(question):
            found.append((row_id, partner, "leak_question", 1.0))
    return found
