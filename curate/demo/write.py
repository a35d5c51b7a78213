"""Write the demo corpus: rows by quota, every claim of the truth proved by execution."""

import json
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curate.atomic import write_atomic
from curate.demo.defects import failing_golds, near_same, wrong_golds
from curate.demo.domains import DOMAINS, UNSEEN, Database, Language, fill, write_database
from curate.demo.grammar import Drawn, Grammar, phrase
from curate.rows import row_id
from curate.store import to_parquet
from curate.text.shingle import jaccard, normalize_question, shingles

MAX_PARAPHRASES = 4
DIFFERENT = 0.6  # paraphrases of one SQL are less alike than this
ALIKE = 0.72  # a near-duplicate is at least this like its original
EMPTY_SHARE = 0.02  # of clean rows that may have an empty result
ROWS_PER_DATABASE = 1500  # more rows get more databases of each domain
FLOOD_ROWS = 120  # literal swaps of one skeleton, at the least
TRIES = 400

SHARES = {
    "exact_duplicate": 0.04,
    "near_duplicate": 0.04,
    "template_flood": 0.06,
    "gold_fails": 0.03,
    "gold_wrong": 0.12,
    "leak_exact": 0.015,
    "leak_near": 0.015,
    "trivial": 0.02,
}
TRAIN_STAGES = (0.5, 0.35, 0.15)  # the train mix is easier than the target mix
TARGET_STAGES = (0.34, 0.33, 0.33)
REFERENCE_SHARE, HELDOUT_SHARE, UNSEEN_SHARE = 0.1, 0.16, 1 / 3


@dataclass(frozen=True)
class DemoSummary:
    """Rows by file and by planted defect."""

    directory: Path
    train: int
    reference: int
    heldout: int
    databases: int
    defects: dict[str, int]


@dataclass(slots=True)
class _Row:
    question: str
    sql: str
    db: "_Source"
    stage: int
    occurrence: int = 0
    drawn: Drawn | None = None
    phrasing: int = 0

    def id(self, split: str) -> str:
        return row_id("demo", split, self.db.db_id, self.question, self.sql, self.occurrence)


@dataclass(slots=True)
class _Truth:
    row: _Row
    defect: str
    detail: str | None
    partner: _Row | None
    partner_split: str = "train"


