"""The TensorFlow environments of the tests, built by `nox -s envs`, and how a script is run in one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

#: Name of each environment and the TensorFlow in it.
VERSIONS = {"tf221": "2.21.0", "tf218": "2.18.1", "tf215": "2.15.1", "tf115": "1.15.5"}
#: These can be built on every machine; `tf115` needs Python 3.7.
REQUIRED = frozenset({"tf221", "tf218", "tf215"})

SET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
REMOVED = frozenset({"TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "PYTHONPATH"})


def tf_env(name: str) -> Path:
    """The Python of the environment `name`; without it the test is skipped, or fails if CI must have it."""
    home = os.environ.get("TFBOOST_ENVS") or Path(__file__).parent.parent / ".envs"
    python = Path(home, name, "bin", "python").absolute()
    if not python.exists():
        missing = f"no TensorFlow environment {python.parent.parent}; `nox -s envs` builds it"
        if os.environ.get("CI") == "true" and name in REQUIRED:
            pytest.fail(missing)
        pytest.skip(missing)
    return python


def run_script(
    python: Path,
    path: Path,
    *args: str,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script on the CPU in a process of its own, in `cwd` or else beside the script.

    `env` adds variables. The caller looks at the return code. After `timeout` seconds the script and the
    processes that it started are ended, and `subprocess.TimeoutExpired` is raised.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in REMOVED}
    process = subprocess.Popen(
        [python, path.absolute(), *args],
        cwd=cwd or path.absolute().parent,
        env={**inherited, **SET, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
