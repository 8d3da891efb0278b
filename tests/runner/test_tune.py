"""Tuning with real training: what pays stays, what hurts, breaks or trains otherwise goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rewriter.runner.effects import Names
from rewriter.runner.tune import Store, Tuner, Tuning, identity
from rewriter.runner.validate import Conditions, Script
from tests.cli import ROOT, tfboost
from tests.envs import tf_env

pytestmark = pytest.mark.tf

SLEEPY = """
import time
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
x = np.random.rand(2000, 8).astype('float32')
y = x.sum(1)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile('adam', 'mse')


class Slow(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(DELAY)


BREAK
model.fit(x, y, batch_size=20, epochs=EPOCHS, verbose=0, callbacks=[Slow()])
"""


def script(names: Names) -> bytes:
    """Codemods that do what a test wants: half the delay, twice the delay, a crash, another loss."""
    delay = 0.012
    delay *= 0.5 if "helps" in names else 1
    delay *= 2 if "hurts" in names else 1
    delay *= 0.4 if {"one", "other"} <= set(names) else 1.5 if {"one", "other"} & set(names) else 1
    text = SLEEPY.replace("DELAY", str(delay)).replace("EPOCHS", "2")
    text = text.replace("BREAK", "raise RuntimeError('broken')" if "breaks" in names else "")
    if "changes" in names:
        text = text.replace("'mse'", "lambda t, p: 7 * tf.keras.losses.mse(t, p)")
    return text.encode()


def tuned(folder: Path, names: Names, rewrite: Callable[[Names], bytes] = script, minutes: float = 5.0) -> Tuning:
    path = folder / "train.py"
    path.write_bytes(rewrite(()))
    conditions = Conditions(str(tf_env("tf215")), budget=1.5)
    start = Script(path)
    store = Store(folder / "state.jsonl", identity(start, names, conditions, 1), resume=True)
    return Tuner(start, names, rewrite, conditions, 1, minutes, store).tune()


def test_what_pays_stays(tmp_path: Path) -> None:
    found = tuned(tmp_path, ("helps", "hurts", "breaks"))
    assert found.kept == ("helps",)
    assert found.after == script(("helps",))
    told = {effect.codemod: effect for effect in found.effects}
    assert "broken" in told["breaks"].why and not told["breaks"].kept
    assert told["hurts"].speed.ratio < 0.8 and not told["hurts"].kept
    assert told["helps"].speed.answer == "faster" and told["helps"].kept
    assert found.validation is not None and found.validation.verdict == "pass"
    assert (tmp_path / "train.py").read_bytes() == script(())


@pytest.mark.thorough
def test_two_that_pay_only_together_stay_together(tmp_path: Path) -> None:
    assert tuned(tmp_path, ("one", "other")).kept == ("one", "other")


@pytest.mark.thorough
def test_without_time_for_each_they_are_measured_together(tmp_path: Path) -> None:
    found = tuned(tmp_path, ("one", "other"), minutes=0.1)
    assert found.out_of_time and found.kept == ("one", "other")
    assert all("cannot be measured" in effect.why for effect in found.effects)
    runs = (tmp_path / "state.jsonl").read_text()
    assert '["speed", ["one"], 0]' not in runs.replace("\\", "")


def test_what_trains_otherwise_goes(tmp_path: Path) -> None:
    def rewrite(names: Names) -> bytes:
        return script((*names, "helps") if "changes" in names else names)

    found = tuned(tmp_path, ("changes",), rewrite)
    assert found.kept == ()
    assert "does not train the same" in found.effects[0].why


def test_an_interrupted_tuning_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import numpy as np\nimport tensorflow as tf\n"
        "x = np.random.rand(4000, 8).astype('float32')\n"
        "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(x, x.sum(1), batch_size=20, epochs=60, verbose=0)\n"
    )
    asked = ["tune", "train.py", "-o", "fast.py", "-O", "1", "--python", str(tf_env("tf215")), "--run-seconds", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rewriter", *asked],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    state = tmp_path / "fast.py.tune.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (state.exists() and state.read_text().count("\n") >= 3):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "--resume goes on" in told and "Traceback" not in told
    kept = state.read_text().splitlines()
    assert not (tmp_path / "fast.py").exists()
    done = tfboost(*asked, "--resume", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    document = json.loads(done.stdout)
    assert document["kept"] == ["steps-per-execution"], document
    assert "steps_per_execution" in (tmp_path / "fast.py").read_text()
    assert len(kept) >= 3 and not state.exists()


def test_a_script_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow as tf\nraise SystemExit(4)\n")
    done = tfboost("tune", "train.py", "-o", "fast.py", "--python", str(tf_env("tf215")), cwd=tmp_path)
    assert done.returncode == 2
    assert "exit code 4" in done.stdout.decode()
    assert not (tmp_path / "fast.py").exists()
