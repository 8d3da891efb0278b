"""Keeps everything that a run writes away from the user's files, and ends everything that it starts.

    with Sandbox([folder], {script: rewritten}) as box:
        outcome = box.run([python, harness, config], cwd, env, timeout, stdout, stderr)

"namespace" (Linux): the command sees the whole file system through overlays: it finds every file at its place, may
change any of them, and all that it writes lands in a scratch folder. Nothing of this needs privileges, only a kernel
that lets ordinary users make user namespaces. An overlay cannot lie over a folder with mount points below, since such
mounts may hide something from the user; these folders (`/` is always one) are made anew, entry by entry.

"copy": the command runs in a copy of the folders. What it writes to other places by absolute paths is written there.

In both a launcher process (this file, run as a script) stands between tfboost and the command. Its standard input is
a lifeline: when tfboost is gone, however that came, the launcher ends all processes and removes the scratch folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, NoReturn

Isolation = Literal["auto", "namespace", "copy"]

#: Every process of a run has its token in this environment variable.
MARK = "TFBOOST_RUN"
#: Seconds for a set-up without a command, and for an end. Longer means that something hangs.
PATIENCE = 20


class SandboxError(Exception):
    """The isolation that was asked for cannot be had here."""


@dataclass(frozen=True)
class Outcome:
    """How the command ended. exit_code: minus the signal's number where one ended it."""

    exit_code: int
    timed_out: bool = False


