"""How many steps a call trains, which callbacks it has, and where a model goes."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import pytest

from rewriter.engine import Options
from rewriter.script import Project, Script
from rewriter.source import parse
from rewriter.target import named
from rewriter.training import Training, acts_per_batch, callbacks, distribution, trainings

HEAD = """
import math
import numpy as np
import tensorflow as tf
from tensorflow import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


def script(text: str, folder: Path = Path("/nowhere")) -> Script:
    project = Project(lambda _: named("tf2.15"), Options())
    path = folder / "train.py"
    project.editable.add(path)
    return project.add(parse(textwrap.dedent(text).lstrip("\n").encode(), path))


def training(text: str) -> Training:
    (found,) = trainings(script(HEAD + textwrap.dedent(text)))
    return found


def steps(text: str) -> tuple[int | float | None, bool | None]:
    """The steps of the first fit, and whether Keras can tell them."""
    count = training(text).fits[0].steps
    return count.number, count.sized


@pytest.mark.parametrize(
    ("data", "fit", "number"),
    [
        ("x, y = np.zeros((512, 4)), np.zeros((512, 1))", "x, y", 16),
        ("x, y = np.zeros((512, 4)), np.zeros((512, 1))", "x, y, 8", 64),
        ("x, y = np.zeros((513, 4)), np.zeros((513, 1))", "x, y, batch_size=8", 65),
        ("x, y = np.zeros((512, 4)), np.zeros((512, 1))", "x, y, batch_size=None", 16),
        ("x, y = np.zeros((512, 4)), np.zeros((512, 1))", "x, y, batch_size=16, validation_split=0.2", 26),
        ("x, y = np.zeros((1000, 4)), np.zeros((1000, 1))", "x, y, batch_size=1, validation_split=0.1", 900),
        ("x, y = np.zeros((512, 4)), np.zeros((512, 1))", "x[:100], y[:100], batch_size=10", 10),
        ("x, y = np.random.rand(512, 4), np.random.rand(512)", "[x, x], y, batch_size=64", 8),
        ("x, y = np.random.rand(512, 4), np.random.rand(512)", "{'a': x, 'b': x}, y, batch_size=64", 8),
        ("x, y = load(), np.zeros(640)", "x, y", 20),
        ("r = np.random.default_rng(0); x, y = r.normal(size=(64, 3)), r.integers(0, 9, 64)", "x, y", 2),
        ("r = np.random.RandomState(0); x, y = r.rand(96, 3).astype('float32'), r.choice(z)", "x, y", 3),
        ("(x, y), _ = keras.datasets.mnist.load_data()", "x, y", 1875),
        ("(x, y), _ = keras.datasets.mnist.load_data(); x = x.reshape(-1, 784) / 255.", "x, y", 1875),
        ("(x, y), _ = keras.datasets.mnist.load_data(); x = x.reshape(-1, 28)", "x, None", None),
        ("(x, y), _ = keras.datasets.imdb.load_data(maxlen=80)", "x, y", None),
        ("x = tf.random.normal((256, 4)); y = tf.zeros((256, 1))", "x, y", 8),
        ("x, y = np.zeros((512, 4)), np.zeros(512); n = len(x) // 64", "x, y, steps_per_epoch=n", 8),
        ("x, y = np.zeros((512, 4)), np.zeros(512); n = math.ceil(x.shape[0] / 60)", "x, y, steps_per_epoch=n", 9),
        ("x, y = load()", "x, y", None),
        ("x, y = np.zeros((512, 4)), np.zeros(512)", "x, y, batch_size=args.batch", None),
        ("x, y = np.zeros((512, 4)), np.zeros(512)", "x, y, validation_split=args.share", None),
        ("x, y = np.zeros((512, 4)), np.zeros(512)", "x, y, **options", None),
        ("x, y = np.zeros((512, 4)), np.zeros(512)\nif small: x, y = x[:64], y[:64]", "x, y", None),
        ("x, y = [], []\nfor i in range(9): x.append(i); y.append(i)\nx, y = np.array(x), np.array(y)", "x, y", None),
        ("x = np.zeros((8, 2)); y = x @ np.zeros((2, 3))", "unknown, y", 1),
        ("x, y = np.zeros((512, 4)), np.zeros(512) + other", "unknown, y", None),
        ("g = keras.preprocessing.image.ImageDataGenerator().flow(np.zeros((100, 8, 8, 3)), batch_size=16)", "g", 7),
        ("def g():\n    yield 1", "g(), steps_per_epoch=12", 12),
        ("def g():\n    yield 1", "g()", None),
    ],
)  # fmt: skip
def test_steps_of_arrays_and_loaders(data: str, fit: str, number: int | None) -> None:
    assert steps(f"{data}\nmodel.fit({fit})")[0] == number


