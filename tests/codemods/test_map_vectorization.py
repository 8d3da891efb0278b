from pathlib import Path

import pytest

from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("map-vectorization")

HEAD = """import re, string
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers
x, y = np.random.rand(37, 7, 5).astype("float32"), np.random.randint(5, size=37)
texts = ["Good movie,<br /> fun", "bad", "a b c d e f g h i"]
SLICES = tf.data.Dataset.from_tensor_slices((x, y))
"""


def moves(before: str, after: str, **options: object) -> None:
    check.fixes(HEAD + before, HEAD + after, **options)


def refuses(body: str, reason: str) -> None:
    check.refuses(HEAD + body, reason)


def ignores(body: str) -> None:
    check.ignores(HEAD + body)


F = "f = lambda a, b: (tf.cast(a, tf.float32) / 255.0, b)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ds = SLICES.map(f).batch(8)\n", "ds = SLICES.batch(8).map(f)\n"),
        (
            "ds = SLICES.map(f, num_parallel_calls=4).batch(8, drop_remainder=True).prefetch(1)\n",
            "ds = SLICES.batch(8, drop_remainder=True).map(f, num_parallel_calls=4).prefetch(1)\n",
        ),
        ("ds = SLICES.map(f).shuffle(9).batch(8)\n", "ds = SLICES.shuffle(9).batch(8).map(f)\n"),
        ("ds = SLICES.map(f).map(f).repeat(2).batch(8)\n", "ds = SLICES.repeat(2).batch(8).map(f).map(f)\n"),
        ("ds = SLICES.map(f).take(9).map(f).batch(8)\n", "ds = SLICES.take(9).batch(8).map(f).map(f)\n"),
        (
            "ds = SLICES.map(lambda a, b: (tf.image.rot90(a), b)).map(f).batch(8)\n",
            "ds = SLICES.map(lambda a, b: (tf.image.rot90(a), b)).batch(8).map(f)\n",
        ),
        ("ds = SLICES\nds = ds.map(f)\nds = ds.batch(8)\n", "ds = SLICES\nds = ds.batch(8)\nds = ds.map(f)\n"),
        ("raw = SLICES.map(f)\nds = raw.batch(8)\n", "raw = SLICES.batch(8)\nds = raw.map(f)\n"),
        (
            "ds = SLICES\n\n# numbers\nds = ds.map(f)  # from 0 to 1\n\n# mix\nds = ds.shuffle(9)\nds = ds.batch(8)\nprint(ds)\n",
            "ds = SLICES\n\n# mix\nds = ds.shuffle(9)\nds = ds.batch(8)\n# numbers\nds = ds.map(f)  # from 0 to 1\n\nprint(ds)\n",
        ),
        (
            "ds = (\n    SLICES\n    .map(\n        f,\n        num_parallel_calls=2,\n    )\n    .batch(8)\n)\n",
            "ds = (\n    SLICES\n    .batch(8)\n    .map(\n        f,\n        num_parallel_calls=2,\n    )\n)\n",
        ),
        (
            "ds = (SLICES\n      .map(f,\n           num_parallel_calls=2)\n      .shuffle(9)\n      .batch(8))\n",
            "ds = (SLICES\n      .shuffle(9)\n      .batch(8)\n      .map(f,\n           num_parallel_calls=2))\n",
        ),
        (
            "def make(data):\n    return data.map(f).batch(8)\nds = make(SLICES)\n",
            "def make(data):\n    return data.batch(8).map(f)\nds = make(SLICES)\n",
        ),
    ],
)
def test_layout(before: str, after: str) -> None:
    moves(F + before, F + after)


