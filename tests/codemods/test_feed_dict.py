"""feed-dict: loops that feed batches, before and after, and those that keep feeding."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from rewriter.codemod import registry
from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.check import Check

check = Check("feed-dict", target="tf1.15")

GRAPH = """
import numpy as np
import tensorflow as tf

x = tf.placeholder(tf.float32, [None, 784])
y = tf.placeholder(tf.int32, [None])
keep_prob = tf.placeholder(tf.float32)
loss = build(x, y, keep_prob)
train = tf.train.AdamOptimizer().minimize(loss)
sess = tf.Session()
"""
PIPELINE = """
import numpy as np
import tensorflow as tf


def batches():
{generator}


dataset = tf.data.Dataset.from_generator(batches, (tf.float32, tf.int32), ([None, 784], [None])).prefetch(2)
next_x, next_y = tf.data.make_one_shot_iterator(dataset).get_next()
x = tf.placeholder_with_default(next_x, [None, 784])
y = tf.placeholder_with_default(next_y, [None])
keep_prob = tf.placeholder(tf.float32)
loss = build(x, y, keep_prob)
train = tf.train.AdamOptimizer().minimize(loss)
sess = tf.Session()
"""


def block(text: str, indent: str = "") -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), indent)


def fixes(loop: str, generator: str, after: str) -> Result:
    return check.fixes(
        GRAPH + block(loop) + "\n", PIPELINE.format(generator=block(generator, "    ")) + block(after) + "\n"
    )


def refuses(loop: str, reason: str) -> Result:
    return check.refuses(GRAPH + block(loop) + "\n", reason)


def by_default(source: str, level: int = 1, target: str = "tf1.15", cpu: bool = True) -> Result:
    """As a user runs it, who names no codemod: where there is no GPU, what it costs counts."""
    path = Path("/nowhere/train.py")
    options = Options(level, ignore=frozenset(registry()) - {"feed-dict"})
    (result,) = rewrite([path], options, lambda _: replace(named(target), cpu=cpu), {path: source.encode()})
    assert result.error is None, result.error
    return result


# -- what is fed by the pipeline, and what goes on being fed ------------------------------------------------------------


def test_slices() -> None:
    fixes(
        """
        for i in range(len(X) // 32):
            sess.run(train, feed_dict={x: X[i * 32:(i + 1) * 32], y: Y[i * 32:(i + 1) * 32]})
        """,
        """
        for i in range(len(X) // 32):
            yield X[i * 32:(i + 1) * 32], Y[i * 32:(i + 1) * 32]
        """,
        """
        for i in range(len(X) // 32):
            sess.run(train)
        """,
    )


def test_rates_stay_fed() -> None:
    fixes(
        """
        for i in range(100):
            batch_x, batch_y = X[i::100], Y[i::100]
            _, value = sess.run([train, loss], feed_dict={x: batch_x, y: batch_y, keep_prob: 0.5})
        """,
        """
        for i in range(100):
            batch_x, batch_y = X[i::100], Y[i::100]
            yield batch_x, batch_y
        """,
        """
        for i in range(100):
            _, value = sess.run([train, loss], feed_dict={keep_prob: 0.5})
        """,
    )


def test_rate_of_the_epoch_stays_fed() -> None:
    fixes(
        """
        for epoch in range(9):
            rate = 0.5 ** epoch
            for i in range(100):
                sess.run(train, {x: X[i::100], y: Y[i::100], keep_prob: rate})
        """,
        """
        for epoch in range(9):
            for i in range(100):
                yield X[i::100], Y[i::100]
        """,
        """
        for epoch in range(9):
            rate = 0.5 ** epoch
            for i in range(100):
                sess.run(train, {keep_prob: rate})
        """,
    )


def test_rate_from_a_list_stays_fed() -> None:
    fixes(
        """
        for i in range(100):
            sess.run(train, {x: X[i::100], y: Y[i::100], keep_prob: rates[i]})
        """,
        """
        for i in range(100):
            yield X[i::100], Y[i::100]
        """,
        """
        for i in range(100):
            sess.run(train, {keep_prob: rates[i]})
        """,
    )


def test_mnist_reader() -> None:
    read = 'from tensorflow.examples.tutorials.mnist import input_data\n\nmnist = input_data.read_data_sets("data")\n'
    fixes(
        read
        + block("""
        for epoch in range(15):
            average = 0.
            total = int(mnist.train.num_examples / 100)
            for i in range(total):
                batch_xs, batch_ys = mnist.train.next_batch(100)
                _, c = sess.run([train, loss], feed_dict={x: batch_xs, y: batch_ys})
                average += c / total
            print(sess.run(loss, {x: mnist.test.images, y: mnist.test.labels}))
        """),
        """
        for epoch in range(15):
            total = int(mnist.train.num_examples / 100)
            for i in range(total):
                batch_xs, batch_ys = mnist.train.next_batch(100)
                yield batch_xs, batch_ys
        """,
        read
        + block("""
        for epoch in range(15):
            average = 0.
            total = int(mnist.train.num_examples / 100)
            for i in range(total):
                _, c = sess.run([train, loss])
                average += c / total
            print(sess.run(loss, {x: mnist.test.images, y: mnist.test.labels}))
        """),
    )


def test_state_of_an_rnn_stays_fed() -> None:
    fixes(
        """
        state = start
        for i in range(100):
            _, state = sess.run([train, loss], {x: X[i::100], y: Y[i::100], keep_prob: state})
        """,
        """
        for i in range(100):
            yield X[i::100], Y[i::100]
        """,
        """
        state = start
        for i in range(100):
            _, state = sess.run([train, loss], {keep_prob: state})
        """,
    )


def test_evaluation_goes_on_feeding() -> None:
    fixes(
        """
        for i in range(100):
            sess.run(train, {x: X[i::100], y: Y[i::100]})
            if i % 10 == 0:
                print(sess.run(loss, {x: test_X, y: test_Y, keep_prob: 1.0}))
        """,
        """
        for i in range(100):
            yield X[i::100], Y[i::100]
        """,
        """
        for i in range(100):
            sess.run(train)
            if i % 10 == 0:
                print(sess.run(loss, {x: test_X, y: test_Y, keep_prob: 1.0}))
        """,
    )


def test_comments_move_along() -> None:
    fixes(
        """
        for i in range(100):
            # rows of this step
            rows = slice(i, i + 32)  # 32 of them
            sess.run(train, {x: X[rows], y: Y[rows]})
        """,
        """
        for i in range(100):
            # rows of this step
            rows = slice(i, i + 32)  # 32 of them
            yield X[rows], Y[rows]
        """,
        """
        for i in range(100):
            sess.run(train)
        """,
    )


def test_named_feed_dict() -> None:
    fixes(
        """
        for i in range(100):
            feed = {x: X[i::100], y: Y[i::100]}
            sess.run(train, feed_dict=feed)
        """,
        """
        for i in range(100):
            yield X[i::100], Y[i::100]
        """,
        """
        for i in range(100):
            sess.run(train)
        """,
    )


def test_named_feed_dict_with_a_rate() -> None:
    fixes(
        """
        for i in range(100):
            feed = {x: X[i::100], y: Y[i::100], keep_prob: 0.5}
            sess.run(train, feed_dict=feed)
        """,
        """
        for i in range(100):
            yield X[i::100], Y[i::100]
        """,
        """
        for i in range(100):
            feed = {keep_prob: 0.5}
            sess.run(train, feed_dict=feed)
        """,
    )


def test_run_of_an_operation() -> None:
    fixes(
        """
        for i in range(100):
            train.run({x: X[i::100], y: Y[i::100]}, session=sess)
        """,
        """
        for i in range(100):
            yield X[i::100], Y[i::100]
        """,
        """
        for i in range(100):
            train.run(session=sess)
        """,
    )


def test_what_the_loop_needs_too_is_done_twice() -> None:
    fixes(
        """
        for epoch in range(5):
            steps = len(X) // 32
            for i in range(steps):
                _, value = sess.run([train, loss], {x: X[i::steps], y: Y[i::steps]})
                print(value / steps)
        """,
        """
        for epoch in range(5):
            steps = len(X) // 32
            for i in range(steps):
                yield X[i::steps], Y[i::steps]
        """,
        """
        for epoch in range(5):
            steps = len(X) // 32
            for i in range(steps):
                _, value = sess.run([train, loss])
                print(value / steps)
        """,
    )


def test_start_of_a_counter_comes_along() -> None:
    fixes(
        """
        position = 0
        for i in range(100):
            rows = slice(position, position + 32)
            position = (position + 32) % 960
            sess.run(train, {x: X[rows], y: Y[rows]})
        """,
        """
        position = 0
        for i in range(100):
            rows = slice(position, position + 32)
            position = (position + 32) % 960
            yield X[rows], Y[rows]
        """,
        """
        position = 0
        for i in range(100):
            sess.run(train)
        """,
    )


def test_loop_until_the_session_stops() -> None:
    fixes(
        """
        with tf.train.MonitoredTrainingSession() as session:
            while not session.should_stop():
                rows = np.random.choice(len(X), 32)
                session.run(train, {x: X[rows], y: Y[rows]})
        """,
        """
        while True:
            rows = np.random.choice(len(X), 32)
            yield X[rows], Y[rows]
        """,
        """
        with tf.train.MonitoredTrainingSession() as session:
            while not session.should_stop():
                session.run(train)
        """,
    )


def test_a_slice_that_is_used_again_is_cut_twice() -> None:
    fixes(
        """
        for i in range(100):
            bx, by = X[i::100], Y[i::100]
            sess.run(train, {x: bx, y: by})
            print(sess.run(loss, {x: bx, y: by}))
        """,
        """
        for i in range(100):
            bx, by = X[i::100], Y[i::100]
            yield bx, by
        """,
        """
        for i in range(100):
            bx, by = X[i::100], Y[i::100]
            sess.run(train)
            print(sess.run(loss, {x: bx, y: by}))
        """,
    )


def test_loop_over_a_generator() -> None:
    check.fixes(
        GRAPH
        + block("""
        def minibatches():
            for i in range(100):
                yield X[i::100], Y[i::100]

        for epoch in range(5):
            for bx, by in minibatches():
                # one step
                _, value = sess.run([train, loss], feed_dict={x: bx, y: by, keep_prob: 0.5})
                print(value)
        """)
        + "\n",
        PIPELINE.replace(
            "next_x, next_y = tf.data.make_one_shot_iterator(dataset).get_next()",
            "iterator = tf.data.make_initializable_iterator(dataset)\nnext_x, next_y = iterator.get_next()",
        ).format(generator=block("for bx, by in minibatches():\n    yield bx, by", "    "))
        + block("""
        def minibatches():
            for i in range(100):
                yield X[i::100], Y[i::100]

        for epoch in range(5):
            sess.run(iterator.initializer)
            while True:
                # one step
                try:
                    _, value = sess.run([train, loss], feed_dict={keep_prob: 0.5})
                except tf.errors.OutOfRangeError:
                    break
                print(value)
        """)
        + "\n",
    )


def test_second_use_of_the_batch() -> None:
    fixes(
        """
        for i in range(100):
            bx, by = X[i::100] * 2, Y[i::100]
            sess.run(train, feed_dict={x: bx, y: by, keep_prob: 0.5})
            print(sess.run(loss, feed_dict={x: bx, y: by, keep_prob: 1.0}))
        """,
        """
        for i in range(100):
            bx, by = X[i::100] * 2, Y[i::100]
            yield bx, by
        """,
        """
        for i in range(100):
            _, bx, by = sess.run([train, x, y], feed_dict={keep_prob: 0.5})
            print(sess.run(loss, feed_dict={x: bx, y: by, keep_prob: 1.0}))
        """,
    )


def test_second_use_of_the_batch_in_some_steps() -> None:
    """The step gives the batch back where it is used; the rest of the steps stay as they are."""
    fixes(
        """
        for i in range(100):
            bx, by = X[i::100] * 2, Y[i::100]
            # one step
            _, value = sess.run([train,
                                 loss], feed_dict={x: bx, y: by, keep_prob: 0.5}, options=o)
            # every tenth
            if i % 10 == 0:

                # show it
                print(sess.run(loss, feed_dict={x: bx, y: by, keep_prob: 1.0}))  # as text
                print("step " + \\
                      str(i))
            total += value
        """,
        """
        for i in range(100):
            bx, by = X[i::100] * 2, Y[i::100]
            yield bx, by
        """,
        """
        for i in range(100):
            # one step
            # every tenth
            if i % 10 == 0:
                _, value, bx, by = sess.run([train, loss, x, y], feed_dict={keep_prob: 0.5}, options=o)

                # show it
                print(sess.run(loss, feed_dict={x: bx, y: by, keep_prob: 1.0}))  # as text
                print("step " + \\
                      str(i))
            else:
                _, value = sess.run([train, loss], feed_dict={keep_prob: 0.5}, options=o)
            total += value
        """,
    )


@pytest.mark.parametrize(
    "shown",
    [
        "if value < 1:\n    sess.run(loss, {x: bx})",  # the condition needs the step
        "if twice < 1:\n    sess.run(loss, {x: bx})\ntwice = value * 2",  # that of an earlier turn would do, too
        "if time.time() < 1:\n    sess.run(loss, {x: bx})",
        "if sess.run(w) < 1:\n    sess.run(loss, {x: bx})",
        "if check(i):\n    sess.run(loss, {x: bx})",
        "if i < 1:\n    sess.run(loss, {x: bx})\nelse:\n    print(i)",
        "if i < 1:\n    sess.run(loss, {x: bx})\nsess.run(loss, {x: bx})",
        "print(i)\nif i < 1:\n    sess.run(loss, {x: bx})",
        "if i < 1: sess.run(loss, {x: bx})",
        'if i < 1:\n    print("""a\n  b""")\n    sess.run(loss, {x: bx})',
    ],
)
def test_batches_that_are_given_back_in_every_step(shown: str) -> None:
    loop = "for i in range(9):\n    bx = X[i::9] * 2\n    _, value = sess.run([train, loss], {x: bx})\n"
    text = check.run("import time\n" + GRAPH + loop + block(shown, "    ") + "\n").after.decode()
    assert "    _, value, bx = sess.run([train, loss, x])\n" in text


def test_batches_of_some_steps_need_not_pay() -> None:
    loop = """
for i in range(100):
    bx = X[i::100] * 2
    sess.run(train, {x: bx})
    if i % 10 == 0:
        print(sess.run(loss, {x: bx}))
"""
    assert by_default(GRAPH + loop, cpu=False).applied
    assert by_default(GRAPH + loop.replace("if i % 10 == 0", "with log"), cpu=False).refused
    slices = loop.replace("{x: bx}", "{x: X[i::100]}")
    assert by_default(GRAPH + slices, cpu=False).applied


def test_size_of_the_batch() -> None:
    fixes(
        """
        for i in range(100):
            bx = X[i::100] * 2
            _, value = sess.run([train, loss], {x: bx, y: Y[i::100]})
            total += value * len(bx)
            count += bx.shape[0]
        """,
        """
        for i in range(100):
            bx = X[i::100] * 2
            yield bx, Y[i::100]
        """,
        """
        for i in range(100):
            _, value, bx = sess.run([train, loss, x])
            total += value * len(bx)
            count += bx.shape[0]
        """,
    )


def test_second_use_of_the_feed_dict() -> None:
    fixes(
        """
        for i in range(100):
            bx = X[i::100] * 2
            by = Y[i::100]
            feed = {x: bx, y: by,
                    keep_prob: 0.5}
            # one step
            sess.run(train, feed_dict=feed)
            if i % 10 == 0:
                print(sess.run(loss, feed_dict=feed))
        """,
        """
        for i in range(100):
            bx = X[i::100] * 2
            by = Y[i::100]
            yield bx, by
        """,
        """
        for i in range(100):
            # one step
            _, bx, by = sess.run([train, x, y], feed_dict={keep_prob: 0.5})
            feed = {x: bx, y: by,
                    keep_prob: 0.5}
            if i % 10 == 0:
                print(sess.run(loss, feed_dict=feed))
        """,
    )


def test_names_that_are_taken() -> None:
    result = check.run(
        GRAPH
        + block("""
        batches = len(X) // 32
        dataset = "mnist"
        for i in range(batches):
            sess.run(train, {x: X[i::batches], y: Y[i::batches]})
        """)
    )
    text = result.after.decode()
    assert "def train_batches():" in text and "train_dataset = tf.data" in text


@pytest.mark.parametrize(
    ("line", "prefix", "target"),
    [
        ("import tensorflow as tf", "tf", "tf1.15"),
        ("import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()", "tf", "tf2.15"),
        ("import tensorflow as tf\ntf.compat.v1.disable_eager_execution()", "tf.compat.v1", "tf2.15"),
        ("import tensorflow as tf\ntf1 = tf.compat.v1", "tf1", "tf2.15"),
    ],
)
def test_spelling(line: str, prefix: str, target: str) -> None:
    result = check.run(
        f"""{line}
x = {prefix}.placeholder(dtype="float32", shape=(None, 4), name='x')
train = {prefix}.train.AdamOptimizer().minimize(tf.reduce_sum(x))
with {prefix}.Session() as sess:
    for i in range(10):
        sess.run(train, {{x: X[i::10]}})
""",
        target=target,
    )
    text = result.after.decode()
    assert f'{prefix}.data.Dataset.from_generator(batches, "float32", (None, 4)).prefetch(2)' in text
    assert f"{prefix}.data.make_one_shot_iterator(dataset)" in text
    assert f"x = {prefix}.placeholder_with_default(next_x, (None, 4), name='x')" in text


# -- what goes on feeding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "reason"),
    {
        "all of an iterator is not always used": (
            """
            stream = iter(X)
            for epoch in range(3):
                for bx in stream:
                    sess.run(train, {x: [bx * 2]})
                    if enough():
                        break
            """,
            "`stream` would be further than the loop",
        ),
        "sessions take turns": (
            """
            for i in range(100):
                for s in (sess, other):
                    s.run(train, {x: X[i::100], y: Y[i::100]})
            """,
            "every session would begin with the first batch",
        ),
        "a new session for every fold": (
            """
            for fold in range(5):
                sess = fresh()
                for i in range(100):
                    sess.run(train, {x: X[i::100], y: Y[i::100]})
            """,
            "every session would begin with the first batch",
        ),
        "an end that is an exception": (
            """
            items = iter(X)
            try:
                while True:
                    bx = next(items)
                    sess.run(train, {x: [bx * 2]})
            except StopIteration:
                print("done")
            """,
            "what prepares the batch may end the loop",
        ),
        "for a time": (
            """
            import time
            start = time.time()
            for i in range(100):
                if time.time() - start > 60:
                    break
                sess.run(train, {x: X[i::100] * 2})
            """,
            "what the loop looks at",
        ),
        "a counter that both need": (
            """
            if resume:
                step = load()
            else:
                step = 0
            for i in range(100):
                rows = X[step * 32:(step + 1) * 32]
                sess.run(train, {x: rows})
                step += 1
                print(step)
            """,
            "`step`, from which the batches start, is also used in the loop",
        ),
        "a counter that goes on after a break": (
            """
            if resume:
                step = load()
            else:
                step = 0
            for i in range(100):
                step += 1
                _, value = sess.run([train, loss], {x: X[step * 32:(step + 1) * 32]})
                if value < 1:
                    break
            """,
            "`step` would be further than the loop",
        ),
        "more in the feed dict": (
            """
            for i in range(100):
                sess.run(train, {x: X[i::100], **others(i)})
            """,
            "the feed dict holds what is not seen",
        ),
        "one placeholder twice": (
            """
            for i in range(100):
                sess.run(train, {x: X[i::100], x: Y[i::100]})
            """,
            "one placeholder is fed twice",
        ),
        "the validation set is a view of what is shuffled": (
            """
            data = {"x": X}
            for epoch in range(3):
                np.random.shuffle(data["x"])
                for i in range(100):
                    sess.run(train, {x: data["x"][i::100]})
                print(sess.run(loss, {x: X[:10]}))
            """,
            "`X` is also used besides feeding it",
        ),
        "a generator that shares a position, left early": (
            """
            position = 0
            def minibatches():
                global position
                while True:
                    position += 1
                    yield X[position::100] * 2
            for epoch in range(3):
                for bx in minibatches():
                    _, value = sess.run([train, loss], {x: bx})
                    if value < 1:
                        break
            """,
            "`position` would have been used further than the loop got",
        ),
        "a generator that draws, left early": (
            """
            def minibatches():
                while True:
                    yield X[np.random.choice(100, 32)]
            for epoch in range(3):
                for bx in minibatches():
                    _, value = sess.run([train, loss], {x: bx})
                    if value < 1:
                        break
            """,
            "random numbers would have been used further than the loop got",
        ),
        "a part of an iterator, left early": (
            """
            import itertools
            stream = iter(X)
            for epoch in range(3):
                for bx in itertools.islice(stream, 50):
                    _, value = sess.run([train, loss], {x: [bx * 2]})
                    if value < 1:
                        break
            """,
            "would be further than the loop",
        ),
        "items of a class that may draw": (
            """
            class Loader:
                def __getitem__(self, i):
                    return X[np.random.choice(100, 32)]
            loader = Loader()
            for i in range(100):
                sess.run(train, {x: loader[i]})
                print(np.random.rand())
            """,
            "NumPy's random numbers",
        ),
        "a position behind a property": (
            """
            class Loader:
                position = 0
                @property
                def rows(self):
                    self.position += 32
                    return slice(self.position, self.position + 32)
            loader = Loader()
            for i in range(100):
                sess.run(train, {x: X[loader.rows]})
                print(loader.position)
            """,
            "`loader.position` is used in the loop",
        ),
        "a `match` around the step": (
            """
            for i in range(100):
                match i % 2:
                    case 0:
                        sess.run(train, {x: X[i::100]})
            """,
            "the loop is not understood",
        ),
        "a `match` that ends the loop": (
            """
            for i in range(100):
                sess.run(train, {x: X[i::100]})
                match state():
                    case 0:
                        break
            """,
            "the loop is not understood",
        ),
        "until a file is there": (
            """
            import os
            for i in range(100):
                if os.path.exists("stop"):
                    break
                sess.run(train, {x: X[i::100] * 2})
            """,
            "what the loop looks at",
        ),
        "state of an RNN": (
            """
            state = np.zeros(784)
            for i in range(100):
                state = sess.run([train, loss], {x: X[i] + state, y: Y[i::100]})[1]
            """,
            "comes from the step before",
        ),
        "state through another name": (
            """
            state = 0
            for i in range(100):
                _, value = sess.run([train, loss], {x: X[i::100] + state, y: Y[i::100]})
                state = value * 2
            """,
            "comes from the step before",
        ),
        "worst samples first": (
            """
            scores = np.zeros(len(X))
            for i in range(100):
                rows = np.argsort(scores)[:32]
                _, scores[rows] = sess.run([train, loss], {x: X[rows], y: Y[rows]})
            """,
            "comes from the step before",
        ),
        "the batch is looked at": (
            """
            for i in range(100):
                bx = X[i::100] * 2
                print(bx.mean())
                sess.run(train, {x: bx, y: Y[i::100]})
            """,
            "`bx` is also used besides feeding it",
        ),
        "the batch is looked at afterwards": (
            """
            for i in range(100):
                bx = X[i::100] * 2
                sess.run(train, {x: bx, y: Y[i::100]})
            show(bx)
            """,
            "`bx` is also used besides feeding it",
        ),
        "noise of the same stream": (
            """
            for i in range(100):
                rows = np.random.choice(1000, 32)
                sess.run(train, {x: X[rows], y: Y[rows]})
                if np.random.rand() < 0.1:
                    print(i)
            """,
            "NumPy's random numbers",
        ),
        "the same reader": (
            """
            data = read()
            for i in range(100):
                bx, by = data.next_batch(32)
                sess.run(train, {x: bx, y: by})
                print(sess.run(loss, {x: data.images, y: data.labels}))
            """,
            "`data` is also used besides feeding it",
        ),
        "an iterator read elsewhere": (
            """
            items = iter(X)
            for i in range(100):
                sess.run(train, {x: next(items), y: Y[i::100]})
                print(next(items), file=log)
            """,
            "prints or plots",
        ),
        "arrays that the loop changes": (
            """
            for i in range(100):
                _, value = sess.run([train, loss], {x: X[i::100], y: Y[i::100]})
                X[i] = value
            """,
            "comes from the step before",
        ),
        "TensorFlow in between": (
            """
            for i in range(100):
                bx = sess.run(tf.square(X[i::100]))
                sess.run(train, {x: bx, y: Y[i::100]})
            """,
            "made with TensorFlow",
        ),
        "prints while preparing": (
            """
            def load(i):
                print("loading", i)
                return X[i::100]

            for i in range(100):
                sess.run(train, {x: load(i), y: Y[i::100]})
            """,
            "prints or plots",
        ),
        "a function of another library": (
            """
            from mylib import load

            for i in range(100):
                sess.run(train, {x: load(i), y: Y[i::100]})
            """,
            "cannot be seen",
        ),
        "changed feed dict": (
            """
            for i in range(100):
                feed = {x: X[i::100], y: Y[i::100]}
                feed[keep_prob] = 0.5
                sess.run(train, feed)
            """,
            "the feed dict is changed",
        ),
        "two runs of one feed dict": (
            """
            for i in range(100):
                feed = {x: X[i::100], y: Y[i::100]}
                sess.run(train, feed)
                print(sess.run(loss, feed))
            """,
            "one batch is used by two `run` calls",
        ),
        "a session for every fold": (
            """
            for fold in range(3):
                with tf.Session() as session:
                    for i in range(100):
                        session.run(train, {x: X[i::100], y: Y[i::100]})
            """,
            "every session would begin with the first batch",
        ),
        "a database of this thread": (
            """
            import sqlite3

            cursor = sqlite3.connect("data").cursor()
            for i in range(100):
                sess.run(train, {x: cursor.fetchmany(32), y: Y[i::100]})
            """,
            "cannot be seen",
        ),
        "a seed set in the loop": (
            """
            for epoch in range(5):
                np.random.seed(epoch)
                for i in range(100):
                    rows = np.random.choice(1000, 32)
                    sess.run(train, {x: X[rows], y: Y[rows]})
            """,
            "NumPy's random numbers",
        ),
        "a validation reader that shuffles": (
            """
            from tensorflow.examples.tutorials.mnist import input_data

            mnist = input_data.read_data_sets("data")
            for i in range(100):
                bx, by = mnist.train.next_batch(32)
                sess.run(train, {x: bx, y: by})
                vx, vy = mnist.validation.next_batch(32)
                print(sess.run(loss, {x: vx, y: vy}))
            """,
            "NumPy's random numbers",
        ),
        "epochs that a reader counts": (
            """
            from tensorflow.examples.tutorials.mnist import input_data

            mnist = input_data.read_data_sets("data")
            for i in range(100):
                bx, by = mnist.train.next_batch(32)
                sess.run(train, {x: bx, y: by})
                print(mnist.train.epochs_completed)
            """,
            "also used besides feeding it",
        ),
        "global variables": (
            """
            def go():
                global rows
                for i in range(100):
                    rows = slice(i, i + 32)
                    sess.run(train, {x: X[rows] * 2, y: Y[rows]})

            go()
            """,
            "`rows` is global",
        ),
        "the feed dict goes to a run that comes first": (
            """
            for i in range(100):
                feed = {x: X[i::100] * 2, y: Y[i::100]}
                print(sess.run(loss, feed))
                sess.run(train, feed)
            """,
            "one batch is used by two `run` calls",
        ),
        "the second run comes first": (
            """
            for i in range(100):
                bx, by = X[i::100] / 2, Y[i::100]
                print(sess.run(loss, {x: bx, y: by}))
                sess.run(train, {x: bx, y: by})
            """,
            "one batch is used by two `run` calls",
        ),
        "tried again": (
            """
            for i in range(100):
                try:
                    sess.run(train, {x: X[i::100], y: Y[i::100]})
                except ValueError:
                    continue
            """,
            "may be tried again",
        ),
        "part of a condition": (
            """
            for i in range(100):
                if sess.run(loss, {x: X[i::100], y: Y[i::100]}) < 1:
                    break
            """,
            "part of a condition",
        ),
        "else of a loop": (
            """
            for i in range(100):
                sess.run(train, {x: X[i::100], y: Y[i::100]})
            else:
                print("done")
            """,
            "`else`",
        ),
        "counter of the loop read by a function": (
            """
            def rows():
                return slice(i, None, 100)

            for i in range(100):
                sess.run(train, {x: X[rows()], y: Y[rows()]})
            """,
            "uses `i` of the loop",
        ),
        "random numbers after an early end": (
            """
            for i in range(100):
                rows = np.random.choice(1000, 32)
                value = sess.run([train, loss], {x: X[rows], y: Y[rows]})[1]
                if value < 0.1:
                    break
            test_rows = np.random.choice(1000, 32)
            """,
            "random numbers would have been used further",
        ),
        "an iterator of something unknown": (
            """
            def go(source):
                for bx, by in source:
                    print("next")
                    sess.run(train, {x: bx, y: by})
            """,
            "before the step",
        ),
        "variables changed by the last run": (
            """
            count = tf.Variable(0)
            more = tf.assign_add(count, 1)

            def minibatches():
                for i in range(100):
                    yield X[i::100], Y[i::100]

            for bx, by in minibatches():
                sess.run([train, more], {x: bx, y: by})
            """,
            "would change a variable",
        ),
    }.values(),
)
def test_keeps_feeding(loop: str, reason: str) -> None:
    refuses(loop, reason)


def test_two_gigabytes_are_never_a_constant() -> None:
    result = check.run(
        GRAPH
        + "X = np.zeros((560, 1000, 1000), 'float32')\nfor i in range(9):\n    sess.run(train, {x: X[i::9], y: X[i]})\n"
    )
    assert "from_generator" in result.after.decode() and "from_tensor" not in result.after.decode()


@pytest.mark.parametrize(
    "loop",
    [
        "for i in range(100):\n    sess.run(train, {x: X, y: Y})\n",  # the whole array in every step
        "sess.run(train, {x: X[:32], y: Y[:32]})\n",
        "for rate in (0.1, 0.2):\n    sess.run(train, {keep_prob: rate})\n",
        "for i in range(100):\n    sess.run(train, {keep_prob: 1 / (i + 1)})\n",
    ],
)
def test_no_batches(loop: str) -> None:
    check.ignores(GRAPH + loop)


LOOP = """
for i in range(100):
    sess.run(train, {x: X[i::100], y: Y[i::100]})
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (GRAPH.replace("x = tf.placeholder", "with tf.device('/gpu:0'):\n    x = tf.placeholder") + LOOP, "device"),
        (GRAPH.replace("tf.Session()", "tf.Session(server.target)") + LOOP, "another process"),
        (GRAPH + LOOP + "tf.saved_model.simple_save(sess, 'm', {'x': x}, {})\n", "exported"),
        (GRAPH + LOOP + "sess.graph.get_tensor_by_name('Placeholder_1:0')\n", "looked up by its name"),
        (GRAPH.replace("tf.placeholder(tf.int32, [None])", "tf.placeholder(**options)") + LOOP, "not seen"),
    ],
)
def test_graphs_that_stay(source: str, reason: str) -> None:
    check.refuses(source, reason)


def test_data_of_another_function() -> None:
    check.refuses(
        """
        import tensorflow as tf

        x = tf.placeholder(tf.float32, [None, 4])
        train = tf.train.AdamOptimizer().minimize(x)

        def fit(sess, data):
            for i in range(10):
                sess.run(train, {x: data[i::10]})

        fit(tf.Session(), load())
        """,
        "`data` is not visible",
    )


def test_function_called_twice() -> None:
    check.refuses(
        """
        import tensorflow as tf

        x = tf.placeholder(tf.float32, [None, 4])
        train = tf.train.AdamOptimizer().minimize(x)

        def fit(sess):
            for i in range(10):
                sess.run(train, {x: X[i::10]})

        sess = tf.Session()
        fit(sess)
        fit(sess)
        """,
        "`fit` is called in 2 places",
    )


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ("def main():\n    fit(sess)\nfor fold in range(3):\n    main()\n", "`main` is called in a loop"),
        ("def once():\n    fit(sess)\nonce()\nonce()\n", "`once` is called in 2 places"),
        ("def step():\n    fit(sess)\nschedule(step)\n", "`step` is called in unknown places"),
        ("once = lambda: fit(sess)\nonce()\nonce()\n", "`fit` is called by a lambda"),
    ],
)
def test_function_whose_caller_is_called_twice(calls: str, reason: str) -> None:
    check.refuses(
        "import tensorflow as tf\nx = tf.placeholder(tf.float32, [None, 4])\n"
        "train = tf.train.AdamOptimizer().minimize(x)\nsess = tf.Session()\n"
        "def fit(sess):\n    for i in range(10):\n        sess.run(train, {x: X[i::10]})\n" + calls,
        reason,
    )