SLICES = "tf.data.Dataset.from_tensor_slices((np.zeros((100, 4)), np.zeros(100)))"


@pytest.mark.parametrize(
    ("dataset", "number", "sized"),
    [
        (f"{SLICES}.batch(32)", 4, True),
        (f"{SLICES}.batch(32, drop_remainder=True)", 3, True),
        (f"{SLICES}.batch(32, True).prefetch(1)", 3, True),
        (f"{SLICES}.shuffle(9).map(f).cache().batch(10).repeat(3)", 30, True),
        (f"{SLICES}.repeat(3).batch(32)", 10, True),
        (f"{SLICES}.take(50).batch(25)", 2, True),
        (f"{SLICES}.skip(50).batch(25)", 2, True),
        (f"{SLICES}.repeat().batch(10).take(7)", 7, True),
        (f"{SLICES}.repeat().batch(10)", None, False),
        (f"{SLICES}.concatenate({SLICES}).batch(20)", 10, True),
        (f"{SLICES}.filter(f).batch(10)", None, False),
        (f"{SLICES}.flat_map(f).batch(10)", None, False),
        (f"{SLICES}.flat_map(f).apply(tf.data.experimental.assert_cardinality(40)).batch(10)", 4, True),
        (f"{SLICES}.batch(size)", None, True),
        (f"{SLICES}.batch(10, drop_remainder=flag)", None, True),
        (f"tf.data.Dataset.zip(({SLICES}, {SLICES}.repeat())).batch(50)", 2, True),
        ("tf.data.Dataset.range(64).batch(8)", 8, True),
        ("tf.data.Dataset.range(2, 64, 2).batch(8)", 4, True),
        ("tf.data.Dataset.range(2, 64, 0).batch(8)", None, True),
        ("tf.data.Dataset.from_tensors((1, 2)).repeat(6)", 6, True),
        ("tf.data.Dataset.from_tensor_slices(['a', 'b', 'c'])", 3, True),
        ("tf.data.Dataset.from_tensor_slices([np.zeros(9), np.zeros(9)])", 2, True),
        ("tf.data.Dataset.from_tensor_slices((load(), load())).batch(8)", None, True),
        ("tf.data.TFRecordDataset(files).batch(8)", None, False),
        ("tf.data.Dataset.from_generator(g, tf.float32).batch(8)", None, False),
        ("keras.utils.image_dataset_from_directory('d')", None, True),
    ],
)  # fmt: skip
def test_steps_of_datasets(dataset: str, number: int | None, sized: bool) -> None:
    assert steps(f"model.fit({dataset})") == (number, sized)


@pytest.mark.parametrize("count", [7, 10, 99, 100, 512, 1000, 1001])
@pytest.mark.parametrize("split", [0.1, 0.15, 0.2, 0.25, 0.3, 0.33, 0.9])
def test_validation_split_as_keras_computes_it(count: int, split: float) -> None:
    found = training(f"model.fit(np.zeros({count}), np.zeros({count}), batch_size=1, validation_split={split})")
    first = int(math.floor(count * (1.0 - split)))  # noqa: RUF046  (as it stands in Keras)
    assert (found.fits[0].steps.number, found.tests[0].steps.number) == (first, count - first)


