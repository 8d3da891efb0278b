import textwrap
from pathlib import Path

import pytest

from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("parallel-map")

DS = "ds = tf.data.Dataset.from_tensor_slices(x)\n"


def fixes_all(source: str, **options: object) -> None:
    """Every `.map(f)` of the source that is followed by `  # parallel` gets the argument, and only those."""
    source = textwrap.dedent(source).lstrip("\n")
    auto = options.pop("auto", "tf.data.AUTOTUNE")
    after = source.replace(")  # parallel", f", num_parallel_calls={auto})  # parallel")
    check.fixes(source, after, **options)


def test_plain() -> None:
    fixes_all("""
        import tensorflow as tf
        def decode(path, label):
            image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
            image.set_shape([None, None, 3])
            return tf.image.resize(image, (8, 8)) / 255.0, label
        ds = tf.data.Dataset.from_tensor_slices((paths, labels))
        ds = ds.map(decode)  # parallel
        ds = ds.map(lambda x, y: (x, tf.one_hot(y, 10)))  # parallel
        ds = ds.map(tf.io.parse_tensor)  # parallel
        """)


def test_keras_layers_and_models() -> None:
    fixes_all("""
        import tensorflow as tf
        from tensorflow.keras import layers
        rescale = layers.Rescaling(1.0 / 255)
        augment = tf.keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)])
        vectorize = layers.TextVectorization(max_tokens=100)
        ds = tf.data.Dataset.from_tensor_slices((x, y))
        ds = ds.map(rescale)  # parallel
        ds = ds.map(lambda x, y: (augment(x, training=True), y))  # parallel
        ds = ds.map(lambda x, y: (vectorize(x), y))  # parallel
        """)


@pytest.mark.parametrize(
    "keras", ["tf.keras.utils.set_random_seed(1)", "tf.random.set_seed(1)", "import random\nrandom.seed(3)"]
)
def test_random_layers_under_a_seed(keras: str) -> None:
    check.refuses(
        f"""import tensorflow as tf
{keras}
augment = tf.keras.Sequential()
augment.add(tf.keras.layers.RandomFlip("horizontal"))
{DS}ds = ds.map(lambda x: augment(x, training=True))
""",
        "RandomFlip",
    )


def test_layers_that_do_not_draw_under_a_seed() -> None:
    fixes_all("""
        import tensorflow as tf
        tf.keras.utils.set_random_seed(1)
        augment = tf.keras.Sequential([tf.keras.layers.RandomFlip("horizontal")])
        features = tf.keras.applications.MobileNet(include_top=False)
        class Scale(tf.keras.layers.Layer):
            def call(self, x):
                return x * 2
        scale = Scale()
        ds = tf.data.Dataset.from_tensor_slices(x)
        ds = ds.map(lambda x: augment(x, training=False))  # parallel
        ds = ds.map(lambda x: features(x))  # parallel
        ds = ds.map(scale)  # parallel
        """)


def test_random_operations_without_a_seed() -> None:
    fixes_all("""
        import numpy as np
        import tensorflow as tf
        np.random.seed(0)
        def augment(x):
            return tf.image.random_flip_left_right(x)
        ds = tf.data.Dataset.from_tensor_slices(x)
        ds = ds.map(augment)  # parallel
        ds = ds.map(tf.image.random_flip_up_down)  # parallel
        """)


def test_stateless_random_under_a_seed() -> None:
    fixes_all("""
        import tensorflow as tf
        tf.random.set_seed(0)
        ds = tf.data.Dataset.range(3)
        ds = ds.map(lambda i: tf.random.stateless_uniform((3,), (i, i)))  # parallel
        ds = ds.map(lambda x: tf.image.stateless_random_flip_left_right(x, (1, 2)))  # parallel
        """)


SEEDED = "import tensorflow as tf\ntf.random.set_seed(0)\n"


