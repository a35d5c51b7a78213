"""The commands as a user types them: exit codes, messages, what is left behind."""

import subprocess
import sys

import polars as pl
import pytest

import curate
from tests.conftest import PIPELINE, small_rows, write_jsonl


def test_version_help_and_steps(project):
    assert project.curate("--version").stdout.strip() == f"curate {curate.__version__}"
    shown = project.curate("--help").stdout
    for command in ("run", "check", "plan", "why", "diff", "steps", "demo"):
        assert command in shown
    assert "max_paraphrases = 4" in project.curate("steps").stdout


def test_importing_curate_brings_no_heavy_package():
    heavy = ("torch", "ray", "transformers", "sentence_transformers", "polars", "sqlglot")
    code = f"import sys, curate, curate.cli; print([m for m in {heavy!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_wrong_usage_ends_with_2(project):
    assert project.curate("run").returncode == 2
    assert project.curate("run", "absent.yaml").returncode == 2
    assert project.curate("jump").returncode == 2
    assert project.curate("demo", "d", "--language", "fr").returncode == 2
    assert project.curate("why", "00", "nowhere").returncode == 2


def test_a_bad_pipeline_file_is_refused_before_any_work(project):
    project.pipeline.write_text(PIPELINE.replace("dedup", "dedupe"))
    done = project.run()
    assert done.returncode == 2
    assert "did you mean 'dedup'?" in done.stderr
    assert "pipeline.yaml:12:" in done.stderr
    assert not project.out.exists()


def test_check_finds_every_problem_and_writes_nothing(project):
    rows = [*small_rows(), {"question": "q", "sql": "SELECT 1", "db_id": "absent"}]
    write_jsonl(project.train, rows)
    with project.train.open("a") as file:
        file.write('{"question": "no sql", "db_id": "town_0"}\nnot json\n')
    (project.folder / "databases" / "town_1" / "town_1.sqlite").write_bytes(b"no database at all")
    done = project.curate("check", "pipeline.yaml")
    assert done.returncode == 2
    assert "no database for db_id 'absent'" in done.stderr
    assert "town_1.sqlite" in done.stderr
    assert f"train.jsonl:{len(rows) + 1}: field 'sql'" in done.stderr
    assert f"train.jsonl:{len(rows) + 2}:" in done.stderr
    assert not project.out.exists()


def test_check_of_a_good_pipeline(project):
    done = project.curate("check", "pipeline.yaml")
    assert done.returncode == 0, done.stderr
    assert "no problem found" in done.stdout


def test_an_empty_train_file_is_told(project):
    project.train.write_text("")
    done = project.run()
    assert done.returncode == 2
    assert "train.jsonl" in done.stderr
    assert "empty" in done.stderr


def test_bad_lines_go_to_the_rejects_with_file_line_and_field(project):
    good = project.train.read_bytes()
    bad = (
        b'{"question": "no sql", "db_id": "town_0"}\n'
        b"not json\n"
        b'{"question": "bad \xff utf8", "sql": "SELECT 1", "db_id": "town_0"}\n'
        b'{"question": 7, "sql": "SELECT 1", "db_id": "town_0"}\n'
    )
    project.train.write_bytes(bad + good)
    done = project.run()
    assert done.returncode == 0, done.stderr
    read = pl.read_parquet(project.out / "ledger.parquet").filter(pl.col("step") == "read")
    assert read.height == 4
    details = "\n".join(read["detail"])
    for i, word in enumerate(("field 'sql'", "", "", "field 'question'"), start=1):
        assert f"train.jsonl:{i}:" in details
        assert word in details
    rejected = pl.read_parquet(project.out / "rejected.parquet").filter(pl.col("step") == "read")
    assert rejected.height == 4
    assert rejected["extra"].str.contains("not json").any()


def test_only_bad_lines_end_the_run_and_are_kept(project):
    project.train.write_text("nothing here is JSON\n")
    done = project.run()
    assert done.returncode == 1
    assert "no row" in done.stderr
    assert pl.read_parquet(project.out / "rejected.parquet").height == 1


def test_why_tells_the_life_of_a_row(project):
    assert project.run().returncode == 0
    shard = next((project.out / "shards").glob("stage-3/*.parquet"))
    row = pl.read_parquet(shard).row(0, named=True)
    shown = project.curate("why", row["row_id"][:20], "out").stdout
    assert row["question"] in shown
    assert "stage-3/part-00000.parquet" in shown
    for step in ("validate", "canonicalize", "difficulty"):
        assert step in shown
    assert project.curate("why", "zz", "out").returncode == 2


def test_diff_tells_what_entered_left_and_moved(project):
    assert project.run().returncode == 0
    rows = [*small_rows()[1:], {"question": "new one", "sql": "SELECT id FROM pet", "db_id": "town_0"}]
    write_jsonl(project.train, rows)
    assert project.run("--set", "output.path=out2").returncode == 0
    shown = project.curate("diff", "out", "out2", "--output", "changes.parquet")
    assert shown.returncode == 0, shown.stderr
    changes = pl.read_parquet(project.folder / "changes.parquet")
    assert changes.filter(pl.col("change") == "entered")["question"].to_list() == ["new one"]
    left = changes.filter(pl.col("change") == "left")
    assert left["question"].to_list() == [small_rows()[0]["question"]]
    assert left["reason"].to_list() == ["not in the input"]
    assert "no row differs" in project.curate("diff", "out", "out").stdout


def test_a_full_disk_is_told_and_the_rerun_finishes(project, tmp_path):
    """A small file-size limit stands for the full disk: writes fail in the middle of the run."""
    code = (
        "import errno, os, curate.atomic as a, curate.cli as c\n"
        "real, left = os.fsync, [9]\n"
        "def fsync(fd):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "    return real(fd)\n"
        "a.os.fsync = fsync\n"
        "import sys; sys.argv = ['curate', 'run', 'pipeline.yaml', '--workers', '1']\n"
        "c.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project.folder, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert "finished parts are kept" in done.stderr
    assert not list(project.out.rglob(".tmp-*"))
    again = project.run()
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("db_id", ["with space", "hy-phen", "new\nline", "数据库", "a/b", "..", "100%"])
def test_a_database_id_may_hold_anything(project, db_id):
    from curate.sql.schema import safe_name
    from tests.conftest import make_database

    make_database(project.folder / "databases" / safe_name(db_id) / f"{safe_name(db_id)}.sqlite")
    write_jsonl(project.train, [{**r, "db_id": db_id} for r in small_rows(1)])
    done = project.run()
    assert done.returncode == 0, done.stderr
    curriculum = (project.out / "shards" / "curriculum.json").read_text()
    assert "databases/" in curriculum
    assert len(list((project.out / "shards" / "databases").rglob("*.sqlite"))) == 1
