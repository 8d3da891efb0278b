"""Several steps per call: only where the script still does the same, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from codemods.steps_per_execution import largest_divisor
from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("steps-per-execution")

HEAD = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
x, y = np.zeros((512, 4)), np.zeros((512, 1))
model = keras.Sequential([keras.layers.Dense(1)])
"""


def fixes(before: str, after: str, **options: object) -> None:
    check.fixes(HEAD + before, HEAD + after, **options)


def refuses(text: str, reason: str, **options: object) -> None:
    check.refuses(HEAD + text, reason, **options)


def ignores(text: str, **options: object) -> None:
    check.ignores(HEAD + text, **options)


COMPILE = 'model.compile("adam", "mse")\n'
FIXED = 'model.compile("adam", "mse", steps_per_execution={})\n'


@pytest.mark.parametrize(
    ("steps", "divisor"),
    [(1, 1), (2, 2), (16, 16), (32, 32), (33, 11), (64, 32), (422, 2), (469, 7), (1563, 3), (1875, 25), (157, 1)],
)  # fmt: skip
def test_the_largest_divisor_up_to_32(steps: int, divisor: int) -> None:
    assert largest_divisor(steps) == divisor


@pytest.mark.parametrize(
    ("fit", "number"),
    [
        ("model.fit(x, y)", 16),
        ("model.fit(x, y, batch_size=8)", 32),
        ("model.fit(x, y, 8, 2, 0)", 32),
        ("model.fit(x, y, validation_split=0.25, batch_size=12)", 32),
        ("model.fit(x, y, batch_size=10)", 26),
        ("model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(64))", 8),
        ("model.fit(gen(), steps_per_epoch=100)", 25),
        ("model.fit(x, y); model.fit(x[:384], y[:384])", 4),
        ("model.fit(x, y, callbacks=[keras.callbacks.EarlyStopping()])", 16),
        ("model.fit(x, y); model.evaluate(a, b); model.predict(np.array(z))", 16),
        ("for i in range(3): model.fit(x, y)", 16),
    ],
)
def test_arrays_and_datasets(fit: str, number: int) -> None:
    fixes(COMPILE + fit + "\n", FIXED.format(number) + fit + "\n")


def test_every_compile_of_one_model() -> None:
    fixes(
        COMPILE + "model.fit(x, y)\nmodel.trainable = False\n" + COMPILE + "model.fit(x[:320], y[:320])\n",
        FIXED.format(2) + "model.fit(x, y)\nmodel.trainable = False\n" + FIXED.format(2) + "model.fit(x[:320], y[:320])\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fit", "reason"),
    [
        ("model.fit(x, y, batch_size=args.batch)", "the batch size is not known"),
        ("model.fit(*load())", "through `*` or `**`"),
        ("model.fit(load(), load())", "the number of samples in the arrays is not known"),
        ("model.fit(x, y, **options)", "through `*` or `**`"),
        ("model.fit(x[:32], y[:32]); model.fit(x, y)", "no number from 2 to 32 divides all of 1 and 16 training steps"),
        ("model.fit(x, y, steps_per_epoch=37)", "no number from 2 to 32 divides 37 training steps"),
        ("model.fit(x, y, steps_per_epoch=n)", "`steps_per_epoch` is not known"),
        ("model.fit(gen())", "what `gen()` is is not known"),
        ("def gen():\n    yield 1\nmodel.fit(gen())", "a generator does not tell"),
        ("model.fit(tf.data.TFRecordDataset('f').batch(8))", "`TFRecordDataset` gives is not known"),
        ("model.fit(x, y, callbacks=[keras.callbacks.TerminateOnNaN()])", "acts at every batch"),
        ("model.fit(x, y, callbacks=given)", "not a callback that is known"),
        ("model.fit(x, y); model.train_on_batch(x, y)", "`train_on_batch` of the same model"),
        ("model.fit(x, y); model.evaluate(tf.data.TextLineDataset('f').batch(8))", "Keras 2 must be able to tell"),
        ("model.fit(x, y, validation_data=load())", "Keras 2 must be able to tell the number of validation steps"),
        ("model.fit(x, y); tune(model)", "handed to `tune`"),
        ("model.run_eagerly = True\nmodel.fit(x, y)", "`run_eagerly` of a model is set"),
        ("tf.config.run_functions_eagerly(True)\nmodel.fit(x, y)", "(line 7) switches graphs off"),
        ("tf.compat.v1.disable_eager_execution()\nmodel.fit(x, y)", "graph mode of TensorFlow 1"),
        ("import horovod.tensorflow.keras as hvd\nmodel.fit(x, y)", "Horovod"),
        ("s = tf.distribute.MultiWorkerMirroredStrategy()\nmodel.fit(x, y)", "MultiWorkerMirroredStrategy"),
    ],
)
def test_refusals(fit: str, reason: str) -> None:
    refuses(COMPILE + fit + "\n", reason, line=6)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ('model.compile("adam", "mse", run_eagerly=True)', "`run_eagerly=True`"),
        ('model.compile("adam", "mse", run_eagerly=debug)', "`run_eagerly` may be on"),
        ('model.compile("adam", **options)', "may hold `steps_per_execution`"),
        ('cfg = {"loss": "mse"}\ncfg["steps_per_execution"] = 2\nmodel.compile("adam", **cfg)', "may hold"),
    ],
)
def test_arguments_of_compile(call: str, reason: str) -> None:
    refuses(f"{call}\nmodel.fit(x, y)\n", reason)


