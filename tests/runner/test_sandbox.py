"""What a run writes stays in the sandbox, and nothing that it starts outlives it. No TensorFlow here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewriter.runner import sandbox
from rewriter.runner.sandbox import Outcome, Sandbox, SandboxError
from tests.cli import ROOT

needs_namespaces = pytest.mark.skipif(
    bool(sandbox.available()), reason=f"namespaces: {sandbox.available()}"
)  # every CI machine has them: see `test_why_not`
ISOLATIONS = [pytest.param("namespace", marks=needs_namespaces), "copy"]


@pytest.fixture(params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> Iterator[sandbox.Isolation]:
    yield request.param


@pytest.fixture
def scratches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scratch folders are made."""
    folder = tmp_path_factory.mktemp("scratches")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def project(folder: Path) -> Path:
    """A folder with a script's surroundings, of which `snapshot` sees every change."""
    folder = folder / "my project"
    (folder / "data").mkdir(parents=True)
    (folder / "data/train.csv").write_text("1,2,3\n")
    (folder / "model.h5").write_text("old weights")
    (folder / "logs").mkdir()
    (folder / "logs/events").write_text("old")
    (folder / "runs/1").mkdir(parents=True)
    (folder / "latest").symlink_to("model.h5")
    (folder / "secret").write_text("x")
    (folder / "secret").chmod(0o640)
    return folder


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.readlink() if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        digest = hashlib.sha256(os.fsencode(content)).hexdigest()
        found[str(path.relative_to(folder))] = (info.st_mode, info.st_uid, info.st_mtime_ns, digest)
    return found


def run(
    folder: Path,
    code: str,
    isolation: sandbox.Isolation,
    files: dict[Path, bytes] | None = None,
    timeout: float | None = 20,
    cwd: Path | None = None,
) -> tuple[Outcome, str, str]:
    """Runs code as the folder's `train.py`; the outcome, what it printed, and the isolation."""
    script = folder / "train.py"
    script.write_text(code)
    with Sandbox([folder, cwd or folder], files or {}, isolation) as box:
        out = box.scratch / "out"
        with out.open("wb") as stdout:
            command = [sys.executable, box.inside(str(script))]
            outcome = box.run(command, cwd or folder, os.environ, timeout, stdout, stdout)
        return outcome, out.read_text(), box.isolation


WRITES = """
import os, shutil, sys
here = {folder!r}
assert open("data/train.csv").read() == open(os.path.join(here, "data", "train.csv")).read() == "1,2,3\\n"
assert open("latest").read() == "old weights"
open("model.h5", "w").write("new weights")                          # relative
open(here + "/history.json", "w").write("[]")                       # absolute
open("logs/events", "a").write("more")
open("latest", "a").write("through a link")
os.makedirs(os.path.join(here, "checkpoints/1"))
open("checkpoints/1/ckpt", "w").write("x" * 100000)
os.rename("data/train.csv", "data/old.csv")
os.replace(here + "/checkpoints/1/ckpt", here + "/data/train.csv")
os.chmod("secret", 0o600)
os.rename("runs", "runs.old")
os.mkdir("runs")
assert os.listdir("runs") == [] and os.listdir("runs.old") == ["1"]
os.utime("logs", (0, 0))
os.symlink(here + "/model.h5", "newest")
os.remove("latest")
shutil.rmtree("logs")
os.mkdir("logs")
assert os.listdir("logs") == []
assert open("newest").read().startswith("new weights")
assert sorted(os.listdir(".")) == sorted(os.listdir(here)), os.listdir(".")
print("done")
"""


def test_nothing_changes(tmp_path: Path, scratches: Path, isolation: sandbox.Isolation) -> None:
    folder = project(tmp_path)
    code = WRITES.format(folder=str(folder))
    (folder / "train.py").write_text(code)
    before = snapshot(folder)
    outcome, out, told = run(folder, code, isolation)
    assert (outcome, out) == (Outcome(0), "done\n")
    (before.pop("train.py"), (after := snapshot(folder)).pop("train.py"))  # written by `run` once more
    assert after == before
    assert list(scratches.iterdir()) == []
    assert told.startswith("overlay" if isolation == "namespace" else f"copy of {folder}")


