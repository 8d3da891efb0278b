"""Run the real command line in a process of its own."""

from __future__ import annotations

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


def tfboost(*arguments: str | Path, cwd: Path, stdin: bytes = b"", env: dict[str, str] | None = None,
            user: int | None = None) -> subprocess.CompletedProcess[bytes]:
    """`python -m rewriter ARGUMENTS`; no traceback may ever show."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    done = subprocess.run([sys.executable, "-m", "rewriter", *map(str, arguments)], cwd=cwd, input=stdin, env=environment,
                          capture_output=True, timeout=300, user=user)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done
