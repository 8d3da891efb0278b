"""What becomes of programs that train in TensorFlow 1 sessions under `--distribute horovod`, as text."""

from __future__ import annotations

import textwrap

import pytest

from tests.check import Check

check = Check("horovod")

IMPORTS = "import numpy as np\nimport tensorflow.compat.v1 as tf\n"
DATA = """
data = np.load("x.npy")
labels = np.load("y.npy")
"""
GRAPH = """
x = tf.placeholder(tf.float32, [None, 4])
y = tf.placeholder(tf.float32, [None, 1])
loss = tf.losses.mean_squared_error(y, tf.layers.dense(x, 1))
"""
TRAIN = "train = tf.train.AdamOptimizer(0.01).minimize(loss)\n"
SESSION = """
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
"""
LOOP = """
for i in range(0, len(data), 16):
    sess.run(train, {x: data[i:i + 16], y: labels[i:i + 16]})
"""
CONFIG = "config=tf.ConfigProto(gpu_options=tf.GPUOptions(visible_device_list=str(hvd.local_rank())))"
BROADCAST = "sess.run(hvd.broadcast_global_variables(0))\n"
PART = "{0} = {0}[hvd.rank():len({0}) // hvd.size() * hvd.size():hvd.size()]\n"


def script(
    loop: str = LOOP,
    *,
    data: str = DATA,
    graph: str = GRAPH,
    train: str = TRAIN,
    session: str = SESSION,
    imports: str = IMPORTS,
) -> str:
    return imports + "tf.disable_v2_behavior()\n" + data + graph + train + session + textwrap.indent(loop, "    ")


def converted(source: str, **options: object) -> str:
    """The program, on several ranks; a second run leaves it alone."""
    result = check.run(source, **options)  # type: ignore[arg-type]
    after = result.after.decode()
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    again = check.run(after, **options)  # type: ignore[arg-type]
    assert again.after == again.before
    compile(after, "train.py", "exec")
    assert "import horovod.tensorflow as hvd\n" in after and "\nhvd.init()\n" in after
    return after


def test_the_whole() -> None:
    after = converted(script())
    assert PART.format("data") in after and PART.format("labels") in after
    assert "hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.01 * hvd.size())).minimize(loss)" in after
    assert f"with tf.Session({CONFIG}) as sess:\n" in after
    assert f"    sess.run(tf.global_variables_initializer())\n    {BROADCAST}" in after
    assert "range(0, len(data), 16)" in after


def test_tensorflow_1() -> None:
    after = converted(
        script(imports="import numpy as np\nimport tensorflow as tf\n").replace("tf.disable_v2_behavior()\n", ""),
        target="tf1.15",
    )
    assert f"tf.Session({CONFIG})" in after
    refused = check.refuses(script(), "sessions are converted for TensorFlow 1.15 to 2.15", target="tf2.17")
    assert not refused.applied


def test_no_scaling() -> None:
    after = converted(script(), lr_scaling=False)
    assert "hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.01)).minimize(loss)" in after


class TestOptimizers:
    def test_default_rate(self) -> None:
        after = converted(script(train="train = tf.train.AdamOptimizer().minimize(loss)\n"))
        assert "tf.train.AdamOptimizer(learning_rate=0.001 * hvd.size())" in after

    def test_rate_is_fed(self) -> None:
        train = "rate = tf.placeholder(tf.float32)\ntrain = tf.train.AdamOptimizer(rate).minimize(loss)\n"
        after = converted(script(LOOP.replace("16]}", "16], rate: 0.1}"), train=train))
        assert "tf.train.AdamOptimizer(rate * hvd.size())" in after

    def test_decay(self) -> None:
        train = (
            "step = tf.train.get_or_create_global_step()\n"
            "rate = tf.train.exponential_decay(0.1, step, 1000, 0.9)\n"
            "train = tf.train.AdamOptimizer(rate).minimize(loss, global_step=step)\n"
        )
        after = converted(script(train=train))
        assert "exponential_decay(0.1, step, 1000 // hvd.size(), 0.9)" in after
        assert "AdamOptimizer(rate * hvd.size())" in after

    def test_computed_gradients_are_averaged_by_the_optimizer(self) -> None:
        train = (
            "opt = tf.train.AdamOptimizer(0.01)\n"
            "pairs = opt.compute_gradients(loss)\n"
            "train = opt.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in pairs])\n"
        )
        after = converted(script(train=train))
        assert "opt = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.01 * hvd.size()))" in after

    def test_gradients_by_hand_are_averaged_themselves(self) -> None:
        train = (
            "tvars = tf.trainable_variables()\n"
            "grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), 5.0)\n"
            "opt = tf.train.AdamOptimizer(0.01)\n"
            "train = opt.apply_gradients(zip(grads, tvars))\n"
        )
        after = converted(script(train=train))
        assert "[g if g is None else hvd.allreduce(g) for g in tf.gradients(loss, tvars)]" in after
        assert "DistributedOptimizer" not in after

    def test_two(self) -> None:
        train = TRAIN + "second = tf.train.GradientDescentOptimizer(0.1).minimize(loss)\n"
        loop = LOOP + "    sess.run(second, {x: data[i:i + 16], y: labels[i:i + 16]})\n"
        after = converted(script(loop, train=train))
        assert after.count("hvd.DistributedOptimizer(") == 2

    @pytest.mark.parametrize(
        ("train", "reason"),
        [
            ("train = make_optimizer(0.1).minimize(loss)\n", "which optimizer"),
            ("opt = tf.train.AdamOptimizer(0.1)\nkeep(opt)\ntrain = opt.minimize(loss)\n", "not all that is done"),
            (
                "opt = tf.train.AdamOptimizer(0.1)\ntrain = opt.apply_gradients(own(loss))\n",
                "where the gradients that are applied here come from",
            ),
            (
                "(g,) = tf.gradients(loss, [w])\nw.assign_sub(g)\n" + TRAIN,
                "variables are assigned beside gradients",
            ),
        ],
    )
    def test_refused(self, train: str, reason: str) -> None:
        check.refuses(script(train=train), reason)

    def test_sync_replicas(self) -> None:
        train = (
            "opt = tf.train.SyncReplicasOptimizer(tf.train.AdamOptimizer(0.1), replicas_to_aggregate=2)\n"
            "train = opt.minimize(loss)\n"
        )
        check.refuses(script(train=train), "distributed already")