def test_a_splat_that_is_known() -> None:
    cfg = 'cfg = dict(loss="mse")\n'
    fixes(
        cfg + 'model.compile("adam", **cfg)\nmodel.fit(x, y)\n',
        cfg + 'model.compile("adam", **cfg, steps_per_execution=16)\nmodel.fit(x, y)\n',
    )


@pytest.mark.parametrize(
    "text",
    [
        'model.compile("adam", "mse", steps_per_execution=4)\nmodel.fit(x, y)\n',
        'model.compile("adam", "mse", None, None, None, False, 4)\nmodel.fit(x, y)\n',
        'model.compile("adam", "mse", experimental_steps_per_execution=4)\nmodel.fit(x, y)\n',
        'model.compile("adam", **{"loss": "mse", "steps_per_execution": 4})\nmodel.fit(x, y)\n',
        COMPILE + "model.fit(x[:32], y[:32])\n",  # an epoch is one step
        COMPILE + "model.fit(x, y, batch_size=512, callbacks=given)\n",
        COMPILE + "model.train_on_batch(x, y)\n",
        COMPILE + "model.evaluate(x, y)\n",
        'import re\nre.compile("x")\npattern = regex_library.compile("y")\n',
        'code = compile("1", "f", "eval")\nself_like.engine.compile("z")\nself_like.engine.fit(x, y)\n',
    ],
)
def test_left_alone(text: str) -> None:
    ignores(text)


def test_versions() -> None:
    refuses(COMPILE + "model.fit(x, y)\n", "from TensorFlow 2.4 on (TensorFlow 1.15", target="tf1.15")
    refuses(COMPILE + "model.fit(x, y)\n", "from TensorFlow 2.4 on", target="tf2.3")
    fixes(COMPILE + "model.fit(x, y)\n", FIXED.format(16) + "model.fit(x, y)\n", target="tf2.4")
    fixes(COMPILE + "model.fit(x, y)\n", FIXED.format(16) + "model.fit(x, y)\n", target="keras3")


def test_keras_3_rounds_steps_that_are_given_up() -> None:
    text = "model.fit(x, y, validation_data=data, validation_steps=12)\n"
    fixes(COMPILE + text, FIXED.format(4) + text, target="tf2.21")
    fixes(COMPILE + text, FIXED.format(16) + text, target="tf2.15")
    refuses(
        COMPILE + "model.fit(x, y); model.evaluate(d, steps=n)\n", "the value of `steps` is not known", target="tf2.21"
    )


