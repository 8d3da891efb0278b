"""What becomes of programs that train in loops of their own under `--distribute horovod`, as text."""

from __future__ import annotations

import textwrap

import pytest

from tests.check import Check

check = Check("horovod")

TOP = """\
import numpy as np
import tensorflow as tf

x, y = np.ones((96, 4)), np.ones((96, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.Adam(0.01)
"""
STEP = """\
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss

"""
LOOP = """\
for epoch in range(3):
    for a, b in ds:
        loss = step(a, b)
    print(epoch, float(loss))
"""
SHARE = """\
if first_step:
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(opt.variables(), root_rank=0)
    first_step = False
"""


def converted(text: str, top: str = TOP) -> str:
    """The program behind the start of Horovod; a second run leaves it alone."""
    result = check.run(top + text)
    after = result.after.decode()
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    again = check.run(after)
    assert again.after == again.before, again.after.decode()
    compile(after, "train.py", "exec")
    assert "import horovod.tensorflow as hvd\n" in after and "hvd.init()\n" in after
    return after


def refuses(reason: str, text: str, top: str = TOP) -> None:
    check.refuses(top + text, reason)


def test_the_whole() -> None:
    after = converted(STEP + LOOP)
    assert ".shard(hvd.size(), hvd.rank()).take(len(x) // hvd.size()).batch(8)" in after
    assert "    tape = hvd.DistributedGradientTape(tape)\n    grads = tape.gradient(" in after
    assert f"        loss = step(a, b)\n{textwrap.indent(SHARE, ' ' * 8)}" in after
    assert "first_step = True\nfor epoch in range(3):" in after
    assert after.endswith("    if hvd.rank() == 0:\n        print(epoch, float(loss))\n")


def test_a_compiled_step_without_xla() -> None:
    after = converted("@tf.function(jit_compile=True)\n" + STEP + LOOP)
    assert "jit_compile" not in after and "@tf.function" in after


class TestWhatIsTrained:
    def test_parameters_of_a_step(self) -> None:
        text = STEP.replace("step(a, b)", "step(net, sgd, a, b)").replace("model", "net").replace("opt.", "sgd.")
        after = converted(text + LOOP.replace("step(a, b)", "step(model, opt, a, b)"))
        assert textwrap.indent(SHARE, " " * 8) in after

    def test_a_class_that_trains(self) -> None:
        text = """\
class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def step(self, a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(a) - b) ** 2)
        grads = tape.gradient(loss, self.net.trainable_variables)
        self.opt.apply_gradients(zip(grads, self.net.trainable_variables))

    def train(self, data):
        for epoch in range(3):
            for a, b in data:
                self.step(a, b)

Trainer(model).train(ds)
"""
        after = converted(text)
        assert "hvd.broadcast_variables(self.net.variables, root_rank=0)" in after
        assert "hvd.broadcast_variables(self.opt.variables(), root_rank=0)" in after

    def test_a_helper_with_the_tape(self) -> None:
        text = """\
def grad(net, a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(a) - b) ** 2)
    return loss, tape.gradient(loss, net.trainable_variables)

for epoch in range(3):
    for a, b in ds:
        loss, grads = grad(model, a, b)
        opt.apply_gradients(zip(grads, model.trainable_variables))
"""
        after = converted(text)
        assert "    tape = hvd.DistributedGradientTape(tape)\n    return loss, tape.gradient(" in after
        assert textwrap.indent(SHARE, " " * 8) in after

    def test_variables(self) -> None:
        text = """\
w, b = tf.Variable(tf.zeros((4, 1))), tf.Variable(0.0)
for start in range(0, len(x), 8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x[start:start + 8] @ w + b - y[start:start + 8]) ** 2)
    grads = tape.gradient(loss, [w, b])
    for v, g in zip([w, b], grads):
        v.assign_sub(0.1 * g)
"""
        after = converted(text)
        assert "hvd.broadcast_variables([w, b], root_rank=0)" in after
        assert "x = x[hvd.rank():len(x) // hvd.size() * hvd.size():hvd.size()]\n" in after
        assert "for start in range(0, len(x), 8):" in after

    def test_a_penalty_and_gradients_of_inputs_stay(self) -> None:
        text = """\
def penalty(a):
    with tf.GradientTape() as inner:
        inner.watch(a)
        out = model(a)
    return tf.reduce_mean(inner.gradient(out, a) ** 2)

def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2) + penalty(a)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss

"""
        after = converted(text + LOOP)
        assert "tape = hvd.DistributedGradientTape(tape)" in after
        assert "DistributedGradientTape(inner)" not in after

    def test_other_steps_have_their_own_first(self) -> None:
        text = """\
def other(a):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(second(a))
    grads = tape.gradient(loss, second.trainable_variables)
    opt2.apply_gradients(zip(grads, second.trainable_variables))

second, opt2 = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
for i, (a, b) in enumerate(ds):
    step(a, b)
    if i % 5 == 0:
        other(a)
"""
        after = converted(STEP + text)
        assert "first_step = True\n" in after and "first_step_2 = True\n" in after
        assert "        if first_step_2:\n            hvd.broadcast_variables(second.variables, root_rank=0)" in after


