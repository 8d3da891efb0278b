"""Converting a program to a strategy of `tf.distribute`, and running it: on two logical CPUs, or as two workers."""

from __future__ import annotations

import json
import socket
import subprocess
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.envs import run_script, tf_env

#: What a test puts above a program: two devices, on which every machine can train.
DEVICES = """import tensorflow as _tf

_cpus = _tf.config.list_physical_devices("CPU")
_tf.config.set_logical_device_configuration(_cpus[0], [_tf.config.LogicalDeviceConfiguration()] * 2)
"""
#: What it adds behind: every worker tells what it has.
TELL = """
import json as _json, os as _os
_worker = _json.loads(_os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
with open("told_%s.json" % _worker, "w") as _file:
    _json.dump(told, _file, default=float)
"""
TARGETS = {"tf215": "tf2.15", "tf221": "tf2.21"}


def converted(source: str, kind: str, env: str = "tf215", *, level: int = 1, select: str = "") -> str:
    """What `--distribute mirrored` (or `multiworker`) makes of a program; fails where it refuses."""
    path, target = Path("/nowhere/train.py"), named(TARGETS[env])
    wanted = Options(level, frozenset(select.split()), distribute=kind)
    (result,) = rewrite([path], wanted, lambda _: target, {path: textwrap.dedent(source).lstrip("\n").encode()})
    assert result.error is None, result.error
    assert any(a.codemod == kind for a in result.applied), [(r.line, r.reason) for r in result.refused]
    return result.after.decode()


def run(
    text: str, folder: Path, *, env: str = "tf215", devices: int = 1, workers: int = 1, timeout: float = 240
) -> list[subprocess.CompletedProcess[str]]:
    """Run a program in a folder of its own: on two devices, or as several workers on this host."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text((DEVICES if devices > 1 else "") + textwrap.dedent(text).lstrip("\n") + TELL)
    python = tf_env(env)
    if workers == 1:
        return [run_script(python, script, timeout=timeout)]
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    tasks = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}} for i in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        return list(
            pool.map(lambda t: run_script(python, script, timeout=timeout, env={"TF_CONFIG": json.dumps(t)}), tasks)
        )


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def trained(text: str, folder: Path, *, workers: int = 1, **options: Any) -> list[dict[str, Any]]:
    """Run a program to its end; what every worker told."""
    for done in run(text, folder, workers=workers, **options):
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return [json.loads((folder / f"told_{worker}.json").read_text()) for worker in range(workers)]