@pytest.mark.parametrize(
    "definition",
    [
        "f = lambda x: tf.image.random_crop(x, (3, 3, 3))",
        "def f(x):\n    return tf.cond(x > 0, lambda: tf.random.normal((3,)) + x, lambda: x)",
        "def flip(x):\n    return tf.image.random_flip_up_down(x)\ndef f(x):\n    return tf.cond(x > 0, flip, abs)",
        "def f(x):\n    def inner(y):\n        return y + tf.random.uniform((3,))\n    return inner(x)",
        "def make():\n    def inner(y):\n        return y + tf.random.normal((3,))\n    return inner\nf = make()",
        "import functools\ndef g(x, k):\n    return tf.nn.dropout(x, k)\nf = functools.partial(g, k=0.1)",
        "class A:\n    def __call__(self, x):\n        return tf.random.shuffle(x)\nf = A()",
        "class A:\n    def aug(self, x):\n        return self.more(x)\n    def more(self, x):\n"
        "        return tf.random.shuffle(x)\nf = A().aug",
        "@tf.function\ndef f(x):\n    return tf.compat.v1.random_uniform((3,)) * x",
        "f = tf.function(lambda x: tf.random.normal((3,)))",
        "f = tf.image.random_flip_left_right",
        "drop = tf.keras.layers.Dropout(0.5)\nf = lambda x: drop(x, training=True)",
        "class L(tf.keras.layers.Layer):\n    def call(self, x):\n        return tf.random.shuffle(x)\nf = L()",
        "i = tf.keras.Input((3,))\nm = tf.keras.Model(i, tf.keras.layers.RandomFlip()(i))\nf = lambda x: m(x)",
        "g = tf.random.Generator.from_non_deterministic_state()\nf = lambda x: x + g.normal((3,))",
    ],
)
def test_random_operations_under_a_seed(definition: str) -> None:
    check.refuses(f"{SEEDED}{definition}\n{DS}ds = ds.map(f)\n", "repeatable")


@pytest.mark.parametrize(
    "seed",
    [
        "tf.random.set_seed(1)",
        "tf.set_random_seed(1)",
        "tf.compat.v1.set_random_seed(1)",
        "tf.keras.utils.set_random_seed(1)",
        "import keras\nkeras.utils.set_random_seed(1)",
        "def fix(n):\n    tf.random.set_seed(n)\nfix(1)",
        "from helpers import set_seed\nset_seed(1)",
        "import utils\nutils.seed_everything(1)",
        "tf.config.experimental.enable_op_determinism()",
        "config = tf.estimator.RunConfig(tf_random_seed=1)",
    ],
)
def test_kinds_of_seeds(seed: str) -> None:
    source = f"import tensorflow as tf\n{seed}\n{DS}ds = ds.map(tf.image.random_flip_left_right)\n"
    check.refuses(source, "repeatable")


@pytest.mark.parametrize(
    "draw",
    [
        "lambda x: tf.random.uniform((3,), seed=7)",
        "lambda x: tf.image.random_flip_left_right(x, 7)",
        "lambda x: tf.keras.layers.RandomFlip(seed=3)(x)",
        "tf.keras.layers.RandomFlip('horizontal', seed=3)",
    ],
)
def test_operations_with_a_seed_of_their_own(draw: str) -> None:
    check.refuses(f"import tensorflow as tf\n{DS}ds = ds.map({draw})\n", "with a seed")


def test_a_seeded_generator() -> None:
    check.refuses(
        f"""import tensorflow as tf
rng = tf.random.Generator.from_seed(123, alg="philox")
def f(x, y):
    seed = rng.make_seeds(1)[:, 0]
    return tf.image.stateless_random_crop(x, (3, 3, 3), seed=seed), y
{DS}ds = ds.map(f)
""",
        "`rng.make_seeds` draws with a seed (line 4)",
        line=7,
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("lambda x: tf.py_function(load, [x], tf.float32)", "`tf.py_function`"),
        ("lambda x: tf.numpy_function(load, [x], tf.float32)", "`tf.numpy_function`"),
        ("lambda x: tf.compat.v1.py_func(load, [x], tf.float32)", "py_func"),
        ("lambda x: tf.print(x)", "prints"),
        ("lambda x: counter.assign_add(1)", "`counter.assign_add`"),
        ("lambda x: table.insert(x, x)", "`table.insert`"),
        ("missing", "`missing`"),
        ("lambda x: missing.transform(x)", "`missing.transform`"),
        ("lambda x: helper.decode(x)", "`helper.decode`"),
        ("albumentations_fn", "`albumentations_fn`"),
        ("lambda x: norm(x, training=True)", "BatchNormalization"),
        ("tf.keras.models.load_model('a.keras')", "load_model"),
    ],
)
def test_state_and_the_unseen(function: str, reason: str) -> None:
    check.refuses(
        f"""import tensorflow as tf
import helper
from augment import albumentations_fn
counter = tf.Variable(0)
table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
norm = tf.keras.layers.BatchNormalization()
{DS}ds = ds.map({function})
""",
        reason,
        line=8,
    )


