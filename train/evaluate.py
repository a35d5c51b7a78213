"""Greedy execution accuracy (EX) on held-out rows."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from curate.sql.compare import MODES
from curate.sql.features import features, rule_stage
from curate.sql.sandbox import Sandbox
from curate.sql.schema import Schema, SchemaError, find_database, read_sqlite, render, render_prompt
from curate.sql.testsuite import Suite, build_suite
from train.policy import Policy, encode, load_policy
from train.rewards import Gold, Judge, Verdict, extract_sql
from train.shards import Example, ShardError, Shards, read_shards

Z95 = 1.959963984540054
STYLES = ("compact", "ddl")
MOST_SAMPLES = 5
SUITE = "suite"  # the mode of the data, on the database and on the neighbours of its test suite


@dataclass(frozen=True, slots=True)
class Rate:
    right: int
    rows: int

    @property
    def ex(self) -> float:
        return self.right / self.rows if self.rows else 0.0

    def interval(self) -> tuple[float, float]:
        """95% score interval of a proportion (Wilson, JASA 1927); (0, 1) without rows."""
        if not self.rows:
            return 0.0, 1.0
        n, p, z2 = self.rows, self.ex, Z95 * Z95
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def as_json(self) -> dict[str, Any]:
        low, high = self.interval()
        return {"ex": self.ex, "right": self.right, "rows": self.rows, "low": low, "high": high}


@dataclass(frozen=True)
class Evaluation:
    """by_stage: stage to rate; by_database: "seen" and "unseen" in training, empty where that is not known.

    undecided: rows that could not be executed; they are in no rate. reasons: of all other rows.
    """

    overall: Rate
    by_stage: dict[int, Rate]
    by_database: dict[str, Rate]
    undecided: int
    reasons: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            **self.overall.as_json(),
            "by_stage": {str(s): r.as_json() for s, r in self.by_stage.items()},
            "by_database": {k: r.as_json() for k, r in self.by_database.items()},
            "undecided": self.undecided,
            "reasons": self.reasons,
        }


def generate(
    policy: Policy,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    batch_size: int = 128,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[str]:
    """Greedy completions, in order. Prompts of like length share a batch, so little is padded."""
    model, tokenizer = policy.model, policy.tokenizer
    ids = encode(tokenizer, prompts)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    texts = [""] * len(ids)
    trained = model.training
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            padded = tokenizer.pad(
                {"input_ids": [ids[i] for i in batch]}, padding_side="left", return_tensors="pt"
            )
            padded = padded.to(model.device)
            output = model.generate(
                input_ids=padded["input_ids"],
                attention_mask=padded["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                use_cache=True,
                pad_token_id=tokenizer.pad_token_id,
            )
            new = output[:, padded["input_ids"].shape[1] :]
            for i, text in zip(batch, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
                texts[i] = text
            advance(len(batch))
    model.train(trained)
    return texts


def judge_completions(
    judge: Judge, texts: Sequence[str], examples: Sequence[Example]
) -> list[Verdict | None]:
    golds = [Gold(e.database, e.gold_sqls, e.dialect) for e in examples]
    return judge.judge([extract_sql(t) for t in texts], golds)


def summarize(
    examples: Sequence[Example], verdicts: Sequence[Verdict | None], seen: Collection[str] | None = None
) -> Evaluation:
    """Rates over the decided rows. seen: db_ids of the training rows, where known."""
    decided = [(e, v) for e, v in zip(examples, verdicts, strict=True) if v is not None]

    def rate(pairs: list[tuple[Example, Verdict]]) -> Rate:
        return Rate(sum(v.right for _, v in pairs), len(pairs))

    stages = sorted({e.stage for e, _ in decided})
    by_database = {}
    if seen is not None:
        by_database["seen"] = rate([p for p in decided if p[0].db_id in seen])
        by_database["unseen"] = rate([p for p in decided if p[0].db_id not in seen])
    return Evaluation(
        overall=rate(decided),
        by_stage={s: rate([p for p in decided if p[0].stage == s]) for s in stages},
        by_database=by_database,
        undecided=len(examples) - len(decided),
        reasons=dict(Counter(v.reason for _, v in decided).most_common()),
    )


@dataclass(frozen=True)
class Rendering:
    """How a run's prompts show a schema; see curate.sql.schema.render."""

    style: str = "compact"
    samples: int = 0


def rendering_of(shards: Shards) -> Rendering:
    """How the schemas in the shards were rendered, found by rendering one of them again.

    Raises ShardError where none matches: prompts for other databases would not look like those trained on.
    """
    row = shards.train.row(0, named=True)
    path = shards.databases[row["db_id"]]
    for style in STYLES:
        for samples in range(MOST_SAMPLES + 1):
            schema = read_sqlite(path, row["db_id"], samples=samples)
            if render(schema, style=style) == row["schema_text"]:  # type: ignore[arg-type]
                return Rendering(style, samples)
    raise ShardError(f"{shards.path}: schema_text of {row['db_id']!r} is not what this version renders")


