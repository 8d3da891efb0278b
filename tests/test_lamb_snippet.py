"""The LAMB that is written into Keras 2 scripts: the paper's numbers, Keras 3's numbers, and everyday use."""

import re
from pathlib import Path

import pytest

from codemods import snippets
from tests.envs import run_script, tf_env

pytestmark = [pytest.mark.tf, pytest.mark.slow]

NAMES = "lamb_keras2", "lamb_keras2_legacy"
WRITTEN = {name: Path(snippets.__path__[0], f"{name}.py").read_text() for name in NAMES}

# Keras 2.15 still has the older optimizers' base class, by another name.
SOURCES = WRITTEN | {
    "lamb_keras2_legacy": WRITTEN["lamb_keras2_legacy"].replace(
        "tf.keras.optimizers.Optimizer", "tf.keras.optimizers.legacy.Optimizer"
    )
}

# Ten steps of every optimizer in `CASES`, on weights and gradients that are the same wherever this runs.
STEPS = """
import numpy as np
import tensorflow as tf

SHAPES = {
    "kernel": (5, 3),
    "bias": (3,),
    "scale": (),
    "filters": (2, 2, 3, 4),
    "embedding": (6, 2),
    "idle": (4,),
}
CASES = {
    "plain": {},
    "epsilon": {"epsilon": 1e-3, "beta_1": 0.8, "beta_2": 0.99},
    "decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "schedule": {"learning_rate": tf.keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)},
}


def start():
    random = np.random.RandomState(0)
    values = {name: random.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
    values["bias"] *= 0  # weights of size zero take an unscaled step
    return values


def gradients(distinct=False):
    random = np.random.RandomState(1)
    for _ in range(10):
        step = {name: random.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
        step["idle"] *= 0
        rows = random.permutation(4)[:3] if distinct else random.randint(0, 4, 3)
        step["embedding"] = random.normal(size=(3, 2)).astype("float32"), rows
        yield step


def as_tensor(gradient):
    if isinstance(gradient, tuple):
        values, rows = gradient
        return tf.IndexedSlices(tf.constant(values), tf.constant(rows), (6, 2))
    return tf.constant(gradient)


def run(make, variable=tf.Variable, distinct=False):
    found = {}
    for case, options in CASES.items():
        optimizer = make(**{"learning_rate": 0.05, **options})
        if case == "decay":
            optimizer.exclude_from_weight_decay(var_names=["bias"])
        variables = {name: variable(value, name=name) for name, value in start().items()}
        for step, gradient in enumerate(gradients(distinct)):
            optimizer.apply_gradients([(as_tensor(gradient[name]), variables[name]) for name in SHAPES])
            for name in SHAPES:
                found[f"{case} {step} {name}"] = np.array(variables[name])
    return found


def compare(found, wanted):
    assert found.keys() >= wanted.keys()
    for key in wanted:
        difference = np.abs(found[key] - wanted[key]).max()
        assert difference <= 1e-6, (key, difference, found[key], wanted[key])
    print("equal", len(wanted))
"""

# Keras 3.15 squares the parts one by one when a row occurs twice in a sparse gradient, hence `distinct`.
KERAS_3 = """
import keras

found = run(keras.optimizers.Lamb, lambda value, name: keras.Variable(value, name=name), distinct=True)
np.savez("keras3.npz", **found)
"""

AS_KERAS_3 = """
compare(run(LAMB, distinct=True), dict(np.load("keras3.npz")))
"""

# Algorithm 2 of the paper with phi(z) = z, in double precision; weight decay as in AdamW.
AS_THE_PAPER = """
def paper(learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7, weight_decay=0.0):
    weights = {name: value.astype("float64") for name, value in start().items()}
    m = {name: 0 * value for name, value in weights.items()}
    v = {name: 0 * value for name, value in weights.items()}
    for step, gradient in enumerate(gradients()):
        for name, x in weights.items():
            g = gradient[name]
            if isinstance(g, tuple):
                values, rows = g
                g = np.zeros((6, 2))
                np.add.at(g, rows, values)
            if name != "bias":
                x = x - learning_rate * weight_decay * x
            m[name] = beta_1 * m[name] + (1 - beta_1) * g
            v[name] = beta_2 * v[name] + (1 - beta_2) * g**2
            m_hat, v_hat = m[name] / (1 - beta_1 ** (step + 1)), v[name] / (1 - beta_2 ** (step + 1))
            r = m_hat / (np.sqrt(v_hat) + epsilon)
            size, step_size = np.sqrt(np.sum(x**2)), np.sqrt(np.sum(r**2))
            weights[name] = x - learning_rate * (size / step_size if size and step_size else 1) * r
            yield step, name, weights[name]


wanted = {}
for case in "plain", "epsilon", "decay":
    for step, name, value in paper(**{"learning_rate": 0.05, **CASES[case]}):
        wanted[f"{case} {step} {name}"] = value
compare(run(LAMB), wanted)
"""