class _Source:
    """One database, its grammar, and what was already asked of it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.db_id = database.db_id
        self.language = database.language
        self.grammar = Grammar(database)
        self.connection = sqlite3.connect(":memory:")
        self.questions: set[str] = set()
        self.asked: dict[str, list[frozenset[str]]] = {}
        self.train_of_sql: Counter[str] = Counter()
        self.flooded: set[str] = set()  # skeletons that belong to a flood alone

    def load(self, path: Path) -> None:
        self.connection.deserialize(path.read_bytes())

    def result(self, sql: str) -> list[tuple[Any, ...]] | None:
        """The rows (sorted unless the query orders them), or None where SQLite refuses the query."""
        try:
            rows = self.connection.execute(sql).fetchall()
        except (sqlite3.Error, sqlite3.Warning):
            return None
        return rows if "ORDER BY" in sql and "OVER" not in sql else sorted(rows, key=repr)

    def free(self, question: str, sql: str, *, train: bool) -> bool:
        """Nobody asked this before, nor anything like it of the same SQL, and the SQL is under its cap."""
        norm = normalize_question(question)
        if norm in self.questions or (train and self.train_of_sql[sql] >= MAX_PARAPHRASES):
            return False
        if _without_numbers(sql) in self.flooded:
            return False
        mine = shingles(norm)
        return all(jaccard(mine, other) < DIFFERENT for other in self.asked.get(sql, ()))

    def ask(self, question: str, sql: str, *, train: bool) -> None:
        norm = normalize_question(question)
        self.questions.add(norm)
        self.asked.setdefault(sql, []).append(shingles(norm))
        self.train_of_sql[sql] += train

    def clean(self, stage: int, draw: random.Random, *, train: bool) -> _Row | None:
        """A fresh row of a stage, or None when the database has nothing new to ask."""
        for _ in range(TRIES):
            drawn = self.grammar.draw(stage, draw)
            row = self.said(drawn, draw, train=train)
            if row is not None:
                return row
        return None

    def said(
        self, drawn: Drawn, draw: random.Random, *, train: bool, phrasing: int | None = None
    ) -> _Row | None:
        questions = phrase(drawn, self.language)
        order = list(range(len(questions))) if phrasing is None else [phrasing]
        draw.shuffle(order)
        for i in order:
            question = questions[i]
            if self.free(question, drawn.sql, train=train):
                rows = self.result(drawn.sql)
                if rows is None or (not rows and draw.random() > EMPTY_SHARE):
                    return None
                self.ask(question, drawn.sql, train=train)
                return _Row(question, drawn.sql, self, drawn.stage, drawn=drawn, phrasing=i)
        return None


@dataclass
class _Corpus:
    draw: random.Random
    seen: list[_Source]
    unseen: list[_Source]
    train: list[_Row] = field(default_factory=list)
    clean: list[_Row] = field(default_factory=list)
    reference: list[_Row] = field(default_factory=list)
    heldout: list[_Row] = field(default_factory=list)
    truth: list[_Truth] = field(default_factory=list)

    def source(self, *, skewed: bool) -> _Source:
        """A database for one row; skewed: the first domain is asked eight times as often as the last."""
        if not skewed:
            return self.draw.choice(self.seen)
        last = max(1, len(self.seen) - 1)
        weights = [8 ** (1 - i / last) for i in range(len(self.seen))]
        return self.draw.choices(self.seen, weights)[0]

    def fresh(self, sources: Callable[[], _Source], stages: tuple[float, ...], *, train: bool) -> _Row:
        for _ in range(TRIES):
            stage = self.draw.choices((1, 2, 3), stages)[0]
            row = sources().clean(stage, self.draw, train=train)
            if row is not None:
                return row
        raise ValueError("the demo grammar has no more questions to ask; ask for fewer rows")


def write_demo(
    directory: str | Path, *, rows: int = 4000, seed: int = 0, language: str = "en"
) -> DemoSummary:
    """Write the demo corpus into `directory`: same arguments, same bytes.

    rows: of train.jsonl. language: `en`, `zh` or `both`. The other files follow: reference.jsonl and
    heldout.jsonl (a third of it on databases that train does not know), databases/, pipeline.yaml, and
    truth.parquet (row_id, defect, detail, partner_id).

    Raises ValueError for another language or fewer than one row.
    """
    if language not in ("en", "zh", "both"):
        raise ValueError(f"language is en, zh or both, not {language!r}")
    if rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    directory = Path(directory)
    languages: tuple[Language, ...] = ("en", "zh") if language == "both" else (language,)  # type: ignore[assignment]
    corpus = _Corpus(random.Random(f"{seed}/{rows}/{language}"), *_sources(directory, rows, seed, languages))
    _fill(corpus, rows)
    defects = _write(corpus, directory)
    held = len(corpus.heldout)
    count = len(corpus.seen) + len(corpus.unseen)
    return DemoSummary(directory, len(corpus.train), len(corpus.reference), held, count, defects)


def _sources(
    directory: Path, rows: int, seed: int, languages: tuple[Language, ...]
) -> tuple[list[_Source], list[_Source]]:
    domains = len(DOMAINS) - len(UNSEEN)
    copies = max(1, -(-rows // (ROWS_PER_DATABASE * domains * len(languages))))
    seen: list[_Source] = []
    unseen: list[_Source] = []
    for domain in DOMAINS:
        for language in languages:
            for copy in range(1 if domain.name in UNSEEN else copies):
                db_id = domain.name + ("_zh" if language == "zh" else "") + (f"_{copy + 1}" if copy else "")
                database = fill(domain, db_id, language, seed)
                path = directory / "databases" / db_id / f"{db_id}.sqlite"
                write_database(database, path)
                source = _Source(database)
                source.load(path)
                (unseen if domain.name in UNSEEN else seen).append(source)
    return seen, unseen


def _fill(corpus: _Corpus, rows: int) -> None:
    # What is held out asks first, so that train cannot take its questions.
    held = max(9, round(HELDOUT_SHARE * rows))
    for i in range(held):
        unseen = i < round(held * UNSEEN_SHARE)
        choose = (
            (lambda: corpus.draw.choice(corpus.unseen)) if unseen else (lambda: corpus.source(skewed=False))
        )
        corpus.heldout.append(corpus.fresh(choose, TARGET_STAGES, train=False))
    for _ in range(max(9, round(REFERENCE_SHARE * rows))):
        corpus.reference.append(corpus.fresh(lambda: corpus.source(skewed=False), TARGET_STAGES, train=False))
    quota = {defect: round(share * rows) for defect, share in SHARES.items()}
    _plant_floods(corpus, quota["template_flood"])
    _plant_trivial(corpus, quota["trivial"])
    _plant_leaks(corpus, quota["leak_exact"], quota["leak_near"])
    _plant_bad_golds(corpus, quota["gold_wrong"], "gold_wrong")
    _plant_bad_golds(corpus, quota["gold_fails"], "gold_fails")
    copies = quota["exact_duplicate"] + quota["near_duplicate"]
    _add_clean(corpus, rows - len(corpus.train) - copies)
    _plant_copies(corpus, quota["exact_duplicate"], quota["near_duplicate"])
    while len(corpus.train) < rows:  # a corpus too small for its quotas
        _add_clean(corpus, 1)


def _add_clean(corpus: _Corpus, count: int) -> None:
    """Clean rows; now and then with a paraphrase or with its minimal contrast."""
    end = len(corpus.train) + count
    while len(corpus.train) < end:
        row = corpus.fresh(lambda: corpus.source(skewed=True), TRAIN_STAGES, train=True)
        _keep(corpus, row)
        chance = corpus.draw.random()
        if len(corpus.train) < end and chance < 0.2:
            _add_paraphrases(corpus, row, min(end - len(corpus.train), corpus.draw.randint(1, 3)))
        elif len(corpus.train) < end and chance < 0.4:
            _add_contrast(corpus, row)


def _keep(corpus: _Corpus, row: _Row) -> None:
    corpus.train.append(row)
    corpus.clean.append(row)


def _add_paraphrases(corpus: _Corpus, row: _Row, most: int) -> None:
    if row.drawn is None:
        return
    for _ in range(most):
        other = row.db.said(row.drawn, corpus.draw, train=True)
        if other is None:
            return
        _keep(corpus, other)
        corpus.truth.append(_Truth(other, "paraphrase", None, row))


def _add_contrast(corpus: _Corpus, row: _Row) -> None:
    contrast = row.drawn.contrast if row.drawn else None
    if contrast is None or row.db.result(contrast.sql) == row.db.result(row.sql):
        return
    other = row.db.said(contrast, corpus.draw, train=True, phrasing=row.phrasing)
    if other is None:
        return
    _keep(corpus, other)
    changed = _changed_words(row.question, other.question)
    corpus.truth.append(_Truth(row, "contrast_pair", changed, other))
    corpus.truth.append(_Truth(other, "contrast_pair", changed, row))


def _changed_words(a: str, b: str) -> str:
    """The differing middle of two questions, as `more / less`."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return f"{a[start : len(a) - end]} / {b[start : len(b) - end]}"


