"""Structural features of a query, Spider's hardness, the difficulty score and the stage rule."""

import math
from dataclasses import astuple, dataclass, fields

from sqlglot import exp

from curate.sql.canonical import SqlParseError, parse
from curate.sql.schema import Schema


@dataclass(frozen=True, slots=True)
class Features:
    """Counts over the whole query, subqueries and set operations included.

    tables: table references in FROM and JOIN, CTE references included.
    inner_joins, outer_joins: joins by kind; a comma join is an inner join, a cross join too.
    columns: output expressions of the outermost SELECT (of a set operation, of its first).
    predicates: comparisons, LIKE, IN, BETWEEN, IS and EXISTS.
    boolean_depth: depth of nested AND, OR and NOT.
    disjunctions: ORs. negations: NOTs.
    aggregates: aggregate functions that are not windows. distinct: DISTINCT in SELECT or aggregate.
    group_keys: expressions grouped by. having: HAVING clauses.
    order_keys: expressions ordered by, windows' own excluded. limits: LIMIT clauses.
    set_operations: UNION, INTERSECT, EXCEPT.
    subqueries: nested SELECTs, in any place; CTEs are counted apart. nesting_depth: of SELECT in SELECT.
    correlated: subqueries that use a table of the query around them.
    ctes: WITH members. windows: window functions.
    cases: CASE and IIF. functions: other functions. arithmetic: +, -, *, /, %, ||.
    literals: numbers and strings.
    """

    tables: int = 0
    inner_joins: int = 0
    outer_joins: int = 0
    columns: int = 0
    predicates: int = 0
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
    "nesting_depth": 0.8,
    "correlated": 1.2,
    "ctes": 1.6,
    "windows": 2.0,
    "cases": 1.0,
    "functions": 0.4,
    "arithmetic": 0.5,
    "literals": 0.2,
}
SCALE = 5.0  # points at which the score is 1 - 1/e


def difficulty(found: Features) -> float:
    """Our score in [0, 1): 1 - exp(-points / 5), points = sum of weight * log2(1 + feature).

    Monotone in every feature, since every weight is positive. The weights are set by hand: they order
    constructs as Spider's hardness does, and spread its train set over the range.
    """
    points = sum(
        WEIGHTS[f.name] * math.log2(1 + n) for f, n in zip(fields(found), astuple(found), strict=True)
    )
    return 1 - math.exp(-points / SCALE)


def rule_stage(found: Features) -> int:
    """1: one table, no aggregate, group or order. 2: joins, aggregates, GROUP BY, HAVING, ORDER BY, LIMIT.
    3: subqueries, set operations, CTEs, window functions."""
    if found.subqueries or found.set_operations or found.ctes or found.windows:
        return 3
    plain = (found.aggregates, found.group_keys, found.having, found.order_keys, found.limits)
    return 2 if found.inner_joins or found.outer_joins or any(plain) else 1


_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_PREDICATES = (
    *_COMPARISONS,
    exp.Like,
    exp.ILike,
    exp.Glob,
    exp.RegexpLike,
    exp.In,
    exp.Between,
    exp.Is,
    exp.Exists,
)
_NO_FUNCTION = (exp.And, exp.Or, exp.Xor, exp.Case, exp.If, exp.Cast, exp.Exists, exp.Anonymous)
_WINDOWED = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.Lag, exp.Lead)


def features(query: str | exp.Expr, schema: Schema | None = None, dialect: str = "sqlite") -> Features:
    """The features of a query or its tree. Raises SqlParseError for text that is not one query.

    `schema` is not needed: a column of an outer query is recognised by its table's name or alias.
    """
    tree = parse(query, dialect) if isinstance(query, str) else query
    n = dict.fromkeys((f.name for f in fields(Features)), 0)
    for node in tree.walk():
        _count(node, n)
    n["columns"] = len(_first_select(tree).expressions)
    n["boolean_depth"] = _boolean_depth(tree)
    n["nesting_depth"] = _nesting_depth(tree)
    return Features(**n)


def _count(node: exp.Expr, n: dict[str, int]) -> None:
    kind = type(node)
    if kind in (exp.Identifier, exp.Column):
        return
    if kind is exp.Literal:
        n["literals"] += 1
    elif kind is exp.Table:
        n["tables"] += 1
    elif kind is exp.Join:
        n["outer_joins" if node.args.get("side") else "inner_joins"] += 1
    elif kind is exp.Select:
        _count_select(node, n)
    elif isinstance(node, exp.SetOperation):
        n["set_operations"] += 1
        n["limits"] += node.args.get("limit") is not None
    elif kind is exp.Or:
        n["disjunctions"] += 1
    elif kind is exp.Not:
        n["negations"] += 1
    elif kind is exp.CTE:
        n["ctes"] += 1
    elif kind is exp.Window:
        n["windows"] += 1
    elif kind is exp.Group:
        n["group_keys"] += len(node.expressions)
    elif kind is exp.Having:
        n["having"] += 1
    elif kind is exp.Order and not isinstance(node.parent, exp.Window):
        n["order_keys"] += len(node.expressions)
    elif kind is exp.Distinct:
        n["distinct"] += 1
    elif isinstance(node, _ARITHMETIC):
        n["arithmetic"] += 1
    elif isinstance(node, _PREDICATES):
        n["predicates"] += 1
    elif kind is exp.Case or (kind is exp.If and not isinstance(node.parent, exp.Case)):
        n["cases"] += 1
    elif isinstance(node, exp.AggFunc):
        n["aggregates"] += not (isinstance(node.parent, exp.Window) or isinstance(node, _WINDOWED))
    elif isinstance(node, exp.Func) and (kind is exp.Anonymous or not isinstance(node, _NO_FUNCTION)):
        implied = node.key.startswith("tsords")  # sqlglot's own wrapper around a date argument
        n["functions"] += not (implied or isinstance(node.parent, exp.Window))