class TestData:
    def test_steps_are_taken(self) -> None:
        top = TOP.replace(".batch(8)", ".repeat().shuffle(9).batch(8)")
        after = converted(STEP + "for i, (a, b) in enumerate(ds.take(1000), 1):\n    step(a, b)\n", top)
        assert "take(1000 // hvd.size())" in after and ".shard(hvd.size(), hvd.rank())" in after

    def test_the_end_of_a_range(self) -> None:
        text = "for i in range(12):\n    step(x[i * 8:(i + 1) * 8], y[i * 8:(i + 1) * 8])\n"
        assert "for i in range(12 // hvd.size()):" in converted(STEP + text)

    @pytest.mark.parametrize(
        ("reason", "loop"),
        [
            ("which loop goes through the data", "for i in range(100):\n    step(x, y)\n"),
            ("which loop goes through the data", "it = iter(ds)\nfor i in range(9):\n    step(*next(it))\n"),
            ("which loop goes", "for i in range(9):\n    k = np.random.randint(96, size=8)\n    step(x[k], y[k])\n"),
            ("without end", "for a, b in ds.repeat():\n    step(a, b)\n"),
            (
                "used for something else",
                "for i in range(12):\n    step(x[i:i + 8], y[i:i + 8])\nmodel.evaluate(x, y)\n",
            ),
        ],
    )
    def test_refusals(self, reason: str, loop: str) -> None:
        refuses(reason, STEP + loop)


class TestTheSameOnEveryRank:
    @pytest.mark.parametrize(
        "line",
        [
            "if loss < 0.1:\n            break",
            "if np.isnan(loss):\n            continue",
            "if loss > 3:\n            step(a, b)",
        ],
    )
    def test_what_a_loss_decides(self, line: str) -> None:
        refuses("may differ from rank to rank", STEP + LOOP.replace("step(a, b)\n", f"step(a, b)\n        {line}\n"))

    @pytest.mark.parametrize("end", ["if wait > 3:\n        break", "opt.learning_rate = 0.1 / (wait + 1)"])
    def test_a_counter_of_losses(self, end: str) -> None:
        text = f"    if loss < best:\n        wait = 0\n    else:\n        wait += 1\n    {end}\n"
        refuses("may differ from rank to rank", STEP + "best = wait = 9\n" + LOOP + text)

    @pytest.mark.parametrize(
        ("made", "kept", "test"),
        [
            ("[]", "seen.append(float(loss))", "min(seen) < 0.1"),
            ("list()", "seen.extend([float(loss)])", "seen[-1] < 0.1"),
            ("{}", "seen[epoch] = float(loss)", "seen[0] < 0.1"),
            ("{'best': 9}", "seen['best'] = min(float(loss), seen['best'])", "seen['best'] < 0.1"),
            ("{'all': [9]}", "seen['all'].append(float(loss))", "min(seen['all']) < 0.1"),
            ("[]", "keep(seen, loss)", "min(seen) < 0.1"),
        ],
    )
    def test_losses_that_are_kept(self, made: str, kept: str, test: str) -> None:
        text = f"def keep(values, value):\n    values.append(value)\n\nseen = {made}\n{LOOP}    {kept}\n    if {test}:\n        break\n"
        refuses("may differ from rank to rank", STEP + text)

    def test_numbers_that_are_kept(self) -> None:
        text = f"ends, at = [2, 5], {{}}\n{LOOP}    at['epoch'] = epoch\n    if at['epoch'] in ends:\n        break\n"
        assert "if at['epoch'] in ends:\n        break" in converted(STEP + text)

    @pytest.mark.parametrize(
        "line",
        [
            "if epoch == 2:\n        opt.learning_rate = opt.learning_rate * 0.1",
            "opt.learning_rate.assign(opt.learning_rate.numpy() * 0.9)",
            "opt.learning_rate.assign(rate_at(epoch))",
            "opt.learning_rate = args.rate * 0.1 ** (epoch - 1)",
        ],
    )
    def test_rates_that_are_set_by_hand(self, line: str) -> None:
        top = TOP + (
            "import argparse\n\nparser = argparse.ArgumentParser()\nargs = parser.parse_args()\n\n"
            "def rate_at(epoch):\n    if epoch < 2:\n        return 0.1\n    return 0.1 * np.cos(np.pi * epoch / 9)\n\n"
        )
        assert line in converted(STEP + LOOP + f"    {line}\n", top)

    def test_a_rate_by_chance(self) -> None:
        text = "def rate_at(epoch):\n    return 0.1 * np.random.rand()\n\n"
        refuses("may differ from rank to rank", STEP + text + LOOP + "    opt.learning_rate = rate_at(epoch)\n")

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("if loss < 0.1:\n        break", "may differ from rank to rank"),
            ('model.load_weights("best.h5")', "reads weights in the loop"),
        ],
    )
    def test_loops_that_call(self, line: str, reason: str) -> None:
        text = "def train():\n    for a, b in ds:\n        loss = step(a, b)\n    return loss\n\n"
        refuses(reason, STEP + text + f"for epoch in range(9):\n    loss = train()\n    {line}\n")
        assert "loss = train()" in converted(STEP + text + "for epoch in range(9):\n    loss = train()\n")

    def test_a_loop_that_counts(self) -> None:
        text = "n = 0\nwhile n < 5:\n    for a, b in ds:\n        step(a, b)\n    n += 1\n"
        assert "while n < 5:" in converted(STEP + text)

    def test_a_counter_decides(self) -> None:
        text = "for i, (a, b) in enumerate(ds):\n    if i >= 5:\n        break\n    loss = step(a, b)\n"
        assert textwrap.indent(SHARE, "    ") in converted(STEP + text)

    def test_a_rate_from_a_loss(self) -> None:
        line = "opt.learning_rate = 0.1 * float(loss)"
        refuses("may differ from rank to rank", STEP + LOOP + f"    {line}\n")

    def test_a_rate_from_the_epoch(self) -> None:
        assert "opt.learning_rate = 0.1 / (epoch + 1)" in converted(
            STEP + LOOP + "    opt.learning_rate = 0.1 / (epoch + 1)\n"
        )

    def test_weights_are_read_in_the_loop(self) -> None:
        refuses("reads weights in the loop", STEP + LOOP + '    model.load_weights("best.h5")\n')

    def test_a_step_in_a_print_is_made_by_all(self) -> None:
        text = "for a, b in ds:\n    print(step(a, b))\n"
        assert "\n    print(step(a, b))\n    if first_step:" in converted(STEP + text)


