"""A whole run: same bytes whatever happens, and nothing computed twice."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import curate
from curate.api import load as load_rows
from curate.part import StepFailed
from curate.pipeline import RunFailed
from curate.sql.testsuite import load_suite
from tests.conftest import make_project, small_rows, write_jsonl


def digest(path: Path) -> str:
    """Digest of a file, or of all files below a folder with their names."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    whole = hashlib.sha256()
    for file in files:
        whole.update(str(file.relative_to(path.parent)).encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()


def result(out: Path) -> tuple[str, str, str]:
    return digest(out / "shards"), digest(out / "ledger.parquet"), digest(out / "rejected.parquet")


def messy_rows() -> list[dict[str, str]]:
    """Clean rows, and one or more of each thing that the steps remove or flag."""
    rows = small_rows()
    older = {
        "question": "Who is older than 3?",
        "sql": "SELECT name FROM person WHERE age > 3",
        "db_id": "town_0",
    }
    return [
        *rows,
        older,
        older,
        {"question": "So who is older than 3?", "sql": older["sql"], "db_id": "town_0"},
        {"question": "Give names", "sql": "SELECT nme FROM person", "db_id": "town_1"},
        {"question": "Nobody?", "sql": "SELECT name FROM person WHERE age > 900", "db_id": "town_1"},
        {
            "question": "Who is 41 years old?",
            "sql": "SELECT name FROM person WHERE age = 41",
            "db_id": "town_0",
        },
        {
            "question": "谁最老？",
            "sql": "SELECT name FROM person ORDER BY age DESC LIMIT 1",
            "db_id": "town_2",
        },
    ]


@pytest.fixture
def messy(project):
    write_jsonl(project.train, messy_rows())
    return project


def test_a_run_removes_what_is_bad_and_says_why(messy):
    manifest = curate.run(messy.pipeline, workers=1)
    rows = len(messy_rows())
    assert manifest["status"] == "done"
    assert manifest["counts"]["read"] == rows
    ledger = pl.read_parquet(messy.out / "ledger.parquet")
    dropped = ledger.filter(pl.col("action") == "drop").group_by("reason").len().sort("reason")
    assert dict(dropped.iter_rows()) == {
        "exact_duplicate": 2,
        "gold_fails": 1,
        "leak_exact": 1,
        "near_duplicate": 1,
    }
    emitted = load_rows(messy.out)
    rejected = pl.read_parquet(messy.out / "rejected.parquet")
    assert emitted.height + rejected.height == rows
    assert not set(emitted["row_id"]) & set(rejected["row_id"])
    assert rejected["question"].null_count() == 0
    assert rejected.filter(pl.col("reason") == "leak_exact")["partner_id"].null_count() == 0
    assert emitted.filter(pl.col("sql").str.contains("900"))["flags"].to_list() == [["empty_result"]]
    curriculum = json.loads((messy.out / "shards" / "curriculum.json").read_text())
    assert sum(s["rows"] for s in curriculum["stages"]) + curriculum["validation"]["rows"] == emitted.height
    assert set(curriculum["databases"]) == {"town_0", "town_1", "town_2"}
    for relative in curriculum["databases"].values():
        assert (messy.out / "shards" / relative).is_file()


def test_the_same_bytes_with_one_worker_or_two_and_for_shuffled_input(messy, tmp_path):
    curate.run(messy.pipeline, workers=1)
    expected = result(messy.out)
    rows = messy_rows()
    random.Random(3).shuffle(rows)
    other = make_project(tmp_path / "other")
    write_jsonl(other.train, rows)
    done = other.run("--workers", "2", "--set", "part_rows=32")
    assert done.returncode == 0, done.stderr
    assert result(other.out) == expected


def test_the_size_of_parts_does_not_change_the_result(messy):
    curate.run(messy.pipeline, workers=1)
    expected = result(messy.out)
    curate.run(messy.pipeline, workers=1, set=["part_rows=1000", "output.path=out2"])
    assert result(messy.folder / "out2") == expected


def test_an_unchanged_run_computes_nothing_and_leaves_the_shards_alone(messy):
    curate.run(messy.pipeline, workers=1)
    before = result(messy.out)
    inode = (messy.out / "shards").stat().st_ino
    again = curate.run(messy.pipeline, workers=1)
    assert all(s["parts_run"] == 0 for s in again["steps"])
    assert again["shards"]["unchanged"]
    assert (messy.out / "shards").stat().st_ino == inode
    assert result(messy.out) == before
    restarted = curate.run(messy.pipeline, workers=1, restart=True)
    assert all(s["parts_cached"] == 0 for s in restarted["steps"])
    assert result(messy.out) == before


def test_test_suites_are_shipped_and_built_once(messy, tmp_path):
    suite = ["output.suite=true"]
    shards = messy.out / "shards"
    manifest = curate.run(messy.pipeline, set=suite, workers=2)
    about = json.loads((shards / "curriculum.json").read_text())
    assert set(about["suites"]) == set(about["databases"])
    suites = {d: load_suite(shards / folder) for d, folder in about["suites"].items()}
    assert all(s is not None and s.databases >= 1 for s in suites.values())
    totals = about["suite_summary"]
    assert 0 < totals["told_by_suite"] <= totals["known_to_differ"] <= totals["mutants"]
    emitted = {sql for golds in load_rows(messy.out)["gold_sqls"] for sql in golds}
    assert {sql for s in suites.values() for sql in s.fits} <= emitted
    assert "test suites" in (shards / "README.md").read_text()
    before = result(messy.out)
    assert curate.run(messy.pipeline, set=suite, workers=1)["shards"]["unchanged"]
    curate.run(messy.pipeline, set=suite, workers=1, restart=True)
    assert result(messy.out) == before
    assert manifest["config"]["suite"] is True
    curate.run(messy.pipeline)
    assert "suites" not in json.loads((shards / "curriculum.json").read_text())
    assert not list(shards.rglob("suite.json"))


def test_a_damaged_shard_is_written_again(messy):
    curate.run(messy.pipeline, workers=1)
    before = result(messy.out)
    shard = next((messy.out / "shards").glob("stage-1/*.parquet"))
    shard.write_bytes(b"gone")
    assert not curate.run(messy.pipeline, workers=1)["shards"]["unchanged"]
    assert result(messy.out) == before


def parts(manifest) -> dict[str, tuple[int, int]]:
    return {s["name"]: (s["parts_run"], s["parts_cached"]) for s in manifest["steps"]}


def test_a_changed_setting_reruns_its_step_and_what_depends_on_it(messy):
    curate.run(messy.pipeline, workers=1)
    found = parts(curate.run(messy.pipeline, workers=1, set=["steps.dedup.max_paraphrases=1"]))
    assert found["validate"][0] == found["canonicalize"][0] == found["normalize"][0] == 0
    assert found["dedup"] == (1, 0)
    assert parts(curate.run(messy.pipeline, workers=1))["dedup"] == (0, 1)


def test_a_changed_database_reruns_the_parts_that_use_it(messy):
    curate.run(messy.pipeline, workers=1)
    import sqlite3

    path = messy.folder / "databases" / "town_0" / "town_0.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO person VALUES (9, 'Zoe', 12)")
    connection.close()
    found = parts(curate.run(messy.pipeline, workers=1))
    assert found["normalize"][0] == 0
    run, cached = found["validate"]
    assert 0 < run < run + cached