@pytest.mark.parametrize(
    "loop",
    [
        "for i in range(9):\n    for m in [a, b]:\n        sess.run(m.train, {m.x: X[i::9]})\n",
        "for i in range(9):\n    m = a if i % 2 else b\n    sess.run(m.train, {m.x: X[i::9]})\n",
        "for i in range(9):\n    sess.run([a.train, b.train], {a.x: X[i::9], b.x: X[i::9] * 2})\n",
    ],
)
def test_a_class_that_makes_its_placeholders_twice(loop: str) -> None:
    model = """import tensorflow as tf
class Model:
    def __init__(self):
        self.x = tf.placeholder(tf.float32, [None, 4])
        self.train = tf.train.AdamOptimizer().minimize(loss(self.x))
X = load()
sess = tf.Session()
"""
    result = check.run(model + "a = Model()\nb = Model()\n" + loop)
    assert result.after == result.before
    once = "m = Model()\nfor i in range(9):\n    sess.run(m.train, {m.x: X[i::9]})\n"
    assert check.run(model + once).applied


def test_iterator_of_another_function() -> None:
    """The loop could not start an iterator that is local to where the graph is built."""
    check.refuses(
        """
        import tensorflow as tf

        class Model:
            def __init__(self, loader):
                self.loader = loader
                self.x = tf.placeholder(tf.float32, [None, 4])
                self.train = tf.train.AdamOptimizer().minimize(loss(self.x))

            def fit(self, sess):
                for batch in self.loader:
                    sess.run(self.train, {self.x: batch * 2})

        with tf.Session() as session:
            Model(iter(data)).fit(session)
        """,
        "iterator",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("sess.run(train, {x: X[i::9]}, options, metadata)", "sess.run(train, None, options, metadata)"),
        ("train.run({x: X[i::9]}, sess)", "train.run(None, sess)"),
        ("train.run({x: X[i::9]}, session=sess)", "train.run(session=sess)"),
    ],
)
def test_what_follows_the_feed_dict_keeps_its_place(before: str, after: str) -> None:
    text = check.run(GRAPH + f"for i in range(9):\n    {before}\n").after.decode()
    assert f"for i in range(9):\n    {after}\n" in text


