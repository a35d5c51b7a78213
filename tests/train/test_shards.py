import json

import polars as pl
import pytest

from curate.sql.sandbox import Sandbox
from curate.sql.schema import render_prompt
from curate.sql.testsuite import build_suite
from train.schedule import Schedule
from train.shards import ShardError, read_name, read_shards


def edit(shards, **changes):
    file = shards / "curriculum.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_shards_are_read_whole(shards):
    found = read_shards(shards)
    assert found.name == read_name(shards) == "toy"
    assert found.comparison_mode == "strict"
    assert found.schedule == Schedule(2, 1, 0.3, 0.2)
    assert sorted(found.train["stage"].unique()) == [1, 2, 3]
    assert found.train.height + found.validation.height == 40
    example = found.examples(found.train)[0]
    row = found.train.row(0, named=True)
    assert example.prompt == render_prompt(row["question"], row["schema_text"])
    assert example.gold_sqls == (row["sql"],)


def test_test_suites_are_read_and_a_missing_one_is_named(shards, write_shards):
    assert read_shards(shards).suites == {}
    folder, database = shards / "databases" / "shop" / "suite", shards / "databases" / "shop" / "shop.sqlite"
    with Sandbox() as sandbox:
        built = build_suite(database, ["SELECT name FROM item WHERE stock > 5"], folder, sandbox)
    edit(shards, suites={"shop": "databases/shop/suite"})
    assert read_shards(shards).suites == {str(database): built}
    edit(shards, suites={"zoo": "databases/zoo/suite"})
    with pytest.raises(ShardError, match="databases/zoo/suite: no test suite"):
        read_shards(shards)


def test_columns_of_the_contract_that_are_absent_get_defaults(shards):
    for file in (shards / "stage-1").glob("*.parquet"):
        pl.read_parquet(file).drop("dialect", "evidence").write_parquet(file)
    found = read_shards(shards)
    assert {e.dialect for e in found.examples(found.train)} == {"sqlite"}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format_version": 2}, "format_version is 2"),
        ({"format_version": None}, "format_version is None"),
        ({"comparison_mode": "loose"}, "comparison_mode is 'loose'"),
        ({"schedule": {"kind": "bandit"}}, "schedule kind 'bandit'"),
        ({"schedule": {"increment": 7}}, "increment"),
        ({"schedule": {"increment": "x"}}, "schedule|str"),
        ({"databases": {}}, "does not list"),
        ({"databases": {"shop": "gone.sqlite", "zoo": "gone.sqlite"}}, "gone.sqlite: not found"),
        ({"stages": []}, "no training rows"),
        ({"stages": [{"stage": 1, "files": ["stage-1/none.parquet"]}]}, "none.parquet: not found"),
    ],
)
def test_what_is_wrong_is_named(shards, changes, message):
    edit(shards, **changes)
    with pytest.raises(ShardError, match=message):
        read_shards(shards)


def test_a_missing_key_a_missing_folder_and_bad_json_are_told_apart(shards, tmp_path):
    with pytest.raises(ShardError, match="no such folder"):
        read_shards(tmp_path / "nowhere")
    with pytest.raises(ShardError, match="curate run"):
        read_shards(tmp_path)
    file = shards / "curriculum.json"
    about = json.loads(file.read_text())
    del about["stages"]
    file.write_text(json.dumps(about))
    with pytest.raises(ShardError, match="missing stages"):
        read_shards(shards)
    file.write_text("{")
    with pytest.raises(ShardError, match="not valid JSON"):
        read_shards(shards)


def test_missing_columns_nulls_and_broken_files_are_named(shards):
    file = shards / "stage-2" / "part-00000.parquet"
    whole = pl.read_parquet(file)
    whole.drop("weight").write_parquet(file)
    with pytest.raises(ShardError, match=r"stage-2/part-00000.parquet: missing column weight"):
        read_shards(shards)
    whole.with_columns(
        pl.when(pl.int_range(pl.len()) == 3).then(None).otherwise(pl.col("sql")).alias("sql")
    ).write_parquet(file)
    with pytest.raises(ShardError, match="row 3: sql is null"):
        read_shards(shards)
    file.write_bytes(b"not parquet")
    with pytest.raises(ShardError, match="not a parquet file"):
        read_shards(shards)