def test_adding_rows_reruns_only_the_parts_they_fall_in(messy):
    curate.run(messy.pipeline, workers=1)
    rows = messy_rows() + [
        {
            "question": f"Name those aged {i}",
            "sql": f"SELECT name FROM person WHERE age = {i}",
            "db_id": "town_2",
        }
        for i in range(50, 55)
    ]
    write_jsonl(messy.train, rows)
    shown = messy.curate("plan", "pipeline.yaml")
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[1]: line.split() for line in shown.stdout.splitlines() if line.startswith("│")}
    cached, run = int(lines["validate"][3]), int(lines["validate"][5])
    assert cached >= 3
    assert 1 <= run <= 4
    found = parts(curate.run(messy.pipeline, workers=1))
    assert found["validate"] == (run, cached)


def test_a_limited_run_is_a_trial_of_its_own(messy):
    curate.run(messy.pipeline, workers=1)
    before = result(messy.out)
    manifest = curate.run(messy.pipeline, workers=1, limit=25)
    assert manifest["counts"]["read"] == 25
    assert Path(manifest["output"]).name == "out-limit-25"
    assert result(messy.out) == before


def start(project, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "curate.cli", "run", "pipeline.yaml", "--quiet", *arguments],
        cwd=project.folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_killed_at_ten_random_moments_the_rerun_gives_the_same_bytes(tmp_path):
    reference = make_project(tmp_path / "reference")
    write_jsonl(reference.train, messy_rows())
    began = time.monotonic()
    assert start(reference, "--workers", "2").wait() == 0
    whole = time.monotonic() - began
    expected = result(reference.out)
    project = make_project(tmp_path / "killed")
    write_jsonl(project.train, messy_rows())
    draw = random.Random(0)
    killed = 0
    for i in range(10):
        run = start(project, "--workers", "2")
        time.sleep(draw.uniform(0.2, 1.0) * whole)
        if run.poll() is None:
            run.send_signal(signal.SIGKILL)  # the parent only: its workers must end by themselves
            killed += 1
        run.wait()
        if i % 3 == 2:
            shutil.rmtree(project.out, ignore_errors=True)
    assert killed >= 3
    again = start(project, "--workers", "2")
    assert again.wait() == 0
    assert result(project.out) == expected
    assert not list(project.out.rglob(".tmp-*"))