@pytest.mark.parametrize(
    ("call", "number", "sized"),
    [
        ("model.fit(x, y, validation_data=(x[:40], y[:40]), batch_size=10)", 4, True),
        ("model.fit(x, y, validation_data=(x[:40], y[:40]), validation_batch_size=20)", 2, True),
        ("model.fit(x, y, validation_data=(a, b))", None, True),
        (f"model.fit(x, y, validation_data={SLICES}.batch(25))", 4, True),
        ("model.fit(x, y, validation_data=given)", None, None),
        ("model.fit(x, y, validation_data=given, validation_steps=3)", 3, True),
        ("model.evaluate(x, y)", 8, True),
        ("model.evaluate(x, y, 64, steps=2)", 2, True),
        ("model.predict(x, 50)", 6, True),
        ("model.predict(scaler.transform(z))", None, True),
        ("model.predict(given)", None, None),
        ("for a, b in tf.data.TFRecordDataset('f').take(3): model.predict(a)", None, True),
    ],
)
def test_steps_of_tests(call: str, number: int | None, sized: bool | None) -> None:
    (test,) = training(f"x, y = np.zeros((256, 4)), np.zeros(256)\n{call}").tests
    assert (test.steps.number, test.steps.sized) == (number, sized)


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        ("keras.callbacks.EarlyStopping(patience=2)", ""),
        ("keras.callbacks.ReduceLROnPlateau()", ""),
        ("keras.callbacks.LearningRateScheduler(lambda e: 1 / e)", ""),
        ("keras.callbacks.ModelCheckpoint('m.keras')", ""),
        ("keras.callbacks.ModelCheckpoint('m.keras', save_freq='epoch')", ""),
        ("keras.callbacks.ModelCheckpoint('m.keras', save_freq=100)", "save_freq"),
        ("keras.callbacks.ModelCheckpoint('m', 'loss', 0, False, False, 'auto', 100)", "save_freq"),
        ("keras.callbacks.ModelCheckpoint('m', save_freq=every)", "save_freq"),
        ("keras.callbacks.ModelCheckpoint('m', **options)", "through `*` or `**`"),
        ("keras.callbacks.TensorBoard('logs')", ""),
        ("keras.callbacks.TensorBoard('logs', update_freq='batch')", "update_freq"),
        ("keras.callbacks.TensorBoard('logs', update_freq=10)", "update_freq"),
        ("keras.callbacks.TensorBoard('logs', profile_batch=(2, 5))", "profiles"),
        ("keras.callbacks.TensorBoard('logs', profile_batch=0)", ""),
        ("keras.callbacks.BackupAndRestore('b')", ""),
        ("keras.callbacks.BackupAndRestore('b', save_freq=50)", "save_freq"),
        ("keras.callbacks.TerminateOnNaN()", "TerminateOnNaN"),
        ("keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: print(e))", ""),
        ("keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: print(b))", "LambdaCallback"),
        ("keras.callbacks.LambdaCallback(None, None, show)", "LambdaCallback"),
        ("keras.callbacks.BatchwiseThing()", "BatchwiseThing"),
    ],
)
def test_callbacks_of_keras(callback: str, reason: str) -> None:
    found = training(f"model.fit(x, y, callbacks=[{callback}])")
    (value,), why = callbacks(found.fits[0].site)
    assert not why
    assert reason in acts_per_batch(value) and bool(reason) == bool(acts_per_batch(value))


@pytest.mark.parametrize(
    ("module", "callback", "reason"),
    [
        ("wandb.keras", "WandbCallback()", ""),
        ("wandb.keras", "WandbCallback(save_model=False, log_weights=True)", ""),
        ("wandb.keras", "WandbCallback(log_batch_frequency=10)", "log_batch_frequency"),
        ("wandb.integration.keras", "WandbMetricsLogger()", ""),
        ("wandb.keras", "WandbMetricsLogger('epoch')", ""),
        ("wandb.keras", "WandbMetricsLogger(log_freq='batch')", "log_freq"),
        ("wandb.keras", "WandbMetricsLogger(log_freq=every)", "log_freq"),
        ("wandb.keras", "WandbModelCheckpoint('m.keras')", ""),
        ("wandb.keras", "WandbModelCheckpoint('m.keras', save_freq=9)", "save_freq"),
        ("mlflow.keras", "MlflowCallback()", ""),
        ("mlflow.tensorflow", "MlflowCallback(log_every_epoch=False, log_every_n_steps=5)", "log_every_n_steps"),
        ("mlflow.keras", "MlflowCallback(False, 5)", "by position"),
        ("neptune.integrations.tensorflow_keras", "NeptuneCallback(run=run, log_on_batch=False)", ""),
        ("neptune.integrations.tensorflow_keras", "NeptuneCallback(run=run)", "early versions"),
        ("tqdm.keras", "TqdmCallback(verbose=2)", "acts at every batch"),
        ("keras_tqdm", "TQDMNotebookCallback()", "acts at every batch"),
        ("tensorflow_addons.callbacks", "TQDMProgressBar()", "acts at every batch"),
        ("livelossplot", "PlotLossesKeras()", ""),
    ],
)
def test_callbacks_of_other_libraries(module: str, callback: str, reason: str) -> None:
    imported = f"from {module} import {callback.partition('(')[0]}\n"
    (value,), why = callbacks(training(f"{imported}model.fit(x, y, callbacks=[{callback}])").fits[0].site)
    assert not why
    assert reason in acts_per_batch(value) and bool(reason) == bool(acts_per_batch(value))


