from __future__ import annotations

from pathlib import Path

import pytest

from rewriter.codemod import registry
from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("gather-batches", target="tf2.15")

HEAD = """
import numpy as np
import tensorflow as tf
x, y = np.random.rand(1000, 4), np.random.rand(1000, 1)
"""
FIT = """
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(ds)
"""
#: What the source and the stage become.
BOTH = "ds_arrays = tf.nest.map_structure(tf.convert_to_tensor, (x, y))\n"
MAP = ".map(lambda i: tf.nest.map_structure(lambda a: tf.gather(a, i), ds_arrays))"


def fixes(before: str, after: str, *, head: str = HEAD, **options: object) -> None:
    check.fixes(head + before + FIT, head + after + FIT, **options)


def refuses(body: str, reason: str, *, head: str = HEAD, **options: object) -> None:
    check.refuses(head + body + FIT, reason, **options)


def ignores(body: str, *, head: str = HEAD, **options: object) -> None:
    check.ignores(head + body + FIT, **options)


@pytest.mark.parametrize(
    "stages",
    [
        ".batch(32)",
        ".shuffle(100).batch(32)",
        ".shuffle(len(x), seed=3, reshuffle_each_iteration=False).batch(32, drop_remainder=True)",
        ".repeat().shuffle(100).batch(batch_size=32)",
        ".shuffle(100).repeat(2).take(900).skip(3).batch(32, num_parallel_calls=2)",
        ".shard(2, 0).prefetch(9).batch(BATCH)",
    ],
)
def test_stages_that_go_by_place(stages: str) -> None:
    fixes(
        f"ds = tf.data.Dataset.from_tensor_slices((x, y)){stages}.prefetch(2)\n",
        f"{BOTH}ds = tf.data.Dataset.range(len(x)){stages}{MAP}.prefetch(2)\n",
        head=HEAD + "BATCH = int(input())\n",
    )


def test_over_statements() -> None:
    fixes(
        """
ds = tf.data.Dataset.from_tensor_slices((x, y))
print(len(ds))
if len(x) > 10:
    ds = ds.shuffle(len(x))
ds = ds.batch(32)
ds = ds.map(lambda a, b: (a * 2, b))
""",
        f"""
{BOTH}ds = tf.data.Dataset.range(len(x))
print(len(ds))
if len(x) > 10:
    ds = ds.shuffle(len(x))
ds = ds.batch(32){MAP}
ds = ds.map(lambda a, b: (a * 2, b))
""",
    )


def test_structures_keep_their_form() -> None:
    given = '({"b": x, "a": (y, x[:, 0])}, y.astype("float32"))'
    fixes(
        f"ds = tf.data.Dataset.from_tensor_slices({given}).batch(32)\n",
        f"ds_arrays = tf.nest.map_structure(tf.convert_to_tensor, {given})\n"
        f"ds = tf.data.Dataset.range(len(x)).batch(32){MAP}\n",
    )


def test_one_array() -> None:
    fixes(
        "ds = tf.data.Dataset.from_tensor_slices(x).shuffle(9).batch(32)\n",
        "ds_arrays = tf.convert_to_tensor(x)\n"
        "ds = tf.data.Dataset.range(len(x)).shuffle(9).batch(32).map(lambda i: tf.gather(ds_arrays, i))\n",
    )


def test_what_is_computed_is_computed_once() -> None:
    given = "(tf.cast(x, tf.float32), y[:, 0])"
    fixes(
        f"ds = tf.data.Dataset.from_tensor_slices({given}).batch(32)\n",
        f"ds_arrays = tf.nest.map_structure(tf.convert_to_tensor, {given})\n"
        f"ds = tf.data.Dataset.range(tf.nest.flatten(ds_arrays)[0].shape[0]).batch(32){MAP}\n",
    )


def test_every_dataset_has_arrays_of_its_own() -> None:
    one = "tf.data.Dataset.from_tensor_slices((x, y))"
    fixes(
        f"a = {one}\nds = {one}\nval = a.batch(32)\nds = ds.batch(32)\nmodel = make()\nmodel.fit(val)\n",
        "a_arrays = tf.nest.map_structure(tf.convert_to_tensor, (x, y))\na = tf.data.Dataset.range(len(x))\n"
        f"{BOTH}ds = tf.data.Dataset.range(len(x))\n"
        f"val = a.batch(32){MAP.replace('ds_arrays', 'a_arrays')}\nds = ds.batch(32){MAP}\n"
        "model = make()\nmodel.fit(val)\n",
    )
    fixes(
        f"ds = {one}\nval = ds.shuffle(9)\nds = {one}\nds = ds.batch(32)\nval = val.batch(32)\nmake().fit(val)\n",
        f"{BOTH}ds = tf.data.Dataset.range(len(x))\nval = ds.shuffle(9)\n{BOTH.replace('ds_arrays', 'ds_arrays_2')}"
        f"ds = tf.data.Dataset.range(len(x))\nds = ds.batch(32){MAP.replace('ds_arrays', 'ds_arrays_2')}\n"
        f"val = val.batch(32){MAP}\nmake().fit(val)\n",
    )


