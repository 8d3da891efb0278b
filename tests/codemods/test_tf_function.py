import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("tf-function")

HEAD = """
import numpy as np
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(3,)), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
mse = tf.keras.losses.MeanSquaredError()
acc = tf.keras.metrics.Mean()
ds = tf.data.Dataset.from_tensor_slices((tf.ones((40, 3)), tf.ones((40, 1)))).batch(8)
"""

STEP = """
def step(x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss
"""

LOOP = """
for epoch in range(3):
    for x, y in ds:
        loss = step(x, y)
    print(float(loss))
"""

#: What a step does besides training, one line of it.
INSIDE = """
def step(x, y):
    with tf.GradientTape() as tape:
        pred = model(x, training=True)
        loss = mse(y, pred)
    grads = tape.gradient(loss, model.trainable_variables)
    {line}
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss
"""


def decorated(source: str, *names: str, decorator: str = "@tf.function") -> str:
    for name in names:
        source, count = re.subn(rf"(?m)^( *)def {name}\(", rf"\1{decorator}\n\1def {name}(", source)
        assert count == 1
    return source


def decorates(source: str, *names: str, decorator: str = "@tf.function", **options: object) -> None:
    """These functions get the decorator, and nothing else changes."""
    source = textwrap.dedent(source).lstrip("\n")
    check.fixes(source, decorated(source, *names, decorator=decorator), **options)


def refuses(source: str, reason: str, **options: Any) -> None:
    check.refuses(textwrap.dedent(source).lstrip("\n"), reason, **options)


# -- what is converted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["tf2.15", "tf2.21", "tf2.4"])
def test_step_function(target: str) -> None:
    decorates(HEAD + STEP + LOOP, "step", target=target)


@pytest.mark.parametrize(
    "loop",
    [
        "for i, (x, y) in enumerate(ds):\n    step(x, y)\n",
        "for x, y in tqdm(ds):\n    step(x, y)\n",
        "for i, batch in enumerate(ds):\n    x, y = batch\n    step(x, y)\n",
        "for batch in ds:\n    step(batch[0], batch[1])\n",
        "for batch in ds:\n    step(*batch)\n",
        "it = iter(ds)\nfor i in range(10):\n    x, y = next(it)\n    step(x, y)\n",
        "for i in range(10):\n    x, y = next(iter(ds))\n    step(x, y)\n",
        "for (x, y), z in zip(ds, ds):\n    step(x, y)\n",
        "for i in range(10):\n    step(tf.random.normal((8, 3)), tf.ones((8, 1)))\n",
        "a, b = np.ones((40, 3), np.float32), np.ones((40, 1), np.float32)\n"
        "for i in range(0, 40, 8):\n    step(a[i:i+8], b[i:i+8])\n",
        "losses = [step(x, y) for x, y in ds]\n",
        "def run(data):\n    for x, y in data:\n        step(x, y)\nrun(ds)\n",
        "def one(x, y):\n    return float(step(x, y))\nfor x, y in ds:\n    one(x, y)\n",
        "while True:\n    x, y = next(iter(ds))\n    step(x=x, y=y)\n    break\n",
        "def batches():\n    for i in range(5):\n        yield tf.ones((8, 3)), tf.ones((8, 1))\n"
        "for x, y in batches():\n    step(x, y)\n",
    ],
)
def test_ways_to_iterate(loop: str) -> None:
    if "*batch" in loop:
        refuses(HEAD + STEP + loop, "is not seen")
    else:
        decorates(HEAD + STEP + loop, "step")


def test_arrays_of_any_type_may_go_to_keras() -> None:
    decorates(
        HEAD + STEP + "a, b = np.random.rand(40, 3), np.random.rand(40, 1)\n"
        "for i in range(5):\n    idx = np.random.randint(0, 40, 8)\n    step(a[idx], b[idx])\n",
        "step",
    )


def test_arrays_of_another_type_in_arithmetic() -> None:
    source = HEAD + STEP.replace("mse(y, model(x, training=True))", "tf.reduce_mean((model(x) - y) ** 2)")
    loop = "\nfor i in range(5):\n    step(a[i:i+8], b[i:i+8])\n"
    refuses(source + "a, b = np.random.rand(40, 3), np.random.rand(40, 1)" + loop, "NumPy array")
    decorates(
        source + "a = np.random.rand(40, 3)\nb = np.random.rand(40, 1).astype('float32')" + loop,
        "step",
    )


def test_methods_of_arrays() -> None:
    source = (
        STEP.replace("with tf", "x = x.reshape(-1, 3)\n    with tf")
        + "a = np.ones((40, 3), np.float32)\nfor i in range(5):\n    step(a[i:i+8], a[i:i+8, :1])\n"
    )
    refuses(HEAD + source, "`.reshape()`")


def test_gan() -> None:
    decorates(
        HEAD
        + """
gen = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,))])
g_opt = tf.keras.optimizers.Adam(1e-4)

def train_step(images):
    noise = tf.random.normal([8, 2])
    with tf.GradientTape() as gt, tf.GradientTape() as dt:
        fake = gen(noise, training=True)
        g_loss = mse(tf.ones((8, 1)), model(fake))
        d_loss = mse(tf.zeros((8, 1)), model(fake)) + mse(tf.ones((8, 1)), model(images))
    g_opt.apply_gradients(zip(gt.gradient(g_loss, gen.trainable_variables), gen.trainable_variables))
    opt.apply_gradients(zip(dt.gradient(d_loss, model.trainable_variables), model.trainable_variables))
    return {"g": g_loss, "d": d_loss}

for epoch in range(3):
    for x, _ in ds:
        train_step(x)
""",
        "train_step",
    )


def test_critic_loop_inside_the_step() -> None:
    decorates(
        HEAD
        + """
def train_step(x, y):
    for _ in range(5):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                out = model(x)
            gp = tf.reduce_mean(tf.norm(inner.gradient(out, [x])[0], axis=1))
            loss = mse(y, out) + 10.0 * gp
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss

for x, y in ds:
    train_step(x, y)
""",
        "train_step",
    )


def test_raw_variables_and_assign() -> None:
    decorates(
        """
        import tensorflow as tf
        w, b = tf.Variable([[1.0]]), tf.Variable(0.0)
        lr = 0.1
        def step(x, y):
            with tf.GradientTape(persistent=True) as t:
                loss = tf.reduce_mean((x @ w + b - y) ** 2)
            dw = t.gradient(loss, w)
            db = t.gradient(loss, b)
            del t
            w.assign_sub(lr * dw)
            b.assign(b - lr * db)
            return loss
        for i in range(100):
            step(tf.ones((4, 1)), tf.zeros((4, 1)))
        """,
        "step",
    )


def test_minimize_of_a_lambda() -> None:
    decorates(
        """
        import tensorflow as tf
        w = tf.Variable([[1.0]])
        opt = tf.keras.optimizers.SGD(0.1)
        def step(x):
            opt.minimize(lambda: tf.reduce_sum((x @ w) ** 2), var_list=[w])
        for i in range(100):
            step(tf.ones((4, 1)))
        """,
        "step",
    )


def test_trainer_class_with_its_callers() -> None:
    decorates(
        HEAD
        + """
class Trainer:
    def __init__(self, model, optimizer, beta=0.5):
        self.model, self.optimizer = model, optimizer
        self.beta = beta
        self.mean = tf.keras.metrics.Mean()

    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.beta * mse(y, self.model(x, training=True))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.mean.update_state(loss)

    def fit(self, data):
        for x, y in data:
            self.step(x, y)
        return self.mean.result()

Trainer(model, opt).fit(ds)
""",
        "step",
    )


def test_training_step_of_a_keras_model_is_left_to_keras() -> None:
    check.ignores(
        HEAD
        + """
class Net(tf.keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = mse(y, self(x, training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss}
net = Net()
net.compile("sgd")
net.fit(ds)
"""
    )


