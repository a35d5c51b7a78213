"""validate: execute every gold SQL on its database, and look for what makes a gold doubtful."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field, field_validator

from curate.ledger import decisions
from curate.sql import findings, probes
from curate.sql.findings import Finding, examine, foreign_dialect
from curate.sql.probes import Probes, same_rows
from curate.sql.sandbox import Execution, Limits, Pair, Query, Sandbox
from curate.sql.schema import Schema
from curate.sql.testsuite import Suite, build_suite, judge_on_suites
from curate.step import Context, Output, Step, Use

# What a status of the sandbox means for a gold: (action, reason).
REFUSED = {
    "error": ("drop", "gold_fails"),
    "timeout": ("drop", "gold_timeout"),
    "too_many_rows": ("drop", "gold_too_many_rows"),
    "denied": ("drop", "gold_denied"),
    "no_database": ("error", "no_database"),
    "crashed": ("error", "worker_crashed"),
}

INDISTINGUISHABLE = "indistinguishable"

# Every check of a gold that runs. What a sound gold often shows too is off until asked for.
CHECKS = {
    **findings.CHECKS,
    **probes.CHECKS,
    INDISTINGUISHABLE: "a near-miss of the gold has its result on this database, and another one on other rows",
}
OFF = frozenset({"unparsable", INDISTINGUISHABLE})  # canonicalize says `unparsed` as well

Act = Literal["drop", "flag", "off"]
Gold = tuple[str, str]  # db_id, sql


class Validate(Step):
    """Execute the gold SQL read-only, in a sandbox; keep the rows whose gold runs and flag the doubtful ones.

    Writes gold_digest (digest of the result under the run's comparison mode, typed) and gold_rows (rows of
    the result). Drops `gold_fails`, `gold_timeout`, `gold_too_many_rows`, `gold_denied` (not a single
    read-only query). Errors `no_database` (missing, or not a SQLite file), `worker_crashed`,
    `unsupported_dialect`. A further accepted SQL of the row that does not run is flagged
    `alternative_fails`; one whose result is not that of the first gold, `alternative_differs`.

    A gold that runs is examined by the checks of curate.sql.findings (the SQL against the schema) and
    curate.sql.probes (the result and the values in the database); each is named there. By default they flag.
    checks: what to do instead, by name: `drop`, `flag` or `off`, e.g. {empty_result: drop, whole_table: off}.

    `indistinguishable` is off by default. It builds a test suite (curate.sql.testsuite; about 40 golds a second)
    of every database and fires where a near-miss of the gold would earn the reward of a right answer on the
    database alone; accepted SQL must then give the gold's result on the neighbours too, else
    `alternative_differs`. Shards with `output: {suite: true}` judge on the suites and need not lose such golds.

    timeout_s: seconds a query may take. max_rows: rows a result may have (by default
    what the trainer allows, so that no gold kept here fails there).
    """

    name: ClassVar[str] = "validate"
    version: ClassVar[int] = 2
    reads: ClassVar[tuple[str, ...]] = ("db_id", "sql", "gold_sqls", "dialect")
    optional: ClassVar[tuple[str, ...]] = ("reviewed",)
    writes: ClassVar[tuple[str, ...]] = ("gold_digest", "gold_rows")
    uses: ClassVar[tuple[Use, ...]] = ("databases", "comparison", "seed")
    libraries: ClassVar[tuple[str, ...]] = ("sqlglot",)

    timeout_s: float = Field(5.0, gt=0)
    max_rows: int = Field(Limits().max_rows, ge=1)
    checks: dict[str, Act] = Field(default_factory=dict)

    @field_validator("checks")
    @classmethod
    def _known(cls, value: dict[str, Act]) -> dict[str, Act]:
        for name in value:
            if name not in CHECKS:
                close = findings.nearest(name, CHECKS)
                hint = f"; did you mean {close}?" if close else f"; there are {', '.join(CHECKS)}"
                raise ValueError(f"unknown check '{name}'{hint}")
        return value

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        rows = list(frame.select("row_id", "db_id", "sql", "gold_sqls", "dialect").iter_rows())
        limits = Limits(timeout_s=self.timeout_s, max_rows=self.max_rows)
        with Sandbox(workers=1, limits=limits) as sandbox:
            found = _execute(rows, sandbox, ctx)
            runs = {gold: done for gold, done in found.items() if done.ok}
            golds = {(r[1], r[2]): runs[r[1], r[2]] for r in rows if (r[1], r[2]) in runs}
            doubts = self._doubts(golds, sandbox, ctx)
            with TemporaryDirectory() as folder:
                suites: dict[str, Suite] = {}
                if self._act(INDISTINGUISHABLE) != "off":
                    suites = _suites(runs, Path(folder), sandbox, ctx)
                    for (db_id, sql), found_here in doubts.items():
                        found_here += _near_misses(suites.get(str(ctx.databases.path(db_id))), sql)
                differ = _differing(rows, runs, suites, sandbox, ctx)
        reviewed = _reviewed(frame)
        said: list[dict[str, Any]] = []
        digests: list[str | None] = []
        sizes: list[int | None] = []
        for row_id, db_id, sql, golds, dialect in rows:
            done = found.get((db_id, sql))
            said += _judged(row_id, db_id, sql, dialect, done, ctx)
            said += self._flagged(row_id, doubts.get((db_id, sql), []), sure=row_id in reviewed)
            others = [g for g in golds or () if g != sql]
            said += _alternatives(
                row_id, [(g, found.get((db_id, g))) for g in others], differ.get(row_id, {})
            )
            digests.append(done.digest if done is not None and done.ok else None)
            sizes.append(done.row_count if done is not None and done.ok else None)
        columns = frame.select(
            "row_id",
            pl.Series("gold_digest", digests, dtype=pl.String),
            pl.Series("gold_rows", sizes, dtype=pl.Int64),
        )
        return Output(columns, decisions(said))

    def _act(self, check: str) -> Act:
        return self.checks.get(check, "off" if check in OFF else "flag")

    def _doubts(
        self, golds: dict[Gold, Execution], sandbox: Sandbox, ctx: Context
    ) -> dict[Gold, list[Finding]]:
        """The findings on golds that run, by gold."""
        cases = []
        for (db_id, sql), done in golds.items():
            schema, path = ctx.databases.schema(db_id), ctx.databases.path(db_id)
            if schema is not None and path is not None:
                cases.append(_Case((db_id, sql), str(path), done, schema))
        _ask_database(cases, sandbox)
        return {case.gold: [f for f in case.found if self._act(f.check) != "off"] for case in cases}

    def _flagged(self, row_id: str, found: list[Finding], *, sure: bool) -> Iterator[dict[str, Any]]:
        """One decision a check, its evidence joined. sure: a person saw the row, so that doubt drops it not."""
        evidence: dict[str, list[str]] = {}
        for finding in found:
            evidence.setdefault(finding.check, []).append(finding.evidence)
        for check, texts in evidence.items():
            act = "flag" if sure else self._act(check)
            yield {"row_id": row_id, "action": act, "reason": check, "detail": "; ".join(texts)}


def _reviewed(frame: pl.DataFrame) -> frozenset[str]:
    if "reviewed" not in frame.columns:
        return frozenset()
    return frozenset(frame.filter(pl.col("reviewed").is_not_null())["row_id"])


def _execute(rows: list[tuple[Any, ...]], sandbox: Sandbox, ctx: Context) -> dict[Gold, Execution]:
    wanted = dict.fromkeys(
        (db_id, gold)
        for _, db_id, sql, golds, dialect in rows
        if dialect == "sqlite"
        for gold in (sql, *(golds or ()))
    )
    paths = {db_id: ctx.databases.path(db_id) for db_id, _ in wanted}
    asked = [(gold, Query(str(path), gold[1])) for gold in wanted if (path := paths[gold[0]]) is not None]
    done = sandbox.run([query for _, query in asked], digest=ctx.comparison)
    return {gold: execution for (gold, _), execution in zip(asked, done, strict=True)}


def _judged(
    row_id: str, db_id: str, sql: str, dialect: str, done: Execution | None, ctx: Context
) -> Iterator[dict[str, Any]]:
    if dialect != "sqlite":
        detail = f"dialect '{dialect}' cannot be executed; only sqlite can"
        yield {"row_id": row_id, "action": "error", "reason": "unsupported_dialect", "detail": detail}
    elif done is None:
        detail = f"no database '{db_id}' below the databases root"
        yield {"row_id": row_id, "action": "error", "reason": "no_database", "detail": detail}
    elif not done.ok:
        action, reason = REFUSED[done.status]
        detail = done.error or done.status
        if done.status == "error":
            detail = "; ".join([detail, *_explained(sql, detail, ctx.databases.schema(db_id))])
        yield {"row_id": row_id, "action": action, "reason": reason, "detail": detail}


def _explained(sql: str, error: str, schema: Schema | None) -> list[str]:
    """Why a gold may fail: the name that is not there with the nearest that is, or another dialect."""
    names = ("unknown_table", "unknown_column")
    found = [f.evidence for f in examine(sql, schema) if f.check in names] if schema is not None else []
    other = foreign_dialect(sql, error)
    return found + ([f"it reads as {other}"] if other else [])


def _differing(
    rows: list[tuple[Any, ...]],
    runs: dict[Gold, Execution],
    suites: dict[str, Suite],
    sandbox: Sandbox,
    ctx: Context,
) -> dict[str, dict[str, str]]:
    """Accepted SQL whose result is not that of the first gold, by row, with why."""
    asked = [
        (row_id, other, Pair(str(ctx.databases.path(db_id)), other, (sql,)))
        for row_id, db_id, sql, golds, _ in rows
        for other in golds or ()
        if other != sql and (db_id, sql) in runs and (db_id, other) in runs
    ]
    judged = judge_on_suites(sandbox, [pair for _, _, pair in asked], suites, ctx.comparison)
    differ: dict[str, dict[str, str]] = {}
    for (row_id, other, _), found in zip(asked, judged, strict=True):
        if not found.match and not found.failed:
            differ.setdefault(row_id, {})[other] = found.reason or found.status
    return differ


def _alternatives(
    row_id: str, others: list[tuple[str, Execution | None]], differ: dict[str, str]
) -> Iterator[dict[str, Any]]:
    for gold, done in others:
        if done is not None and not done.ok:
            detail = f"{done.status}: {done.error}: {gold}"
            yield {"row_id": row_id, "action": "flag", "reason": "alternative_fails", "detail": detail}
        elif gold in differ:
            detail = f"{differ[gold]}: {gold}"
            yield {"row_id": row_id, "action": "flag", "reason": "alternative_differs", "detail": detail}


# Findings that need neighbours of the database


def _suites(runs: Iterable[Gold], folder: Path, sandbox: Sandbox, ctx: Context) -> dict[str, Suite]:
    """Path of a database to the test suite of its golds that run."""
    golds: dict[Path, list[str]] = {}
    for db_id, sql in runs:
        path = ctx.databases.path(db_id)
        if path is not None and ctx.databases.schema(db_id) is not None:
            golds.setdefault(path, []).append(sql)
    return {
        str(path): build_suite(path, sqls, folder / str(i), sandbox, seed=ctx.seed, mode=ctx.comparison)
        for i, (path, sqls) in enumerate(golds.items())
    }


def _near_misses(suite: Suite | None, gold: str) -> Iterator[Finding]:
    found = suite.near_misses.get(gold, ()) if suite is not None else ()
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield Finding(INDISTINGUISHABLE, f"this has the same result here: {found[0]}{more}")


# Findings that need the database


@dataclass
class _Case:
    gold: Gold
    path: str
    done: Execution
    schema: Schema
    found: list[Finding] = field(default_factory=list)
    probes: Probes = field(default_factory=Probes)

    def query(self, sql: str, *, reverse: bool = False) -> Query:
        return Query(self.path, sql, reverse)

    @property
    def chance(self) -> bool:
        """Whether its result may change between runs."""
        return any(f.check == "nondeterministic" for f in self.found)


def _ask_database(cases: list[_Case], sandbox: Sandbox) -> None:
    for case in cases:
        case.found = examine(case.gold[1], case.schema)
        case.probes = probes.probes(case.gold[1], case.schema)
        if case.done.row_count == 0:
            case.found.append(Finding("empty_result", "no rows"))
        if case.done.all_null:
            case.found.append(
                Finding("all_null", f"every value of the result is NULL (rows: {case.done.row_count:,})")
            )
    _look_for_ties(cases, sandbox)
    _read_backwards(cases, sandbox)
    _look_up_values(cases, sandbox)


def _look_for_ties(cases: Iterable[_Case], sandbox: Sandbox) -> None:
    asked = [(case, case.probes.tie) for case in cases if case.probes.tie is not None]
    results = sandbox.run([case.query(tie.sql) for case, tie in asked])
    for (case, tie), result in zip(asked, results, strict=True):
        finding = tie.finding(result.rows) if result.ok else None
        if finding is not None:
            case.found.append(finding)


def _read_backwards(cases: Iterable[_Case], sandbox: Sandbox) -> None:
    asked = [case for case in cases if case.probes.scan_order or case.chance]
    forward = sandbox.run([case.query(case.gold[1]) for case in asked])
    backward = sandbox.run([case.query(case.gold[1], reverse=not case.chance) for case in asked])
    for case, one, other in zip(asked, forward, backward, strict=True):
        if one.ok and other.ok and not same_rows(one.rows, other.rows):
            check = "unstable" if case.chance else "order_dependent"
            case.found.append(Finding(check, probes.CHECKS[check]))


def _look_up_values(cases: Iterable[_Case], sandbox: Sandbox) -> None:
    asked = [(case, value) for case in cases for value in case.probes.values]
    there = sandbox.run([case.query(value.exists()) for case, value in asked])
    absent = [pair for pair, found in zip(asked, there, strict=True) if found.ok and not found.rows]
    held = sandbox.run([case.query(value.values()) for case, value in absent])
    for (case, value), found in zip(absent, held, strict=True):
        case.found.append(value.absent([row[0] for row in found.rows]))
