"""Test suites for the Spider databases: how many near-misses they tell apart: `python -m benchmarks.testsuite`.

Writes benchmarks/testsuite.md. The near-misses counted are those that the original database lets through and that
some database is known to tell from their gold: one of the suite's candidates, or one of EXTRA more made with other
seeds, on which no choice was based. What none of them tells apart is reported, and counted in no rate.
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

from curate.sql.mutate import mutants
from curate.sql.sandbox import Sandbox
from curate.sql.schema import read_sqlite
from curate.sql.testsuite import (
    PROFILES,
    Suite,
    build_suite,
    missed_mutants,
    read_world,
    steady,
    told_apart,
    write_neighbour,
)

ROOT = Path(__file__).resolve().parent.parent
EXTRA = 36
WORKERS = 2


def main() -> None:
    data = Path(os.environ.get("NL2SQL_DATA", ROOT.parent / "shared" / "data")).resolve() / "spider"
    if not (data / "train.json").exists():
        sys.exit(f"no Spider at {data.parent}: set NL2SQL_DATA")
    golds: dict[str, set[str]] = defaultdict(set)
    for row in json.loads((data / "train.json").read_text(encoding="utf-8")):
        golds[row["db_id"]].add(row["query"])
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    names = sorted(golds)[::every]
    suites, seconds = [], 0.0
    missed = known = killed = 0
    left: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, Sandbox(WORKERS) as sandbox:
        for name in names:
            path, asked = data / "database" / name / f"{name}.sqlite", sorted(golds[name])
            started = time.perf_counter()
            suite = build_suite(path, asked, Path(folder) / name, sandbox)
            seconds += time.perf_counter() - started
            suites.append(suite)
            found = account(path, asked, suite, sandbox, Path(folder) / "extra.sqlite")
            missed, known, killed = missed + found[0], known + found[1], killed + found[2]
            left.update(found[3])
            print(f"{name}: {suite.databases} neighbours, {found[2]} of {found[1]} of {found[0]}", flush=True)
    text = report(suites, missed, known, killed, left, seconds, every)
    print(text)
    if every == 1:
        (ROOT / "benchmarks" / "testsuite.md").write_text(text, encoding="utf-8")


def account(
    path: Path, golds: list[str], suite: Suite, sandbox: Sandbox, extra: Path
) -> tuple[int, int, int, Counter[str]]:
    """Mutants the original lets through; of them known to differ; of these killed by the suite; the kinds of
    those nothing tells apart."""
    schema = read_sqlite(path)
    ties = steady(golds, schema)
    cases = missed_mutants(path, [(g, m) for g in ties for m in mutants(g, schema)], sandbox, "strict")
    chosen: set[int] = set()
    for number in range(1, suite.databases + 1):
        chosen |= told_apart(suite.folder / f"{number}.sqlite", cases, ties, sandbox, "strict")
    world = read_world(path, schema, golds)
    known = set(chosen)
    for i in range(EXTRA):
        write_neighbour(extra, world, PROFILES[i % len(PROFILES)], Random(f"extra:{i}"))
        known |= told_apart(extra, cases, ties, sandbox, "strict")
    left = Counter(mutant.kind for i, (_, mutant) in enumerate(cases) if i not in known)
    return len(cases), len(known), len(chosen), left


def report(
    suites: list[Suite],
    missed: int,
    known: int,
    killed: int,
    left: Counter[str],
    seconds: float,
    every: int,
) -> str:
    total, golds = sum(s.mutants for s in suites), sum(s.golds for s in suites)
    sizes = [s.databases for s in suites]
    rows = [
        ("databases, distinct gold queries", f"{len(suites)}, {golds:,}"),
        ("of these with a result that the rows decide", f"{sum(s.steady for s in suites):,}"),
        ("near-misses of those", f"{total:,}"),
        ("told apart by the original database", f"{total - missed:,} ({(total - missed) / total:.1%})"),
        ("let through by it", f"{missed:,}"),
        ("of these known to differ on some database", f"{known:,}"),
        ("**of these told apart by the suite**", f"**{killed:,} ({killed / known:.1%})**"),
        ("told apart by no database tried", f"{missed - known:,}"),
        ("neighbours a database: median, most", f"{statistics.median(sizes):g}, {max(sizes)}"),
        ("gold queries a second, building", f"{golds / seconds:.0f}"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    kinds = ", ".join(f"{kind} {n:,}" for kind, n in left.most_common())
    share = "" if every == 1 else f" (every {every}th database)"
    return f"""# Test suites on Spider train{share}

`python -m benchmarks.testsuite`, rebuilt databases, mode `strict`, {WORKERS} workers, {platform.machine()},
{os.cpu_count()} cores, Python {platform.python_version()}.

| | |
|---|---:|
{table}

"Known to differ": told apart by the suite or by one of {EXTRA} further databases made with other seeds. A mutant
that none of them tells apart is equivalent to its gold, or too close for this method; kinds: {kinds}.
"""


if __name__ == "__main__":
    main()