def test_a_schedule_is_logged_by_the_number_of_batches() -> None:
    text = "from wandb.keras import WandbMetricsLogger\nrate = keras.optimizers.schedules.ExponentialDecay(1, 9, 0.5)\n"
    (value,), _ = callbacks(training(f"{text}model.fit(x, y, callbacks=[WandbMetricsLogger()])").fits[0].site)
    assert "counts batches" in acts_per_batch(value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("class C(keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None): print(epoch)", ""),
        ("from wandb.keras import WandbEvalCallback\nclass C(WandbEvalCallback):\n    def add(self): go()", ""),
        ("class C(keras.callbacks.Callback):\n    def on_batch_end(self, batch, logs=None): print(batch)", "on_batch"),
        ("class C(keras.callbacks.Callback):\n    def on_train_batch_begin(self, b, logs=None): go()", "on_train_batch"),
        ("class C(keras.callbacks.Callback):\n    def on_test_batch_end(self, b, logs=None): go()", "on_test_batch"),
        ("class C(keras.callbacks.Callback):\n    def on_batch_end(self, batch, logs=None):\n        pass", ""),
        ("class C(keras.callbacks.Callback):\n    on_batch_end = show", "on_batch_end"),
        ("class C(keras.callbacks.Callback):\n    def __init__(self): self.on_batch_end = show", "on_batch_end"),
        ("class B(keras.callbacks.Callback):\n    def on_batch_end(self, b, logs): go()\nclass C(B): pass", "on_batch"),
        ("class C(keras.callbacks.EarlyStopping):\n    def on_epoch_end(self, epoch, logs): pass", ""),
        ("class C(keras.callbacks.TerminateOnNaN): pass", "may act"),
        ("class C(keras.callbacks.ModelCheckpoint):\n    def __init__(self):\n"
         "        super().__init__('m', save_freq=9)", "save_freq"),
        ("from elsewhere import Base\nclass C(Base): pass", "may act"),
        ("class C: pass", "not a Keras callback"),
    ],
)  # fmt: skip
def test_callbacks_of_the_script(body: str, reason: str) -> None:
    (value,), why = callbacks(training(f"{body}\nmodel.fit(x, y, callbacks=[C()])").fits[0].site)
    assert not why
    assert reason in acts_per_batch(value) and bool(reason) == bool(acts_per_batch(value))