@pytest.mark.parametrize(
    ("reason", "old", "new"),
    [
        ("does not take all arguments", "model.trainable_variables)\n", "model.trainable_variables, None, 'zero')\n"),
        ("does not take all arguments", "able_variables)\n", "able_variables, unconnected_gradients='zero')\n"),
        ("does not average", "tape.gradient", "tape.jacobian"),
        ("something else than `gradient`", "    grads =", "    keep(tape)\n    grads ="),
        ("of an optimizer of Keras", "opt.", "tf.compat.v1.train.AdamOptimizer()."),
        ("not called behind the block", "    grads =", "        grads ="),
    ],
)
def test_steps_that_are_not_converted(reason: str, old: str, new: str) -> None:
    refuses(reason, STEP.replace(old, new, 1) + LOOP)


def test_updates_inside_of_a_tape() -> None:
    text = """\
for a, b in ds:
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        grads = inner.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
        hard = tf.reduce_mean((model(a) - b) ** 2)
    more = outer.gradient(hard, model.trainable_variables)
    opt.apply_gradients(zip(more, model.trainable_variables))
"""
    refuses("inside of another tape", text)


def test_minimize() -> None:
    text = "for a, b in ds:\n    opt.minimize(lambda: tf.reduce_mean((model(a) - b) ** 2), model.trainable_variables)\n"
    refuses("takes the gradients itself", text)


def test_both_ways() -> None:
    refuses("by Keras too", STEP + LOOP + 'model.compile("sgd", "mse")\nmodel.fit(x, y)\n')


def test_prints_above_the_start_stay() -> None:
    top = TOP.replace(
        "import tensorflow as tf\n", "import tensorflow as tf\nprint(tf.__version__)\nfrom tensorflow import keras\n"
    )
    after = converted(STEP + LOOP, top)
    assert after.index("\nprint(tf.__version__)") < after.index("hvd.init()")


class TestTrainStep:
    CLASS = """\
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def call(self, a):
        return self.dense(a)

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(b, self(a, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}

"""
    FIT = 'net = Net()\nnet.compile(tf.keras.optimizers.SGD(0.1), "mse")\nnet.fit(x, y)\n'

    def test_the_tape_is_wrapped(self) -> None:
        result = check.run(TOP + self.CLASS + self.FIT)
        after = result.after.decode()
        assert result.applied, [r.reason for r in result.refused]
        assert "from horovod.tensorflow import DistributedGradientTape\n" in after
        assert "        tape = DistributedGradientTape(tape)\n        gradients = tape.gradient(" in after
        assert "import horovod.tensorflow.keras as hvd\n" in after and "hvd.DistributedOptimizer(" in after

    def test_another_optimizer(self) -> None:
        text = self.CLASS.replace("self.optimizer.apply", "self.other.apply")
        refuses("is not of the optimizer that `compile` is given", text + self.FIT)

    def test_no_fit(self) -> None:
        refuses("no `fit` runs", self.CLASS + "net = Net()\n")