@pytest.mark.parametrize(
    "source",
    [
        HEAD + decorated(STEP, "step") + LOOP,
        HEAD + decorated(STEP, "step", decorator="@tf.function(jit_compile=True)") + LOOP,
        HEAD + STEP + "fast = tf.function(step)\nfor x, y in ds:\n    fast(x, y)\n",
        HEAD + STEP + "@tf.function\ndef outer(x, y):\n    return step(x, y)\nfor x, y in ds:\n    outer(x, y)\n",
        HEAD + STEP + "step(tf.ones((8, 3)), tf.ones((8, 1)))\n",
        HEAD + "model.compile('sgd', 'mse')\nmodel.fit(ds)\n",
    ],
)
def test_nothing_to_do(source: str) -> None:
    check.ignores(source)


def test_graph_mode_is_not_looked_at() -> None:
    check.ignores(HEAD + STEP + LOOP, target="tf1.15")
    check.ignores("import tensorflow as tf\ntf.compat.v1.disable_eager_execution()\n" + HEAD + STEP + LOOP)


def test_evaluation_step() -> None:
    decorates(
        HEAD
        + STEP
        + "\ndef test_step(x, y):\n    acc.update_state(mse(y, model(x, training=False)))\n"
        + LOOP
        + "    for x, y in ds:\n        test_step(x, y)\n",
        "step",
        "test_step",
    )


def test_helper_that_gives_the_gradients() -> None:
    decorates(
        HEAD
        + """
def grad(net, x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, net(x))
    return loss, tape.gradient(loss, net.trainable_variables)

def step(x, y):
    loss, grads = grad(model, x, y)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss
"""
        + LOOP,
        "step",
    )


def test_names_of_the_file_are_used() -> None:
    source = (HEAD + STEP + LOOP).replace("import tensorflow as tf", "import tensorflow").replace("tf.", "tensorflow.")
    decorates(source, "step", decorator="@tensorflow.function")


# -- numbers ------------------------------------------------------------------------------------------------


def test_a_float_that_changes_becomes_a_tensor() -> None:
    source = HEAD + STEP.replace("(x, y)", "(x, y, beta)").replace("mse(y", "beta * mse(y")
    loop = "for i in range(10):\n    for x, y in ds:\n        step(x, y, {})\n"
    check.fixes(
        source + loop.format("0.1 * i"), decorated(source, "step").lstrip("\n") + loop.format("tf.constant(0.1 * i)")
    )
    refuses(source + loop.format("i"), "a Python number that changes")
    refuses("import keras\nkeras.backend.set_floatx('float64')\n" + source + loop.format("0.1 * i"), "which type")


def test_an_integer_that_is_cast_becomes_a_tensor() -> None:
    source = HEAD + STEP.replace("(x, y)", "(x, y, i)").replace("mse(y", "tf.cast(i, tf.float32) * mse(y")
    loop = "for i in range(10):\n    for x, y in ds:\n        step(x, y, {})\n"
    check.fixes(source + loop.format("i"), decorated(source, "step").lstrip("\n") + loop.format("tf.constant(i)"))


def test_constants_stay() -> None:
    source = HEAD + STEP.replace("(x, y)", "(x, y, beta, training=True)").replace("mse(y", "beta * mse(y")
    decorates(source + "for x, y in ds:\n    step(x, y, 0.5)\n", "step")


def test_a_number_that_decays_by_augmentation() -> None:
    source = HEAD + STEP.replace("(x, y)", "(x, y, beta)").replace("mse(y", "beta * mse(y") + "beta = 1.0\n"
    loop = "for i in range(10):\n    for x, y in ds:\n        step(x, y, {})\n    beta *= 0.9\n"
    check.fixes(source + loop.format("beta"), decorated(source, "step").lstrip("\n") + loop.format("tf.constant(beta)"))


def test_a_flag_that_chooses_what_is_made() -> None:
    source = HEAD + STEP.replace("(x, y)", "(x, y, warm)").replace(
        "    opt.apply", "    if warm:\n        return loss\n    opt.apply"
    )
    refuses(
        source + "for x, y in ds:\n    step(x, y, True)\nfor x, y in ds:\n    step(x, y, False)\n", "branches on `warm`"
    )


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("print('loss', loss)", "it prints"),
        ("seen.append(loss)", "changes `seen`"),
        ("count[0] += 1", "changes `count`"),
        ("seen.__iadd__([loss])", "changes `seen`"),
        ("seen.__setitem__(0, loss)", "changes `seen`"),
        ("again = seen\n    again.append(loss)", "`seen`"),
        ("again = seen\n    again += [loss]", "`seen`|`again`"),
        ("first = count\n    first[0] += 1", "`count`|`first`"),
        ("noise = rng.normal()", "`rng.normal`"),
        ("noise = new_rng().rand(3)", "would draw once|not seen"),
        ("loss = loss * draws.random()", "`draws.random`"),
        ("model.last = loss", "sets `model.last`"),
        ("opt.learning_rate = 0.1", "sets `opt.learning_rate`"),
        ("global total; total = loss", "global `total`"),
        ("seen[0] = loss.numpy()", "`.numpy()`"),
        ("value = float(loss)", "`float()`"),
        ("value = int(tf.reduce_sum(x))", "`int()`"),
        ("m = np.mean(loss)", "`np.mean`"),
        ("noise = np.random.rand()", "`np.random.rand`"),
        ("noise = random.random()", "`random.random`"),
        ("start = time.time()", "`time.time`"),
        ("logging.info('step')", "`logging.info`"),
        ("open('log.txt', 'a').write('x')", "`open`"),
        ("tf.summary.scalar('loss', loss, step=opt.iterations)", "`tf.summary.scalar`"),
        ("v = tf.Variable(0.0)", "new variable"),
        ("layer = tf.keras.layers.Dense(2)", "new layer"),
        ("o = tf.keras.optimizers.Adam()", "new optimizer"),
        ("m = tf.keras.metrics.Mean()", "new metric"),
        ("yield loss", "generator"),
        ("if loss > 1.0: grads = [g * 0.5 for g in grads]", "branches on a tensor"),
        ("if count[0] > 3: grads = [g * 0.5 for g in grads]", "changed later"),
        ("scale = 1.0 if loss > 1.0 else 0.5", "branches on a tensor"),
        ("ok = loss > 1.0 and loss < 2.0", "`and`"),
        ("ok = not tf.reduce_any(loss > 1.0)", "`not`"),
        ("assert loss > 0.0", "assertion"),
        ("while loss > 1.0: loss = loss / 2.0", "`while` loop"),
        ("for v in loss: pass", "iterates over a tensor"),
        ("for i in range(1000): loss = loss + 0.0", "1000 numbers"),
        ("for i in range(tf.shape(x)[0]): pass", "range"),
        ("for a, b in ds: pass", "loop over data"),
        ("s = sum(loss)", "`sum()`"),
        ("m = max(tf.reduce_sum(x), loss)", "`max()`"),
        ("helper(loss)", "`print`|it prints"),
        ("unseen(loss)", "what `unseen` "),
        ("w = unknown_lib.thing(loss)", "unknown_lib.thing"),
        ("loss = step(x, y)", "calls itself"),
        ("t = tf.py_function(lambda a: a, [loss], tf.float32)", "Python code"),
        ("model.save_weights('w.h5')", "`model.save_weights`"),
        ("saved.save('w')", "`saved.save`"),
        ("kept.save()", "`kept.save`"),
        ("writer.flush()", "`writer.flush`"),
        ("model.predict(x)", "`model.predict`"),
        ("tf.random.set_seed(1)", "`tf.random.set_seed`"),
        ("tf.keras.backend.get_value(loss)", "get_value"),
        ("ok = isinstance(x, np.ndarray)", "type"),
        ("table = lookup[loss]", "index into Python"),
        ("bar.update(1)", "`bar`"),
        ("d = {loss: 1}; d.pop(loss).numpy()", "`.numpy()`"),
        ("import json; json.dumps({})", "`json.dumps`"),
        ("next(iterator)", "`next`"),
        ("text = f'{loss:.2f}'", "into a string"),
        ("text = '%.3f' % loss", "into a string"),
        ("text = 'loss {}'.format(loss)", "into a string"),
        ("text = str(loss)", "into a string"),
        ("text = '{} {}'.format(1, x.shape)\n    print(text)", "it prints"),
    ],
)
def test_what_a_step_may_not_do(line: str, reason: str) -> None:
    head = (
        "import random, time, logging, json\nfrom tqdm import tqdm\nimport unknown_lib\nfrom unknown_lib import unseen\n"
        + HEAD
        + "seen, count, total, lookup = [], [0], 0.0, [1, 2, 3]\nbar = tqdm(total=3)\niterator = iter(ds)\n"
        + "def helper(v):\n    print(v)\n"
        + "rng = np.random.RandomState(1)\ndraws = np.random.default_rng(2)\n"
        + "saved = tf.train.Checkpoint(model=model)\nkept = tf.train.CheckpointManager(saved, 'w', 3)\n"
        + "writer = tf.summary.create_file_writer('w')\n"
        + "def new_rng():\n    return np.random.RandomState(1)\n"
    )
    source = head + INSIDE.format(line=line) + LOOP + "    count[0] += 1\n"
    result = check.run(source.lstrip("\n"))
    assert result.after == result.before, result.after.decode()
    assert any(part in r.reason for r in result.refused for part in reason.split("|")), result.refused