def test_a_name_that_is_taken() -> None:
    name = "ds_arrays = 1\n"
    fixes(
        f"{name}ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)\n",
        f"{name}{BOTH.replace('ds_arrays', 'ds_arrays_2')}"
        f"ds = tf.data.Dataset.range(len(x)).batch(32){MAP.replace('ds_arrays', 'ds_arrays_2')}\n",
    )


def test_split_by_place() -> None:
    fixes(
        "full = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9)\n"
        "ds = full.skip(100).batch(32)\nval = full.take(100).batch(32)\nmodel = make()\nmodel.evaluate(val)\n",
        "full_arrays = tf.nest.map_structure(tf.convert_to_tensor, (x, y))\n"
        "full = tf.data.Dataset.range(len(x)).shuffle(9)\n"
        f"ds = full.skip(100).batch(32){MAP.replace('ds_', 'full_')}\n"
        f"val = full.take(100).batch(32){MAP.replace('ds_', 'full_')}\nmodel = make()\nmodel.evaluate(val)\n",
    )


FRAME = "import pandas as pd\nframe = pd.read_csv('f.csv')\ny = frame.pop('y')\n"


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("(frame[['a', 'b']].values, y)", "len(y)"),
        ("(dict(frame), y)", "len(y)"),
        ("(frame['a'].to_numpy(), frame['b'].astype('float32'))", "tf.nest.flatten(ds_arrays)[0].shape[0]"),
    ],
)
def test_tables_of_pandas(given: str, count: str) -> None:
    fixes(
        f"ds = tf.data.Dataset.from_tensor_slices({given}).batch(32)\n",
        f"ds_arrays = tf.nest.map_structure(tf.convert_to_tensor, {given})\n"
        f"ds = tf.data.Dataset.range({count}).batch(32){MAP}\n",
        head=HEAD + FRAME,
    )


def test_a_function_for_train_and_test() -> None:
    """The same lines for several datasets, whose callers are seen."""
    function = """
def make(a, b, training):
    ds = tf.data.Dataset.from_tensor_slices((a, b))
    if training:
        ds = ds.shuffle(100)
    return ds.batch(32)
ds = make(x, y, True)
val = make(x[:9], y[:9], False)
"""
    check.fixes(
        HEAD + function + FIT,
        HEAD
        + function.replace(
            "    ds = tf.data.Dataset.from_tensor_slices((a, b))",
            "    ds_arrays = tf.nest.map_structure(tf.convert_to_tensor, (a, b))\n    ds = tf.data.Dataset.range(len(a))",
        ).replace("ds.batch(32)", f"ds.batch(32){MAP}")
        + FIT,
    )


def test_other_names_of_tensorflow() -> None:
    check.fixes(
        "import numpy as np\nimport tensorflow as T\nfrom tensorflow.data import Dataset\nx = np.zeros((100, 3))\n"
        "ds = Dataset.from_tensor_slices(x).batch(32)\n" + FIT.replace("tf.", "T."),
        "import numpy as np\nimport tensorflow as T\nfrom tensorflow.data import Dataset\nx = np.zeros((100, 3))\n"
        "ds_arrays = T.convert_to_tensor(x)\n"
        "ds = Dataset.range(len(x)).batch(32).map(lambda i: T.gather(ds_arrays, i))\n" + FIT.replace("tf.", "T."),
    )


def test_names_of_tensorflow_are_not_hidden() -> None:
    check.fixes(
        "import numpy as np\nimport tensorflow as i\nx = np.zeros((100, 3))\n"
        "ds = i.data.Dataset.from_tensor_slices((x, x)).batch(32)\n" + FIT.replace("tf.", "i."),
        "import numpy as np\nimport tensorflow as i\nx = np.zeros((100, 3))\n"
        "ds_arrays = i.nest.map_structure(i.convert_to_tensor, (x, x))\n"
        "ds = i.data.Dataset.range(len(x)).batch(32)"
        ".map(lambda index: i.nest.map_structure(lambda a: i.gather(a, index), ds_arrays))\n"
        + FIT.replace("tf.", "i."),
    )


