import pytest

from curate.steps import Decontaminate

OLDER = "SELECT name FROM person WHERE age > 30"
TRAIN = [
    ("Who is older than 30?", OLDER, "town"),
    ("who is older than 30 ?!", "SELECT id FROM person WHERE age > 30", "town"),
    ("So who is older than 30?", OLDER, "town"),
    ("List people whose age exceeds thirty", OLDER, "town"),
    ("Who is older than 30?", OLDER, "city"),
    ("Who is older than 31?", "SELECT name FROM person WHERE age > 31", "town"),
]


def rows(triples):
    return [{"question": q, "sql": s, "db_id": d} for q, s, d in triples]


def run(database, reference, **config):
    return Decontaminate(**config).run(
        rows(TRAIN), databases=database.parent.parent, references={"reference": reference}
    )


def test_train_loses_what_the_reference_holds(database):
    reference = [{**r, "split": "test"} for r in rows([("Who is older than 30?", OLDER, "town")])]
    result = run(database, reference)
    found = {(r["question"], r["db_id"]): r["reason"] for r in result.dropped.to_dicts()}
    assert found == {
        ("Who is older than 30?", "town"): "leak_exact",
        ("who is older than 30 ?!", "town"): "leak_question",
        ("So who is older than 30?", "town"): "leak_near",
    }
    assert result.dropped["partner_id"].n_unique() == 1
    assert result.dropped["partner_id"][0] not in result.rows["row_id"].to_list()


def test_a_reference_of_questions_only(database):
    result = run(database, [{"question": "Who is older than 30", "sql": "", "db_id": ""}])
    assert result.dropped["reason"].to_list() == ["leak_question"] * 3


def test_nothing_to_compare_with(database):
    with pytest.raises(ValueError, match="needs the reference"):
        Decontaminate(against="test").run(rows(TRAIN), databases=database.parent.parent)
    assert run(database, rows([])).dropped.is_empty()


def test_no_rows(database):
    result = Decontaminate().run(
        rows([]), databases=database.parent.parent, references={"reference": rows(TRAIN)}
    )
    assert result.kept.height == 0