@pytest.mark.parametrize(
    "line",
    [
        "grads = [tf.clip_by_norm(g, 1.0) for g in grads]",
        "grads, norm = tf.clip_by_global_norm(grads, 5.0)",
        "parts = []\n    for g in grads:\n        parts.append(tf.reduce_sum(g))\n    loss = loss + 0.0 * tf.add_n(parts)",
        "loss += sum(model.losses)",
        "if model.losses: loss = loss + tf.add_n(model.losses)",
        "tf.print('loss', loss)",
        "acc.update_state(loss)",
        "acc(loss)",
        "n = x.shape[0]",
        "n = tf.shape(x)[0]",
        "assert x.shape[1] == 3",
        "logs = {'loss': loss}",
        "loss = tf.where(loss > 1.0, loss, 1.0)",
        "loss = tf.cond(loss > 1.0, lambda: loss, lambda: loss * 2.0)",
        "for layer in model.layers: loss = loss + 0.0",
        "loss = loss * np.pi",
        "loss = loss * np.sqrt(2.0)",
        "name = 'step %d' % 3",
        "if clip is not None: grads = [tf.clip_by_value(g, -clip, clip) for g in grads]",
        "if args.wd > 0: loss = loss * args.wd",
        "grads = [g for g in grads if g is not None]",
        "grads = [(g * scale) for g in grads]",
        "def inner(v):\n        return v * 2.0\n    loss = inner(loss)",
        "lr = opt.learning_rate",
        "opt.learning_rate.assign(0.01)",
        "fn = lambda v: v + 1.0\n    loss = fn(loss)",
        "for v in model.trainable_variables: loss = loss + 0.0 * tf.nn.l2_loss(v)",
        "with tf.name_scope('update'): loss = tf.identity(loss)",
        "loss = functools.reduce(lambda a, b: a + b, [loss, loss])",
    ],
)
def test_what_a_step_may_do(line: str) -> None:
    head = (
        "import argparse, functools\n" + HEAD + "clip, scale = 1.0, 0.5\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--wd', type=float)\nargs = parser.parse_args()\n"
    )
    decorates(head + INSIDE.format(line=line) + LOOP, "step")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("3", "not a tensor"),
        ("'done'", "not a tensor"),
        ("model", "not a tensor"),
        ("tape", "not a tensor"),
        ("loss, True", "not a tensor"),
        ("w", "holds variables"),
        ("model.trainable_variables", "more than tensors"),
        ("both", "more than tensors"),
    ],
)
def test_what_a_step_may_not_return(value: str, reason: str) -> None:
    source = STEP.replace("return loss", f"return {value}") + LOOP.replace("print(float(loss))", "pass")
    refuses(HEAD + "w = tf.Variable(1.0)\nboth = [w, w]\n" + source, reason)


@pytest.mark.parametrize("value", ["None", "loss, grads", "{'loss': loss}", "[loss, acc.result()]"])
def test_what_a_step_may_return(value: str) -> None:
    decorates(
        HEAD + STEP.replace("return loss", f"return {value}") + LOOP.replace("print(float(loss))", "pass"), "step"
    )


@pytest.mark.parametrize(
    ("before", "inside", "behind", "reason"),
    [
        ("rate = 0.1", "loss = loss * rate", "    rate *= 0.5", "another value later"),
        ("flag = False", "loss = loss if flag else loss * 2.0", "    flag = True", "another value later"),
        ("beta = [0.1]", "loss = loss * beta[0]", "    beta[0] = 0.2", "changed later"),
        ("cfg = {'a': 0.1}", "loss = loss * cfg['a']", "    cfg['a'] = 0.2", "changed later"),
        ("class C: pass\nc = C()\nc.a = 0.1", "loss = loss * c.a", "    c.a = 0.2", "another value"),
        (
            "",
            "loss = loss * float(1)",
            "    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])",
            "another value later",
        ),
        ("", "loss = loss * 1.0", "    model.trainable = False", "`trainable` is set"),
        ("", "loss = loss * 1.0", "    for l in model.layers:\n        l.trainable = True", "`trainable` is set"),
        ("", "loss = loss * 1.0", "    setattr(model, 'trainable', True)", "`trainable` is set"),
        ("", "loss = loss * epoch", "", "another value later"),
        ("a = np.ones((8, 3))", "loss = loss + tf.reduce_sum(a)", "    np.random.shuffle(a)", "changed later"),
        ("a = np.ones((8, 3))", "loss = loss + tf.reduce_sum(a)", "    a[0] = 2.0", "changed later"),
        ("a = np.ones((8, 3))", "loss = loss + tf.reduce_sum(a)", "    a += 2.0", "another value later"),
        ("a = np.ones((8, 3))", "loss = loss + tf.reduce_sum(a)", "    a.fill(2.0)", "changed later"),
        ("params = []", "loss = loss + len(params)", "    params.append(1)", "changed later"),
        ("cfg = {'a': 0.1}\nother = cfg", "loss = loss * cfg['a']", "    other['a'] = 0.2", "changed later"),
        ("other = {'a': 0.1}\ncfg = other", "loss = loss * cfg['a']", "    other['a'] = 0.2", "changed later"),
        ("cfg = {'a': 0.1}\nx2, other = 1, cfg", "loss = loss * cfg['a']", "    other['a'] = 0.2", "changed later"),
        (
            "cfg = {'a': 0.1}\ndef change(c, v):\n    c['a'] = v",
            "loss = loss * cfg['a']",
            "    change(cfg, 0.2)",
            "changed later",
        ),
        (
            "cfg = {'a': 0.1}\ndef change(c=cfg):\n    c.update(a=0.2)",
            "loss = loss * cfg['a']",
            "    change()",
            "changed later",
        ),
        (
            "class C:\n    def __init__(self, c):\n        self.c = c\ncfg = {'a': 0.1}\nheld = C(cfg)",
            "loss = loss * cfg['a']",
            "    held.c['a'] = 0.2",
            "changed later",
        ),
        (
            "class C:\n    def __init__(self, c):\n        self.c = c\ncfg = {'a': 0.1}\nheld = C(cfg)",
            "loss = loss * held.c['a']",
            "    cfg['a'] = 0.2",
            "changed later",
        ),
        ("rows = [np.ones(3)]", "loss = loss + rows[0][0]", "    for r in rows:\n        r[0] = 2.0", "changed later"),
        ("a = np.ones((8, 3))", "loss = loss + tf.reduce_sum(a)", "    np.copyto(a, 2.0)", "changed later"),
        ("a = np.ones((8, 3))", "loss = loss + tf.reduce_sum(a)", "    np.multiply(a, 2.0, out=a)", "changed later"),
        ("rate = 0.1", "loss = loss * rate", "    globals()['rate'] = 0.2", "another value"),
        ("rate = 0.1", "loss = loss * rate", "    globals().update(rate=0.2)", "another value"),
        ("class C: pass\nc = C()\nc.a = 0.1", "loss = loss * c.a", "    setattr(c, 'a', 0.2)", "another value"),
        ("class C:\n    a = 0.1\nc = C()", "loss = loss * c.a", "    c.__dict__['a'] = 0.2", "another value"),
        ("class C:\n    a = 0.1\nc = C()", "loss = loss * c.a", "    vars(c).update(a=0.2)", "another value"),
        (
            "class C:\n    a = 0.1\nc = C()",
            "loss = loss * c.a",
            "    for k in 'ab':\n        setattr(c, k, 0.2)",
            "another value",
        ),
        ("", "loss = loss * 1.0", "    opt.momentum = 0.5", "`momentum` is set"),
        ("", "loss = loss * 1.0", "    opt.clipnorm = 0.5", "`clipnorm` is set"),
        ("", "loss = loss * 1.0", "    setattr(opt, 'clipnorm', 0.5)", "`clipnorm` is set"),
        ("", "loss = loss * 1.0", "    for l in model.layers:\n        l.rate = 0.5", "`rate` is set"),
        ("", "loss = loss * 1.0", "    mse.reduction = 'sum'", "`reduction` is set"),
        ("", "loss = loss * 1.0", "    model.add(tf.keras.layers.Dense(1))", "changes the model"),
        ("", "loss = loss * 1.0", "    model.pop()", "changes the model"),
        (
            "def change():\n    global rate\n    rate = 2.0\nrate = 0.1",
            "loss = loss * rate",
            "    change()",
            "another value later",
        ),
    ],
)
def test_what_a_step_reads_must_stay(before: str, inside: str, behind: str, reason: str) -> None:
    refuses(HEAD + before + "\n" + INSIDE.format(line=inside) + LOOP + behind + "\n", reason)


