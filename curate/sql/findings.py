"""What is wrong, or likely wrong, with a gold SQL: checks that need only the SQL and the schema.

Each check is named; `CHECKS` says what it means. A finding is evidence for a person, not a verdict: all but a
few of these are also found in sound queries, which is why `validate` flags them and drops none by default.
What needs the database (results, values) is in curate.sql.probes.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from curate.sql.canonical import SqlParseError, parse, repair_quotes, scopes
from curate.sql.schema import Schema

CHECKS: dict[str, str] = {
    "unparsable": "the SQL cannot be parsed, so no other check looks at it",
    "unknown_table": "a table the database does not have",
    "unknown_column": "a column that none of the tables in reach has",
    "quoted_name_is_text": "a double-quoted name that names nothing: SQLite reads it as text",
    "constant_query": "reads no table, or outputs only constants",
    "constant_condition": "a condition that holds or fails whatever the row",
    "whole_table": "all columns and all rows of one table",
    "nondeterministic": "calls a function whose value changes between runs",
    "limit_without_order": "LIMIT without ORDER BY: which rows are kept is chance",
    "type_mismatch": "a text column compared with a number, or a number column with text",
    "unused_join": "a joined table that no output, condition or key uses",
    "cartesian_join": "tables joined without a condition between them",
    "bare_column": "an output that is neither grouped nor aggregated: SQLite takes it from an arbitrary row",
    "fan_out": "SUM or AVG of a column whose rows a join repeats",
}

_NUMERIC = ("int", "real", "floa", "doub", "num", "dec", "bool")  # https://sqlite.org/datatype3.html, 3.1
_TEXT = ("char", "clob", "text")
_TIME_FUNCTIONS = frozenset({"date", "time", "datetime", "julianday", "strftime", "unixepoch", "timediff"})
_CHANCE_FUNCTIONS = frozenset(
    {"random", "randomblob", "rand", "changes", "total_changes", "last_insert_rowid", "sqlite_version"}
) | {*("current_date", "current_time", "current_timestamp", "currentdate", "currenttime", "currenttimestamp")}


@dataclass(frozen=True, slots=True)
class Finding:
    """check: a name of CHECKS (or of another module's checks). evidence: what was seen, in words."""

    check: str
    evidence: str


@dataclass(frozen=True)
class Source:
    """A table (or derived table) of one SELECT. columns: name in lower case to type; None: not known."""

    alias: str
    table: str | None
    columns: dict[str, str] | None


@dataclass(frozen=True)
class Block:
    """One SELECT with its sources, and the columns it uses itself (not those of its subqueries).

    outer: the sources of the queries around it, which it may refer to.
    """

    select: exp.Select
    sources: dict[str, Source]
    columns: tuple[exp.Column, ...]
    outer: dict[str, Source] = field(default_factory=dict)

    def source(self, column: exp.Column) -> Source | None:
        """The source a column belongs to; None where that is not certain."""
        table = column.table.lower()
        if table:
            return self.sources.get(table)
        name = column.name.lower()
        if any(s.columns is None for s in self.sources.values()):
            return None
        held = [s for s in self.sources.values() if name in (s.columns or {})]
        return held[0] if len(held) == 1 else None


def examine(sql: str, schema: Schema, dialect: str = "sqlite") -> list[Finding]:
    """The findings on one query, in the order of CHECKS. Never raises on text: what cannot be parsed is one.

    Where a name cannot be resolved with certainty (a view's or a derived table's columns, say), the checks
    that would need it say nothing.
    """
    try:
        written = parse(sql, dialect)
        tree = repair_quotes(written, schema)
        blocks = blocks_of(tree, schema)
    except (SqlParseError, RecursionError) as error:
        return [Finding("unparsable", str(error))]
    found: list[Finding] = []
    if dialect == "sqlite":
        found += _quoted_names(written, schema)
    for check in _TREE_CHECKS:
        found += check(tree, schema)
    for block in blocks:
        for look in _BLOCK_CHECKS:
            found += look(block, schema)
    order = {name: i for i, name in enumerate(CHECKS)}
    return sorted(dict.fromkeys(found), key=lambda f: order[f.check])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, if any is much like it."""
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
    return by_lower[close[0]] if close else None


def is_text(type_: str) -> bool:
    """Whether a declared type has text affinity in SQLite."""
    low = type_.lower()
    return "int" not in low and any(t in low for t in _TEXT)


def is_number(type_: str) -> bool:
    low = type_.lower()
    return not is_text(type_) and any(t in low for t in _NUMERIC)


def blocks_of(tree: exp.Expr, schema: Schema) -> list[Block]:
    """Every SELECT of a tree whose quotes are repaired."""
    tables = {t.name.lower(): {c.name.lower(): c.type for c in t.columns} for t in schema.tables}
    made: dict[int, Block] = {}
    for scope in scopes(tree):
        select = scope.expression
        if not isinstance(select, exp.Select):
            continue
        sources = {}
        for alias, source in scope.sources.items():
            if alias in scope.selected_sources:
                sources[alias.lower()] = _source(alias, source, tables)
        columns = tuple(c for c in scope.columns if _block_of(c) is select)
        made[id(select)] = Block(select, sources, columns)
    return [_with_outer(block, made) for block in made.values()]


def _source(alias: str, source: exp.Expr | Scope, tables: dict[str, dict[str, str]]) -> Source:
    if isinstance(source, exp.Table):
        return Source(alias.lower(), source.name.lower(), tables.get(source.name.lower()))
    return Source(alias.lower(), None, None)


def _block_of(node: exp.Expr) -> exp.Expr | None:
    return node.find_ancestor(exp.Select)


def _with_outer(block: Block, made: dict[int, Block]) -> Block:
    outer: dict[str, Source] = {}
    above = block.select.find_ancestor(exp.Select)
    while above is not None:
        around = made.get(id(above))
        if around is not None:
            outer = {**around.sources, **outer}
        above = above.find_ancestor(exp.Select)
    return Block(block.select, block.sources, block.columns, outer)


# Checks on the whole tree


def _quoted_names(tree: exp.Expr, schema: Schema) -> Iterator[Finding]:
    """Only where a name was meant: an output, a key, or the left side of a comparison, near to a real one."""
    aliases = {a.alias.lower() for a in tree.find_all(exp.Alias, exp.TableAlias) if a.alias}
    names = [c.name for t in schema.tables for c in t.columns]
    for column in tree.find_all(exp.Column):
        name = column.this
        if column.table or not isinstance(name, exp.Identifier) or not name.quoted:
            continue
        if schema.has_column(name.name) or schema.has_table(name.name) or name.name.lower() in aliases:
            continue
        parent = column.parent
        meant = isinstance(parent, exp.Select | exp.Group | exp.Ordered | exp.AggFunc) or (
            isinstance(parent, exp.Predicate) and parent.this is column
        )
        close = nearest(name.name, names)
        if meant:
            hint = f"; the nearest column is {close}" if close else ""
            yield Finding("quoted_name_is_text", f'"{name.name}" names nothing{hint}')


def _unknown_tables(tree: exp.Expr, schema: Schema) -> Iterator[Finding]:
    own = {c.alias_or_name.lower() for c in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            continue
        if (
            table.name.lower() in own
            or schema.has_table(table.name)
            or table.name.lower().startswith("sqlite_")
        ):
            continue
        close = nearest(table.name, (t.name for t in schema.tables))
        yield Finding(
            "unknown_table", f"no table {table.name}" + (f"; the nearest is {close}" if close else "")
        )


def _constant(tree: exp.Expr, schema: Schema) -> Iterator[Finding]:
    if not any(True for _ in tree.find_all(exp.Table)):
        yield Finding("constant_query", "no table is read")
        return
    top = tree
    while isinstance(top, exp.Subquery | exp.SetOperation):
        top = top.this
    outputs = [e.unalias() for e in top.expressions]
    if outputs and all(isinstance(o, exp.Literal | exp.Null | exp.Boolean) for o in outputs):
        yield Finding("constant_query", f"every output is a constant: {_shown(*outputs)}")


def _chance(tree: exp.Expr, schema: Schema) -> Iterator[Finding]:
    for node in tree.find_all(exp.Func, exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp):
        name = (node.name if isinstance(node, exp.Anonymous) else node.key).lower()
        now = any(
            isinstance(argument, exp.Literal) and argument.name.lower() == "now"
            for argument in node.find_all(exp.Literal)
        )
        if name in _CHANCE_FUNCTIONS or (
            now and name.startswith(tuple(_TIME_FUNCTIONS | {"tsords", "timetostr"}))
        ):
            yield Finding("nondeterministic", _shown(node))


_TREE_CHECKS: tuple[Callable[[exp.Expr, Schema], Iterator[Finding]], ...] = (
    _unknown_tables,
    _constant,
    _chance,
)


# Checks on one SELECT


def _unknown_columns(block: Block, schema: Schema) -> Iterator[Finding]:
    reach = {**block.outer, **block.sources}
    known = all(s.columns is not None for s in reach.values())
    outputs = {e.alias.lower() for e in block.select.expressions if e.alias}
    for column in block.columns:
        name, table = column.name.lower(), column.table.lower()
        if column.is_star or name in ("rowid", "oid", "_rowid_"):
            continue
        if table:
            source = reach.get(table)
            if source is None:
                close = nearest(table, reach)
                hint = f"; the nearest is {close}" if close else ""
                yield Finding("unknown_table", f"{_shown(column)}: no table or alias {column.table}{hint}")
            elif source.columns is not None and name not in source.columns:
                yield Finding(
                    "unknown_column", _no_column(column, source.table or table, source.columns, schema)
                )
        elif known and name not in outputs and not any(name in (s.columns or {}) for s in reach.values()):
            held = [c for s in reach.values() for c in s.columns or {}]
            yield Finding("unknown_column", _no_column(column, "any table of the query", held, schema))


def _no_column(column: exp.Column, where: str, held: Iterable[str], schema: Schema) -> str:
    others = [t.name for t in schema.tables if any(c.name.lower() == column.name.lower() for c in t.columns)]
    close = nearest(column.name, held)
    if others:
        return f"no column {column.name} in {where}; {', '.join(others[:3])} has it"
    return f"no column {column.name} in {where}" + (f"; the nearest is {close}" if close else "")


def _constant_conditions(block: Block, schema: Schema) -> Iterator[Finding]:
    for clause in ("where", "having"):
        node = block.select.args.get(clause)
        for comparison in node.find_all(exp.EQ, exp.NEQ, exp.GT, exp.LT, exp.GTE, exp.LTE) if node else ():
            left, right = comparison.this, comparison.expression
            literal = isinstance(left, exp.Literal) and isinstance(right, exp.Literal)
            if literal or (isinstance(left, exp.Column) and left == right):
                yield Finding("constant_condition", _shown(comparison))


def _whole_table(block: Block, schema: Schema) -> Iterator[Finding]:
    select = block.select
    clauses = ("where", "group", "having", "limit", "joins", "distinct", "with_", "with")
    if select.parent is not None or any(select.args.get(c) for c in clauses) or len(block.sources) != 1:
        return
    (source,) = block.sources.values()
    outputs = [e.unalias() for e in select.expressions]
    names = {o.name.lower() for o in outputs if isinstance(o, exp.Column)}
    star = any(o.is_star and not isinstance(o, exp.Count) for o in outputs)
    if star or (source.columns is not None and len(names) > 1 and names >= set(source.columns)):
        yield Finding("whole_table", f"every row and column of {source.table or source.alias}")


def _unordered_limit(block: Block, schema: Schema) -> Iterator[Finding]:
    holder: exp.Expr = block.select
    if holder.args.get("limit") is None or holder.args.get("order") is not None:
        return
    if one_row(block.select) or isinstance(holder.parent, exp.Exists):
        return
    yield Finding("limit_without_order", f"{_shown(holder.args['limit'])} without ORDER BY")


def one_row(select: exp.Expr) -> bool:
    """Whether a SELECT gives one row by its form: aggregates and no GROUP BY."""
    return not select.args.get("group") and any(_aggregates(e) for e in select.expressions)


def _aggregates(node: exp.Expr) -> list[exp.Expr]:
    """Aggregate calls in an expression that belong to the SELECT it stands in."""
    select = _block_of(node)
    return [
        a
        for a in node.find_all(exp.AggFunc)
        if _block_of(a) is select and not isinstance(a.parent, exp.Window) and not _scalar_extreme(a)
    ]


def _scalar_extreme(node: exp.Expr) -> bool:
    """MAX(a, b) and MIN(a, b) of several arguments are no aggregates in SQLite."""
    return isinstance(node, exp.Max | exp.Min) and bool(node.expressions)


def _type_mismatches(block: Block, schema: Schema) -> Iterator[Finding]:
    for comparison in block.select.find_all(exp.EQ, exp.NEQ, exp.GT, exp.LT, exp.GTE, exp.LTE, exp.Between):
        if _block_of(comparison) is not block.select:
            continue
        sides = [comparison.this, comparison.args.get("expression")]
        if isinstance(comparison, exp.Between):
            sides = [comparison.this, comparison.args.get("low")]
        yield from _mismatch(block, comparison, sides)


def _mismatch(block: Block, comparison: exp.Expr, sides: list[exp.Expr | None]) -> Iterator[Finding]:
    types = [_type(block, side) for side in sides]
    if types[0] and types[1]:
        if {is_text(types[0]), is_text(types[1])} == {True, False} and (
            is_number(types[0]) or is_number(types[1])
        ):
            yield Finding("type_mismatch", f"{_shown(comparison)}: {types[0]} against {types[1]}")
        return
    column, literal = sides if types[0] else reversed(sides)
    type_ = types[0] or types[1]
    if not type_ or not isinstance(literal, exp.Literal):
        return
    if is_number(type_) and literal.is_string and not _numeral(literal.name):
        yield Finding("type_mismatch", f"{_shown(comparison)}: {_shown(column)} is {type_}")
    if is_text(type_) and not literal.is_string and not isinstance(comparison, exp.EQ | exp.NEQ):
        yield Finding(
            "type_mismatch", f"{_shown(comparison)}: {_shown(column)} is {type_}, compared letter by letter"
        )


def _type(block: Block, node: exp.Expr | None) -> str | None:
    if not isinstance(node, exp.Column):
        return None
    source = block.source(node)
    return (
        source.columns.get(node.name.lower()) if source is not None and source.columns is not None else None
    )


def _numeral(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _joins(block: Block, schema: Schema) -> Iterator[Finding]:
    """Unused and unconnected sources. A source that links two others is used."""
    if len(block.sources) < 2:
        return
    if any(j.args.get("using") or j.method for j in block.select.args.get("joins") or []):
        return
    links, used = _links(block)
    if used is None:
        return
    names = list(block.sources)
    for part in _unconnected(names, links):
        yield Finding("cartesian_join", f"nothing joins {part} to {names[0]}")
    outer = {j.this.alias_or_name.lower() for j in block.select.args.get("joins") or [] if j.side}
    for name in names[1:]:
        partners = {next(iter(link - {name}), name) for link in links if name in link}
        if name not in used and len(partners) == 1 and block.sources[name].table and name not in outer:
            yield Finding("unused_join", f"{block.sources[name].table} is joined, and nothing else uses it")


def _links(block: Block) -> tuple[list[frozenset[str]], set[str] | None]:
    """Pairs of sources that a condition ties, and the sources used elsewhere; None where names are unclear."""
    links: list[frozenset[str]] = []
    used: set[str] = set()
    ties: dict[int, set[str]] = {}
    inner = [
        c for s in block.select.find_all(exp.Select) if s is not block.select for c in s.find_all(exp.Column)
    ]
    for column in (*block.columns, *inner):
        source = block.source(column) if column.table or column in block.columns else None
        if column.is_star and not column.table:
            return links, None
        if source is None:
            if not column.table and _block_of(column) is block.select:
                return links, None
            continue
        tie = _tie(column, block.select)
        if tie is None:
            used.add(source.alias)
        else:
            ties.setdefault(id(tie), set()).add(source.alias)
    if any(star for star in block.select.expressions if star.is_star):
        return links, None
    counted = any(isinstance(a.this, exp.Star) for a in block.select.find_all(exp.Count))
    for names in ties.values():
        if len(names) > 1:
            ordered = sorted(names)
            links += [frozenset((ordered[0], other)) for other in ordered[1:]]
        else:
            used |= names
    return links, set(block.sources) if counted else used


def _tie(column: exp.Column, select: exp.Expr) -> exp.Expr | None:
    """The comparison in ON or WHERE that a column is an operand of."""
    node: exp.Expr = column
    while node.parent is not None and node.parent is not select:
        node = node.parent
        if isinstance(node, exp.Predicate):
            return node
    return None


def _unconnected(names: list[str], links: list[frozenset[str]]) -> list[str]:
    reached, grown = {names[0]}, True
    while grown:
        more = {n for link in links if link & reached for n in link} - reached
        reached |= more
        grown = bool(more)
    return [n for n in names if n not in reached]


def _bare_columns(block: Block, schema: Schema) -> Iterator[Finding]:
    """SQLite defines a bare column beside a single MAX or MIN (the row of the extreme): that is no finding."""
    select = block.select
    group = select.args.get("group")
    aggregates = [a for e in select.expressions for a in _aggregates(e)]
    having = select.args.get("having")
    if group is None and not aggregates:
        return
    every = aggregates + (_aggregates(having) if having is not None else [])
    if len(every) == 1 and isinstance(every[0], exp.Max | exp.Min):
        return
    keys = _group_keys(select)
    if keys is None:
        return
    owners = _keyed_sources(block, keys, schema)
    for output in select.expressions:
        for column in output.find_all(exp.Column):
            if _block_of(column) is not select or column.is_star or _inside_aggregate(column, select):
                continue
            source = block.source(column)
            if source is None or _grouped(column, source, keys, block) or source.alias in owners:
                continue
            yield Finding("bare_column", f"{_shown(column)} is neither grouped nor aggregated")


def _group_keys(select: exp.Expr) -> list[exp.Expr] | None:
    """The expressions grouped by, positions and output names replaced by what they stand for."""
    group = select.args.get("group")
    if group is None:
        return []
    named = {e.alias.lower(): e.unalias() for e in select.expressions if e.alias}
    keys: list[exp.Expr] = []
    for key in group.expressions:
        if isinstance(key, exp.Literal) and key.name.isdigit():
            position = int(key.name)
            if not 1 <= position <= len(select.expressions):
                return None
            keys.append(select.expressions[position - 1].unalias())
        elif isinstance(key, exp.Column) and not key.table and key.name.lower() in named:
            keys += [key, named[key.name.lower()]]
        else:
            keys.append(key)
    return keys


def _grouped(column: exp.Column, source: Source, keys: list[exp.Expr], block: Block) -> bool:
    for key in keys:
        for part in key.find_all(exp.Column):
            held = block.source(part)
            if part.name.lower() == column.name.lower() and (held is None or held.alias == source.alias):
                return True
    return _equal_to_key(column, keys, block)


def _equal_to_key(column: exp.Column, keys: list[exp.Expr], block: Block) -> bool:
    """Whether the query equates the column with one it groups by (`ON a.id = b.a_id ... GROUP BY b.a_id`)."""
    wanted = {_full(k, block) for k in keys if isinstance(k, exp.Column)}
    mine = _full(column, block)
    for equal in block.select.find_all(exp.EQ):
        pair = (equal.this, equal.expression)
        if _block_of(equal) is block.select and all(isinstance(p, exp.Column) for p in pair):
            left, right = _full(pair[0], block), _full(pair[1], block)
            if (left == mine and right in wanted) or (right == mine and left in wanted):
                return True
    return False


def _full(column: exp.Expr, block: Block) -> tuple[str, str]:
    source = block.source(column) if isinstance(column, exp.Column) else None
    return (source.alias if source is not None else "", column.name.lower())


def _keyed_sources(block: Block, keys: list[exp.Expr], schema: Schema) -> set[str]:
    """Sources with one row a group: a key of theirs is grouped by, or equated with what is."""
    owners = set()
    for alias, source in block.sources.items():
        key = _primary_key(source.table, schema)
        parts = [exp.column(name, table=alias) for name in key]
        if parts and all(_grouped(part, source, keys, block) for part in parts):
            owners.add(alias)
    # A parent of such a source, joined by its key, has one row a group as well.
    for equal in block.select.find_all(exp.EQ):
        pair = (equal.this, equal.expression)
        if _block_of(equal) is block.select and all(isinstance(p, exp.Column) for p in pair):
            for one, other in (pair, pair[::-1]):
                (alias, name), (held, _) = _full(one, block), _full(other, block)
                source_ = block.sources.get(alias)
                if source_ is not None and held in owners and _primary_key(source_.table, schema) == (name,):
                    owners.add(alias)
    return owners


def _primary_key(table: str | None, schema: Schema) -> tuple[str, ...]:
    for held in schema.tables:
        if table is not None and held.name.lower() == table:
            return tuple(c.name.lower() for c in held.columns if c.primary_key)
    return ()


def _inside_aggregate(column: exp.Column, select: exp.Expr) -> bool:
    node = column.parent
    while node is not None and node is not select:
        if isinstance(node, exp.AggFunc | exp.Window) and not _scalar_extreme(node):
            return True
        node = node.parent
    return False


def _fan_outs(block: Block, schema: Schema) -> Iterator[Finding]:
    """SUM or AVG over a table whose key another source of the query refers to: its rows come several times."""
    for output in (*block.select.expressions, block.select.args.get("having")):
        for call in _aggregates(output) if output is not None else ():
            if not isinstance(call, exp.Sum | exp.Avg) or isinstance(call.this, exp.Distinct):
                continue
            owners = {s.alias for c in call.find_all(exp.Column) if (s := block.source(c)) is not None}
            if len(owners) != 1:
                continue
            (owner,) = owners
            child = _repeating(block, owner, schema)
            if child is not None:
                yield Finding(
                    "fan_out", f"{_shown(call)}: {child} may repeat each row of {block.sources[owner].table}"
                )


def _repeating(block: Block, owner: str, schema: Schema) -> str | None:
    key = _primary_key(block.sources[owner].table, schema)
    if len(key) != 1:
        return None
    for equal in block.select.find_all(exp.EQ):
        pair = (equal.this, equal.expression)
        if _block_of(equal) is not block.select or not all(isinstance(p, exp.Column) for p in pair):
            continue
        for one, other in (pair, pair[::-1]):
            (alias, name), (held, column) = _full(one, block), _full(other, block)
            if alias != owner or name != key[0] or held in ("", owner):
                continue
            child = block.sources[held].table
            if child is not None and _primary_key(child, schema) != (column,):
                return child
    return None


_BLOCK_CHECKS: tuple[Callable[[Block, Schema], Iterator[Finding]], ...] = (
    _unknown_columns,
    _constant_conditions,
    _whole_table,
    _unordered_limit,
    _type_mismatches,
    _joins,
    _bare_columns,
    _fan_outs,
)


def _shown(*nodes: exp.Expr | None) -> str:
    text = ", ".join(n.sql(dialect="sqlite") for n in nodes if n is not None)
    return text if len(text) <= 120 else text[:119] + "…"


# Another dialect's SQL

_FUNCTIONS_OF = {
    "mysql": "date_format str_to_date curdate curtime year month day dayofweek find_in_set field lpad rpad",
    "postgres": "to_char to_date date_trunc date_part string_agg array_agg split_part age extract initcap",
    "tsql": "getdate dateadd datename isnull charindex convert",
    "bigquery": "safe_divide countif parse_date format_date timestamp_trunc",
    "oracle": "nvl decode add_months trunc",
}
_DIALECT_OF = {name: dialect for dialect, names in _FUNCTIONS_OF.items() for name in names.split()}


def foreign_dialect(sql: str, error: str) -> str | None:
    """The dialect that SQL which fails on SQLite looks written for; None where nothing says so.

    error: what SQLite said. A missing function that another dialect has, or syntax that only it parses.
    """
    missing = (
        error.lower().rpartition("no such function: ")[2] if "no such function" in error.lower() else None
    )
    if missing is not None:
        return _DIALECT_OF.get(missing.strip())
    if "syntax error" not in error.lower():
        return None
    read = _written(sql, "sqlite")
    for dialect in ("mysql", "postgres", "tsql", "bigquery"):
        written = _written(sql, dialect)
        if written is not None and written != read:
            return dialect
    return None


def _written(sql: str, dialect: str) -> str | None:
    try:
        return parse(sql, dialect).sql(dialect=dialect)
    except SqlParseError:
        return None