def test_keras_3_before_3_7_loses_what_is_left_of_a_test() -> None:
    text = "model.fit(x, y, validation_split=0.25)\n"  # 12 steps, 4 of validation
    fixes(COMPILE + text, FIXED.format(4) + text, target="keras3")
    fixes(COMPILE + text, FIXED.format(12) + text, target="tf2.21")
    text = "model.fit(x, y); model.evaluate(load(), load())\n"
    refuses(COMPILE + text, "the number of batches of `evaluate`", target="keras3")
    fixes(COMPILE + text, FIXED.format(16) + text, target="tf2.21")


def test_other_backends_of_keras_3() -> None:
    for line in ('import os\nos.environ["KERAS_BACKEND"] = "jax"\n', "import torch\n"):
        refuses(line + COMPILE + "model.fit(x, y)\n", "the script trains on", target="tf2.21")
    fixes("import torch\n" + COMPILE + "model.fit(x, y)\n", "import torch\n" + FIXED.format(16) + "model.fit(x, y)\n")


def test_strategies_by_version() -> None:
    text = "s = tf.distribute.MirroredStrategy()\nmodel.fit(x, y)\n"
    fixes(COMPILE + text, FIXED.format(16) + text)
    refuses(COMPILE + text, "`MirroredStrategy`", target="tf2.21")


CLASS = """
class Net(keras.Model):
    def compile(self, d_opt{extra}):
        {call}
        self.d_opt = d_opt

    def train_step(self, data):
        return {{}}

net = Net()
net.compile(keras.optimizers.Adam(){given})
net.fit(x, y)
"""


def test_a_compile_of_its_own() -> None:
    fixes(
        CLASS.format(extra="", call="super().compile()", given=""),
        CLASS.format(extra="", call="super().compile(steps_per_execution=16)", given=""),
    )
    fixes(
        CLASS.format(extra="", call="super(Net, self).compile()", given=""),
        CLASS.format(extra="", call="super(Net, self).compile(steps_per_execution=16)", given=""),
    )
    fixes(
        CLASS.format(extra=", **kwargs", call="super().compile(**kwargs)", given=""),
        CLASS.format(extra=", **kwargs", call="super().compile(**kwargs)", given=", steps_per_execution=16"),
    )


@pytest.mark.parametrize(
    ("extra", "call", "reason"),
    [
        ("", "pass", "does not simply call"),
        ("", "if d_opt: super().compile()", "does not simply call"),
        ("", "super().compile(**self.options)", "may be given `steps_per_execution` already"),
        (", steps_per_execution=1", "super().compile()", "with a parameter"),
        ("", "super().compile(run_eagerly=True)", "sets `run_eagerly`"),
    ],
)
def test_a_compile_of_its_own_that_is_refused(extra: str, call: str, reason: str) -> None:
    refuses(CLASS.format(extra=extra, call=call, given=""), reason)


def test_a_compile_of_its_own_for_two_models() -> None:
    refuses(CLASS.format(extra="", call="super().compile()", given="") + "b = Net()\nb.compile(0)\nb.fit(x, y)\n",
            "compiles several models")  # fmt: skip


def test_a_loop_of_its_own() -> None:
    refuses("""
class Net(keras.Model):
    def make_train_function(self):
        return lambda it: {}

net = Net()
net.compile("adam")
net.fit(x, y)
""", "its own `make_train_function`")  # fmt: skip


@pytest.mark.parametrize(
    ("switch", "reason"),
    [
        ("if args.debug:\n    tf.config.run_functions_eagerly(True)", "(line 7) may switch graphs off"),
        ("tf.config.run_functions_eagerly(args.debug)", "(line 6) may switch graphs off"),
        ("switch = tf.config.run_functions_eagerly if new else f\nswitch(True)", "`switch(True)` (line 7)"),
        ("def debug():\n    tf.config.run_functions_eagerly(True)", "(line 7) may switch graphs off"),
        (
            "from tensorflow.python.eager.def_function import run_functions_eagerly\nrun_functions_eagerly(True)",
            "graphs off",
        ),
        ("model.run_eagerly: bool = True", "`run_eagerly` of a model is set"),
        ("class Slow(keras.Model):\n    run_eagerly = True", "`run_eagerly` of a model is set"),
    ],
)
def test_steps_that_run_in_python(switch: str, reason: str) -> None:
    refuses(f"{switch}\n{COMPILE}model.fit(x, y)\n", reason)


