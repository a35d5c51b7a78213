"""Structural features of a query, Spider's hardness, the difficulty score and the stage rule."""

import math
from dataclasses import dataclass, fields

from sqlglot import exp

from curate.sql.canonical import SqlParseError, parse
from curate.sql.schema import Schema


@dataclass(frozen=True, slots=True)
class Features:
    """Counts over the whole query, subqueries and set operations included.

    tables: table references in FROM and JOIN, CTE references included.
    inner_joins, outer_joins: joins by kind; a comma join is an inner join, a cross join too.
    columns: output expressions of the outermost SELECT (of a set operation, of its first).
    predicates: comparisons, LIKE, IN, BETWEEN, IS and EXISTS; of them likes (and GLOB, REGEXP), ins, betweens,
    is_tests (IS, ISNULL), exists.
    boolean_depth: depth of nested AND, OR and NOT.
    disjunctions: ORs. negations: NOTs, that of NOT LIKE and IS NOT included.
    aggregates: aggregate functions that are not windows. distinct: DISTINCT in SELECT or aggregate.
    group_keys: expressions grouped by. having: HAVING clauses.
    order_keys: expressions ordered by, windows' own excluded. limits: LIMIT clauses.
    set_operations: UNION, INTERSECT, EXCEPT.
    subqueries: nested SELECTs, in any place; CTEs are counted apart. Of them from_subqueries in FROM,
    select_subqueries among the outputs, where_subqueries in WHERE or ON, having_subqueries in HAVING.
    nesting_depth: of SELECT in SELECT.
    correlated: subqueries that use a column of a query around them.
    ctes: WITH members. windows: window functions.
    cases: CASE and IIF. functions: other functions. arithmetic: +, -, *, /, %, ||.
    literals: numbers and strings.
    """

    tables: int = 0
    inner_joins: int = 0
    outer_joins: int = 0
    columns: int = 0
    predicates: int = 0
    likes: int = 0
    ins: int = 0
    betweens: int = 0
    is_tests: int = 0
    exists: int = 0
    boolean_depth: int = 0
    disjunctions: int = 0
    negations: int = 0
    aggregates: int = 0
    distinct: int = 0
    group_keys: int = 0
    having: int = 0
    order_keys: int = 0
    limits: int = 0
    set_operations: int = 0
    subqueries: int = 0
    from_subqueries: int = 0
    select_subqueries: int = 0
    where_subqueries: int = 0
    having_subqueries: int = 0
    nesting_depth: int = 0
    correlated: int = 0
    ctes: int = 0
    windows: int = 0
    cases: int = 0
    functions: int = 0
    arithmetic: int = 0
    literals: int = 0


# Points of one more of each feature; the n-th counts log2(n + 1) - log2(n) of it.
WEIGHTS: dict[str, float] = {
    "tables": 0.3,
    "inner_joins": 1.0,
    "outer_joins": 1.4,
    "columns": 0.3,
    "predicates": 0.6,
    "likes": 0.1,
    "ins": 0.1,
    "betweens": 0.1,
    "is_tests": 0.1,
    "exists": 0.3,
    "boolean_depth": 0.4,
    "disjunctions": 0.6,
    "negations": 0.5,
    "aggregates": 0.7,
    "distinct": 0.4,
    "group_keys": 0.9,
    "having": 0.9,
    "order_keys": 0.5,
    "limits": 0.3,
    "set_operations": 1.8,
    "subqueries": 1.8,
    "from_subqueries": 0.1,
    "select_subqueries": 0.3,
    "where_subqueries": 0.1,
    "having_subqueries": 0.3,
    "nesting_depth": 0.8,
    "correlated": 1.2,
    "ctes": 1.6,
    "windows": 2.0,
    "cases": 1.0,
    "functions": 0.4,
    "arithmetic": 0.5,
    "literals": 0.2,
}
_NAMES = tuple(f.name for f in fields(Features))
SCALE = 5.0  # points at which the score is 1 - 1/e


