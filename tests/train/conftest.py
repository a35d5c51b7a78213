import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

SHOP = """
create table item (item_id integer primary key, name text, price real, stock integer);
create table sale (sale_id integer primary key, item_id integer references item(item_id), units integer);
insert into item values (1,'pen',1.5,10),(2,'ink',4.0,0),(3,'pad',2.5,7),(4,'cup',6.0,3);
insert into sale values (1,1,3),(2,1,2),(3,3,9),(4,4,1);
"""
ZOO = """
create table animal (animal_id integer primary key, name text, weight real, legs integer);
create table visit (visit_id integer primary key, animal_id integer references animal, day integer);
insert into animal values (1,'owl',2.0,2),(2,'fox',6.5,4),(3,'ant',0.1,6),(4,'elk',300.0,4);
insert into visit values (1,2,1),(2,2,2),(3,4,2),(4,1,3);
"""
DATABASES = {"shop": SHOP, "zoo": ZOO}
TABLES = {"shop": ("item", ("name", "price", "stock")), "zoo": ("animal", ("name", "weight", "legs"))}


def write_database(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def pairs() -> list[tuple[int, str, str, str]]:
    """(stage, db_id, question, sql) over both databases."""
    rows = []
    for db_id, (table, columns) in TABLES.items():
        for column in columns:
            for verb in ("list", "show", "give"):
                rows.append(
                    (1, db_id, f"{verb} the {column} of every {table}", f"SELECT {column} FROM {table}")
                )
            for word, call in (("largest", "max"), ("smallest", "min"), ("number of", "count")):
                rows.append(
                    (2, db_id, f"{word} {column} of {table}", f"SELECT {call}({column}) FROM {table}")
                )
        number = columns[1]
        inner = f"SELECT max({number}) FROM {table}"
        for word in ("which", "what"):
            sql = f"SELECT name FROM {table} WHERE {number} = ({inner})"
            rows.append((3, db_id, f"{word} {table} has the largest {number}", sql))
    return rows


@pytest.fixture
def databases(tmp_path: Path) -> Path:
    """A folder of two databases, in the layout of Spider."""
    for db_id, script in DATABASES.items():
        write_database(tmp_path / "databases" / db_id / f"{db_id}.sqlite", script)
    return tmp_path / "databases"


@pytest.fixture
def write_shards(tmp_path: Path) -> Callable[..., Path]:
    """Writes shards by hand: the contract, not curate's writer. Keywords override curriculum.json's keys."""

    from curate.sql.schema import read_sqlite, render

    def write(folder: str = "shards", **changes: Any) -> Path:
        out = tmp_path / folder
        texts = {}
        for db_id, script in DATABASES.items():
            path = write_database(out / "databases" / db_id / f"{db_id}.sqlite", script)
            texts[db_id] = render(read_sqlite(path, db_id), style="compact")
        rows = [
            {
                "row_id": f"r{i:03d}",
                "question": question,
                "sql": sql,
                "gold_sqls": [sql],
                "db_id": db_id,
                "dialect": "sqlite",
                "evidence": None,
                "schema_text": texts[db_id],
                "stage": stage,
                "weight": 1.0,
            }
            for i, (stage, db_id, question, sql) in enumerate(pairs())
        ]
        schema = pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col("evidence").cast(pl.String))
        held = schema.filter(pl.int_range(pl.len()) % 4 == 0)
        kept = schema.filter(pl.int_range(pl.len()) % 4 != 0)
        stages = []
        for stage in (1, 2, 3):
            name = f"stage-{stage}/part-00000.parquet"
            (out / f"stage-{stage}").mkdir()
            part = kept.filter(pl.col("stage") == stage)
            part.write_parquet(out / name)
            stages.append({"stage": stage, "title": f"stage {stage}", "rows": part.height, "files": [name]})
        (out / "validation").mkdir()
        held.write_parquet(out / "validation" / "part-00000.parquet")
        about = {
            "format_version": 1,
            "name": "toy",
            "fingerprint": "f" * 16,
            "seed": 0,
            "comparison_mode": "strict",
            "stages": stages,
            "validation": {"rows": held.height, "files": ["validation/part-00000.parquet"]},
            "schedule": {
                "kind": "step",
                "warmup_steps": 2,
                "interval_steps": 1,
                "increment": 0.3,
                "floor": 0.2,
            },
            "databases": {d: f"databases/{d}/{d}.sqlite" for d in DATABASES},
        }
        (out / "curriculum.json").write_text(json.dumps({**about, **changes}))
        return out

    return write


@pytest.fixture
def shards(write_shards: Callable[..., Path]) -> Path:
    return write_shards()
