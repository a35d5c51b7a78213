"""Files that are whole or absent, whenever the process dies."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

TEMPORARY = ".tmp-"


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name in the same folder, fsync it, and rename it to `path`.

    Raises OSError (a full disk, say) with nothing left behind and the old file untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Make the folder `path` anew: `fill` writes it under a temporary name, then it takes the old one's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent))
    try:
        os.chmod(fresh, 0o755)
        fill(fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if path.exists():
        old = fresh.with_name(fresh.name + ".old")
        path.rename(old)
        fresh.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        fresh.rename(path)
    sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Remove what a killed process left under temporary names in `folder` and below."""
    for left in list(folder.rglob(f"{TEMPORARY}*")):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
