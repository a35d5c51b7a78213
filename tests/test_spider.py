"""The Spider example, whole; its counts against numbers derived here, by other means."""

import csv
import json
import os
import re
import sqlite3
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import curate
from curate.api import load as load_rows
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spider(nl2sql_data, tmp_path_factory):
    """(folder of Spider, output directory, manifest)."""
    out = tmp_path_factory.mktemp("spider")
    before = os.environ.get("NL2SQL_DATA")
    os.environ["NL2SQL_DATA"] = str(nl2sql_data.resolve())
    try:
        manifest = curate.run(ROOT / "examples" / "spider" / "pipeline.yaml", set=[f"output.path={out}"])
    finally:
        if before is None:
            del os.environ["NL2SQL_DATA"]
        else:
            os.environ["NL2SQL_DATA"] = before
    return nl2sql_data / "spider", out, manifest


def pairs(folder: Path, name: str) -> list[tuple[str, str, str]]:
    rows = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return [(r["db_id"], r["question"], r["query"]) for r in rows]


def executed(folder: Path, db_id: str, sql: str) -> int | None:
    """Rows of the result on a plain connection, or None where it fails."""
    connection = sqlite3.connect(f"file:{folder}/database/{db_id}/{db_id}.sqlite?mode=ro", uri=True)
    connection.text_factory = bytes
    try:
        return len(connection.execute(sql).fetchall())
    except sqlite3.Error:
        return None
    finally:
        connection.close()


def fold(text: str) -> str:
    return " ".join(text.lower().split())


def decided(out: Path, step: str, action: str) -> dict[str, int]:
    lines = pl.read_parquet(out / "ledger.parquet")
    lines = lines.filter((pl.col("step") == step) & (pl.col("action") == action))
    return Counter(lines["reason"].to_list())


def test_every_row_is_emitted_or_rejected_with_a_reason(spider):
    _, out, manifest = spider
    emitted, rejected = load_rows(out), pl.read_parquet(out / "rejected.parquet")
    assert manifest["counts"]["read"] == 6790
    assert emitted.height + rejected.height == 6790
    assert rejected["reason"].null_count() == 0
    assert emitted["row_id"].n_unique() == emitted.height


def test_failing_and_empty_golds_are_those_that_sqlite_says(spider):
    folder, out, _ = spider
    truth = [executed(folder, db_id, sql) for db_id, _, sql in pairs(folder, "train")]
    assert decided(out, "validate", "drop") == {"gold_fails": truth.count(None)}
    assert truth.count(None) == 3
    assert decided(out, "validate", "flag")["empty_result"] == truth.count(0)
    failing = {(d, q) for (d, q, _), n in zip(pairs(folder, "train"), truth, strict=True) if n is None}
    rejected = pl.read_parquet(out / "rejected.parquet").filter(pl.col("reason") == "gold_fails")
    assert set(rejected.select("db_id", "question").iter_rows()) == failing


def test_exact_duplicates_are_those_that_folding_finds(spider):
    folder, out, _ = spider
    seen = Counter((d, fold(q), fold(s)) for d, q, s in pairs(folder, "train"))
    duplicates = sum(n - 1 for n in seen.values())
    assert duplicates == 9
    rejected = pl.read_parquet(out / "rejected.parquet")
    # The rung folds no more than case, space and end punctuation: what it finds beyond is shown here.
    ours = rejected.filter(pl.col("reason") == "exact_duplicate")
    loose = Counter(
        (d, re.sub(r"[\s?.!]+$", "", fold(q)), fold(re.sub(r"\s*([(),<>=!;])\s*", r"\1", s)).rstrip("; "))
        for d, q, s in pairs(folder, "train")
    )
    assert duplicates <= ours.height <= sum(n - 1 for n in loose.values())


def test_hardness_is_spiders(spider):
    folder, out, _ = spider
    with (folder / "hardness.csv").open() as file:
        labels = {int(r["index"]): r["hardness"] for r in csv.DictReader(file) if r["split"] == "train"}
    train = pairs(folder, "train")
    expected = {train[i]: label for i, label in labels.items()}
    emitted = load_rows(out)
    found = {(r["db_id"], r["question"], r["sql"]): r["hardness"] for r in emitted.to_dicts()}
    compared = {k: (found[k], expected[k]) for k in found.keys() & expected.keys()}
    assert len(compared) > 4000
    assert [(k, v) for k, v in compared.items() if v[0] != v[1]] == []
    assert Counter(v[0] for v in compared.values()) == Counter(v[1] for v in compared.values())


def test_nothing_of_dev_is_left_in_train_and_no_paraphrase_under_the_cap_left(spider):
    folder, out, manifest = spider
    emitted = load_rows(out)
    dev = {(d, fold(q)) for d, q, _ in pairs(folder, "dev")}
    assert not [r for r in emitted.to_dicts() if (r["db_id"], fold(r["question"])) in dev]
    assert manifest["counts"]["kept"] > 6000
    per_sql = emitted.group_by("db_id", "sql").len()
    assert per_sql["len"].max() <= 4


def test_the_shards_hold_every_database_they_need(spider):
    _, out, _ = spider
    curriculum = json.loads((out / "shards" / "curriculum.json").read_text(encoding="utf-8"))
    emitted = load_rows(out)
    assert set(curriculum["databases"]) == set(emitted["db_id"])
    assert all((out / "shards" / path).is_file() for path in curriculum["databases"].values())
    assert emitted["schema_text"].null_count() == 0
    assert [s["stage"] for s in curriculum["stages"]] == [1, 2, 3]
    train = emitted.filter(~pl.col("validation"))
    assert train["weight"].mean() == pytest.approx(1)
