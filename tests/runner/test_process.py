"""How a run ends, and what is known of it. The harness here is a small one that needs no TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewriter.requirements import InterpreterError
from rewriter.runner import process, sandbox
from rewriter.runner.record import Run
from tests.cli import ROOT

from .test_sandbox import ISOLATIONS, alive, needs_proc

HARNESS = """
import json, os, runpy, sys
config = json.load(open(sys.argv[1]))
file = open(config["records"] + "/rank-%s.jsonl" % os.environ.get("RANK", "0"), "w")
def tell(**event):
    file.write(json.dumps(event) + "\\n")
    file.flush()
tell(event="start", python="3.11.7", rank=int(os.environ.get("RANK", "0")), size=1)
sys.argv = [config["script"], *config["args"]]
def end(reason):
    tell(event="end", reason=reason, time=1.0, memory=2, wait=config["seed"], rates=[], overhead=0.0)
try:
    runpy.run_path(config["script"], run_name="__main__")
except SystemExit as error:
    end("exit" if error.code else "finished")
    raise
except BaseException:
    end("crashed")
    raise
end(config.get("reason", "finished"))
"""


@pytest.fixture(autouse=True)
def harness(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.mktemp("harness") / "harness.py"
    path.write_text(HARNESS)
    monkeypatch.setattr(process, "HARNESS", path)
    return path


@pytest.fixture(params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> Iterator[sandbox.Isolation]:
    yield request.param


def run(folder: Path, code: str, *args: str, **options: Any) -> Run:
    script = folder / "train.py"
    script.write_text(code)
    options = {"cwd": folder, "config": {}, "timeout": 20, "isolation": "copy", **options}
    return process.run(sys.executable, script, args, **options)


def test_all_of_a_run(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    code = "import sys; print(sys.argv[1:], open('data').read(), file=sys.stderr); open('out', 'w')"
    (tmp_path / "data").write_text("42")
    done = run(tmp_path, code, "--fast", str(tmp_path / "x"), isolation=isolation, seed=7)
    assert (done.ending, done.exit_code, done.seed) == ("finished", 0, 7)
    assert [(r.rank, r.reason, r.memory, r.wait) for r in done.records] == [(0, "finished", 2, 7)]
    place = str(tmp_path / "x") if isolation == "namespace" else done.stderr.split("'")[3]
    assert done.stderr == f"['--fast', '{place}'] 42\n"
    assert 0 < done.seconds < 20
    assert done.isolation.startswith(("overlay", "copy of"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "train.py"]


def test_the_rewritten_script(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    files = {tmp_path / "train.py": b"print('fast')"}
    done = run(tmp_path, "print('slow')", isolation=isolation, overlay_files=files)
    assert (done.ending, done.stderr) == ("finished", "fast\n")  # standard output, where standard error is empty
    assert (tmp_path / "train.py").read_text() == "print('slow')"


@pytest.mark.parametrize(
    ("code", "ending", "exit_code"),
    [
        ("", "finished", 0),
        ("import sys; sys.exit(0)", "finished", 0),
        ("import sys; sys.exit(3)", "exit", 3),
        ("import sys; sys.exit('no data')", "exit", 1),
        ("import os; os._exit(0)", "exit", 0),
        ("1 / 0", "crashed", 1),
        ("x = (", "crashed", 1),
        ("import os; os.kill(os.getpid(), 9)", "killed", -9),
        ("import os; os.abort()", "killed", -6),
        ("import os; os.kill(os.getpid(), 2)", "interrupted", -2),
        ("raise MemoryError", "out-of-memory", 1),
        ("class ResourceExhaustedError(Exception): pass\nraise ResourceExhaustedError('x')", "out-of-memory", 1),
        ("try:\n    raise MemoryError\nexcept MemoryError:\n    pass\n1 / 0", "crashed", 1),
        (
            "import traceback\ntry:\n    raise MemoryError\nexcept MemoryError:\n    traceback.print_exc()\n1 / 0",
            "crashed",
            1,
        ),
    ],
)
def test_endings(tmp_path: Path, code: str, ending: str, exit_code: int) -> None:
    done = run(tmp_path, code)
    assert (done.ending, done.exit_code) == (ending, exit_code), done


def test_signals_come_out_of_the_namespace(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    done = run(tmp_path, "import os; os.kill(os.getpid(), 11)", isolation=isolation)
    assert (done.ending, done.exit_code) == ("killed", -11)


def test_budget(tmp_path: Path) -> None:
    assert run(tmp_path, "", config={"reason": "budget"}).ending == "budget"


def test_memory_that_is_not_there(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); x = bytearray(1 << 30)"
    done = run(tmp_path, code, isolation=isolation)
    assert (done.ending, done.exit_code) == ("out-of-memory", 1)
    assert done.stderr.rstrip().endswith("MemoryError")


def test_killed_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says only SIGKILL; its counter tells why."""
    counter = tmp_path / "vmstat"
    counter.write_text("pgfault 3\noom_kill 4\n")
    monkeypatch.setattr(process, "_oom_counters", lambda: iter([(tmp_path / "no", "oom_kill"), (counter, "oom_kill")]))
    code = "import os; open(os.sep.join({}), 'w').write('oom_kill 5'); {}"
    parts = ["", *counter.parts[1:]]
    (tmp_path / "script").mkdir()
    assert run(tmp_path / "script", code.format(parts, "os.kill(os.getpid(), 9)")).ending == "out-of-memory"
    counter.write_text("oom_kill 4\n")
    text = "print('rank 1 exited on signal 9', file=__import__('sys').stderr); os._exit(1)"
    assert run(tmp_path / "script", code.format(parts, text)).ending == "out-of-memory"
    counter.write_text("oom_kill 4\n")
    assert run(tmp_path / "script", code.format(parts, "1 / 0")).ending == "crashed"
    assert run(tmp_path / "script", "import os; os.kill(os.getpid(), 9)").ending == "killed"


