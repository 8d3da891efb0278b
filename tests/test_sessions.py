"""Loops around `session.run`: every form gives the graph the same batches, in the same order, as often as before."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.envs import run_script, tf_env

TARGETS = {"tf115": "tf1.15", "tf215": "tf2.15"}

HEAD = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
X = rng.rand(50, 3)
Y = rng.randint(5, size=50)
BATCH = 8
EPOCHS = 3
seen = []
"""
GRAPH = """
x = tf.placeholder(tf.float32, [None, 3], name="x")
y = tf.placeholder(tf.int32, [None])
w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(x, w)[:, 0] - tf.cast(y, tf.float32)))
train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
"""

#: Name: what stands before the graph, and the loop. What the graph saw is collected in `seen`.
FORMS = {
    "slices": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        for i in range(len(X) // BATCH):
            bx = X[i * BATCH : (i + 1) * BATCH]
            by = Y[i * BATCH : (i + 1) * BATCH]
            _, a, b = sess.run([train, x, y], feed_dict={x: bx, y: by})
            seen += [a, b]
        seen.append(sess.run(loss, feed_dict={x: X, y: Y}))
""",
    ),
    "short last batch, slices in the feed dict": (
        "",
        """
sess = tf.Session()
sess.run(tf.global_variables_initializer())
for start in range(0, len(X), BATCH):
    _, a, b = sess.run([train, x, y], {x: X[start : start + BATCH], y: Y[start : start + BATCH]})
    seen += [a, b]
    if start % 16 == 0:
        seen.append(loss.eval({x: X, y: Y}, session=sess))
""",
    ),
    "shuffled indices": (
        "np.random.seed(3)",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        order = np.random.permutation(len(X))
        for i in range(len(X) // BATCH):
            picked = order[i * BATCH : (i + 1) * BATCH]
            _, a, b = sess.run([train, x, y], feed_dict={x: X[picked] * 2, y: Y[picked]})
            seen += [a, b]
seen.append(np.random.rand(2))
""",
    ),
    "index array shuffled in place": (
        "np.random.seed(3)\nindices = np.arange(len(X))",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        np.random.shuffle(indices)
        for i in range(0, len(indices), BATCH):
            feed = {x: X[indices[i : i + BATCH]], y: Y[indices[i : i + BATCH]]}
            _, a, b = sess.run([train, x, y], feed_dict=feed)
            seen += [a, b]
""",
    ),
    "arrays shuffled anew": (
        "np.random.seed(3)",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        order = np.random.permutation(len(X))
        X, Y = X[order], Y[order]
        for i in range(len(X) // BATCH):
            _, a, b = sess.run([train, x, y], {x: X[i * BATCH : (i + 1) * BATCH], y: Y[i * BATCH : (i + 1) * BATCH]})
            seen += [a, b]
""",
    ),
    "reader with a position": (
        """
class Reader:
    def __init__(self, images, labels):
        self.images, self.labels, self.position = images, labels, 0
        self.num_examples = len(images)

    def next_batch(self, size):
        start = self.position
        self.position += size
        if self.position > self.num_examples:
            order = np.random.permutation(self.num_examples)
            self.images, self.labels = self.images[order], self.labels[order]
            start, self.position = 0, size
        return self.images[start : self.position], self.labels[start : self.position]


np.random.seed(1)
data = Reader(X, Y)
""",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        average = 0.0
        total = int(data.num_examples / BATCH)
        for _ in range(total):
            bx, by = data.next_batch(BATCH)
            _, c, a, b = sess.run([train, loss, x, y], feed_dict={x: bx, y: by})
            average += c / total
            seen += [a, b]
        seen.append(average)
seen.append(np.random.rand(2))
""",
    ),
    "helper with a global position": (
        """
position = 0


def next_batch(size):
    global position
    start = position
    position = (position + size) % 40
    return np.array([v / 2 for v in X[start : start + size]]), Y[start : start + size]
""",
        """
sess = tf.InteractiveSession()
tf.global_variables_initializer().run()
for step in range(20):
    bx, by = next_batch(BATCH)
    train.run(feed_dict={x: bx, y: by})
    seen.append(w.eval())
sess.close()
""",
    ),
    "a counter and while": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    step = 1
    offset = 0
    while step * BATCH < 100:
        offset = (offset + BATCH) % (len(X) - BATCH)
        bx = X[offset : offset + BATCH] ** 2
        by = Y[offset : offset + BATCH]
        _, a, b = sess.run([train, x, y], feed_dict={x: bx, y: by})
        seen += [a, b, step]
        step += 1
""",
    ),
    "next of a generator": (
        """
def endless():
    while True:
        for start in range(0, 48, BATCH):
            yield X[start : start + BATCH] + 1, Y[start : start + BATCH]


source = endless()
""",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(25):
        bx, by = next(source)
        _, a, b = sess.run([train, x, y], feed_dict={x: bx, y: by})
        seen += [a, b]
""",
    ),
    "loop over a generator": (
        """
np.random.seed(4)


def minibatches(a, b, size):
    order = np.random.permutation(len(a))
    for start in range(0, len(a), size):
        picked = order[start : start + size]
        yield a[picked], b[picked]
""",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        losses = []
        for bx, by in minibatches(X, Y, BATCH):
            _, value, a, b = sess.run([train, loss, x, y], feed_dict={x: bx, y: by})
            losses.append(value)
            seen += [a, b]
        seen.append(np.mean(losses))
        seen.append(np.random.rand(2))
""",
    ),
    "chunks of an index array": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        for chunk in np.array_split(np.arange(len(X)), 7):
            _, a, b = sess.run([train, x, y], feed_dict={x: X[chunk], y: Y[chunk]})
            seen += [a, b]
""",
    ),
    "a batch made sample by sample": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(len(X) // BATCH):
        images, labels = [], []
        for j in range(BATCH):
            image = X[i * BATCH + j]
            if j % 2:
                image = image[::-1]
            images.append(image - image.mean())
            labels.append(Y[i * BATCH + j])
        _, a, b = sess.run([train, x, y], feed_dict={x: images, y: np.array(labels)})
        seen += [a, b]
""",
    ),
    "every second batch, and an end": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        for i in range(len(X) // BATCH + 3):
            if (i + 1) * BATCH > len(X):
                break
            bx = X[i * BATCH : (i + 1) * BATCH].astype(np.float32)
            by = Y[i * BATCH : (i + 1) * BATCH]
            if i % 2 == 1:
                continue
            _, a, b = sess.run([train, x, y], feed_dict={x: bx, y: by})
            seen += [a, b]
""",
    ),
    "stopped early": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(1000):
        start = step * BATCH % 40
        _, value, a, b = sess.run([train, loss, x, y], feed_dict={x: X[start : start + BATCH] / 2, y: Y[start : start + BATCH]})
        seen += [a, b, value]
        if step > 10 or value < 1e-9:
            break
""",
    ),
    "a second use of the batch": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(30):
        start = i * BATCH % 40
        bx = np.array([np.sort(v) for v in X[start : start + BATCH]])
        by = Y[start : start + BATCH]
        sess.run(train, feed_dict={x: bx, y: by})
        if i % 10 == 0:
            seen += sess.run([loss, x, y], feed_dict={x: bx, y: by})
        seen.append(sess.run(w))