IN_USE = """
import numpy as np

random = np.random.RandomState(0)
words = random.randint(0, 20, (64, 5))
labels = (words.sum(axis=1) > 48).astype("float32")


def model(optimizer, policy="float32", **options):
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy(policy)
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input((5,)), layers.Embedding(20, 8), layers.Flatten(), layers.Dense(8, activation="relu"),
        layers.Dense(1, activation="sigmoid", dtype="float32"),
    ])
    model.compile(optimizer, "binary_crossentropy", **options)
    return model


def losses(model, epochs=8, **options):
    options = {"batch_size": 16, "epochs": epochs, "shuffle": False, "verbose": 0, **options}
    return model.fit(words, labels, **options).history["loss"]


def learns(name, *arguments, callbacks=(), **options):
    seen = losses(model(*arguments, **options), callbacks=list(callbacks))
    assert np.isfinite(seen).all() and seen[-1] < 0.8 * seen[0], (name, seen)
    return seen


plain = learns("plain", LAMB(0.05))
xla = learns("xla", LAMB(0.05), jit_compile=True)
assert np.allclose(plain, xla, atol=1e-4), (plain, xla)
many = learns("steps_per_execution", LAMB(0.05), steps_per_execution=4)
assert np.allclose(plain, many, atol=1e-5), (plain, many)
learns("mixed_float16", LAMB(0.05), "mixed_float16")
learns("mixed_bfloat16", LAMB(0.05), "mixed_bfloat16")
learns("clipnorm", LAMB(0.05, clipnorm=1.0))
learns("weight decay", LAMB(0.05, weight_decay=0.01))
schedules = tf.keras.optimizers.schedules
learns("schedule", LAMB(schedules.PolynomialDecay(0.05, 100, 0.001)))
callbacks = tf.keras.callbacks
halved = model(LAMB(0.05))
losses(halved, 2, callbacks=[callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)])
assert np.isclose(halved.optimizer.learning_rate.numpy(), 0.0125)
losses(halved, 2, callbacks=[callbacks.ReduceLROnPlateau("loss", patience=0, factor=0.5, min_delta=10.0)])
assert halved.optimizer.learning_rate.numpy() < 0.0125
tf.keras.mixed_precision.set_global_policy("float32")

optimizer = LAMB(schedules.PolynomialDecay(0.05, 100, 0.001), beta_1=0.8, weight_decay=0.1, clipnorm=1.0)
again = LAMB.from_config(optimizer.get_config())
assert again.get_config() == optimizer.get_config()
assert {"beta_1", "beta_2", "epsilon", "weight_decay", "clipnorm", "learning_rate"} <= set(again.get_config())

def saved_and_loaded(optimizer, policy, path):
    first = model(optimizer, policy)
    losses(first, 3)
    first.save(path)
    loaded = tf.keras.models.load_model(path)
    assert np.array_equal(first.predict(words, verbose=0), loaded.predict(words, verbose=0))
    return first, loaded, getattr(loaded.optimizer, "inner_optimizer", loaded.optimizer)


restored = 0
for policy in "float32", "mixed_float16":
    for path in FORMATS:
        _, _, adam = saved_and_loaded(ADAM(), policy, path)
        first, loaded, lamb = saved_and_loaded(LAMB(0.05, weight_decay=0.01), policy, path)
        assert type(lamb) is LAMB and lamb.weight_decay == 0.01, (path, lamb)
        steps = int(lamb.iterations.numpy())
        assert steps == int(adam.iterations.numpy()), (path, steps)
        onwards, resumed = losses(first, 2), losses(loaded, 2)
        if steps:  # a SavedModel, and HDF5 under mixed_float16, come back without the optimizer's variables
            close = 1e-5 if policy == "float32" else 5e-3
            assert np.allclose(onwards, resumed, atol=close), (path, onwards, resumed)
            restored += 1
assert restored >= 2, restored

weights = tf.Variable([[3.0, 4.0]], dtype="float64")
optimizer = LAMB(0.1)


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights**2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])


step()  # the size is 5 and both coordinates move alike: 10 % of 5, by the same in each
assert np.allclose(weights.numpy(), [[3 - 0.5 / 2**0.5, 4 - 0.5 / 2**0.5]], atol=1e-6), weights
print("works")
"""