def test_python_that_runs_while_tracing_is_no_state() -> None:
    fixes_all("""
        import os
        import numpy as np
        import tensorflow as tf
        counter = []
        table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer("a", tf.string, 0, tf.int64, 1), -1)
        def f(x):
            print("tracing", x)
            counter.append(1)
            parts = tf.strings.split(x, os.sep)
            features = {"a": parts[0]}
            label = features.pop("a")
            return table.lookup(label) + np.int64(len(counter))
        ds = tf.data.Dataset.from_tensor_slices(x)
        ds = ds.map(f)  # parallel
        """)


def test_several_of_one_chain() -> None:
    check.fixes(
        f"""import tensorflow as tf
tf.random.set_seed(1)
{DS}ds = (ds.map(tf.image.random_flip_left_right)
      .map(lambda x: x / 255)
      .batch(8))
""",
        f"""import tensorflow as tf
tf.random.set_seed(1)
{DS}ds = (ds.map(tf.image.random_flip_left_right)
      .map(lambda x: x / 255, num_parallel_calls=tf.data.AUTOTUNE)
      .batch(8))
""",
    )


def test_zip_of_mapped_features_and_labels() -> None:
    fixes_all("""
        import tensorflow as tf
        images = tf.data.Dataset.from_tensor_slices(x)
        images = images.map(tf.io.decode_png)  # parallel
        labels = tf.data.Dataset.from_tensor_slices(y)
        labels = labels.map(lambda v: tf.one_hot(v, 3))  # parallel
        ds = tf.data.Dataset.zip((images, labels)).batch(8)
        """)


@pytest.mark.parametrize(
    ("target", "auto"),
    [
        ("tf1.15", "tf.data.experimental.AUTOTUNE"),
        ("tf2.3", "tf.data.experimental.AUTOTUNE"),
        ("tf2.4", "tf.data.AUTOTUNE"),
        ("keras3", "tf.data.AUTOTUNE"),
    ],
)
def test_spelling(target: str, auto: str) -> None:
    fixes_all(
        f"""
        import tensorflow as tf
        {DS.strip()}
        ds = ds.map(lambda x: x / 255)  # parallel
        """,
        target=target,
        auto=auto,
    )


@pytest.mark.parametrize(
    "line",
    [
        "ds = ds.map(f, 4)",
        "ds = ds.map(f, num_parallel_calls=2)",
        "ds = ds.map(f, tf.data.AUTOTUNE)",
        "ds = ds.map(f, **options)",
        "y = list(map(f, x))",
        "frame['a'] = frame['a'].map(f)",
        "y = pool.map(f, x)",
        "ds = ds.batch(2).filter(f)",
        "y = tf.map_fn(f, x)",
        "ds = files.interleave(lambda n: tf.data.TextLineDataset(n).map(f), 4, num_parallel_calls=4)",
    ],
)
def test_nothing_to_do(line: str) -> None:
    check.ignores(f"""import tensorflow as tf
import pandas as pd
frame = pd.read_csv("a.csv")
files = tf.data.Dataset.list_files("*")
def f(x):
    return x + 1
{DS}{line}
""")


@pytest.mark.parametrize(
    "function",
    [
        "lambda x: x",
        "lambda x, y: x",
        'lambda d: (d["image"], d["label"])',
        'lambda d: {"a": d["image"][0], "b": [d["label"]]}',
        "pick",
        "pick if flag else (lambda d: d)",
    ],
)
def test_a_function_that_only_picks_has_no_work_to_share(function: str) -> None:
    source = f"""import tensorflow as tf
def pick(d):
    \"\"\"Image and label.\"\"\"
    return d["image"], d["label"]
{DS}ds = ds.map({{}})
"""
    check.ignores(source.format(function))
    works = f"lambda d: tf.nest.flatten(({function})(d))"
    check.fixes(source.format(works), source.format(works + ", num_parallel_calls=tf.data.AUTOTUNE"))


