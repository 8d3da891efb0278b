"""precompute: rows prepared in front of the loop, and those that have to be prepared in it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rewriter.codemod import registry
from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("precompute", target="tf1.15")

HEAD = """
import random
import numpy as np
import tensorflow as tf
B = 32
images = np.random.randint(256, size=(1000, 12)).astype(np.uint8)
labels = np.random.randint(10, size=1000)
x = tf.placeholder(tf.float32, [None, 12])
train = tf.train.AdamOptimizer().minimize(tf.reduce_sum(x))
"""
STANDARDIZE = """
def standardize(image):
    image = image.astype(np.float32) / 255.0
    return (image - image.mean()) / image.std()
"""
LOOP = """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(20):
        order = np.random.permutation(len(images))
        for start in range(0, len(images), B):
            picked = order[start : start + B]
{batch}
            sess.run(train, feed_dict={{x: batch}})
{end}
"""
BATCH = "batch = np.array([standardize(images[i]) for i in picked])"
AFTER = "batch = np.array([prepared[i] for i in picked])"
PREPARED = "prepared = [standardize(image) for image in images]"


def script(batch: str = BATCH, end: str = "", *, head: str = STANDARDIZE, before: str = "", loop: str = LOOP) -> str:
    """A loop of a session around the lines that make a batch; `end` is done after every epoch, `before` above all."""
    batch = textwrap.indent(textwrap.dedent(batch).strip(), " " * 12)
    end = textwrap.indent(textwrap.dedent(end).strip(), " " * 8)
    text = HEAD + textwrap.dedent(head) + loop.format(batch=batch, end=end)
    before = "".join(f"    {line}\n" for line in before.splitlines())
    return text.rstrip("\n").replace("    for epoch", f"{before}    for epoch", 1) + "\n"


def fixes(batch: str, prepared: str, after: str, *, end: str = "", head: str = STANDARDIZE, loop: str = LOOP) -> Result:
    return check.fixes(
        script(batch, end, head=head, loop=loop), script(after, end, head=head, before=prepared, loop=loop)
    )


def refuses(reason: str, batch: str = BATCH, end: str = "", *, head: str = STANDARDIZE, loop: str = LOOP) -> None:
    check.refuses(script(batch, end, head=head, loop=loop), reason)


def unasked(text: str, name: str = "precompute") -> Result:
    """What a run does that does not name the codemod."""
    others = frozenset(registry()) - {name}
    path = Path("/nowhere/train.py")
    (result,) = rewrite([path], Options(1, ignore=others), lambda _: named("tf1.15"), {path: text.encode()})
    assert result.error is None, result.error
    return result


# -- forms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "prepared", "after"),
    [
        (BATCH, PREPARED, AFTER),
        (
            "batch = np.stack([standardize(image) for image in images[picked]], axis=0)",
            PREPARED,
            "batch = np.stack([prepared[i] for i in picked], axis=0)",
        ),
        (
            "chosen = images[picked]\nbatch = np.asarray([standardize(b) for b in chosen], dtype=np.float64)",
            "prepared = [standardize(b) for b in images]",
            "batch = np.asarray([prepared[i] for i in picked], dtype=np.float64)",
        ),
        (
            "chosen = images[picked]\nbatch = np.stack([standardize(b) for b in chosen])\nprint(chosen.shape)",
            "prepared = [standardize(b) for b in images]",
            "chosen = images[picked]\nbatch = np.stack([prepared[i] for i in picked])\nprint(chosen.shape)",
        ),
        (
            "batch = np.array([images[i] / 255. - images[i].mean() for i in picked])",
            "prepared = [image / 255. - image.mean() for image in images]",
            AFTER,
        ),
        (
            BATCH.replace("picked", "range(start, min(start + B, len(images)))"),
            PREPARED,
            AFTER.replace("picked", "range(start, min(start + B, len(images)))"),
        ),
        (
            "batch = np.stack([standardize(im) for im in images[start : start + B]])\nbatch -= batch.mean()",
            "prepared = [standardize(im) for im in images]",
            "batch = np.stack(prepared[start : start + B])\nbatch -= batch.mean()",
        ),
        (
            "batch = np.array([np.eye(10)[labels[i]] * 2 for i in picked])",
            "prepared = [np.eye(10)[label] * 2 for label in labels]",
            AFTER,
        ),
        (
            "picked = np.random.choice(len(images), B)\n" + BATCH,
            PREPARED,
            "picked = np.random.choice(len(images), B)\n" + AFTER,
        ),
        (
            "feed = {x: np.array([standardize(images[i]) for i in picked])}\nsess.run(train, feed_dict=feed)\nbatch = 1",
            PREPARED,
            "feed = {x: np.array([prepared[i] for i in picked])}\nsess.run(train, feed_dict=feed)\nbatch = 1",
        ),
    ],
)
def test_forms(batch: str, prepared: str, after: str) -> None:
    fixes(batch, prepared, after)


@pytest.mark.parametrize(
    "head",
    [
        "def standardize(image, scale=255., *, shift=1):\n    return image.astype(float) / scale - shift\n",
        "standardize = lambda image: np.clip(image / 255., 0, 1)\n",
        "MEAN, STD = images.mean(axis=0), images.std()\ndef standardize(image):\n    return (image - MEAN) / STD\n",
        "def center(image):\n    return image - image.mean()\ndef standardize(image):\n    return center(image / 255.)\n",
        """