""",
    ),
    "one buffer for all batches": (
        "buffer = np.zeros([BATCH, 3], np.float32)\nlabels = np.zeros([BATCH], np.int32)",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(40):
        for j in range(BATCH):
            buffer[j] = X[(i * BATCH + j) % 50]
            labels[j] = Y[(i * BATCH + j) % 50]
        _, a, b = sess.run([train, x, y], feed_dict={x: buffer, y: labels})
        seen += [a.copy(), b.copy()]  # what is fetched may be the buffer itself
""",
    ),
    "one buffer of a generator": (
        """
def minibatches():
    buffer = np.zeros([4, 3], np.float32)
    labels = np.zeros([4], np.int32)
    for start in range(0, 44, 4):
        buffer[:] = X[start : start + 4]
        labels[:] = Y[start : start + 4]
        yield buffer, labels
""",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(10):
        for bx, by in minibatches():
            _, a, b = sess.run([train, x, y], feed_dict={x: bx, y: by})
            seen += [a.copy(), b.copy()]  # what is fetched may be the buffer itself
""",
    ),
    "arrays shuffled in place": (
        "np.random.seed(2)\nX = X.astype(np.float32)[:8]\nY = Y.astype(np.int32)",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(40):
        np.random.shuffle(X)
        for i in range(0, 8, 4):
            _, a, b = sess.run([train, x, y], feed_dict={x: X[i : i + 4], y: Y[i : i + 4]})
            seen += [a.copy(), b.copy()]  # what is fetched may be the buffer itself
""",
    ),
    "monitored session": (
        "np.random.seed(5)",
        """
tf.train.get_or_create_global_step()
with tf.train.MonitoredTrainingSession() as sess:
    for step in range(15):
        rows = np.random.choice(len(X), size=BATCH)
        _, a, b = sess.run([train, x, y], feed_dict={x: X[rows], y: Y[rows]})
        seen += [a, b]
""",
    ),
    "steps told by a parameter": (
        """
class Source:
    def __init__(self):
        self.rng, self.drawn = np.random.RandomState(9), 0

    def next_batch(self, size):
        self.drawn += 1
        rows = self.rng.randint(50, size=size)
        return X[rows], Y[rows]


source = Source()
""",
        """
sess = tf.Session()
sess.run(tf.global_variables_initializer())


def optimize(num_iterations):
    for i in range(num_iterations):
        bx, by = source.next_batch(BATCH)
        _, a, b = sess.run([train, x, y], feed_dict={x: bx, y: by})
        seen.extend([a, b])


optimize(1)
optimize(7)
optimize(20)
""",
    ),
    "a random generator of an object": (
        """
class Data:
    def __init__(self):
        self.rng = np.random.RandomState(1)


data = Data()
""",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        order = data.rng.permutation(len(X))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            _, a, b = sess.run([train, x, y], {x: np.stack([np.sort(X[r]) for r in rows]), y: Y[rows]})
            seen += [a, b]
seen.append(data.rng.rand(3))
""",
    ),
    "state that stays fed": (
        "",
        """
state_in = tf.placeholder(tf.float32, [BATCH, 1])
state_out = tf.matmul(x, w) + 0.5 * state_in
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    state = np.zeros([BATCH, 1])
    for i in range(6):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        _, state, a = sess.run([train, state_out, x], {x: X[rows] * 3, y: Y[rows], state_in: state})
        seen.extend([a, state])
""",
    ),
    "reshaped, and used again": (
        "",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    step = 1
    while step < 20:
        bx = np.array([v * 2 for v in X[step : step + BATCH]])
        bx = bx.reshape((BATCH, 3))
        by = Y[step : step + BATCH] + 1
        sess.run(train, feed_dict={x: bx, y: by})
        if step % 5 == 0:
            seen += sess.run([loss, x, y], feed_dict={x: bx, y: by})
        step += 1
""",
    ),
    "a feed dict for two runs": (
        "np.random.seed(6)",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(20):
        rows = np.random.choice(len(X), BATCH)
        bx = X[rows]
        by = Y[rows]
        feed = {x: bx, y: by}
        sess.run(train, feed_dict=feed)
        if i % 5 == 0:
            seen += sess.run([loss, x, y], feed_dict=feed)
""",
    ),
    "views of an array that is shuffled": (
        "np.random.seed(8)\ndata = np.hstack([X, Y[:, None]])\nX, Y = data[:, :3], data[:, 3]",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        np.random.shuffle(data)
        for i in range(len(X) // BATCH):
            _, a, b = sess.run([train, x, y], {x: X[i * BATCH : (i + 1) * BATCH], y: Y[i * BATCH : (i + 1) * BATCH]})
            seen += [a, b]
""",
    ),
    "array shuffled through a dictionary": (
        "np.random.seed(8)\ndata = {'x': X, 'y': Y}",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        np.random.shuffle(X)
        for i in range(len(X) // BATCH):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            _, a, b = sess.run([train, x, y], {x: data["x"][rows], y: data["y"][rows]})
            seen += [a, b]
""",
    ),
    "array shuffled by a function that has it under another name": (
        "np.random.seed(8)\nsame = X\n\n\ndef mix(items):\n    np.random.shuffle(items)\n",
        """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        mix(same)
        for i in range(len(X) // BATCH):
            _, a, b = sess.run([train, x, y], {x: X[i * BATCH : (i + 1) * BATCH], y: Y[i * BATCH : (i + 1) * BATCH]})
            seen += [a, b]
""",
    ),
    "a position that is taken up again": (
        "",
        """
position = 0
if len(X) == 50:
    position = 24
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(6):
        rows = np.arange(position, position + BATCH) % 50
        position += BATCH
        _, a, b = sess.run([train, x, y], {x: X[rows], y: Y[rows]})
        seen += [a, b]
position = 0
for i in range(2):
    seen.append(X[position])
    position += 1
""",
    ),
    "an iterator with a name": (
        "pairs = zip(X.reshape(25, 2, 3), Y.reshape(25, 2))",
        """
sess = tf.Session()
sess.run(tf.global_variables_initializer())
for bx, by in pairs:
    _, a, b = sess.run([train, x, y], {x: bx * 2, y: by})
    seen += [a, b]
""",
    ),
    "options of the run call": (
        "",
        """
options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(6):
        traced = tf.RunMetadata()
        bx = X[i * BATCH : (i + 1) * BATCH] * 2
        _, a, b = sess.run([train, x, y], {x: bx, y: Y[i * BATCH : (i + 1) * BATCH]}, options, traced)
        seen += [a, b, len(traced.step_stats.dev_stats) > 0]
""",
    ),
    "options of the run call that gives the batch back": (
        "",
        """
options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(6):
        traced = tf.RunMetadata()
        bx = np.array([v * 2 for v in X[i * BATCH : (i + 1) * BATCH]])
        by = Y[i * BATCH : (i + 1) * BATCH]
        sess.run(train, {x: bx, y: by}, options=options, run_metadata=traced)
        seen += [*sess.run([loss, x, y], {x: bx, y: by}), len(traced.step_stats.dev_stats) > 0]
""",
    ),
    "within a function": (
        "",
        """
def fit(steps):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for i in range(6):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            _, a, b = sess.run([train, x, y], feed_dict={x: X[rows] * 2, y: Y[rows]})
            seen.extend([a, b])


fit(6)
""",
    ),
}


def converted(name: str, env: str) -> tuple[str, str]:
    before, loop = FORMS[name]
    source = HEAD + before + "\n" + GRAPH + loop
    path = Path("/nowhere/train.py")
    options = Options(1, frozenset({"feed-dict"}))
    (result,) = rewrite([path], options, lambda _: named(TARGETS[env]), {path: source.encode()})
    assert result.error is None, result.error
    return source, result.after.decode()


@pytest.mark.parametrize("name", FORMS)
def test_is_converted(name: str) -> None:
    """A batch no longer goes through the feed dict of the step, and no feed is lost that was not a batch."""
    source, after = converted(name, "tf115")
    assert after != source
    assert 'placeholder_with_default(next_x, [None, 3], name="x")' in after
    assert "yield " in after


DRIVER = """
import json
import sys
import traceback

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
failed = {}
for name, sources in json.load(open(sys.argv[1])).items():
    results = []
    for source in sources:
        scope = {"__name__": "script"}
        try:
            with tf.Graph().as_default():
                exec(compile(source, name, "exec"), scope)
            results.append([np.asarray(v) for v in scope["seen"]])
        except Exception:
            results.append(traceback.format_exc())
    before, after = results
    if isinstance(before, str) or isinstance(after, str):
        failed[name] = str(before if isinstance(before, str) else after)[-1500:]
    elif len(before) != len(after) or len(before) < 5:
        failed[name] = "%d became %d" % (len(before), len(after))
    elif not all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(before, after)):
        failed[name] = "other batches: %s became %s" % (before[:3], after[:3])
print("RESULT " + json.dumps(failed))
"""


@pytest.mark.tf
@pytest.mark.parametrize("number", ["40", "41", "43", "44"])
def test_hazards(number: str, tmp_path: Path) -> None:
    """Slices are left as they are by default; asked for by name, they too are converted without harm."""
    (path,) = (Path(__file__).parent / "hazards").glob(f"{number}_*.py")
    options = Options(2, frozenset({"feed-dict"}))
    (result,) = rewrite([path], options, lambda _: named("tf1.15"))
    assert result.applied
    (tmp_path / path.name).write_bytes(result.after)
    lines = []
    for script in (path, tmp_path / path.name):
        done = run_script(tf_env("tf115"), script, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        lines.append(next(x for x in reversed(done.stdout.splitlines()) if x.startswith("RESULT")))
    assert lines[0] == lines[1]


@pytest.mark.tf
@pytest.mark.parametrize("env", TARGETS)
def test_the_graph_sees_the_same_batches(env: str, tmp_path: Path) -> None:
    import json

    python = tf_env(env)
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "forms.json").write_text(json.dumps({name: converted(name, env) for name in FORMS}))
    done = run_script(python, tmp_path / "driver.py", str(tmp_path / "forms.json"), timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(x for x in done.stdout.splitlines() if x.startswith("RESULT"))
    failed = json.loads(line.removeprefix("RESULT "))
    assert not failed, "\n".join(
        f"{name}: {why}\n{textwrap.indent(converted(name, env)[1], '    ')}" for name, why in failed.items()
    )
