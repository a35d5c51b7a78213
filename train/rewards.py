"""Rewards of a completion against its gold SQL: execution 0.6, syntax 0.2, structure 0.2.

Each component is in [0, 1] and a right SQL gets 1 in all three, whatever it looks like. So a right SQL always
totals 1.0 and a wrong one at most 0.4: no amount of partial credit lets a wrong SQL outrank a right one.

- execution: 1 if the result equals that of one of the gold SQLs under the shards' comparison mode, on the
  database and, where the shards hold its test suite, on the neighbours too; else 0.
- syntax: 1 if the SQL runs without error, 0.5 if it only parses, else 0.
- structure: similarity of its clauses to those of the nearest gold SQL (see `similarity`).

Partial credit is only for SQL that reads a table of the gold: `SELECT 1` and its like score 0.
An empty gold result proves little, so there a SQL is right only if it reads the gold's tables as well.

A prediction that times out, or kills its worker twice, is wrong. What could not be decided (the database is
missing, no gold SQL runs) is None: TRL leaves such a completion out of its group's baseline and gradient.
Needs no torch.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlglot import exp

from curate.sql.canonical import SqlParseError, canonicalize, parse
from curate.sql.sandbox import Judgement, Pair, Sandbox
from curate.sql.schema import Schema, SchemaError, read_sqlite
from curate.sql.testsuite import Suite, judge_on_suites

CACHE_ENTRIES = 50_000

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Gold:
    """What a completion is judged against. database: path of the SQLite file; sqls: every accepted SQL."""

    database: str
    sqls: tuple[str, ...]
    dialect: str = "sqlite"


@dataclass(frozen=True, slots=True)
class Verdict:
    """right: equal to a gold result. reason: right, wrong, near_miss (right on the database, wrong on a neighbour
    of its test suite), empty, error, timeout, denied, too_many_rows, ...

    empty: the gold result it equals has no rows. runs: it was executed without error.
    """

    right: bool
    runs: bool
    empty: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Weights:
    execution: float = 0.6
    syntax: float = 0.2
    structure: float = 0.2

    def __post_init__(self) -> None:
        values = (self.execution, self.syntax, self.structure)
        if min(values) < 0 or abs(sum(values) - 1) > 1e-9:
            raise ValueError(f"reward weights must be >= 0 and sum to 1, not {values}")
        if self.execution <= 0.5:
            raise ValueError(
                f"execution must weigh more than 0.5, not {self.execution}: else wrong nears right"
            )


@dataclass(frozen=True, slots=True)
class Score:
    """The three components, each in [0, 1], and why execution is what it is."""

    execution: float
    syntax: float
    structure: float
    reason: str

    def total(self, weights: Weights) -> float:
        return (
            weights.execution * self.execution
            + weights.syntax * self.syntax
            + weights.structure * self.structure
        )


class RewardFunction(Protocol):
    __name__: str

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]: ...


_FENCE = re.compile(r"```[ \t]*(?:\w+[ \t]*)?\n?(.*?)(?:```|\Z)", re.DOTALL)


def extract_sql(completion: Any) -> str:
    """The SQL of a completion: the last fenced block if there is one, else all of it; no closing semicolon.

    Takes text, or TRL's list of chat messages (the last one counts).
    """
    text = completion if isinstance(completion, str) else str(completion[-1]["content"])
    text = text.rsplit("</think>", 1)[-1]
    blocks = _FENCE.findall(text)
    return (blocks[-1] if blocks else text).strip().rstrip(";").rstrip()


class Judge:
    """Executes SQL against golds under one comparison mode; the sandbox's workers remember the golds' results.

    suites: path of a database to its test suite, on which a SQL must be right too (curate.sql.testsuite).
    Not thread-safe; the sandbox belongs to the caller.
    """

    def __init__(self, sandbox: Sandbox, mode: str = "strict", suites: Mapping[str, Suite] | None = None):
        self.sandbox, self.mode, self.suites = sandbox, mode, suites or {}

    def judge(self, sqls: Sequence[str], golds: Sequence[Gold]) -> list[Verdict | None]:
        """One verdict a SQL, in order; None where it could not be decided."""
        pairs = [Pair(g.database, s, g.sqls) for s, g in zip(sqls, golds, strict=True)]
        return [_verdict(found) for found in judge_on_suites(self.sandbox, pairs, self.suites, self.mode)]


def _verdict(found: Judgement) -> Verdict | None:
    if found.status == "no_database" or len(found.failed) == found.golds:
        return None
    if found.status != "ok":
        return Verdict(False, False, False, found.status)
    if found.match:
        return Verdict(True, True, found.empty, "right")
    if found.refuted:
        return Verdict(False, True, False, "near_miss")
    if found.failed:  # the gold that did not run may be the one it equals
        return None
    return Verdict(False, True, False, "empty" if found.empty else "wrong")


_CLAUSE: dict[type[exp.Expr], str] = {
    exp.From: "tables",
    exp.Join: "tables",
    exp.Where: "where",
    exp.Group: "group",
    exp.Having: "having",
    exp.Order: "order",
    exp.Limit: "limit",
    exp.Offset: "limit",
}
_SILENT = (exp.Identifier, exp.Alias, exp.TableAlias, exp.Paren, exp.Subquery, exp.From, exp.Where)


def clauses(tree: exp.Expr) -> dict[str, Counter[str]]:
    """What each clause is made of: columns, literals, functions, operators, tables, with their counts.

    Clauses of nested queries count into the clause of the same name, and each query more than the first and
    each set operation into `queries`. Names are lower-cased; aliases do not count.
    """
    found: dict[str, Counter[str]] = {}

    def visit(node: exp.Expr, clause: str) -> None:
        if isinstance(node, exp.Query) and not isinstance(node, exp.Subquery):
            found.setdefault("queries", Counter())[type(node).__name__] += 1
            clause = "select"
        clause = _CLAUSE.get(type(node), clause)
        label = _label(node)
        if label:
            found.setdefault(clause, Counter())[label] += 1
        for child in node.iter_expressions():
            visit(child, clause)

    visit(tree, "select")
    return found


def _label(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Column | exp.Table):
        return node.name.lower()
    if isinstance(node, exp.Literal):
        return f"'{node.name}'"
    if isinstance(node, exp.Join):
        return " ".join(filter(None, (node.side, node.kind, "JOIN"))) if node.side else None
    if isinstance(node, exp.Ordered):
        return "DESC" if node.args.get("desc") else None
    if isinstance(node, exp.Query) or type(node) in _CLAUSE or isinstance(node, _SILENT):
        return None
    if isinstance(node, exp.Anonymous):
        return node.name.upper()
    return type(node).__name__


def similarity(a: exp.Expr, b: exp.Expr) -> float:
    """Mean over the clauses that either query has of the Dice coefficient of their contents, in [0, 1].

    Dice (1945): 2 |A and B| / (|A| + |B|), here on multisets. Symmetric; 1 for equal trees.
    """
    left, right = clauses(a), clauses(b)
    names = sorted(left.keys() | right.keys())
    return sum(_dice(left.get(n, Counter()), right.get(n, Counter())) for n in names) / len(names)


def _dice(a: Counter[str], b: Counter[str]) -> float:
    return 2 * (a & b).total() / (a.total() + b.total())


def tables(tree: exp.Expr) -> frozenset[str]:
    """Names of the tables a query reads, lower-cased, without its own CTEs."""
    own = {c.alias_or_name.lower() for c in tree.find_all(exp.CTE)}
    return frozenset(t.name.lower() for t in tree.find_all(exp.Table)) - own


class SqlRewards:
    """Scores completions, and hands TRL its three reward functions.

    The functions read the data set's columns `database` (path), `gold_sqls` and, if there, `dialect`.
    """

    def __init__(self, sandbox: Sandbox, mode: str = "strict", suites: Mapping[str, Suite] | None = None):
        self.judge = Judge(sandbox, mode, suites)
        self._trees: OrderedDict[tuple[str, str], exp.Expr | None] = OrderedDict()
        self._schemas: dict[str, Schema | None] = {}
        self._scores: OrderedDict[tuple[Gold, str], Score] = OrderedDict()
        self._last: tuple[list[str], list[Gold], list[Score | None]] | None = None

    def score(self, completions: Sequence[Any], golds: Sequence[Gold]) -> list[Score | None]:
        """One score a completion, in order; None where it could not be decided.

        Identical completions of a gold are executed once, in this call and over the run.
        """
        sqls = [extract_sql(c) for c in completions]
        pairs = list(zip(golds, sqls, strict=True))
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._scores]
        verdicts = self.judge.judge([s for _, s in new], [g for g, _ in new])
        fresh: dict[tuple[Gold, str], Score | None] = {
            pair: None if verdict is None else self._score(*pair, verdict)
            for pair, verdict in zip(new, verdicts, strict=True)
        }
        scores = [fresh[pair] if pair in fresh else self._scores[pair] for pair in pairs]
        for pair, score in fresh.items():
            if score is not None:
                _remember(self._scores, pair, score)
        return scores

    def _score(self, gold: Gold, sql: str, verdict: Verdict) -> Score:
        tree = self._tree(gold, sql)
        golds = [t for s in gold.sqls if (t := self._tree(gold, s)) is not None]
        if verdict.right and not (verdict.empty and not _reads_same(tree, golds)):
            return Score(1.0, 1.0, 1.0, verdict.reason)
        reason = "empty" if verdict.right else verdict.reason
        if tree is None:
            return Score(0.0, 0.0, 0.0, reason)
        if golds and not any(tables(tree) & tables(g) for g in golds if tables(g)):
            return Score(0.0, 0.0, 0.0, reason)
        structure = max((similarity(tree, g) for g in golds), default=0.0)
        return Score(0.0, 1.0 if verdict.runs else 0.5, structure, reason)

    def _tree(self, gold: Gold, sql: str) -> exp.Expr | None:
        """The canonical tree of a SQL, so that spelling does not count; None if it does not parse."""
        key = (gold.database, sql)
        if key not in self._trees:
            try:
                canonical = canonicalize(sql, self._schema(gold.database), gold.dialect)
                tree: exp.Expr | None = parse(canonical.sql, gold.dialect)
            except SqlParseError:
                tree = None
            _remember(self._trees, key, tree)
        return self._trees[key]

    def _schema(self, database: str) -> Schema | None:
        if database not in self._schemas:
            try:
                self._schemas[database] = read_sqlite(database)
            except SchemaError:  # execution says so; the structure is then compared without a schema
                self._schemas[database] = None
        return self._schemas[database]

    def functions(self) -> list[RewardFunction]:
        """TRL reward functions `execution`, `syntax`, `structure`: one scoring serves all three."""
        return [
            self._function("execution", lambda s: s.execution),
            self._function("syntax", lambda s: s.syntax),
            self._function("structure", lambda s: s.structure),
        ]

    def _function(self, name: str, component: Callable[[Score], float]) -> RewardFunction:
        def reward(*, completions: Sequence[Any], **columns: Any) -> list[float | None]:
            scores = self._batch(completions, columns)
            return [None if s is None else component(s) for s in scores]

        reward.__name__ = name
        return reward

    def _batch(self, completions: Sequence[Any], columns: dict[str, Any]) -> list[Score | None]:
        """Scores of TRL's batch. Kept for the next function, so that all three tell of the same execution."""
        texts = [extract_sql(c) for c in completions]
        golds = golds_of(columns["database"], columns["gold_sqls"], columns.get("dialect"))
        if self._last is None or self._last[0] != texts or self._last[1] != golds:
            self._last = (texts, golds, self.score(completions, golds))
        return self._last[2]


def golds_of(
    databases: Sequence[str], gold_sqls: Sequence[Iterable[str]], dialects: Sequence[str] | None = None
) -> list[Gold]:
    dialects = dialects or ["sqlite"] * len(databases)
    rows = zip(databases, gold_sqls, dialects, strict=True)
    return [Gold(database, tuple(sqls), dialect) for database, sqls, dialect in rows]


def _reads_same(tree: exp.Expr | None, golds: Sequence[exp.Expr]) -> bool:
    return tree is not None and any(tables(tree) == tables(g) for g in golds)


def _remember(cache: "OrderedDict[K, V]", key: K, value: V) -> None:
    cache[key] = value
    if len(cache) > CACHE_ENTRIES:
        cache.popitem(last=False)