class TestSessions:
    def test_configuration(self) -> None:
        session = (
            "config = tf.ConfigProto(allow_soft_placement=True)\nconfig.gpu_options.allow_growth = True\n"
            + SESSION.replace("Session()", "Session(config=config)")
        )
        after = converted(script(session=session))
        options = CONFIG.removeprefix("config=tf.ConfigProto(").removesuffix(")")
        assert f"config = tf.ConfigProto(allow_soft_placement=True, {options})" in after

    def test_own_gpus(self) -> None:
        session = SESSION.replace(
            "Session()", 'Session(config=tf.ConfigProto(gpu_options=tf.GPUOptions(visible_device_list="1")))'
        )
        check.refuses(script(session=session), "it chooses GPUs itself")

    def test_interactive(self) -> None:
        session = "sess = tf.InteractiveSession()\ntf.global_variables_initializer().run()\nif True:\n    pass\n"
        after = converted(script(session=session))
        assert "tf.global_variables_initializer().run()\nhvd.broadcast_global_variables(0).run()\n" in after

    def test_restored_after_a_look(self) -> None:
        session = (
            SESSION + "    saver = tf.train.Saver()\n    if tf.train.latest_checkpoint('old'):\n"
            "        saver.restore(sess, tf.train.latest_checkpoint('old'))\n"
        )
        after = converted(script(session=session))
        assert f"latest_checkpoint('old'))\n    {BROADCAST}" in after

    def test_restored_after_training(self) -> None:
        loop = LOOP + "saver = tf.train.Saver()\nsaver.save(sess, 'm')\nsaver.restore(sess, 'm')\n"
        check.refuses(script(loop), "restores what rank 0 alone has written")

    def test_never_initialised(self) -> None:
        check.refuses(script(session="with tf.Session() as sess:\n    pass\n"), "get their first values is not seen")

    def test_writes(self) -> None:
        loop = LOOP + "print(sess.run(loss, {x: data, y: labels}))\ntf.train.Saver().save(sess, 'm')\n"
        after = converted(script(loop))
        assert "    if hvd.rank() == 0:\n        print(" in after and "        tf.train.Saver().save(" in after

    def test_a_step_inside_of_a_print(self) -> None:
        check.refuses(
            script(LOOP.replace("sess.run(train, ", "print(sess.run(train, ").replace("16]})", "16]}))")),
            "inside of another call",
        )

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("coordinator = tf.train.Coordinator()\n", "queues"),
            ("server = tf.train.Server({})\n", "parameter servers"),
            ("tf.get_default_graph().finalize()\n", "finalize"),
        ],
    )
    def test_other_things(self, line: str, reason: str) -> None:
        check.refuses(script(train=TRAIN + line), reason)


