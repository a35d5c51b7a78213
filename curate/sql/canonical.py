"""Parse SQL, repair its quotes, and bring it to a canonical form. The only caller of sqlglot's optimizer.

The canonical form is equal for queries that differ only in spelling. It must never merge two queries whose
results differ on some database. So it is itself a query with the same result as the one it stands for, and
every rewrite here is an identity of SQLite: case of keywords and identifiers, quoting, table aliases
(numbered), output names that nothing refers to, comments, `!=`, turned comparisons, the order of the operands
of AND, OR, =, <> and of the values of IN, the spelling of inner joins, and redundant parentheses. What sqlglot
would read or write differently from SQLite is kept as it was written.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope
from sqlglot.schema import MappingSchema

from curate.sql.schema import Schema, needs_quotes

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # a warning a query would drown the log

MAX_CHARACTERS = 20_000
MAX_DEPTH = 100  # parentheses in each other
MAX_BARE_JOINS = 10  # in a row without ON: sqlglot takes 2^n steps to read n of them
MAX_JOINS = 63  # SQLite joins at most 64 tables
MAX_OPERANDS = 500  # of one chain of ANDs or ORs; SQLite stops at a depth of 1,000

_ROWID = frozenset({"rowid", "oid", "_rowid_"})
_SQLGLOT_WORDS = frozenset(
    {"any", "current_user", "describe", "fetch", "for", "grant", "ilike", "lateral"}
) | {*("partitioned_by", "qualify", "revoke", "rlike", "tablesample", "uncache", "xor", "interval")}


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

    Raises SqlParseError, also for SQL longer than MAX_CHARACTERS, nested deeper than MAX_DEPTH or with more than
    MAX_BARE_JOINS joins in a row without ON: sqlglot's compiled parser and optimizer recurse and backtrack, and
    would take minutes or the whole process with them. A policy that repeats itself writes such SQL.
    """
    if len(sql) > MAX_CHARACTERS:
        raise SqlParseError(f"{len(sql):,} characters long, the limit is {MAX_CHARACTERS:,}")
    if sql.count("(") > MAX_DEPTH and _parenthesis_depth(sql) > MAX_DEPTH:
        raise SqlParseError("nested too deeply")
    if _bare_joins(sql) > MAX_BARE_JOINS:
        raise SqlParseError(f"more than {MAX_BARE_JOINS} joins in a row without ON")
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


def _bare_joins(sql: str) -> int:
    """The most joins in a row with neither ON nor USING between them."""
    low = sql.lower()
    if low.count("join") <= MAX_BARE_JOINS:
        return 0
    bare = most = 0
    for word in re.findall(r"\b(?:join|on|using)\b", low):
        bare = bare + 1 if word == "join" else 0
        most = max(most, bare)
    return most


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).replace("\x1b[4m", "").replace("\x1b[0m", "").split())
    return text if len(text) <= 200 else text[:199] + "…"


def repair_quotes(tree: exp.Expr, schema: Schema | None) -> exp.Expr:
    """A copy in which double-quoted names that name nothing are string literals, as SQLite reads them.

    SQLite takes `WHERE name = "Ann"` for text when no column is called Ann; sqlglot takes it for a column.
    Without a schema only the query's own aliases are known, and every other quoted name becomes text.
    """
    fixed = tree.copy()
    _repair(fixed, schema)
    return fixed


def _repair(tree: exp.Expr, schema: Schema | None) -> None:
    aliases: set[str] | None = None
    for column in list(tree.find_all(exp.Column)):
        name = column.this
        if column.table or not isinstance(name, exp.Identifier) or not name.quoted:
            continue
        if aliases is None:
            aliases = {a.lower() for a in _aliases(tree)}
        low = name.name.lower()
        known = schema is not None and (schema.has_column(low) or schema.has_table(low) or low in _ROWID)
        if not known and low not in aliases:
            column.replace(exp.Literal.string(name.name))


