"""What is wrong, or likely wrong, with a gold SQL that only its database can show.

The queries made here run in the sandbox like any other; `validate` asks them and reads the answers.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from curate.sql.canonical import SqlParseError, order_keys_added, parse, repair_quotes
from curate.sql.compare import digest
from curate.sql.findings import Block, Finding, blocks_of
from curate.sql.schema import Schema, quoted

CHECKS: dict[str, str] = {
    "empty_result": "the result has no rows: a wrong SQL with an empty result would equal it",
    "all_null": "every value of the result is NULL",
    "tie_at_limit": "rows beyond the LIMIT have the same ORDER BY values as rows within it",
    "order_dependent": "the result changes when the tables are read backwards",
    "unstable": "two runs gave different results",
    "literal_absent": "a text literal that its column does not hold",
}

TIED = 50  # rows past the limit that are looked at
VALUES = 5_000  # of a column, among which the nearest to an absent literal is sought


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """A text literal that a query compares with a column."""

    table: str
    column: str
    value: str

    def exists(self) -> str:
        """SQL that gives one row if the column holds the value."""
        text = self.value.replace("'", "''")
        return f"SELECT 1 FROM {quoted(self.table)} WHERE {quoted(self.column)} = '{text}' LIMIT 1"

    def values(self) -> str:
        """SQL for up to VALUES of the column's values."""
        column = quoted(self.column)
        return (
            f"SELECT DISTINCT {column} FROM {quoted(self.table)} WHERE {column} IS NOT NULL "
            f"ORDER BY 1 LIMIT {VALUES}"
        )

    def absent(self, held: Sequence[Any]) -> Finding:
        """The finding that the value is not among `held`, with the nearest one."""
        where = f"{self.table}.{self.column}"
        if not held:
            return Finding("literal_absent", f"'{self.value}': {where} has no values")
        texts = [str(v) for v in held]
        alike = [t for t in texts if _folded(t) == _folded(self.value)]
        if alike:
            how = (
                "case"
                if alike[0].strip() == alike[0] and alike[0].lower() == self.value.lower()
                else "spaces"
            )
            return Finding(
                "literal_absent", f"'{self.value}' is not in {where}, '{alike[0]}' is: other {how}"
            )
        close = difflib.get_close_matches(self.value, texts, 1, 0.6)
        hint = f"; the nearest is '{close[0]}'" if close else f"; it has '{texts[0]}'"
        return Finding("literal_absent", f"'{self.value}' is not in {where}{hint}")


def _folded(text: str) -> str:
    return " ".join(text.lower().split())


@dataclass(frozen=True, slots=True)
class TieProbe:
    """sql: the query with its ORDER BY values as further outputs and TIED rows more.

    outputs: of the query itself. first, limit: the rows it keeps.
    """

    sql: str
    outputs: int
    first: int
    limit: int

    def finding(self, rows: Sequence[Sequence[Any]]) -> Finding | None:
        """Whether another choice among equals would give another result. rows: what `sql` gave."""
        end = self.first + self.limit
        for edge in {self.first, end} - {0}:
            if edge >= len(rows):
                continue
            key = rows[edge][self.outputs :]
            if rows[edge - 1][self.outputs :] != key:
                continue
            tied = [row[: self.outputs] for row in rows if row[self.outputs :] == key]
            if len(set(tied)) > 1:
                many = f"{len(tied)} rows or more" if len(rows) >= end + TIED else f"{len(tied)} rows"
                return Finding("tie_at_limit", f"{many} share the ORDER BY values at the limit")
        return None


@dataclass(frozen=True, slots=True)
class Probes:
    """What to ask of the database about one query.

    scan_order: its result could depend on the order in which tables are read.
    """

    values: tuple[ColumnValue, ...] = ()
    tie: TieProbe | None = None
    scan_order: bool = False


def probes(sql: str, schema: Schema, dialect: str = "sqlite") -> Probes:
    """What to ask about a query; nothing where it cannot be parsed."""
    try:
        tree = repair_quotes(parse(sql, dialect), schema)
        values = _values(blocks_of(tree, schema))
        return Probes(values, _tie_probe(tree), _reads_in_order(tree))
    except (SqlParseError, RecursionError):
        return Probes()


def same_rows(one: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> bool:
    """Whether two results hold the same rows, in whatever order."""
    return digest(one, "strict") == digest(other, "strict")


def _values(blocks: list[Block]) -> tuple[ColumnValue, ...]:
    found: list[ColumnValue] = []
    for block in blocks:
        for node in block.select.find_all(exp.EQ, exp.NEQ, exp.In):
            if node.find_ancestor(exp.Select) is not block.select:
                continue
            sides = [
                node.this,
                *(node.expressions if isinstance(node, exp.In) else [node.args.get("expression")]),
            ]
            columns = [s for s in sides if isinstance(s, exp.Column)]
            literals = [s.name for s in sides if isinstance(s, exp.Literal) and s.is_string]
            source = block.source(columns[0]) if len(columns) == 1 else None
            if (
                source is not None
                and source.table is not None
                and columns[0].name.lower() in (source.columns or {})
            ):
                found += [ColumnValue(source.table, columns[0].name, text) for text in literals]
    return tuple(dict.fromkeys(found))


_SCANNED: tuple[type[exp.Expr], ...] = (exp.Limit, exp.Window, exp.GroupConcat)


def _reads_in_order(tree: exp.Expr) -> bool:
    """Whether a LIMIT, a window, group_concat or a grouped query is there: elsewhere order cannot matter."""
    return tree.find(*_SCANNED, exp.Group) is not None


def _tie_probe(tree: exp.Expr) -> TieProbe | None:
    """None where the outermost query has no ORDER BY with LIMIT, or its keys cannot be outputs as well."""
    limit = tree.args.get("limit")
    if limit is None or tree.args.get("order") is None:
        return None
    count, skip = _number(limit.expression), _number_of(tree.args.get("offset"))
    probe = order_keys_added(tree)
    if probe is None or count is None or skip is None:
        return None
    probe.set("limit", exp.Limit(expression=exp.Literal.number(skip + count + TIED)))
    probe.set("offset", None)
    return TieProbe(probe.sql(dialect="sqlite"), len(tree.expressions), skip, count)


def _number(node: exp.Expr | None) -> int | None:
    return int(node.name) if isinstance(node, exp.Literal) and node.name.isdigit() else None


def _number_of(clause: exp.Expr | None) -> int | None:
    return 0 if clause is None else _number(clause.expression)