def _plant_floods(corpus: _Corpus, count: int) -> None:
    """A few skeletons, each with one wording and over a hundred literals."""
    floods = max(1, count // FLOOD_ROWS)
    for i in range(floods):
        _plant_flood(corpus, count // floods + (i < count % floods))


def _plant_flood(corpus: _Corpus, count: int) -> None:
    if count == 0:
        return
    for _ in range(TRIES):
        source = corpus.source(skewed=True)
        drawn = corpus.draw.choice([source.grammar.compare, source.grammar.count])(corpus.draw)
        rows = list(_flood(source, drawn, count)) if len(drawn.slots["v"]) == 3 else []
        if len(rows) == count:
            for row in rows:
                source.ask(row.question, row.sql, train=True)
                corpus.train.append(row)
                corpus.truth.append(_Truth(row, "template_flood", _without_numbers(row.sql), rows[0]))
            source.flooded.add(_without_numbers(drawn.sql))
            return
    raise ValueError(f"no table of the demo has {count} literals for one skeleton; ask for fewer rows")


def _without_numbers(sql: str) -> str:
    return re.sub(r"\b\d+\b", "?", sql)


def _flood(source: _Source, drawn: Drawn, count: int) -> Iterator[_Row]:
    found = 0
    for value in range(1, 1000):
        slots = {**drawn.slots, "v": str(value)}
        swapped = Drawn(drawn.template, drawn.stage, drawn.sql.replace(drawn.slots["v"], str(value)), slots)
        question = phrase(swapped, source.language)[0]
        if source.free(question, swapped.sql, train=True) and source.result(swapped.sql):
            yield _Row(question, swapped.sql, source, swapped.stage)
            found += 1
            if found == count:
                return


def _plant_trivial(corpus: _Corpus, count: int) -> None:
    said = {
        "en": (
            "List all {ts}.",
            "Show me everything about {ts}",
            "Return the whole {t} table.",
            "What {c} values are there among {ts}?",
            "Give {c} for each {t}.",
        ),
        "zh": (
            "列出所有{t}。",
            "显示{t}的全部信息",
            "返回整张{t}表。",
            "{t}都有哪些{c}？",
            "给出每个{t}的{c}。",
        ),
    }
    planted = 0
    for _ in range(count * 40):
        if planted == count:
            return
        source = corpus.source(skewed=True)
        table = corpus.draw.choice(source.database.domain.tables)
        column = corpus.draw.choice(table.columns)
        i = corpus.draw.randrange(5)
        label = table.label[source.language]
        plural = table.plural if source.language == "en" else label
        question = said[source.language][i].format(t=label, ts=plural, c=column.label[source.language])
        sql = f"SELECT {'*' if i < 3 else column.name} FROM {table.name}"
        if source.free(question, sql, train=True):
            source.ask(question, sql, train=True)
            row = _Row(question, sql, source, 1)
            corpus.train.append(row)
            corpus.truth.append(_Truth(row, "trivial", None, None))
            planted += 1


def _plant_leaks(corpus: _Corpus, exact: int, near: int) -> None:
    bases = corpus.draw.sample(corpus.reference, min(len(corpus.reference), exact + near))
    for base in bases[:exact]:
        row = _Row(base.question, base.sql, base.db, base.stage)
        corpus.train.append(row)
        corpus.truth.append(_Truth(row, "leak_exact", None, base, "reference"))
    for base in bases[exact:]:
        made = _near_copy(base, corpus.draw)
        if made is not None:
            row, how = made
            corpus.train.append(row)
            corpus.truth.append(_Truth(row, "leak_near", how, base, "reference"))


def _near_copy(base: _Row, draw: random.Random) -> tuple[_Row, str] | None:
    """The row said almost the same, and how; clearly unlike every other phrasing of its SQL."""
    mine = shingles(normalize_question(base.question))
    for _ in range(TRIES):
        how, question = near_same(base.question, base.db.language, draw)
        if question == base.question:
            continue
        norm = normalize_question(question)
        made = shingles(norm)
        others = [s for s in base.db.asked[base.sql] if s != mine]
        fresh = norm not in base.db.questions or how == "punctuation"
        if fresh and jaccard(mine, made) >= ALIKE and all(jaccard(made, s) < DIFFERENT for s in others):
            base.db.questions.add(norm)
            return _Row(question, base.sql, base.db, base.stage), how
    return None


def _plant_bad_golds(corpus: _Corpus, count: int, defect: str) -> None:
    for _ in range(count):
        row, detail = _bad_gold(corpus, defect)
        corpus.train.append(row)
        corpus.truth.append(_Truth(row, defect, detail, None))


def _bad_gold(corpus: _Corpus, defect: str) -> tuple[_Row, str]:
    for _ in range(TRIES):
        source = corpus.source(skewed=True)
        drawn = source.grammar.draw(corpus.draw.choices((1, 2, 3), TRAIN_STAGES)[0], corpus.draw)
        question = corpus.draw.choice(phrase(drawn, source.language))
        right = source.result(drawn.sql)
        domain = source.database.domain
        spoil = wrong_golds if defect == "gold_wrong" else failing_golds
        for detail, sql in spoil(drawn.sql, domain, corpus.draw):
            given = source.result(sql)
            spoiled = given is None if defect == "gold_fails" else given is not None and given != right
            if spoiled and right and source.free(question, sql, train=True):
                source.ask(question, sql, train=True)
                return _Row(question, sql, source, drawn.stage), f"{detail}; right: {drawn.sql}"
    raise ValueError("the demo grammar has no more questions to spoil; ask for fewer rows")


def _plant_copies(corpus: _Corpus, exact: int, near: int) -> None:
    """Copies of clean rows. Of a row and its copies the one with the lowest row_id is the original."""
    spoken_for = {id(t.row) for t in corpus.truth} | {id(t.partner) for t in corpus.truth}
    free = [row for row in corpus.clean if id(row) not in spoken_for]
    bases = corpus.draw.sample(free, min(len(free), exact + near))
    for base in bases[:exact]:
        copy = _Row(base.question, base.sql, base.db, base.stage, occurrence=1)
        corpus.train.append(copy)
        _claim_copy(corpus, base, copy, "exact_duplicate", None)
    for base in bases[exact:]:
        made = _near_copy(base, corpus.draw)
        if made is not None:
            copy, how = made
            corpus.train.append(copy)
            _claim_copy(corpus, base, copy, "near_duplicate", how)


def _claim_copy(corpus: _Corpus, base: _Row, copy: _Row, defect: str, detail: str | None) -> None:
    first, second = sorted((base, copy), key=lambda row: row.id("train"))
    corpus.truth.append(_Truth(second, defect, detail, first))


def _write(corpus: _Corpus, directory: Path) -> dict[str, int]:
    corpus.draw.shuffle(corpus.train)
    _write_jsonl(directory / "train.jsonl", (_record(r, "train") for r in corpus.train))
    _write_jsonl(directory / "reference.jsonl", (_record(r, "reference") for r in corpus.reference))
    known = {id(source) for source in corpus.seen}
    _write_jsonl(
        directory / "heldout.jsonl",
        ({**_record(r, "heldout"), "seen": id(r.db) in known} for r in corpus.heldout),
    )
    truth = pl.DataFrame(
        [
            {
                "row_id": t.row.id("train"),
                "defect": t.defect,
                "detail": t.detail,
                "partner_id": t.partner.id(t.partner_split) if t.partner is not None else None,
            }
            for t in corpus.truth
        ],
        schema=dict.fromkeys(("row_id", "defect", "detail", "partner_id"), pl.String),
    ).sort("defect", "row_id", "partner_id", nulls_last=True)
    to_parquet(truth, directory / "truth.parquet")
    write_atomic(directory / "pipeline.yaml", PIPELINE.encode())
    return dict(truth.group_by("defect").len().sort("defect").iter_rows())


def _record(row: _Row, split: str) -> dict[str, Any]:
    return {
        "question": row.question,
        "sql": row.sql,
        "db_id": row.db.db_id,
        "language": row.db.language,
        "source": "demo",
        "split": split,
        "domain": row.db.database.domain.name,
    }


def _write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_atomic(path, text.encode("utf-8"))


PIPELINE = """\
# The demo pipeline: every step with its reason. Paths are relative to this file.
name: demo
seed: 0
inputs:
  train:     {path: train.jsonl, format: records}
  reference: {path: reference.jsonl, format: records}   # the target: compared with, never emitted
databases: {root: databases}
steps:
  - normalize: {}                            # question text, SQL text, language
  - validate: {timeout_s: 5}                 # execute every gold; what fails leaves
  - canonicalize: {}                         # one key for SQL that differs only in spelling
  - dedup: {max_paraphrases: 4, max_per_skeleton: 60}   # copies leave, paraphrases and templates are capped
  - decontaminate: {against: reference}      # train loses what the reference holds
  - difficulty: {}                           # features, Spider's hardness, a score in [0, 1]
  - curriculum:                              # stages, validation rows, shards
      stages: rule
      validation: {share: 0.08}
      schedule: {warmup_steps: 2, interval_steps: 1, increment: 0.33, floor: 0.34}   # a short run: all stages soon
output: {path: out}
"""
