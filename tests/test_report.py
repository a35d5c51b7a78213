import json

import polars as pl
import yaml

import curate
from curate.report import write_report
from tests.conftest import small_rows, write_jsonl


def test_the_report_is_one_file_made_of_what_is_stored(project):
    write_jsonl(
        project.train,
        [
            *small_rows(),
            small_rows()[0],
            {"question": "<script>alert(1)</script>", "sql": "SELECT nme FROM person", "db_id": "town_0"},
        ],
    )
    manifest = curate.run(project.pipeline, workers=1)
    page = (project.out / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page
    for text in ("gold_fails: 1", "exact_duplicate: 1", f"{manifest['counts']['kept']:,} kept", "repeats:"):
        assert text in page
    again = write_report(project.out).read_text(encoding="utf-8")
    assert again == page


def test_a_report_of_many_rejects_stays_small(project):
    curate.run(project.pipeline, workers=1)
    path = project.out / "rejected.parquet"
    row = {"row_id": "0" * 32, "question": "q" * 200, "sql": "s" * 200, "step": "dedup", "action": "drop"}
    row |= {"reason": "exact_duplicate", "partner_id": "1" * 32}
    empty = pl.read_parquet(path)
    many = pl.concat([empty, pl.DataFrame([row] * 100_000)], how="diagonal")
    many.write_parquet(path)
    page = write_report(project.out)
    assert page.stat().st_size < 1_000_000
    assert "100,000, 20 shown" in page.read_text(encoding="utf-8")


def test_the_card_has_valid_front_matter_and_the_counts(project):
    manifest = curate.run(project.pipeline, workers=1)
    text = (project.out / "shards" / "README.md").read_text(encoding="utf-8")
    front, _, body = text.removeprefix("---\n").partition("\n---\n")
    card = yaml.safe_load(front)
    assert card["language"] == ["en"]
    assert card["size_categories"] == ["n<1K"]
    assert [c["config_name"] for c in card["configs"]] == ["stage-1", "stage-2", "stage-3", "validation"]
    curriculum = json.loads((project.out / "shards" / "curriculum.json").read_text())
    for stage in curriculum["stages"]:
        assert f"| {stage['title']} | {stage['rows']:,} |" in body
    assert f"{manifest['counts']['kept']:,} question/SQL pairs" in body
    assert str(project.folder) not in text