@pytest.mark.parametrize(
    "before",
    [
        "rate = 0.1\nrate = rate * 2",
        "rate = 0.1\nopt.momentum = 0.5\nmodel.add(tf.keras.layers.Dense(1))",
        "cfg = {'a': 0.1}\nother = cfg\nother['a'] = 0.2\nrate = cfg['a']",
        "globals()['size'] = 3\nrate = 0.1\nclass C: pass\nsetattr(C, 'a', 1)",
        "rate = 0.1\nfor i in range(3):\n    rate *= 0.5",
        "def pick():\n    global rate\n    rate = 2.0\nrate = 0.1\npick()",
        "rate = 0.1\nmodel.trainable = True\nfor l in model.layers[:1]:\n    l.trainable = False",
        "params = []\nparams.append(1)\nrate = len(params)",
        "def build():\n    model.layers[0].trainable = False\n    return 0.1\nrate = build()",
    ],
)
def test_what_is_set_before_the_loop(before: str) -> None:
    decorates(HEAD + before + "\n" + INSIDE.format(line="loss = loss * rate") + LOOP, "step")


def test_attribute_that_another_method_sets() -> None:
    refuses(
        HEAD
        + """
class Trainer:
    def __init__(self):
        self.beta = 0.1
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.beta * mse(y, model(x))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    def anneal(self):
        self.beta = self.beta * 0.9
    def fit(self):
        for x, y in ds:
            self.step(x, y)
            self.anneal()
Trainer().fit()
""",
        "it reads `self.beta`",
    )


def test_state_of_the_object() -> None:
    refuses(
        HEAD
        + """
class Trainer:
    def __init__(self):
        self.count = 0
    def step(self, x, y):
        self.count += 1
        with tf.GradientTape() as tape:
            loss = mse(y, model(x))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
trainer = Trainer()
for x, y in ds:
    trainer.step(x, y)
""",
        "sets `self.count`",
    )


@pytest.mark.parametrize("what", ["optimizer", "net"])
def test_several_models_or_optimizers(what: str) -> None:
    refuses(
        HEAD
        + """
def step(net, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, net(x))
    optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
other_net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
other_optimizer = tf.keras.optimizers.SGD(0.1)
for x, y in ds:
    step(model, opt, x, y)
    step({}, {}, x, y)
""".format(*("model", "other_optimizer") if what == "optimizer" else ("other_net", "opt")),
        "several",
    )


def test_one_model_that_is_handed_over() -> None:
    decorates(
        HEAD
        + """
def step(net, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, net(x))
    optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
for x, y in ds:
    step(model, opt, x, y)
""",
        "step",
    )


def test_a_model_per_fold() -> None:
    source = """
def step(net, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, net(x))
    optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
for fold in range(3):
    net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    for x, y in ds:
        step(net, optimizer, x, y)
"""
    refuses(HEAD + source, "made anew")


def test_a_function_per_fold() -> None:
    decorates(
        HEAD
        + """
for fold in range(3):
    net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = mse(y, net(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    for x, y in ds:
        step(x, y)
""",
        "step",
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (STEP + "import threading\nthreading.Thread(target=step)\n" + LOOP, "handed on"),
        ("from lib import thing\n" + STEP.replace("def step", "@thing\ndef step") + LOOP, "decorator `@thing`"),
        ("tf.config.run_functions_eagerly(True)\n" + STEP + LOOP, "runs every `tf.function` as Python"),
        ("strategy = tf.distribute.MirroredStrategy()\n" + STEP + LOOP, "MirroredStrategy"),
        (STEP.replace("def step", "async def step") + LOOP.replace("step(", "await step("), "coroutine"),
        (
            STEP.replace("(x, y)", "(*args)").replace("model(x", "model(args[0]").replace("mse(y", "mse(args[1]")
            + LOOP,
            "any arguments",
        ),
        (STEP + "for x, y in ds:\n    step(x, open('y').read())\n", "is not known"),
        (
            STEP.replace("with tf", "try:\n        with tf")
            .replace("        loss =", "            loss =")
            .replace("    grads =", "    except ValueError:\n        pass\n    grads =")
            + LOOP,
            "`try`",
        ),
    ],
)
def test_other_refusals(source: str, reason: str) -> None:
    text = HEAD + source
    try:
        compile(text, "", "exec")
    except SyntaxError:
        text = (
            HEAD
            + STEP.replace("def step", "async def step")
            + "async def main():\n    for x, y in ds:\n        await step(x, y)\n"
        )
    refuses(text, reason)


def test_unseen_model() -> None:
    refuses(
        (HEAD + STEP + LOOP)
        .replace("model = tf.keras.Sequential(", "from nets import build\nmodel = build(")
        .replace("[tf.", "[tf."),
        "not seen",
    )


def test_layer_that_counts() -> None:
    refuses(
        HEAD
        + """
class Noisy(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def call(self, x):
        self.calls += 1
        return x
model = tf.keras.Sequential([Noisy(), tf.keras.layers.Dense(1)])
"""
        + STEP
        + LOOP,
        "sets `self.calls`",
    )


# -- decorators, shapes, random numbers ---------------------------------------------------------------------


def test_decorator_order() -> None:
    wrapper = """
def timed(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        start = time.time()
        out = fn(*args, **kwargs)
        print(time.time() - start)
        return out
    return inner
"""
    source = ("import functools, time\n" + HEAD + wrapper + STEP.replace("def step", "@timed\ndef step") + LOOP).lstrip(
        "\n"
    )
    check.fixes(source, source.replace("@timed\ndef", "@timed\n@tf.function\ndef"))
    refuses(source.replace("fn(*args, **kwargs)", "fn(np.array(args[0]), args[1])"), "decorator `@timed`")


def test_static_method() -> None:
    decorates(
        HEAD
        + "class T:\n    @staticmethod\n"
        + textwrap.indent(STEP.lstrip("\n"), "    ")
        + LOOP.replace("step(", "T.step("),
        "step",
    )


@pytest.mark.parametrize(
    ("target", "option"), [("tf2.15", "reduce_retracing=True"), ("tf2.8", "experimental_relax_shapes=True")]
)
def test_sequences_of_any_length(target: str, option: str) -> None:
    source = (HEAD + STEP + LOOP).replace(".batch(8)", ".padded_batch(8)")
    decorates(source, "step", decorator=f"@tf.function({option})", target=target)
    refuses(source.replace("loss = mse", "n = x.shape[0]\n        loss = mse"), "static shape")
    decorates(source.replace("padded_batch(8)", "padded_batch(8, padded_shapes=([3], [1]))"), "step")


DROPOUT = (HEAD + STEP + LOOP).replace(
    "tf.keras.layers.Dense(1)]", "tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)]"
)