SLICES = "ds = tf.data.Dataset.from_tensor_slices"


@pytest.mark.parametrize(
    "body",
    [
        f"{SLICES}((x, y)).map(lambda a, b: (a, b)).batch(32)",  # the elements are looked at
        f"{SLICES}((x, y)).filter(lambda a, b: True).batch(32)",
        f"{SLICES}((x, y)).enumerate().batch(32)",
        f"{SLICES}((x, y)).cache().batch(32)",  # a file may hold rows
        f"{SLICES}((x, y)).padded_batch(32)",
        f"{SLICES}((x, y)).batch(8)",  # too few rows
        f"def make(size):\n    return {SLICES[5:]}((x, y)).batch(size)\nds = make(5)\nds = make(32)",
        f"{SLICES}((x, y))\nfor row in ds.take(1):\n    print(row)\nds = ds.batch(32)",  # rows are used
        f"{SLICES}((x, y))\nprint(ds.element_spec)\nds = ds.batch(32)",
        f"{SLICES}((x, y))\nother = {SLICES[5:]}((x, y)) if len(x) else ds\nds = other.batch(32)",
        f"{SLICES}(tensors=(x, y)).batch(32)",
        f"{SLICES}(*[(x, y)]).batch(32)",
        "ds = tf.data.Dataset.range(9).flat_map(lambda i: tf.data.Dataset.from_tensor_slices((x, y)).batch(32))",
        "ds = tf.data.Dataset.from_tensors((x, y)).batch(32)",
        "big = np.zeros((100, 64, 64))\nds = tf.data.Dataset.from_tensor_slices((big, y)).batch(32)",  # long rows
    ],
)
def test_nothing_to_do(body: str) -> None:
    ignores(body + "\n")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("features = {'a': x}\nds = tf.data.Dataset.from_tensor_slices((features, y)).batch(32)", "is not seen"),
        ("both = (x, y)\nds = tf.data.Dataset.from_tensor_slices(both).batch(32)", "is not seen"),
        ("ds = tf.data.Dataset.from_tensor_slices((dict(load()), y)).batch(32)", "is not seen"),
        ("ds = tf.data.Dataset.from_tensor_slices((load(), y)).batch(32)", "is not seen"),
        ("z = [i for i in range(1000)]\nds = tf.data.Dataset.from_tensor_slices((x, z)).batch(32)", "is a list"),
        ("ds = tf.data.Dataset.from_tensor_slices((x, [[1.0]] * 1000)).batch(32)", "is not seen"),
        (
            "z = tf.ragged.constant([[1]])\nds = tf.data.Dataset.from_tensor_slices((x, z)).batch(32)",
            "differs on",
        ),
        ("z = tf.Variable(y)\nds = tf.data.Dataset.from_tensor_slices((x, z)).batch(32)", "is not seen"),
        ("ds = tf.data.Dataset.from_tensor_slices((x,  # features\n y)).batch(32)", "comments stand between"),
        (
            "tf.data.experimental.enable_debug_mode()\nds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)",
            "runs mapped functions late",
        ),
    ],
)
def test_refused(body: str, reason: str) -> None:
    refuses(body + "\n", reason)


def unasked(body: str) -> tuple[list[str], list[str]]:
    """What is applied, and what refused, where the codemod is not named."""
    others = frozenset(registry()) - {"gather-batches"}
    path = Path("/nowhere/train.py")
    (result,) = rewrite(
        [path], Options(1, ignore=others), lambda _: named("tf2.15"), {path: (HEAD + body + FIT).encode()}
    )
    return [a.message for a in result.applied], [r.reason for r in result.refused]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("(np.load('z.npy'), y)", "how many numbers a row of `np.load('z.npy')` has is not known"),
        ("(np.zeros((1000, 28, 28)), y)", ""),
        ("(np.load('z.npy'), np.zeros((1000, 28, 28)))", ""),
        ("(tf.keras.datasets.mnist.load_data()[0][0] / 255.0, y)", ""),
        ("np.where(tf.keras.datasets.mnist.load_data()[0][0] > 9, 1.0, 0.0).astype('float32')", ""),
    ],
)
def test_unasked_only_for_short_rows(given: str, reason: str) -> None:
    applied, refused = unasked(f"ds = tf.data.Dataset.from_tensor_slices({given}).batch(32)\n")
    assert not applied
    assert not refused if not reason else len(refused) == 1 and reason in refused[0]


