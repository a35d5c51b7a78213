import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def nl2sql_data() -> Path:
    """Folder of public data sets (Spider and others); the test is skipped where it is absent."""
    path = Path(os.environ.get("NL2SQL_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "spider" / "train.json").exists():
        pytest.skip(f"public data not found at {path}: set NL2SQL_DATA to run this test")
    return path


PEOPLE = [(1, "Ann", 30), (2, "Bob", 25), (3, "Cyd", 41), (4, "李雷", 41)]


def make_database(path: Path) -> Path:
    """A small database: person(id, name, age) and pet(id, owner, kind)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);"
            "CREATE TABLE pet (id INTEGER PRIMARY KEY, owner INTEGER REFERENCES person(id), kind TEXT);"
            "INSERT INTO pet VALUES (1, 1, 'cat'), (2, 1, 'dog'), (3, 3, 'cat');"
        )
        connection.executemany("INSERT INTO person VALUES (?, ?, ?)", PEOPLE)
    connection.close()
    return path


def small_rows(databases: int = 3, ages: int = 20) -> list[dict[str, str]]:
    """Clean rows over `databases` databases: three kinds of query for each age."""
    rows = []
    for d in range(databases):
        for age in range(ages):
            for question, sql in (
                (f"Who is older than {age}?", f"SELECT name FROM person WHERE age > {age}"),
                (
                    f"How many people are {age} years of age?",
                    f"SELECT count(*) FROM person WHERE age = {age}",
                ),
                (
                    f"Which owners younger than {age + 26} have a pet at home?",
                    f"SELECT name FROM person WHERE id IN (SELECT owner FROM pet) AND age < {age + 26}",
                ),
            ):
                rows.append({"question": question, "sql": sql, "db_id": f"town_{d}"})
    return rows


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Project:
    """A pipeline in a folder of its own."""

    folder: Path

    @property
    def pipeline(self) -> Path:
        return self.folder / "pipeline.yaml"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def train(self) -> Path:
        return self.folder / "train.jsonl"

    def curate(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "curate.cli", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **environment},
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.curate("run", "pipeline.yaml", *arguments)


PIPELINE = """\
name: small
seed: 0
part_rows: 32
inputs:
  train:     {path: train.jsonl, format: records}
  reference: {path: reference.jsonl, format: records}
databases: {root: databases}
steps:
  - normalize: {}
  - validate: {timeout_s: 5}
  - canonicalize: {}
  - dedup: {max_paraphrases: 4}
  - decontaminate: {against: reference}
  - difficulty: {}
  - curriculum: {stages: rule, validation: {share: 0.1}}
output: {path: out}
"""


def make_project(folder: Path) -> Project:
    folder.mkdir(parents=True, exist_ok=True)
    for d in range(3):
        make_database(folder / "databases" / f"town_{d}" / f"town_{d}.sqlite")
    write_jsonl(folder / "train.jsonl", small_rows())
    reference = [
        {
            "question": "Who is 41 years old?",
            "sql": "SELECT name FROM person WHERE age = 41",
            "db_id": "town_0",
        }
    ]
    write_jsonl(folder / "reference.jsonl", reference)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return Project(folder)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A pipeline of every step over 180 clean rows and three databases, with parts of 32 rows."""
    return make_project(tmp_path / "project")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """One small database, at ROOT/town/town.sqlite."""
    return make_database(tmp_path / "databases" / "town" / "town.sqlite")