def run(env: str, folder: Path, *parts: str) -> str:
    path = folder / "script.py"
    path.write_text("\n\n".join(parts))
    done = run_script(tf_env(env), path, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.parametrize("name", SOURCES)
def test_takes_the_steps_of_the_paper(name: str, tmp_path: Path) -> None:
    assert run("tf215", tmp_path, SOURCES[name], STEPS, AS_THE_PAPER) == "equal 180"


@pytest.mark.parametrize("name", SOURCES)
def test_takes_the_steps_of_keras_3(name: str, tmp_path: Path) -> None:
    run("tf221", tmp_path, STEPS, KERAS_3)
    assert run("tf215", tmp_path, SOURCES[name], STEPS, AS_KERAS_3) == "equal 420"


@pytest.mark.parametrize(
    ("name", "formats"),
    [("lamb_keras2", ["model.keras", "model.h5", "folder"]), ("lamb_keras2_legacy", ["model.h5", "folder"])],
)
def test_trains_saves_and_loads(name: str, formats: list[str], tmp_path: Path) -> None:
    adam = "tf.keras.optimizers.legacy.Adam" if name.endswith("legacy") else "tf.keras.optimizers.Adam"
    given = f"FORMATS = {formats}\nADAM = {adam}"
    assert run("tf215", tmp_path, SOURCES[name], given, IN_USE) == "works"


@pytest.mark.parametrize("name", WRITTEN)
def test_is_fit_to_be_written_into_a_script(name: str) -> None:
    module, code = WRITTEN[name].split("import tensorflow as tf\n")
    assert len(WRITTEN[name].splitlines()) < 70
    assert "import" not in code
    assert re.search(r"arXiv 1904\.00962", code) and "TensorFlow 2." in module


# -- TensorFlow 1 ------------------------------------------------------------------------------------------------

GRAPH = """
import numpy as np
from lamb import LAMB, tf

tf.disable_v2_behavior()
SHAPES = {"kernel": (5, 3), "bias": (3,), "scale": (), "embedding": (6, 2), "idle": (4,)}


def start():
    random = np.random.RandomState(0)
    values = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    values["bias"] *= 0  # weights of size zero take an unscaled step
    return values


def gradients():
    random = np.random.RandomState(1)
    for _ in range(10):
        step = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
        step["idle"] *= 0
        step["embedding"] = random.normal(size=(3, 2)), random.randint(0, 4, 3)  # a row may occur twice
        yield step


def paper(learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
    weights, m, v = start(), {n: 0 * x for n, x in start().items()}, {n: 0 * x for n, x in start().items()}
    for step, gradient in enumerate(gradients(), 1):
        for name in weights:
            g = gradient[name]
            if isinstance(g, tuple):
                values, rows = g
                g = np.zeros((6, 2))
                np.add.at(g, rows, values)
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g**2
            r = m[name] / (1 - beta1**step) / (np.sqrt(v[name] / (1 - beta2**step)) + epsilon)
            size, step_size = np.sqrt(np.sum(weights[name] ** 2)), np.sqrt(np.sum(r**2))
            weights[name] = weights[name] - learning_rate * (size / step_size if size and step_size else 1) * r
    return weights


def steps(optimizer, dtype, resource):
    weights = {n: tf.Variable(x.astype(dtype), use_resource=resource, name=n) for n, x in start().items()}
    dense = {n: tf.placeholder(dtype, shape) for n, shape in SHAPES.items() if n != "embedding"}
    values, rows = tf.placeholder(dtype, (3, 2)), tf.placeholder(tf.int32, (3,))
    sparse = tf.IndexedSlices(values, rows, tf.constant([6, 2]))
    train = optimizer().apply_gradients([(dense.get(n, sparse), weights[n]) for n in SHAPES])
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for gradient in gradients():
            feed = {dense[n]: gradient[n] for n in dense}
            feed[values], feed[rows] = gradient["embedding"]
            sess.run(train, feed)
        return sess.run(weights)


rewrite = tf.train.experimental.enable_mixed_precision_graph_rewrite
cases = [
    (lambda: LAMB(0.05), {}, ["float32", "float64"]),
    (lambda: LAMB(tf.constant(0.05), lambda: 0.8, 0.99, 1e-3), {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-3}, ["float32"]),
    (lambda: rewrite(LAMB(0.05)), {}, ["float32"]),
]
for make, options, dtypes in cases:
    for dtype in dtypes:
        for resource in False, True:
            tf.reset_default_graph()
            found, wanted = steps(make, dtype, resource), paper(0.05, **options)
            worst = max(np.abs(found[n] - wanted[n]).max() for n in SHAPES)
            assert worst < (1e-7 if dtype == "float64" else 2e-6), (options, dtype, resource, worst)
print("works")
"""


@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_in_a_graph_it_takes_the_steps_of_the_paper(env: str, tmp_path: Path) -> None:
    """Dense and sparse gradients, both kinds of variables, tensors and functions as settings, and a scaled loss."""
    (tmp_path / "lamb.py").write_text(Path(snippets.__path__[0], "lamb_tf1.py").read_text())
    script = tmp_path / "steps.py"
    script.write_text(GRAPH)
    done = run_script(tf_env(env), script, timeout=300)
    assert done.returncode == 0 and "works" in done.stdout, done.stderr[-3000:]