def test_an_object_of_the_project_is_gone_through_once() -> None:
    loader = """
class Loader:
    def __iter__(self):
        return self

    def __next__(self):
        return take() * 2

loader = Loader()
for bx in loader:
    sess.run(train, {x: bx})
"""
    text = check.run(GRAPH + loader).after.decode()
    assert "for bx in loader:\n        yield" in text and "sess.run(iterator.initializer)\nwhile True:\n" in text
    text = check.run(GRAPH + loader.replace("in loader:", "in enumerate(loader):")).after.decode()
    assert "sess.run(iterator.initializer)\nwhile True:\n" in text


@pytest.mark.parametrize(
    "runner",
    [
        "class Runner:\n    def run(self, op, feed):\n        sess.run(op, {x: feed[x] + 1})\nr = Runner()\n",
        "class Runner(tf.Session):\n    def run(self, op, feed):\n        super().run(op, {x: feed[x] + 1})\nr = Runner()\n",
        "from library import Runner\nr = Runner()\n",
    ],
)
def test_other_things_that_run(runner: str) -> None:
    check.ignores(GRAPH + runner + "for i in range(9):\n    r.run(train, {x: X[i::9]})\n")
    made = "from library import make_session, DebugSession\n"
    assert check.run(GRAPH + made + "r = make_session()\nfor i in range(9):\n    r.run(train, {x: X[i::9]})\n").applied
    assert check.run(GRAPH + made + "r = DebugSession()\nfor i in range(9):\n    r.run(train, {x: X[i::9]})\n").applied