class TestData:
    def test_steps_are_counted(self) -> None:
        loop = """
        for step in range(1000):
            at = np.random.choice(len(data), 16)
            sess.run(train, {x: data[at], y: labels[at]})
        """
        after = converted(script(textwrap.dedent(loop)))
        assert "range(1000 // hvd.size())" in after

    def test_counted_from_one(self) -> None:
        loop = """
        for step in range(1, steps + 1):
            at = np.random.randint(0, len(data), 16)
            sess.run(train, {x: data[at], y: labels[at]})
        """
        after = converted(script(textwrap.dedent(loop), data=DATA + "steps = 1000\n"))
        assert "range(1, steps // hvd.size() + 1)" in after

    def test_around_the_end(self) -> None:
        loop = """
        for step in range(1000):
            at = (step * 16) % (len(data) - 16)
            sess.run(train, {x: data[at:at + 16], y: labels[at:at + 16]})
        """
        assert "range(1000 // hvd.size())" in converted(script(textwrap.dedent(loop)))

    def test_all_samples_in_every_step(self) -> None:
        """The mean over the ranks is that over all samples: neither steps nor rates change."""
        after = converted(script("for i in range(1000):\n    sess.run(train, {x: data, y: labels})\n"))
        assert "range(1000)" in after and "AdamOptimizer(0.01)" in after and PART.format("data") in after

    def test_a_sum_over_all_samples(self) -> None:
        loop = "for i in range(1000):\n    sess.run(train, {x: data, y: labels})\n"
        graph = GRAPH + "loss = tf.reduce_sum(tf.square(y - tf.layers.dense(x, 1)))\n"
        check.refuses(script(loop, graph=graph), "may sum over them")
        graph = GRAPH + "loss = tf.reduce_sum(tf.square(y - tf.layers.dense(x, 1))) / len(data)\n"
        assert "range(1000)" in converted(script(loop, graph=graph))
        graph = GRAPH + "loss = tf.reduce_mean(tf.reduce_sum(tf.square(y - tf.layers.dense(x, 1)), 1))\n"
        assert "range(1000)" in converted(script(loop, graph=graph))

    def test_sparse_matrices(self) -> None:
        after = converted(script(LOOP.replace("data[i:i + 16]", "data[i:i + 16].toarray()")))
        assert "data[hvd.rank():data.shape[0] // hvd.size() * hvd.size():hvd.size()]" in after

    def test_shuffled_by_epoch(self) -> None:
        loop = """
        for epoch in range(10):
            order = np.random.permutation(len(data))
            for i in range(len(data) // 16):
                at = order[i * 16:(i + 1) * 16]
                sess.run(train, {x: data[at], y: labels[at]})
        """
        after = converted(script(textwrap.dedent(loop)))
        assert "range(10)" in after and "range(len(data) // 16)" in after

    def test_a_generator(self) -> None:
        data = DATA + (
            "def batches(a, b, n):\n    for i in range(0, len(a), n):\n        yield a[i:i + n], b[i:i + n]\n"
        )
        loop = "for bx, by in batches(data, labels, 16):\n    sess.run(train, {x: bx, y: by})\n"
        assert PART.format("data") in converted(script(loop, data=data))

    def test_known_length(self) -> None:
        data = "data, labels = np.ones((128, 4)), np.ones((128, 1))\n"
        after = converted(script(LOOP.replace("len(data)", "128"), data=data))
        assert "range(0, 128 // hvd.size(), 16)" in after

    def test_random_data_is_the_same_on_every_rank(self) -> None:
        data = "data = np.random.rand(128, 4)\nlabels = data[:, :1] * 2\n"
        after = converted(script(data=data))
        assert "hvd.init()\nnp.random.seed(0)" in after
        assert after.index("labels = data[:, :1]") < after.index("data = data[hvd.rank()")

    def test_mnist(self) -> None:
        imports = "import tensorflow as tf\nfrom tensorflow.examples.tutorials.mnist import input_data\n"
        loop = """
        for i in range(total):
            bx, by = mnist.train.next_batch(16)
            sess.run(train, {x: bx, y: by})
        """
        data = 'mnist = input_data.read_data_sets("d")\ntotal = mnist.train.num_examples // 16\n'
        source = script(textwrap.dedent(loop), data=data, imports=imports).replace("tf.disable_v2_behavior()\n", "")
        after = converted(source, target="tf1.15")
        assert 'read_data_sets("d", seed=0)' in after and "range(total // hvd.size())" in after
        assert "[part[hvd.rank()::hvd.size()] for part in mnist.train.next_batch(16 * hvd.size())]" in after

    @pytest.mark.parametrize(
        ("loop", "reason"),
        [
            (LOOP.replace("len(data)", "128"), "whether `range(0, 128, 16)` counts"),
            (LOOP + "    if i > 100:\n        break\n", "`break` may end"),
            ("while go_on():\n    sess.run(train, {x: data, y: labels})\n", "`while` around"),
            (LOOP.replace("data[i:i + 16]", "helper.next_batch(16)"), "chooses what a training step is fed"),
            (
                "at = 0\nfor i in range(100):\n    sess.run(train, {x: data[at:at + 16], y: labels[at:at + 16]})\n"
                "    at += 16\n",
                "goes on from step to step",
            ),
            (LOOP + "    print(np.mean(data))\n", "is used for something else"),
            (
                "for i in range(0, len(data), 16):\n    sess.run(train, {x: data[i:i + 16], y: data[i + 1:i + 17]})\n",
                "in several parts",
            ),
            (
                "for i in range(0, len(data), 16):\n"
                "    bx = data[i:i + 16].reshape((4, 4, 4))\n    sess.run(train, {x: bx, y: labels[i:i + 16]})\n",
                "put samples together",
            ),
            (LOOP + "guess = sess.run(loss, {x: data, y: labels})\nprint(np.mean(guess == truth))\n", "something else"),
            (
                "for a, b in zip(np.array_split(data, 10), np.array_split(labels, 10)):\n"
                "    sess.run(train, {x: a, y: b})\n",
                "which are smaller",
            ),
            (
                "n = len(data) // 10\nfor i in range(10):\n"
                "    sess.run(train, {x: data[i * n:(i + 1) * n], y: labels[i * n:(i + 1) * n]})\n",
                "that would shrink",
            ),
            (LOOP.replace("16)", "len(data) // 9)"), "that would shrink"),
            ("w = tf.trainable_variables()[0]\nw.load(np.ones((4, 1)), sess)\n" + LOOP, "set one by one"),
            ("feed = make_feed()\nfor i in range(9):\n    sess.run(train, feed)\n", "feeds is not seen"),
        ],
    )
    def test_refused(self, loop: str, reason: str) -> None:
        check.refuses(script(loop), reason)

    def test_updates_of_one_step(self) -> None:
        loop = """
        for i in range(1000):
            for _ in range(5):
                at = np.random.choice(len(data), 16)
                sess.run(train, {x: data[at], y: labels[at]})
        """
        check.refuses(script(textwrap.dedent(loop)), "counts updates of one step")
        converted(script(textwrap.dedent(loop.replace("range(5)", "range(500)"))))

    def test_called_until_it_is_good(self) -> None:
        session = SESSION + textwrap.indent("def epoch():\n" + textwrap.indent(LOOP, "    "), "    ")
        check.refuses(script("while bad():\n    epoch()\n", session=session), "the loop that calls `epoch`")
        converted(script("for e in range(9):\n    epoch()\n", session=session))

    def test_data_above_the_imports(self) -> None:
        first, second = IMPORTS.splitlines(keepends=True)
        check.refuses(script(imports=first + DATA + second, data=""), "this comes before `hvd.init()` could")