#: Functions of (a, b), and what `a` may be besides.
SAME = [
    "lambda a, b: (tf.cast(a, tf.float32) / 255., tf.one_hot(b, 5))",
    "lambda a, b: (tf.cast(a, 'float16'), tf.one_hot(b, depth=len(texts), dtype=tf.float32))",
    "lambda a, b: {'a': a * 2.0 - 1.0, 'b': tf.one_hot(b, 5, axis=-1)}",
    "lambda a, b: (-a, tf.cast(b, tf.int32) % 2)",
    "lambda a, b: (a * a + a, b + 1)",
    "lambda a, b: (tf.clip_by_value(a, 0.1, 0.9), tf.equal(b, 1))",
    "lambda a, b: (tf.where(a > 0.5, a, 0.0), b > 2)",
    "lambda a, b: (tf.expand_dims(a, -1), tf.expand_dims(b, axis=-1))",
    "lambda a, b: (tf.image.convert_image_dtype(a, tf.uint8), b)",
    "lambda a, b: (tf.sqrt(tf.abs(a)), tf.math.maximum(b, 2))",
    "lambda a, b: (layers.Rescaling(1 / 255.0)(a), b)",
    "lambda a, b: ((a - 0.1307) / 0.3081, tf.identity(b))",
    "lambda a, b: (tf.stop_gradient(tf.floor(a * 3.0)), tf.as_string(b))",
    "lambda a, b: (tf.multiply(a, 3.0), layers.IntegerLookup(vocabulary=[1, 2])(b))",
    "lambda a, b: (tf.saturate_cast(a * 300.0, tf.uint8), layers.Hashing(3)(b))",
]
TEXT = [
    "lambda t: tf.strings.lower(t)",
    "lambda t: tf.strings.length(tf.strings.regex_replace(t, '[%s]' % re.escape(string.punctuation), ''))",
    "lambda t: tf.strings.to_hash_bucket_fast(t, 7)",
    "lambda t: vectorize(t)",
    "lambda t: counts(tf.strings.strip(t))",
    "lambda t: table.lookup(t)",
    "table.lookup",
    "lambda t: layers.StringLookup(vocabulary=['bad'])(t)",
    "vectorize",
    "lambda t: {'t': tf.strings.join([t, '!']), 'n': tf.strings.length(t)}",
]
LAYERS = """
def clean(t):
    t = tf.strings.lower(t)
    return tf.strings.regex_replace(t, "<br />", " ")
vectorize = layers.TextVectorization(standardize=clean, max_tokens=9, output_sequence_length=5)
vectorize.adapt(texts)
counts = layers.TextVectorization(max_tokens=9, output_mode="count", ngrams=2)
counts.adapt(texts)
table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["bad", "good"], tf.constant([1, 2])), -1)
TEXTS = tf.data.Dataset.from_tensor_slices(texts)
"""


@pytest.mark.parametrize("function", SAME)
def test_same_on_a_batch(function: str) -> None:
    moves(f"ds = SLICES.map({function}).batch(8)\n", f"ds = SLICES.batch(8).map({function})\n")


@pytest.mark.parametrize("function", TEXT)
def test_same_on_a_batch_of_texts(function: str) -> None:
    moves(f"{LAYERS}ds = TEXTS.map({function}).batch(2)\n", f"{LAYERS}ds = TEXTS.batch(2).map({function})\n")


@pytest.mark.parametrize(
    "source",
    [
        "[f'{i} words' for i in range(9)]",
        "[write(i) for i in range(9)]",
        "df['text']",
        "df['text'].values",
        "df['text'].astype(str).tolist()",
    ],
)
def test_single_strings(source: str) -> None:
    head = (
        "import pandas as pd\ndf = pd.read_csv('a.csv')\ndef write(n):\n    return ' '.join(['a'] * n).upper() + '.'\n"
        + LAYERS
    )
    moves(
        f"{head}ds = tf.data.Dataset.from_tensor_slices(({source}, y)).map(lambda t, l: (vectorize(t), l)).batch(2)\n",
        f"{head}ds = tf.data.Dataset.from_tensor_slices(({source}, y)).batch(2).map(lambda t, l: (vectorize(t), l))\n",
    )