def test_options_of_a_run_that_gives_the_batch_back() -> None:
    loop = "for i in range(9):\n    bx = X[i::9] * 2\n    sess.run(train, {x: bx}, options=o)\n    sess.run(loss, {x: bx})\n"
    assert "    _, bx = sess.run([train, x], options=o)\n" in check.run(GRAPH + loop).after.decode()
    refuses(loop.replace("options=o", "o"), "used by two `run` calls")


def test_a_view_of_what_is_shuffled_is_copied() -> None:
    fixes(
        """
        data = np.hstack([X, Y])
        A, B = data[:, 1:], data[:, 0]
        for epoch in range(3):
            np.random.shuffle(data)
            for i in range(100):
                sess.run(train, {x: A[i::100], y: B[i::100]})
        """,
        """
        for epoch in range(3):
            np.random.shuffle(data)
            for i in range(100):
                yield np.array(A[i::100]), np.array(B[i::100])
        """,
        """
        data = np.hstack([X, Y])
        A, B = data[:, 1:], data[:, 0]
        for epoch in range(3):
            for i in range(100):
                sess.run(train)
        """,
    )


def test_number_of_steps_of_another_function() -> None:
    """What the function is told may be out of sight: the generator goes on until the loop stops asking."""
    check.fixes(
        """
        import tensorflow as tf

        x = tf.placeholder(tf.float32, [None, 4])
        train = tf.train.AdamOptimizer().minimize(x)
        sess = tf.Session()

        def optimize(num_iterations):
            for i in range(num_iterations):
                batch = data.next_batch(32)
                sess.run(train, {x: batch / 255})

        optimize(1)
        optimize(99)
        """,
        """
        import tensorflow as tf


        def batches():
            while True:
                batch = data.next_batch(32)
                yield batch / 255


        dataset = tf.data.Dataset.from_generator(batches, tf.float32, [None, 4]).prefetch(2)
        next_x = tf.data.make_one_shot_iterator(dataset).get_next()
        x = tf.placeholder_with_default(next_x, [None, 4])
        train = tf.train.AdamOptimizer().minimize(x)
        sess = tf.Session()

        def optimize(num_iterations):
            for i in range(num_iterations):
                sess.run(train)

        optimize(1)
        optimize(99)
        """,
    )


