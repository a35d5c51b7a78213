"""Database schemas: read from SQLite or Spider's tables.json, and rendered for a prompt."""

import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

SUFFIXES = (".sqlite", ".sqlite3", ".db")
SAMPLE_CHARACTERS = 40  # of a sample value

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]*(\([0-9, ]*\))?")
# Words that SQLite takes for a name nowhere or only in some places, and so need quotes.
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """add all alter and as autoincrement between case cast check collate commit constraint create cross
        current_date current_time current_timestamp default deferrable delete distinct drop else escape except
        exists false foreign from full glob group having if in index inner insert intersect into is isnull join
        left like limit match natural not nothing notnull null on or order outer primary raise recursive
        references regexp returning right rollback select set table then to transaction true union unique update
        using values when where with""",
    )
)


class SchemaError(Exception):
    """A schema cannot be read; the message names the file."""


@dataclass(frozen=True, slots=True)
class Column:
    """`samples`: a few distinct values, as text."""

    name: str
    type: str
    primary_key: bool = False
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignKey:
    table: str
    columns: tuple[str, ...]
    ref_table: str
    ref_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table or a view."""

    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Schema:
    """`collated`: some column declares a collating sequence, so that `a = b` need not be `b = a`."""

    db_id: str
    tables: tuple[Table, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()
    collated: bool = False

    def mapping(self) -> dict[str, dict[str, str]]:
        """table -> column -> type, names in lower case, as sqlglot's optimizer takes it."""
        return {t.name.lower(): {c.name.lower(): c.type or "TEXT" for c in t.columns} for t in self.tables}

    @cached_property
    def _columns(self) -> frozenset[str]:
        return frozenset(c.name.lower() for t in self.tables for c in t.columns)

    @cached_property
    def _tables(self) -> frozenset[str]:
        return frozenset(t.name.lower() for t in self.tables)

    def has_column(self, name: str) -> bool:
        """Whether any table has a column of this name, whatever its case."""
        return name.lower() in self._columns

    def has_table(self, name: str) -> bool:
        return name.lower() in self._tables


def safe_name(db_id: str) -> str:
    """`db_id` as one file name: `%`, `/`, NUL, and the names `.` and `..` are percent-encoded."""
    if db_id in ("", ".", ".."):
        return "%2E" * len(db_id) or "%"
    return re.sub(r"[%/\0]", lambda m: f"%{ord(m.group()):02X}", db_id)


def find_database(root: str | Path, db_id: str) -> Path | None:
    """The database's file below `root`: DB/DB.sqlite, the only database file in DB/, or DB.sqlite.

    Never a file outside `root`, whatever `db_id` says.
    """
    root, name = Path(root), safe_name(db_id)
    if len(name.encode("utf-8", "surrogatepass")) > 240:  # longer than a file name can be
        return None
    folder = root / name
    for suffix in SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    if folder.is_dir():
        held = [p for p in sorted(folder.iterdir()) if p.suffix in SUFFIXES and p.is_file()]
        if len(held) == 1:
            return held[0]
    for suffix in SUFFIXES:
        if (root / f"{name}{suffix}").is_file():
            return root / f"{name}{suffix}"
    return None


def read_sqlite(path: str | Path, db_id: str | None = None, *, samples: int = 0) -> Schema:
    """The schema of a SQLite file: tables and views in the order of creation, without SQLite's own.

    Generated columns count as columns; a view that no longer works is left out.

    samples: up to so many distinct values of each column, smallest first.
    Raises SchemaError for a missing, unreadable or corrupt file.
    """
    path = Path(path)
    if not path.is_file():
        raise SchemaError(f"{path}: no such database file")
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
    except sqlite3.Error as error:
        raise SchemaError(f"{path}: cannot be opened: {error}") from error
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        return _read(connection, path.stem if db_id is None else db_id, samples)
    except sqlite3.Error as error:
        raise SchemaError(f"{path}: not a readable SQLite database: {error}") from error
    finally:
        connection.close()


