"""What a step is: it reads named columns and returns new columns, decisions, or both.

    class Longest(Step):
        name, version = "longest", 1
        reads, writes = ("question",), ("characters",)

        limit: int = 400

        def apply(self, frame, ctx):
            long = frame.filter(pl.col("question").str.len_chars() > self.limit)
            return Output(
                frame.select("row_id", characters=pl.col("question").str.len_chars()),
                decide(long, "drop", "too_long"),
            )

A plain function is a step too:

    @step(reads=["question"], writes=["characters"])
    def characters(frame):
        return frame.select("row_id", characters=pl.col("question").str.len_chars())
"""

import hashlib
import importlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict

from curate.databases import Databases
from curate.ledger import Action, decide, decisions

Scope = Literal["row", "group", "table"]
Use = Literal["databases", "comparison", "seed"]


@dataclass(frozen=True)
class Context:
    """What a step may ask for besides its columns.

    `references` maps the name of a reference input to its rows (the step's columns, no row of it is
    ever emitted). `comparison` is the run's comparison mode.
    """

    databases: Databases = field(default_factory=Databases)
    seed: int = 0
    comparison: str = "strict"
    references: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    def rng(self, step: str, row_id: str) -> random.Random:
        """The row's own random generator: the same whatever the order of rows or the number of workers."""
        digest = hashlib.blake2b(f"{self.seed}\x1f{step}\x1f{row_id}".encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "big"))


@dataclass(frozen=True)
class Output:
    """What a step gives back: `columns` (row_id and the columns it writes) and `decisions`."""

    columns: pl.DataFrame | None = None
    decisions: pl.DataFrame | None = None