def test_functions_in_functions() -> None:
    body = """
        def scale(image, by=255.0):
            return tf.cast(image, tf.float32) / by
        def unit(image):
            return tf.cast(image, tf.float32) / 255.0
        @tf.function
        def prepare(image, label):
            \"\"\"From bytes.\"\"\"
            image = unit(image)
            image *= 2.0
            pair = image - 1.0, label
            first, second = pair
            out = {"image": first}
            out["same"] = out["image"]
            return out, second
        ds = SLICES.map(prepare).batch(8)
        """.replace("\n        ", "\n")
    moves(body, body.replace("map(prepare).batch(8)", "batch(8).map(prepare)"))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("lambda a, b: (tf.exp(a), b)", "`tf.exp(a)`"),
        ("lambda a, b: (tf.sigmoid(a), b)", "`tf.sigmoid(a)`"),
        ("lambda a, b: (a ** 0.3, b)", "a ** 0.3"),
        ("lambda a, b: (a, b, 1)", "returns a constant"),
        ("lambda a, b: (a, tf.constant(1.0))", "returns a constant"),
        ("lambda a, b: (a - mean, b)", "`mean`"),
        ("lambda a, b: (a + tf.cast(b, tf.float32), b)", "different shapes"),
        ("lambda a, b: (tf.reduce_mean(a), b)", "reduce_mean"),
        ("lambda a, b: (tf.reshape(a, (35,)), b)", "reshape"),
        ("lambda a, b: (tf.transpose(a), b)", "transpose"),
        ("lambda a, b: (tf.squeeze(a), b)", "squeeze"),
        ("lambda a, b: (tf.expand_dims(a, 0), b)", "expand_dims"),
        ("lambda a, b: (a, tf.one_hot(b, 5, axis=0))", "one_hot"),
        ("lambda a, b: (tf.concat([a, a], 0), b)", "concat"),
        ("lambda a, b: (tf.stack([b, b]), a)", "stack"),
        ("lambda a, b: (tf.where(b > 2, a, 0.0), b)", "different shapes"),
        ("lambda a, b: (a, tf.zeros(3))", "tf.zeros"),
        ("lambda a, b: (tf.nn.softmax(a), b)", "softmax"),
        ("lambda a, b: (tf.ensure_shape(a, (7, 5)), b)", "ensure_shape"),
        ("lambda a, b: (unseen(a), b)", "unseen"),
        ("lambda a, b: (normalize(a), b)", "`mean`"),
    ],
)
def test_not_proven(function: str, reason: str) -> None:
    refused = check.run(
        f"{HEAD}mean = x.mean(0)\ndef normalize(a):\n    return a - mean\nds = SLICES.map({function}).batch(8)\n"
    )
    assert refused.after == refused.before
    assert any(reason in r.reason for r in refused.refused), refused.refused


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("layers.TextVectorization(max_tokens=9)", "without `output_sequence_length`"),
        ("layers.TextVectorization(output_sequence_length=n)", "without `output_sequence_length`"),
        ("layers.TextVectorization(output_mode='tf_idf')", "`output_mode`"),
        ("layers.TextVectorization(output_mode='count', split=None)", "splits"),
        ("layers.TextVectorization(output_sequence_length=4, standardize=lambda t: tf.reshape(t, ()))", "reshape"),
        ("layers.TextVectorization(output_sequence_length=4, ragged=True)", "what `TextVectorization` returns"),
        ("layers.TextVectorization(**config)", "what `TextVectorization` returns"),
        ("layers.StringLookup(output_mode='one_hot')", "`output_mode`"),
        ("layers.StringLookup(**config)", "`output_mode`"),
    ],
)
def test_layers_that_treat_a_batch_otherwise(definition: str, reason: str) -> None:
    refuses(f"{LAYERS}layer = {definition}\nds = TEXTS.map(lambda t: layer(t)).batch(2)\n", reason)


@pytest.mark.parametrize("source", ["[['a', 'b'], ['c', 'd']]", "np.array(texts)[:, None]", "unseen", "pairs"])
def test_more_than_one_string(source: str) -> None:
    refuses(
        f"{LAYERS}pairs = [[t] for t in texts]\nds = tf.data.Dataset.from_tensor_slices({source})\n"
        "ds = ds.map(vectorize).batch(2)\n",
        "one string",
    )


