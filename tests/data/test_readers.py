import gzip
import json

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.data import FORMATS, InputError, Reject, read

ROW = {"question": "Who?", "sql": "SELECT 1", "db_id": "d"}


def rows_of(path, format="records", **options):
    return [r for r in read(path, format, **options) if not isinstance(r, Reject)]


def rejects_of(path, format="records", **options):
    return [r for r in read(path, format, **options) if isinstance(r, Reject)]


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_record_gets_its_defaults(tmp_path):
    path = written(tmp_path / "mine.jsonl", json.dumps({**ROW, "note": [1], "evidence": "e"}) + "\n\n")
    assert rows_of(path) == [
        {
            **ROW,
            "gold_sqls": ["SELECT 1"],
            "dialect": "sqlite",
            "evidence": "e",
            "language": None,
            "source": "mine",
            "split": "train",
            "domain": None,
            "extra": {"note": [1]},
        }
    ]


def test_gold_sqls_begin_with_sql(tmp_path):
    path = written(tmp_path / "a.jsonl", json.dumps({**ROW, "gold_sqls": ["SELECT 2", "SELECT 1"]}))
    assert rows_of(path)[0]["gold_sqls"] == ["SELECT 1", "SELECT 2"]


@pytest.mark.parametrize(
    ("line", "reason", "field"),
    [
        (b"not json", "invalid_json", None),
        (b"[1, 2]", "invalid_json", None),
        (b'{"question": "a\xff", "sql": "s", "db_id": "d"}', "invalid_utf8", None),
        (b'{"question": "q", "db_id": "d"}', "missing_field", "sql"),
        (b'{"question": "q", "sql": null, "db_id": "d"}', "missing_field", "sql"),
        (b'{"question": "q", "sql": "  ", "db_id": "d"}', "bad_field", "sql"),
        (b'{"question": 7, "sql": "s", "db_id": "d"}', "bad_field", "question"),
        (b'{"question": "q", "sql": ["s"], "db_id": "d"}', "bad_field", "sql"),
        (b'{"question": "q", "sql": "s", "db_id": 3}', "bad_field", "db_id"),
        (b'{"question": "q", "sql": "a\\u0000b", "db_id": "d"}', "bad_field", "sql"),
        (b'{"question": "\\ud800", "sql": "s", "db_id": "d"}', "bad_field", "question"),
        (b'{"question": "q", "sql": "s", "db_id": "d", "evidence": 5}', "bad_field", "evidence"),
        (b'{"question": "q", "sql": "s", "db_id": "d", "gold_sqls": "s"}', "bad_field", "gold_sqls"),
        (b"[" * 100_000, "invalid_json", None),
    ],
)
def test_what_is_no_row_is_refused_with_file_line_and_field(tmp_path, line, reason, field):
    path = tmp_path / "a.jsonl"
    good = json.dumps(ROW).encode()
    path.write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
    found = list(read(path, "records"))
    assert [isinstance(f, Reject) for f in found] == [False, True, False]
    reject = found[1]
    assert (reject.file, reject.line, reject.reason, reject.field) == ("a.jsonl", 2, reason, field)
    assert reject.detail
    assert reject.raw


def test_a_bom_and_gzip(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROW).encode())
    assert len(rows_of(path)) == 1
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(ROW).encode()))
    assert rows_of(packed)[0]["source"] == "b"
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"b\.jsonl\.gz: cannot be read"):
        rows_of(packed)