class Step(BaseModel):
    """A frozen config and one method. Every public field enters the content key.

    reads / optional: columns the step is given (optional ones only where an earlier step wrote them).
    writes: columns it returns. scope: `row` and `group` steps see one part at a time, a `table` step
    sees its columns of all live rows. uses: what else its result depends on. libraries: packages whose
    version enters the content key. on_references: reference rows pass through it too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    scope: ClassVar[Scope] = "row"
    reads: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[Use, ...]] = ()
    libraries: ClassVar[tuple[str, ...]] = ()
    on_references: ClassVar[bool] = False
    threshold_field: ClassVar[str | None] = None

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        raise TypeError(f"{type(self).__name__} defines no apply(frame, ctx)")

    def key_config(self) -> dict[str, Any]:
        """The part of the config that the output depends on; JSON-able."""
        return self.model_dump(mode="json")

    def needs_references(self) -> tuple[str, ...]:
        """Names of the reference inputs the step compares with."""
        return ()

    def run(
        self,
        frame: Any,
        *,
        databases: Any = None,
        references: Mapping[str, Any] | None = None,
        seed: int = 0,
        comparison: str = "strict",
    ) -> "Result":
        """Apply the step to a frame in a notebook; steps whose columns are missing run first.

        `frame`: a polars or pandas frame, or a list of dicts, with question, sql and db_id.
        `databases`: the folder of databases. `references`: name -> frame, for steps that compare.
        Raises ValueError for a missing column that no built-in step writes.
        """
        ctx = Context(databases=Databases.open(databases), seed=seed, comparison=comparison)
        rows = _prepared(self, _as_frame(frame), ctx)
        held = {name: _prepared(self, _as_frame(f), ctx) for name, f in (references or {}).items()}
        ctx = replace(ctx, references=held)
        output = self.apply(_columns_for(self, rows), ctx)
        return Result(self, rows, output, ctx)


def _as_frame(frame: Any) -> pl.DataFrame:
    from curate.rows import as_rows

    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, list):
        empty = dict.fromkeys(("question", "sql", "db_id"), pl.String)
        frame = pl.DataFrame(frame, infer_schema_length=None) if frame else pl.DataFrame(schema=empty)
    if not isinstance(frame, pl.DataFrame):
        frame = pl.from_pandas(frame)
    return as_rows(frame)


def _columns_for(wanted: Step, frame: pl.DataFrame) -> pl.DataFrame:
    columns = [*wanted.reads, *(c for c in wanted.optional if c in frame.columns)]
    return frame.select("row_id", *(c for c in dict.fromkeys(columns) if c != "row_id"))


def _prepared(wanted: Step, rows: pl.DataFrame, ctx: Context) -> pl.DataFrame:
    """`rows` with the columns `wanted` reads, computed by the built-in steps that write them."""
    for column in wanted.reads:
        if column in rows.columns:
            continue
        writer = writer_of(column)
        if writer is None:
            raise ValueError(f"step '{wanted.name}' reads column '{column}', which the frame does not have")
        before = writer()
        rows = _prepared(before, rows, ctx)
        columns = before.apply(_columns_for(before, rows), ctx).columns
        if columns is not None:
            fresh = columns.select("row_id", *(c for c in columns.columns if c not in rows.columns))
            rows = rows.join(fresh, on="row_id", how="left", maintain_order="left")
    return rows


@dataclass(frozen=True)
class Result:
    """A step's effect on a frame: what stayed, what left and why, what was marked.

    kept: live rows with the written columns. dropped: rows that left, with reason, detail, partner_id,
    score. flagged: one line a flag. errors: rows that could not be decided.
    """

    step: Step
    rows: pl.DataFrame
    output: Output
    ctx: Context

    @property
    def decisions(self) -> pl.DataFrame:
        return decisions() if self.output.decisions is None else self.output.decisions

    @property
    def kept(self) -> pl.DataFrame:
        gone = self.decisions.filter(pl.col("action") != "flag").select("row_id").unique()
        rows = self.rows.join(gone, on="row_id", how="anti", maintain_order="left")
        if self.output.columns is None:
            return rows
        written = [c for c in self.output.columns.columns if c != "row_id"]
        return rows.drop(written, strict=False).join(
            self.output.columns, on="row_id", how="left", maintain_order="left"
        )

    @property
    def dropped(self) -> pl.DataFrame:
        return self._with_rows("drop")

    @property
    def errors(self) -> pl.DataFrame:
        return self._with_rows("error")

    @property
    def flagged(self) -> pl.DataFrame:
        return self._with_rows("flag")

    def _with_rows(self, action: Action) -> pl.DataFrame:
        chosen = self.decisions.filter(pl.col("action") == action).drop("action")
        return chosen.join(self.rows, on="row_id", how="left", maintain_order="left")

    def rethreshold(self, threshold: float) -> "Result":
        """The same step on the same rows under another threshold; columns already computed are reused.

        Raises ValueError where the step has no threshold.
        """
        name = self.step.threshold_field
        if name is None:
            raise ValueError(f"step '{self.step.name}' has no threshold to change")
        step = type(self.step).model_validate({**self.step.model_dump(), name: threshold})
        return replace(self, step=step, output=step.apply(_columns_for(step, self.rows), self.ctx))

    def summary(self) -> pl.DataFrame:
        """Count of rows by action and reason."""
        return self.decisions.group_by("action", "reason").len("rows").sort("action", "reason")

    def plot(self) -> Any:
        """A bar chart of `summary()` (needs matplotlib: `pip install matplotlib`)."""
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("plots need matplotlib: pip install matplotlib") from error
        counts = self.summary()
        labels = ["kept", *(f"{a}: {r}" for a, r in counts.select("action", "reason").iter_rows())]
        figure, axes = plt.subplots(figsize=(6, 0.4 * len(labels) + 1), layout="tight")
        axes.barh(labels[::-1], [self.kept.height, *counts["rows"]][::-1])
        axes.set_xlabel("rows")
        axes.set_title(self.step.name)
        return figure

    def __repr__(self) -> str:
        return (
            f"<{type(self.step).__name__}: {self.rows.height} rows, {self.kept.height} kept, "
            f"{self.dropped.height} dropped, {self.errors.height} errors, {self.flagged.height} flags>"
        )


def step(
    *,
    reads: Sequence[str],
    writes: Sequence[str] = (),
    scope: Scope = "row",
    version: int = 1,
    on_references: bool = False,
) -> Callable[[Callable[..., Any]], Step]:
    """Make a step of a function `f(frame)` or `f(frame, ctx)`.

    It returns a frame of `row_id` and the columns it writes, a frame of decisions (see `decide`), or an
    `Output` of both. Raise `version` when the function changes: the cache cannot see it.
    """

    def wrap(function: Callable[..., Any]) -> Step:
        takes_context = function.__code__.co_argcount > 1

        def apply(self: Step, frame: pl.DataFrame, ctx: Context) -> Output:
            value = function(frame, ctx) if takes_context else function(frame)
            if isinstance(value, Output):
                return value
            return Output(decisions=value) if "action" in value.columns else Output(columns=value)

        body: dict[str, Any] = {
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__doc__": function.__doc__,
            "__reduce__": lambda self: (_imported, (function.__module__, function.__qualname__)),
            "name": function.__name__,
            "version": version,
            "scope": scope,
            "reads": tuple(reads),
            "writes": tuple(writes),
            "on_references": on_references,
            "apply": apply,
            "__annotations__": {k: f"ClassVar[{v}]" for k, v in _CLASSVARS.items()},
        }
        made: type[Step] = type(function.__name__, (Step,), body)
        return made()

    return wrap


_CLASSVARS = {
    "name": "str",
    "version": "int",
    "scope": "str",
    "reads": "tuple",
    "writes": "tuple",
    "on_references": "bool",
}


def _imported(module: str, qualname: str) -> Any:
    value: Any = importlib.import_module(module)
    for part in qualname.split("."):
        value = getattr(value, part)
    return value


# The built-in steps: name -> where it is, imported only when used.
BUILTIN = {
    "normalize": "curate.steps.normalize:Normalize",
    "review": "curate.steps.review:Review",
    "validate": "curate.steps.validate:Validate",
    "canonicalize": "curate.steps.canonicalize:Canonicalize",
    "dedup": "curate.steps.dedup:Dedup",
    "decontaminate": "curate.steps.decontaminate:Decontaminate",
    "difficulty": "curate.steps.difficulty:Difficulty",
    "curriculum": "curate.steps.curriculum:Curriculum",
}

ENTRY_POINTS = "nl2sql_curate.steps"


def step_names() -> dict[str, str]:
    """Every known step: the built-in ones and those other packages bring; name -> where it is."""
    brought = {e.name: e.value for e in entry_points(group=ENTRY_POINTS)}
    return {**brought, **BUILTIN}


def load_step(name: str) -> type[Step] | Step:
    """The step class (or ready step) called `name`. Raises KeyError for an unknown name."""
    module, _, attribute = step_names()[name].partition(":")
    return _imported(module, attribute)  # type: ignore[no-any-return]


def writer_of(column: str) -> type[Step] | None:
    """The built-in step class that writes `column`."""
    for name in BUILTIN:
        found = load_step(name)
        if isinstance(found, type) and column in found.writes:
            return found
    return None


def make_step(name: str, config: Mapping[str, Any]) -> Step:
    """A step from its name and config. Raises KeyError (name) or pydantic.ValidationError (config)."""
    found = load_step(name)
    return found.model_validate(config) if isinstance(found, type) else found


__all__ = ["Context", "Output", "Result", "Step", "decide", "decisions", "load_step", "step"]
