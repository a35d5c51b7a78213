"""Parse SQL, repair its quotes, and bring it to a canonical form. The only caller of sqlglot's optimizer.

The canonical form is equal for queries that differ only in spelling. It must never merge two queries whose
results differ on some database, so every rewrite here is an identity of SQL semantics and nothing is inferred
from data: case of keywords and identifiers, quoting, aliases (numbered), comments, `!=`, turned comparisons,
the order of operands of AND, OR, =, <> and +/* -free logic, join spelling, and redundant parentheses.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import traverse_scope
from sqlglot.schema import MappingSchema

from curate.sql.schema import Schema

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # a warning a query would drown the log

MAX_CHARACTERS = 20_000
MAX_DEPTH = 100  # parentheses in each other

_TURNED: dict[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE}


class SqlParseError(ValueError):
    """The text is not one query; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """sql: canonical SQL. masked: literals masked. skeleton: literals and identifiers masked.

    qualified: every column was resolved against the schema; `note` says why not.
    """

    sql: str
    masked: str
    skeleton: str
    qualified: bool
    note: str | None = None


def parse(sql: str, dialect: str = "sqlite") -> exp.Query:
    """The tree of exactly one query.

    Raises SqlParseError, also for SQL longer than MAX_CHARACTERS or nested deeper than MAX_DEPTH: sqlglot's
    compiled parser and optimizer recurse, and would take minutes or the whole process with them.
    """
    if len(sql) > MAX_CHARACTERS:
        raise SqlParseError(f"{len(sql):,} characters long, the limit is {MAX_CHARACTERS:,}")
    if _parenthesis_depth(sql) > MAX_DEPTH:
        raise SqlParseError("nested too deeply")
    try:
        trees = [t for t in sqlglot.parse(sql, read=dialect) if t is not None]
    except SqlglotError as error:
        raise SqlParseError(_one_line(error)) from error
    except RecursionError as error:
        raise SqlParseError("nested too deeply") from error
    trees = [t for t in trees if not isinstance(t, exp.Semicolon)]
    if not trees:
        raise SqlParseError("there is no query")
    if len(trees) > 1:
        raise SqlParseError(f"{len(trees)} statements, one is allowed")
    tree = trees[0]
    if not isinstance(tree, exp.Query):
        raise SqlParseError(f"not a query but {tree.key.upper()}")
    return tree


def _parenthesis_depth(sql: str) -> int:
    depth = deepest = 0
    for character in sql:
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    return deepest


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).replace("\x1b[4m", "").replace("\x1b[0m", "").split())
    return text if len(text) <= 200 else text[:199] + "…"


def repair_quotes(tree: exp.Expr, schema: Schema | None) -> exp.Expr:
    """A copy in which double-quoted names that name nothing are string literals, as SQLite reads them.

    SQLite takes `WHERE name = "Ann"` for text when no column is called Ann; sqlglot takes it for a column.
    """
    fixed = tree.copy()
    aliases = {a.lower() for a in _aliases(fixed)}
    for column in list(fixed.find_all(exp.Column)):
        name = column.this
        if column.table or not isinstance(name, exp.Identifier) or not name.quoted:
            continue
        known = schema.has_column(name.name) if schema is not None else False
        if not known and name.name.lower() not in aliases:
            column.replace(exp.Literal.string(name.name))
    return fixed


def _aliases(tree: exp.Expr) -> Iterator[str]:
    for node in tree.find_all(exp.Alias, exp.TableAlias):
        if node.alias:
            yield node.alias
        if isinstance(node, exp.TableAlias):
            yield from (c.name for c in node.columns)


def outermost_order(sql: str, dialect: str = "sqlite") -> bool:
    """Whether the outermost query orders its result. False for what cannot be parsed."""
    try:
        tree: exp.Expr = parse(sql, dialect)
    except SqlParseError:
        return False
    while isinstance(tree, exp.Subquery) and not tree.args.get("order"):
        tree = tree.this
    return tree.args.get("order") is not None


def canonicalize(sql: str, schema: Schema | None = None, dialect: str = "sqlite") -> Canonical:
    """The canonical form of a query. Raises SqlParseError.

    Where a column cannot be resolved the unqualified form is the key, `qualified` is False and `note` says why.
    """
    try:
        return _canonical(sql, schema, dialect)
    except RecursionError as error:
        raise SqlParseError("nested too deeply") from error


def _canonical(sql: str, schema: Schema | None, dialect: str) -> Canonical:
    tree = repair_quotes(parse(sql, dialect), schema)
    note = None
    if schema is None:
        qualified, note = False, "no schema"
    else:
        try:
            tree = qualify(
                tree.copy(),  # a failure leaves it half done
                schema=_mapping(_Same(schema)),
                dialect=dialect,
                expand_stars=False,
                validate_qualify_columns=True,
                quote_identifiers=False,
                identify=False,
            )
            qualified = True
        except (SqlglotError, RecursionError, ValueError, KeyError, AttributeError) as error:
            qualified, note = False, _one_line(error)
    tree = _lowered(tree)
    if qualified:
        tree = _aliases_numbered(tree)
    tree = _normal(tree)
    text = _sql(tree, dialect)
    _mask(tree, exp.Literal)
    masked = _sql(tree, dialect)
    _mask(tree, exp.Identifier)
    return Canonical(text, masked, _sql(tree, dialect), qualified, note)


class _Same:
    """A schema as a cache key, by identity: hashing its columns would cost more than the cache saves."""

    __slots__ = ("schema",)

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.schema is self.schema


@lru_cache(maxsize=256)
def _mapping(same: _Same) -> MappingSchema:
    return MappingSchema(dict(same.schema.mapping()), dialect="sqlite")


# Steps of the canonical form