@given(
    st.lists(
        st.fixed_dictionaries(
            {k: st.text(min_size=1).filter(lambda t: t.strip() and "\0" not in t) for k in ROW}
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_records_come_back_as_they_were(tmp_path, records):
    path = written(tmp_path / "a.jsonl", "".join(json.dumps(r) + "\n" for r in records))
    assert [{k: r[k] for k in ROW} for r in rows_of(path)] == records


@pytest.mark.parametrize("format", [f for f in FORMATS if f not in ("parquet", "datasets")])
def test_an_empty_or_missing_file_is_told(tmp_path, format):
    empty = written(tmp_path / "empty.x", "")
    with pytest.raises(InputError, match=r"no rows: .*empty\.x is empty"):
        rows_of(empty, format)
    with pytest.raises(InputError, match=r"absent\.x"):
        rows_of(tmp_path / "absent.x", format)


def test_spider(tmp_path):
    rows = [{"question": "q", "query": "SELECT 1", "db_id": "a b\n-中", "query_toks": ["SELECT"]}, "x"]
    for name in ("train.json", "dev.json"):
        written(tmp_path / name, json.dumps(rows))
    (row,) = rows_of(tmp_path / "dev.json", "spider")
    assert (row["sql"], row["db_id"], row["source"], row["split"]) == (
        "SELECT 1",
        "a b\n-中",
        "spider",
        "dev",
    )
    assert rows_of(tmp_path, "spider")[0]["split"] == "train"
    assert rejects_of(tmp_path / "dev.json", "spider")[0].line == 2
    written(tmp_path / "dev.json", "{")
    with pytest.raises(InputError, match="not JSON"):
        rows_of(tmp_path / "dev.json", "spider")


def test_bird(tmp_path):
    rows = [{"question": "q", "SQL": "SELECT 1", "db_id": "d", "evidence": "", "difficulty": "simple"}]
    (row,) = rows_of(written(tmp_path / "mini_dev.json", json.dumps(rows)), "bird")
    assert (row["sql"], row["evidence"], row["split"], row["extra"]) == (
        "SELECT 1",
        None,
        "dev",
        {"difficulty": "simple"},
    )


def test_bird_minidev(nl2sql_data):
    rows = rows_of(nl2sql_data / "bird_minidev" / "mini_dev_sqlite.json", "bird")
    assert len(rows) == 500
    assert all(r["sql"] for r in rows)


def test_csv_with_a_mapping(tmp_path):
    text = 'Q,Query,db\n"multi\nline ""q""",SELECT 1,d\nq2,,d\nq3,SELECT 3\nq4,SELECT 4,d\n'
    path = written(tmp_path / "a.csv", text)
    columns = {"question": "Q", "sql": "Query", "db_id": "db"}
    found = list(read(path, "csv", columns=columns))
    assert [getattr(f, "line", None) for f in found] == [None, 4, 5, None]
    assert found[0]["question"] == 'multi\nline "q"'
    assert found[1].field == "Query"
    assert "2 fields" in found[2].detail
    with pytest.raises(InputError, match="did you mean 'Query'"):
        rows_of(path, "csv", columns={**columns, "sql": "Qery"})
    with pytest.raises(InputError, match="did you mean 'question'"):
        rows_of(path, "csv", columns={"queston": "Q"})


def test_csv_in_another_encoding_is_refused_row_by_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("question,sql,db_id\nné,SELECT 1,d\nok,SELECT 2,d\n".encode("latin-1"))
    assert [r.reason for r in rejects_of(path, "csv")] == ["invalid_utf8"]
    assert len(rows_of(path, "csv")) == 1


def test_parquet(tmp_path):
    frame = pl.DataFrame([{**ROW, "n": 3}, {**ROW, "question": None, "n": 4}])
    frame.write_parquet(tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet", "parquet")[0]["extra"] == {"n": 3}
    assert rejects_of(tmp_path / "a.parquet", "parquet")[0].line == 2
    assert len(rows_of(tmp_path, "parquet")) == 1
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(InputError, match=r"bad\.parquet"):
        rows_of(tmp_path / "bad.parquet", "parquet")


def test_a_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([ROW]).save_to_disk(tmp_path / "one")
    assert rows_of(tmp_path / "one", "datasets")[0]["sql"] == "SELECT 1"
    both = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list([ROW]), "dev": datasets.Dataset.from_list([ROW] * 2)}
    )
    both.save_to_disk(tmp_path / "two")
    assert len(rows_of(tmp_path / "two", "datasets")) == 1
    assert len(rows_of(f"{tmp_path / 'two'}:dev", "datasets")) == 2
    with pytest.raises(InputError, match="cannot be loaded"):
        rows_of(tmp_path / "nothing", "datasets")


def test_a_reference_may_be_questions_only(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"question": "q"}\n{"sql": "s"}\n')
    (row,) = rows_of(path, require_sql=False)
    assert (row["sql"], row["db_id"]) == ("", "")
    assert len(rejects_of(path, require_sql=False)) == 1
    assert len(rejects_of(path)) == 2