def difficulty(found: Features) -> float:
    """Our score in [0, 1): 1 - exp(-points / 5), points = sum of weight * log2(1 + feature).

    Monotone in every feature, since every weight is positive. The weights are set by hand: they order
    constructs as Spider's hardness does, and spread its train set over the range.
    """
    points = sum(WEIGHTS[name] * math.log2(1 + n) for name in _NAMES if (n := getattr(found, name)))
    return 1 - math.exp(-points / SCALE)


def rule_stage(found: Features) -> int:
    """1: one table, no aggregate, group or order. 2: joins, aggregates, GROUP BY, HAVING, ORDER BY, LIMIT.
    3: subqueries, set operations, CTEs, window functions."""
    if found.subqueries or found.set_operations or found.ctes or found.windows:
        return 3
    plain = (found.aggregates, found.group_keys, found.having, found.order_keys, found.limits)
    return 2 if found.inner_joins or found.outer_joins or any(plain) else 1


_FIELDS: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.Literal: ("literals",),
    exp.Table: ("tables",),
    exp.Or: ("disjunctions",),
    exp.Not: ("negations",),
    exp.CTE: ("ctes",),
    exp.Window: ("windows",),
    exp.Having: ("having",),
    exp.Distinct: ("distinct",),
    exp.Case: ("cases",),
    exp.Limit: ("limits",),
    exp.Exists: ("predicates", "exists"),
    exp.In: ("predicates", "ins"),
    exp.Between: ("predicates", "betweens"),
    exp.Is: ("predicates", "is_tests"),
    **dict.fromkeys((exp.Like, exp.ILike, exp.Glob, exp.RegexpLike), ("predicates", "likes")),
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), ("predicates",)),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe), ("arithmetic",)),
    **dict.fromkeys((exp.Union, exp.Intersect, exp.Except), ("set_operations",)),
    **dict.fromkeys((exp.And, exp.Xor, exp.Cast, exp.Identifier, exp.Column), ()),
}
_PLACES = {"from_": "from", "joins": "from", "expressions": "select", "where": "where", "having": "having"}
_BOOLEAN = (exp.And, exp.Or, exp.Not)
_WINDOWED = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.Lag, exp.Lead)


def features(query: str | exp.Expr, schema: Schema | None = None, dialect: str = "sqlite") -> Features:
    """The features of a query or its tree, in one walk. Raises SqlParseError for text that is not one query.

    With `schema`, a column of an outer query is recognised also where it is written without its table's name.
    """
    tree = parse(query, dialect) if isinstance(query, str) else query
    n = dict.fromkeys(_NAMES, 0)
    # A node; how many SELECTs are around it; how many AND, OR, NOT it continues, and the last of them; the
    # clause of the nearest SELECT it is in; what a SELECT there would be: the query, a CTE's own, or nested.
    open_: list[tuple[exp.Expr, int, int, type | None, str, str]] = [(tree, 0, 0, None, "", "query")]
    while open_:
        node, depth, booleans, last, place, role = open_.pop()
        kind = type(node)
        named = _FIELDS.get(kind)
        if named is None:
            _count_other(node, n)
        else:
            for name in named:
                n[name] += 1
        if kind is exp.Select:
            n["nesting_depth"] = max(n["nesting_depth"], depth)
            if role == "nested":
                n["subqueries"] += 1
                n["correlated"] += _correlated(node, schema)
                if place:
                    n[f"{place}_subqueries"] += 1
            depth, role = depth + 1, "nested"
        elif kind is exp.CTE:
            role = "cte"
        elif not isinstance(node, exp.SetOperation | exp.Subquery | exp.Paren | exp.With):
            role = "nested"
        if kind in _BOOLEAN:
            booleans, last = booleans + (kind is not last), kind
            n["boolean_depth"] = max(n["boolean_depth"], booleans)
        elif kind is not exp.Paren:
            if node.args.get("negate"):  # NOT LIKE
                n["negations"] += 1
                n["boolean_depth"] = max(n["boolean_depth"], booleans + (last is not exp.Not))
            booleans, last = 0, None
        for child in node.iter_expressions():
            if type(child) is not exp.Identifier:
                inside = place
                if kind is exp.Select:
                    inside = _PLACES.get(child.arg_key or "", "")
                elif kind is exp.Join and child.arg_key == "on":
                    inside = "where"
                open_.append((child, depth, booleans, last, inside, role))
    n["columns"] = len(_first_select(tree).expressions)
    return Features(**n)