@pytest.mark.parametrize(
    "given",
    [
        "(x, y)",
        "(x / 2, tf.one_hot(y, 10))",
        "(x.astype('float32'), -x.sum(axis=1))",
        "(np.random.default_rng(0).normal(size=(1000, 4)).astype('float32'), np.abs(y))",
        "(np.concatenate([x, x]), tf.keras.utils.to_categorical(y, 10))",
        "{'a': x[:, 0], 'b': tf.cast(y, tf.float32)}",
        "(tf.keras.preprocessing.sequence.pad_sequences(load(), maxlen=80), y)",
    ],
)
def test_unasked_for_short_rows(given: str) -> None:
    applied, refused = unasked(f"ds = tf.data.Dataset.from_tensor_slices({given}).batch(32)\n")
    assert len(applied) == 1 and not refused


def test_the_seed_of_a_graph() -> None:
    body = "tf.set_random_seed(1)\nds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)\n"
    refuses(body, "would shuffle in another order", target="tf1.15")
    refuses(
        "z = tf.ones((9, 2))\nds = tf.data.Dataset.from_tensor_slices(z).batch(32)\n", "is not seen", target="tf1.15"
    )


# -- real runs -----------------------------------------------------------------------------------------------

RUN = '''
import hashlib
import numpy as np
import tensorflow as tf

graph = tf.__version__.startswith("1.")
if graph:
    tf.compat.v1.enable_eager_execution()
set_seed = tf.compat.v1.set_random_seed if graph else tf.random.set_seed
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
rng = np.random.RandomState(0)
set_seed(1)
x, y, words = rng.rand(103, 5), rng.randint(9, size=103), np.array(["w%d" % i for i in range(103)])


def told(ds, name):
    """Three passes over a dataset, and what the next draw without a seed is."""
    if name is None:
        model.fit(ds)
    digest = hashlib.sha256(str(tf.compat.v1.data.get_output_types(ds)).encode())
    digest.update(str(tf.compat.v1.data.get_output_shapes(ds)).encode())
    for epoch in range(3):
        for batch in ds:
            for part in tf.nest.flatten(batch):
                digest.update(str((part.dtype, part.shape, part.numpy().tolist())).encode())
    print("RESULT", name, digest.hexdigest(), tf.random.uniform([]).numpy())


'''


def _cases() -> list[str]:
    stages = []
    for seed in ("", ", seed=7"):
        for again in ("", ", reshuffle_each_iteration=True", ", reshuffle_each_iteration=False"):
            for size in (5, 200):
                shuffle = f".shuffle({size}{seed}{again})"
                stages += [
                    f"{shuffle}.batch(16)",
                    f"{shuffle}.repeat(2).batch(16, drop_remainder=True)",
                    f".repeat(2){shuffle}.batch(16)",
                    f"{shuffle}.batch(16).repeat(2)",
                    f".take(90){shuffle}.skip(7).batch(16)",
                ]
    return [".batch(16)", ".shard(3, 1).batch(16, drop_remainder=True)", *stages]