@pytest.mark.parametrize(
    ("body", "then"),
    [
        ("batch = X[i::9]", ""),  # depends on the turn
        ("batch = data.next_batch(32)", "show(data.images)"),  # sees how far the generator ran ahead
        ("batch = data.next_batch(32)", "optimize(sess.run(x, {x: X}))\nprint(data)"),
    ],
)
def test_number_of_steps_that_matters(body: str, then: str) -> None:
    check.refuses(
        "import tensorflow as tf\nx = tf.placeholder(tf.float32, [None, 4])\n"
        "train = tf.train.AdamOptimizer().minimize(x)\nsess = tf.Session()\n"
        f"def optimize(n):\n    for i in range(n):\n        {body}\n        sess.run(train, {{x: batch / 255}})\n"
        f"optimize(1)\noptimize(9)\n{then}\n",
        "`n` is not visible",
    )


def test_length_of_a_permutation() -> None:
    fixes(
        """
        for epoch in range(5):
            order = np.random.permutation(len(X))
            for i in range(0, len(order), 32):
                sess.run(train, {x: X[order[i:i + 32]], y: Y[order[i:i + 32]]})
        """,
        """
        for epoch in range(5):
            order = np.random.permutation(len(X))
            for i in range(0, len(order), 32):
                yield X[order[i:i + 32]], Y[order[i:i + 32]]
        """,
        """
        for epoch in range(5):
            for i in range(0, len(X), 32):
                sess.run(train)
        """,
    )


