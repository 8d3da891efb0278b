"""Run the real command line in a process of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: A script that `prefetch` changes, whatever the target.
SCRIPT = b"""\
import tensorflow as tf

ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(ds)
"""
FAST = SCRIPT.replace(b".batch(32)", b".batch(32).prefetch(tf.data.AUTOTUNE)")
PREFETCH = ("--select", "prefetch")


def mortal() -> None:
    """In a child that becomes another program: root may then no longer read and write whatever it likes."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def tfboost(
    *arguments: str | Path,
    cwd: Path,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    as_mortal: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """`python -m rewriter ARGUMENTS`; no traceback may ever show."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    done = subprocess.run(
        [sys.executable, "-m", "rewriter", *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        env=environment,
        capture_output=True,
        timeout=300,
        preexec_fn=mortal if as_mortal else None,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done