def _aliases(tree: exp.Expr) -> Iterator[str]:
    for node in tree.find_all(exp.Alias, exp.TableAlias):
        if node.alias:
            yield node.alias
        if isinstance(node, exp.TableAlias):
            yield from (c.name for c in node.columns)


def scopes(tree: exp.Expr) -> list[Scope]:
    """sqlglot's scopes of every query in a tree, inner ones first; none where it cannot tell them."""
    try:
        return list(traverse_scope(tree))
    except (SqlglotError, AttributeError, LookupError, TypeError):
        return []


def outermost_order(sql: str, dialect: str = "sqlite") -> bool:
    """Whether the outermost query orders its result. False for what cannot be parsed."""
    try:
        tree: exp.Expr = parse(sql, dialect)
    except SqlParseError:
        return False
    while isinstance(tree, exp.Subquery) and not tree.args.get("order"):
        tree = tree.this
    return tree.args.get("order") is not None


def order_keys_added(tree: exp.Expr) -> exp.Select | None:
    """A copy of a SELECT that orders, with the values it orders by as further outputs after its own.

    None where that would not be the same query: a set operation, DISTINCT, `*`, or a key that names an output
    within an expression.
    """
    order = tree.args.get("order")
    if not isinstance(tree, exp.Select) or order is None or tree.args.get("distinct"):
        return None
    if any(e.is_star and not isinstance(e.unalias(), exp.Count) for e in tree.expressions):
        return None
    keys = [_order_key(ordered.this, tree) for ordered in order.expressions]
    if any(key is None for key in keys):
        return None
    wider = tree.copy()
    wider.set("expressions", [*wider.expressions, *(key.copy() for key in keys if key is not None)])
    return wider


def _order_key(key: exp.Expr, select: exp.Expr) -> exp.Expr | None:
    """An ORDER BY key as an output: positions and output names stand for the outputs' expressions."""
    if isinstance(key, exp.Literal):
        place = int(key.name) if key.name.isdigit() else 0
        return select.expressions[place - 1].unalias() if 1 <= place <= len(select.expressions) else None
    named: dict[str, exp.Expr] = {e.alias.lower(): e.unalias() for e in select.expressions if e.alias}
    if isinstance(key, exp.Column) and not key.table:
        return named.get(key.name.lower(), key)
    hidden = any(not c.table and c.name.lower() in named for c in key.find_all(exp.Column))
    return None if hidden else key


def with_order_keys(sql: str) -> str | None:
    """The SQLite query with its ORDER BY values as further outputs, or None: see order_keys_added."""
    try:
        wider = order_keys_added(parse(sql))
    except (SqlParseError, RecursionError):
        return None
    return None if wider is None else wider.sql(dialect="sqlite")


def canonicalize(sql: str, schema: Schema | None = None, dialect: str = "sqlite") -> Canonical:
    """The canonical form of a query. Raises SqlParseError, and nothing else, for text that is not one query.

    Where a column cannot be resolved the unqualified form is the key, `qualified` is False and `note` says why.
    """
    tree = parse(sql, dialect)
    try:
        return _canonical(sql, tree, schema, dialect)
    except RecursionError as error:
        raise SqlParseError("nested too deeply") from error