def test_random_numbers_without_a_seed() -> None:
    decorates(DROPOUT, "step", level=1)
    decorates(HEAD + STEP.replace("model(x,", "model(x + tf.random.normal((8, 3)),") + LOOP, "step", level=1)


def test_random_numbers_with_a_seed() -> None:
    seeded = "import tensorflow as tf\ntf.keras.utils.set_random_seed(1)\n"
    refuses(seeded + DROPOUT, "draws other random numbers", level=1)
    decorates(seeded + DROPOUT, "step", level=2)
    decorates(seeded + DROPOUT, "step", level=1, target="tf2.21")  # Keras 3 draws from its own state
    noisy = seeded + HEAD + STEP.replace("model(x,", "model(x + tf.random.normal((8, 3)),") + LOOP
    refuses(noisy, "draws other random numbers", level=1, target="tf2.21")
    decorates(noisy.replace("normal((8, 3))", "normal((8, 3), seed=4)"), "step", level=1)
    decorates(seeded + HEAD + STEP + LOOP, "step", level=1)


def test_what_a_function_sets_that_runs_in_every_epoch() -> None:
    """It stands above the first call of the step, and runs again behind it."""
    epoch = "def run(n):\n    {}\n    for x, y in ds:\n        step(x, y)\nfor epoch in range(3):\n    run(epoch)\n"
    for line, reason in (
        ("model.layers[0].trainable = n > 1", "`trainable` is set"),
        ("opt.momentum = n / 3", "`momentum` is set"),
        ("cfg['a'] = n", "changed later"),
        ("global rate; rate = n", "another value later"),
    ):
        source = HEAD + "cfg, rate = {'a': 1}, 1.0\n" + STEP.replace("= mse", "= cfg['a'] * rate * mse")
        refuses(source + epoch.format(line), reason)
        decorates(source + epoch.format(line).replace("for epoch in range(3):\n    run(epoch)", "run(3)"), "step")


def test_rate_may_be_set_at_any_time() -> None:
    decorates(HEAD + STEP + LOOP + "    opt.learning_rate = 0.1 / (epoch + 1)\n    opt.lr = 0.1\n", "step")


def test_globals_that_another_module_sets(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text((HEAD + "rate = 0.1\n" + INSIDE.format(line="loss = loss * rate")).lstrip("\n"))
    main = "import steps\nfor epoch in range(3):\n    {}\n    for x, y in steps.ds:\n        steps.step(x, y)\n"
    results = []
    for line in ("pass", "steps.rate = 0.5", "setattr(steps, 'rate', 0.5)"):
        (tmp_path / "train.py").write_text(main.format(line))
        paths = [tmp_path / "train.py", tmp_path / "steps.py"]
        options = Options(1, frozenset({"tf-function"}))
        results.append(rewrite(paths, options, lambda _: named("tf2.15"))[1])
    assert b"@tf.function" in results[0].after
    for result in results[1:]:
        assert result.after == result.before and "another value" in result.refused[0].reason


@pytest.mark.parametrize("kind", ["staticmethod", "classmethod"])
def test_first_parameter_of_methods(kind: str) -> None:
    """What a class or an object fills is not a batch, and a batch is not what an object fills."""
    step = STEP.replace("def step(", f"@{kind}\ndef step(" + ("cls, " if kind == "classmethod" else ""))
    source = HEAD + "class T:\n" + textwrap.indent(step.lstrip("\n"), "    ") + LOOP.replace("step(", "T().step(")
    decorates(source, "step")
    refuses(source.replace("with tf", "m = np.mean(x)\n        with tf"), "`np.mean`")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n = tf.boolean_mask(pred, y > 0.5).shape[0]", "static shape"),
        ("some = tf.boolean_mask(pred, y > 0.5)\n    n = len(some)", "static shape"),
        ("some = tf.gather_nd(pred, tf.where(y > 0.5))\n    n = some.shape[0]", "static shape"),
        ("some = tf.zeros((tf.reduce_sum(tf.cast(y, tf.int32)),))\n    n = some.shape[0]", "static shape"),
        ("some = tf.boolean_mask(pred, y > 0.5)\n    n = x.shape[0]", ""),
        ("some = tf.where(y > 0.5, y, 0.0)\n    n = some.shape[0]", ""),
        ("some = tf.zeros((3, 2))\n    n = some.shape[0]", ""),
    ],
)
def test_shapes_that_depend_on_values(line: str, reason: str) -> None:
    source = HEAD + INSIDE.format(line=line) + LOOP
    if reason:
        refuses(source, reason)
    else:
        decorates(source, "step")


@pytest.mark.parametrize("value", ["weights", "list(weights)", "(loss, weights + [w])", "[v for v in weights]"])
def test_variables_are_not_returned(value: str) -> None:
    source = STEP.replace("return loss", f"weights = model.trainable_variables\n    return {value}")
    source += LOOP.replace("print(float(loss))", "pass")
    refuses(HEAD + "w = tf.Variable(1.0)\n" + source, "variables")


def test_numbers_of_a_list() -> None:
    source = HEAD + STEP.replace("(x, y):", "(x, y, a):").replace("loss = mse", "loss = a * mse")
    text = check.run(
        (source + "for a in [0.1, 0.2, 0.3]:\n    step(X, X, a)\n").replace("X", "tf.ones((8, 3))").lstrip("\n")
    )
    assert "tf.constant(a)" in text.after.decode() and "@tf.function" in text.after.decode()
    many = "for a in [1, 2, 3, 4, 5, 6]:\n    step(X, X, a)\n".replace("X", "tf.ones((8, 3))")
    refuses(source + many, "integer computes in another type")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("np.random.rand()", ""),
        ("np.random.uniform(0.5, 1.0)", ""),
        ("rng.normal() * 2 + 1", ""),
        ("np.random.randint(3)", "integer computes in another type"),
        ("np.random.rand(1)", "NumPy array"),
        ("np.random.uniform(size=(8, 1))", "NumPy array"),
        ("np.random.normal(np.zeros(3))", "NumPy array"),
    ],
)
def test_numbers_that_are_drawn(number: str, reason: str) -> None:
    """A trace for each of them would be slower than no graph."""
    step = STEP.replace("(x, y):", "(x, y, a):").replace("loss = mse(y, model(x, training=True))", "loss = a * y")
    source = HEAD + "rng = np.random.default_rng(0)\n" + step + LOOP.replace("(x, y)\n", f"(x, y, {number})\n")
    if reason:
        refuses(source, reason)
    else:
        text = check.run(source.lstrip("\n")).after.decode()
        assert f"step(x, y, tf.constant({number}))" in text and "@tf.function" in text


@pytest.mark.parametrize(
    "variable",
    ["v = tf.Variable(np.ones(3))", "v = tf.cast(np.ones(3), 'double')", "a = np.random.rand(3)\nv = tf.Variable(a)"],
)
def test_number_beside_double_precision(variable: str) -> None:
    refuses(
        HEAD
        + variable
        + STEP.replace("(x, y):", "(x, y, a):").replace("loss = mse", "loss = a * mse")
        + LOOP.replace("(x, y)\n", "(x, y, epoch / 3)\n"),
        "which type",
    )


@pytest.mark.parametrize(
    "loop",
    [
        "a = np.ones((40, 3), 'float32')\nfor n in range(1, 9):\n    step(a[:n], a[:n, :1])\n",
        "a = [np.ones((n, 3), 'float32') for n in range(8)]\nfor x in a:\n    step(x, x)\n",
        "def gen():\n    for n in (3, 5, 7):\n        yield np.ones((n, 3), 'float32'), np.ones((n, 1), 'float32')\n"
        "for x, y in gen():\n    step(x, y)\n",
        "for n in range(1, 9):\n    x = np.random.rand(n, 3)\n    step(x, x)\n",
    ],
)
def test_arrays_of_any_length(loop: str) -> None:
    decorates(HEAD + STEP + loop, "step", decorator="@tf.function(reduce_retracing=True)")


@pytest.mark.parametrize(
    "loop",
    [
        "a = np.ones((40, 3), 'float32')\nfor i in range(5):\n    step(a[i * 8:(i + 1) * 8], a[i * 8:(i + 1) * 8])\n",
        "a = np.ones((40, 3), 'float32')\nfor i in range(5):\n    end = i + 8\n    step(a[i:end], a[i:end])\n",
        "for i in range(5):\n    x = np.random.rand(8, 3)\n    step(x, x)\n",
    ],
)
def test_arrays_of_one_length(loop: str) -> None:
    decorates(HEAD + STEP + loop, "step")


