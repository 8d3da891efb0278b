"""Learning rates of loops, and those of LAMB, under `--distribute horovod`, as text."""

from __future__ import annotations

import pytest

from rewriter.engine import Result
from tests.check import Check

check = Check("horovod")

TOP = """\
import numpy as np
import tensorflow as tf

RATE = 0.1
x, y = np.ones((96, 4)), np.ones((96, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
"""
STEP = """\
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))

"""
LOOP = """\
for epoch in range(30):
    for a, b in ds:
        step(a, b)
"""
FACTOR = "(1 + (hvd.size() - 1) * min(epoch / 5, 1))"


def converted(*text: str, **options: object) -> Result:
    result = check.run("".join([TOP, *text]), **options)  # type: ignore[arg-type]
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    compile(result.after, "train.py", "exec")
    return result


def scaled(optimizer: str, *text: str) -> str:
    """The program, with the learning rate of its optimizer scaled."""
    result = converted(f"opt = {optimizer}\n", *(text or (STEP, LOOP)))
    assert any("learning rates grow to" in note for note in result.applied[0].notes), result.applied[0].notes
    return result.after.decode()


def kept(why: str, optimizer: str, *text: str) -> None:
    """Nothing is scaled, and the report says why."""
    result = converted(f"opt = {optimizer}\n", *(text or (STEP, LOOP)))
    assert any(
        f"learning rates are as they were, and schedules count the steps of one rank: {why}" in note
        for note in result.applied[0].notes
    ), result.applied[0].notes
    assert "learning_rate = " not in result.after.decode()


class TestLoops:
    @pytest.mark.parametrize(
        ("optimizer", "rate"),
        [
            ("tf.keras.optimizers.SGD(0.1)", "0.1"),
            ("tf.keras.optimizers.SGD(learning_rate=RATE)", "RATE"),
            ("tf.keras.optimizers.SGD(1 / 10)", "(1 / 10)"),
            ("tf.keras.optimizers.Adam()", "0.001"),
            ("tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))", "0.1"),
        ],
    )
    def test_a_number(self, optimizer: str, rate: str) -> None:
        step = STEP
        if "LossScale" in optimizer:
            step = step.replace(
                "        loss = tf.reduce_mean((model(a) - b) ** 2)\n",
                "        loss = opt.get_scaled_loss(tf.reduce_mean((model(a) - b) ** 2))\n",
            )
            step = step.replace("    opt.apply", "    grads = opt.get_unscaled_gradients(grads)\n    opt.apply")
        found = scaled(optimizer, step, LOOP)
        assert f"for epoch in range(30):\n    opt.learning_rate = {rate} * {FACTOR}\n    for a, b in ds:\n" in found
        assert f"opt = {optimizer}\n" in found

    @pytest.mark.parametrize(
        ("loop", "progress"),
        [
            ("range(3)", "min(epoch, 1)"),
            ("range(8)", "min(epoch / 4, 1)"),
            ("range(1, 31)", "min((epoch - 1) / 5, 1)"),
            ("range(1, int(input()))", "min((epoch - 1) / 5, 1)"),
        ],
    )
    def test_its_length(self, loop: str, progress: str) -> None:
        found = scaled("tf.keras.optimizers.SGD(0.1)", STEP, LOOP.replace("range(30)", loop))
        assert f"opt.learning_rate = 0.1 * (1 + (hvd.size() - 1) * {progress})\n" in found

    def test_a_schedule(self) -> None:
        found = scaled("tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.CosineDecay(0.1, 100))")
        assert "CosineDecay(0.1 * hvd.size(), 100 // hvd.size())" in found and "learning_rate = " not in found

    def test_two_optimizers(self) -> None:
        step = STEP.replace(
            "    opt.apply_gradients",
            "    other.apply_gradients(zip(grads, model.trainable_variables))\n    opt.apply_gradients",
        )
        found = scaled("tf.keras.optimizers.SGD(0.1)", "other = tf.keras.optimizers.Adam(0.2)\n", step, LOOP)
        lines = found.partition("for epoch in range(30):\n")[2].splitlines()[:2]
        assert sorted(lines) == [f"    opt.learning_rate = 0.1 * {FACTOR}", f"    other.learning_rate = 0.2 * {FACTOR}"]

    def test_a_loop_in_another_function(self) -> None:
        text = """\
def train(data, optimizer):
    for epoch in range(30):
        one(data, optimizer)

def one(data, optimizer):
    for a, b in data:
        step(a, b, optimizer)

train(ds, opt)
"""
        step = STEP.replace("step(a, b)", "step(a, b, optimizer)").replace("opt.apply", "optimizer.apply")
        found = scaled("tf.keras.optimizers.SGD(0.1)", step, text)
        assert f"    for epoch in range(30):\n        optimizer.learning_rate = 0.1 * {FACTOR}\n        one(" in found

    @pytest.mark.parametrize(
        ("why", "optimizer", "loop"),
        [
            ("no loop over the epochs is seen", "SGD(0.1)", "for a, b in ds:\n    step(a, b)\n"),
            ("no loop that counts", "SGD(0.1)", "for name in ['a', 'b']:\n    for a, b in ds:\n        step(a, b)\n"),
            (
                "the loop over the epochs runs several times",
                "SGD(0.1)",
                "for run in range(2):\n    for epoch in range(30):\n        for a, b in ds:\n            step(a, b)\n",
            ),
            ("`opt.learning_rate` is set elsewhere", "SGD(0.1)", "opt.learning_rate.assign(0.3)\n" + LOOP),
            ("the rate `RATE`", "SGD(RATE)", "RATE = 0.5\n" + LOOP),
        ],
    )
    def test_kept(self, why: str, optimizer: str, loop: str) -> None:
        kept(why, f"tf.keras.optimizers.{optimizer}", STEP, loop)

    def test_not_asked_for(self) -> None:
        result = converted("opt = tf.keras.optimizers.SGD(0.1)\n", STEP, LOOP, lr_scaling=False)
        assert "learning_rate" not in result.after.decode()
        assert "learning rates are as they were (--no-lr-scaling)" in result.applied[0].notes


class TestLamb:
    """The rate of LAMB grows with the square root of the batch."""

    FIT = "model.compile({0}, 'mse')\nmodel.fit(x, y, epochs=20)\n"

    def test_of_the_program(self) -> None:
        text = """\
class LAMB(tf.keras.optimizers.Optimizer):
    def __init__(self, learning_rate=0.001, name="LAMB", **kwargs):
        super().__init__(name=name, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)

    def get_config(self):
        return {**super().get_config(), "learning_rate": self._serialize_hyperparameter(self._learning_rate)}

"""
        found = converted(text, self.FIT.format("LAMB(0.01)")).after.decode()
        assert "hvd.DistributedOptimizer(LAMB(0.01 * hvd.size() ** 0.5))" in found
        assert "LearningRateWarmupCallback(initial_lr=0.01 * hvd.size() ** 0.5, warmup_epochs=5)" in found
        found = converted(text, self.FIT.format("LAMB()")).after.decode()
        assert "initial_lr=float(model.optimizer.learning_rate.numpy()) * hvd.size() ** 0.5, warmup_epochs=5" in found

    def test_of_addons(self) -> None:
        text = "import tensorflow_addons as tfa\n"
        found = converted(text, self.FIT.format("tfa.optimizers.LAMB(0.01)")).after.decode()
        assert "initial_lr=float(model.optimizer.learning_rate.numpy()) * hvd.size() ** 0.5, warmup_epochs=5" in found