def test_graphs_switched_off_after_all_training() -> None:
    for switch in ("tf.config.run_functions_eagerly(True)", "if debug:\n    tf.config.run_functions_eagerly(True)"):
        rest = f"model.fit(x, y)\n{switch}\nprint(model(x[:1]))\n"
        fixes(COMPILE + rest, FIXED.format(16) + rest)
        refuses(COMPILE + rest + "model.evaluate(x, y)\n", "graphs off")
    refuses(
        COMPILE + "for i in range(2):\n    model.fit(x, y)\n    tf.config.run_functions_eagerly(True)\n", "graphs off"
    )


def test_attributes_of_a_class_that_are_set_elsewhere() -> None:
    cfg = "class Cfg:\n    batch = 32\n    def __init__(self):\n        self.size = 32\n"
    for batch in ("Cfg.batch", "Cfg().size"):
        rest = f"model.fit(x, y, batch_size={batch})\n"
        fixes(cfg + COMPILE + rest, cfg + FIXED.format(16) + rest)
        for more in (
            "Cfg.batch = Cfg.size = n",
            "setattr(Cfg, 'batch', n), setattr(c, 'size', n)",
            "setattr(c, key, n)",
        ):
            refuses(f"{cfg}{more}\n{COMPILE}{rest}", "the batch size is not known")


def test_a_model_in_a_class_body() -> None:
    start = "class Nets:\n    net = keras.Sequential([keras.layers.Dense(1)])\n"
    rest = "Nets.net.fit(x, y)\n"
    fixes(f"{start}Nets.net.{COMPILE[6:]}{rest}", f"{start}Nets.net.{FIXED.format(16)[6:]}{rest}")
    refuses(f"{start}Nets.net.{COMPILE[6:]}{rest}tune(Nets.net)\n", "handed to `tune`")
    refuses(f"{start}Nets.net.{COMPILE[6:]}{rest}tune(Nets().net)\n", "handed to `tune`")


def test_a_model_from_a_module_beside_the_script(tmp_path: Path) -> None:
    nets = (
        "from tensorflow import keras\n\n\ndef build():\n    m = keras.Sequential([keras.layers.Dense(1)])\n"
        "    m.compile('sgd', 'mse')\n    return m\n"
    )
    (tmp_path / "nets.py").write_text(nets)
    train = "import numpy as np\nimport tensorflow\nfrom nets import build\nmodel = build()\nmodel.fit(np.zeros(64), np.zeros(64))\n"
    check.refuses(train, "needs a change in", folder=tmp_path)
    (tmp_path / "train.py").write_text(train)
    results = rewrite(
        [tmp_path / "train.py", tmp_path / "nets.py"], Options(1, frozenset({check.codemod})), lambda _: named("tf2.15")
    )
    assert results[0].after == results[0].before
    assert results[1].after.decode() == nets.replace("'mse')", "'mse', steps_per_execution=2)")


LOG = """
class Log(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(batch)

"""
APART = """
{define}
a.compile("adam", "mse")
b.compile("adam", "mse"{more})
a.fit(x, y, callbacks=[Log()])
b.fit(x, y)
"""


@pytest.mark.parametrize(
    "define",
    [
        "def build(n):\n    m = keras.Sequential()\n    m.add(keras.layers.Dense(n))\n    return m\na = build(1)\nb = build(2)",
        "def build():\n    return keras.Sequential([keras.layers.Dense(1)])\na, b = build(), build()",
    ],
)
def test_models_from_one_function_are_told_apart(define: str) -> None:
    text = LOG + APART
    result = check.run(HEAD + text.format(define=define, more=""))
    assert result.after.decode() == HEAD[1:] + text.format(define=define, more=", steps_per_execution=16")
    assert ["acts at every batch" in r.reason for r in result.refused] == [True]


