import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.sql.canonical import parse
from curate.sql.sandbox import Limits, Sandbox
from curate.sql.testsuite import build_suite
from train.rewards import Gold, Score, SqlRewards, Weights, clauses, extract_sql, similarity, tables

WEIGHTS = Weights()
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("db") / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        create table item (item_id integer primary key, name text, price real, stock integer);
        create table sale (sale_id integer primary key, item_id integer, units integer);
        insert into item values (1,'pen',1.5,10),(2,'ink',4.0,0),(3,'pad',2.5,7),(4,'cup',6.0,3);
        insert into sale values (1,1,3),(2,1,2),(3,3,9),(4,4,1);
        """
    )
    connection.close()
    return str(path)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(workers=1, limits=Limits(timeout_s=2.0)) as box:
        yield box


@pytest.fixture
def rewards(sandbox: Sandbox) -> SqlRewards:
    return SqlRewards(sandbox)


class Counting:
    """A sandbox that remembers what it was asked, and can be told to fail at a SQL, predicted or gold."""

    def __init__(self, sandbox: Sandbox, failing: dict[str, str] | None = None):
        self.sandbox, self.asked, self.failing = sandbox, [], failing or {}

    def judge(self, pairs, mode):
        self.asked += pairs
        return [self._told(p, j) for p, j in zip(pairs, self.sandbox.judge(pairs, mode), strict=True)]

    def _told(self, pair, judgement):
        failed = tuple((self.failing[g], "told to fail") for g in pair.golds if g in self.failing)
        status = self.failing.get(pair.predicted, judgement.status)
        return replace(judgement, status=status, failed=failed)


def total(rewards: SqlRewards, sql: str, gold: Gold) -> float:
    score = rewards.score([sql], [gold])[0]
    assert score is not None
    return score.total(WEIGHTS)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM item WHERE price > 2",
        "select i.name from item as i where i.price > 2;",
        "SELECT name FROM item WHERE item_id IN (2, 3, 4)",
        "```sql\nSELECT name FROM item WHERE NOT price <= 2\n```",
    ],
)
def test_a_right_sql_scores_one_whatever_it_looks_like(rewards, shop, sql):
    assert total(rewards, sql, Gold(shop, ("SELECT name FROM item WHERE price > 2",))) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM item WHERE price > 3",
        "SELECT name FROM item",
        "SELECT price FROM item WHERE price > 2",
        "SELECT nme FROM item WHERE price > 2",
        "SELECT name FROM item WHERE",
        "DROP TABLE item",
        "",
        ENDLESS,
    ],
)
def test_a_wrong_sql_scores_at_most_two_fifths(rewards, shop, sql):
    assert total(rewards, sql, Gold(shop, ("SELECT name FROM item WHERE price > 2",))) <= 0.4 + 1e-9


def test_partial_credit_orders_wrong_sql_by_nearness(rewards, shop):
    gold = Gold(shop, ("SELECT name FROM item WHERE price > 2",))
    ladder = ["SELECT units FROM sale", "SELECT nme FROM item", "SELECT stock FROM item"]
    ladder += ["SELECT name FROM item", "SELECT name FROM item WHERE price > 3"]
    totals = [total(rewards, sql, gold) for sql in ladder]
    assert totals == sorted(totals)
    assert len(set(totals)) == len(totals)


@pytest.mark.parametrize(
    "stub", ["SELECT 1", "SELECT * FROM sqlite_master", "SELECT units FROM sale", "SELECT NULL"]
)
def test_stubs_score_nothing(rewards, shop, stub):
    assert total(rewards, stub, Gold(shop, ("SELECT name FROM item WHERE price > 2",))) == 0


def test_an_empty_gold_is_not_met_by_any_empty_result(rewards, shop):
    gold = Gold(shop, ("SELECT name FROM item WHERE price > 100",))
    assert total(rewards, "SELECT name FROM item WHERE price > 99", gold) == pytest.approx(1.0)
    score = rewards.score(["SELECT units FROM sale WHERE 0"], [gold])[0]
    assert (score.execution, score.reason) == (0.0, "empty")


def test_a_near_miss_that_the_database_lets_through_is_wrong_on_its_suite(sandbox, shop, tmp_path):
    gold = Gold(shop, ("SELECT name FROM item WHERE stock > 5",))
    near, right = "SELECT name FROM item WHERE stock > 6", "SELECT i.name FROM item i WHERE NOT i.stock <= 5"
    suite = build_suite(Path(shop), gold.sqls, tmp_path / "suite", sandbox)
    alone, judged = SqlRewards(sandbox), SqlRewards(sandbox, suites={shop: suite})
    assert [s.total(WEIGHTS) for s in alone.score([near, right], [gold] * 2)] == [1.0, 1.0]
    missed, found = judged.score([near, right], [gold] * 2)
    assert (missed.execution, missed.reason, found.total(WEIGHTS)) == (0.0, "near_miss", 1.0)
    assert missed.total(WEIGHTS) <= 0.4
    verdicts = judged.judge.judge([near, right, ENDLESS, "SELECT nme FROM item"], [gold] * 4)
    assert [v.reason for v in verdicts] == ["near_miss", "right", "timeout", "error"]


def test_any_of_several_golds_may_be_met(rewards, shop):
    gold = Gold(shop, ("SELECT count(*) FROM item", "SELECT sum(stock) FROM item"))
    assert total(rewards, "SELECT 20", gold) == pytest.approx(1.0)
    assert total(rewards, "SELECT count(name) FROM item", gold) == pytest.approx(1.0)
    assert total(rewards, "SELECT sum(price) FROM item", gold) < 0.41


def test_a_prediction_that_times_out_is_wrong_and_spares_the_others(rewards, shop):
    gold = Gold(shop, ("SELECT count(*) FROM item",))
    slow, right = rewards.score([ENDLESS, "SELECT 4"], [gold, gold])
    assert (slow.execution, slow.reason) == (0.0, "timeout")
    assert right.execution == 1.0


def test_a_gold_that_fails_is_undecided(rewards, shop):
    assert rewards.score(["SELECT 1"], [Gold(shop, ("SELECT nope FROM item",))]) == [None]


def test_a_missing_database_is_undecided(rewards, tmp_path):
    gold = Gold(str(tmp_path / "none.sqlite"), ("SELECT 1",))
    assert rewards.score(["SELECT 1"], [gold]) == [None]


def test_one_failing_gold_of_two_leaves_a_miss_undecided_but_not_a_hit(rewards, shop):
    gold = Gold(shop, ("SELECT count(*) FROM item", "SELECT nope FROM item"))
    hit, miss = rewards.score(["SELECT 4", "SELECT 5"], [gold, gold])
    assert hit.execution == 1.0
    assert miss is None


def test_identical_completions_are_executed_once(sandbox, shop):
    counting = Counting(sandbox)
    rewards = SqlRewards(counting)
    gold = Gold(shop, ("SELECT count(*) FROM item",))
    for _ in range(3):
        rewards.score(["SELECT 4", "SELECT 4 ;", "SELECT 5"], [gold] * 3)
    assert sorted(p.predicted for p in counting.asked) == ["SELECT 4", "SELECT 5"]


def test_a_worker_lost_twice_is_the_predictions_fault(sandbox, shop):
    counting = Counting(sandbox, failing={"SELECT 5": "crashed"})
    gold = Gold(shop, ("SELECT count(*) FROM item",))
    score = SqlRewards(counting).score(["SELECT 5"], [gold])[0]
    assert (score.execution, score.reason) == (0.0, "crashed")


def test_where_one_of_several_golds_fails_a_wrong_answer_is_undecided(rewards, shop):
    gold = Gold(shop, ("SELECT nope FROM item", "SELECT count(*) FROM item"))
    right, wrong = rewards.score(["SELECT count(item_id) FROM item", "SELECT name FROM item"], [gold] * 2)
    assert right.execution == 1.0
    assert wrong is None


def test_trl_functions_tell_of_one_execution(sandbox, shop):
    counting = Counting(sandbox, failing={"SELECT count(*) FROM sale": "no_database"})
    functions = SqlRewards(counting).functions()
    assert [f.__name__ for f in functions] == ["execution", "syntax", "structure"]
    columns = {
        "completions": [" SELECT 4", " SELECT name FROM item", "SELECT 1"],
        "database": [shop] * 3,
        "gold_sqls": [["SELECT count(*) FROM item"]] * 2 + [["SELECT count(*) FROM sale"]],
        "prompts": ["p"] * 3,
        "trainer_state": None,
    }
    values = [f(**columns) for f in functions]
    assert values[0] == [1.0, 0.0, None]
    assert values[1] == [1.0, 1.0, None]
    assert values[2][0] == 1.0
    assert 0 < values[2][1] < 1
    assert len(counting.asked) == 3  # the second and third function add none


NAMES = st.sampled_from(["name", "price", "stock", "item_id", "count(*)", "max(price)", "nope"])
TABLES = st.sampled_from(["item", "sale", "nowhere", "item JOIN sale USING (item_id)"])
CONDITIONS = st.sampled_from(
    ["", " WHERE price > 2", " WHERE stock = (SELECT max(stock) FROM item)", " WHERE ("]
)
TAILS = st.sampled_from(
    ["", " ORDER BY 1 DESC", " LIMIT 1", " GROUP BY stock HAVING count(*) > 1", " UNION SELECT 1"]
)
SQL = st.builds(lambda n, t, c, e: f"SELECT {n} FROM {t}{c}{e}", NAMES, TABLES, CONDITIONS, TAILS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SQL, SQL)
def test_no_wrong_sql_outranks_a_right_one(rewards, shop, sql, gold_sql):
    score = rewards.score([sql], [Gold(shop, (gold_sql,))])[0]
    if score is None:
        return
    assert all(0 <= x <= 1 for x in (score.execution, score.syntax, score.structure))
    value = score.total(WEIGHTS)
    assert value == pytest.approx(1.0) if score.execution else value <= 0.4 + 1e-9
    itself = rewards.score([gold_sql], [Gold(shop, (gold_sql,))])[0]
    assert itself.total(WEIGHTS) == pytest.approx(1.0)


def test_similarity_is_symmetric_and_one_for_equal_trees():
    a = parse("SELECT a FROM t WHERE b = 1 ORDER BY c")
    b = parse("SELECT a, d FROM t WHERE b = 2")
    assert similarity(a, a) == 1
    assert similarity(a, b) == pytest.approx(similarity(b, a))
    assert 0 < similarity(a, b) < 1


def test_clauses_hold_what_is_compared():
    found = clauses(parse("SELECT x.a FROM t AS x WHERE x.b > 3 ORDER BY x.a DESC LIMIT 5"))
    assert found["select"] == {"a": 1}
    assert found["tables"] == {"t": 1}
    assert found["where"] == {"GT": 1, "b": 1, "'3'": 1}
    assert found["order"] == {"a": 1, "DESC": 1}
    assert found["limit"] == {"'5'": 1}


def test_tables_leave_out_ctes():
    assert tables(parse("WITH c AS (SELECT * FROM Item) SELECT * FROM c JOIN sale ON 1")) == {"item", "sale"}


@pytest.mark.parametrize(
    "completion, sql",
    [
        (" SELECT 1 ;", "SELECT 1"),
        ("text\n```sql\nSELECT 1;\n```\nmore", "SELECT 1"),
        ("```\nSELECT 1\n```\n```sqlite\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 3", "SELECT 3"),
        ("<think>```sql SELECT 0```</think>SELECT 4", "SELECT 4"),
        ([{"role": "assistant", "content": "SELECT 5"}], "SELECT 5"),
        ("", ""),
    ],
)
def test_sql_is_taken_out_of_completions(completion, sql):
    assert extract_sql(completion) == sql


def test_weights_that_let_wrong_near_right_are_refused():
    with pytest.raises(ValueError, match=r"0\.5"):
        Weights(0.4, 0.3, 0.3)
    with pytest.raises(ValueError, match="sum to 1"):
        Weights(0.6, 0.2, 0.3)
    assert Score(1, 1, 1, "right").total(Weights(0.8, 0.1, 0.1)) == pytest.approx(1)


def test_rewards_need_no_torch():
    code = (
        "import sys, train.rewards; sys.exit(any(m in sys.modules for m in ('torch', 'trl', 'transformers')))"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