def _read(connection: sqlite3.Connection, db_id: str, samples: int) -> Schema:
    made = connection.execute(
        "SELECT name, type, coalesce(sql, '') FROM sqlite_master WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
    ).fetchall()
    tables: list[Table] = []
    keys: dict[str, tuple[str, ...]] = {}
    for name, kind, _ in made:
        try:
            found = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
        except sqlite3.OperationalError:
            if kind == "view":  # it reads what is no longer there, and so cannot be queried either
                continue
            raise
        shown = [row for row in found if row[6] != 1]  # 1: a virtual table's hidden column
        keys[name.lower()] = tuple(row[1] for row in sorted(shown, key=lambda r: r[5]) if row[5])
        columns = (
            Column(column, type_ or "", bool(key), _samples(connection, name, column, samples))
            for _, column, type_, _, _, key, _ in shown
        )
        tables.append(Table(name, tuple(columns)))
    foreign = [key for table in tables for key in _foreign_keys(connection, table.name, keys)]
    collated = any(re.search(r"\bcollate\b", sql, re.IGNORECASE) for _, _, sql in made)
    return Schema(db_id, tuple(tables), tuple(foreign), collated)


def _samples(connection: sqlite3.Connection, table: str, column: str, count: int) -> tuple[str, ...]:
    if count <= 0:
        return ()
    name = quoted(column)
    values = connection.execute(
        f"SELECT DISTINCT {name} FROM {quoted(table)} WHERE {name} IS NOT NULL ORDER BY {name} LIMIT ?",
        (count,),
    ).fetchall()
    return tuple(_short(value) for (value,) in values)


def _short(value: Any) -> str:
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else " ".join(str(value).split())
    return text if len(text) <= SAMPLE_CHARACTERS else text[: SAMPLE_CHARACTERS - 1] + "…"


def _foreign_keys(
    connection: sqlite3.Connection, table: str, keys: Mapping[str, tuple[str, ...]]
) -> list[ForeignKey]:
    """Of one table; `keys`: the primary key of every table in its declared order, by name in lower case."""
    by_id: dict[int, list[tuple[Any, ...]]] = {}
    for row in connection.execute(f"PRAGMA foreign_key_list({quoted(table)})"):
        by_id.setdefault(row[0], []).append(row)
    found = []
    for _, rows in sorted(by_id.items(), reverse=True):  # SQLite lists the last declared first
        rows.sort(key=lambda r: r[1])
        ref_table = rows[0][2]
        columns = tuple(r[3] for r in rows)
        named = tuple(r[4] for r in rows)
        if None in named:  # REFERENCES table: its primary key
            named = keys.get(ref_table.lower(), ())
        if len(named) == len(columns):
            found.append(ForeignKey(table, columns, ref_table, named))
    return found


def read_spider_tables(path: str | Path) -> dict[str, Schema]:
    """The schemas of Spider's tables.json, by db_id. Raises SchemaError naming file and entry."""
    path = Path(path)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: cannot be read: {error}") from error
    schemas = {}
    for i, entry in enumerate(entries):
        try:
            schema = _spider_schema(entry)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SchemaError(f"{path}: entry {i}: {type(error).__name__}: {error}") from error
        schemas[schema.db_id] = schema
    return schemas


def _spider_schema(entry: Mapping[str, Any]) -> Schema:
    names: list[str] = entry["table_names_original"]
    columns: list[tuple[int, str]] = [(t, c) for t, c in entry["column_names_original"]]
    keys = {k for key in entry["primary_keys"] for k in (key if isinstance(key, list) else [key])}
    held: list[list[Column]] = [[] for _ in names]
    for i, ((table, column), type_) in enumerate(zip(columns, entry["column_types"], strict=True)):
        if table >= 0:
            held[table].append(Column(column, type_, i in keys))
    foreign = [
        ForeignKey(names[columns[a][0]], (columns[a][1],), names[columns[b][0]], (columns[b][1],))
        for a, b in entry["foreign_keys"]
    ]
    tables = tuple(
        Table(name, tuple(own))
        for name, own in zip(names, held, strict=True)
        if not name.lower().startswith("sqlite_")
    )
    return Schema(entry["db_id"], tables, tuple(foreign))


