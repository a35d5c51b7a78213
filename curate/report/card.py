"""The data card that goes with the shards: README.md with Hugging Face dataset-card front matter."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from curate.suites import said_of

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_card(shards: Path, manifest: dict[str, Any]) -> Path:
    """Write shards/README.md from the manifest (with `curriculum` in it) and the shards' files.

    The same shards give the same bytes: no dates, no paths of the machine, no seconds.
    """
    path = shards / "README.md"
    text = f"---\n{_front_matter(shards, manifest)}---\n\n" + "\n".join(_body(manifest)) + "\n"
    path.write_text(text, encoding="utf-8")
    return path


def _front_matter(shards: Path, manifest: dict[str, Any]) -> str:
    curriculum = manifest["curriculum"]
    configs = [
        {
            "config_name": f"stage-{stage['stage']}",
            "data_files": [{"split": "train", "path": f"stage-{stage['stage']}/*.parquet"}],
        }
        for stage in curriculum["stages"]
    ]
    if curriculum["validation"]["files"]:
        configs.append(
            {
                "config_name": "validation",
                "data_files": [{"split": "validation", "path": "validation/*.parquet"}],
            }
        )
    card = {
        "pretty_name": manifest["name"],
        "license": "other",
        "task_categories": ["table-question-answering", "text-generation"],
        "tags": ["text-to-sql", "nl2sql", "curriculum"],
        "language": _languages(shards),
        "size_categories": [_size(manifest["counts"]["kept"])],
        "configs": configs,
    }
    return yaml.safe_dump(card, sort_keys=False, allow_unicode=True)


def _languages(shards: Path) -> list[str]:
    files = sorted(shards.glob("*/part-*.parquet"))
    if not files:
        return []
    found = pl.concat([pl.scan_parquet(f, glob=False).select("language") for f in files]).unique().collect()
    return sorted(language for language in found["language"] if language)


def _size(rows: int) -> str:
    return next((name for most, name in SIZES if rows < most), "n>1M")


def _body(manifest: dict[str, Any]) -> Iterator[str]:
    curriculum, counts = manifest["curriculum"], manifest["counts"]
    yield f"# {manifest['name']}: NL2SQL curriculum shards\n"
    yield (
        f"{counts['kept']:,} question/SQL pairs over {len(curriculum['databases']):,} SQLite databases, curated "
        f"from {counts['read']:,} by nl2sql-curate. Every gold SQL was executed; results are compared in mode "
        f"`{curriculum['comparison_mode']}`.\n"
    )
    yield "| part | what | rows |\n|---|---|---:|"
    for stage in curriculum["stages"]:
        yield f"| stage-{stage['stage']} | {stage['title']} | {stage['rows']:,} |"
    yield f"| validation | held back from training | {curriculum['validation']['rows']:,} |\n"
    yield "## What was removed\n"
    yield f"{counts['dropped']:,} rows were dropped and {counts['errors']:,} could not be decided.\n"
    yield "| step | reason | rows |\n|---|---|---:|"
    if manifest["refused"]:
        yield f"| read | no usable row | {manifest['refused']:,} |"
    for step in manifest["steps"]:
        for reason, rows in step["dropped"].items():
            yield f"| {step['name']} | {reason} | {rows:,} |"
    if "suite_summary" in curriculum:
        yield f"\nThe shards hold {said_of(curriculum['suite_summary'])} (`databases/*/suite/`)."
    summary = curriculum["weight_summary"]
    yield (
        f"\nSampling weights: {summary['min']:g} to {summary['max']:g}, mean {summary['mean']:g}, "
        f"effective sample size {summary['ess']:,.0f}.\n"
    )
    yield "## Use\n"
    yield "    from datasets import load_dataset"
    yield '    rows = load_dataset("parquet", data_files="stage-1/*.parquet", split="train")\n'
    yield "    train --curriculum .\n"
    yield (
        "`databases/` holds the databases, `curriculum.json` the stages, the schedule and the digests of all files.\n"
    )
    yield "## Limits\n"
    yield (
        "A gold SQL that runs can still be wrong: execution shows that it fails, not that it answers the "
        "question. Flags in the column `flags` are findings to look at, such as an empty result. The licence "
        "is that of the sources; set it before you publish.\n"
    )
    yield "## Settings\n"
    yield "```yaml"
    yield yaml.safe_dump(manifest["config"], sort_keys=False, allow_unicode=True).rstrip()
    yield "```"