def test_files_laid_over(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    folder = project(tmp_path)
    (folder / "helper.py").write_text("VALUE = 1\n")
    os.utime(folder / "helper.py", (1, 1))
    code = "import helper, more; print(helper.VALUE, more.VALUE, open('train.py').read()[-2:])"
    files = {
        folder / "helper.py": b"VALUE = 2\n",
        folder / "more.py": f"VALUE = open({str(folder)!r} + '/model.h5').read()\n".encode(),
        folder / "train.py": code.encode() + b"#new",
    }
    outcome, out, _ = run(folder, code, isolation, files)
    assert (outcome, out) == (Outcome(0), "2 old weights ew\n")
    assert (folder / "helper.py").read_text() == "VALUE = 1\n"
    assert not (folder / "more.py").exists()


@needs_namespaces
def test_everything_else_is_isolated_too(tmp_path: Path) -> None:
    """Also outside of the script's folder, and also what processes share."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    name = f"tfboost-{os.getpid()}"
    code = f"""
import os
for path in ({str(other / "log")!r}, "/tmp/{name}", "/var/tmp/{name}", "/dev/shm/{name}", "/etc/{name}", "/{name}"):
    try:
        open(path, "w").write("x")
    except OSError:
        assert path.startswith(("/etc", "/" + {name!r}))
print(os.getpid() < 10, os.path.exists("/proc/self/exe"), os.getuid())
"""
    outcome, out, _ = run(project(tmp_path), code, "namespace")
    assert (outcome, out) == (Outcome(0), f"True True {os.getuid()}\n")
    assert list(other.iterdir()) == []
    assert not any(Path(place, name).exists() for place in ("/tmp", "/var/tmp", "/dev/shm", "/etc", "/"))


def test_copy_says_what_changed_all_the_same(tmp_path: Path) -> None:
    folder = project(tmp_path)
    code = "import os; path = os.sep.join({}); open(path, 'a').write('!'); print(open('model.h5').read())"
    outcome, out, told = run(folder, code.format(["", *(folder / "model.h5").parts[1:]]), "copy")
    assert (outcome, out) == (Outcome(0), "old weights\n")
    assert told.endswith(f"; changed all the same: {folder / 'model.h5'}")


def test_copy_links_what_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LIMIT", 1000)
    folder = project(tmp_path)
    (folder / "data/huge").write_bytes(b"x" * 1001)
    code = "import os; print(os.path.islink('data/huge'), len(open('data/huge').read()), os.path.islink('model.h5'))"
    outcome, out, told = run(folder, code, "copy")
    assert (outcome, out) == (Outcome(0), "True 1001 False\n")
    assert f"with links to what is too large: {folder / 'data/huge'} (as asked)" in told


def test_copy_leaves_out_and_follows(tmp_path: Path) -> None:
    folder = project(tmp_path)
    for name in (".git/objects/x", "venv/pyvenv.cfg", "__pycache__/a.pyc"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/weights").write_text("w")
    (folder / "pretrained").symlink_to(tmp_path / "elsewhere")
    (folder / "loop").symlink_to(folder)
    (folder / "nowhere").symlink_to("missing")
    (folder / "config.yaml").write_text(f"out: {folder}/out\nother: {folder}2\n")
    code = """
import os
print(sorted(os.listdir(".")))
open("pretrained/weights", "w").write("changed")
open("loop/model.h5", "w").write("changed")
assert os.path.exists("train.py") and not os.path.exists("nowhere")
lines = open("config.yaml").read().split()
assert lines[1] + lines[2] == os.getcwd() + "/out" or os.getcwd() in " ".join(lines), (lines, os.getcwd())
"""
    outcome, out, told = run(folder, code, "copy")
    assert outcome == Outcome(0), out
    assert not any(name in out for name in (".git", "venv", "__pycache__"))
    assert (tmp_path / "elsewhere/weights").read_text() == "w"
    assert (folder / "model.h5").read_text() == "old weights"
    assert "changed" not in told


def test_working_folder_elsewhere(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    folder, cwd = project(tmp_path / "a"), tmp_path / "b"
    cwd.mkdir()
    (cwd / "input").write_text("7")
    code = f"open('out', 'w').write(open('input').read()); print(open({str(cwd / 'out')!r}).read())"
    outcome, out, _ = run(folder, code, isolation, cwd=cwd)
    assert (outcome, out) == (Outcome(0), "7\n")
    assert [path.name for path in cwd.iterdir()] == ["input"]


def test_two_at_once(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    folder = project(tmp_path)
    code = """
import os, time
open("mine", "x").write(str(os.urandom(8)))
mine = open("mine").read()
time.sleep(0.5)
assert open("mine").read() == mine
"""
    found: list[Outcome] = []
    threads = [threading.Thread(target=lambda: found.append(run(folder, code, isolation)[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Outcome(0)] * 2
    assert not (folder / "mine").exists()


#: Starts a daemon that nobody waits for, and that has left its session.
DAEMON = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        for name in ("stdout", "stderr"):
            os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", {mark!r}])
    os._exit(0)
os.wait()
time.sleep(0.3)
print("started", flush=True)
"""


def alive(mark: str) -> list[int]:
    """Processes that have this argument."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")


@needs_proc
@pytest.mark.parametrize("then", ["", "time.sleep(60)", "os.kill(os.getpid(), 9)"])
def test_no_daemon_survives(tmp_path: Path, isolation: sandbox.Isolation, then: str) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    outcome, out, _ = run(project(tmp_path), DAEMON.format(mark=mark) + then, isolation, timeout=2)
    assert out == "started\n"
    assert outcome == (Outcome(-9, True) if "sleep" in then else Outcome(-9 if then else 0))
    assert alive(mark) == []


PARENT = """
import os, sys
from pathlib import Path
from rewriter.runner.sandbox import Sandbox
folder, isolation = Path(sys.argv[1]), sys.argv[2]
with Sandbox([folder], {}, isolation) as box:
    box.run([sys.executable, box.inside(str(folder / "train.py"))], folder, os.environ, None, sys.stdout, sys.stderr)
"""


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_all_goes_with_tfboost(
    tmp_path: Path, scratches: Path, isolation: sandbox.Isolation, number: signal.Signals
) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    folder = project(tmp_path)
    (folder / "train.py").write_text(DAEMON.format(mark=mark) + "time.sleep(60)")
    command = [sys.executable, "-c", PARENT, str(folder), isolation]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratches)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"started\n"
        assert alive(mark)
        parent.send_signal(number)
        parent.wait(10)
        assert parent.returncode == -number
        end = time.monotonic() + 10
        while (alive(mark) or list(scratches.iterdir())) and time.monotonic() < end:
            time.sleep(0.05)
    assert alive(mark) == []
    assert list(scratches.iterdir()) == []


def test_keep(tmp_path: Path, scratches: Path, isolation: sandbox.Isolation) -> None:
    folder = project(tmp_path)
    with Sandbox([folder], {}, isolation, keep=True) as box:
        command = [sys.executable, "-c", "open('weights', 'w').write('kept')"]
        assert box.run(command, folder, os.environ) == Outcome(0)
    place = Path(box.isolation.rpartition("kept in ")[2])
    assert place.parent == scratches
    assert [path.read_text() for path in place.rglob("weights")] == ["kept"]
    assert not (folder / "weights").exists()


def test_what_cannot_be_run(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    with (
        Sandbox([tmp_path], {}, isolation) as box,
        pytest.raises(SandboxError, match="`/no/python` cannot be run: No such file"),
    ):
        box.run(["/no/python", "x"], tmp_path, os.environ)


def test_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without namespaces a copy is made, and the reason told; who insists gets an error."""
    monkeypatch.setattr(sandbox, "available", lambda *folders: "user namespaces are not permitted here")
    _, _, told = run(project(tmp_path), "", "auto")
    assert told == f"copy of {tmp_path / 'my project'} (user namespaces are not permitted here)"
    with pytest.raises(SandboxError, match="user namespaces are not permitted here"):
        Sandbox([tmp_path], {}, "namespace")
    if os.environ.get("CI") == "true" and sys.platform == "linux":
        monkeypatch.undo()
        assert sandbox.available() == ""


@needs_namespaces
def test_namespaces_that_are_forbidden(tmp_path: Path) -> None:
    """The reason comes from the kernel: here it lets nobody make another namespace in a changed root."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from rewriter.runner import sandbox
print(sandbox.available())
"""
    outcome, out, _ = run(project(tmp_path), code, "namespace")
    assert (outcome, out) == (Outcome(0), "user namespaces are not permitted here: unshare: Operation not permitted\n")


#: Run in a namespace where more is mounted, as containers have it.
MOUNTED = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
folder = sys.argv[1].encode()
assert not libc.unshare(0x20000), ctypes.get_errno()
assert not libc.mount(None, b"/", None, ctypes.c_ulong(16384 | 1 << 18), None)
assert not libc.mount(b"tmpfs", folder + b"/data", b"tmpfs", ctypes.c_ulong(0), None)
open(folder + b"/data/train.csv", "w").write("1,2,3\\n")
assert not libc.mount(folder + b"/secret", b"/etc/hostname", None, ctypes.c_ulong(4096), None)
sys.exit(subprocess.call([sys.executable, "-c", sys.argv[2], *sys.argv[1:2], "namespace"]))
"""


@needs_namespaces
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts")
def test_mount_points_in_the_folder(tmp_path: Path) -> None:
    folder = project(tmp_path)
    code = WRITES.format(folder=str(folder)).replace("os.replace(", "shutil.move(")  # between file systems
    (folder / "train.py").write_text(code)
    before = snapshot(folder)
    command = [sys.executable, "-c", MOUNTED, str(folder), PARENT]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and (done.stdout, done.returncode) == ("done\n", 0), done
    assert snapshot(folder) == before


@needs_namespaces
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="becomes another user")
def test_ordinary_users(tmp_path: Path) -> None:
    """Root can do it anyhow; a user without any privilege must too."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if not python or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]).returncode:
        pytest.skip("no Python 3.10 that everybody can run")
    import tempfile

    place = Path(tempfile.mkdtemp(dir="/var/tmp"))  # pytest's folders are root's alone
    try:
        folder = project(place)
        shutil.copy(sandbox.__file__, place / "sandbox.py")
        (folder / "train.py").write_text(WRITES.format(folder=str(folder)))
        for path in (place, *place.rglob("*")):
            os.lchown(path, 12345, 12345)
        os.chown(folder / "model.h5", 12345, 54321)  # somebody else's group
        place.chmod(stat.S_IMODE(place.stat().st_mode) | 0o755)
        before = snapshot(folder)
        code = PARENT.replace("rewriter.runner.sandbox", "sandbox")
        done = subprocess.run(
            [python, "-c", code, str(folder), "namespace"],
            user=12345,
            group=12345,
            extra_groups=[],
            cwd=place,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.returncode) == ("done\n", 0), done
        assert snapshot(folder) == before
    finally:
        shutil.rmtree(place)


def test_result_is_json_that_is_whole(tmp_path: Path, isolation: sandbox.Isolation) -> None:
    """A launcher that is killed leaves no half of an outcome, and the command ends with it."""
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    folder = project(tmp_path)
    (folder / "train.py").write_text(DAEMON.format(mark=mark) + "time.sleep(60)")
    with Sandbox([folder], {}, isolation) as box:
        spec = box.scratch / "spec.json"

        def kill() -> None:
            end = time.monotonic() + 10
            while not alive(mark) and time.monotonic() < end:
                time.sleep(0.05)
            assert json.loads(spec.read_text())["scratch"] == str(box.scratch)
            for pid in alive(str(spec)):
                os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        outcome = box.run([sys.executable, box.inside(str(folder / "train.py"))], folder, os.environ, 20)
        killer.join()
    assert outcome == Outcome(-9)
    assert alive(mark) == []


#: Run where the scratch folder lies on an overlay, as in a container.
CONTAINED = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
scratch = os.environ["TMPDIR"].encode()
assert not libc.unshare(0x20000), ctypes.get_errno()
assert not libc.mount(None, b"/", None, ctypes.c_ulong(16384 | 1 << 18), None)
for name in (b"/lower", b"/upper", b"/work", b"/merged"):
    os.mkdir(scratch + name)
options = b"lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work" % (scratch, scratch, scratch)
assert not libc.mount(b"overlay", scratch + b"/merged", b"overlay", ctypes.c_ulong(0), options), ctypes.get_errno()
os.environ["TMPDIR"] += "/merged"
sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1], *sys.argv[2:]]))
"""


@needs_namespaces
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts")
def test_scratch_folder_in_a_container(tmp_path: Path, scratches: Path) -> None:
    folder = project(tmp_path)
    (folder / "train.py").write_text(WRITES.format(folder=str(folder)))
    before = snapshot(folder)
    code = PARENT.replace("{}, isolation)", "{}, isolation, keep=True)") + "print(box.isolation, flush=True)"
    command = [sys.executable, "-c", CONTAINED, code, str(folder), "namespace"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0] == "done", done
    assert "; what is written is held in memory" in lines[1]
    assert [path.read_text() for path in (scratches / "upper").rglob("history.json")] == ["[]"]
    assert snapshot(folder) == before
