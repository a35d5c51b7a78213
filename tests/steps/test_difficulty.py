import polars as pl

from curate.steps import Difficulty

SQLS = {
    "SELECT name FROM person WHERE age > 30": 1,
    "SELECT count(*) FROM person": 2,
    "SELECT name FROM person ORDER BY age DESC LIMIT 1": 2,
    "SELECT p.name FROM person p JOIN pet q ON p.id = q.owner": 2,
    "SELECT name FROM person WHERE id IN (SELECT owner FROM pet)": 3,
    "SELECT name FROM person UNION SELECT kind FROM pet": 3,
    "SELECT name, rank() OVER (ORDER BY age) FROM person": 3,
    "WITH old AS (SELECT * FROM person WHERE age > 30) SELECT name FROM old": 3,
}


def run(*sqls: str):
    return Difficulty().run([{"question": f"q{i}", "sql": s, "db_id": "d"} for i, s in enumerate(sqls)])


def test_stages_and_scores():
    kept = run(*SQLS).kept
    assert dict(kept.select("sql", "rule_stage").iter_rows()) == SQLS
    assert kept["difficulty"].is_between(0, 1).all()
    means = dict(kept.group_by("rule_stage").agg(pl.col("difficulty").mean()).iter_rows())
    assert means[1] < means[2] < means[3]


def test_what_cannot_be_parsed_is_flagged():
    result = run("SELEC name")
    assert result.flagged["reason"].to_list() == ["unscored"]
    assert result.kept["difficulty"].to_list() == [None]


def test_no_rows():
    assert run().kept.height == 0