@pytest.mark.parametrize(
    "body",
    [
        "ds = tf.data.Dataset.list_files('*').map(lambda p: tf.io.decode_jpeg(tf.io.read_file(p))).batch(8)\n",
        "ds = SLICES.map(lambda a, b: (tf.image.resize(a, (3, 3)), b)).batch(8)\n",
        "ds = SLICES.map(lambda a, b: (tf.random.normal((3,)) + a, b)).batch(8)\n",
        "ds = SLICES.map(lambda a, b: (tf.py_function(g, [a], tf.float32), b)).batch(8)\n",
        "ds = SLICES.map(lambda a, b: (a[0], b)).batch(8)\n",
        "ds = SLICES.map(lambda a, b: (b, a)).batch(8)\n",
        "ds = SLICES.batch(8).map(lambda a, b: (a * 2.0, b))\n",
        "ds = SLICES.map(lambda a, b: (a * 2.0, b)).padded_batch(8)\n",
        "ds = SLICES.map(lambda a, b: (a * 2.0, b)).cache().batch(8)\n",
        "ds = SLICES.map(lambda a, b: (a * 2.0, b)).filter(lambda a, b: b > 1).batch(8)\n",
        "raw = SLICES.map(lambda a, b: (a * 2.0, b))\nds = raw.batch(8)\nfor a, b in raw:\n    print(a)\n",
        "raw = SLICES.map(lambda a, b: (a * 2.0, b))\nds = raw.batch(8)\nval = raw.batch(9)\n",
        "raw = SLICES.map(lambda a, b: (a * 2.0, b)) if y else SLICES\nds = raw.batch(8)\n",
        "def f(a, b):\n    if flag:\n        a = a * 2.0\n    return a, b\nds = SLICES.map(f).batch(8)\n",
        "aug = tf.keras.Sequential([layers.RandomFlip()])\nds = SLICES.map(lambda a, b: (aug(a), b)).batch(8)\n",
        "norm = layers.Normalization()\nds = SLICES.map(lambda a, b: (norm(a), b)).batch(8)\n",
    ],
)
def test_nothing_to_say(body: str) -> None:
    ignores(body)


def test_a_part_that_may_not_fit_into_a_batch() -> None:
    refuses(
        "ds = unseen()\nds = tf.data.Dataset.from_tensor_slices((u, v)).map(lambda a, b: b * 2).batch(8)\n",
        "leaves out",
    )
    moves("ds = SLICES.map(lambda a, b: b * 2).batch(8)\n", "ds = SLICES.batch(8).map(lambda a, b: b * 2)\n")


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("n = 8\nraw = SLICES.map(lambda a, b: (a * 2.0, b))\nn = 9\nds = raw.batch(n)\n", "`n` is given a value"),
        (
            "ds = (\n    SLICES\n    # scale\n    .map(lambda a, b: (a * 2.0, b))\n    .batch(8)\n)\n",
            "comments stand between the calls",
        ),
        (
            "raw = SLICES.map(lambda a, b: (a * 2.0, b))  # scale\nds = raw.batch(8)\n",
            "comments stand between the calls",
        ),
        ("raw = SLICES.map(lambda a, b: (a * 2.0, b))\nds = raw.batch(size())\n", "`size()` is called there"),
        (
            "n = 3\ndef f(a, b):\n    return a, tf.one_hot(b, len(n))\nraw = SLICES.map(f)\nn = 'ab'\nds = raw.batch(8)\n",
            "`n` is given a value",
        ),
        (
            LAYERS + "raw = TEXTS.map(vectorize)\nvectorize.adapt(other)\nds = raw.batch(8)\n",
            "`vectorize.adapt` (line 19) stands between",
        ),
    ],
)
def test_calls_that_cannot_change_places(before: str, reason: str) -> None:
    refuses(before, reason)


PARSE = """def parse(record):
    parsed = tf.io.%s(record, {"x": tf.io.FixedLenFeature([2], tf.float32), "t": tf.io.FixedLenFeature([], tf.string)})
    return parsed["x"] * 2.0, %s
"""