# -- steps in functions that are called for every epoch ------------------------------------------------------

EPOCH = """
def train_epoch(net, sgd, data):
    for x, y in data:
        with tf.GradientTape() as tape:
            loss = mse(y, net(x))
        sgd.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    print(float(loss))


"""


def test_function_that_is_called_for_every_epoch() -> None:
    """A step that it defined would be traced in every epoch."""
    lifts(
        "\n" + EPOCH + "for epoch in range(3):\n    train_epoch(model, opt, ds)\n",
        """

@tf.function
def train_step(x, y, net, sgd):
    with tf.GradientTape() as tape:
        loss = mse(y, net(x))
    sgd.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss


def train_epoch(net, sgd, data):
    for x, y in data:
        loss = train_step(x, y, net, sgd)
    print(float(loss))


for epoch in range(3):
    train_epoch(model, opt, ds)
""",
    )


@pytest.mark.parametrize(
    "calls",
    [
        "for net in (model, second):\n    train_epoch(net, opt, ds)\n",
        "for epoch in range(3):\n    train_epoch(model, opt, ds)\n    train_epoch(second, opt, ds)\n",
        "for fold in range(3):\n    train_epoch(model, tf.keras.optimizers.SGD(0.1), ds)\n",
        "for fold in range(3):\n    second = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
        "    train_epoch(second, opt, ds)\n",
    ],
)
def test_another_model_in_every_call(calls: str) -> None:
    source = HEAD + "second = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n" + EPOCH + calls
    text = check.run(source.lstrip("\n")).after.decode()
    assert "\n@tf.function" not in text, text  # if at all, in the function


def test_two_models_of_one_step() -> None:
    source = STEP.replace("(x, y)", "(first, second, x, y)").replace("model(x, training=True)", "second(first(x))")
    source = source.replace("model.trainable_variables", "first.trainable_variables")
    made = "second = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
    decorates(HEAD + made + source + LOOP.replace("step(x", "step(model, second, x"), "step")
    refuses(
        HEAD + made + source + "for x, y in ds:\n    step(model, second, x, y)\n    step(second, model, x, y)\n",
        "several",
    )


# -- steps that stand in the loop ---------------------------------------------------------------------------

INLINE = """
for epoch in range(3):
    for x, y in ds:
        with tf.GradientTape() as tape:
            loss = mse(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
    print(float(loss))
"""

LIFTED = """

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for epoch in range(3):
    for x, y in ds:
        loss = train_step(x, y)
    print(float(loss))
"""


def lifts(before: str, after: str, **options: object) -> None:
    check.fixes((HEAD + before).lstrip("\n"), (HEAD + after).lstrip("\n"), **options)


def test_inline() -> None:
    lifts(INLINE, LIFTED)


def test_inline_in_a_function() -> None:
    lifts(
        "\n\ndef main():" + textwrap.indent(INLINE, "    ") + "\nmain()\n",
        "\n\ndef main():\n" + textwrap.indent(LIFTED.lstrip("\n").replace("\n\n\n", "\n\n"), "    ") + "\nmain()\n",
    )


def test_inline_with_metrics_and_comments() -> None:
    lifts(
        """
        # train
        for epoch in range(3):
            for step, (x, y) in enumerate(ds):
                # forward and backward
                with tf.GradientTape() as tape:
                    out = model(x)  # logits
                    loss = mse(y,
                               out)

                grads = tape.gradient(loss, model.trainable_variables)
                # update
                opt.apply_gradients(zip(grads, model.trainable_variables))
                acc.update_state(loss)  # running mean

                # log
                if step % 10 == 0:
                    print(step, float(loss))
        """.replace("\n        ", "\n"),
        """

@tf.function
def train_step(x, y):
    # forward and backward
    with tf.GradientTape() as tape:
        out = model(x)  # logits
        loss = mse(y,
                   out)

    grads = tape.gradient(loss, model.trainable_variables)
    # update
    opt.apply_gradients(zip(grads, model.trainable_variables))
    acc.update_state(loss)  # running mean
    return loss


# train
for epoch in range(3):
    for step, (x, y) in enumerate(ds):
        loss = train_step(x, y)

        # log
        if step % 10 == 0:
            print(step, float(loss))
""",
    )


def test_inline_name_is_free() -> None:
    lifts(
        "train_step = 3\n" + INLINE,
        "train_step = 3\n" + LIFTED.replace("train_step", "training_step"),
    )


def test_two_inline_steps_get_two_names() -> None:
    result = check.run((HEAD + INLINE + INLINE.replace("ds:", "ds.take(2):")).lstrip("\n"))
    text = result.after.decode()
    assert text.count("@tf.function") == 2 and "def train_step(" in text and "def training_step(" in text


def test_inline_number() -> None:
    body = """
rate = 0.5
for epoch in range(3):
    rate = rate * 0.9
    for x, y in ds:
        with tf.GradientTape() as tape:
            loss = {} * mse(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
"""
    text = check.run((HEAD + body.format("rate")).lstrip("\n")).after.decode()
    assert "def train_step(x, y, rate):" in text and "        train_step(x, y, tf.constant(rate))" in text
    refuses(HEAD + body.format("epoch"), "`epoch`")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("print(loss, opt.iterations)", "it prints|`print`"),
        ("print(float(acc.result()))", "`float()`"),
        ("history.append(loss); grads = [g * history[0] for g in grads]", "changes `history`|several"),
        ("history.append(model.get_weights())", "changes `history`"),
        ("total = total + loss.numpy()", "`.numpy()`|what `total`"),
        ("if epoch > 1: break", "`break`|`epoch`"),
        ("text = '''a\nb'''", "several lines"),
        ("if float(loss) > 1.0: continue", "`continue`|`float"),
        ("del grads[0]", "deletes"),
    ],
)
def test_inline_refusals(line: str, reason: str) -> None:
    source = (
        HEAD + "history, total = [], 0.0\n" + INLINE.replace("        opt.apply", f"        {line}\n        opt.apply")
    )
    result = check.run(source.lstrip("\n"))
    assert result.after == result.before, result.after.decode()
    assert any(part in r.reason for r in result.refused for part in reason.split("|")), result.refused


def test_what_only_looks_at_the_step_runs_behind_it() -> None:
    lifts(
        """
history, total, n = [], 0.0, 0
for x, y in ds:
    with tf.GradientTape() as tape:
        loss = mse(y, model(x))
    # how it goes
    history.append(loss.numpy())
    total += loss
    n += 1
    if n % 10 == 0:
        print(n, float(loss))
    # update
    grads = tape.gradient(loss, model.trainable_variables)
    total += tf.reduce_mean(x)
    opt.apply_gradients(zip(grads, model.trainable_variables))
""",
        """
history, total, n = [], 0.0, 0


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, model(x))
    # update
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for x, y in ds:
    loss = train_step(x, y)
    # how it goes
    history.append(loss.numpy())
    total += loss
    n += 1
    if n % 10 == 0:
        print(n, float(loss))
    total += tf.reduce_mean(x)
""",
    )


@pytest.mark.parametrize(
    ("aside", "later"),
    [
        ("total += float(loss)", "grads = [g * total for g in grads]"),
        ("history.append(float(loss))", "loss = loss * 2.0"),
        ("history.append(float(loss))", "grads = [g * len(history) for g in grads]"),
        ("history.append(float(loss))", "grads = [g * len(same) for g in grads]"),
        ("history.append(w.numpy())", "w.assign_sub(0.1)"),
        ("history.append(opt.learning_rate.numpy())", "grads = grads"),
    ],
)
def test_what_the_step_reads_later_is_no_aside(aside: str, later: str) -> None:
    lines = f"        {aside}\n        {later}\n        opt.apply"
    source = (
        HEAD
        + "w = tf.Variable(1.0)\nhistory, total = [], 0.0\nsame = history\n"
        + INLINE.replace("        opt.apply", lines)
    )
    result = check.run(source.lstrip("\n"))
    assert result.after == result.before and result.refused, result.after.decode()