class Sandbox:
    """A place where one command runs.

    folders: the files of these are seen (the script's folder and the working folder).
    files: content that the command sees instead of what these files hold, or that is not there at all.
    keep: the scratch folder stays; `isolation` tells where.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        files: Mapping[Path, bytes],
        isolation: Isolation = "auto",
        keep: bool = False,
    ) -> None:
        folders = [Path(os.path.abspath(folder)) for folder in folders]
        self.folders = tuple(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))
        self.files = files
        self.keep = keep
        reason = "as asked" if isolation == "copy" else available(*self.folders)
        if reason and isolation == "namespace":
            raise SandboxError(f"no isolation by namespaces: {reason}")
        self.scratch = _scratch()
        #: This folder is the same inside and outside.
        self.shared = self.scratch / "shared"
        self.shared.mkdir()
        self._copy: _Copy | None = None
        try:
            if reason:
                self._copy = _Copy(folders, self.scratch / "copy", files)
        except BaseException:
            _remove(self.scratch)
            raise
        self._notes: list[str] = []
        self._kind = f"{self._copy.description} ({reason})" if self._copy else "overlay of the whole file system"

    @property
    def isolation(self) -> str:
        """The isolation in force, for the reader of a report."""
        return "; ".join([self._kind, *self._notes])

    def inside(self, text: str) -> str:
        """A path, or a text with paths in it, as the command has to see it."""
        return self._copy.moved(text) if self._copy else text

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.keep and not kind:
            _remove(self.scratch / "work")
        else:
            _remove(self.scratch)

    def run(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        timeout: float | None = None,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | int = subprocess.DEVNULL,
    ) -> Outcome:
        """Runs the command to its end, or to the end of its time. Afterwards no process of it is left."""
        if self._copy:
            env = {name: self._copy.moved_variable(value) for name, value in env.items()}
        launcher = _Launcher(
            self.scratch,
            stdout,
            stderr,
            command=list(command),
            cwd=self._copy.cwd(cwd) if self._copy else str(cwd),
            env={**env, MARK: self.scratch.name},
            needed=None if self._copy else [str(folder) for folder in self.folders],
            files={} if self._copy else self._stored(),
            keep=self.keep,
        )
        timed_out = launcher.wait(timeout)
        told = launcher.told()
        if self._copy and (changed := self._copy.changed()):
            self._notes.append(f"changed all the same: {', '.join(changed)}")
        if self.keep:
            self._notes.append(f"kept in {self.scratch}")
        if "error" in told:
            raise SandboxError(told["error"])
        if told.get("memory"):
            self._notes.append("what is written is held in memory")
        return Outcome(told.get("exit", -signal.SIGKILL), timed_out)

    def _stored(self) -> dict[str, str]:
        stored = {}
        for number, (path, content) in enumerate(self.files.items()):
            place = self.scratch / "files" / str(number)
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
            with contextlib.suppress(OSError):
                place.chmod(stat.S_IMODE(path.stat().st_mode))
            stored[os.path.realpath(path)] = str(place)
        return stored


@functools.cache
def available(*folders: Path) -> str:
    """Why namespaces cannot isolate a command that uses these folders; empty when they can. Really tries it."""
    if sys.platform != "linux":
        return "namespaces are a feature of Linux"
    scratch = _scratch()
    try:
        (scratch / "shared").mkdir()
        launcher = _Launcher(
            scratch,
            command=["/bin/sh", "-c", "exit 42"],
            cwd="/",
            env={},
            needed=[str(folder) for folder in folders],
            files={},
            keep=False,
        )
        if launcher.wait(PATIENCE):
            return "a mounted file system does not answer"
        told = launcher.told()
        return "" if told.get("exit") == 42 else str(told.get("error", f"a trial ended with {told}"))
    finally:
        _remove(scratch)


class _Launcher:
    """A launcher process, from outside."""

    def __init__(
        self,
        scratch: Path,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | int = subprocess.DEVNULL,
        **spec: Any,
    ) -> None:
        self.scratch = scratch
        path = scratch / "spec.json"
        path.write_text(json.dumps({"scratch": str(scratch), **spec}))
        self.process = subprocess.Popen(
            [sys.executable, __file__, path],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for tfboost alone
        )

    def wait(self, timeout: float | None) -> bool:
        """Until all has ended. True where that took too long: then it has been ended."""
        try:
            self.process.wait(timeout)
            return False
        except subprocess.TimeoutExpired:
            return True
        finally:
            self.stop()

    def stop(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.write(b"stop")
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            if not self.told():  # it was killed, and could not end the others
                end_processes(self.scratch.name)

    def told(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self.scratch / "result.json").read_text())
        except FileNotFoundError:
            return {}
        return told


def _scratch() -> Path:
    """A new folder, on a disk rather than in memory where there is the choice."""
    home = None if os.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK) else "/var/tmp"
    return Path(os.path.realpath(tempfile.mkdtemp(prefix="tfboost-", dir=home)))


def _remove(folder: Path) -> None:
    """Also what overlays leave, which nobody may enter, and what scripts have made read-only."""
    for root, folders, _ in os.walk(folder):
        for path in [root, *(os.path.join(root, name) for name in folders)]:
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


# -- processes -----------------------------------------------------------------------------------------------


def end_processes(token: str = "") -> None:
    """Kills all descendants of this process and, with a token, all processes of that run, wherever they are."""
    import psutil

    me = psutil.Process()
    for _ in range(100):  # who is killed may just have started another
        found = {process.pid: process for process in me.children(recursive=True)}
        for process in psutil.process_iter() if token else ():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != me.pid and process.environ().get(MARK) == token:
                    found[process.pid] = process
        alive = []
        for process in found.values():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
                    alive.append(process)
        if not alive:
            return
        psutil.wait_procs(alive, timeout=1)


# -- the copy ------------------------------------------------------------------------------------------------

#: Not copied: nothing that a script reads, and much of it.
_SKIPPED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
_VIRTUAL = ("pyvenv.cfg", "conda-meta")
#: Bytes that are copied at most, and files that are looked at in a folder elsewhere that a link leads to.
LIMIT = 2 << 30
FILES_LIMIT = 20_000
#: In these the folder's path is replaced by that of the copy.
_TEXT = frozenset(".py .json .yaml .yml .toml .cfg .ini .sh .gin".split())
_TEXT_LIMIT = 1 << 20

_FICLONE = 0x40049409


class _Copy:
    """Copies of folders, with their paths replaced wherever they are spelt out."""

    def __init__(self, folders: Iterable[Path], target: Path, files: Mapping[Path, bytes]) -> None:
        home, scratch = Path.home(), target.parent
        real = {folder: Path(os.path.realpath(folder)) for folder in folders}
        wide = [folder for folder in real.values() if folder == home or folder in home.parents]
        narrow = sorted(set(real.values()).difference(wide))
        roots = [f for f in narrow if not any(other in f.parents for other in narrow)]
        if not roots:
            raise SandboxError(f"{wide[0]} is too large to be copied: put the script into a folder of its own")
        self.roots = {root: target / str(number) / root.name for number, root in enumerate(roots)}
        self._scratch = scratch
        self._spelt = {str(root): str(place) for root, place in self.roots.items()}
        for folder, path in real.items():
            for root, place in self.roots.items():
                if path.is_relative_to(root):
                    self._spelt[str(folder)] = str(place / path.relative_to(root))
        spelt = "|".join(map(re.escape, sorted(self._spelt, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?:{spelt})(?![\w-]|\.\w)")
        self._linked: list[str] = []
        self._files: list[tuple[int, Path, Path]] = []
        for root, place in self.roots.items():
            self._seen = {root}
            self._collect(root, place, root)
        self._copy_files()
        for path, content in files.items():
            place = Path(self.moved(os.path.realpath(path)))
            if not place.is_relative_to(target):
                raise SandboxError(f"{path} lies outside of what is copied")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.write_bytes(self._moved_bytes(content))
        self.description = "copy of " + " and ".join(map(str, roots))
        if self._linked:
            self.description += f", with links to what is too large: {', '.join(self._linked[:5])}"
            self.description += f" and {len(self._linked) - 5} more" if len(self._linked) > 5 else ""
        self._before = self._snapshot()

    def moved(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._spelt[match[0]], text)

    def moved_variable(self, text: str) -> str:
        """Of the environment, where paths may also lead to what is not copied, such as virtual environments."""
        parts = [(part, self.moved(part)) for part in text.split(os.pathsep)]
        return os.pathsep.join(old if os.path.exists(old) and not os.path.exists(new) else new for old, new in parts)

    def _moved_bytes(self, content: bytes) -> bytes:
        return os.fsencode(self.moved(os.fsdecode(content)))

    def cwd(self, cwd: Path) -> str:
        moved = self.moved(os.path.realpath(cwd))
        return moved if moved != os.path.realpath(cwd) else str(next(iter(self.roots.values())))

    def _collect(self, source: Path, target: Path, root: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        with os.scandir(source) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path, place = Path(entry.path), target / entry.name
                try:
                    if entry.is_symlink():
                        self._collect_link(path, place, root)
                    elif entry.is_dir():
                        if not _skipped(path) and path != self._scratch:
                            self._collect(path, place, root)
                    elif entry.is_file():
                        self._files.append((entry.stat().st_size, path, place))
                except PermissionError:
                    continue  # the script cannot read it either

    def _collect_link(self, path: Path, place: Path, root: Path) -> None:
        real = Path(os.path.realpath(path))
        if real == root or root in real.parents:
            place.symlink_to(self.roots[root] / real.relative_to(root))
        elif real.is_file():
            self._files.append((real.stat().st_size, real, place))
        elif real.is_dir() and real not in self._seen and _small(real):
            self._seen.add(real)
            self._collect(real, place, root)
        else:
            place.symlink_to(real)
            if real.is_dir():
                self._linked.append(str(path))

    def _copy_files(self) -> None:
        total = 0
        for size, source, place in sorted(self._files, key=lambda file: file[0]):
            total += size
            if total > LIMIT:
                place.symlink_to(source)
                self._linked.append(str(source))
                continue
            with contextlib.suppress(PermissionError):
                _copy_file(source, place)
                if source.suffix in _TEXT and size < _TEXT_LIMIT:
                    content = source.read_bytes()
                    if (moved := self._moved_bytes(content)) != content:
                        place.chmod(0o600)
                        place.write_bytes(moved)
                        shutil.copystat(source, place)

    def _snapshot(self) -> dict[str, tuple[int, ...]]:
        """What cannot be changed without a trace: nobody sets the time of a file's last change."""
        paths = [source for _, source, _ in self._files]
        for root in self.roots:
            paths += (path for path in _walk(root) if self._scratch not in path.parents)
        found: dict[str, tuple[int, ...]] = {}
        for path in paths:
            with contextlib.suppress(OSError):
                told = path.lstat()
                found[str(path)] = (told.st_mode, told.st_size, told.st_mtime_ns, told.st_ctime_ns)
        return found

    def changed(self) -> list[str]:
        before, after = self._before, self._snapshot()
        return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _skipped(folder: Path) -> bool:
    return folder.name in _SKIPPED or any((folder / mark).exists() for mark in _VIRTUAL)