def test_examples() -> None:
    length = 'tf.strings.length(parsed["t"])'
    moves(
        PARSE % ("parse_single_example", length) + 'ds = tf.data.TFRecordDataset("a").map(parse).batch(8)\n',
        PARSE % ("parse_example", length) + 'ds = tf.data.TFRecordDataset("a").batch(8).map(parse)\n',
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            PARSE % ("parse_single_example", "parsed['t']")
            + 'ds = tf.data.TFRecordDataset("a").map(parse).batch(8)\nother = tf.data.TFRecordDataset("a").map(parse)\n',
            "one example at a time",
        ),
        (
            PARSE.replace("FixedLenFeature([],", "VarLenFeature(").replace("VarLenFeature( ", "VarLenFeature(")
            % ("parse_single_example", "parsed['t']")
            + 'ds = tf.data.TFRecordDataset("a").map(parse).batch(8)\n',
            "another length",
        ),
    ],
)
def test_examples_that_stay(body: str, reason: str) -> None:
    refuses(body, reason)


def test_examples_with_images_stay() -> None:
    ignores(
        PARSE % ("parse_single_example", "tf.io.decode_jpeg(parsed['t'])")
        + 'ds = tf.data.TFRecordDataset("a").map(parse).batch(8)\n'
    )


def test_a_signature_of_one_element() -> None:
    function = "@tf.function(%s)\ndef g(a, b):\n    return tf.cast(a, tf.float32) / 255.0, b\n"
    ds = "ds = SLICES.map(g).batch(8)\n"
    refuses(function % "input_signature=[tf.TensorSpec([7, 5]), tf.TensorSpec([], tf.int64)]" + ds, "of one element")
    refuses(function % "**options" + ds, "of one element")
    moves(function % "" + ds, function % "" + "ds = SLICES.batch(8).map(g)\n")


def test_ragged_tensors() -> None:
    body = "rows = tf.ragged.constant([[1, 2], [3, 4]])\n"
    ragged = "ds = tf.data.Dataset.from_tensor_slices(rows).map(lambda a: tf.cast(a, tf.float32) * 2.0).batch(2)\n"
    refuses(body + ragged, "ragged tensors are used (line 8)")
    moves(F + body + "ds = SLICES.map(f).batch(8)\n", F + body + "ds = SLICES.batch(8).map(f)\n")  # rows of arrays


def test_older_targets() -> None:
    moves(F + "ds = SLICES.map(f).batch(8)\n", F + "ds = SLICES.batch(8).map(f)\n", target="tf1.15")


RECORDS = """
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "a")
with tf.io.TFRecordWriter(path) as writer:
    for i in range(11):
        features = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i / 3, i * 7.1])),
            "t": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a" * i])),
        }
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_equal_to_the_last_bit(env: str, tmp_path: Path) -> None:
    before = HEAD + "tf.keras.utils.set_random_seed(0)\nx = np.random.rand(37, 7, 5).astype('float32')\nfound = []\n"
    before += "SLICES = tf.data.Dataset.from_tensor_slices((x, np.arange(37) % 5))\n" + LAYERS
    for function in SAME:
        before += f"ds = SLICES.map({function}).shuffle(9, seed=1).batch(8)\nfound.append(ds)\n"
    for function in TEXT:
        before += f"ds = TEXTS.map({function}).repeat(2).batch(2)\nfound.append(ds)\n"
    before += RECORDS + PARSE % ("parse_single_example", 'tf.strings.length(parsed["t"])')
    before += "ds = tf.data.TFRecordDataset(path).map(parse).batch(4)\nfound.append(ds)\n"
    before += """
import hashlib
for data in found:
    spec = tf.nest.map_structure(lambda s: (s.dtype, s.shape.rank), data.element_spec)  # Keras 2 learns a length more
    digest = hashlib.sha256(str(spec).encode())
    for batch in data:
        for part in tf.nest.flatten(batch):
            digest.update(str((part.dtype, part.shape)).encode() + part.numpy().tobytes() if part.dtype != tf.string
                          else str(part.numpy().tolist()).encode())
    print("RESULT", digest.hexdigest())
"""
    result = check.run(before, target="tf2.15" if env == "tf215" else "tf2.21")
    count = len(SAME) + len(TEXT) + 1
    assert sum(a.codemod == "map-vectorization" for a in result.applied) == count
    lines = []
    for name, text in (("before", before), ("after", result.after.decode())):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        done = run_script(tf_env(env), path, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        lines.append([x for x in done.stdout.splitlines() if x.startswith("RESULT")])
    assert len(lines[0]) == count
    assert lines[0] == lines[1]