@pytest.mark.parametrize(
    ("line", "behind", "reason"),
    [
        ("if x.dtype == y.dtype: extra = loss", "print(extra)", "without a value"),
        ("weights = model.trainable_variables", "print(weights)", "holds variables"),
        ("for w in model.trainable_variables: loss = loss + tf.nn.l2_loss(w)", "print(w.name)", "holds variables"),
        ("part = loss", "del part, x", "`del`"),
        ("part = loss", "if epoch:\n            del part", "`del`"),
        ("part = loss", "print('{part}'.format(**locals()))", "`locals()`"),
    ],
)
def test_what_is_read_behind_the_step(line: str, behind: str, reason: str) -> None:
    lines = f"        {line}\n        opt.apply"
    source = INLINE.replace("        opt.apply", lines).replace("    print(float(loss))", f"        {behind}")
    refuses(HEAD + source, reason)


def test_deleted_tape() -> None:
    deleted = INLINE.replace("GradientTape()", "GradientTape(persistent=True)").replace(
        "    print(float(loss))", "        del tape, grads\n    print(float(loss))"
    )
    lifts(deleted, LIFTED.replace("GradientTape()", "GradientTape(persistent=True)"))


@pytest.mark.parametrize("state", ["state", "[state]", "(state,)"])
def test_state_that_is_carried_in_one_statement(state: str) -> None:
    loss = f"out, {state} = cell(x, {state})\n            loss = mse(y, out)"
    source = HEAD + "cell = tf.keras.layers.SimpleRNNCell(3)\nstate = tf.zeros((8, 3))\n"
    source += INLINE.replace("loss = mse(y, model(x, training=True))", loss)
    text = check.run(source.lstrip("\n")).after.decode()
    assert "        state, loss = train_step(x, y, state)" in text


def test_inline_in_a_generator() -> None:
    refuses(
        HEAD
        + "def run():\n"
        + textwrap.indent(INLINE.replace("    print(float(loss))", "    yield loss"), "    ")
        + "list(run())\n",
        "generator",
    )


def test_inline_update_under_a_condition() -> None:
    refuses(
        HEAD
        + INLINE.replace("for x, y in ds", "for i, (x, y) in enumerate(ds)").replace(
            "        opt.apply", "        if i % 2 == 0:\n            opt.apply"
        ),
        "`i`",
    )


def test_inline_per_fold() -> None:
    fold = """
for fold in range(3):
    net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    sgd = tf.keras.optimizers.SGD(0.1)
    for epoch in range(2):
        for x, y in ds:
            with tf.GradientTape() as tape:
                loss = mse(y, net(x))
            sgd.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
"""
    lifts(
        fold,
        """
for fold in range(3):
    net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    sgd = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = mse(y, net(x))
        sgd.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))

    for epoch in range(2):
        for x, y in ds:
            train_step(x, y)
""",
    )


IN_TAPE = """
for epoch in range(3):
    {first}
    for x, y in ds:
        with tf.GradientTape() as tape:
            out = model(x)
            loss = mse(y, out)
            mean.update_state(loss)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    {last}
"""


def test_a_metric_that_is_made_in_every_epoch_asks_for_no_function_in_it() -> None:
    made = "mean = tf.keras.metrics.Mean()"
    lifted = check.run(HEAD + made + IN_TAPE.format(first="mean.reset_state()", last="pass"))
    assert "def train_step" in lifted.after.decode()
    refuses(HEAD + IN_TAPE.format(first=made, last="pass"), "`mean` (line")
    refuses(HEAD + made + IN_TAPE.format(first="pass", last=made), "`mean` (line")
    per_model = "model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)"
    assert check.run(HEAD + IN_TAPE.format(first=f"{made}; {per_model}", last="pass")).applied


def test_inline_metrics_made_in_every_epoch_stay() -> None:
    lifts(
        """
for epoch in range(3):
    mean = tf.keras.metrics.Mean()
    for x, y in ds:
        with tf.GradientTape() as tape:
            loss = mse(y, model(x))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        mean.update_state(loss)
""",
        """

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, model(x))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(3):
    mean = tf.keras.metrics.Mean()
    for x, y in ds:
        loss = train_step(x, y)
        mean.update_state(loss)
""",
    )


def test_tabs() -> None:
    source = (HEAD + INLINE).lstrip("\n").replace("    ", "\t")
    result = check.run(source)
    assert "\n\twith tf.GradientTape() as tape:\n\t\tloss" in result.after.decode()


def test_replicas() -> None:
    source = (
        HEAD.replace("model =", "strategy = tf.distribute.MirroredStrategy()\nmodel =")
        + STEP
        + """
dist = strategy.experimental_distribute_dataset(ds)

def distributed_step(batch_x, batch_y):
    losses = strategy.run(step, args=(batch_x, batch_y))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

for x, y in dist:
    print(float(distributed_step(x, y)))
"""
    )
    decorates(source, "distributed_step")
    refuses(source.replace("strategy.reduce(", "print(").replace("losses, axis=None)", "losses)"), "it prints")
    in_loop = source[: source.index("def distributed")] + "for x, y in dist:\n    strategy.run(step, args=(x, y))\n"
    refuses(in_loop, "MirroredStrategy")


def test_update_in_a_helper() -> None:
    decorates(
        HEAD
        + """
def update_weights(gradients, weights):
    for g, w in zip(gradients, weights):
        w.assign_sub(g * 0.1)

def one_training_step(x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, model(x))
    gradients = tape.gradient(loss, model.weights)
    update_weights(gradients, model.weights)
    return loss

for x, y in ds:
    one_training_step(x, y)
""",
        "one_training_step",
    )


def test_what_changes_behind_the_last_call() -> None:
    decorates(
        HEAD + "rate = 0.1\n" + INSIDE.format(line="loss = loss * rate") + LOOP + "rate = 3\nmodel = None\n", "step"
    )
    refuses(
        HEAD + "rate = 0.1\n" + INSIDE.format(line="loss = loss * rate") + LOOP + "rate = 3\n" + LOOP,
        "another value later",
    )
    lifts(INLINE + "model = None\n", LIFTED + "model = None\n")


def test_large_array_from_outside() -> None:
    source = HEAD + "(images, labels), _ = tf.keras.datasets.mnist.load_data()\n" + INSIDE.format(line="pass")
    refuses(source.replace("model(x,", "model(images,") + LOOP, "constant of the graph")


def test_inline_evaluation() -> None:
    lifts(
        LIFTED
        + """
for x, y in ds:
    logits = model(x, training=False)
    # running mean
    acc.update_state(mse(y, logits))
print(acc.result())
""",
        LIFTED
        + """

@tf.function
def test_step(x, y):
    logits = model(x, training=False)
    # running mean
    acc.update_state(mse(y, logits))


for x, y in ds:
    test_step(x, y)
print(acc.result())
""",
    )


def test_loss_function_is_no_evaluation_step() -> None:
    source = """
def loss(net, x, y):
    return mse(y, net(x))

def step(x, y):
    with tf.GradientTape() as tape:
        value = loss(model, x, y)
    opt.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))

for x, y in ds:
    step(x, y)
    print(loss(model, x, y))
"""
    decorates(HEAD + source, "step")


def test_two_steps_in_one_loop() -> None:
    text = """
for epoch in range(3):
    for _ in range(5):
        x, y = next(iter(ds))
        with tf.GradientTape() as tape:
            loss = mse(y, model(x))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    x, y = next(iter(ds))
    with tf.GradientTape() as tape:
        loss = mse(y, model(x))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""
    after = check.run((HEAD + text).lstrip("\n")).after.decode()
    assert "trainable_variables))\n\n\n@tf.function\ndef training_step(x, y):" in after


def test_optimizer_of_the_script_is_looked_into() -> None:
    refuses(
        HEAD
        + """
class Counting(tf.keras.optimizers.SGD):
    count = 0
    def apply_gradients(self, grads_and_vars):
        self.count += 1
        return super().apply_gradients(grads_and_vars)
