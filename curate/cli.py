"""The `curate` command: parse, call, print."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

import curate

app = typer.Typer(
    name="curate",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Turn raw question/SQL pairs and databases into staged curriculum shards, with a reason for every "
    "row that left.\n\n"
    "Start with [bold]curate demo demo[/bold] and [bold]curate run demo/pipeline.yaml[/bold].\n\n"
    "Exit codes: 0 done, 1 failed while working, 2 wrong usage or config.",
)

LOG_WIDTH = 120  # where there is no terminal to ask

out = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
err = Console(stderr=True, highlight=False)

PipelineFile = Annotated[Path, typer.Argument(metavar="PIPELINE.YAML", help="The pipeline file.")]
Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: steps.dedup.max_paraphrases=3"),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="A trial on N train rows; its output goes to OUTPUT-limit-N."),
]


@contextmanager
def _errors_told() -> Iterator[None]:
    """What a user can mend is told in plain words, with the exit code of its kind."""
    from curate.config import ConfigError
    from curate.data import InputError
    from curate.inspect import NotThere
    from curate.part import StepFailed
    from curate.pipeline import RunFailed

    try:
        yield
    except ConfigError as error:
        for line in error.lines():
            err.print(line, markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except (InputError, NotThere) as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except (RunFailed, StepFailed, ModuleNotFoundError) as error:
        err.print(f"failed: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except OSError as error:
        said = f"failed: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            said += ". Free some space and run the same command again: finished parts are kept"
        err.print(said, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print("stopped; run the same command again to continue: finished parts are kept")
        raise typer.Exit(1) from None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"curate {curate.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def run(
    pipeline: PipelineFile,
    set_: Override = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    limit: Limit = None,
    restart: Annotated[bool, typer.Option("--restart", help="Compute everything anew.")] = False,
    link: Annotated[
        bool, typer.Option("--link", help="Hard-link databases into the shards instead of copying.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Run a pipeline; continues where an earlier run stopped."""
    with _errors_told():
        from curate.api import run as run_pipeline
        from curate.progress import Reporter

        manifest = run_pipeline(
            pipeline,
            set=set_ or (),
            workers=workers,
            limit=limit,
            restart=restart,
            link=link,
            reporter=Reporter(quiet=quiet),
        )
        if not quiet:
            _closing(manifest, Path(manifest["output"]))


def _closing(manifest: dict[str, Any], path: Path) -> None:
    grid = Grid(
        "step", "read", "kept", "dropped by reason", "errors", "seconds", "rows/s", "parts run/cached"
    )
    for column in grid.columns:
        column.justify, column.no_wrap = "right", True
    grid.columns[0].justify = grid.columns[3].justify = "left"
    if manifest["refused"]:
        grid.add_row("read", "", "", f"refused {manifest['refused']:,}", "", "", "", "")
    for step in manifest["steps"]:
        grid.add_row(
            step["name"],
            f"{step['read']:,}",
            f"{step['kept']:,}",
            "\n".join(f"{reason} {n:,}" for reason, n in step["dropped"].items()),
            f"{sum(step['errors'].values()):,}" if step["errors"] else "",
            f"{step['seconds']:.1f}",
            f"{step['rows_per_second']:,.0f}",
            f"{step['parts_run']}/{step['parts_cached']}",
        )
    out.print(grid)
    counts = manifest["counts"]
    out.print(
        f"{counts['read']:,} rows read, {counts['kept']:,} kept, {counts['dropped']:,} dropped, "
        f"{counts['errors']:,} undecided, in {manifest['seconds']:.1f} s"
    )
    shards = manifest["shards"]
    if shards:
        stages = ", ".join(f"stage {s}: {n:,}" for s, n in shards["stages"].items())
        same = " (unchanged)" if shards["unchanged"] else ""
        out.print(f"shards    {path / 'shards'}{same}: {stages}", markup=False, soft_wrap=True)
    for name, what in (
        ("rejected.parquet", "every row that left, and why"),
        ("ledger.parquet", "every decision"),
        ("report.html", "open in a browser"),
    ):
        out.print(f"{name:<18}{path / name}: {what}", markup=False, soft_wrap=True)


@app.command()
def check(pipeline: PipelineFile, set_: Override = None) -> None:
    """Look for what would stop a run: config, column flow, databases, a 20-row trial of every step."""
    with _errors_told():
        from curate.check import check as problems_of
        from curate.config import load

        problems = list(problems_of(load(pipeline, set_ or ())))
        for problem in problems:
            err.print(problem, markup=False, soft_wrap=True)
        if problems:
            raise typer.Exit(2)
        out.print(f"{escape(str(pipeline))}: no problem found")


