import json
import sqlite3

import pytest

from curate.sql.sandbox import Pair, Query, Sandbox
from curate.sql.schema import read_sqlite
from curate.sql.testsuite import FILE, build_suite, judge_on_suites, load_suite, steady

GOLDS = [
    "SELECT name FROM person WHERE age > 30",
    "SELECT kind FROM pet",
    "SELECT name FROM person ORDER BY age DESC LIMIT 1",
    "SELECT person.name, count(*) FROM person JOIN pet ON pet.owner = person.id GROUP BY person.id",
    "SELECT nope FROM person",
]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1) as made:
        yield made


@pytest.fixture
def suite(database, tmp_path, sandbox):
    return build_suite(database, GOLDS, tmp_path / "suite", sandbox)


def test_a_suite_tells_what_the_database_does_not(database, suite, sandbox):
    # 30 and 25 and 41, 41: no one is exactly 31, so the database cannot tell these apart
    gold, wrong = GOLDS[0], "SELECT name FROM person WHERE age > 31"
    pair = Pair(str(database), wrong, (gold,))
    assert sandbox.judge([pair], "strict")[0].match
    (found,) = judge_on_suites(sandbox, [pair], {str(database): suite})
    assert not found.match
    assert "not on its neighbour" in (found.reason or "")
    assert suite.known > 0
    assert suite.killed == suite.known
    assert 1 <= suite.databases <= 6


def test_the_right_stays_right_however_it_is_written(database, suite, sandbox):
    pairs = [
        Pair(str(database), "SELECT p.name FROM person AS p WHERE NOT p.age <= 30", (GOLDS[0],)),
        Pair(str(database), "SELECT kind FROM pet WHERE 1 = 1", (GOLDS[1],)),
        Pair(
            str(database),
            "SELECT p.name, count(t.id) FROM pet t, person p WHERE t.owner = p.id GROUP BY t.owner",
            (GOLDS[3],),
        ),
    ]
    assert all(j.match for j in judge_on_suites(sandbox, pairs, {str(database): suite}))


def test_wrong_on_the_database_stays_wrong_and_no_suite_changes_nothing(database, suite, sandbox):
    wrong = Pair(str(database), "SELECT name FROM person", (GOLDS[0],))
    near = Pair(str(database), "SELECT name FROM person WHERE age > 31", (GOLDS[0],))
    assert not judge_on_suites(sandbox, [wrong], {str(database): suite})[0].match
    assert judge_on_suites(sandbox, [near], {})[0].match


def test_where_a_gold_ties_at_its_limit_a_neighbour_says_nothing_of_it(suite, sandbox):
    tied = GOLDS[2]
    for neighbour in suite.neighbours(tied):
        keys = sandbox.run([Query(str(neighbour), "SELECT age FROM person ORDER BY age DESC LIMIT 2")])[
            0
        ].rows
        names = "SELECT count(DISTINCT name) FROM person WHERE age = (SELECT max(age) FROM person)"
        if len(set(keys)) == 1:
            assert sandbox.run([Query(str(neighbour), names)])[0].rows == ((1,),)


def test_keys_hold_in_neighbours(suite):
    for path in sorted(suite.folder.glob("*.sqlite")):
        connection = sqlite3.connect(path)
        ids = [i for (i,) in connection.execute("SELECT id FROM person")]
        assert len(set(ids)) == len(ids) > 3
        owners = {o for (o,) in connection.execute("SELECT owner FROM pet WHERE owner IS NOT NULL")}
        assert owners & set(ids)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def test_same_seed_same_files_and_another_seed_others(database, tmp_path, sandbox):
    made = {
        name: build_suite(database, GOLDS, tmp_path / name, sandbox, seed=seed)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    }
    files = {n: {p.name: p.read_bytes() for p in s.folder.iterdir()} for n, s in made.items()}
    assert files["a"] == files["b"]
    assert files["a"] != files["c"]


def test_a_database_without_rows_is_filled(tmp_path, sandbox):
    path = tmp_path / "empty.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT NOT NULL, n REAL);")
    connection.close()
    suite = build_suite(path, ["SELECT word FROM t WHERE n >= 2.5"], tmp_path / "suite", sandbox)
    assert suite.original < suite.mutants
    assert suite.killed / suite.known > 0.9
    assert not list(suite.folder.glob("candidate-*"))


def test_a_suite_is_read_back(suite, tmp_path):
    assert load_suite(suite.folder) == suite
    assert load_suite(tmp_path / "none") is None
    about = json.loads((suite.folder / FILE).read_text())
    (suite.folder / FILE).write_text(json.dumps({**about, "version": 0}))
    assert load_suite(suite.folder) is None


def test_golds_left_to_chance_fit_no_neighbour(database, tmp_path, sandbox):
    chance = [
        "SELECT name FROM person LIMIT 1",
        "SELECT name, count(*) FROM person GROUP BY age",
        "SELECT name FROM person WHERE id = (SELECT owner FROM pet ORDER BY kind LIMIT 1)",
        "SELECT * FROM person ORDER BY age LIMIT 1",
        "SELECT name FROM person WHERE age > random()",
    ]
    schema = read_sqlite(database)
    assert list(steady([*GOLDS[:3], *chance], schema)) == GOLDS[:3]
    suite = build_suite(database, [*GOLDS[:3], *chance], tmp_path / "suite", sandbox)
    assert (suite.golds, suite.steady) == (8, 3)
    assert not suite.fits.keys() & set(chance)


def test_a_neighbour_must_fit_every_accepted_sql(database, suite, sandbox):
    near = "SELECT name FROM person WHERE age > 31"
    alone, beside = Pair(str(database), near, (GOLDS[0],)), Pair(str(database), near, (GOLDS[0], GOLDS[4]))
    found = judge_on_suites(sandbox, [alone, beside], {str(database): suite})
    assert [f.match for f in found] == [False, True]  # the second accepted SQL is in no suite


def test_a_suite_built_again_in_its_place_is_judged_by_its_new_files(database, tmp_path, sandbox):
    folder = tmp_path / "suite"
    build_suite(database, GOLDS, folder, sandbox, seed=1)
    again = build_suite(database, GOLDS, folder, sandbox)
    fresh = build_suite(database, GOLDS, tmp_path / "fresh", sandbox)
    assert again.fits == fresh.fits
    assert again.killed == fresh.killed
