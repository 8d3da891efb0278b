"""Starts one run of a script, ends it in time, and says how it ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..requirements import InterpreterError, of_interpreter
from .gpu import Watch
from .record import Ending, Record, Run
from .sandbox import Isolation, Outcome, Sandbox

HARNESS = Path(__file__).with_name("harness.py")

#: Bytes of the end of standard error that are kept.
TAIL = 8192


def run(
    python: str,
    script: Path,
    args: Sequence[str] = (),
    *,
    cwd: Path,
    config: Mapping[str, Any],
    timeout: float | None,
    isolation: Isolation = "auto",
    overlay_files: Mapping[Path, bytes] | None = None,
    keep: bool = False,
    seed: int = 0,
    launcher: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run a script in a sandbox.

    config: for the harness; what this function knows itself is added.
    overlay_files: what the script sees in place of these files; outside of the sandbox nothing changes.
    launcher: starts the command that follows it, once or on several ranks, such as `horovodrun -np 2 --gloo`.

    Raises `sandbox.SandboxError` where the asked isolation cannot be had or the command cannot be started.
    """
    script = script.absolute()
    with Sandbox([script.parent, cwd], overlay_files or {}, isolation, keep) as box:
        records = box.shared / "records"
        temporary = box.shared / "tmp"  # what the harness leaves behind when it ends a run must go, too
        for folder in (records, temporary):
            folder.mkdir()
        told = {
            **config,
            "script": box.inside(str(script)),
            "args": [box.inside(argument) for argument in args],
            "path": [box.inside(str(folder)) for folder in config.get("path", ())],
            "cwd": box.inside(str(cwd)),
            "records": str(records),
            "seed": seed,
        }
        settings = box.shared / "config.json"
        settings.write_text(json.dumps(told))
        killed_before = _killed_for_memory()
        begin = time.monotonic()
        with (box.scratch / "stdout").open("wb") as stdout, (box.scratch / "stderr").open("wb") as stderr:
            command = [*launcher, python, str(HARNESS), str(settings)]
            environment = {**(os.environ if env is None else env), "TMPDIR": str(temporary)}
            with Watch() as watch:
                outcome = box.run(command, cwd, environment, timeout, stdout, stderr)
        seconds = time.monotonic() - begin
        tail = _tail(box.scratch / "stderr") or _tail(box.scratch / "stdout")
        ranks = [Record.read(path) for path in records.glob("rank-*.jsonl")]
        ranks.sort(key=lambda record: record.rank)
        ending = _ending(outcome, [record.reason for record in ranks], tail, _killed_for_memory() > killed_before)
        return Run(ending, outcome.exit_code, seconds, ranks, tail, box.isolation, seed, watch.samples)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        text = file.read().decode(errors="replace")
    return text if size <= TAIL else text.partition("\n")[2] or text


# -- how it ended --------------------------------------------------------------------------------------------

_TRACEBACK = "Traceback (most recent call last)"
_OUT_OF_MEMORY = re.compile(
    r"^(\w+\.)*(MemoryError|ResourceExhaustedError)\b|OOM when allocating|std::bad_alloc|CUDA_ERROR_OUT_OF_MEMORY"
    r"|Cannot allocate memory|RESOURCE_EXHAUSTED: ",
    re.MULTILINE,
)
#: What programs that start others say of one that the kernel has killed.
_KILLED = re.compile(r"\bSIGKILL\b|\bsignal:? 9\b|\bexit (?:code|status):? (?:137|-9)\b|^Killed\b", re.MULTILINE)


def _ending(outcome: Outcome, reasons: Sequence[str], stderr: str, killed_for_memory: bool) -> Ending:
    code = outcome.exit_code
    last = stderr[max(stderr.rfind(_TRACEBACK), 0) :]
    if outcome.timed_out:
        return "timeout"
    if code == 0:
        if set(reasons) <= {"finished", "budget"} and reasons:
            return "budget" if "budget" in reasons else "finished"
        return "exit"  # `os._exit`, or on some ranks only
    if killed_for_memory and (code in (-signal.SIGKILL, 128 + signal.SIGKILL) or _KILLED.search(stderr)):
        return "out-of-memory"
    if _OUT_OF_MEMORY.search(last):
        return "out-of-memory"
    if code == -signal.SIGINT or "interrupted" in reasons:
        return "interrupted"
    if code < 0:
        return "killed"
    for told in ("crashed", "exit"):
        if told in reasons:
            return told
    return "crashed" if _TRACEBACK in stderr else "exit"


def _killed_for_memory() -> int:
    """Processes that the kernel has killed for memory: in this container where that is told, else on the machine."""
    for path, name in _oom_counters():
        try:
            text = path.read_text()
        except OSError:
            continue
        if match := re.search(rf"^{name} (\d+)$", text, re.MULTILINE):
            return int(match[1])
    return 0


def _oom_counters() -> Iterator[tuple[Path, str]]:
    root = Path("/sys/fs/cgroup")
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield root / path.lstrip("/") / "memory.events", "oom_kill"
        elif "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/") / "memory.oom_control", "oom_kill"
    yield Path("/proc/vmstat"), "oom_kill"


_MISSING = re.compile(
    r"FileNotFoundError|NotADirectoryError|No such file or directory|NotFoundError|URLError|HTTPError"
    r"|Name or service not known|Temporary failure in name resolution|nodename nor servname|getaddrinfo failed"
    r"|Network is unreachable|Connection refused|ConnectionError|Max retries exceeded|DatasetNotFoundError"
    r"|URL fetch failure|Failed to download|Could not find.*\b(?:data|file|folder|directory)"
)
#: Files that TensorFlow looks for on every machine, such as libraries of a GPU.
_NOT_DATA = re.compile(r"\.so\b|dso_loader|libcu|TensorRT|/proc/driver|dynamic library|ModuleNotFoundError")


def missing_data(run: Run) -> str:
    """The line of standard error which tells that the script misses a file or cannot download one; or nothing."""
    if run.ending not in ("crashed", "exit"):
        return ""
    for line in reversed(run.stderr.splitlines()):
        if _MISSING.search(line) and not _NOT_DATA.search(line):
            return line.strip()
    return ""


# -- the interpreter -----------------------------------------------------------------------------------------


def interpreter(python: str | None = None) -> str:
    """The path of the Python that has TensorFlow: the given one, or that of the active environment.

    TensorFlow is not imported. Raises `InterpreterError`, which tells what to do.
    """
    if python is not None:
        # a link is not followed: that it stands in an environment is what makes the environment
        path = str(Path(shutil.which(python) or python).absolute())
        if not of_interpreter(path).exact:
            raise InterpreterError(f"`{python}` has no TensorFlow: name the Python that runs the script with --python")
        return path
    tried = []
    for candidate in dict.fromkeys(_candidates()):
        try:
            if of_interpreter(candidate).exact:
                return candidate
        except InterpreterError:
            continue
        tried.append(candidate)
    looked = f" ({', '.join(tried)} have none)" if tried else ""
    raise InterpreterError(
        f"no Python with TensorFlow was found{looked}: activate its environment, or name it with --python PATH"
    )


def _candidates() -> Iterator[str]:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if home := os.environ.get(name):
            for place in ("bin/python", "Scripts/python.exe", "python.exe"):
                if (path := Path(home, place)).exists():
                    yield str(path)
    for command in ("python", "python3"):
        if found := shutil.which(command):
            yield str(Path(found).absolute())
    yield sys.executable