def _lowered(tree: exp.Expr) -> exp.Expr:
    """Names in lower case, quoted only where they must be: SQLite's names have no case."""
    for name in tree.find_all(exp.Identifier):
        name.set("this", name.this.lower())
        name.set("quoted", not name.this.replace("_", "a").isalnum())
    return tree


def _aliases_numbered(tree: exp.Expr) -> exp.Expr:
    """Table aliases as t1, t2, ... in order of appearance; each column follows the source it resolves to."""
    renames: list[tuple[exp.Expr, str]] = []
    count = 0
    for scope in traverse_scope(tree):
        names: dict[str, str] = {}
        for alias, (node, _) in scope.selected_sources.items():
            source: exp.Expr | None = node.parent if isinstance(node, exp.Query) else node
            if isinstance(source, exp.Table | exp.Subquery):
                count += 1
                names[alias] = f"t{count}"
                renames.append((source, names[alias]))
        renames += [(column, names[column.table]) for column in scope.columns if column.table in names]
    for target, name in renames:
        if isinstance(target, exp.Column):
            target.set("table", exp.to_identifier(name))
        else:
            kept = target.args.get("alias")
            columns = kept.args.get("columns") if isinstance(kept, exp.TableAlias) else None
            target.set("alias", exp.TableAlias(this=exp.to_identifier(name), columns=columns))
    return tree


def _normal(tree: exp.Expr) -> exp.Expr:
    for select in list(tree.find_all(exp.Select)):
        _joins_to_where(select)
    tree = _output_names_dropped(tree)
    for paren in list(tree.find_all(exp.Paren)):
        paren.replace(paren.this)
    for node in reversed(list(tree.bfs())):
        _sorted_operands(node)
    return _parenthesised(tree)


def _joins_to_where(select: exp.Select) -> None:
    """`a JOIN b ON c` as `a, b WHERE c`, where all joins of the query are inner."""
    joins = select.args.get("joins") or []
    if not joins or any(
        j.side or j.method or j.args.get("using") or j.kind not in ("", "INNER", "CROSS") for j in joins
    ):
        return
    conditions = [on for j in joins if (on := j.args.get("on")) is not None]
    where = select.args.get("where")
    if where is not None:
        conditions.append(where.this)
    for join in joins:
        join.set("on", None)
        join.set("kind", None)
    if conditions:
        select.set("where", exp.Where(this=exp.and_(*conditions)))


def _output_names_dropped(tree: exp.Expr) -> exp.Expr:
    """Names of output columns of the outermost query: they are no part of its rows.

    An ORDER BY that uses such a name gets the expression itself. A set operation keeps its names when it
    orders by them.
    """
    if isinstance(tree, exp.Select):
        _unnamed(tree)
    elif isinstance(tree, exp.SetOperation) and not tree.args.get("order"):
        for side in (tree.this, tree.expression):
            _output_names_dropped(side)
    return tree


def _unnamed(select: exp.Select) -> None:
    named = {e.alias: e.this for e in select.expressions if isinstance(e, exp.Alias)}
    for clause in ("order", "having", "group"):
        node = select.args.get(clause)
        if node is None:
            continue
        for column in list(node.find_all(exp.Column)):
            if not column.table and column.name in named and column.find_ancestor(exp.Select) is select:
                column.replace(exp.Paren(this=named[column.name].copy()))
    select.set("expressions", [e.this if isinstance(e, exp.Alias) else e for e in select.expressions])


def _sorted_operands(node: exp.Expr) -> None:
    """Turn > and >= round; put the operands of AND, OR, =, <> and the values of IN in a fixed order."""
    if type(node) in _TURNED:
        left, right = node.this, node.expression
        node.replace(_TURNED[type(node)](this=right, expression=left))
    elif isinstance(node, exp.EQ | exp.NEQ):
        left, right = sorted((node.this, node.expression), key=_text)
        node.set("this", left)
        node.set("expression", right)
    elif isinstance(node, exp.And | exp.Or) and not isinstance(node.parent, type(node)):
        operands = sorted(_operands(node, type(node)), key=_text)
        joined = operands[0]
        for operand in operands[1:]:
            joined = type(node)(this=joined, expression=operand)
        if node.parent is not None:
            node.replace(joined)
    elif isinstance(node, exp.In) and node.expressions:
        node.set("expressions", sorted(node.expressions, key=_text))
    elif isinstance(node, exp.Ordered) and not node.args.get("desc"):
        node.set("desc", None)


def _operands(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    if isinstance(node, kind):
        return [*_operands(node.args["this"], kind), *_operands(node.args["expression"], kind)]
    return [node]


def _text(node: exp.Expr) -> str:
    return _sql(node, "sqlite")


_COMPOUND = (exp.Binary, exp.Unary, exp.Between, exp.In)


def _parenthesised(tree: exp.Expr) -> exp.Expr:
    """Parentheses around every operand that is an operation itself: precedence is then no question."""
    for node in list(tree.find_all(*_COMPOUND)):
        if isinstance(node, exp.Dot | exp.Paren):
            continue
        parent = node.parent
        if isinstance(parent, _COMPOUND) and not isinstance(parent, exp.Paren | exp.Dot):
            paren = exp.Paren()
            node.replace(paren)
            paren.set("this", node)
    return tree


def _mask(tree: exp.Expr, kind: type[exp.Expr]) -> None:
    """Replace every literal by `?`, or every identifier by `_`, in place."""
    for node in list(tree.find_all(kind)):
        node.replace(exp.Placeholder() if isinstance(node, exp.Literal) else exp.to_identifier("_"))


def _sql(tree: exp.Expr, dialect: str) -> str:
    return tree.sql(dialect=dialect, comments=False, normalize_functions="lower", copy=False)
