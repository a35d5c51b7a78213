"""curate check: find before a long run what would stop it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from curate.config import Pipeline
from curate.data import InputError
from curate.databases import Databases
from curate.ingest import TRAIN, Ingested, ingest
from curate.part import StepFailed, run_part
from curate.pipeline import tasks_for
from curate.sql.schema import SchemaError, read_sqlite
from curate.store import WHOLE, Layer, Table

TRIAL_ROWS = 20


def check(pipeline: Pipeline) -> Iterator[str]:
    """Problems, in plain sentences: inputs, databases, and a trial of every step on 20 rows.

    The pipeline file itself was checked when it was loaded. Nothing is written to the output directory.
    """
    with TemporaryDirectory() as folder:
        trial = replace(pipeline, output=Path(folder))
        try:
            ingested = ingest(pipeline, Path(folder) / "all", write=False)
            yield from _inputs(ingested)
            yield from _databases(pipeline, ingested)
            yield from _trial(trial)
        except InputError as error:
            yield str(error)


def _inputs(ingested: Ingested) -> Iterator[str]:
    for name, one in ingested.read.items():
        if one["rows"] == 0:
            yield f"input '{name}': no row of {one['path']} can be read"
    for name, reject in ingested.rejects[:10]:
        where = f"{reject.file}:{reject.line}" if reject.line is not None else reject.file
        field = f" field '{reject.field}':" if reject.field else ""
        yield f"input '{name}': {where}:{field} {reject.detail} (the row would go to the rejects)"
    if len(ingested.rejects) > 10:
        yield f"{len(ingested.rejects) - 10} more rows would go to the rejects"


def _databases(pipeline: Pipeline, ingested: Ingested) -> Iterator[str]:
    if pipeline.databases is None or not any("databases" in s.uses for s in pipeline.steps):
        return
    databases = Databases.open(pipeline.databases)
    for db_id in ingested.train_db_ids:
        path = databases.path(db_id)
        if path is None:
            yield f"no database for db_id {db_id!r} below {pipeline.databases}"
            continue
        try:
            read_sqlite(path, db_id)
        except SchemaError as error:
            yield str(error)


def _trial(pipeline: Pipeline) -> Iterator[str]:
    ingested = ingest(pipeline, pipeline.output / "store", TRIAL_ROWS)
    databases = Databases.open(pipeline.databases)
    table = Table((ingested.layer,))
    for step in pipeline.steps:
        try:
            done = [run_part(task) for task in tasks_for(step, table, pipeline, databases)]
        except StepFailed as error:
            yield str(error)
            return
        parts = tuple(d.part for d in done if d.part is not None)
        table = table.with_layer(Layer(step.name, step.writes, parts))
    live = table.read(TRAIN, WHOLE, ()).height
    rows = sum(p.rows for p in ingested.layer.parts if p.input == TRAIN)
    if rows and not live:
        yield f"the trial of {rows} rows left none: every one was dropped or could not be decided"