def _count_other(node: exp.Expr, n: dict[str, int]) -> None:
    """Count a node whose kind alone does not say what it is."""
    if isinstance(node, exp.Join):
        n["outer_joins" if node.args.get("side") else "inner_joins"] += 1
    elif isinstance(node, exp.Group):
        n["group_keys"] += len(node.expressions)
    elif isinstance(node, exp.Order):
        n["order_keys"] += 0 if isinstance(node.parent, exp.Window) else len(node.expressions)
    elif isinstance(node, exp.If):
        n["cases"] += not isinstance(node.parent, exp.Case)
    elif isinstance(node, exp.AggFunc):
        n["aggregates"] += not (isinstance(node.parent, exp.Window) or isinstance(node, _WINDOWED))
    elif isinstance(node, exp.Func):
        implied = node.key.startswith("tsords")  # sqlglot's own wrapper around a date argument
        n["functions"] += not (implied or isinstance(node.parent, exp.Window))


def _sources(select: exp.Expr) -> list[exp.Expr]:
    """Of FROM and JOIN."""
    source = select.args.get("from_")
    return ([source.this] if source is not None else []) + [j.this for j in select.args.get("joins") or []]


def _correlated(select: exp.Expr, schema: Schema | None) -> bool:
    """Whether a nested SELECT, or one within it, uses a column of a query around it."""
    sources = [source for inner in select.find_all(exp.Select) for source in _sources(inner)]
    names = {(source.alias or source.name).lower() for source in sources}
    columns = list(select.find_all(exp.Column))
    if any(column.table and column.table.lower() not in names for column in columns):
        return True
    if schema is None or not all(isinstance(s, exp.Table) and schema.has_table(s.name) for s in sources):
        return False  # what a derived table holds is not known here
    tables = {source.name.lower() for source in sources}
    own = {c.name.lower() for table in schema.tables if table.name.lower() in tables for c in table.columns}
    own |= {alias.alias.lower() for alias in select.find_all(exp.Alias)}
    bare = (c.name.lower() for c in columns if not c.table and not c.is_star)
    return any(name not in own and schema.has_column(name) for name in bare)


def _first_select(tree: exp.Expr) -> exp.Expr:
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    return tree


# Spider's hardness


def hardness(query: str | exp.Expr, schema: Schema | None = None, dialect: str = "sqlite") -> str:
    """Spider's easy, medium, hard or extra, by the rule of its official evaluation script (Yu et al., 2018).

    Three counts decide: of clauses (WHERE, GROUP BY, ORDER BY, LIMIT, joins, OR, LIKE), of nested queries in
    conditions and set operations, and of plurals (more than one aggregate, column, condition, group key). The
    counts keep the script's peculiarities: only the first SELECT of a set operation is looked at, a subquery
    in FROM is no nesting, a negated condition and each AND in HAVING count as an aggregate.

    Raises SqlParseError for text that is not one query. For SQL that Spider's parser cannot read (CTEs,
    windows, CASE, EXISTS, LEFT JOIN) the same counts are taken, with CTEs and windows as nested queries.
    """
    tree = parse(query, dialect) if isinstance(query, str) else query
    select = _first_select(tree)
    where, having = _flat(select.args.get("where")), _flat(select.args.get("having"))
    joined = [_flat(join.args["on"]) for join in select.args.get("joins") or [] if join.args.get("on")]
    conditions = [c for part in (*joined, where, having) for c in part[0]]
    clauses = _clauses(select, conditions, sum(part[1].count("or") for part in (*joined, where, having)))
    nested = _nested_count(tree, select, conditions)
    plurals = _plurals(select, where, having)
    if clauses <= 1 and plurals == 0 and nested == 0:
        return "easy"
    if nested == 0 and ((plurals <= 2 and clauses <= 1) or (clauses <= 2 and plurals < 2)):
        return "medium"
    if (
        (nested == 0 and plurals > 2 and clauses <= 2)
        or (nested == 0 and 2 < clauses <= 3 and plurals <= 2)
        or (clauses <= 1 and plurals == 0 and nested <= 1)
    ):
        return "hard"
    return "extra"