GIVEN = ["(x, y)", "({'b': x, 'a': (y, words)}, x[:, 0].astype('float32'))", "x"]


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf115", "tf215", "tf221"])
def test_equal_batches_in_equal_order(env: str, tmp_path: Path) -> None:
    """With a seed of its own, with a global seed, with both; with neither the draws cannot be compared."""
    before, count = RUN, 0
    for i, stages in enumerate(_cases()):
        given = GIVEN[i % 3] if env != "tf115" or i % 3 != 1 else GIVEN[0]
        if "seed=7" in stages or "shuffle" not in stages:
            before += f"ds = tf.data.Dataset.from_tensor_slices({given}){stages}\n"
            before += f"told(ds, {i})\n"
            count += 1
        before += f"set_seed(5)\nds = tf.data.Dataset.from_tensor_slices({given}){stages}\ntold(ds, {i})\n"
        count += 1
    text = before + "\n"
    results = []
    result = check.run(text, target={"tf115": "tf2.0", "tf215": "tf2.15", "tf221": "tf2.21"}[env])
    applied = sum(a.codemod == "gather-batches" for a in result.applied)
    assert applied == count, (applied, count, [r.reason for r in result.refused][:3])
    for name, script in (("before", text), ("after", result.after.decode())):
        path = tmp_path / f"{name}.py"
        path.write_text(script)
        done = run_script(tf_env(env), path, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "AutoGraph could not" not in done.stderr
        results.append([line for line in done.stdout.splitlines() if line.startswith("RESULT")])
    assert len(results[0]) == count
    compared = [(a, b) for a, b in zip(*results, strict=True) if a != b]
    assert not compared, compared[:3]


GRAPH = """
import numpy as np
import tensorflow as tf
x, y = np.arange(240.0).reshape(60, 4), np.arange(60)
ds = tf.data.Dataset.from_tensor_slices((x, {"y": y})).shuffle(20, seed=3).repeat(2).batch(16)
iterator = ds.ITERATOR()
batch = iterator.get_next()
w = tf.Variable(np.ones((4, 1)))
train = tf.train.GradientDescentOptimizer(1e-6).minimize(tf.reduce_mean(tf.matmul(batch[0], w)))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    if "init" in "ITERATOR":
        session.run(iterator.initializer)
    try:
        while True:
            values, _ = session.run([batch, train])
            print("RESULT", values[0].dtype, values[0].tolist(), values[1]["y"].tolist())
    except tf.errors.OutOfRangeError:
        print("RESULT", batch[0].shape, session.run(w).tolist())
"""


@pytest.mark.tf
@pytest.mark.parametrize("iterator", ["make_one_shot_iterator", "make_initializable_iterator"])
def test_equal_batches_in_a_graph(iterator: str, tmp_path: Path) -> None:
    before = GRAPH.replace("ITERATOR", iterator)
    result = check.run(before, target="tf1.15")
    assert [a.codemod for a in result.applied] == ["gather-batches"], result.refused
    results = []
    for name, script in (("before", before), ("after", result.after.decode())):
        path = tmp_path / f"{name}.py"
        path.write_text(script)
        done = run_script(tf_env("tf115"), path, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        results.append([line for line in done.stdout.splitlines() if line.startswith("RESULT")])
    assert len(results[0]) == 9
    assert results[0] == results[1]


@pytest.mark.tf
def test_columns_of_pandas(tmp_path: Path) -> None:
    """Types of columns become the same types of tensors, and batches hold the same."""
    script = (
        RUN
        + "import io\nimport pandas as pd\n"
        + """
frame = pd.read_csv(io.StringIO("i,f,s,b\\n" + "\\n".join("%d,%f,w%d,%s" % (i, i / 3, i, i % 2 == 0) for i in range(99))))
labels = frame.pop("f").astype("float32")
a = tf.data.Dataset.from_tensor_slices((dict(frame), labels)).shuffle(50, seed=1).batch(16)
told(a, "columns")
b = tf.data.Dataset.from_tensor_slices((frame[["i"]].values, frame["s"], frame["b"])).shuffle(50, seed=1).batch(16)
told(b, "values")
c = tf.data.Dataset.from_tensor_slices((frame[["i"]], labels)).shuffle(50, seed=1).batch(16)
told(c, "frame")
"""
    )
    result = check.run(script, target="tf2.21")
    assert len(result.applied) == 3, result.refused
    results = []
    for name, text in (("before", script), ("after", result.after.decode())):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        done = run_script(tf_env("tf221"), path, timeout=300)
        if "No module named 'pandas'" in done.stderr:
            pytest.skip("no Pandas in this environment")
        assert done.returncode == 0, done.stderr[-3000:]
        results.append([line for line in done.stdout.splitlines() if line.startswith("RESULT")])
    assert len(results[0]) == 3
    assert results[0] == results[1]


def test_numbers_beyond_float16_are_still_seen() -> None:
    """What mixed precision refuses in the first round it refuses in the next as well."""
    text = """
import numpy as np
import tensorflow as tf
x = np.random.uniform(0, 5e5, size=(1024, 4))
ds = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).shuffle(100).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(ds, epochs=3)
"""
    path = Path("/nowhere/train.py")
    (result,) = rewrite([path], Options(2), lambda _: named("tf2.15"), {path: text.encode()})
    applied = {a.codemod for a in result.applied}
    assert "gather-batches" in applied and "mixed-precision" not in applied
    (again,) = rewrite([path], Options(2), lambda _: named("tf2.15"), {path: result.after})
    assert not again.applied
    assert any(r.codemod == "mixed-precision" for r in again.refused)
    assert not any(r.codemod in ("cache", "gather-batches") for r in again.refused)