@app.command()
def plan(pipeline: PipelineFile, set_: Override = None, limit: Limit = None) -> None:
    """Say which parts are cached and which would run, with an estimate; computes nothing."""
    with _errors_told():
        from curate.config import load
        from curate.pipeline import limited, locked
        from curate.pipeline import plan as plan_of

        loaded = limited(load(pipeline, set_ or ()), limit)
        with locked(loaded.output):
            planned = plan_of(loaded, _rates(loaded.output), limit)
        grid = Grid("step", "parts cached", "would run", "wait for an earlier step", "rows", "estimate")
        for column in grid.columns[1:]:
            column.justify = "right"
        for one in planned:
            estimate = "unknown" if one.seconds is None else f"{one.seconds:.1f} s"
            grid.add_row(one.name, f"{one.cached}", f"{one.run}", f"{one.waiting}", f"{one.rows:,}", estimate)
        out.print(grid)
        out.print("Estimates use the rates of the last run; waiting parts may turn out to be cached.")


def _rates(path: Path) -> dict[str, float]:
    """Rows per second by step, from the last run here that computed them."""
    import json

    try:
        steps = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["steps"]
    except (OSError, ValueError, KeyError):
        return {}
    return {s["name"]: s["rows_per_second"] for s in steps if s["parts_run"] and s["rows_per_second"]}


@app.command()
def why(
    row: Annotated[str, typer.Argument(metavar="ROW", help="A row_id, or its first digits.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The output directory.")],
) -> None:
    """Tell the life of one row: what each step wrote and decided, and where it ended."""
    with _errors_told():
        from curate.inspect import why as life_of

        life = life_of(row, output)
        out.print(f"row_id    {life.row_id}  (input: {life.input})", markup=False)
        for column, value in life.row.items():
            if column != "row_id" and value not in (None, "", []):
                out.print(f"  {column}: {value}", markup=False, soft_wrap=True)
        for step, written, decided in life.steps:
            out.print(f"{step}", style="bold", markup=False)
            for column, value in written.items():
                out.print(f"  {column}: {value}", markup=False, soft_wrap=True)
            for one in decided:
                out.print(f"  {_decision(one)}", markup=False, soft_wrap=True)
        out.print(f"emitted   {life.emitted or 'no'}", markup=False)


def _decision(one: dict[str, Any]) -> str:
    said = f"{one['action'].upper()} {one['reason']}"
    if one["detail"]:
        said += f": {one['detail']}"
    if one["partner_id"]:
        said += f"; partner {one['partner_id']}"
    return said + (f"; score {one['score']:.3f}" if one["score"] is not None else "")


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="OUT_A", help="An output directory.")],
    b: Annotated[Path, typer.Argument(metavar="OUT_B", help="Another.")],
    output: Annotated[Path | None, typer.Option(help="Write every changed row to this parquet file.")] = None,
) -> None:
    """Rows that entered, left, or changed stage, weight or place, by reason."""
    with _errors_told():
        import polars as pl

        from curate.inspect import diff as changes_between
        from curate.store import to_parquet

        changes = changes_between(a, b)
        if output is not None:
            to_parquet(changes, output)
        if changes.is_empty():
            out.print("no row differs")
            return
        grid = Grid("change", "reason", "rows", "for example")
        grid.columns[2].justify = "right"
        grouped = changes.group_by("change", "reason", maintain_order=True).agg(
            pl.len().alias("rows"), pl.col("question").first()
        )
        for change, reason, rows, example in grouped.sort(
            "change", "rows", descending=[False, True]
        ).iter_rows():
            grid.add_row(change, reason or "", f"{rows:,}", escape(example))
        out.print(grid)


@app.command()
def steps() -> None:
    """List the steps, what they read and write, and their settings."""
    with _errors_told():
        from curate.step import load_step, step_names

        for name in sorted(step_names()):
            step = load_step(name)
            kind = step if isinstance(step, type) else type(step)
            out.print(f"{name}", style="bold", markup=False)
            out.print(f"  {(kind.__doc__ or '').strip().splitlines()[0]}", markup=False, soft_wrap=True)
            out.print(f"  reads {', '.join(kind.reads)}; writes {', '.join(kind.writes) or 'decisions only'}")
            for field, info in kind.model_fields.items():
                out.print(f"  {field} = {info.get_default(call_default_factory=True)!r}", markup=False)


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the corpus.")],
    rows: Annotated[int, typer.Option(min=1, help="Train rows.")] = 4000,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    language: Annotated[str, typer.Option(help="en, zh or both.")] = "en",
) -> None:
    """Write the demo corpus: databases, pairs with known defects, and the truth beside them."""
    if language not in ("en", "zh", "both"):
        err.print(f"--language is en, zh or both, not {language!r}", markup=False)
        raise typer.Exit(2)
    with _errors_told():
        from curate.demo import write_demo

        write_demo(directory, rows=rows, seed=seed, language=language)
        out.print(f"wrote {directory}; next: curate run {directory / 'pipeline.yaml'}", markup=False)


def main() -> None:
    app(prog_name="curate")


if __name__ == "__main__":
    sys.exit(main())
