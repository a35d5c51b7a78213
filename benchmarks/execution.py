"""Judging pairs: our sandbox, everything on, beside BIRD's evaluator, in one run: `python -m benchmarks.execution`.

Both get the same pairs of Spider train (gold, and a near-miss or the gold in other words) and WORKERS processes.
BIRD's method is restated here: a pool of processes; for each pair a fresh connection, the prediction and the gold
executed, all rows fetched, two sets compared, under func_timeout. Three loads: distinct pairs, nothing known; the
same with every gold seen before; and a batch as GRPO makes it, 8 completions a prompt, 4 of them distinct.

Writes benchmarks/execution.md: medians of RUNS, and the ratio within each run.
"""

import json
import os
import platform
import sqlite3
import statistics
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from func_timeout import FunctionTimedOut, func_timeout

from curate.sql.mutate import mutants
from curate.sql.sandbox import Pair, Sandbox
from curate.sql.schema import Schema, read_sqlite

ROOT = Path(__file__).resolve().parent.parent
WORKERS, RUNS, TIMEOUT_S = 2, 5, 30.0
PROMPTS = 500


def execute(database: str, predicted: str, gold: str) -> int:
    connection = sqlite3.connect(database)
    cursor = connection.cursor()
    cursor.execute(predicted)
    predicted_rows = cursor.fetchall()
    cursor.execute(gold)
    gold_rows = cursor.fetchall()
    connection.close()
    return int(set(predicted_rows) == set(gold_rows))


def official(pair: tuple[str, str, str]) -> int:
    try:
        return func_timeout(TIMEOUT_S, execute, args=pair)
    except (FunctionTimedOut, sqlite3.Error):
        return 0


def bird(pairs: list[Pair]) -> tuple[float, list[int]]:
    """Seconds and verdicts. The pool is started before the clock is, as our workers are."""
    with get_context("spawn").Pool(WORKERS) as pool:
        pool.map(abs, range(WORKERS))
        started = time.perf_counter()
        found = pool.map(official, [(p.database, p.predicted, p.golds[0]) for p in pairs], chunksize=64)
        return time.perf_counter() - started, found


def ours(pairs: list[Pair], *, known: bool) -> tuple[float, list[int]]:
    with Sandbox(WORKERS) as sandbox:
        warm = [Pair(p.database, "SELECT 1", p.golds) for p in pairs] if known else pairs[:1] * 200
        sandbox.judge([Pair(p.database, f"SELECT {i}", p.golds) for i, p in enumerate(warm)], "bird")
        started = time.perf_counter()
        found = sandbox.judge(pairs, "bird")
        return time.perf_counter() - started, [int(j.match) for j in found]


def spider_pairs(data: Path) -> list[Pair]:
    """A gold and one of its mutants, or, for every second gold, the gold itself with a space more."""
    schemas: dict[str, Schema] = {}
    pairs: dict[tuple[str, str], Pair] = {}
    for row in json.loads((data / "train.json").read_text(encoding="utf-8")):
        name, gold = row["db_id"], row["query"]
        path = data / "database" / name / f"{name}.sqlite"
        if (name, gold) in pairs:
            continue
        if name not in schemas:
            schemas[name] = read_sqlite(path)
        near = mutants(gold, schemas[name]) if len(pairs) % 2 else []
        predicted = near[len(pairs) % len(near)].sql if near else f"{gold} "
        pairs[name, gold] = Pair(str(path), predicted, (gold,))
    return list(pairs.values())


def grpo_batch(pairs: list[Pair], data: Path) -> list[Pair]:
    """PROMPTS prompts of 8 completions, 4 of them distinct: the gold twice, three mutants twice each."""
    batch = []
    for pair in pairs[:: max(1, len(pairs) // PROMPTS)][:PROMPTS]:
        gold = pair.golds[0]
        others = [m.sql for m in mutants(gold, read_sqlite(pair.database))][:3]
        distinct = [f"{gold} ", *others, *(f"{gold}{' ' * i}" for i in range(2, 5))][:4]
        batch += [Pair(pair.database, distinct[i % 4], pair.golds) for i in range(8)]
    return batch


def main() -> None:
    data = Path(os.environ.get("NL2SQL_DATA", ROOT.parent / "shared" / "data")).resolve() / "spider"
    if not (data / "train.json").exists():
        sys.exit(f"no Spider at {data.parent}: set NL2SQL_DATA")
    pairs = spider_pairs(data)
    loads = {
        "distinct pairs, cold": (pairs, False),
        "distinct pairs, golds known": (pairs, True),
        "GRPO batch, golds known": (grpo_batch(pairs, data), True),
    }
    lines, differ = [], 0
    for name, (load, known) in loads.items():
        theirs, mine, ratios = [], [], []
        for _ in range(RUNS):
            bird_s, bird_found = bird(load)
            our_s, our_found = ours(load, known=known)
            differ += sum(a != b for a, b in zip(bird_found, our_found, strict=True))
            theirs.append(len(load) / bird_s)
            mine.append(len(load) / our_s)
            ratios.append(bird_s / our_s)
        lines.append(
            f"| {name} | {len(load):,} | {statistics.median(theirs):,.0f} | {statistics.median(mine):,.0f} "
            f"| **{statistics.median(ratios):.1f}** ({min(ratios):.1f} to {max(ratios):.1f}) |"
        )
        print(lines[-1], flush=True)
    text = f"""# Judging pairs

`python -m benchmarks.execution`; Spider train, rebuilt databases, {WORKERS} processes each, mode `bird`,
{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}.
Medians of {RUNS} runs, in pairs a second; the ratio is taken within each run (least to most).

| load | pairs | BIRD's method | our sandbox | ratio |
|---|---:|---:|---:|---:|
{chr(10).join(lines)}

Ours has everything on: read-only immutable files, authorizer, limits, memory limit, step budget, deadline, row cap,
killable workers. Verdicts that differ: {differ} of {sum(len(load) for load, _ in loads.values()) * RUNS:,}.
"""
    print(text)
    (ROOT / "benchmarks" / "execution.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