def test_methods_of_a_class() -> None:
    check.fixes(
        """
        import tensorflow as tf

        class Model:
            def __init__(self, data):
                self.data = data
                self.x = tf.placeholder(tf.float32, [None, 4])
                self.train_op = tf.train.AdamOptimizer().minimize(loss(self.x))

            def fit(self, sess):
                for i in range(10):
                    sess.run(self.train_op, feed_dict={self.x: self.data[i::10]})

        Model(load()).fit(tf.Session())
        """,
        """
        import tensorflow as tf

        class Model:
            def __init__(self, data):
                self.data = data

                def batches():
                    for i in range(10):
                        yield self.data[i::10]

                dataset = tf.data.Dataset.from_generator(batches, tf.float32, [None, 4]).prefetch(2)
                next_x = tf.data.make_one_shot_iterator(dataset).get_next()
                self.x = tf.placeholder_with_default(next_x, [None, 4])
                self.train_op = tf.train.AdamOptimizer().minimize(loss(self.x))

            def fit(self, sess):
                for i in range(10):
                    sess.run(self.train_op)

        Model(load()).fit(tf.Session())
        """,
    )


# -- when it pays -----------------------------------------------------------------------------------------------------

WORK = """
for i in range(100):
    batch_x = np.array([np.sort(v) - v.mean() for v in X[i::100]])
    sess.run(train, {x: batch_x, y: Y[i::100]})
"""