def _walk(folder: Path) -> Iterator[Path]:
    """All that is not a folder."""
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _skipped(Path(root, name))]
        yield from (Path(root, name) for name in names)


def _small(folder: Path) -> bool:
    total = 0
    for number, path in enumerate(_walk(folder)):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
        if number > FILES_LIMIT or total > LIMIT:
            return False
    return True


def _copy_file(source: Path, target: Path) -> None:
    """Shares the blocks of the file, where the file system can."""
    with contextlib.suppress(OSError, ImportError), source.open("rb") as old, target.open("wb") as new:
        import fcntl

        fcntl.ioctl(new, _FICLONE, old.fileno())
        shutil.copystat(source, target)
        return
    shutil.copy2(source, target)


# -- the launcher --------------------------------------------------------------------------------------------


def main(spec: dict[str, Any]) -> None:
    """Runs the command, writes down how it ended, and leaves no process behind."""
    told: dict[str, Any]
    try:
        told = _watch(spec) if spec["needed"] is None else _launch(spec)
    except OSError as error:
        told = {"error": str(error)}
    scratch = Path(spec["scratch"])
    part = scratch / "result.part"
    part.write_text(json.dumps(told))
    part.replace(scratch / "result.json")
    if _CUT == [b""]:  # nobody is there to read it
        _remove(scratch)