opt = Counting(0.1)
"""
        + STEP
        + LOOP,
        "sets `self.count`",
    )


def test_arrays_that_an_object_computes_with() -> None:
    source = """
        import numpy as np
        import tensorflow as tf
        class Line:
            def __init__(self):
                self.w = tf.Variable([[1.0]])
            def __call__(self, x):
                return tf.matmul(x, self.w)
        line = Line()
        def step(net, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(net(x))
            net.w.assign_sub(0.1 * tape.gradient(loss, net.w))
        a = np.random.rand(40, 1){}
        for i in range(5):
            step(line, a[i:i+8])
        """
    refuses(source.format(""), "NumPy array")
    decorates(source.format(".astype('float32')"), "step")


PER_MODEL = """
def build(units):
    net = tf.keras.Sequential([tf.keras.layers.Dense(units, input_shape=(3,)), tf.keras.layers.Dense(1)])
    return net

def step(net, x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, net(x))
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))

def train(net):
    for x, y in ds:
        step(net, x, y)
"""


def test_models_of_one_factory_are_several() -> None:
    decorates(HEAD + PER_MODEL + "a = build(4)\ntrain(a)\n", "step")
    refuses(HEAD + PER_MODEL + "a = build(4)\nb = build(8)\ntrain(a)\ntrain(b)\n", "several models")
    refuses(HEAD + PER_MODEL + "for n in range(3):\n    train(build(n))\n", "made anew")
    refuses(HEAD + PER_MODEL + "for n in range(3):\n    a = build(n)\n    train(a)\n", "made anew")


SCHEDULE = """
class Warmup(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        {}
opt = tf.keras.optimizers.Adam(Warmup())
"""


def test_schedules_run_in_the_step() -> None:
    branches = SCHEDULE.format("return 0.1 if step < 100 else 0.01")
    refuses(HEAD + branches + STEP + LOOP, "branches on a tensor")
    decorates(HEAD + SCHEDULE.format("return tf.minimum(0.1, tf.cast(step, tf.float32) / 100.0)") + STEP + LOOP, "step")


def test_rate_that_python_is_asked_for() -> None:
    refuses(
        HEAD
        + "rate = [0.1]\ndef current():\n    return rate[0]\nopt = tf.keras.optimizers.Adam(current)\n"
        + STEP
        + LOOP,
        "its optimizer asks `current`",
    )


def test_inline_sum_over_time() -> None:
    lifts(
        """
for epoch in range(3):
    for i, (x, y) in enumerate(ds):
        loss = 0
        state = tf.zeros((8, 4))
        with tf.GradientTape() as tape:
            for t in range(1, x.shape[1]):
                loss += mse(y, model(x)) * t
        total = loss / int(x.shape[1])
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        print(float(total))
""",
        """

@tf.function
def train_step(x, y):
    loss = 0
    state = tf.zeros((8, 4))
    with tf.GradientTape() as tape:
        for t in range(1, x.shape[1]):
            loss += mse(y, model(x)) * t
    total = loss / int(x.shape[1])
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return total


for epoch in range(3):
    for i, (x, y) in enumerate(ds):
        total = train_step(x, y)
        print(float(total))
""",
    )


def test_generator_of_any_length() -> None:
    source = (HEAD + STEP + LOOP).replace(
        "ds = tf.data",
        "gen = lambda: iter([])\nseq = tf.data.Dataset.from_generator(gen, output_signature=("
        "tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None, 1], tf.float32)))\nds = tf.data",
    )
    decorates(source.replace("in ds:", "in seq:"), "step", decorator="@tf.function(reduce_retracing=True)")
    decorates(source.replace("in ds:", "in seq.padded_batch(3, ([9, 3], [9, 1])):"), "step")


# -- real runs ----------------------------------------------------------------------------------------------

ALLOWED = next(m.args[1] for m in test_what_a_step_may_do.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
RUN_HEAD = """
import argparse, functools
import numpy as np
import tensorflow as tf
parser = argparse.ArgumentParser()
parser.add_argument('--wd', type=float, default=0.5)
args = parser.parse_args()
clip, scale = 1.0, 0.5
x_all, y_all = np.random.RandomState(0).rand(40, 3), np.random.RandomState(1).rand(40, 1)
ds = tf.data.Dataset.from_tensor_slices((x_all.astype('float32'), y_all.astype('float32'))).batch(16)
mse = tf.keras.losses.MeanSquaredError()
"""
RUN_ONE = """
tf.keras.utils.set_random_seed({n})
model{n} = tf.keras.Sequential([tf.keras.layers.Dense(4, kernel_regularizer='l2'), tf.keras.layers.Dense(1)])
opt{n} = tf.keras.optimizers.Adam(0.05)
acc{n} = tf.keras.metrics.Mean()
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_same_numbers(env: str, tmp_path: Path) -> None:
    """All that a step may do, in one script."""
    parts = [RUN_HEAD]
    names = []
    for n, line in enumerate(ALLOWED):
        step = INSIDE.format(line=line).replace("def step", f"def step{n}") + LOOP.replace("step(", f"step{n}(")
        names.append(f"step{n}")
        step = re.sub(
            r"\b(model|opt|acc)\b", rf"\g<1>{n}", step.replace("print(float(loss))", "print('RESULT', float(loss))")
        )
        parts.append(RUN_ONE.format(n=n) + step)
    original = "".join(parts).lstrip("\n")
    target = {"tf215": "tf2.15", "tf221": "tf2.21"}[env]
    result = check.fixes(original, decorated(original, *names), target=target)
    outputs = []
    for name, data in (("before", result.before), ("after", result.after)):
        path = tmp_path / f"{name}.py"
        path.write_bytes(data)
        done = run_script(tf_env(env), path, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        outputs.append([float(x.split()[1]) for x in done.stdout.splitlines() if x.startswith("RESULT")])
    assert len(outputs[0]) == 3 * len(names)
    assert outputs[1] == pytest.approx(outputs[0], rel=1e-4)


MANY = """
import numpy as np
import tensorflow as tf
data = np.random.RandomState(0).rand(40, 3).astype('float32')
ds = tf.data.Dataset.from_tensor_slices((data, data[:, :1])).batch(8)
mse = tf.keras.losses.MeanSquaredError()
cell = tf.keras.layers.SimpleRNNCell(3, kernel_initializer='ones', recurrent_initializer='ones')
net = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer='ones')])
sgd, other = tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.SGD(0.01)
slope = tf.Variable(1.0)


def slope_step(x, a):
    with tf.GradientTape() as tape:
        loss = a * (slope * x - 3.0) ** 2
    slope.assign_sub(0.1 * tape.gradient(loss, slope))
    return loss


for x, a in zip([0.1, 0.2, 0.3], [1.0, 0.5, 2.0]):
    print('RESULT', float(slope_step(x, a)))

history, total, state = [], 0, tf.zeros((8, 3))
for x, y in ds:
    with tf.GradientTape(persistent=True) as tape:
        out, [state] = cell(x, [state])
        loss = mse(y, out)
    history.append(loss.numpy())
    total += loss
    if len(history) % 2:
        print('RESULT', float(loss), float(total))
    grads = tape.gradient(loss, cell.trainable_variables)
    sgd.apply_gradients(zip(grads, cell.trainable_variables))
    del tape
print('RESULT', float(np.mean(history)), float(total), float(tf.reduce_sum(state)))

for n in range(1, 9):
    x, y = data[:n], data[:n, :1]
    with tf.GradientTape() as tape:
        loss = mse(y, net(x))
    other.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    print('RESULT', float(loss))
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_same_numbers_of_moved_steps(env: str, tmp_path: Path) -> None:
    result = check.run(MANY.lstrip("\n"), target={"tf215": "tf2.15", "tf221": "tf2.21"}[env])
    text = result.after.decode()
    assert not result.refused and text.count("@tf.function") == 3, result.refused
    assert "state, loss = train_step(x, y, state)" in text and "del tape" not in text
    outputs = []
    for name, data in (("before", result.before), ("after", result.after)):
        path = tmp_path / f"{name}.py"
        path.write_bytes(data)
        done = run_script(tf_env(env), path, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
        outputs.append([float(number) for line in found for number in line])
    assert len(outputs[0]) == 3 + 6 + 3 + 8
    assert outputs[1] == pytest.approx(outputs[0], rel=1e-4, abs=1e-6)
