import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def nl2sql_data() -> Path:
    """Folder of public data sets (Spider and others); the test is skipped where it is absent."""
    path = Path(os.environ.get("NL2SQL_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "spider" / "train.json").exists():
        pytest.skip(f"public data not found at {path}: set NL2SQL_DATA to run this test")
    return path