#: What came over the lifeline before it ended, once it has.
_CUT: list[bytes] = []


def _lifeline(end: Callable[[], None]) -> None:
    """Ends everything when standard input ends; without a word before that, tfboost is gone."""

    def wait() -> None:
        word = os.read(0, 1)
        _CUT.append(word)
        end()

    threading.Thread(target=wait, daemon=True).start()


def _watch(spec: dict[str, Any]) -> dict[str, Any]:
    """The command as an ordinary process."""
    if sys.platform == "linux":
        _adopt_orphans()
    token = "" if sys.platform == "linux" else spec["env"][MARK]
    try:
        process = subprocess.Popen(
            spec["command"], cwd=spec["cwd"], env=spec["env"], stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        return {"error": f"`{spec['command'][0]}` cannot be run: {error.strerror}"}
    _lifeline(functools.partial(end_processes, token))
    code = process.wait()
    end_processes(token)
    if _CUT:
        code = -signal.SIGKILL  # the other thread may have got to know the true one
    return {"exit": code}


def _launch(spec: dict[str, Any]) -> dict[str, Any]:
    """The command in namespaces of its own: three processes, each of which dies with the one before it.

    This one stays outside. The second makes the file system. The third is the first process of the process namespace:
    when it ends, however that comes, the kernel ends all others there.
    """
    _adopt_orphans()
    status_r, status_w = os.pipe()
    asks_r, asks_w = os.pipe()
    mapped_r, mapped_w = os.pipe()
    pid = os.fork()
    if not pid:
        for end in (status_r, asks_r, mapped_w):
            os.close(end)
        with _telling(status_w):
            view = _View(spec, all_users=_enter_namespaces(asks_w, mapped_r))
            view.build()
            _contain(spec, view, status_w)
        os._exit(1)
    for end in (status_w, asks_w, mapped_r):
        os.close(end)
    _lifeline(functools.partial(_kill, pid))
    if os.read(asks_r, 1):
        os.write(mapped_w, b"y" if _map_all_users(pid) else b"n")
    with os.fdopen(status_r) as status:
        lines = [json.loads(line) for line in status]
    with contextlib.suppress(ChildProcessError):
        while os.wait():  # the second process, and the third, which is gone only when all in its namespace are
            pass
    told: dict[str, Any] = {}
    for line in lines:
        told = {**line, **told}  # the first word on something is the cause
    return told or {"exit": -signal.SIGKILL}


def _adopt_orphans() -> None:
    _call("prctl", 36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _telling(pipe: int) -> Iterator[None]:
    """Errors of a forked process go to the launcher."""
    try:
        yield
    except BaseException as error:
        os.write(pipe, json.dumps({"error": str(error)}).encode() + b"\n")
        os._exit(1)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc(), name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


_NEWNS, _NEWUSER, _NEWPID = 0x20000, 0x10000000, 0x20000000
_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_REMOUNT_READONLY, _BIND, _REC, _PRIVATE = 32 | 1, 4096, 16384, 1 << 18
#: Flags of a mount, as `statvfs` tells them: none may be lost when it is mounted again.
_LOCKED_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}


def _mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    texts = [text if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def _die_with_parent() -> None:
    _call("prctl", 1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG


def _enter_namespaces(asks: int, mapped: int) -> bool:
    """True where all users are known inside, not only the one who runs this."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", _NEWUSER | _NEWNS)
    except OSError as error:
        raise OSError(f"user namespaces are not permitted here: {error.strerror}") from None
    _die_with_parent()
    os.write(asks, b"?")
    all_users = os.read(mapped, 1) == b"y"
    if not all_users:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount(None, "/", None, _REC | _PRIVATE)
    return all_users


def _map_all_users(pid: int) -> bool:
    """Root is to read everybody's files as before, for which everybody has to be known in the namespace."""
    if os.geteuid():
        return False
    try:
        for name in ("uid_map", "gid_map"):
            ranges = [line.split() for line in Path(f"/proc/self/{name}").read_text().splitlines()]
            Path(f"/proc/{pid}/{name}").write_text("".join(f"{own} {own} {count}\n" for own, _, count in ranges))
    except OSError:
        return False
    return True


_SPECIAL = ("/proc", "/sys", "/dev")
#: File systems that hold no files of anybody: they are seen as they are.
_PSEUDO = frozenset(
    "autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs mqueue nsfs "
    "proc pstore ramfs rpc_pipefs securityfs selinuxfs sysfs tracefs".split()
)
#: Larger files of a folder that is made anew are not copied but read-only.
_ENTRY_LIMIT = 64 << 20


@dataclass
class _View:
    """The file system as the command sees it, made below `root`."""

    spec: dict[str, Any]
    all_users: bool
    points: dict[str, bool] = field(default_factory=dict)  # mount points; whether they are seen as they are
    memory: str = ""  # where a file system in memory is mounted, if one was needed
    uses_memory: bool = False  # for what the command writes
    overlays: int = 0
    budget: int = 64 << 20  # bytes of the script's files that are copied
    entries: int = FILES_LIMIT

    def __post_init__(self) -> None:
        self.scratch: str = self.spec["scratch"]
        self.root = f"{self.scratch}/root"
        self.needed = [*self.spec["needed"], *map(os.path.dirname, self.spec["files"])]
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            columns = before.split(" ")
            path = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), columns[4])
            if not _below(path, *_SPECIAL):
                plain = after.split(" ")[0] in _PSEUDO or "ro" in columns[5].split(",")
                self.points[path] = plain and not self.is_needed(path)

    def is_needed(self, path: str) -> bool:
        return any(_below(needed, path) for needed in self.needed)

    def is_mine(self, path: str) -> bool:
        """Of the script, which may want to rename it: no mount point can be renamed."""
        home = os.path.expanduser("~")
        return any(_below(path, needed) and not _below(home, needed) for needed in self.needed)

    def build(self) -> None:
        os.mkdir(self.root)
        os.chmod(self.root, 0o755)
        _mount(self.root, self.root, None, _BIND)
        self.split("/")
        hidden = self.root + self.scratch
        _mount("tmpfs", hidden, "tmpfs", _NOSUID_NODEV_NOEXEC, "mode=700")
        shared = f"{self.scratch}/shared"
        os.makedirs(self.root + shared)
        _mount(shared, self.root + shared, None, _BIND)
        for path, content in self.spec["files"].items():
            place = self.root + path
            try:
                os.makedirs(os.path.dirname(place), exist_ok=True)
                shutil.copyfile(content, place)
            except OSError:  # somebody else's file
                _mount(content, place, None, _BIND)

    def add(self, path: str) -> None:
        """Make one folder visible. Its place is there and empty."""
        if path in _SPECIAL:
            if path != "/proc":  # the first process in the process namespace mounts that
                _mount(path, self.root + path, None, _BIND | _REC)
            if path == "/dev" and os.path.isdir("/dev/shm") and not os.path.islink("/dev/shm"):
                _mount("tmpfs", f"{self.root}/dev/shm", "tmpfs", _NOSUID_NODEV_NOEXEC & ~8, "mode=1777")
        elif self.points.get(path):
            self.bind(path, readonly=False)
        elif any(_below(point, path) and point != path for point in self.points):
            self.split(path)
        elif not (self.is_mine(path) and self.copy(path, self.root + path)):
            self.overlay(path)

    def split(self, path: str) -> None:
        place = self.root + path
        inner = [*self.points, *self.needed, self.scratch]
        names = {p[len(path.rstrip("/")) + 1 :].split("/")[0] for p in inner if _below(p, path) and p != path}
        with contextlib.suppress(PermissionError):
            names.update(os.listdir(path))
        for name in sorted(names):
            child = os.path.join(path, name)
            try:
                mode = os.lstat(child).st_mode
            except OSError:
                continue
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(child), self.root + child)
            elif stat.S_ISDIR(mode):
                os.mkdir(self.root + child)
                if child != self.scratch:
                    self.add(child)
            else:
                self.add_file(child, mode)
        _like(path, place)

    def add_file(self, path: str, mode: int) -> None:
        """Of a folder that is made anew."""
        place = self.root + path
        if stat.S_ISREG(mode) and path not in self.points and os.stat(path).st_size <= _ENTRY_LIMIT:
            try:
                _copy_file(Path(path), Path(place))
                _like(path, place)
                return
            except PermissionError:
                os.chmod(place, 0) if os.path.exists(place) else None
        Path(place).touch(mode=0)
        self.bind(path, readonly=stat.S_ISREG(mode))

    def bind(self, path: str, readonly: bool) -> None:
        place = self.root + path
        try:
            _mount(path, place, None, _BIND | _REC)
            if readonly:
                told = os.statvfs(place).f_flag
                kept = sum(flag for name, flag in _LOCKED_FLAGS.items() if told & name)
                _mount(None, place, None, _BIND | _REMOUNT_READONLY | kept)
        except OSError:
            with contextlib.suppress(OSError):
                _call("umount2", os.fsencode(place), 2)  # MNT_DETACH
            os.chmod(place, 0)  # nobody may look into it: neither can the user

    def overlay(self, path: str) -> None:
        ways = (self.on_disk, self.on_disk_twice, self.in_memory)
        errors = []
        for way in ways:
            try:
                way(path)
                return
            except OSError as error:
                errors.append(error)
        if self.is_needed(path):
            raise OSError(f"no overlay over {path}: {errors[0].strerror}")
        self.bind(path, readonly=True)

    def on_disk(self, path: str, lower: str = "", store: str = "") -> None:
        self.overlays += 1
        store = store or self.scratch
        upper, work = f"{store}/upper{path}", f"{store}/work/{self.overlays}"
        os.makedirs(upper, exist_ok=True)
        os.makedirs(work)
        _own(path, upper)
        self.furnish(path, upper)
        options = f"lowerdir={_escaped(lower or path)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        # volatile: nothing there needs to survive a crash, and each end of an overlay would wait for the whole disk
        _mount("overlay", self.root + path, "overlay", 0, f"{options},userxattr,volatile")

    def furnish(self, path: str, upper: str) -> None:
        """Put into the upper folder what an overlay could not put there by itself.

        A file that is changed is copied with its owner, which fails where that user or group is not known in the
        namespace, as does the same for every folder on the way. And a folder that was there before cannot be renamed.
        """
        homes = (os.path.expanduser("~"), "/tmp", "/var/tmp", tempfile.gettempdir())
        for folder in dict.fromkeys((*sorted(self.needed), *homes)):
            if not _below(folder, path) or not os.path.isdir(folder):
                continue
            place = path.rstrip("/")
            for part in folder[len(place) :].strip("/").split("/"):
                place = f"{place}/{part}".rstrip("/")
                if not os.path.isdir(made := upper + place[len(path) :]):
                    os.mkdir(made)
                    _own(place, made)
            # a folder that lies in another one is copied with that
            if self.is_mine(folder) and not (folder != path and self.is_mine(os.path.dirname(folder))):
                self.copy(folder, upper + folder[len(path.rstrip("/")) :])

    def copy(self, folder: str, target: str) -> bool:
        """True where all is copied: then the folder below is not looked into any more."""
        whole = True
        try:
            found = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except PermissionError:
            return False
        for entry in found:
            self.entries -= 1
            place = f"{target}/{entry.name}"
            told = entry.stat(follow_symlinks=False)
            foreign = not self.all_users and (told.st_uid, told.st_gid) != (os.geteuid(), os.getegid())
            if entry.path == self.scratch or os.path.lexists(place):
                whole = False
            elif entry.is_symlink():
                os.symlink(os.readlink(entry.path), place)
            elif entry.is_dir() and self.entries > 0 and not _skipped(Path(entry.path)):
                os.mkdir(place)
                whole = self.copy(entry.path, place) and whole
            elif entry.is_file() and (told.st_size <= self.budget or (foreign and told.st_size <= _ENTRY_LIMIT)):
                self.budget -= told.st_size
                try:
                    _copy_file(Path(entry.path), Path(place))
                    _own(entry.path, place)
                except PermissionError:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(place)
                    whole = False
            else:
                whole = False
        if whole:
            try:
                os.setxattr(target, "user.overlay.opaque", b"y")
            except OSError:
                whole = False
        _own(folder, target)
        with contextlib.suppress(OSError):
            shutil.copystat(folder, target)
            _own(folder, target)
        return whole

    def on_disk_twice(self, path: str) -> None:
        """Some kernels want the scratch folder apart from what it is laid over: a first overlay is a file system."""
        self.in_memory_store()
        lower = f"{self.scratch}/lower/{self.overlays}"
        os.makedirs(lower)
        _mount("overlay", lower, "overlay", 0, f"lowerdir={_escaped(path)}:{self.memory}/empty,userxattr")
        self.on_disk(path, lower)

    def in_memory(self, path: str) -> None:
        """In a container, `/` is an overlay already and cannot hold what is written to another."""
        self.on_disk(path, store=self.in_memory_store())
        self.uses_memory = True

    def in_memory_store(self) -> str:
        if not self.memory:
            self.memory = f"{self.scratch}/memory"
            os.mkdir(self.memory)
            _mount("tmpfs", self.memory, "tmpfs", _NOSUID_NODEV_NOEXEC & ~8, "mode=755")
            os.mkdir(f"{self.memory}/empty")
        return self.memory


