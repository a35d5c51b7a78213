"""The whole of `curate run` as two functions, for notebooks and other programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from curate import pipeline as pipelines
from curate.config import load as load_pipeline
from curate.output import finish
from curate.progress import Reporter


def run(
    file: str | Path,
    *,
    set: Sequence[str] = (),
    workers: int | None = None,
    limit: int | None = None,
    restart: bool = False,
    link: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Run a pipeline file and return its manifest; continues where an earlier run stopped.

    Workers are spawned processes: a script that calls this needs `if __name__ == "__main__":` around it.

    set: overrides, `key.path=value`. workers: processes (default: cores). limit: a trial on so many train
    rows, in an output directory of its own. restart: forget stored parts. link: hard-link databases.

    Raises curate.config.ConfigError, curate.data.InputError, curate.pipeline.RunFailed,
    curate.part.StepFailed, or OSError (a full disk).
    """
    overrides = [*set, "output.link=true"] if link else set
    pipeline = pipelines.limited(load_pipeline(file, overrides), limit)
    with pipelines.locked(pipeline.output):
        if restart:
            pipelines.restart(pipeline)
        curated = pipelines.curate(pipeline, workers=workers, limit=limit, reporter=reporter)
        return finish(curated, workers=workers, reporter=reporter)


def load(out: str | Path) -> pl.DataFrame:
    """The rows emitted into `out/shards`, stages and validation together (column `validation`)."""
    shards = Path(out)
    shards = shards if (shards / "curriculum.json").exists() else shards / "shards"
    if not (shards / "curriculum.json").exists():
        raise FileNotFoundError(f"no shards in {out}: run `curate run` first")
    frames = [
        pl.read_parquet(path, glob=False).with_columns(
            pl.lit(path.parent.name == "validation").alias("validation")
        )
        for path in sorted(shards.glob("*/part-*.parquet"))
    ]
    return pl.concat(frames)