@pytest.mark.parametrize(
    "define",
    [
        "def build():\n    return keras.Sequential([keras.layers.Dense(1)])\na = b = build()",
        "def build():\n    return keras.Sequential([keras.layers.Dense(1)])\na = build()\nb = build()\nif flag:\n    b = a",
        "import functools\n@functools.lru_cache\ndef build():\n    return keras.Sequential([])\na, b = build(), build()",
        "made = None\ndef build():\n    global made\n    if made is None:\n        made = keras.Sequential([])\n"
        "    return made\na, b = build(), build()",
    ],
)
def test_models_from_one_function_that_may_be_one_model(define: str) -> None:
    refused = check.refuses(HEAD + LOG + APART.format(define=define, more=""), "acts at every batch").refused
    assert len(refused) == 2


def test_n_divides_what_xla_leaves_of_the_last_batch() -> None:
    text = (
        HEAD
        + """data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(25)
model.compile("adam", "mse")
model.fit(data)
"""
    )
    path = Path("/nowhere/train.py")
    (result,) = rewrite(
        [path], Options(2, frozenset({"xla", check.codemod})), lambda _: named("tf2.15"), {path: text.encode()}
    )
    assert b".batch(25, drop_remainder=True)" in result.after  # 20 full batches instead of 21
    assert b"steps_per_execution=20, jit_compile=True" in result.after


def test_n_divides_what_xla_leaves_of_each_pass_over_the_data() -> None:
    text = (
        HEAD
        + """data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(25).repeat(3)
model.compile("adam", "mse")
model.fit(data)
"""
    )
    path = Path("/nowhere/train.py")
    (result,) = rewrite(
        [path], Options(2, frozenset({"xla", check.codemod})), lambda _: named("tf2.15"), {path: text.encode()}
    )
    assert b".batch(25, drop_remainder=True)" in result.after  # 3 times 20 full batches instead of 3 times 21
    assert b"steps_per_execution=30, jit_compile=True" in result.after


ROWS = """
class Rows(keras.utils.{base}):
    def __len__(self):
        return {length}

    def __getitem__(self, i):
        return x[i : i + 8], y[i : i + 8]

"""


@pytest.mark.parametrize(("base", "target"), [("Sequence", "tf2.15"), ("PyDataset", "tf2.21")])
def test_a_loader_whose_length_is_written_down(base: str, target: str) -> None:
    fit = "model.fit(Rows(), epochs=2)\n"
    for length in ("10", "STEPS", "2 * 5", "100 // 10"):
        start = "STEPS = 10\n" + ROWS.format(base=base, length=length)
        fixes(start + COMPILE + fit, start + FIXED.format(10) + fit, target=target)
    for length in ("len(x) // n", "self.n", "int(np.ceil(512 / 50))", "10 if big else 12"):
        refuses(
            ROWS.format(base=base, length=length) + COMPILE + fit, "the length of `Rows` is computed", target=target
        )


def test_the_length_of_a_class_that_derives_from_another() -> None:
    start = ROWS.format(base="Sequence", length="10") + "class More(Rows):\n    def __len__(self):\n        return 12\n"
    fit = "model.fit(More(), epochs=2)\n"
    fixes(start + COMPILE + fit, start + FIXED.format(12) + fit)