_Flat = tuple[list[exp.Expr], list[str]]  # conditions, and the connectors between them


def _flat(node: exp.Expr | None) -> _Flat:
    """A boolean expression as Spider's parser reads it: its conditions in a row, parentheses ignored."""
    conditions: list[exp.Expr] = []
    connectors: list[str] = []
    open_: list[exp.Expr | str] = [node] if node is not None else []
    while open_:
        top = open_.pop()
        if isinstance(top, str):
            connectors.append(top)
        elif isinstance(top, exp.Paren | exp.Where | exp.Having):
            open_.append(top.this)
        elif isinstance(top, exp.And | exp.Or):
            open_ += [top.expression, top.key, top.this]
        else:
            conditions.append(top)
    return _read_by_spider(conditions, connectors)


def _read_by_spider(conditions: list[exp.Expr], connectors: list[str]) -> _Flat:
    """Spider's parser reads a column on the right side of a condition up to the next AND: an OR is lost."""
    kept, between = conditions[:1], []
    lost = False
    for i, connector in enumerate(connectors):
        lost = connector == "or" and (lost or _ends_in_column(conditions[i]))
        if not lost:
            kept.append(conditions[i + 1])
            between.append(connector)
    return kept, between


def _ends_in_column(condition: exp.Expr) -> bool:
    value = condition.args.get("expression")
    if not isinstance(value, exp.Column):
        return False
    name = value.this  # a double-quoted name without a table is text to Spider
    return bool(value.table) or not (isinstance(name, exp.Identifier) and name.quoted)


def _clauses(select: exp.Expr, conditions: list[exp.Expr], ors: int) -> int:
    count = sum(select.args.get(clause) is not None for clause in ("where", "group", "order", "limit"))
    count += len(select.args.get("joins") or [])
    count += ors
    return count + sum(isinstance(_positive(c), exp.Like | exp.ILike) for c in conditions)


def _positive(condition: exp.Expr) -> exp.Expr:
    while isinstance(condition, exp.Not | exp.Paren):
        condition = condition.this
    return condition


def _nested_count(tree: exp.Expr, select: exp.Expr, conditions: list[exp.Expr]) -> int:
    count = 0
    for condition in conditions:
        count += sum(_is_query(n) for n in condition.walk(prune=_is_query))
    top = tree
    while isinstance(top, exp.Subquery):
        top = top.this
    count += isinstance(top, exp.SetOperation)
    with_ = tree.args.get("with_") or tree.args.get("with")
    count += len(with_.expressions) if with_ is not None else 0
    return count + sum(1 for e in select.expressions if e.find(exp.Window))


def _is_query(node: exp.Expr) -> bool:
    return isinstance(node, exp.Select | exp.SetOperation)


def _plurals(select: exp.Expr, where: _Flat, having: _Flat) -> int:
    group = select.args.get("group")
    order = select.args.get("order")
    aggregates = sum(_begins_with_aggregate(e) for e in select.expressions)
    aggregates += sum(_negated(c) for c in (*where[0], *having[0])) + len(having[1])
    if order is not None:
        aggregates += sum(
            1 for e in order.expressions for a in e.find_all(exp.AggFunc) if not a.find_ancestor(exp.Subquery)
        )
    return (
        (aggregates > 1)
        + (len(select.expressions) > 1)
        + (len(where[0]) > 1)
        + (group is not None and len(group.expressions) > 1)
    )


def _negated(condition: exp.Expr) -> bool:
    return isinstance(condition, exp.Not) or bool(condition.args.get("negate"))


def _begins_with_aggregate(expression: exp.Expr) -> bool:
    node = expression.this if isinstance(expression, exp.Alias) else expression
    while isinstance(node, exp.Binary | exp.Paren) and not isinstance(node, exp.Dot):
        node = node.this
    return isinstance(node, exp.AggFunc)


__all__ = ["WEIGHTS", "Features", "SqlParseError", "difficulty", "features", "hardness", "rule_stage"]