def _canonical(sql: str, tree: exp.Expr, schema: Schema | None, dialect: str) -> Canonical:
    lost = (_lost(sql) or _misread(tree)) if dialect == "sqlite" else None
    tree = _read(tree, schema)
    qualified, note = False, "no schema" if schema is None else lost or _unresolvable(tree, schema)
    if schema is not None and note is None:
        try:
            tree = _qualified(tree, schema, dialect)
            qualified = True
        except (SqlglotError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            note = _one_line(error) or type(error).__name__
            tree = _read(parse(sql, dialect), schema)  # the failure left it half done
    if not qualified:
        _lowered(tree, qualified=False)
    # Where columns declare collating sequences, or may, a comparison takes that of its left side.
    plain = schema is not None and not schema.collated and "collate" not in sql.lower()
    tree = _normal(tree, qualified, plain)
    text = sql.strip().rstrip(";").rstrip() if lost else _sql(tree, dialect)
    _mask(tree, exp.Literal)
    masked = _sql(tree, dialect)
    _mask(tree, exp.Identifier)
    return Canonical(text, masked, _sql(tree, dialect), qualified, note)


def _read(tree: exp.Expr, schema: Schema | None) -> exp.Expr:
    """The tree, changed in place, as SQLite reads it."""
    _as_sqlite(tree)
    if schema is not None:  # without one, a quoted name may be either
        _repair(tree, schema)
    return tree


# What sqlglot reads or writes otherwise than SQLite

_UNARY_PLUS = re.compile(
    r"(?:[(,=<>!+\-*/%|&~]|\b(?:select|distinct|all|where|and|or|not|on|by|having|when|then|else|case|between"
    r"|like|in|is|limit|offset|glob))\s*\+",
    re.IGNORECASE,
)
_OTHER_FUNCTION = re.compile(r"\b(?:mod|len|datediff|to_char)\s*\(", re.IGNORECASE)
_DIGITS_APART = re.compile(r"(?<![\w.])\d+_\d")
_CAST_TYPE = re.compile(r"\bas\s+([^()]*?)\s*(?:\([\d,\s]*\)\s*)?\)", re.IGNORECASE)
_TYPE_NAMES = frozenset(
    re.findall(
        r"\w+",
        "integer int bigint smallint tinyint real float double text varchar char nvarchar nchar numeric decimal "
        "boolean date datetime timestamp time blob",
    )
)


def _lost(sql: str) -> str | None:
    """What in the SQL sqlglot's tree does not keep; such SQL is its own key. Guessed from the text, broadly."""
    if "+" in sql and _UNARY_PLUS.search(sql):
        return "unary plus: it takes a column's affinity away"
    if _OTHER_FUNCTION.search(sql):
        return "a function that sqlglot rewrites"
    if "_" in sql and _DIGITS_APART.search(sql):
        return "a number with underscores"
    if "cast" in sql.lower():
        for name in _CAST_TYPE.findall(sql):
            if name.lower() not in _TYPE_NAMES:
                return f"possibly a cast to {' '.join(name.split())[:40]}"
    if "::" in sql:
        return "a cast that SQLite does not have"
    return None


_COMPARISONS = (
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.Is,
    exp.Like,
    exp.Glob,
    exp.In,
    exp.Between,
)


def _misread(tree: exp.Expr) -> str | None:
    """A comparison beside another without parentheses: SQLite reads `a = b BETWEEN c AND d` from the left."""
    for node in tree.find_all(*_COMPARISONS):
        above = node.parent
        while isinstance(above, exp.Not | exp.Escape):
            above = above.parent
        if isinstance(above, _COMPARISONS):
            return "a comparison of comparisons"
    return None


_AFFINITY = {
    **dict.fromkeys((exp.DType.INT, exp.DType.BIGINT, exp.DType.SMALLINT, exp.DType.TINYINT), "INTEGER"),
    **dict.fromkeys((exp.DType.FLOAT, exp.DType.DOUBLE), "REAL"),
    **dict.fromkeys(
        (exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.CHAR, exp.DType.NVARCHAR, exp.DType.NCHAR), "TEXT"
    ),
    exp.DType.VARBINARY: "BLOB",
}


def _as_sqlite(tree: exp.Expr) -> None:
    """In place: casts to the affinity their type has in SQLite (https://sqlite.org/datatype3.html, 3.1);
    NOT LIKE as NOT (LIKE); `IN ((SELECT ...))`, which is one value, apart from `IN (SELECT ...)`; substr by
    that name, since sqlglot does not read every expression in a SUBSTRING; `ORDER BY (1)` as `ORDER BY 1`."""
    for node in list(tree.find_all(exp.Cast, exp.Like, exp.In, exp.Substring, exp.Ordered, exp.Group)):
        if isinstance(node, exp.Cast):
            affinity = _AFFINITY.get(node.to.this, "NUMERIC")
            node.set("to", exp.DataType(this=exp.DType.USERDEFINED, kind=affinity))
        elif isinstance(node, exp.In):
            query = node.args.get("query")
            if isinstance(query, exp.Subquery) and isinstance(query.this, exp.Subquery):
                node.set("query", None)
                node.set("expressions", [query.this])
        elif isinstance(node, exp.Ordered):
            node.set("this", _unparenthesised(node.this))
        elif isinstance(node, exp.Group):
            node.set("expressions", [_unparenthesised(key) for key in node.expressions])
        elif isinstance(node, exp.Substring):
            given = [node.args[arg] for arg in ("this", "start", "length") if node.args.get(arg) is not None]
            call = exp.Anonymous(this="substr")
            node.replace(call)
            call.set("expressions", given)
        elif node.args.get("negate"):
            node.set("negate", None)
            whole = node.parent if isinstance(node.parent, exp.Escape) else node
            negation = exp.Not()
            whole.replace(negation)
            negation.set("this", whole)


def _unparenthesised(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _unresolvable(tree: exp.Expr, schema: Schema) -> str | None:
    """Why `qualify` would change the result, or None: the names are then left as they are."""
    for node in tree.find_all(exp.Select, exp.Join, exp.Table, exp.Column):
        if isinstance(node, exp.Column):
            if node.args.get("db"):
                return "a column named with its database"
        elif isinstance(node, exp.Table):
            if not isinstance(node.this, exp.Identifier):
                return "a table-valued function"
        elif isinstance(node, exp.Join):
            if node.args.get("using") or node.method:
                return "a join with USING, or a natural one"  # `*` and affinity differ from those of ON
        else:
            found = _odd_names(node) or _odd_keys(node, schema)
            if found:
                return found
    return None


def _odd_names(select: exp.Expr) -> str | None:
    names = [e.alias.lower() for e in select.expressions if e.alias]
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    used = any(column.name.lower() in twice for column in _bare_columns(select)) if twice else False
    return "two outputs of one name" if used else None


def _odd_keys(select: exp.Expr, schema: Schema) -> str | None:
    """ORDER BY and GROUP BY by position or by an output name, where sqlglot's reading is not SQLite's."""
    order, group = select.args.get("order"), select.args.get("group")
    if order is None and group is None:
        return None
    outputs = [_unparenthesised(e.unalias()) for e in select.expressions]
    grouped = list(group.expressions) if group is not None else []
    keys = [key.this for key in order.expressions] + grouped if order is not None else grouped
    if any(o.is_star for o in outputs) and any(key.find(exp.Literal) for key in keys):
        return "a position in an output with *"
    if any(isinstance(o.this if isinstance(o, exp.Neg) else o, exp.Literal) for o in outputs):
        return "a constant output beside ORDER BY or GROUP BY"
    if any(isinstance(key, exp.Literal) for key in grouped) and any(o.find(exp.AggFunc) for o in outputs):
        places = {key.name for key in grouped if isinstance(key, exp.Literal)}
        if any(str(i) in places and o.find(exp.AggFunc) for i, o in enumerate(outputs, 1)):
            return "GROUP BY the position of an aggregate"
    names = {e.alias.lower() for e in select.expressions if e.alias}
    clashing = {name for name in names if schema.has_column(name) or name in _ROWID}
    for key in keys if clashing else ():
        if not isinstance(key, exp.Column) and any(c.name.lower() in clashing for c in _bare_columns(key)):
            return "an expression over a name that is both an output and a column"
    return None


def _bare_columns(tree: exp.Expr) -> Iterator[exp.Column]:
    return (column for column in tree.find_all(exp.Column) if not column.table)


# Resolving names


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


def _qualified(tree: exp.Expr, schema: Schema, dialect: str) -> exp.Expr:
    """The tree with every column named with its table and every table with a numbered alias."""
    tree = qualify(
        tree,
        schema=_mapping(_Same(schema)),
        dialect=dialect,
        expand_stars=False,
        validate_qualify_columns=True,
        quote_identifiers=False,
        identify=False,
    )
    _lowered(tree, qualified=True)
    _aliases_numbered(tree, schema)
    return tree


def _lowered(tree: exp.Expr, *, qualified: bool) -> None:
    """Names in lower case, quoted only where they must be: SQLite's names have no case, in ASCII.

    A quoted name that was not resolved may be text, and keeps its case.
    """
    for name in tree.find_all(exp.Identifier):
        parent = name.parent
        if not qualified and name.quoted and isinstance(parent, exp.Column) and not parent.table:
            continue
        low = name.this.lower() if name.this.isascii() else _ascii_lower(name.this)
        name.set("this", low)
        name.set("quoted", needs_quotes(low) or low in _SQLGLOT_WORDS)


def _ascii_lower(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


_LETTERS = "tuvwxyz"


def _aliases_numbered(tree: exp.Expr, schema: Schema) -> None:
    """Table aliases as t1, t2, ... in order of appearance, u1, u2, ... in subqueries, and so on inwards.

    Each column follows the source it resolves to. Subqueries side by side use the same names, so that their
    order does not show in them. Raises ValueError where a column of an outer query carries the name of an inner
    source that has no such column: `qualify` gave it that name, and it would change hands.
    """
    renames: list[tuple[exp.Expr, str]] = []
    tables = _mapping(_Same(schema)).mapping
    for scope in traverse_scope(tree):
        depth = _depth(scope)
        letter = _LETTERS[depth] if depth < len(_LETTERS) else f"t{depth}_"
        names: dict[str, str] = {}
        for alias, (node, _) in scope.selected_sources.items():
            source = node if isinstance(node, exp.Table | exp.Subquery) else node.parent
            if isinstance(source, exp.Table | exp.Subquery):
                names[alias] = f"{letter}{len(names) + 1}"
                renames.append((source, names[alias]))
        columns = [c for c in (*scope.columns, *scope.stars) if isinstance(c, exp.Column)]
        order = scope.expression.args.get("order") if scope.parent is not None else None
        if order is not None and any(c.table and c.table not in names for c in order.find_all(exp.Column)):
            raise ValueError("ORDER BY a column of an outer query")
        for column in columns:
            if column.table in names:
                _, held = scope.selected_sources[column.table]
                known = tables.get(held.name) if isinstance(held, exp.Table) else None
                if isinstance(known, dict) and column.name not in known and not column.is_star:
                    raise ValueError(f"the name {column.table} has two meanings")
                renames.append((column, names[column.table]))
    for target, name in renames:
        if isinstance(target, exp.Column):
            target.set("table", exp.to_identifier(name))
        else:
            kept = target.args.get("alias")
            listed = kept.args.get("columns") if isinstance(kept, exp.TableAlias) else None
            target.set("alias", exp.TableAlias(this=exp.to_identifier(name), columns=listed))


def _depth(scope: Scope) -> int:
    """How many SELECTs are around the scope's."""
    depth, above = 0, scope.parent
    while above is not None:
        depth += isinstance(above.expression, exp.Select)
        above = above.parent
    return depth


# Putting what can be written in several ways in one


def _normal(tree: exp.Expr, qualified: bool, plain: bool) -> exp.Expr:
    if qualified:  # otherwise a name in ORDER BY may be a column
        for select in list(tree.find_all(exp.Select)):
            _order_spelled_out(select)
    for select in list(tree.find_all(exp.Select)):
        _joins_to_where(select)
    _output_names_dropped(tree)
    for node in list(tree.find_all(exp.Paren, exp.Ordered)):
        if isinstance(node, exp.Paren):
            node.replace(node.this)
        elif not node.args.get("desc"):
            node.set("desc", None)  # written ASC or not at all
    _turned(tree, plain)
    _sorted(tree, plain)
    _parenthesised(tree)
    return tree


def _joins_to_where(select: exp.Expr) -> None:
    """`a JOIN b ON c` as `a, b WHERE c`, where all joins of the query are inner."""
    joins = select.args.get("joins") or []
    if len(joins) > MAX_JOINS:
        raise SqlParseError(f"{len(joins) + 1} tables in a join, the limit is {MAX_JOINS + 1}")
    for join in joins:
        if join.kind == ("OUTER" if join.side else "INNER"):
            join.set("kind", None)
    if not joins or any(
        j.side or j.method or j.args.get("using") or j.kind not in ("", "CROSS") for j in joins
    ):
        return
    conditions = [on for j in joins if (on := j.args.get("on")) is not None]
    conditions = [c for c in conditions if not (isinstance(c, exp.Boolean) and c.this)]  # a JOIN without ON
    where = select.args.get("where")
    if where is not None:
        conditions.append(where.this)
    for join in joins:
        join.set("on", None)
        join.set("kind", None)
    if conditions:
        select.set("where", exp.Where(this=exp.and_(*conditions, copy=False)))


def _order_spelled_out(select: exp.Expr) -> None:
    """ORDER BY the name of an output as ORDER BY its expression, unless that is of an outer query."""
    order = select.args.get("order")
    if order is None:
        return
    named = {e.alias: e for e in select.expressions if isinstance(e, _NAMED) and e.alias}
    for column in list(_bare_columns(order)):
        output = named.get(column.name)
        if output is not None and column.find_ancestor(exp.Select) is select and _own(output, select):
            column.replace(_bare(output.copy()))


def _own(node: exp.Expr, select: exp.Expr) -> bool:
    """Whether every column is of the query's own sources. SQLite does not find others in an inner ORDER BY."""
    if select.parent is None:
        return True
    sources = [select.args["from_"].this] if select.args.get("from_") is not None else []
    names = {s.alias_or_name for s in (*sources, *(join.this for join in select.args.get("joins") or []))}
    return all(column.table in names for column in node.find_all(exp.Column))


def _output_names_dropped(tree: exp.Expr) -> None:
    """Names of output columns of the outermost query that nothing uses: they are no part of its rows.

    A set operation keeps its names when it orders by them.
    """
    if isinstance(tree, exp.Select):
        used = {column.name.lower() for column in _bare_columns(tree)}
        tree.set("expressions", [e if e.alias.lower() in used else _bare(e) for e in tree.expressions])
    elif isinstance(tree, exp.SetOperation) and not tree.args.get("order"):
        for side in (tree.this, tree.expression):
            _output_names_dropped(side)


_NAMED = (exp.Alias, exp.Subquery)


def _bare(output: exp.Expr) -> exp.Expr:
    """An output expression without its name."""
    if isinstance(output, exp.Subquery):
        output.set("alias", None)
    return output.this if isinstance(output, exp.Alias) else output


def _turned(tree: exp.Expr, plain: bool) -> None:
    """`a > b` as `b < a`, in place."""
    for node in list(tree.find_all(exp.GT, exp.GTE)):
        if plain or _one_is_literal(node):
            turned = exp.LT() if isinstance(node, exp.GT) else exp.LTE()
            left, right = node.args["this"], node.args["expression"]
            node.replace(turned)
            turned.set("this", right)
            turned.set("expression", left)


def _one_is_literal(node: exp.Expr) -> bool:
    """Whether a side of the comparison is a literal: it has no collating sequence."""
    return isinstance(node.args["this"], exp.Literal) or isinstance(node.args["expression"], exp.Literal)


_Key = tuple[str, str, str]  # identifiers and literals masked; literals masked; nothing masked


def _sorted(node: exp.Expr, plain: bool) -> _Key:
    """Put the operands of AND, OR, =, <> and the values of IN in a fixed order, in place, from the leaves up.

    Returns the key a node is ordered by. The masked keys come first, so that queries that differ only in
    their literals or names are ordered alike.
    """
    kind = type(node)
    if kind is exp.Identifier:
        name = f'"{node.this}"'
        return "_", name, name
    if kind is exp.Literal:
        return "?", "?", f"'{node.this}'" if node.is_string else node.name
    if kind is exp.And or kind is exp.Or:
        return _sorted_operands(node, plain)
    keys: dict[str, _Key] = {}
    for arg, value in node.args.items():
        if isinstance(value, exp.Expr):
            keys[arg] = _sorted(value, plain)
        elif isinstance(value, list):
            found = [(_sorted(v, plain) if isinstance(v, exp.Expr) else _same(v), v) for v in value]
            if kind is exp.In:
                found.sort(key=_first)
                node.set(arg, [v for _, v in found])
            keys[arg] = _joined(key for key, _ in found)
        elif value is not None and value is not False:
            keys[arg] = _same(value)
    equality = kind is exp.EQ or kind is exp.NEQ
    if equality and keys["expression"] < keys["this"] and (plain or _one_is_literal(node)):
        left, right = node.args["this"], node.args["expression"]
        node.set("this", right)
        node.set("expression", left)
        keys["this"], keys["expression"] = keys["expression"], keys["this"]
    return _joined([_same(kind.__name__), *(_joined((_same(arg), keys[arg])) for arg in sorted(keys))])


def _sorted_operands(node: exp.Expr, plain: bool) -> _Key:
    kind = type(node)
    operands = _operands(node)
    if len(operands) > MAX_OPERANDS:
        raise SqlParseError(f"{len(operands)} conditions in a row, the limit is {MAX_OPERANDS}")
    found = sorted(((_sorted(operand, plain), operand) for operand in operands), key=_first)
    chain = found[0][1]
    for _, operand in found[1:-1]:
        chain = kind(this=chain, expression=operand)
    node.set("this", chain)
    node.set("expression", found[-1][1])
    return _joined([_same(kind.__name__), *(key for key, _ in found)])


def _operands(node: exp.Expr) -> list[exp.Expr]:
    """Of a chain of ANDs, or of ORs."""
    kind, found, open_ = type(node), [], [node]
    while open_:
        top = open_.pop()
        if type(top) is kind:
            open_ += [top.args["expression"], top.args["this"]]
        else:
            found.append(top)
    return found


def _first(pair: tuple[_Key, Any]) -> _Key:
    return pair[0]


def _same(value: object) -> _Key:
    text = str(value)
    return text, text, text


def _joined(keys: Iterable[_Key]) -> _Key:
    shapes, masked, texts = zip(*keys, strict=True) if (keys := list(keys)) else ((), (), ())
    return f"({' '.join(shapes)})", f"({' '.join(masked)})", f"({' '.join(texts)})"


_COMPOUND = (exp.Binary, exp.Unary, exp.Between, exp.In)
_CHAINED = (exp.And, exp.Or, exp.Add, exp.Mul, exp.DPipe)


def _parenthesised(tree: exp.Expr) -> None:
    """Parentheses around every operand that is an operation itself: precedence is then no question."""
    for node in list(tree.find_all(*_COMPOUND)):
        parent = node.parent
        if not isinstance(parent, _COMPOUND) or isinstance(parent, exp.Paren | exp.Dot):
            continue
        if isinstance(node, exp.Dot | exp.Paren) or (isinstance(parent, exp.Escape) and node is parent.this):
            continue  # `a LIKE b ESCAPE c` is one operation
        if isinstance(node, _CHAINED) and type(node) is type(parent) and node is parent.this:
            continue  # these read from left to right
        paren = exp.Paren()
        node.replace(paren)
        paren.set("this", node)


def _mask(tree: exp.Expr, kind: type[exp.Expr]) -> None:
    """Replace every literal by `?`, or every identifier by `_`, in place."""
    for node in list(tree.find_all(kind)):
        node.replace(exp.Placeholder() if isinstance(node, exp.Literal) else exp.to_identifier("_"))


def _sql(tree: exp.Expr, dialect: str) -> str:
    return tree.sql(dialect=dialect, comments=False, normalize_functions="lower", copy=False)
