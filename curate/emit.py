"""Write the shards: the only place where the data set becomes smaller.

shards/
  curriculum.json               stages, schedule, counts, weights, comparison mode, digests
  stage-1/part-00000.parquet    ...
  validation/part-00000.parquet
  databases/DB/DB.sqlite        the databases the rows need
  databases/DB/suite/           with `output: {suite: true}`: neighbour databases, and which golds they fit
  README.md                     data card
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curate import ledger
from curate.atomic import replace_folder
from curate.databases import file_digest
from curate.ingest import TRAIN
from curate.pipeline import Curated, RunFailed
from curate.progress import Reporter
from curate.rows import EMITTED
from curate.sql.schema import read_sqlite, render, safe_name
from curate.sql.testsuite import Suite
from curate.steps.curriculum import Curriculum
from curate.store import WHOLE, content_key, fingerprint, to_parquet
from curate.suites import built_suites, said_of, summary

FORMAT_VERSION = 1
SHARD_ROWS = 50_000

TITLES = {
    1: "single table, no aggregate",
    2: "joins, aggregates, GROUP BY, ORDER BY, LIMIT",
    3: "nested queries, set operations, CTEs, window functions",
}


@dataclass(frozen=True)
class Emitted:
    """`unchanged`: the shards on disk were already these, byte for byte, and were left alone."""

    path: Path
    fingerprint: str
    stages: dict[str, int]
    unchanged: bool


def emit(
    curated: Curated,
    manifest: dict[str, Any],
    lines: pl.DataFrame,
    *,
    workers: int | None = None,
    reporter: Reporter | None = None,
) -> Emitted | None:
    """Write `shards/`, or None when the pipeline has no curriculum step.

    workers: processes that build test suites. Raises RunFailed where a kept row's database cannot be shipped.
    """
    reporter = reporter or Reporter(quiet=True)
    step = next((s for s in curated.pipeline.steps if isinstance(s, Curriculum)), None)
    if step is None:
        return None
    shards = curated.pipeline.output / "shards"
    rows = emitted_rows(curated, step, lines)
    db_ids = rows["db_id"].unique().sort().to_list()
    suites: dict[str, Suite] = {}
    if curated.pipeline.suite:
        suites = built_suites(curated, rows, workers=workers, reporter=reporter)
        reporter.say(said_of(summary(list(suites.values()))))
    print_of = content_key(
        FORMAT_VERSION,
        fingerprint(rows),
        {d: curated.databases.digest(d) for d in db_ids},
        {d: suite.folder.name for d, suite in suites.items()},
        step.key_config(),
        curated.pipeline.name,
        curated.pipeline.seed,
        curated.pipeline.comparison,
        manifest["counts"],
        {s["name"]: s["dropped"] for s in manifest["steps"]},
    )
    stages = {
        str(s): n
        for s, n in rows.filter(~pl.col("validation"))["stage"].value_counts().sort("stage").iter_rows()
    }
    if _stands(shards, print_of):
        return Emitted(shards, print_of, stages, unchanged=True)

    def fill(folder: Path) -> None:
        _fill(folder, rows, db_ids, suites, print_of, curated, step, manifest)

    replace_folder(shards, fill)
    return Emitted(shards, print_of, stages, unchanged=False)


def emitted_rows(curated: Curated, step: Curriculum, lines: pl.DataFrame) -> pl.DataFrame:
    """Live rows in the emitted columns, plus the input's other columns and `validation`."""
    table = curated.table
    frame = table.read(TRAIN, WHOLE, [*EMITTED, "extra", "validation"])
    frame = frame.join(ledger.flags(lines), on="row_id", how="left", maintain_order="left").with_columns(
        pl.col("flags").fill_null(pl.lit([], dtype=pl.List(pl.String)))
    )
    schemas = {d: _schema_text(curated, d, step) for d in frame["db_id"].unique().sort()}
    frame = frame.with_columns(
        pl.col("db_id").replace_strict(schemas, default=None, return_dtype=pl.String).alias("schema_text")
    )
    absent = {
        "pass_rate": pl.Float64,
        "parent_id": pl.String,
        "augmentation": pl.String,
        "gold_digest": pl.String,
    }
    frame = frame.with_columns(
        pl.lit(None, absent.get(c, pl.String)).alias(c) for c in EMITTED if c not in frame.columns
    )
    return unfold(frame.select(*EMITTED, "validation", "extra"))


def _schema_text(curated: Curated, db_id: str, step: Curriculum) -> str | None:
    path = curated.databases.path(db_id)
    if path is None:
        return None
    return render(read_sqlite(path, db_id, samples=step.schema_samples), style=step.schema_style)


def unfold(frame: pl.DataFrame) -> pl.DataFrame:
    """The `extra` JSON objects as columns of their own; a name already taken gets the prefix `input_`.

    Values of one type keep it (numbers, booleans, text); mixed or nested ones stay JSON text.
    """
    objects = [json.loads(text) if text else {} for text in frame["extra"]]
    names = sorted({name for one in objects for name in one})
    frame = frame.drop("extra")
    taken = set(frame.columns)
    columns = []
    for name in names:
        values = [one.get(name) for one in objects]
        columns.append(pl.Series(f"input_{name}" if name in taken else name, *_typed(values)))
    return frame.with_columns(columns) if columns else frame


