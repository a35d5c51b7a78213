import polars as pl

from curate.steps import Normalize


def rows(*questions: str, language: str | None = None) -> list[dict[str, str | None]]:
    return [{"question": q, "sql": "SELECT 1", "db_id": "d", "language": language} for q in questions]


def by_question(result, column: str) -> dict[str, str]:
    return dict(result.kept.select("question", column).iter_rows())


def test_language_is_detected_only_where_the_source_does_not_say():
    asked = ("How many?", "有多少人?", "人は何人いますか", "몇 명", "Сколько?", "42?")
    found = by_question(Normalize().run(rows(*asked)), "language")
    assert found == dict(zip(asked, ("en", "zh", "ja", "ko", "und", "en"), strict=True))
    assert by_question(Normalize().run(rows("How many?", language="de")), "language") == {"How many?": "de"}


def test_blank_questions_leave_and_control_characters_are_flagged():
    result = Normalize().run(rows(" ?! ", "a\x07b", "fine"))
    assert result.dropped.select("question", "reason").rows() == [(" ?! ", "blank_question")]
    assert result.flagged["question"].to_list() == ["a\x07b"]
    assert result.kept.height == 2


def test_no_rows_and_one_row():
    assert (
        Normalize()
        .run(pl.DataFrame(schema=dict.fromkeys(["question", "sql", "db_id"], pl.String)))
        .kept.height
        == 0
    )
    assert Normalize().run(rows("one")).kept["question_norm"].to_list() == ["one"]
