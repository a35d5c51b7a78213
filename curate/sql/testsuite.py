"""Neighbour databases that tell a gold SQL from its near-misses.

One database lets wrong SQL through: `>` and `>=` agree until a row stands on the boundary. A neighbour has the
same schema and other rows: values of the original and of the golds' own conditions, boundaries and near-misses
among them, few enough that they repeat, keys that refer to each other, some parents without children, NULLs. The
suite is the smallest set of neighbours, chosen greedily, that tells the golds from the mutants (curate.sql.mutate)
which the original database does not. After "Semantic Evaluation for Text-to-SQL with Distilled Test Suites"
(Zhong et al., 2020), with near-misses made from the syntax tree and values taken from the conditions.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from sqlglot import exp

from curate.sql.canonical import SqlParseError, parse, repair_quotes
from curate.sql.findings import Block, blocks_of, examine, is_number
from curate.sql.mutate import Mutant, mutants
from curate.sql.probes import TieProbe, probes
from curate.sql.sandbox import Judgement, Pair, Query, Sandbox
from curate.sql.schema import Schema, quoted, read_sqlite

FILE = "suite.json"
VERSION = 2
BASE = 200  # values of a column of the original that neighbours draw from
Key = tuple[str, str]  # table and column, in lower case


@dataclass(frozen=True, slots=True)
class Profile:
    """What one neighbour is like.

    rows: in each table. values: of the original that a column draws from. literals: share of cells that hold a
    value of the golds' conditions, where there is one. nulls: share of NULLs in columns that may hold them.
    spread: numbers that are not keys are all different, so that no ORDER BY ties.
    """

    rows: int
    values: int
    literals: float
    nulls: float
    spread: bool


PROFILES = (
    Profile(rows=40, values=12, literals=0.5, nulls=0.05, spread=False),
    Profile(rows=40, values=25, literals=0.3, nulls=0.0, spread=True),
    Profile(rows=15, values=4, literals=0.7, nulls=0.1, spread=False),
    Profile(rows=80, values=40, literals=0.5, nulls=0.02, spread=True),
    Profile(rows=60, values=6, literals=0.8, nulls=0.0, spread=False),
    Profile(rows=25, values=30, literals=0.8, nulls=0.05, spread=True),
)


@dataclass(frozen=True)
class Suite:
    """folder: of the neighbours `1.sqlite`, `2.sqlite`, ... fits: gold SQL to the numbers of the neighbours on which
    it tells a mutant apart. On the others nothing is to be learnt of that gold, or its result there is a matter of
    chance (a tie at its LIMIT); a gold whose result may be chance anywhere (see `steady`) fits none.
    near_misses: gold SQL to its mutants that give the gold's result on the database and another one on some candidate.

    Counts: golds; `steady` of them; over the steady ones, mutants made; `original` of them told apart by the
    database itself; `killed` by the suite; `known` by some candidate, chosen or not; the rest of the mutants no
    candidate told apart: they are equivalent, or too close for this method.
    """

    folder: Path
    fits: Mapping[str, tuple[int, ...]]
    near_misses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    databases: int = 0
    golds: int = 0
    steady: int = 0
    mutants: int = 0
    original: int = 0
    known: int = 0
    killed: int = 0

    def neighbours(self, *golds: str) -> list[Path]:
        """Those that fit every one of the golds: elsewhere the one that a prediction equals may be chance."""
        numbers = set.intersection(*(set(self.fits.get(gold, ())) for gold in golds))
        return [self.folder / f"{number}.sqlite" for number in sorted(numbers)]

    @property
    def kill_rate(self) -> float:
        """Share of the mutants known to differ and missed by the original that the suite tells apart."""
        return self.killed / self.known if self.known else 1.0


def load_suite(folder: Path) -> Suite | None:
    """The suite in a folder, or None where there is none of this version."""
    try:
        about = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if about.get("version") != VERSION:
        return None
    fits = {gold: tuple(numbers) for gold, numbers in about["fits"].items()}
    near = {gold: tuple(sqls) for gold, sqls in about["near_misses"].items()}
    return Suite(folder, fits, near, *(about[k] for k in _COUNTS))


_COUNTS = ("databases", "golds", "steady", "mutants", "original", "known", "killed")


def build_suite(
    database: Path,
    golds: Sequence[str],
    folder: Path,
    sandbox: Sandbox,
    *,
    seed: int = 0,
    most: int = 6,
    candidates: int = 24,
    mode: str = "strict",
) -> Suite:
    """Make `candidates` neighbours of a database and keep at most `most` of them, in `folder`.

    Golds that do not run, or are not `steady`, are left out. Same database, golds and seed: same files.
    Raises SchemaError, OSError.
    """
    schema = read_sqlite(database)
    golds = sorted(set(golds))
    ties = steady(golds, schema)
    pairs = [(gold, mutant) for gold in ties for mutant in mutants(gold, schema)]
    missed = missed_mutants(database, pairs, sandbox, mode)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    world = read_world(database, schema, golds)
    kills: list[set[int]] = []
    for i in range(candidates):
        path = folder / f"candidate-{i}.sqlite"
        write_neighbour(path, world, PROFILES[i % len(PROFILES)], Random(f"{seed}:{i}"))
        kills.append(told_apart(path, missed, ties, sandbox, mode) if missed else set())
    chosen = _cover(kills, most)
    for number, i in enumerate(chosen, 1):
        (folder / f"candidate-{i}.sqlite").rename(folder / f"{number}.sqlite")
    for left in folder.glob("candidate-*"):
        left.unlink()
    fits: dict[str, list[int]] = {}
    for number, i in enumerate(chosen, 1):
        for gold in dict.fromkeys(missed[m][0] for m in sorted(kills[i])):
            fits.setdefault(gold, []).append(number)
    known = set().union(*kills)
    near: dict[str, list[str]] = {}
    for gold, mutant in (missed[m] for m in sorted(known)):
        near.setdefault(gold, []).append(mutant.sql)
    suite = Suite(
        folder,
        {gold: tuple(numbers) for gold, numbers in sorted(fits.items())},
        {gold: tuple(sqls) for gold, sqls in sorted(near.items())},
        databases=len(chosen),
        golds=len(golds),
        steady=len(ties),
        mutants=len(pairs),
        original=len(pairs) - len(missed),
        known=len(known),
        killed=len(set().union(*(kills[i] for i in chosen))),
    )
    about = {
        "version": VERSION,
        "fits": suite.fits,
        "near_misses": suite.near_misses,
        **{k: getattr(suite, k) for k in _COUNTS},
    }
    (folder / FILE).write_text(json.dumps(about, ensure_ascii=False, indent=1), encoding="utf-8")
    return suite


def judge_on_suites(
    sandbox: Sandbox, pairs: Sequence[Pair], suites: Mapping[str, Suite], mode: str = "strict"
) -> list[Judgement]:
    """Judge each pair on its database and on the neighbours that fit its golds: it must match on all of them.

    suites: path of a database to its suite; a database without one is judged by itself. What is not right on the
    database is not tried further. A neighbour on which a gold does not run says nothing.
    """
    found = sandbox.judge(pairs, mode)
    asked: list[tuple[int, Path, Pair]] = []
    for place, (pair, judgement) in enumerate(zip(pairs, found, strict=True)):
        suite = suites.get(pair.database)
        if judgement.match and suite is not None:
            for neighbour in suite.neighbours(*pair.golds):
                asked.append((place, neighbour, Pair(str(neighbour), pair.predicted, pair.golds)))
    answers = sandbox.judge([pair for _, _, pair in asked], mode)
    for (place, neighbour, pair), answer in zip(asked, answers, strict=True):
        if found[place].match and not answer.match and len(answer.failed) < len(pair.golds):
            found[place] = _refuted(found[place], answer, neighbour)
    return found


def _refuted(original: Judgement, answer: Judgement, neighbour: Path) -> Judgement:
    why = answer.reason or answer.error or answer.status
    return Judgement(
        "ok",
        False,
        f"right on the database, not on its neighbour {neighbour.name}: {why}",
        original.empty,
        original.failed,
        original.golds,
        None,
        original.seconds + answer.seconds,
        refuted=True,
    )


# Which mutants a database tells from their golds

Case = tuple[str, Mutant]  # a gold and a mutant of it


CHANCE = frozenset({"limit_without_order", "bare_column", "nondeterministic"})


def steady(golds: Sequence[str], schema: Schema) -> dict[str, TieProbe | None]:
    """The golds whose result the rows decide, each with the probe for a tie at its LIMIT, if it has one.

    Left out: SQL that calls chance, LIMIT without ORDER BY, bare columns, and a LIMIT whose ties cannot be looked
    for (within a subquery, or beside `*` or DISTINCT). On other rows a right answer could differ from those.
    """
    found: dict[str, TieProbe | None] = {}
    for gold in golds:
        if any(f.check in CHANCE or f.check == "unparsable" for f in examine(gold, schema)):
            continue
        tie = probes(gold, schema).tie
        if sum(1 for _ in parse(gold).find_all(exp.Limit)) == (tie is not None):
            found[gold] = tie
    return found


def missed_mutants(database: Path, pairs: Sequence[Case], sandbox: Sandbox, mode: str) -> list[Case]:
    """The mutants of golds that run, which the original database does not tell apart."""
    found = sandbox.judge([Pair(str(database), mutant.sql, (gold,)) for gold, mutant in pairs], mode)
    return [pair for pair, judgement in zip(pairs, found, strict=True) if judgement.match]


def told_apart(
    database: Path, cases: Sequence[Case], ties: Mapping[str, TieProbe | None], sandbox: Sandbox, mode: str
) -> set[int]:
    """Places of the cases that the database tells apart. A gold that ties at its LIMIT there tells nothing."""
    asked = [(g, tie) for g in dict.fromkeys(g for g, _ in cases) if (tie := ties[g]) is not None]
    results = sandbox.run([Query(str(database), tie.sql) for _, tie in asked])
    chance = {
        gold
        for (gold, tie), result in zip(asked, results, strict=True)
        if not result.ok or tie.finding(result.rows) is not None
    }
    places = [i for i, (gold, _) in enumerate(cases) if gold not in chance]
    pairs = [Pair(str(database), cases[i][1].sql, (cases[i][0],)) for i in places]
    found = sandbox.judge(pairs, mode)
    return {
        i for i, j in zip(places, found, strict=True) if not j.match and not j.failed and j.status == "ok"
    }


def _cover(kills: Sequence[set[int]], most: int) -> list[int]:
    """Greedy set cover: the candidate that adds most, the first of equals, until none adds anything."""
    left = set().union(*kills) if kills else set()
    chosen: list[int] = []
    while left and len(chosen) < most:
        best = max(range(len(kills)), key=lambda i: (len(kills[i] & left), -i))
        chosen.append(best)
        left -= kills[best]
    return chosen


# The rows of neighbours


@dataclass(frozen=True)
class World:
    """What neighbours are made of.

    statements: CREATE of tables, indexes and views. pools: values of each column in the original. literals: values
    of the golds' conditions on it. keys: columns that refer to each other, by a name of their own.
    """

    schema: Schema
    statements: tuple[str, ...]
    pools: Mapping[Key, tuple[Any, ...]]
    literals: Mapping[Key, tuple[Any, ...]]
    keys: Mapping[Key, str]
    hidden: frozenset[Key] = field(default_factory=frozenset)


def read_world(database: Path, schema: Schema, golds: Sequence[str]) -> World:
    connection = sqlite3.connect(f"file:{quote(str(database.resolve()))}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        order = "CASE type WHEN 'table' THEN 0 WHEN 'index' THEN 1 ELSE 2 END, rowid"
        rows = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND type IN ('table', 'index', 'view') "
            f"AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY {order}"
        ).fetchall()
        tables = {name.lower() for kind, name, _ in rows if kind == "table"}
        pools, hidden = {}, set()
        for table in schema.tables:
            if table.name.lower() not in tables:
                continue
            for info in connection.execute(f"PRAGMA table_xinfo({quoted(table.name)})"):
                if info[6] in (2, 3):  # generated
                    hidden.add((table.name.lower(), info[1].lower()))
            for column in table.columns:
                pools[table.name.lower(), column.name.lower()] = _values(connection, table.name, column.name)
    finally:
        connection.close()
    literals: dict[Key, dict[Any, None]] = {}
    keys = _Links()
    for foreign in schema.foreign_keys:
        for one, other in zip(foreign.columns, foreign.ref_columns, strict=True):
            keys.tie((foreign.table.lower(), one.lower()), (foreign.ref_table.lower(), other.lower()))
    for gold in golds:
        try:
            blocks = blocks_of(repair_quotes(parse(gold), schema), schema)
        except (SqlParseError, RecursionError):
            continue
        for block in blocks:
            for key, value in _conditions(block):
                literals.setdefault(key, {}).update(dict.fromkeys(_around(value)))
            for one_key, other_key in _joined(block):
                keys.tie(one_key, other_key)
    held = {key: tuple(values) for key, values in literals.items()}
    statements = tuple(sql for _, _, sql in rows)
    return World(schema, statements, pools, held, keys.names(), frozenset(hidden))


def _values(connection: sqlite3.Connection, table: str, column: str) -> tuple[Any, ...]:
    name = quoted(column)
    sql = f"SELECT DISTINCT {name} FROM {quoted(table)} WHERE {name} IS NOT NULL ORDER BY 1 LIMIT {BASE}"
    try:
        return tuple(
            value for (value,) in connection.execute(sql) if not isinstance(value, str) or len(value) < 200
        )
    except sqlite3.Error:
        return ()


class _Links:
    """Columns tied to each other, by foreign keys or by the golds' joins: a union-find."""

    def __init__(self) -> None:
        self.parent: dict[Key, Key] = {}

    def root(self, key: Key) -> Key:
        while (above := self.parent.setdefault(key, key)) != key:
            key = above
        return key

    def tie(self, one: Key, other: Key) -> None:
        first, second = sorted((self.root(one), self.root(other)))
        self.parent[second] = first

    def names(self) -> dict[Key, str]:
        return {key: ".".join(self.root(key)) for key in sorted(self.parent)}


