"""Near-misses of a query: what a model, or an annotator, writes when it is almost right."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from curate.sql.canonical import SqlParseError, canonicalize, parse, repair_quotes
from curate.sql.findings import Block, blocks_of, is_number, one_row
from curate.sql.schema import Schema, needs_quotes

KINDS = (
    "comparison",
    "aggregate",
    "condition",
    "connective",
    "distinct",
    "join",
    "column",
    "literal",
    "limit",
    "order",
    "group",
    "set_operation",
    "negation",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """kind: one of KINDS. sql: the changed query, for SQLite."""

    kind: str
    sql: str


def mutants(sql: str, schema: Schema) -> list[Mutant]:
    """Every single change of the kinds in KINDS, in the order of the query's text; none twice.

    Those whose canonical form is the query's own are left out: they are the same query. The rest may still be
    equivalent on all databases, or on those that keep the schema's constraints. Empty for what cannot be parsed.
    """
    try:
        tree = repair_quotes(parse(sql), schema)
        own = canonicalize(sql, schema).sql
    except (SqlParseError, RecursionError):
        return []
    found: dict[str, str] = {}
    for kind, text in _changed(tree, schema):
        found.setdefault(text, kind)
    made = []
    for text, kind in found.items():
        try:
            if canonicalize(text, schema).sql != own:
                made.append(Mutant(kind, text))
        except SqlParseError:
            continue
    return made


def _changed(tree: exp.Expr, schema: Schema) -> Iterator[tuple[str, str]]:
    """Each change is made in the tree, written down, and undone."""
    for node in list(tree.walk()):
        for kind, new in _replacements(node):
            if node.parent is None:
                continue
            node.replace(new)
            yield kind, tree.sql(dialect="sqlite")
            new.replace(node)
        for kind, argument, value in _settings(node):
            before = node.args.get(argument)
            node.set(argument, value)
            yield kind, tree.sql(dialect="sqlite")
            node.set(argument, before)
    for block in blocks_of(tree, schema):
        for column, alias, name in _other_columns(block, schema):
            before, table = column.this, column.args.get("table")
            column.set("this", exp.to_identifier(name, quoted=needs_quotes(name)))
            column.set("table", alias)
            kind = "group" if column.find_ancestor(exp.Group) is not None else "column"
            yield kind, tree.sql(dialect="sqlite")
            column.set("this", before)
            column.set("table", table)


_COMPARISONS: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.GT: (exp.GTE, exp.LT),
    exp.GTE: (exp.GT, exp.LTE),
    exp.LT: (exp.LTE, exp.GT),
    exp.LTE: (exp.LT, exp.GTE),
    exp.EQ: (exp.NEQ,),
    exp.NEQ: (exp.EQ,),
}
_AGGREGATES: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.Max: (exp.Min,),
    exp.Min: (exp.Max,),
    exp.Sum: (exp.Avg,),
    exp.Avg: (exp.Sum, exp.Max),
}
_SETS: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.Union: (exp.Intersect,),
    exp.Intersect: (exp.Union, exp.Except),
    exp.Except: (exp.Intersect, exp.Union),
}


def _replacements(node: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
    """What a node may become."""
    kind = type(node)
    for other in _COMPARISONS.get(kind, ()):
        if not _joins(node):
            yield "comparison", other(this=node.this.copy(), expression=node.expression.copy())
    for other in _AGGREGATES.get(kind, ()):
        if not node.expressions:
            yield "aggregate", other(this=node.this.copy())
    if isinstance(node, exp.Count):
        yield from _counts(node)
    if isinstance(node, exp.And | exp.Or):
        other = exp.Or if isinstance(node, exp.And) else exp.And
        yield "connective", exp.Paren(this=other(this=node.this.copy(), expression=node.expression.copy()))
        for side in (node.this, node.expression):
            yield "condition", side.copy()
    if isinstance(node, exp.Literal):
        yield from _literals(node)
    if isinstance(node, exp.Not):
        yield "negation", node.this.copy()
    elif isinstance(node, exp.In | exp.Like | exp.Between | exp.Exists) and not isinstance(
        node.parent, exp.Not
    ):
        yield "negation", exp.Not(this=node.copy())
    for other in _SETS.get(kind, ()):
        if node.parent is not None:
            yield "set_operation", other(**{k: _copied(v) for k, v in node.args.items()})


def _copied(value: object) -> object:
    return value.copy() if isinstance(value, exp.Expr) else value


def _joins(node: exp.Expr) -> bool:
    """Whether an equality ties two tables: its opposite is no near-miss but a cross join."""
    return (
        isinstance(node, exp.EQ)
        and isinstance(node.this, exp.Column)
        and isinstance(node.expression, exp.Column)
    )


def _counts(node: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
    counted = node.this
    if isinstance(counted, exp.Distinct):
        for column in counted.expressions:
            yield "aggregate", exp.Count(this=column.copy())
    elif isinstance(counted, exp.Column):
        yield "aggregate", exp.Count(this=exp.Distinct(expressions=[counted.copy()]))
        yield "aggregate", exp.Count(this=exp.Star())


def _literals(node: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
    if isinstance(node.parent, exp.Limit | exp.Offset | exp.Ordered | exp.Group):
        return
    if node.is_string:
        if isinstance(node.parent, exp.Like) and "%" in node.name:
            stripped = node.name.strip("%")
            for pattern in (f"{stripped}%", f"%{stripped}", f"%{stripped}%", stripped):
                if pattern != node.name:
                    yield "literal", exp.Literal.string(pattern)
        else:
            yield "literal", exp.Literal.string(f"{node.name}x")
        return
    try:
        number = int(node.name)
    except ValueError:
        return
    yield "literal", exp.Literal.number(number + 1)
    yield "literal", exp.Literal.number(number - 1)


def _settings(node: exp.Expr) -> Iterator[tuple[str, str, object]]:
    """Clauses of a node to set otherwise: (kind, argument, value)."""
    if isinstance(node, exp.Select):
        if not _repeats_are_nothing(node):
            yield "distinct", "distinct", None if node.args.get("distinct") else exp.Distinct()
        for clause, kind in (("where", "condition"), ("having", "condition"), ("group", "group")):
            if node.args.get(clause) and not (clause == "group" and node.args.get("having")):
                yield kind, clause, None
    if isinstance(node, exp.Select | exp.SetOperation):
        if node.args.get("order"):
            yield "order", "order", None
        if node.args.get("limit"):
            yield "limit", "limit", None
    if (
        isinstance(node, exp.Limit)
        and isinstance(node.expression, exp.Literal)
        and node.expression.name.isdigit()
    ):
        yield "limit", "expression", exp.Literal.number(int(node.expression.name) + 1)
    if isinstance(node, exp.Ordered):
        yield "order", "desc", not node.args.get("desc")
    if isinstance(node, exp.Join) and not node.side and node.args.get("on"):
        yield "join", "side", "LEFT"
    if isinstance(node, exp.Union):
        yield "set_operation", "distinct", not node.args.get("distinct")
    if isinstance(node, exp.SetOperation) and node.parent is None:
        yield "set_operation", "this", node.expression.copy()


def _repeats_are_nothing(select: exp.Select) -> bool:
    """Whether DISTINCT changes nothing: one row, or an operand of what looks at no repetition."""
    if one_row(select):
        return True
    parent = select.parent.parent if isinstance(select.parent, exp.Subquery) else select.parent
    if select.args.get("limit"):
        return False
    if isinstance(parent, exp.In | exp.Exists | exp.Intersect | exp.Except):
        return True
    return isinstance(parent, exp.Union) and bool(parent.args.get("distinct"))


def _other_columns(block: Block, schema: Schema) -> Iterator[tuple[exp.Column, exp.Expr | None, str]]:
    """Each column outside join conditions with the next two of its table that are of its kind.

    (column, the table's name to write before the other one, its name).
    """
    tables = {t.name.lower(): t.columns for t in schema.tables}
    for column in block.columns:
        source = block.source(column)
        if source is None or source.table not in tables or column.is_star:
            continue
        tie = column.find_ancestor(exp.EQ)
        if tie is not None and _joins(tie):
            continue
        held = tables[source.table]
        names = [c.name.lower() for c in held]
        at = names.index(column.name.lower()) if column.name.lower() in names else -1
        if at < 0:
            continue
        alike: Callable[[str], bool] = is_number if is_number(held[at].type) else lambda t: not is_number(t)
        others = [c.name for c in (*held[at + 1 :], *held[:at]) if alike(c.type)]
        alias = column.args.get("table")
        if alias is None and len(block.sources) > 1:
            alias = exp.to_identifier(source.alias, quoted=needs_quotes(source.alias))
        for name in others[:2]:
            yield column, alias, name
