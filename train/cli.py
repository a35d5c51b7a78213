"""The `train` command: parse, call, print. Loads torch only when it trains or evaluates."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from train.config import Config
    from train.evaluate import Evaluation
    from train.run import Outcome
    from train.shards import Example

EXTRA = 'this needs the train extra: pip install "nl2sql-curate[train]"'
NEEDED = ("torch", "transformers", "trl", "datasets")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"nl2sql-curate {metadata.version('nl2sql-curate')}")
        raise typer.Exit


@contextmanager
def _errors_told() -> Iterator[None]:
    """Errors of the user's making as text, exit 2; of the work, exit 1."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        _fail(f"{', '.join(absent)} not installed; {EXTRA}", 2)
    from train.config import ConfigError
    from train.shards import ShardError

    try:
        yield
    except (ConfigError, ShardError) as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted; the same command with --resume goes on from the last checkpoint", 1)
    except (OSError, RuntimeError) as error:
        _fail(f"{type(error).__name__}: {error}", 1)


def _fail(text: str, code: int) -> None:
    err.print(text, markup=False, soft_wrap=True)
    raise typer.Exit(code)


@app.callback(invoke_without_command=True)
def train(
    context: typer.Context,
    curriculum: Annotated[
        Path | None, typer.Option(help="The shards/ folder that `curate run` writes.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model name or folder; 'scratch' (the default without a GPU) is a small new policy."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=0, help="GRPO steps.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, like a run's config.yaml.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same run.")] = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Train an NL2SQL policy on curriculum shards: SFT warm start, then staged GRPO.

    Writes config.yaml, metrics.jsonl, eval.jsonl, ledger.parquet, checkpoints/ and best/, the policy with the
    highest greedy execution accuracy (EX) on held-out rows.
    """
    if context.invoked_subcommand is not None:
        return
    if curriculum is None and not (resume and output):
        _fail("nothing to train on: give --curriculum shards/ (see train --help)", 2)
    with _errors_told():
        options: dict[str, Any] = {}
        if curriculum is not None:
            options["curriculum"] = str(curriculum)
        if max_steps is not None:
            options["grpo"] = {"max_steps": max_steps}
        if seed is not None:
            options["seed"] = seed
        ready = _configure(curriculum, model, output, config, settings or [], options, resume)
        from train.run import run

        _print_outcome(run(ready, resume=resume))


def _configure(
    curriculum: Path | None,
    model: str | None,
    output: Path | None,
    file: Path | None,
    settings: list[str],
    options: dict[str, Any],
    resume: bool,
) -> "Config":
    """The settings of a new run, or those saved by the run to go on with. Raises ConfigError."""
    from train.config import ConfigError, read_yaml, resolve

    folder = output or _folder(curriculum, resume)
    options["output"] = str(folder)
    saved = folder / "config.yaml"
    if resume:
        if not saved.exists():
            raise ConfigError(f"{folder}: no run to resume (no config.yaml)")
        base = read_yaml(saved)
        for name, value in (("model", model), ("seed", options.get("seed"))):
            if value is not None and value != base.get(name):
                raise ConfigError(
                    f"--{name} {value}: this run has {base.get(name)}; that cannot change when resuming"
                )
        return resolve(base.get("model", ""), file=file, settings=settings, options=options, base=base)
    if saved.exists():
        raise ConfigError(f"{folder}: holds a run already; go on with --resume, or choose another --output")
    named = model or (read_yaml(file).get("model") if file else None) or _default_model()
    return resolve(named, file=file, settings=settings, options={**options, "model": named})


def _default_model() -> str:
    import torch

    from train.config import SCRATCH, SMALL_MODEL

    return SMALL_MODEL if torch.cuda.is_available() else SCRATCH


def _folder(curriculum: Path | None, resume: bool) -> Path:
    """runs/NAME, runs/NAME-2, ...: the last one there is to resume, the first free one for a new run."""
    from train.shards import read_name

    name = read_name(curriculum or Path())
    last, number = Path("runs") / name, 2
    free = last
    while free.exists():
        last, free = free, Path("runs") / f"{name}-{number}"
        number += 1
    return last if resume else free


def _print_outcome(outcome: "Outcome") -> None:
    evaluations, best = outcome.evaluations, outcome.best
    first, last = evaluations[0], evaluations[-1]
    table = Table(title="held-out EX (greedy)", title_justify="left")
    for heading in ("", "rows", "start", f"best (step {best['step']})", f"final (step {last['step']})"):
        table.add_column(heading, justify="left" if not heading else "right")
    columns = (first, best, last)
    table.add_row("all", f"{first['rows']:,}", *(f"{r['ex']:.3f}" for r in columns))
    for stage, rate in first["by_stage"].items():
        cells = (f"{r['by_stage'][stage]['ex']:.3f}" if stage in r["by_stage"] else "" for r in columns)
        table.add_row(f"stage {stage}", f"{rate['rows']:,}", *cells)
    out.print(table)
    out.print(f"best policy  {outcome.output / 'best'}", markup=False, soft_wrap=True)
    out.print(f"metrics      {outcome.output / 'metrics.jsonl'}", markup=False, soft_wrap=True)
    out.print(
        f"next         train evaluate {outcome.output} --data DATA --databases DIR",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def evaluate(
    policy: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder, or a model name or folder.")
    ],
    data: Annotated[
        Path, typer.Option(help="Held-out JSONL (question, sql, db_id), or shards (their validation).")
    ],
    databases: Annotated[
        Path | None, typer.Option(help="Folder of the databases; shards have their own.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="JSON to write; default: DATA's name in the run.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="strict, bird or spider (default: that of the run or the shards), or suite: right on the "
            "neighbours of the database's test suite too; built where the data brings none."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
    max_new_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows.")] = None,
) -> None:
    """Greedy execution accuracy (EX), 95% Wilson intervals: all, by stage, by database seen in training."""
    with _errors_told():
        from curate.sql.sandbox import Sandbox
        from train.evaluate import evaluate_policy, load_evaluand, suites_of
        from train.progress import Reporter
        from train.rewards import Judge
        from train.run import quiet_libraries

        quiet_libraries()
        evaluand = load_evaluand(policy, data, databases, mode=mode, max_new_tokens=max_new_tokens)
        examples: list[Example] = evaluand.examples[:rows]
        reporter = Reporter()
        with TemporaryDirectory() as folder, Sandbox() as sandbox:
            suites = evaluand.suites if evaluand.on_suites else {}
            if evaluand.on_suites and not suites:
                with reporter.task("test suites", len(examples), "rows") as advance:
                    suites = suites_of(examples, Path(folder), evaluand.mode, advance=advance)
            judge = Judge(sandbox, evaluand.mode, suites)
            with reporter.task("evaluate", len(examples), "rows") as advance:
                evaluation = evaluate_policy(
                    evaluand, examples, judge, batch_size=batch_size, advance=advance
                )
        record = {
            "policy": policy,
            "data": str(data),
            "decoding": "greedy",
            "comparison_mode": evaluand.mode,
            "test_suites": evaluand.on_suites,
            "max_new_tokens": evaluand.max_new_tokens,
            **evaluation.as_json(),
        }
        target = output or _report_path(Path(policy), data)
        target.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
        _print_evaluation(evaluation, evaluand.mode + (", on test suites" if evaluand.on_suites else ""))
        out.print(f"wrote {target}", markup=False, soft_wrap=True)


def _report_path(policy: Path, data: Path) -> Path:
    name = f"evaluation-{data.resolve().stem}.json"
    return policy / name if policy.is_dir() else Path(name)


def _print_evaluation(evaluation: "Evaluation", mode: str) -> None:
    table = Table(title=f"EX, greedy, compared as {mode}", title_justify="left")
    for heading in ("", "rows", "EX", "95% interval"):
        table.add_column(heading, justify="left" if not heading else "right")
    rates = {
        "all": evaluation.overall,
        **{f"stage {s}": r for s, r in evaluation.by_stage.items()},
        **{f"{k} databases": r for k, r in evaluation.by_database.items()},
    }
    for name, rate in rates.items():
        low, high = rate.interval()
        table.add_row(
            name, f"{rate.rows:,}", f"{rate.ex:.3f}" if rate.rows else "", f"{low:.3f} to {high:.3f}"
        )
    out.print(table)
    near = evaluation.reasons.get("near_miss", 0)
    if near:
        out.print(f"{near:,} rows are right on their database but not on its neighbours: counted wrong")
    if evaluation.undecided:
        err.print(
            f"{evaluation.undecided:,} rows could not be executed (gold or database); they are in no rate"
        )


def main() -> None:
    app(prog_name="train")


if __name__ == "__main__":
    sys.exit(main())