def _below(path: str, *folders: str) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _like(path: str, place: str) -> None:
    """Owner and mode, as far as that can be."""
    told = os.stat(path)
    with contextlib.suppress(OSError):
        os.chown(place, told.st_uid, told.st_gid)
    with contextlib.suppress(OSError):
        os.chmod(place, stat.S_IMODE(told.st_mode))


def _own(path: str, place: str) -> None:
    """As `_like`, but where the user becomes the owner of somebody else's file, it is still not for him to change."""
    _like(path, place)
    if not os.access(path, os.W_OK):
        os.chmod(place, stat.S_IMODE(os.stat(path).st_mode) & ~0o222)


def _escaped(path: str) -> str:
    return re.sub(r"([\\:,])", r"\\\1", path)


def _contain(spec: dict[str, Any], view: _View, status: int) -> NoReturn:
    """The command in a process namespace; this process stays behind to save what lies in memory."""
    _call("unshare", _NEWPID)
    first = os.fork()
    if not first:
        with _telling(status):
            _die_with_parent()
            _first_process(spec, view.root, status)
    os.waitpid(first, 0)
    if view.uses_memory:
        os.write(status, b'{"memory": true}\n')
        if spec["keep"]:
            _save(f"{view.memory}/upper", f"{spec['scratch']}/upper")
    os._exit(0)