def _key(block: Block, node: exp.Expr | None) -> Key | None:
    source = block.source(node) if isinstance(node, exp.Column) else None
    if source is None or source.table is None or not isinstance(node, exp.Column):
        return None
    return (source.table, node.name.lower()) if node.name.lower() in (source.columns or {}) else None


def _joined(block: Block) -> Iterator[tuple[Key, Key]]:
    for equal in block.select.find_all(exp.EQ):
        if equal.find_ancestor(exp.Select) is block.select:
            one, other = _key(block, equal.this), _key(block, equal.expression)
            if one is not None and other is not None and one != other:
                yield one, other
    for inside in block.select.find_all(exp.In):
        query = inside.args.get("query")
        if query is None or inside.find_ancestor(exp.Select) is not block.select:
            continue
        inner = query.this if isinstance(query, exp.Subquery) else query
        one = _key(block, inside.this)
        if one is not None and isinstance(inner, exp.Select) and len(inner.expressions) == 1:
            other = _only_key(inner, block)
            if other is not None and other != one:
                yield one, other


def _only_key(inner: exp.Select, block: Block) -> Key | None:
    """The column that a one-column, one-table subquery gives."""
    output, source = inner.expressions[0].unalias(), inner.args.get("from_")
    if not isinstance(output, exp.Column) or source is None or inner.args.get("joins"):
        return None
    return (source.this.name.lower(), output.name.lower()) if isinstance(source.this, exp.Table) else None