class TestMonitored:
    GRAPH = """
    ds = tf.data.Dataset.from_tensor_slices(np.load("x.npy")).repeat().batch(16)
    x = tf.data.make_one_shot_iterator(ds).get_next()
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
    """
    SESSION = """
    with tf.train.MonitoredTrainingSession(checkpoint_dir="c", hooks=[tf.train.StopAtStepHook(last_step=900)]) as sess:
        while not sess.should_stop():
            sess.run(train)
    """

    def source(self, graph: str = "", session: str = "") -> str:
        graph, session = textwrap.dedent(graph or self.GRAPH), textwrap.dedent(session or self.SESSION)
        return script("", data="", graph=graph, session=session)

    def test_the_whole(self) -> None:
        after = converted(self.source())
        assert '.from_tensor_slices(np.load("x.npy")).shard(hvd.size(), hvd.rank()).repeat()' in after
        hooks = "hooks=[hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=900 // hvd.size())]"
        assert hooks in after and 'checkpoint_dir="c" if hvd.rank() == 0 else None' in after
        assert CONFIG in after

    def test_no_hooks(self) -> None:
        session = """
        with tf.train.MonitoredTrainingSession() as sess:
            for _ in range(500):
                sess.run(train)
        """
        after = converted(self.source(session=session))
        assert "hooks=[hvd.BroadcastGlobalVariablesHook(0)]" in after and "range(500 // hvd.size())" in after

    def test_a_finite_pipeline(self) -> None:
        check.refuses(self.source(self.GRAPH.replace(".repeat()", "")), "may end on one rank")

    def test_another_hook(self) -> None:
        session = self.SESSION.replace("hooks=[", "hooks=[Mine(), ")
        check.refuses(self.source(session=session), "the hook `Mine()`")

    def test_random_slices(self) -> None:
        graph = self.GRAPH.replace('np.load("x.npy")', "np.random.rand(90, 4)")
        assert "np.random.seed(0)" in converted(self.source(graph))
