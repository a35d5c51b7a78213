"""What a run leaves in its output directory: ledger, rejects, shards, manifest, report. All from stored parts."""

import json
import platform
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import polars as pl

from curate.atomic import write_atomic
from curate.data import Reject
from curate.emit import Emitted, emit
from curate.ingest import TRAIN
from curate.ledger import LEDGER, ledger, removed
from curate.pipeline import Curated, RunFailed
from curate.progress import Reporter
from curate.rows import SCHEMA, reject_id
from curate.steps.review import Review
from curate.store import WHOLE, content_key, to_parquet

READ = "read"  # the ledger's step for lines that never became a row


def finish(
    curated: Curated, *, workers: int | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Write everything and return the manifest.

    Raises RunFailed when more rows are undecided than `max_error_rate` allows, or none is left: the
    ledger, the rejects and the manifest are written then too, the shards are not.
    """
    out = curated.pipeline.output
    lines = whole_ledger(curated)
    to_parquet(lines, out / "ledger.parquet")
    to_parquet(rejected(curated, lines), out / "rejected.parquet")
    write_atomic(out / "store" / "index.json", json.dumps(_index(curated)).encode())
    manifest = _manifest(curated, lines)
    trouble = _trouble(curated, manifest, lines)
    emitted = None if trouble else emit(curated, manifest, lines, workers=workers, reporter=reporter)
    manifest["status"] = "failed" if trouble else "done"
    manifest["shards"] = _shards(emitted)
    manifest["review"] = _review(curated, lines, reporter or Reporter(quiet=True))
    _write_manifest(out, manifest)
    from curate.report import write_report

    write_report(out)
    if trouble:
        raise RunFailed(trouble)
    return manifest


def whole_ledger(curated: Curated) -> pl.DataFrame:
    """Every decision of the run: refused lines first, then step by step."""
    refused = pl.DataFrame(
        [
            {"row_id": reject_id(r), "action": "drop", "reason": r.reason, "detail": _place(r)}
            for _, r in curated.ingested.rejects
        ],
        schema={"row_id": pl.String, "action": pl.String, "reason": pl.String, "detail": pl.String},
    ).with_columns(pl.lit(None, pl.String).alias("partner_id"), pl.lit(None, pl.Float64).alias("score"))
    found = [(READ, refused)]
    inputs = [TRAIN, *curated.pipeline.references]
    for i, layer in enumerate(curated.table.layers[1:], start=1):
        found += [(layer.name, curated.table.decisions(i, name)) for name in inputs]
    return ledger(found)


def _place(reject: Reject) -> str:
    where = reject.file + (f":{reject.line}" if reject.line is not None else "")
    field = f" field '{reject.field}':" if reject.field else ""
    return f"{where}:{field} {reject.detail}"


def rejected(curated: Curated, lines: pl.DataFrame) -> pl.DataFrame:
    """Every row that left, whole, with the decision that removed it; lines never read have `raw` in `extra`."""
    gone = removed(lines)
    rows = curated.table.read(TRAIN, WHOLE, SCHEMA, dead_too=True)
    rows = rows.join(gone, on="row_id", how="inner", maintain_order="left")
    raw = [
        {
            "row_id": reject_id(r),
            "source": name,
            "extra": json.dumps(
                {"raw": r.raw, "file": r.file, "line": r.line, "field": r.field}, ensure_ascii=False
            ),
        }
        for name, r in curated.ingested.rejects
    ]
    unread = pl.DataFrame(raw, schema={"row_id": pl.String, "source": pl.String, "extra": pl.String})
    unread = unread.unique("row_id", keep="first", maintain_order=True).join(
        gone, on="row_id", how="inner", maintain_order="left"
    )
    columns = {**SCHEMA, **{c: t for c, t in LEDGER.items() if c != "row_id"}}
    return pl.concat(
        [
            f.with_columns(pl.lit(None, t).alias(c) for c, t in columns.items() if c not in f.columns).select(
                *columns
            )
            for f in (unread, rows)
        ]
    )


def _trouble(curated: Curated, manifest: dict[str, Any], lines: pl.DataFrame) -> str | None:
    counts, allowed = manifest["counts"], curated.pipeline.max_error_rate
    if counts["read"] == 0:
        return f"no row could be read; see {curated.pipeline.output / 'rejected.parquet'}"
    if counts["errors"] / counts["read"] > allowed:
        errors = lines.filter(pl.col("action") == "error")
        first = errors.row(0, named=True)
        return (
            f"{counts['errors']:,} of {counts['read']:,} rows could not be decided "
            f"(max_error_rate is {allowed:g}); the first: step '{first['step']}', {first['reason']}, "
            f"{first['detail']}. All are in {curated.pipeline.output / 'rejected.parquet'}. "
            "No shards were written; mend the cause and run again, or raise max_error_rate"
        )
    if counts["kept"] == 0 and counts["read"]:
        return f"no row is left: every row was dropped; see {curated.pipeline.output / 'rejected.parquet'}"
    return None


def _manifest(curated: Curated, lines: pl.DataFrame) -> dict[str, Any]:
    pipeline = curated.pipeline
    refused = len(curated.ingested.rejects)
    rows = sum(p.rows for p in curated.table.layers[0].parts if p.input == TRAIN)
    refused_train = sum(1 for name, _ in curated.ingested.rejects if name in pipeline.train)
    kept = curated.steps[-1].kept if curated.steps else rows
    errors = sum(sum(s.errors.values()) for s in curated.steps)
    return {
        "run_id": uuid.uuid4().hex[:12],
        "name": pipeline.name,
        "status": "running",
        "output": str(pipeline.output),
        "seed": pipeline.seed,
        "comparison": pipeline.comparison,
        "databases": None if pipeline.databases is None else str(pipeline.databases),
        "config": pipeline.settings(),
        "config_hash": content_key(pipeline.settings()),
        "inputs": curated.ingested.read,
        "refused": refused,
        "counts": {
            "read": rows + refused_train,
            "kept": kept,
            "dropped": rows + refused_train - kept - errors,
            "errors": errors,
        },
        "steps": [
            {
                "name": s.name,
                "step": s.name,
                "scope": s.scope,
                "read": s.read,
                "kept": s.kept,
                "dropped": s.dropped,
                "flagged": s.flagged,
                "errors": s.errors,
                "seconds": round(s.seconds, 3),
                "rows_per_second": round(s.rows_per_second, 1),
                "peak_memory_mb": round(s.peak_memory_mb, 1),
                "parts_cached": s.parts_cached,
                "parts_run": s.parts_run,
            }
            for s in curated.steps
        ],
        "seconds": round(curated.seconds, 3),
        "versions": _versions(),
    }


def _review(curated: Curated, lines: pl.DataFrame, reporter: Reporter) -> dict[str, Any] | None:
    """How many decisions of people there were, and which found no row. None without a review step."""
    steps = [step for step in curated.pipeline.steps if isinstance(step, Review)]
    if not steps:
        return None
    named = {row_id for step in steps for row_id in step.reviews}
    applied = set(lines.filter(pl.col("step") == Review.name)["row_id"])
    left = sorted(named - applied)
    if left:
        reporter.say(
            f"review: {len(left):,} of {len(named):,} decisions name rows that are not in the input or left "
            f"before; the first: {left[0]}. All are in manifest.json"
        )
    return {"decisions": len(named), "applied": len(named) - len(left), "not_applied": left}


def _shards(emitted: Emitted | None) -> dict[str, Any] | None:
    if emitted is None:
        return None
    return {"fingerprint": emitted.fingerprint, "unchanged": emitted.unchanged, "stages": emitted.stages}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("nl2sql-curate", "polars", "sqlglot", "pydantic", "rensa"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _write_manifest(out: Path, manifest: dict[str, Any]) -> None:
    write_atomic(out / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False).encode())


def _index(curated: Curated) -> list[dict[str, Any]]:
    """Which part files make up the table, for `curate why` and anyone who reads the store."""
    store = curated.pipeline.output / "store"
    return [
        {
            "layer": layer.name,
            "columns": list(layer.columns),
            "parts": [
                {
                    "input": p.input,
                    "low": p.range.first,
                    "high": p.range.last,
                    "path": str(p.path.relative_to(store)),
                    "rows": p.rows,
                    "dead": p.dead,
                }
                for p in layer.parts
            ],
        }
        for layer in curated.table.layers
    ]