def _conditions(block: Block) -> Iterator[tuple[Key, Any]]:
    """Literals that the query compares with a column; those compared with an aggregate are no values of one."""
    kinds = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Like)
    for node in block.select.find_all(*kinds):
        if node.find_ancestor(exp.Select) is not block.select:
            continue
        sides = [
            node.this,
            node.args.get("expression"),
            node.args.get("low"),
            node.args.get("high"),
            *node.expressions,
        ]
        keys = [key for side in sides if (key := _key(block, side)) is not None]
        if len(keys) == 1:
            for side in sides:
                value = _literal(side, like=isinstance(node, exp.Like))
                if value is not None:
                    yield keys[0], value


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str


def _literal(node: exp.Expr | None, *, like: bool) -> Any:
    if isinstance(node, exp.Neg):
        value = _literal(node.this, like=like)
        return -value if isinstance(value, int | float) else None
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return _Pattern(node.name) if like else node.name
    try:
        return int(node.name)
    except ValueError:
        return float(node.name)


def _around(value: Any) -> list[Any]:
    """A value of a condition, and what stands close to it on either side."""
    if isinstance(value, _Pattern):
        core = value.text.replace("_", "a")
        filled = core.replace("%", "q")
        return [
            filled,
            core.replace("%", ""),
            f"z{filled}",
            f"{filled}z",
            core.replace("%", "zz").swapcase(),
            "zz",
        ]
    if isinstance(value, int):
        return [value, value - 1, value + 1]
    if isinstance(value, float):
        return [value, value - 0.5, value + 0.5]
    text = str(value)
    try:
        number = float(text)
    except ValueError:
        return [text, f"{text}x", text.swapcase()]
    return [text, *(str(int(n)) if number.is_integer() else str(n) for n in (number - 1, number + 1))]


