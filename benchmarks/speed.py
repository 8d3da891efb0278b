"""What tfboost costs: whole-process CPU seconds against other code tools, on the same files.

    python benchmarks/speed.py [--runs 7]

Makes a virtual environment of its own for `torchfix` and `fixit` (LibCST-based linters) and takes `tf_upgrade_v2` from
`.envs/tf215`. Every command is run in turn, `--runs` times after one warm-up; medians are printed. CPU seconds are user
plus system time of the process and its children, as the kernel accounts them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = sorted((ROOT / "fixtures").glob("*/input.py"))


def keras_script(lines: int) -> str:
    """A Keras script of about this many lines: the functions and models of the fixtures, one after another."""
    parts: list[str] = []
    for path in FIXTURES:
        text = path.read_text().replace("\r\n", "\n")
        if "\t" not in text and "from __future__" not in text and "import *" not in text:
            parts.append(text)
        if sum(p.count("\n") for p in parts) >= lines:
            break
    return "\n".join("\n".join(parts).split("\n")[:lines]).rsplit("\n\n", 1)[0] + "\n"


def compiles(text: str) -> bool:
    try:
        compile(text, "script", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def cpu_seconds(command: list[str], cwd: Path) -> tuple[float, float]:
    """User and system seconds, and wall seconds, of one run."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


def peers(home: Path) -> Path:
    """An environment with the peers; built once."""
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torchfix", "fixit"], check=True)
    return python.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    bin_ = peers(ROOT / ".envs" / "peers")
    upgrade = ROOT / ".envs" / "tf215" / "bin" / "tf_upgrade_v2"
    tfboost = [sys.executable, "-m", "rewriter"]
    if shutil.which("tfboost"):
        tfboost = [shutil.which("tfboost") or ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = next(t for n in range(1300, 1500) if compiles(t := keras_script(n)))
        (folder / "big.py").write_text(text)
        (folder / "torch.py").write_text(f"{text}import torch\n")  # without that word torchfix does not parse a file
        (folder / "plain.py").write_text("import os\n\n\ndef main():\n    print(os.getcwd())\n" * 200)
        many = folder / "many"
        many.mkdir()
        for i in range(100):
            shutil.copy(FIXTURES[i % len(FIXTURES)], many / f"script_{i}.py")
        count = text.count("\n")
        commands = {
            f"tfboost rewrite -O3, {count} lines": [
                *tfboost,
                "rewrite",
                "-O3",
                "--target",
                "tf2.15",
                "big.py",
                "-o",
                "out.py",
            ],
            f"torchfix, {count} lines": [str(bin_ / "torchfix"), "torch.py"],
            f"fixit lint, {count} lines": [str(bin_ / "fixit"), "lint", "big.py"],
            "tfboost rewrite, no TensorFlow in it": [*tfboost, "rewrite", "plain.py"],
            "tfboost --help": [*tfboost, "--help"],
            "tfboost check, 100 files, 1 process": [*tfboost, "check", "--jobs", "1", "many"],
            "tfboost check, 100 files, 2 processes": [*tfboost, "check", "--jobs", "2", "many"],
        }
        if upgrade.exists():
            commands[f"tf_upgrade_v2, {count} lines"] = [str(upgrade), "--infile", "big.py", "--outfile", "up.py"]
        cpu: dict[str, list[float]] = {label: [] for label in commands}
        wall: dict[str, list[float]] = {label: [] for label in commands}
        for run in range(runs + 1):
            for label, command in commands.items():
                seconds, elapsed = cpu_seconds(command, folder)
                if run:
                    cpu[label].append(seconds)
                    wall[label].append(elapsed)
        print(f"{'':42} CPU s   wall s   (medians of {runs})")
        for label in commands:
            print(f"{label:42} {statistics.median(cpu[label]):5.2f}   {statistics.median(wall[label]):5.2f}")
        one, two = (wall[f"tfboost check, 100 files, {n} process{'es' if n > 1 else ''}"] for n in (1, 2))
        print(
            "100 files, two processes:",
            f"{statistics.median(a / b for a, b in zip(one, two, strict=True)):.2f} times as fast",
        )


if __name__ == "__main__":
    main()
