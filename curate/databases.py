"""Databases by `db_id`: where each file is, and the digest of its bytes."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from curate.atomic import write_atomic
from curate.rows import DATABASE_DIGITS, row_id
from curate.sql.schema import Schema, SchemaError, find_database, read_sqlite
from curate.store import Range


@dataclass(frozen=True)
class Databases:
    """The databases below one root. `digests` are filled in by `digested`."""

    root: Path | None = None
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Any) -> Self:
        """`root`: a folder, None, or Databases already."""
        if isinstance(root, cls):
            return root
        return cls(Path(root)) if root is not None else cls()

    def path(self, db_id: str) -> Path | None:
        """The database's file, or None where there is none."""
        return None if self.root is None else find_database(self.root, db_id)

    def schema(self, db_id: str) -> Schema | None:
        """The database's schema, or None where the file is missing or unreadable."""
        path = self.path(db_id)
        return None if path is None else _schema(path, db_id, path.stat().st_mtime_ns)

    def digest(self, db_id: str) -> str:
        """Digest of the file's bytes; `missing` where there is no file."""
        known = self.digests.get(db_id)
        if known is not None:
            return known
        path = self.path(db_id)
        return "missing" if path is None else file_digest(path)

    def within(self, span: Range) -> Self:
        """The digests of the databases whose rows may fall in a range: what a task needs to carry."""
        digits = DATABASE_DIGITS
        kept = {
            db_id: digest
            for db_id, digest in self.digests.items()
            if span.first[:digits] <= row_id("", "", db_id, "", "")[:digits] <= span.last[:digits]
        }
        return type(self)(self.root, kept)

    def digested(self, db_ids: Iterable[str], cache: Path) -> Self:
        """The same databases with the digest of each of `db_ids`.

        `cache` is a JSON file that remembers digests by path, size, modification time and inode, so that
        unchanged files are not read again.
        """
        remembered = _load(cache)
        digests, entries = {}, {}
        for db_id in sorted(set(db_ids)):
            path = self.path(db_id)
            if path is None:
                digests[db_id] = "missing"
                continue
            stat = path.stat()
            mark = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
            known = remembered.get(str(path))
            value = known[1] if known and known[0] == mark else file_digest(path)
            digests[db_id], entries[str(path)] = value, [mark, value]
        if any(remembered.get(path) != entry for path, entry in entries.items()):
            write_atomic(cache, json.dumps({**remembered, **entries}, sort_keys=True).encode())
        return type(self)(self.root, digests)


def _load(cache: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def file_digest(path: Path) -> str:
    """blake2b of the file's bytes, 32 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@lru_cache(maxsize=1024)
def _schema(path: Path, db_id: str, changed: int) -> Schema | None:
    try:
        return read_sqlite(path, db_id)
    except SchemaError:
        return None