def read_records(path: Path, databases: Path, rendering: Rendering) -> list[Example]:
    """Held-out rows from JSONL with question, sql, db_id (and gold_sqls, evidence, dialect).

    Raises ShardError naming file and line.
    """
    schemas: dict[str, Schema] = {}
    examples = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            examples.append(_record(path, number, line, databases, rendering, schemas))
    if not examples:
        raise ShardError(f"{path}: no rows")
    return examples


def _record(
    path: Path, number: int, line: str, databases: Path, rendering: Rendering, schemas: dict[str, Schema]
) -> Example:
    where = f"{path}: line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ShardError(f"{where}: not valid JSON: {error}") from error
    missing = [k for k in ("question", "sql", "db_id") if not isinstance(row, dict) or not row.get(k)]
    if missing:
        raise ShardError(f"{where}: no {', '.join(missing)}")
    db_id, dialect = row["db_id"], row.get("dialect") or "sqlite"
    database = find_database(databases, db_id)
    if database is None:
        raise ShardError(f"{where}: database {db_id!r} not found under {databases}")
    try:
        if db_id not in schemas:
            schemas[db_id] = read_sqlite(database, db_id, samples=rendering.samples)
        schema_text = render(schemas[db_id], style=rendering.style)  # type: ignore[arg-type]
        stage = rule_stage(features(row["sql"], schemas[db_id], dialect))
    except (SchemaError, ValueError) as error:
        raise ShardError(f"{where}: {error}") from error
    return Example(
        row_id=str(row.get("row_id") or number),
        prompt=render_prompt(row["question"], schema_text, evidence=row.get("evidence"), dialect=dialect),
        sql=row["sql"],
        gold_sqls=tuple(row.get("gold_sqls") or [row["sql"]]),
        db_id=db_id,
        database=str(database),
        dialect=dialect,
        stage=stage,
        weight=1.0,
    )


@dataclass(frozen=True)
class Evaluand:
    """A policy and the rows to evaluate it on. seen: db_ids it was trained on, where known.

    suites: path of a database to its test suite, those the data brings. on_suites: they are asked for.
    """

    policy: Policy
    examples: list[Example]
    mode: str
    max_new_tokens: int
    seen: frozenset[str] | None
    suites: Mapping[str, Suite] = field(default_factory=dict)
    on_suites: bool = False


def load_evaluand(
    name: str,
    data: Path,
    databases: Path | None,
    *,
    mode: str | None = None,
    max_new_tokens: int | None = None,
) -> Evaluand:
    """A run's best policy, or a model, with data from JSONL or shards. Raises ShardError, OSError.

    mode: a comparison mode, or `suite`.
    """
    folder = Path(name) / "best" if (Path(name) / "best").is_dir() else Path(name)
    note = folder / "evaluation.json"
    about = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    rendering = Rendering(about.get("schema_style", "compact"), about.get("schema_samples", 0))
    suites: Mapping[str, Suite] = {}
    if data.is_dir():
        shards = read_shards(data)
        suites = shards.suites
        examples, own_mode = shards.examples(shards.validation), shards.comparison_mode
        if not examples:
            raise ShardError(f"{data}: no validation rows")
    elif databases is None:
        raise ShardError(f"{data}: --databases DIR is needed to evaluate rows from a file")
    else:
        examples, own_mode = read_records(data, databases, rendering), about.get("comparison_mode", "strict")
    chosen = own_mode if mode in (None, SUITE) else mode
    if chosen not in MODES:
        raise ShardError(f"comparison mode {chosen!r} is not one of {', '.join([*MODES, SUITE])}")
    seen = about.get("seen_databases")
    return Evaluand(
        policy=load_policy(folder if folder.is_dir() else name),
        examples=examples,
        mode=chosen,
        max_new_tokens=max_new_tokens or about.get("max_new_tokens", 512),
        seen=None if seen is None else frozenset(seen),
        suites=suites,
        on_suites=mode == SUITE,
    )


def suites_of(
    examples: Sequence[Example],
    folder: Path,
    mode: str,
    *,
    advance: Callable[[int], None] = lambda rows: None,
) -> dict[str, Suite]:
    """Test suites for rows that bring none, built below `folder`: path of a database to its suite."""
    golds: dict[str, list[str]] = {}
    for example in examples:
        golds.setdefault(example.database, []).extend(example.gold_sqls)
    suites = {}
    with Sandbox() as sandbox:
        for number, (database, sqls) in enumerate(golds.items()):
            suites[database] = build_suite(Path(database), sqls, folder / str(number), sandbox, mode=mode)
            advance(sum(e.database == database for e in examples))
    return suites


def evaluate_policy(
    evaluand: Evaluand,
    examples: Sequence[Example],
    judge: Judge,
    *,
    batch_size: int,
    advance: Callable[[int], None],
) -> Evaluation:
    policy = evaluand.policy
    if torch.cuda.is_available():
        policy.model.to("cuda")  # type: ignore[arg-type]
    texts = generate(
        policy,
        [e.prompt for e in examples],
        max_new_tokens=evaluand.max_new_tokens,
        batch_size=batch_size,
        advance=advance,
    )
    return summarize(examples, judge_completions(judge, texts, examples), evaluand.seen)
