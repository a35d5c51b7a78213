from curate.steps import Canonicalize


def keys(database, *sqls: str) -> dict[str, str]:
    rows = [{"question": f"q{i}", "sql": s, "db_id": "town"} for i, s in enumerate(sqls)]
    result = Canonicalize().run(rows, databases=database.parent.parent)
    return dict(result.kept.select("sql", "sql_canonical").iter_rows())


def test_spelling_does_not_matter_and_meaning_does(database):
    found = keys(
        database,
        "SELECT name FROM person WHERE age > 30 AND id = 1",
        "select T1.name from person as T1 where T1.id = 1 and T1.age > 30;",
        "SELECT name FROM person WHERE age < 30 AND id = 1",
    )
    assert len(set(found.values())) == 2


def test_double_quoted_text_is_a_value(database):
    found = keys(
        database, 'SELECT id FROM person WHERE name = "Ann"', "SELECT id FROM person WHERE name = 'Ann'"
    )
    assert len(set(found.values())) == 1


def test_sql_that_cannot_be_parsed_is_flagged_and_keyed_by_its_text(database):
    rows = [{"question": "q", "sql": "SELEC name FRM person", "db_id": "town"}]
    result = Canonicalize().run(rows, databases=database.parent.parent)
    assert result.flagged["reason"].to_list() == ["unparsed"]
    assert result.kept["sql_canonical"].to_list() == ["selec name frm person"]


def test_a_column_the_schema_does_not_have_is_flagged(database):
    rows = [{"question": "q", "sql": "SELECT p.nme FROM person p", "db_id": "town"}]
    result = Canonicalize().run(rows, databases=database.parent.parent)
    assert result.flagged["reason"].to_list() == ["unqualified"]


def test_no_rows(database):
    assert keys(database) == {}
