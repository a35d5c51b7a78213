"""Curate all of Spider train, cold and again, as whole processes: `python -m benchmarks.spider`.

Prints a table of wall seconds and peak memory (of the process and of its largest child), medians of RUNS.
"""

import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 3


def measured(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall seconds, and peak resident MB of the largest single process of the tree so far."""
    started = time.perf_counter()
    subprocess.run(
        arguments, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - started
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


def main() -> None:
    data = Path(os.environ.get("NL2SQL_DATA", ROOT.parent / "shared" / "data")).resolve()
    if not (data / "spider" / "train.json").exists():
        sys.exit(f"no Spider at {data}: set NL2SQL_DATA")
    environment = {**os.environ, "NL2SQL_DATA": str(data)}
    curate = [sys.executable, "-m", "curate.cli"]
    out = Path(tempfile.mkdtemp())
    run = [*curate, "run", str(ROOT / "examples/spider/pipeline.yaml"), "--quiet"]
    run += ["--set", f"output.path={out / 'out'}"]
    cold, again, memory = [], [], 0.0
    for _ in range(RUNS):
        shutil.rmtree(out / "out", ignore_errors=True)
        seconds, memory = measured(run, environment)
        cold.append(seconds)
        seconds, memory = measured(run, environment)
        again.append(seconds)
    help_ = [measured([*curate, "--help"], environment)[0] for _ in range(RUNS)]
    bare = [measured([sys.executable, "-c", ""], environment)[0] for _ in range(RUNS)]
    imported = [measured([sys.executable, "-c", "import curate"], environment)[0] for _ in range(RUNS)]
    shutil.rmtree(out)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; medians of {RUNS}\n"
    )
    print("| what | seconds |\n|---|---:|")
    print(f"| `curate run` on Spider train, 6,790 rows, nothing stored | {statistics.median(cold):.1f} |")
    print(f"| the same again, unchanged | {statistics.median(again):.1f} |")
    print(f"| `curate --help` | {statistics.median(help_):.2f} |")
    print(
        f"| `import curate`, beyond starting Python | {statistics.median(imported) - statistics.median(bare):.2f} |"
    )
    print(f"\nPeak memory of the largest process: {memory:,.0f} MB")


if __name__ == "__main__":
    main()