def render(schema: Schema, style: Literal["compact", "ddl"] = "ddl") -> str:
    """The schema as text for a prompt.

    compact: a line a table, `product(id int*, name text)` with `*` for primary keys, then the foreign keys
    as `orders.product_id=product.id`. ddl: CREATE TABLE statements. Samples are shown where there are any.
    """
    return _compact(schema) if style == "compact" else _ddl(schema)


def _compact(schema: Schema) -> str:
    lines = [f"{_name(t.name)}({', '.join(_compact_column(c) for c in t.columns)})" for t in schema.tables]
    lines += [
        f"{_name(k.table)}.{_name(a)}={_name(k.ref_table)}.{_name(b)}"
        for k in schema.foreign_keys
        for a, b in zip(k.columns, k.ref_columns, strict=True)
    ]
    return "\n".join(lines)


def _compact_column(column: Column) -> str:
    type_ = column.type.split("(")[0].strip().lower()
    text = f"{_name(column.name)} {_SHORT_TYPES.get(type_, type_)}".rstrip() + "*" * column.primary_key
    return text + (f" [{', '.join(column.samples)}]" if column.samples else "")


_SHORT_TYPES = {"integer": "int", "varchar": "text", "character": "text"}


def _ddl(schema: Schema) -> str:
    return "\n\n".join(_create(table, schema) for table in schema.tables)


def _create(table: Table, schema: Schema) -> str:
    keys = [c for c in table.columns if c.primary_key]
    entries: list[tuple[str, str]] = []
    for column in table.columns:
        type_ = column.type if _PLAIN_TYPE.fullmatch(column.type) else quoted(column.type)
        text = f"{_name(column.name)} {type_ if column.type else ''}".rstrip()
        if len(keys) == 1 and column.primary_key:
            text += " PRIMARY KEY"
        entries.append((text, f"  -- {', '.join(column.samples)}" if column.samples else ""))
    if len(keys) > 1:
        entries.append((f"PRIMARY KEY ({', '.join(_name(c.name) for c in keys)})", ""))
    for key in schema.foreign_keys:
        if key.table == table.name:
            here = ", ".join(_name(c) for c in key.columns)
            there = ", ".join(_name(c) for c in key.ref_columns)
            entries.append((f"FOREIGN KEY ({here}) REFERENCES {_name(key.ref_table)} ({there})", ""))
    body = [
        f"  {text}{',' if i < len(entries) - 1 else ''}{comment}" for i, (text, comment) in enumerate(entries)
    ]
    return "\n".join([f"CREATE TABLE {_name(table.name)} (", *body, ");"])


def _name(name: str) -> str:
    return quoted(name) if needs_quotes(name) else name


def needs_quotes(name: str) -> bool:
    """Whether SQLite takes the name only in quotes: a keyword, or not letters, digits and underscores."""
    return _PLAIN_NAME.fullmatch(name) is None or name.lower() in _KEYWORDS


def quoted(name: str) -> str:
    """The name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def render_prompt(
    question: str, schema_text: str, *, evidence: str | None = None, dialect: str = "sqlite"
) -> str:
    """The prompt for one question: the only place that renders one, for SFT, GRPO and evaluation alike.

    It ends in `SQL:` without a space after it.
    """
    known = f"Hint: {evidence.strip()}\n" if evidence and evidence.strip() else ""
    spoken = "" if dialect == "sqlite" else f"Dialect: {dialect}\n"
    return f"{schema_text.strip()}\n{spoken}{known}Question: {question.strip()}\nSQL:"