PROOF = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
x = np.random.RandomState(0).rand(420, 3).astype("float32")
y = x.sum(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(420, seed=2).batch(10)
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(4, activation="relu"), tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
first = model.fit(data, epochs=2, verbose=0, validation_data=(x[:70], y[:70]))
second = model.fit(x, y, batch_size=10, epochs=2, verbose=0, validation_split=0.5)
print(first.history, second.history, model.evaluate(x[:33], y[:33], verbose=0), model.predict(x[:33], verbose=0).sum())
print([w.tolist() for w in model.get_weights()])
"""


@pytest.mark.tf
@pytest.mark.parametrize(("env", "target"), [("tf215", "tf2.15"), ("tf221", "tf2.21")])
def test_trains_the_same_bit_by_bit(env: str, target: str, tmp_path: Path) -> None:
    result = check.run(PROOF, target=target)
    assert b"steps_per_execution=21" in result.after
    printed = []
    for name, data in (("before", result.before), ("after", result.after)):
        path = tmp_path / f"{name}.py"
        path.write_bytes(data)
        done = run_script(tf_env(env), path, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        printed.append(done.stdout)
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    "later",
    [
        "cb.on_train_batch_end = lambda batch, logs=None: seen.append(batch)",
        "cb.update_freq = 5",
        "setattr(cb, 'on_batch_end', hook)",
    ],
)
def test_hooks_that_are_set_later(later: str) -> None:
    Check("steps-per-execution").refuses(
        f"""
        import tensorflow as tf
        cb = tf.keras.callbacks.TensorBoard("logs")
        {later}
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        model.compile("sgd", "mse")
        model.fit(tf.ones((640, 3)), tf.ones((640, 1)), callbacks=[cb])
        """,
        "is set",
    )


def test_the_numbers_of_steps_are_told_apart() -> None:
    fit = "model.fit(x, y, batch_size=64, validation_data=(x[:37], y[:37]))\nmodel.evaluate(x[:99], y[:99], 8)\n"
    refuses(
        COMPILE + fit,
        "no number from 2 to 32 divides all of 8 training steps, 1 validation step and 13 batches of `evaluate`",
        target="keras3",
    )


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (
            "import mlflow\nmlflow.tensorflow.autolog(log_every_epoch=False, log_every_n_steps=5)\n",
            "`mlflow.tensorflow",
        ),
        (
            "from comet_ml import Experiment\nexperiment = Experiment()\n",
            "`Experiment` (line 7) logs metrics of batches",
        ),
    ],
)
def test_libraries_that_log_batches(before: str, reason: str) -> None:
    refuses(before + COMPILE + "model.fit(x, y)\n", reason)


def test_what_logs_epochs_is_no_matter() -> None:
    before = "import mlflow\nfrom wandb.keras import WandbCallback\nmlflow.autolog()\n"
    fit = "model.fit(x, y, callbacks=[WandbCallback()])\n"
    fixes(before + COMPILE + fit, before + FIXED.format(16) + fit)


LISTS = """
import random
texts = [make(i) for i in range(640)]
labels = [random.randrange(2) for text in texts]
def build(model, ds):
    model.fit(ds)
"""


@pytest.mark.parametrize(
    ("ds", "number"),
    [
        ("tf.data.Dataset.from_tensor_slices((texts, labels)).batch(20)", 32),
        ("tf.data.Dataset.from_tensor_slices(texts).batch(64)", 10),
        ("tf.data.Dataset.from_tensor_slices([i for i, t in enumerate(labels)]).batch(16).take(len(texts) // 32)", 20),
    ],
)
def test_the_length_of_lists(ds: str, number: int) -> None:
    fixes(LISTS + COMPILE + f"build(model, {ds})", LISTS + FIXED.format(number) + f"build(model, {ds})")


@pytest.mark.parametrize(
    "lists",
    [
        "texts = [make(i) for i in range(640) if i % 2]",
        "texts = [make(i, j) for i in range(640) for j in range(2)]",
        "texts = [make(i) for i in range(640)]; texts.append(1)",
        "texts = [make(i) for i in range(640)]; del texts[0]",
        "texts = [make(i) for i in range(640)]; change = load(); change(texts)",
        "texts = [make(i) for i in range(int(input()))]",
        "texts = [make(text) for text in load()]",
    ],
)
def test_lists_of_another_length(lists: str) -> None:
    ds = "tf.data.Dataset.from_tensor_slices(texts).batch(20)"
    refuses(f"from other import load, make\n{lists}\n{COMPILE}model.fit({ds})", "is not known")