def test_slices_alone_are_left_as_they_are() -> None:
    result = by_default(GRAPH + LOOP)
    assert result.after == result.before
    assert "slices of arrays" in result.refused[0].reason and "--select feed-dict" in result.refused[0].hint


def test_slices_beside_a_gpu() -> None:
    assert by_default(GRAPH + LOOP, cpu=False).applied
    result = by_default(GRAPH + LOOP.replace("sess.run(train,", "value = sess.run(loss,"), cpu=False)
    assert "does not train" in result.refused[0].reason


def test_a_tensor_behind_its_placeholder_is_fed() -> None:
    """`tf.placeholder(...) / 255.` is no placeholder any more: what it is fed has to be there still."""
    scaled = GRAPH.replace(
        "x = tf.placeholder(tf.float32, [None, 784])", "x = tf.placeholder(tf.float32, [None, 784]) / 255.0"
    )
    assert scaled != GRAPH
    reader = "for i in range(100):\n    bx, by = reader.train.next_batch(32)\n    sess.run(train, {x: bx, y: by})\n"
    result = check.run(scaled + reader)
    assert result.after == result.before and result.refused
    slices = "for i in range(100):\n    bx, by = X[i::100], Y[i::100]\n    sess.run(train, {x: bx, y: by})\n"
    assert (
        "    bx, by = X[i::100], Y[i::100]\n    sess.run(train, {x: bx})\n" in check.run(scaled + slices).after.decode()
    )