@pytest.mark.parametrize(
    ("build", "names", "why"),
    [
        ("cbs = []\ncbs.append(A())", ["A"], ""),
        ("cbs = [A()]\nif tb: cbs.append(B())", ["A", "B"], ""),
        ("cbs = [A()]\ncbs += [B()]", ["A", "B"], ""),
        ("cbs = [A()]\ncbs.extend([B()])", ["A", "B"], ""),
        ("cbs = [A()]\ncbs.insert(0, B())", ["A", "B"], ""),
        ("cbs = [A()] + [B()]", ["A", "B"], ""),
        ("base = [A()]\ncbs = base + ([B()] if tb else [])", ["A", "B"], ""),
        ("cbs = [A(), *more]", ["A"], "more"),
        ("cbs = [A()]\nfill(cbs)", ["A"], "fill"),
        ("def make():\n    cbs = [A()]\n    cbs.append(B())\n    return cbs\ncbs = make()", ["A", "B"], ""),
        ("def make(out): out.append(B())\ncbs = [A()]\nmake(cbs)", ["A", "B"], ""),
        ("cbs = None", [], ""),
        ("cbs = A()", ["A"], ""),
        ("cbs = list()\ncbs.append(A())", ["A"], ""),
        ("cbs = [Unknown()]", [], "Unknown"),
        ("import own_kit.keras\ncbs = [own_kit.keras.TqdmCallback()]", [], "TqdmCallback"),
        ("cbs = [A()]\ncbs[0] = thing", ["A"], "replaced"),
        ("cbs = options.callbacks", [], "cbs"),
        ("cbs = [c() for c in kinds]", [], "cbs"),
    ],
)
def test_lists_of_callbacks(build: str, names: list[str], why: str) -> None:
    classes = "class A(keras.callbacks.Callback): pass\nclass B(keras.callbacks.Callback): pass\n"
    found, reason = callbacks(training(f"{classes}{build}\nmodel.fit(x, y, callbacks=cbs)").fits[0].site)
    assert sorted(v.name for v in found) == names
    assert why in reason and bool(why) == bool(reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model.summary(); print(model); model.save('m')", ""),
        ("keras.utils.plot_model(model); w = model.get_weights()", ""),
        ("big = keras.Sequential([model, keras.layers.Dense(1)])", ""),
        ("out = model(np.zeros((1, 2)))", ""),
        ("def show(m): m.summary()\nshow(model)", ""),
        ("class Wrap(keras.Model):\n    def __init__(self, inner):\n        super().__init__()\n"
         "        self.inner = inner\nw = Wrap(model)", ""),
        ("train_elsewhere(model)", "`train_elsewhere`"),
        ("import sklearn.model_selection as s\ns.cross_val_score(model, x, y)", "cross_val_score"),
        ("class Trainer:\n    def __init__(self, m): self.m = m\n    def run(self): self.m.fit(x, y)\nTrainer(model)",
         "`Trainer`"),
        ("f = model.fit\nf(x, y)", "`model.fit` is passed on"),
        ("getattr(model, name)(x, y)", "`getattr`"),
        ("models = {'a': model}", "put into a dictionary"),
        ("models['a'] = model", "put into `models['a']`"),
        ("if bad: raise ValueError('no', model)", ""),
        ("setattr(place, name, model)", "`setattr` keeps the model"),
        ("def give():\n    return model", "callers are not seen"),
        ("import functools\ngo = functools.partial(model.fit, x, y)", "`model.fit` is passed on"),
    ],
)  # fmt: skip
def test_where_a_model_goes(text: str, reason: str) -> None:
    found = training(f"{text}\nmodel.fit(x, y)").unseen
    assert bool(found) == bool(reason), [u.reason for u in found]
    assert reason in "".join(u.reason for u in found)


def test_each_compile_has_its_own_fits() -> None:
    found = trainings(
        script("""
        from tensorflow import keras
        def build(n):
            m = keras.Sequential([keras.layers.Dense(n)])
            m.compile("sgd", "mse")
            return m
        a, b = build(1), keras.Sequential([])
        b.compile("adam")
        a.fit(x, y)
        b.fit(x, y)
        b.evaluate(x, y)
        import re
        re.compile("x")
        """)
    )
    assert [(t.compile.call.lineno, [f.site.call.lineno for f in t.fits], len(t.tests)) for t in found] == [
        (4, [8], 0), (7, [9], 1)]  # fmt: skip


def test_a_compile_in_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from tensorflow import keras\n\n\ndef build():\n    m = keras.Sequential([keras.layers.Dense(1)])\n"
        "    m.compile('sgd', 'mse')\n    return m\n"
    )
    found = trainings(script("import numpy as np\nfrom nets import build\nmodel = build()\n"
                             "model.fit(np.zeros(64), np.zeros(64))\n", tmp_path))  # fmt: skip
    assert [(t.script.path.name, t.fits[0].steps.number, t.unseen) for t in found] == [("nets.py", 2, [])]


def test_self_is_every_instance() -> None:
    (found,) = trainings(
        script("""
        import numpy as np
        from tensorflow import keras
        class Net(keras.Model):
            def train(self):
                self.fit(np.zeros(64), np.zeros(64))
        net = Net()
        net.compile("sgd")
        net.train()
        """)
    )
    assert [f.steps.number for f in found.fits] == [2]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import horovod.tensorflow.keras as hvd", "horovod"),
        ("s = tf.distribute.MirroredStrategy()", "tensorflow.distribute.MirroredStrategy"),
        ("from tensorflow.distribute import TPUStrategy as T\ns = T()", "tensorflow.distribute.TPUStrategy"),
        ("x = 1", ""),
    ],
)
def test_distribution(text: str, name: str) -> None:
    assert distribution(script(f"import tensorflow as tf\n{text}"))[0] == name