def _first_process(spec: dict[str, Any], root: str, status: int) -> NoReturn:
    try:
        _mount("proc", f"{root}/proc", "proc", _NOSUID_NODEV_NOEXEC)
    except OSError:  # parts of it are hidden here, as containers do
        _mount("/proc", f"{root}/proc", None, _BIND | _REC)
    os.chroot(root)
    os.chdir(spec["cwd"])
    main = os.fork()
    if not main:
        with _telling(status):
            os.setsid()
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            for number in (signal.SIGPIPE, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            try:
                os.execvpe(spec["command"][0], spec["command"], spec["env"])
            except OSError as error:
                raise OSError(f"`{spec['command'][0]}` cannot be run: {error.strerror}") from None
    while True:
        pid, code = os.wait()
        if pid == main:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            os.write(status, json.dumps({"exit": os.waitstatus_to_exitcode(code)}).encode() + b"\n")
            os._exit(0)


def _save(source: str, target: str) -> None:
    """Copies files, folders and links; marks of what was deleted are left out."""
    for root, folders, names in os.walk(source):
        place = Path(target + root[len(source) :])
        place.mkdir(parents=True, exist_ok=True)
        for name in [*names, *folders]:
            path = Path(root, name)
            with contextlib.suppress(OSError):
                if path.is_symlink():
                    (place / name).symlink_to(path.readlink())
                elif path.is_file():
                    shutil.copy2(path, place / name)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