def test_two_runs_in_one_output_directory_do_not_mix(messy):
    from curate.pipeline import locked

    with locked(messy.out), pytest.raises(RunFailed, match="another run"):
        curate.run(messy.pipeline, workers=1)


def test_undecided_rows_end_the_run_and_lose_nothing(messy):
    shutil.rmtree(messy.folder / "databases" / "town_1")
    done = messy.run()
    assert done.returncode == 1
    assert "could not be decided" in done.stderr
    assert "town_1" in done.stderr
    assert not (messy.out / "shards").exists()
    rejected = pl.read_parquet(messy.out / "rejected.parquet")
    errors = rejected.filter(pl.col("action") == "error")
    assert set(errors["reason"]) == {"no_database"}
    assert set(errors["db_id"]) == {"town_1"}
    allowed = messy.run("--set", "max_error_rate=0.5")
    assert allowed.returncode == 0, allowed.stderr
    assert set(load_rows(messy.out)["db_id"]) == {"town_0", "town_2"}


STEP = '''
import os, signal
import polars as pl
from curate.step import decide, step

@step(reads=["question"], writes=["characters"])
def length(frame):
    """Length of the question."""
    return frame.select("row_id", characters=pl.col("question").str.len_chars())

@step(reads=["question"], writes=["nothing"])
def breaks(frame):
    raise RuntimeError("no luck")

@step(reads=["question"], writes=["mark"])
def dies(frame):
    if frame["question"].str.contains("are 13 years").any():
        os.kill(os.getpid(), signal.SIGKILL)
    return frame.select("row_id", mark=pl.lit(1))

@step(reads=["mark"])
def reads_mark(frame):
    return decide(frame.filter(pl.col("mark") != 1), "drop", "unmarked")

@step(reads=["question"], on_references=True)
def dies_on_reference(frame):
    if frame["question"].str.contains("41 years old").any() and frame.height == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return decide(frame.head(0), "drop", "never")
'''


@pytest.fixture
def brought(messy, monkeypatch):
    """A package that brings steps through the entry-point group."""
    site = messy.folder / "site"
    info = site / "brought-1.dist-info"
    info.mkdir(parents=True)
    (site / "brought.py").write_text(STEP)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
    names = "".join(
        f"{n} = brought:{n}\n" for n in ("length", "breaks", "dies", "reads_mark", "dies_on_reference")
    )
    (info / "entry_points.txt").write_text(f"[nl2sql_curate.steps]\n{names}")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    return messy


def with_step(project, name: str):
    text = project.pipeline.read_text()
    project.pipeline.write_text(
        text.replace("  - difficulty: {}\n", f"  - {name}: {{}}\n  - difficulty: {{}}\n")
    )
    return project


def test_a_function_from_another_package_is_a_step(brought):
    done = with_step(brought, "length").run("--workers", "2")
    assert done.returncode == 0, done.stderr
    index = json.loads((brought.out / "store" / "index.json").read_text())
    assert ["characters"] in [layer["columns"] for layer in index]


def test_a_step_that_raises_ends_the_run_and_names_itself(brought):
    with_step(brought, "breaks")
    done = brought.run("--workers", "2")
    assert done.returncode == 1
    assert "step 'breaks' failed on input 'train'" in done.stderr
    assert "no luck" in done.stderr
    with pytest.raises(StepFailed):
        curate.run(brought.pipeline, workers=1)


@pytest.mark.slow
def test_a_worker_that_dies_loses_only_its_part(brought):
    with_step(with_step(brought, "dies"), "reads_mark")
    done = brought.run("--workers", "2", "--set", "max_error_rate=1")
    assert done.returncode == 0, done.stderr
    rejected = pl.read_parquet(brought.out / "rejected.parquet")
    lost = rejected.filter(pl.col("reason") == "worker_lost")
    assert 1 <= lost.height <= 3 * 32  # one part of each database
    assert load_rows(brought.out).height + rejected.height == len(messy_rows())
    assert "unmarked" not in rejected["reason"].to_list()


@pytest.mark.slow
def test_a_reference_that_cannot_be_read_whole_ends_the_run(brought):
    with_step(brought, "dies_on_reference")
    done = brought.run("--workers", "2", "--set", "max_error_rate=1")
    assert done.returncode == 1
    assert "failed on reference 'reference'" in done.stderr
    assert not (brought.out / "shards").exists()
