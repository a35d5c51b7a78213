import pytest

from curate.steps import Dedup

OLDER = "SELECT name FROM person WHERE age > 30"


def run(database, *pairs: tuple[str, str], **config):
    rows = [{"question": q, "sql": s, "db_id": "town"} for q, s in pairs]
    return Dedup(**config).run(rows, databases=database.parent.parent)


def test_the_first_three_rungs(database):
    result = run(
        database,
        ("Who is older than 30?", OLDER),
        ("Who is older than 30?", OLDER),
        ("who is older  than 30?", OLDER.lower()),
        ("Who is older than 30 ?", "SELECT name FROM person WHERE 30 < age"),
        ("So who is older than 30?", OLDER),
        ("Give the names of people past thirty years", OLDER),
    )
    assert sorted(result.dropped["reason"]) == [
        "exact_duplicate",
        "exact_duplicate",
        "near_duplicate",
        "same_question",
    ]
    assert result.kept.height == 2
    assert set(result.dropped["partner_id"]) <= set(result.kept["row_id"])


def test_contrast_pairs_are_flagged_and_never_dropped(database):
    result = run(
        database,
        ("Who is older than 30 years?", OLDER),
        ("Who is younger than 30 years?", "SELECT name FROM person WHERE age < 30"),
        ("Who is older than 31 years?", "SELECT name FROM person WHERE age > 31"),
    )
    assert result.dropped.is_empty()
    assert set(result.flagged["reason"]) == {"near_question_other_sql"}


def test_one_question_with_two_answers_is_a_conflict(database):
    result = run(
        database,
        ("Who is old?", OLDER),
        ("who is old", "SELECT name FROM person WHERE age > 40"),
    )
    assert result.dropped.is_empty()
    assert result.flagged["reason"].to_list() == ["same_question_other_sql"] * 2
    first, second = result.flagged["row_id"], result.flagged["partner_id"]
    assert sorted(first) == sorted(second)


PHRASINGS = (
    "Who is older than 30?",
    "Name everyone past thirty.",
    "List people whose age exceeds 30",
    "Show all persons above the age of 30",
    "Which individuals have lived over 30 years?",
    "Find the older ones, more than thirty",
)


@pytest.mark.parametrize("most", [1, 4, 6, 10])
def test_paraphrases_are_capped_and_not_dropped(database, most):
    result = run(database, *((q, OLDER) for q in PHRASINGS), max_paraphrases=most)
    assert result.kept.height == min(most, len(PHRASINGS))
    assert set(result.dropped["reason"]) <= {"paraphrase_cap"}


def test_a_row_with_evidence_stays(database):
    rows = [
        {"question": "Who is old?", "sql": OLDER, "db_id": "town", "evidence": e}
        for e in (None, "", "old means over 30", None)
    ]
    result = Dedup().run(rows, databases=database.parent.parent)
    assert result.kept["evidence"].to_list() == ["old means over 30"]


def test_the_skeleton_cap_is_off_unless_asked(database):
    ages = ["eleven", "twelve", "thirteen", "forty", "fifty", "sixty"]
    pairs = [
        (f"{a} is what who must pass?", f"SELECT name FROM person WHERE age > {i}")
        for i, a in enumerate(ages)
    ]
    assert run(database, *pairs).kept.height == 6
    result = run(database, *pairs, max_per_skeleton=2)
    assert result.kept.height == 2
    assert set(result.dropped["reason"]) == {"skeleton_cap"}


def test_the_threshold_can_be_changed_afterwards(database):
    result = run(database, ("Who is older than 30?", OLDER), ("Say, who is older than 30 years?", OLDER))
    assert result.rethreshold(0.99).dropped.is_empty()
    assert result.rethreshold(0.3).dropped["reason"].to_list() == ["near_duplicate"]


def test_other_databases_are_other_questions(database):
    rows = [{"question": "Who?", "sql": OLDER, "db_id": d} for d in ("town", "city")]
    assert Dedup().run(rows, databases=database.parent.parent).dropped.is_empty()


def test_no_rows_and_one_row(database):
    assert run(database).kept.height == 0
    assert run(database, ("q", OLDER)).kept.height == 1