def test_the_same_slice_for_two_calls() -> None:
    loop = "for i in range(100):\n    sess.run(train, {x: X[i::100]})\n    sess.run(loss, {x: X[i::100]})\n"
    result = by_default(GRAPH + loop, cpu=False)
    assert not result.applied and "one batch is used by two `run` calls" in result.refused[0].reason
    other = loop.replace("sess.run(loss, {x: X[i::100]})", "sess.run(loss, {x: X_test})")
    assert by_default(GRAPH + other, cpu=False).applied


def test_small_rows_are_left_as_they_are() -> None:
    loop = LOOP.replace("X[i::100]", "X[i::100] / 255.0")
    assert by_default(GRAPH.replace("784", "4") + loop).refused
    assert by_default(GRAPH.replace("784", "224, 224, 3") + loop).applied


def test_work_for_every_sample() -> None:
    assert by_default(GRAPH + WORK).applied


def test_a_graph_seed_needs_level_2() -> None:
    source = GRAPH.replace("build(x, y, keep_prob)", "tf.reduce_sum(tf.layers.dense(x, 1))") + WORK
    assert by_default(source).applied
    seeded = source.replace("x = tf.placeholder", "tf.set_random_seed(1)\nx = tf.placeholder")
    assert not by_default(seeded).applied
    (applied,) = by_default(seeded, level=2).applied
    assert "other initial weights" in applied.message


def test_a_graph_seed_beside_operations_with_seeds() -> None:
    source = GRAPH.replace(
        "build(x, y, keep_prob)",
        "tf.reduce_sum(tf.layers.dense(x, 1, kernel_initializer=tf.glorot_uniform_initializer(seed=1)))",
    )
    source = source.replace("x = tf.placeholder", "tf.set_random_seed(1)\nx = tf.placeholder")
    assert by_default(source + WORK).applied


def test_fetching_a_batch_back_has_to_pay() -> None:
    again = "    print(sess.run(loss, {x: batch_x}))\n"
    assert by_default(GRAPH + WORK + again).applied
    little = WORK.replace(
        "np.array([np.sort(v) - v.mean() for v in X[i::100]])", "(X[i::100] / 255 - 0.5 + noise) * scale"
    )
    result = by_default(GRAPH.replace("784", "3072") + little + again)
    assert not result.applied and "used again after the step" in result.refused[0].reason


def test_a_loop_that_only_evaluates_has_to_work_more() -> None:
    little = WORK.replace(
        "np.array([np.sort(v) - v.mean() for v in X[i::100]])", "(X[i::100] / 255 - 0.5 + noise) * scale"
    )
    graph = GRAPH.replace("784", "3072")
    assert by_default(graph + little).applied
    assert by_default((graph + little).replace("sess.run(train,", "value = sess.run(loss,")).refused


def test_runs_with_random_numbers_over_a_generator_need_level_2() -> None:
    """The run that finds the pipeline empty may draw before it notices."""
    graph = GRAPH.replace("build(x, y, keep_prob)", "tf.reduce_sum(tf.nn.dropout(x, keep_prob, seed=1))")
    loop = """
def minibatches():
    for i in range(100):
        yield np.array([np.sort(v) - v.mean() for v in X[i::100]]), Y[i::100]

for bx, by in minibatches():
    sess.run(train, {x: bx, y: by, keep_prob: 0.5})
"""
    assert not by_default(graph + loop).applied
    (applied,) = by_default(graph + loop, level=2).applied
    assert "draws random numbers once more" in applied.message


def test_indentation_of_the_file() -> None:
    """Two spaces, tabs, and lines that go on under a bracket."""
    loop = """
for epoch in range(3):
  for i in range(100):
    bx = np.concatenate([X[i::100],
                         X[i::100]])
    sess.run(train, {x: bx, y: Y[i::100]})
"""
    text = check.run(GRAPH + loop).after.decode()
    assert (
        "def batches():\n  for epoch in range(3):\n    for i in range(100):\n"
        "      bx = np.concatenate([X[i::100],\n                           X[i::100]])\n      yield bx, Y[i::100]\n"
    ) in text
    tabs = "for i in range(100):\n\tbx = X[i::100] * 2\n\tsess.run(train, {x: bx, y: Y[i::100]})\n"
    assert "def batches():\n\tfor i in range(100):\n\t\tbx =" in check.run(GRAPH + tabs).after.decode()
    drained = """
def minibatches():
  for i in range(100):
    yield X[i::100], Y[i::100]

for epoch in range(3):
  for bx, by in minibatches():
    sess.run(train, {x: bx, y: by})
    print(epoch)
"""
    text = check.run(GRAPH + drained).after.decode()
    assert (
        "  while True:\n    try:\n      sess.run(train)\n    except tf.errors.OutOfRangeError:\n      break\n    print(epoch)\n"
    ) in text
