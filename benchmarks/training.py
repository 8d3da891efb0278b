"""What a rewrite gains: the scripts in `benchmarks/scripts`, as they are and as `tfboost rewrite` makes them.

    python benchmarks/training.py [--runs 5] [--env tf221] [-O1] [--select NAME,...]

Each script prints `SECONDS` of training and the last `LOSS`. Both run in turn, each in a fresh process
of the test environment; printed are the medians and the ratio pair by pair (minimum, median, maximum).
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(python: Path, script: Path) -> tuple[float, float]:
    """Seconds of training and the last loss."""
    done = subprocess.run([python, script], capture_output=True, text=True, check=True)
    seconds, loss = (re.search(rf"^{name} (\S+)", done.stdout, re.M) for name in ("SECONDS", "LOSS"))
    assert seconds and loss, done.stdout
    return float(seconds[1]), float(loss[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--env", default="tf221")
    parser.add_argument("--level", "-O", type=int, default=1)
    parser.add_argument("--select")
    options = parser.parse_args()
    python = ROOT / ".envs" / options.env / "bin" / "python"
    select = ["--select", options.select] if options.select else []
    with tempfile.TemporaryDirectory() as folder:
        for script in sorted((ROOT / "benchmarks" / "scripts").glob("*.py")):
            fast = Path(folder) / script.name
            command = [sys.executable, "-m", "rewriter", "rewrite", "--python", python, "-O", str(options.level)]
            subprocess.run([*command, *select, script, "-o", fast, "--quiet"], cwd=ROOT, check=True)
            pairs = [(run(python, script), run(python, fast)) for _ in range(options.runs)]
            ratios = [a[0] / b[0] for a, b in pairs]
            before, after = (statistics.median(p[i][0] for p in pairs) for i in (0, 1))
            losses = ", ".join(f"{statistics.median(p[i][1] for p in pairs):.4f}" for i in (0, 1))
            print(
                f"{script.name} on {options.env}: {before:.2f} s, rewritten {after:.2f} s: "
                f"{statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f}), loss {losses}"
            )


if __name__ == "__main__":
    main()