def standardize(image):
    pixels = np.array(image, dtype=np.float32)
    pixels /= 255.0
    pixels[0] = 1
    height, = image.shape
    for c in range(3):
        pixels[c] *= c
    if pixels.max() > 3:
        return pixels[:5]
    return np.maximum(pixels, 0.1).reshape(3, height // 3)
""",
    ],
)
def test_pure_functions(head: str) -> None:
    fixes(BATCH, PREPARED, AFTER, head=head)


@pytest.mark.parametrize(
    "order",
    [
        "np.arange(len(images))",
        "random.sample(range(1000), 1000)",
        "list(range(len(images)))",
        "np.random.RandomState(epoch).permutation(images.shape[0])",
        "np.where(labels == 3)[0]",
        "np.argsort(labels)[::-1]",
    ],
)
def test_numbers_of_rows(order: str) -> None:
    fixes(BATCH, PREPARED, AFTER, loop=LOOP.replace("np.random.permutation(len(images))", order))


def test_several_places() -> None:
    head = STANDARDIZE + "tests = np.random.randint(256, size=(300, 12)).astype(np.uint8)\n"
    end = """
    for s in range(0, len(tests), B):
        same = np.stack([standardize(images[k]) for k in range(s, s + 9)])
        part = np.stack([standardize(t) for t in tests[s : s + B]])
        sess.run(train, feed_dict={x: part})
    """
    after = end.replace("standardize(images[k])", "prepared[k]").replace(
        "[standardize(t) for t in tests[s : s + B]]", "prepared_tests[s : s + B]"
    )
    check.fixes(
        script(BATCH, end, head=head),
        script(AFTER, after, head=head, before=f"{PREPARED}\nprepared_tests = [standardize(t) for t in tests]"),
    )


def test_in_a_function() -> None:
    before = """
    def load():
        images = np.random.rand(1000, 12)
        return images, labels

    def fit(data, epochs=5):
        sess = tf.Session()
        for epoch in range(epochs):
            for i in range(len(data) // B):
                feed = np.stack([standardize(data[j]) for j in range(i * B, (i + 1) * B)])
                sess.run(train, {x: feed})

    if __name__ == "__main__":
        rows, classes = load()
        fit(rows)
    """
    after = before.replace(
        "        for epoch", "        prepared = [standardize(row) for row in data]\n        for epoch"
    )
    after = after.replace("standardize(data[j])", "prepared[j]")
    check.fixes(HEAD + STANDARDIZE + textwrap.dedent(before), HEAD + STANDARDIZE + textwrap.dedent(after))


@pytest.mark.parametrize("step", ["model.train_on_batch(batch)", "step(batch)"])
def test_tensorflow_2(step: str) -> None:
    before = f"""
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    @tf.function
    def step(batch):
        return model(batch)
    for epoch in range(9):
        for start in range(0, len(images), B):
            batch = np.array([standardize(image) for image in images[start : start + B]])
            {step}
    """
    after = before.replace("    for epoch", f"    {PREPARED}\n    for epoch").replace(
        "[standardize(image) for image in images[start : start + B]]", "prepared[start : start + B]"
    )
    head = HEAD.split("x = tf")[0] + STANDARDIZE
    check.fixes(head + textwrap.dedent(before), head + textwrap.dedent(after), target="tf2.15")


def test_names_that_are_taken() -> None:
    head = "prepared = 1\ndef standardize(image, by):\n    return image / by\nimage = 3.0\n"
    batch = "batch = np.array([standardize(images[i], image) for i in picked])"
    fixes(
        batch,
        "prepared_images = [standardize(row, image) for row in images]",
        AFTER.replace("prepared", "prepared_images"),
        head=head,
    )


def test_what_is_done_before_the_loop_and_after_it() -> None:
    head = STANDARDIZE + "np.random.shuffle(images)\nimages[0] = 3\nprint(images.shape, images.max())\n"
    fixes(BATCH, PREPARED, AFTER, head=head)
    assert check.run(script() + "images[0] = 3\nstore(images)\n").applied


# -- the array ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "end", "reason"),
    [
        ("", "images[0] = 7", "`images` is changed in place (line"),
        ("", "images += 1", "not shown to be a NumPy array"),
        ("", "np.random.shuffle(images)", "`images` is changed in place"),
        ("rng = np.random.RandomState(1)", "rng.shuffle(images)", "`images` is changed in place"),
        ("", "images.sort()", "is changed in place"),
        ("", "np.add(images, 1, images)", "what `np.add` does with `images`"),
        ("", "np.add.at(images, 0, 1)", "what `np.add.at` does"),
        ("", "np.clip(images, 0, 9, out=images)", "what `np.clip` does with `images`"),
        ("", "np.nan_to_num(images, copy=False)", "what `np.nan_to_num` does"),
        ("", "np.nan_to_num(images, False)", "what `np.nan_to_num` does"),
        ("", "np.median(images, 0, None, True)", "what `np.median` does"),
        ("", "np.split(images, 2)[0][0] = 1", "what `np.split` does"),
        ("", "np.asarray(images)[0] = 1", "is changed in place"),
        ("", "images.reshape(-1)[0] = 1", "is changed in place"),
        ("", "images.flat[0] = 1", "is changed in place"),
        ("", "held.append(images)", "what `held.append` does"),
        ("", "images.astype(np.uint8, copy=False)[0] = 1", "is changed in place"),
        ("", "images.clip(0, 1, images)", "what `images.clip` does"),
        ("class Data:\n    rows = images", "Data.rows[0] = 1", "`rows` is an attribute of a class"),
        ("", "held = lambda: images", "may be changed"),
        ("images, other = images, images.T", "other[0] = 1", "is changed in place"),
        (
            "def load():\n    a = np.zeros((9, 12))\n    return a, a[:3]\nimages, other = load()",
            "other[0] = 1",
            "is changed in place",
        ),
        ("raw = np.zeros((9, 12))\ndef load():\n    return raw\nimages = load()", "raw[0] = 1", "is changed in place"),
        ("", "images.T[0] = 0", "is changed in place"),
        ("other = images", "other[0] = 7", "`other` is changed in place"),
        ("other = images[:9]", "other *= 2", "`other` is changed in place"),
        ("data = np.zeros((1000, 13))\nimages = data[:, 1:]", "data[0] = 3", "`data` is changed in place"),
        ("", "for image in images:\n    image[0] = 0", "`image` is changed in place"),
        ("def spoil(a):\n    a[0] = 3", "spoil(images)", "`a` is changed in place"),
        ("def spoil():\n    images[0] = 3", "spoil()", "`images` is changed in place"),
        ("def same(a):\n    return a", "same(images)[0] = 3", "is changed in place"),
        ("import tools", "tools.use(images)", "what `tools.use` does with `images` is not followed"),
        ("held = [images]", "held[0][0] = 3", "is changed in place"),
        ("class Held:\n    pass\nheld = Held()\nheld.images = images", "held.images[0] = 3", "may be changed"),
        ("def rebind():\n    global images\n    images = images[::-1]", "rebind()", "not shown to be a NumPy array"),
        ("", "images = images[::-1]", "not shown to be a NumPy array"),
        ("other = np.zeros((9, 12))", "images = other * 2", "`images` is set in the loop"),
        ("images = [list(i) for i in images]", "", "not shown to be a NumPy array"),
    ],
)
def test_arrays_that_may_change(head: str, end: str, reason: str) -> None:
    refuses(reason, end=end, head=STANDARDIZE + head + "\n")


def test_attributes() -> None:
    refuses("the rows are not those of one variable", "batch = np.array([standardize(data.images[i]) for i in picked])")


def test_generators() -> None:
    text = """
    def batches():
        for epoch in range(20):
            order = np.random.permutation(len(images))
            for start in range(0, len(images), B):
                yield np.array([standardize(images[i]) for i in order[start : start + B]])
    """
    check.refuses(HEAD + STANDARDIZE + textwrap.dedent(text), "is decorated or a generator")


# -- what prepares a row --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return image + np.random.normal(size=12)", "`np.random.normal` draws random numbers: every epoch is to get"),
        (
            "if random.random() < 0.5:\n    image = image[::-1]\nreturn image / 2.",
            "`random.random` draws random numbers",
        ),
        ("return image * rng.rand()", "`rng.rand` draws random numbers"),
        ("print(image)\nreturn image / 2.", "it prints for every row"),
        ("return np.load('mask.npy') * image", "`np.load` reads a file"),
        ("return image * clock.now()", "what `clock.now` does is not known"),
        ("global scale\nscale += 1\nreturn image / scale", "it changes `scale`, which lasts"),
        ("seen.append(1)\nreturn image / 2.", "what it does with a row is not followed"),
        ("return image / scale", "`scale` is set by a function"),
        ("image /= 2\nreturn image", "it changes `image` in place, which the next epoch would see"),
        ("image = image.reshape(3, 4)\nimage[0] = 2\nreturn image / 2.", "it changes `image[0]` in place"),
        ("image = np.flip(image, 0)\nimage[0] = 2\nreturn image / 2.", "it changes `image[0]` in place"),
        ("return np.multiply(image, 2, image)", "is given is not followed"),
        ("return np.unique(image)", "what `np.unique` does is not known"),
        ("return [image.mean(), image.std()]", "gives is not known"),
        ("return np.empty(12) + image", "what `np.empty` does is not known"),
        ("yield image / 2.", "is not followed"),
        ("rows = np.array([image, image[:3]])\nrows[0] -= 1\nreturn rows[0] / 2.", "it changes `rows[0]` in place"),
        (
            "for i in range(2):\n    pixels = image if i else image * 2\n    pixels -= 1\nreturn pixels",
            "it changes `pixels`",
        ),
        (
            "pixels = image * 2\nfor i in range(2):\n    pixels -= 1\n    pixels = image\nreturn pixels",
            "it changes `pixels`",
        ),
        ("np.clip(image, 0, 1, out=image)\nreturn image", "is not followed"),
        ("return image.clip(0, 1, image)", "is given is not followed"),
        ("return noise(image)", "what `noise` does is not known"),
    ],
)
def test_functions_that_are_not_pure(body: str, reason: str) -> None:
    head = "rng = np.random.RandomState(1)\nseen, scale = [], 1\nclass Noise:\n    pass\nnoise = Noise()\ndef rescale():\n    global scale\n    scale = 2\n"
    refuses(reason, head=head + "import clock\ndef standardize(image):\n" + textwrap.indent(body, "    ") + "\n")


@pytest.mark.parametrize(
    ("batch", "end", "head", "reason"),
    [
        (
            "batch = np.array([standardize(images[i]) * epoch for i in picked])",
            "",
            STANDARDIZE,
            "what `epoch` is is not known",
        ),
        (
            "f = lambda image: image / (epoch + 1)\nbatch = np.array([f(images[i]) for i in picked])",
            "",
            "",
            "what `epoch` is is not known",
        ),
        (
            "batch = np.array([images[i] - MEAN for i in picked])",
            "MEAN[0] = 1",
            "MEAN = images.mean(axis=0)\n",
            "in place",
        ),
        (
            BATCH,
            "",
            "def standardize(image, seen=[]):\n    return image / 2.\n",
            "a default is no constant",
        ),
        (BATCH, "", "@keep\ndef standardize(image):\n    return image / 2.\n", "what `standardize` does"),
        (
            BATCH,
            "",
            "import functools\ndef scale(a, b=2.):\n    return a / b\nstandardize = functools.partial(scale, 3.)\n",
            "what `standardize` does is not followed",
        ),
        (
            BATCH,
            "def standardize(image):\n    return image / 3.",
            STANDARDIZE,
            "what `standardize` does is not followed",
        ),
        (
            "batch = np.array([images[i] / 2. + others[i] for i in picked])",
            "",
            "others = images + 1\n",
            "the rows are not those of one variable",
        ),
    ],
)
def test_what_changes_around_it(batch: str, end: str, head: str, reason: str) -> None:
    refuses(reason, batch, end, head=head)


def test_functions_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "import numpy as np\nSCALE = 255.0\ndef standardize(image):\n    return image / SCALE\n"
        "def spoil(a):\n    a[0] = 1\n"
    )
    head = "import tools\nfrom tools import standardize\n"
    assert check.run(script(head=head), folder=tmp_path).applied
    check.refuses(script(head=head, end="tools.SCALE = 3.0"), "`SCALE` is set from elsewhere", folder=tmp_path)
    check.refuses(script(head=head, end="tools.spoil(images)"), "`a` is changed in place", folder=tmp_path)


@pytest.mark.parametrize("spoils", ["for row in batch:\n    row -= 1", "batch[0] -= 1", "held.append(batch)"])
def test_rows_that_a_batch_shares(spoils: str) -> None:
    """`np.array` of rows of different lengths holds the very rows."""
    check.refuses(script(BATCH + "\n" + spoils), "")
    assert check.run(script(BATCH.replace("np.array", "np.stack") + "\n" + spoils)).applied


# -- which rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ("picked = labels == 3\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = (i for i in order)\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = iter(order)\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = choose()\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = np.array(picked, bool)\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = np.arange(0, 2, 1, bool)\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = [True, False]\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = np.random.permutation(labels == 3)\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("picked = list(range(9))\npicked.append(True)\n" + BATCH, "`picked` is not shown to hold numbers of rows"),
        ("try:\n    " + BATCH + "\nexcept ValueError:\n    break", "what it raises may be caught in the loop"),
    ],
)
def test_rows_that_are_chosen_otherwise(batch: str, reason: str) -> None:
    refuses(reason, batch)


# -- whether it pays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        script().replace("range(20)", "range(1)"),
        script("batch = np.array([images[i] for i in picked])"),
        HEAD
        + STANDARDIZE
        + "for start in range(0, len(images), B):\n    batch = np.array([standardize(i) for i in images[start : start + B]])\n",
        HEAD + STANDARDIZE + "small = np.array([standardize(image) for image in images])\n",
        HEAD + STANDARDIZE + "class Data:\n    rows = np.array([standardize(image) for image in images])\n",
    ],
)
def test_nothing_to_gain(text: str) -> None:
    check.ignores(text)


def test_it_has_to_be_asked_for() -> None:
    (refused,) = unasked(script()).refused
    assert refused.reason == "how much memory it takes is not known" and "--select precompute" in refused.hint


def test_steps_that_draw_their_rows() -> None:
    steps = """
    sess = tf.Session()
    for step in range(500):
        rows = np.random.randint(0, len(images), size=B)
        sess.run(train, feed_dict={x: np.stack([standardize(images[i]) for i in rows])})
    """
    assert check.run(HEAD + STANDARDIZE + textwrap.dedent(steps)).applied


# -- together -------------------------------------------------------------------------------------------------------


LOSSES = """
import json
import random
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
np.random.seed(3)
B = 32
images = np.random.randint(256, size=(500, 12)).astype(np.uint8)
x = tf.placeholder(tf.float32, [None, 12])
w = tf.get_variable("w", [12, 1], initializer=tf.ones_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1))
train = [tf.train.GradientDescentOptimizer(0.05).minimize(loss), loss]
losses = []
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf115", "tf215"])
@pytest.mark.parametrize(
    "batch", [BATCH, "batch = np.stack([standardize(r) for r in images[start : start + B]])\nbatch *= 2"]
)
def test_the_same_losses(env: str, batch: str, tmp_path: Path) -> None:
    """To the last bit, alone and with the pipeline that `feed-dict` makes; a second run changes nothing."""
    loop = LOOP.replace("sess.run(train, ", "_, found = sess.run(train, ").replace(
        "{end}", "            losses.append(float(found))\nprint(json.dumps(losses))"
    )
    text = LOSSES + STANDARDIZE + loop.format(batch=textwrap.indent(batch, " " * 12))
    python, path = tf_env(env), Path("/nowhere/train.py")
    target = named({"tf115": "tf1.15", "tf215": "tf2.15"}[env])
    texts = [text.encode()]
    for names in ({"precompute"}, {"precompute", "feed-dict"}):
        (result,) = rewrite([path], Options(1, frozenset(names)), lambda _: target, {path: text.encode()})
        assert {a.codemod for a in result.applied} == names, result.refused
        texts.append(result.after)
        (again,) = rewrite([path], Options(1, frozenset(names)), lambda _: target, {path: result.after})
        assert again.after == result.after
    found = []
    for number, data in enumerate(texts):
        (tmp_path / f"{number}.py").write_bytes(data)
        done = run_script(python, tmp_path / f"{number}.py", timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(done.stdout.splitlines()[-1])
    assert found[0].count(",") > 300 and found[1] == found[0] and found[2] == found[0]
