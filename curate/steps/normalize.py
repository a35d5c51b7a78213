"""normalize: the forms of question and SQL that later steps compare, and the language."""

import re
from typing import ClassVar

import polars as pl

from curate.ledger import decide
from curate.step import Context, Output, Step
from curate.text.shingle import fold_question, fold_sql, normalize_question

_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("zh", re.compile(r"[\u3400-\u9fff]")),
)
_LETTER = re.compile(r"[^\W\d_]")
_LATIN = re.compile(r"[A-Za-zÀ-ɏ]")
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]"


class Normalize(Step):
    """Questions and SQL in the form that later steps compare.

    question_folded: case and space folded. question_norm: NFKC too, and end punctuation cut. sql_folded: case
    and space folded outside quotes. language: the source's; where it does not say, `zh`, `ja` or `ko` by
    script, `default_language` for Latin script, `und` for others. Questions themselves are never changed.
    Drops `blank_question` (nothing but space and punctuation); flags `control_characters`.
    """

    name: ClassVar[str] = "normalize"
    reads: ClassVar[tuple[str, ...]] = ("question", "sql", "language")
    writes: ClassVar[tuple[str, ...]] = ("question_folded", "question_norm", "sql_folded", "language")
    on_references: ClassVar[bool] = True

    default_language: str = "en"

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        questions = frame["question"].to_list()
        norm = [normalize_question(q) for q in questions]
        columns = frame.select(
            "row_id",
            pl.Series("question_folded", [fold_question(q) for q in questions], dtype=pl.String),
            pl.Series("question_norm", norm, dtype=pl.String),
            pl.Series("sql_folded", [fold_sql(s) for s in frame["sql"]], dtype=pl.String),
            pl.Series(
                "language",
                [
                    known or self._language(q)
                    for q, known in zip(questions, frame["language"].to_list(), strict=True)
                ],
                dtype=pl.String,
            ),
        )
        blank = frame.filter(columns["question_norm"].str.contains(r"^[\pP\s]*$"))
        control = frame.filter(pl.col("question").str.contains(_CONTROL))
        return Output(
            columns,
            pl.concat(
                [decide(blank, "drop", "blank_question"), decide(control, "flag", "control_characters")]
            ),
        )

    def _language(self, question: str) -> str:
        for language, script in _SCRIPTS:
            if script.search(question):
                return language
        if _LATIN.search(question) or not _LETTER.search(question):
            return self.default_language
        return "und"