def test_counters_of_this_machine() -> None:
    if sys.platform == "linux":
        assert any(path.exists() for path, _ in process._oom_counters())
    assert process._killed_for_memory() >= 0


def test_timeout(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    code = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", {mark!r}])
print("waiting", file=sys.stderr, flush=True)
time.sleep(60)
"""
    begin = time.monotonic()
    done = run(tmp_path, code, isolation=isolation, timeout=1.5)
    assert (done.ending, done.exit_code, done.stderr) == ("timeout", -9, "waiting\n")
    assert time.monotonic() - begin < 10
    assert [record.reason for record in done.records] == [""]
    if Path("/proc/self").exists():
        assert alive(mark) == []


def test_the_tail_of_much_output(tmp_path: Path) -> None:
    code = (
        "import sys\nfor i in range(100000): print('line', i, file=sys.stderr)\nsys.stderr.buffer.write(b'\\xff end')"
    )
    done = run(tmp_path, code)
    assert len(done.stderr) <= process.TAIL
    assert done.stderr.startswith("line ") and done.stderr.endswith("line 99999\n\ufffd end")


def test_launcher(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    """What starts several ranks, as `horovodrun` does."""
    code = 'for i in 0 1; do RANK=$i "$@" & done; wait'
    done = run(tmp_path, "", isolation=isolation, launcher=["/bin/sh", "-c", code, "launcher"])
    assert (done.ending, [record.rank for record in done.records]) == ("finished", [0, 1])
    code = 'RANK=0 "$@"; RANK=1 "$@" fail'
    failing = "import os\nif os.environ['RANK'] == '1': os._exit(0)"
    assert run(tmp_path, failing, launcher=["/bin/sh", "-c", code, "launcher"]).ending == "exit"


@needs_proc
def test_ctrl_c(tmp_path: Path, harness: Path, isolation: sandbox.Isolation) -> None:
    """Also one that goes to the whole terminal: the run ends, tfboost hears of it, nothing stays."""
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    (tmp_path / "train.py").write_text(
        f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}])"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = f"""
import sys
from pathlib import Path
from rewriter.runner import process
process.HARNESS = Path({str(harness)!r})
here = Path({str(tmp_path)!r})
try:
    process.run(sys.executable, here / "train.py", cwd=here, config={{}}, timeout=60, isolation={isolation!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as parent:
        end = time.monotonic() + 20
        while not alive(mark) and time.monotonic() < end:
            time.sleep(0.05)
        assert alive(mark)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.communicate(timeout=20)[0] == b"interrupted\n"
    assert alive(mark) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("open('data/train.csv')", "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'"),
        (
            "import urllib.request; urllib.request.urlopen('http://nowhere.invalid/x')",
            "urllib.error.URLError: <urlopen error ",
        ),
        ("import sys; sys.exit('train.csv: No such file or directory')", "train.csv: No such file or directory"),
        ("import sys; print('Could not load dynamic library libcudart.so.11: No such file or directory'); 1 / 0", ""),
        ("try:\n    open('x')\nexcept OSError as e:\n    print(e, file=__import__('sys').stderr)", ""),
        ("import nothing_of_this_name", ""),
    ],
)
def test_missing_data(tmp_path: Path, code: str, line: str) -> None:
    found = process.missing_data(run(tmp_path, code))
    assert found.startswith(line) and bool(found) == bool(line)


class TestInterpreter:
    @pytest.fixture
    def make(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Makes environments, and leaves none on PATH."""
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no/python"))
        base = os.path.realpath(f"/proc/{os.getpid()}/exe") if Path("/proc/self/exe").exists() else sys._base_executable  # type: ignore[attr-defined]

        def environment(name: str, *packages: str) -> Path:
            python = tmp_path / name / "bin/python"
            python.parent.mkdir(parents=True)
            python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / name / "packages"} exec {base} "$@"\n')
            python.chmod(0o755)
            for package in packages:
                (tmp_path / name / "packages" / f"{package}.dist-info").mkdir(parents=True)
            return python

        return environment

    def test_the_active_environment(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        on_path, venv = make("path", "tensorflow-2.15.0"), make("venv", "tensorflow_cpu-2.16.1")
        monkeypatch.setenv("PATH", str(on_path.parent))
        assert process.interpreter() == str(on_path)
        monkeypatch.setenv("VIRTUAL_ENV", str(venv.parent.parent))
        assert process.interpreter() == str(venv)

    def test_one_that_has_tensorflow(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        on_path, venv = make("path", "tensorflow-2.15.0"), make("venv", "numpy-2.0")
        monkeypatch.setenv("PATH", str(on_path.parent))
        monkeypatch.setenv("VIRTUAL_ENV", str(venv.parent.parent))
        assert process.interpreter() == str(on_path)

    def test_the_given_one(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        good, bad = make("good", "tensorflow-2.15.0"), make("bad")
        assert process.interpreter(str(good)) == str(good)
        monkeypatch.setenv("PATH", str(good.parent))
        assert process.interpreter("python") == str(good)
        monkeypatch.chdir(good.parent)
        assert process.interpreter("./python") == str(good)
        with pytest.raises(InterpreterError, match=r"has no TensorFlow: .* --python"):
            process.interpreter(str(bad))
        with pytest.raises(InterpreterError, match="cannot be run"):
            process.interpreter(str(good) + "x")

    def test_none(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        bad = make("bad")
        monkeypatch.setenv("CONDA_PREFIX", str(bad.parent.parent))
        with pytest.raises(InterpreterError, match=f"no Python with TensorFlow.*{bad} have none.*--python PATH"):
            process.interpreter()