def write_neighbour(path: Path, world: World, profile: Profile, random: Random) -> None:
    """A database of the world's schema with rows by the profile. Rows that break a constraint are left out."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for statement in world.statements:
            try:
                connection.execute(statement)
            except sqlite3.Error:  # a virtual table, or a view of one
                continue
        shared = _shared_keys(world, profile, random)
        for table in world.schema.tables:
            if (table.name.lower(), table.columns[0].name.lower() if table.columns else "") in world.pools:
                _fill(connection, table.name, world, profile, shared, random)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _shared_keys(world: World, profile: Profile, random: Random) -> dict[str, list[Any]]:
    """The values of each set of columns that refer to each other."""
    members: dict[str, list[Key]] = {}
    for key, name in world.keys.items():
        members.setdefault(name, []).append(key)
    shared = {}
    for name, keys in members.items():
        values = dict.fromkeys(v for key in keys for v in world.pools.get(key, ()))
        wanted = dict.fromkeys(v for key in keys for v in world.literals.get(key, ()))
        picked = random.sample(list(values), min(len(values), max(4, profile.rows // 2)))
        extra = [f"k{i}" if _textual(world, keys[0]) else 900 + i for i in range(max(0, 6 - len(picked)))]
        shared[name] = list(dict.fromkeys([*list(wanted)[:6], *picked, *extra]))
    return shared


def _textual(world: World, key: Key) -> bool:
    return not is_number(_type(world, key))


def _type(world: World, key: Key) -> str:
    return world.schema.mapping().get(key[0], {}).get(key[1], "TEXT")


def _fill(
    connection: sqlite3.Connection,
    table: str,
    world: World,
    profile: Profile,
    shared: Mapping[str, Sequence[Any]],
    random: Random,
) -> None:
    held = next(t for t in world.schema.tables if t.name == table)
    low = table.lower()
    columns = [c for c in held.columns if (low, c.name.lower()) not in world.hidden]
    primary = [c.name for c in columns if c.primary_key]
    cells: list[list[Any]] = []
    for column in columns:
        key = (low, column.name.lower())
        if primary == [column.name]:
            cells.append(_identities(key, world, profile, shared, random))
        else:
            cells.append(_cells(key, column.primary_key, world, profile, shared, random))
    names = ", ".join(quoted(c.name) for c in columns)
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT OR IGNORE INTO {quoted(table)} ({names}) VALUES ({marks})"
    for row in zip(*cells, strict=True):
        try:
            connection.execute(sql, row)
        except (sqlite3.Error, OverflowError):
            continue


def _identities(
    key: Key, world: World, profile: Profile, shared: Mapping[str, Sequence[Any]], random: Random
) -> list[Any]:
    """Distinct values for a primary key: those others refer to first, but for a few, then new ones."""
    known = list(shared.get(world.keys.get(key, ""), ())) or list(world.pools.get(key, ()))
    random.shuffle(known)
    known = known[: max(1, profile.rows - 2)]
    fresh = [f"n{i}" if _textual(world, key) else 10_000 + i for i in range(profile.rows)]
    return list(dict.fromkeys([*known, *fresh]))[: profile.rows]


def _cells(
    key: Key,
    primary: bool,
    world: World,
    profile: Profile,
    shared: Mapping[str, Sequence[Any]],
    random: Random,
) -> list[Any]:
    referred = shared.get(world.keys.get(key, ""))
    literals = world.literals.get(key, ())
    if referred is not None:
        # Uneven on purpose: groups of one size tie, and some keys must have no row.
        chosen = random.sample(list(referred), max(1, len(referred) * 2 // 3))
        weights = [1 / (1 + i) for i in range(len(chosen))]
        values = random.choices(chosen, weights, k=profile.rows)
    else:
        pool = world.pools.get(key, ())
        pool = tuple(random.sample(pool, min(len(pool), profile.values)))
        pool = pool or _made_up(_type(world, key), profile.values, random)
        values = random.choices(pool, k=profile.rows)
        if profile.spread and all(isinstance(v, int | float) for v in pool):
            values = _spread(pool, profile.rows, random)
    for i in range(profile.rows):
        if literals and referred is None and random.random() < profile.literals:
            values[i] = random.choice(literals)
        if not primary and random.random() < profile.nulls:
            values[i] = None
    return values


def _made_up(type_: str, count: int, random: Random) -> tuple[Any, ...]:
    if not is_number(type_):
        return tuple(f"v{i}" for i in range(count))
    whole = "int" in type_.lower()
    return tuple(random.randrange(200) if whole else random.randrange(2_000) / 8 for _ in range(count))


def _spread(pool: Sequence[Any], count: int, random: Random) -> list[Any]:
    """Distinct numbers over the pool's range, whole if the pool's are."""
    low, high = min(pool), max(pool)
    if all(isinstance(v, int) for v in pool):
        return random.sample(range(int(low) - 3, max(int(high), int(low) + 4 * count)), count)
    return [low + (high - low + 1) * place / (4 * count) for place in random.sample(range(4 * count), count)]