def _typed(values: list[Any]) -> tuple[list[Any], pl.DataType]:
    kinds = {type(v) for v in values if v is not None}
    if kinds == {bool}:
        return values, pl.Boolean()
    if kinds == {int} and all(v is None or -(2**63) <= v < 2**63 for v in values):
        return values, pl.Int64()
    if kinds and kinds <= {int, float}:
        return [None if v is None else float(v) for v in values], pl.Float64()
    if kinds <= {str}:
        return values, pl.String()
    return [None if v is None else json.dumps(v, ensure_ascii=False) for v in values], pl.String()


def _fill(
    folder: Path,
    rows: pl.DataFrame,
    db_ids: list[str],
    suites: Mapping[str, Suite],
    print_of: str,
    curated: Curated,
    step: Curriculum,
    manifest: dict[str, Any],
) -> None:
    train, validation = rows.filter(~pl.col("validation")), rows.filter(pl.col("validation"))
    stages = []
    for stage in sorted(train["stage"].unique().to_list()):
        members = train.filter(pl.col("stage") == stage)
        stages.append(
            {
                "stage": stage,
                "title": TITLES.get(stage, f"stage {stage}"),
                "rows": members.height,
                "files": list(_write(folder, f"stage-{stage}", members)),
                "weight": _weights(members["weight"]),
            }
        )
    held = {"rows": validation.height, "files": list(_write(folder, "validation", validation))}
    databases = {db_id: _ship(folder, db_id, curated) for db_id in db_ids}
    curriculum = {
        "format_version": FORMAT_VERSION,
        "name": curated.pipeline.name,
        "fingerprint": print_of,
        "seed": curated.pipeline.seed,
        "comparison_mode": curated.pipeline.comparison,
        "stages": stages,
        "validation": held,
        "schedule": step.schedule.model_dump(mode="json"),
        "counts": manifest["counts"],
        "weight_summary": {**_weights(train["weight"]), "ess": _ess(train["weight"])},
        "databases": databases,
    }
    if suites:
        curriculum["suites"] = {db_id: _ship_suite(folder, db_id, s) for db_id, s in suites.items()}
        curriculum["suite_summary"] = summary(list(suites.values()))
    from curate.report.card import write_card

    _write_json(folder / "curriculum.json", curriculum)
    write_card(folder, {**manifest, "curriculum": curriculum})
    digests = {
        str(p.relative_to(folder)): file_digest(p) for p in _files(folder) if p.name != "curriculum.json"
    }
    _write_json(folder / "curriculum.json", {**curriculum, "digests": digests})
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def _write(folder: Path, name: str, rows: pl.DataFrame) -> Iterator[str]:
    """The rows in files of at most SHARD_ROWS; names relative to the shards."""
    rows = rows.drop("validation")
    for i, piece in enumerate(rows.iter_slices(SHARD_ROWS)):
        if piece.height == 0:
            return
        relative = f"{name}/part-{i:05d}.parquet"
        (folder / name).mkdir(exist_ok=True)
        to_parquet(piece, folder / relative)
        yield relative


def _ship(folder: Path, db_id: str, curated: Curated) -> str:
    source = curated.databases.path(db_id)
    if source is None:
        raise RunFailed(f"database '{db_id}' is gone; it was there when its gold was executed")
    name = safe_name(db_id)
    target = folder / "databases" / name / f"{name}.sqlite"
    target.parent.mkdir(parents=True, exist_ok=True)
    if curated.pipeline.link:
        try:
            os.link(source.resolve(), target)
        except OSError:  # another file system
            shutil.copyfile(source, target)
    else:
        shutil.copyfile(source, target)
    return str(target.relative_to(folder))


def _ship_suite(folder: Path, db_id: str, suite: Suite) -> str:
    target = folder / "databases" / safe_name(db_id) / "suite"
    shutil.copytree(suite.folder, target)
    return str(target.relative_to(folder))


def _weights(weights: pl.Series) -> dict[str, float]:
    if weights.is_empty():
        return {"min": 0.0, "mean": 0.0, "max": 0.0}
    return {k: round(float(getattr(weights, k)()), 6) for k in ("min", "mean", "max")}


def _ess(weights: pl.Series) -> float:
    """Effective sample size (sum w)^2 / sum w^2 (Kish, Survey Sampling, 1965)."""
    squares = float((weights**2).sum())
    return round(float(weights.sum()) ** 2 / squares, 3) if squares else 0.0


def _stands(shards: Path, print_of: str) -> bool:
    """The shards on disk are these already and no file of them has changed since."""
    try:
        curriculum = json.loads((shards / "curriculum.json").read_text(encoding="utf-8"))
        digests = curriculum["digests"]
    except (OSError, ValueError, KeyError):
        return False
    found = {str(p.relative_to(shards)) for p in _files(shards)} - {"curriculum.json"}
    return (
        curriculum.get("fingerprint") == print_of
        and found == set(digests)
        and all(file_digest(shards / name) == digest for name, digest in digests.items())
    )


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())