def test_a_function_that_picks_on_one_way_only() -> None:
    source = f"""import tensorflow as tf
def scale(d):
    d = d["image"] / 255
    return d
{DS}ds = ds.map(scale if flag else (lambda d: d["image"]))
"""
    check.fixes(source, source[:-2] + ", num_parallel_calls=tf.data.AUTOTUNE)\n")


def test_a_receiver_that_is_not_always_a_dataset() -> None:
    check.refuses(
        """import tensorflow as tf
import pandas as pd
data = pd.read_csv("a.csv")["a"]
if use_tf:
    data = tf.data.Dataset.from_tensor_slices(x)
data = data.map(lambda v: v + 1)
""",
        "not always",
    )


def test_options_that_give_up_the_order() -> None:
    check.refuses(
        f"""import tensorflow as tf
options = tf.data.Options()
options.deterministic = False
{DS}ds = ds.with_options(options).map(lambda x: x + 1)
""",
        "deterministic",
    )


def test_functions_and_seeds_of_sibling_modules(tmp_path: Path) -> None:
    (tmp_path / "aug.py").write_text(
        "import tensorflow as tf\ndef flip(x):\n"
        "    return tf.image.random_flip_left_right(x)\n"
        "def scale(x):\n    return x / 255\n"
    )
    (tmp_path / "seeds.py").write_text("import tensorflow as tf\ndef fix():\n    tf.random.set_seed(1)\n")
    script = "import tensorflow as tf\n{}\nds = tf.data.Dataset.range(3).map({})\n"
    check.refuses(script.format("import aug, seeds\nseeds.fix()", "aug.flip"), "aug.py:3", folder=tmp_path)
    check.refuses(
        script.format("from aug import flip as f\nfrom seeds import fix\nfix()", "lambda x: f(x)"),
        "seeds.py:3",
        folder=tmp_path,
    )
    auto = ", num_parallel_calls=tf.data.AUTOTUNE"
    source = script.format("from aug import *", "flip")
    check.fixes(source, source.replace("map(flip", f"map(flip{auto}"), folder=tmp_path)
    source = script.format("from aug import scale\nimport seeds\nseeds.fix()", "scale")
    check.fixes(source, source.replace("scale)", f"scale{auto})"), folder=tmp_path)


def test_random_operations_in_a_library_whose_program_is_not_seen() -> None:
    check.refuses(
        """import tensorflow as tf
def make(x):
    return tf.data.Dataset.from_tensor_slices(x).map(tf.image.random_flip_left_right).batch(8)
""",
        "not seen",
    )


PROOF = """
import sys
import numpy as np
import tensorflow as tf
x = np.arange(60, dtype="float32").reshape(20, 3)
def work(v):
    return tf.sqrt(v) * tf.cast(tf.size(v), tf.float32) / (1 + v)
layer = tf.keras.layers.Rescaling(1 / 255)
ds = tf.data.Dataset.from_tensor_slices(x)
ds = ds.map(work)
ds = ds.shuffle(8, seed=1, reshuffle_each_iteration=False).map(layer).repeat(2).batch(7)
print("RESULT", [b.tobytes().hex() for b in ds.as_numpy_iterator()])
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_the_same_elements_in_the_same_order(env: str, tmp_path: Path) -> None:
    result = check.run(PROOF)
    assert result.after.count(b"num_parallel_calls") == 2
    outputs = []
    for name, data in ("before.py", result.before), ("after.py", result.after):
        (tmp_path / name).write_bytes(data)
        done = run_script(tf_env(env), tmp_path / name, timeout=300)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] and "RESULT" in outputs[0]


@pytest.mark.parametrize("first", ["", "import random\nrandom.seed(1)\n"])
def test_in_a_loop_over_functions(first: str) -> None:
    fixes_all(
        first
        + """
import tensorflow as tf
layer = tf.keras.layers.Rescaling(2)
ds = tf.data.Dataset.from_tensor_slices(x)
for f in (tf.abs, tf.sqrt, layer):
    ds = ds.map(f)  # parallel
model = tf.keras.Sequential([])
model.fit(ds.batch(2))
"""
    )
