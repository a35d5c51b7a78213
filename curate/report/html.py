"""report.html: one self-contained page made from what the output directory holds."""

import json
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from curate.atomic import write_atomic

EXAMPLES = 20  # rows shown for a reason; counts are exact all the same
TEXT = 400  # characters of a question or SQL shown

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --bar: #3a7bd5; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 14px/1.4 ui-monospace, monospace; white-space: pre-wrap; word-break: break-word; }
summary { cursor: pointer; padding: .2rem 0; }
details { border-left: 3px solid var(--soft); padding-left: .8rem; margin: .4rem 0; }
.bar { background: var(--bar); height: .8rem; border-radius: 2px; }
.failed { color: #c33; font-weight: 600; }
.scroll { overflow-x: auto; }
@media print { details { break-inside: avoid; } }
"""


def write_report(out: Path) -> Path:
    """Write out/report.html from manifest.json, ledger.parquet, rejected.parquet and the shards."""
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(manifest['name'])}: curation report</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(_sections(out, manifest))
        + "\n</main></body></html>\n"
    )
    path = out / "report.html"
    write_atomic(path, page.encode("utf-8", "replace"))
    return path


def _sections(out: Path, manifest: dict[str, Any]) -> Iterator[str]:
    counts = manifest["counts"]
    yield f"<h1>{escape(manifest['name'])}</h1>"
    yield (
        f"<p>{counts['read']:,} rows read, <strong>{counts['kept']:,} kept</strong>, {counts['dropped']:,} dropped, "
        f"{counts['errors']:,} undecided. Run {escape(manifest['run_id'])}, seed {manifest['seed']}, "
        f"comparison mode {escape(manifest['comparison'])}.</p>"
    )
    if manifest["status"] == "failed":
        yield '<p class="failed">The run failed: no shards were written.</p>'
    yield from _funnel(manifest)
    curriculum = _curriculum(out)
    if curriculum is not None:
        yield from _stages(out, curriculum)
    yield from _removed(out)
    yield from _flagged(out)
    yield from _timings(manifest)


def _table(head: Iterable[str], rows: Iterable[Iterable[object]], numbers: Iterable[int] = ()) -> str:
    """Cells are escaped unless they are Markup already; `numbers` are right-aligned columns."""
    right = set(numbers)

    def cell(tag: str, i: int, value: object) -> str:
        text = value if isinstance(value, _Markup) else escape(str(value))
        return f"<{tag}{' class=n' if i in right else ''}>{text}</{tag}>"

    lines = ["<tr>" + "".join(cell("th", i, h) for i, h in enumerate(head)) + "</tr>"]
    lines += ["<tr>" + "".join(cell("td", i, v) for i, v in enumerate(row)) + "</tr>" for row in rows]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


class _Markup(str):
    """Text that is HTML already."""


def _funnel(manifest: dict[str, Any]) -> Iterator[str]:
    yield "<h2>From rows read to rows kept</h2>"
    read = max(1, manifest["counts"]["read"])
    rows: list[list[object]] = []
    if manifest["refused"]:
        rows.append(["read", "", f"no usable row: {manifest['refused']:,}", ""])
    for step in manifest["steps"]:
        gone = [f"{reason}: {n:,}" for reason, n in {**step["dropped"], **step["errors"]}.items()]
        bar = _Markup(f'<div class="bar" style="width:{100 * step["kept"] / read:.1f}%"></div>')
        rows.append([step["name"], f"{step['kept']:,}", "; ".join(gone), bar])
    yield _table(["step", "rows left", "what left, and why", "share of rows read"], rows, [1])


def _curriculum(out: Path) -> dict[str, Any] | None:
    path = out / "shards" / "curriculum.json"
    if not path.exists():
        return None
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _stages(out: Path, curriculum: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Curriculum</h2>"
    rows = [[s["stage"], s["title"], f"{s['rows']:,}"] for s in curriculum["stages"]]
    rows.append(["validation", "held back from training", f"{curriculum['validation']['rows']:,}"])
    yield _table(["stage", "what", "rows"], rows, [2])
    said = ", ".join(f"{k} {v}" for k, v in curriculum["schedule"].items())
    yield f"<p>Schedule: {escape(said)} (optimiser steps). Databases: {len(curriculum['databases']):,}.</p>"
    yield "<h3>Hardness (Spider's rule) by stage</h3>"
    levels = ["easy", "medium", "hard", "extra"]
    found = _shards(out, ["stage", "hardness"])
    counted = {(stage, level): n for stage, level, n in found.group_by("stage", "hardness").len().iter_rows()}
    stages = sorted({stage for stage, _ in counted})
    yield _table(
        ["stage", *levels],
        [[stage, *(f"{counted.get((stage, level), 0):,}" for level in levels)] for stage in stages],
        range(1, 5),
    )


def _shards(out: Path, columns: list[str]) -> pl.DataFrame:
    files = sorted((out / "shards").glob("*/part-*.parquet"))
    scans = [pl.scan_parquet(f, glob=False).select(columns) for f in files]
    return pl.concat(scans).collect()


def _removed(out: Path) -> Iterator[str]:
    yield "<h2>What was removed</h2>"
    rejected = pl.read_parquet(out / "rejected.parquet", glob=False)
    if rejected.is_empty():
        yield "<p>Nothing.</p>"
        return
    groups = (
        rejected.group_by("step", "reason")
        .len()
        .sort("len", "step", "reason", descending=[True, False, False])
    )
    for step, reason, count in groups.iter_rows():
        members = rejected.filter((pl.col("step") == step) & (pl.col("reason") == reason)).head(EXAMPLES)
        yield _examples(f"{step}: {reason}", count, members, _partners(out, rejected, members))
    yield "<p>All of them, whole, are in <code>rejected.parquet</code>.</p>"


def _flagged(out: Path) -> Iterator[str]:
    yield "<h2>What was marked, and stayed</h2>"
    ledger = pl.scan_parquet(out / "ledger.parquet", glob=False).filter(pl.col("action") == "flag").collect()
    groups = (
        ledger.group_by("step", "reason").len().sort("len", "step", "reason", descending=[True, False, False])
    )
    if groups.is_empty():
        yield "<p>Nothing.</p>"
        return
    yield _table(["step", "flag", "findings"], ([s, r, f"{n:,}"] for s, r, n in groups.iter_rows()), [2])


def _partners(out: Path, rejected: pl.DataFrame, members: pl.DataFrame) -> dict[str, tuple[str, str]]:
    """Question and SQL of the partners, wherever they ended: rejected, in the shards, or in the store."""
    wanted = members["partner_id"].drop_nulls().unique().to_list()
    if not wanted:
        return {}
    columns = ["row_id", "question", "sql"]
    files = sorted((out / "shards").glob("*/part-*.parquet")) + sorted(
        (out / "store" / "rows").glob("*.parquet")
    )
    scans = [pl.scan_parquet(f, glob=False).select(columns) for f in files]
    held = pl.concat([rejected.select(columns).lazy(), *scans])
    found = held.filter(pl.col("row_id").is_in(wanted)).collect()
    return {row_id: (question, sql) for row_id, question, sql in found.iter_rows()}


def _examples(title: str, count: int, members: pl.DataFrame, partners: dict[str, tuple[str, str]]) -> str:
    lines = []
    for row in members.iter_rows(named=True):
        partner = partners.get(row["partner_id"])
        lines.append(
            [
                row["row_id"][:12],
                _Markup(
                    f"{escape(_cut(row['question'] or row['extra']))}<br><code>{escape(_cut(row['sql']))}</code>"
                ),
                _Markup(
                    escape(_cut(row["detail"]))
                    + (
                        f"<br>repeats: {escape(_cut(partner[0]))}<br><code>{escape(_cut(partner[1]))}</code>"
                        if partner
                        else ""
                    )
                ),
            ]
        )
    shown = f", {len(lines)} shown" if count > len(lines) else ""
    return (
        f"<details><summary>{escape(title)}: {count:,}{shown}</summary>"
        + _table(["row", "question and SQL", "why"], lines)
        + "</details>"
    )


def _cut(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


def _timings(manifest: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Time and memory</h2>"
    rows = [
        [
            s["name"],
            f"{s['seconds']:.1f}",
            f"{s['rows_per_second']:,.0f}",
            f"{s['peak_memory_mb']:,.0f}",
            f"{s['parts_run']} run, {s['parts_cached']} cached",
        ]
        for s in manifest["steps"]
    ]
    yield _table(["step", "seconds", "rows/s", "peak memory of a process, MB", "parts"], rows, [1, 2, 3])
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    yield f"<p>{escape(versions)}</p>"
