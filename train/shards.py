"""Read and check curriculum shards."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curate.sql.compare import MODES
from curate.sql.schema import render_prompt, safe_name
from curate.sql.testsuite import Suite, load_suite
from train.schedule import Schedule

FORMAT_VERSION = 1
EMPTY = "empty_result"  # the flag of curate's validate
COLUMNS = ("row_id", "question", "sql", "gold_sqls", "db_id", "schema_text", "stage", "weight")


class ShardError(Exception):
    """The shards cannot be trained on; the text says which file and what to do."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row as the policy sees it. database: path of the SQLite file.

    empty_gold: the curation found that the gold result has no rows.
    """

    row_id: str
    prompt: str
    sql: str
    gold_sqls: tuple[str, ...]
    db_id: str
    database: str
    dialect: str
    stage: int
    weight: float
    empty_gold: bool = False


@dataclass(frozen=True)
class Shards:
    """train and validation keep every parquet column; train is ordered as the files are.

    suites: path of a database to its test suite, for those that were shipped with one.
    """

    path: Path
    name: str
    fingerprint: str
    comparison_mode: str
    schedule: Schedule
    titles: dict[int, str]
    databases: dict[str, Path]
    train: pl.DataFrame
    validation: pl.DataFrame
    suites: dict[str, Suite]

    def examples(self, frame: pl.DataFrame) -> list[Example]:
        return [self._example(row) for row in frame.iter_rows(named=True)]

    def _example(self, row: dict[str, Any]) -> Example:
        dialect = row.get("dialect") or "sqlite"
        return Example(
            row_id=row["row_id"],
            prompt=render_prompt(
                row["question"], row["schema_text"], evidence=row.get("evidence"), dialect=dialect
            ),
            sql=row["sql"],
            gold_sqls=tuple(row["gold_sqls"] or [row["sql"]]),
            db_id=row["db_id"],
            database=str(self.databases[row["db_id"]]),
            dialect=dialect,
            stage=row["stage"],
            weight=row["weight"],
            empty_gold=EMPTY in (row.get("flags") or ()),
        )


def read_shards(path: Path) -> Shards:
    """Read `path`/curriculum.json and its parquet files. Raises ShardError."""
    about = _curriculum(path)
    stages = about["stages"]
    train = _read([(path / name) for stage in stages for name in stage["files"]])
    held = about.get("validation") or {"files": []}
    validation = _read([path / name for name in held["files"]])
    if train.is_empty():
        raise ShardError(f"{path}: no training rows; see counts in {path / 'curriculum.json'}")
    databases = {db_id: path / relative for db_id, relative in about["databases"].items()}
    _check_databases(path, databases, train, validation)
    return Shards(
        path=path,
        name=about["name"],
        fingerprint=about["fingerprint"],
        comparison_mode=about["comparison_mode"],
        schedule=_schedule(path, about.get("schedule") or {}),
        titles={int(s["stage"]): s.get("title", "") for s in stages},
        databases=databases,
        train=train,
        validation=validation,
        suites=_suites(path, databases, about.get("suites") or {}),
    )


def read_name(path: Path) -> str:
    """The name of the shards, safe as a folder name. Raises ShardError."""
    return safe_name(_curriculum(path)["name"])


def _curriculum(path: Path) -> dict[str, Any]:
    file = path / "curriculum.json"
    if not path.is_dir():
        raise ShardError(
            f"{path}: no such folder; --curriculum takes the shards/ folder that `curate run` writes"
        )
    if not file.is_file():
        raise ShardError(f"{file}: not found; --curriculum takes the shards/ folder that `curate run` writes")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ShardError(f"{file}: not valid JSON: {error}") from error
    version = about.get("format_version") if isinstance(about, dict) else None
    if version != FORMAT_VERSION:
        raise ShardError(f"{file}: format_version is {version!r}, this version reads {FORMAT_VERSION}")
    missing = [k for k in ("name", "fingerprint", "comparison_mode", "stages", "databases") if k not in about]
    if missing:
        raise ShardError(f"{file}: missing {', '.join(missing)}")
    if about["comparison_mode"] not in MODES:
        raise ShardError(
            f"{file}: comparison_mode is {about['comparison_mode']!r}, not one of {', '.join(MODES)}"
        )
    return about


def _schedule(path: Path, values: dict[str, Any]) -> Schedule:
    kind = values.get("kind", "step")
    if kind != "step":
        raise ShardError(
            f"{path / 'curriculum.json'}: schedule kind {kind!r} is not known; this version has 'step'"
        )
    known = {k: values[k] for k in ("warmup_steps", "interval_steps", "increment", "floor") if k in values}
    try:
        return Schedule(**known)
    except (TypeError, ValueError) as error:
        raise ShardError(f"{path / 'curriculum.json'}: {error}") from error


def _suites(path: Path, databases: dict[str, Path], folders: dict[str, str]) -> dict[str, Suite]:
    suites = {}
    for db_id, relative in folders.items():
        suite = load_suite(path / relative)
        if suite is None or db_id not in databases:
            raise ShardError(
                f"{path / relative}: no test suite that this version reads, though curriculum.json names it; "
                "run `curate run` again"
            )
        suites[str(databases[db_id])] = suite
    return suites


def _read(files: list[Path]) -> pl.DataFrame:
    frames = []
    for file in files:
        if not file.is_file():
            raise ShardError(f"{file}: not found, though curriculum.json names it; copy the shards again")
        try:
            frame = pl.read_parquet(file)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ShardError(f"{file}: not a parquet file: {error}") from error
        missing = [c for c in COLUMNS if c not in frame.columns]
        if missing:
            raise ShardError(f"{file}: missing column {', '.join(missing)}")
        for column in (c for c in COLUMNS if frame[c].null_count()):
            row = int(frame[column].is_null().arg_true()[0])
            raise ShardError(f"{file}: row {row}: {column} is null")
        frames.append(frame)
    return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()


def _check_databases(path: Path, databases: dict[str, Path], *frames: pl.DataFrame) -> None:
    used = sorted({db_id for frame in frames if not frame.is_empty() for db_id in frame["db_id"].unique()})
    for db_id in used:
        if db_id not in databases:
            raise ShardError(
                f"{path / 'curriculum.json'}: rows use database {db_id!r}, which it does not list"
            )
        if not databases[db_id].is_file():
            raise ShardError(f"{databases[db_id]}: not found (database {db_id!r})")