def _count_select(select: exp.Expr, n: dict[str, int]) -> None:
    n["limits"] += select.args.get("limit") is not None
    if _nested(select):
        n["subqueries"] += 1
        n["correlated"] += _correlated(select)


def _nested(select: exp.Expr) -> bool:
    """A SELECT inside another query, but neither a side of a set operation nor a CTE's own."""
    node = select.parent
    while isinstance(node, exp.SetOperation | exp.Subquery | exp.Paren):
        if isinstance(node, exp.SetOperation) and select is not node.this and node.this is not select:
            select = node
        node = node.parent
    return node is not None and not isinstance(node, exp.CTE)


def _names(select: exp.Expr) -> set[str]:
    """Names and aliases of a query's own sources, lower case."""
    sources = []
    source = select.args.get("from_") or select.args.get("from")
    if source is not None:
        sources.append(source.this)
    sources += [join.this for join in select.args.get("joins") or []]
    return {(s.alias or s.name).lower() for s in sources}


def _correlated(select: exp.Expr) -> bool:
    own = _names(select)
    for inner in select.find_all(exp.Select):
        own |= _names(inner)
    return any(c.table and c.table.lower() not in own for c in select.find_all(exp.Column))


def _first_select(tree: exp.Expr) -> exp.Expr:
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    return tree


def _boolean_depth(tree: exp.Expr) -> int:
    """Longest chain of AND, OR and NOT in each other; AND under AND is one level."""
    deepest = 0
    for node in tree.find_all(exp.And, exp.Or, exp.Not):
        depth, above, last = 1, node.parent, type(node)
        while isinstance(above, exp.And | exp.Or | exp.Not | exp.Paren):
            if not isinstance(above, exp.Paren) and type(above) is not last:
                depth, last = depth + 1, type(above)
            above = above.parent
        deepest = max(deepest, depth)
    return deepest


def _nesting_depth(tree: exp.Expr) -> int:
    deepest = 0
    for select in tree.find_all(exp.Select):
        depth, above = 0, select.parent
        while above is not None:
            depth += isinstance(above, exp.Select)
            above = above.parent
        deepest = max(deepest, depth)
    return deepest


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
    conditions, connectors = _conditions(select)
    clauses = _clauses(select, conditions, connectors)
    nested = _nested_count(tree, select, conditions)
    plurals = _plurals(select)
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


def _flat(node: exp.Expr | None) -> tuple[list[exp.Expr], list[str]]:
    """The conditions of a boolean expression and the connectors between them."""
    if node is None:
        return [], []
    if isinstance(node, exp.Paren | exp.Where | exp.Having):
        return _flat(node.this)
    if isinstance(node, exp.And | exp.Or):
        left, right = _flat(node.this), _flat(node.expression)
        return left[0] + right[0], [*left[1], node.key, *right[1]]
    return [node], []


def _conditions(select: exp.Expr) -> tuple[list[exp.Expr], list[str]]:
    """Of the joins, WHERE and HAVING together."""
    roots = [join.args.get("on") for join in select.args.get("joins") or []]
    roots += [select.args.get("where"), select.args.get("having")]
    found = [_read_by_spider(*_flat(root)) for root in roots]
    return [c for f in found for c in f[0]], [c for f in found for c in f[1]]


def _read_by_spider(conditions: list[exp.Expr], connectors: list[str]) -> tuple[list[exp.Expr], list[str]]:
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


def _clauses(select: exp.Expr, conditions: list[exp.Expr], connectors: list[str]) -> int:
    count = sum(select.args.get(clause) is not None for clause in ("where", "group", "order", "limit"))
    count += len(select.args.get("joins") or [])
    count += connectors.count("or")
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


def _plurals(select: exp.Expr) -> int:
    where, where_connectors = _read_by_spider(*_flat(select.args.get("where")))
    having, having_connectors = _read_by_spider(*_flat(select.args.get("having")))
    group = select.args.get("group")
    order = select.args.get("order")
    aggregates = sum(_begins_with_aggregate(e) for e in select.expressions)
    aggregates += sum(isinstance(c, exp.Not) for c in (*where, *having)) + len(having_connectors)
    if order is not None:
        aggregates += sum(
            1 for e in order.expressions for a in e.find_all(exp.AggFunc) if not a.find_ancestor(exp.Subquery)
        )
    return (
        (aggregates > 1)
        + (len(select.expressions) > 1)
        + (len(where) + len(where_connectors) > 1)
        + (group is not None and len(group.expressions) > 1)
    )


def _begins_with_aggregate(expression: exp.Expr) -> bool:
    node = expression.this if isinstance(expression, exp.Alias) else expression
    while isinstance(node, exp.Binary | exp.Paren) and not isinstance(node, exp.Dot):
        node = node.this
    return isinstance(node, exp.AggFunc)


__all__ = ["WEIGHTS", "Features", "SqlParseError", "difficulty", "features", "hardness", "rule_stage"]
