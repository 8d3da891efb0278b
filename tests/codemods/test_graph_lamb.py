"""`lamb` for the optimizers of TensorFlow 1: where every batch is known to be large."""

from pathlib import Path

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("lamb", target="tf1.15")

SCRIPT = """\
import tensorflow as tf

ds = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(5000).repeat().batch(1024)
x, y = ds.make_one_shot_iterator().get_next()
loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(x, 2))
train = tf.train.AdamOptimizer(0.01, beta2=0.99).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train)
"""


def after(text: str, **options: object) -> str:
    result = check.run(text, **options)
    assert result.applied, result.refused
    again = check.run(result.after.decode(), **options)
    assert again.after == again.before
    return result.after.decode()


def test_adam_becomes_lamb_with_the_class_above() -> None:
    text = after(SCRIPT)
    assert text.count("class LAMB(tf.train.Optimizer):") == 1
    assert text.index("class LAMB") < text.index("ds = tf.data")
    assert "train = LAMB(0.01, beta2=0.99).minimize(loss)\n" in text


def test_two_optimizers_share_the_class() -> None:
    text = after(SCRIPT.replace("with tf", "second = tf.train.AdamOptimizer(1e-4).minimize(loss)\nwith tf"))
    assert text.count("class LAMB(") == 1 and text.count("= LAMB(") == 2


def test_compat_v1_spellings() -> None:
    text = SCRIPT.replace("import tensorflow as tf", "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()")
    text = text.replace("ds.make_one_shot_iterator()", "tf.data.make_one_shot_iterator(ds)")
    assert "class LAMB(tf.train.Optimizer):" in after(text, target="tf2.15")
    text = SCRIPT.replace("import tensorflow as tf", "import tensorflow as tf\ntf.compat.v1.disable_eager_execution()")
    text = text.replace("tf.train.Adam", "tf.compat.v1.train.Adam").replace("tf.Session", "tf.compat.v1.Session")
    text = text.replace("ds.make_one_shot_iterator()", "tf.compat.v1.data.make_one_shot_iterator(ds)")
    found = after(text, target="tf2.15")
    assert "class LAMB(tf.compat.v1.train.Optimizer):" in found and "tf.compat.v1.assign_sub(" in found


def test_batches_that_are_fed() -> None:
    fed = SCRIPT.replace(SCRIPT.splitlines()[2], "").replace(SCRIPT.splitlines()[3], "x, y = placeholders()")
    large = fed.replace("    sess.run(train)", "    sess.run(train, feed(mnist.train.next_batch(512)))")
    assert "LAMB(0.01" in after(large)
    check.refuses(large.replace("512", "100"), "the batch size is 100")
    check.refuses(large.replace("512", "SIZE"), "is not known")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("batch(1024)", "batch(128)", "the batch size is 128"),
        ("batch(1024)", "batch(SIZE)", "is not known"),
        ("with tf", "saver.restore(s, p)\nwith tf", "may be Adam's state"),
        ("with tf", "est.train(warm_start_from=p)\nwith tf", "may be Adam's state"),
        ("train = ", "opt = tf.train.AdamOptimizer(0.1)\nslots = opt.get_slot_names()\ntrain = ", "is used"),
        ("(0.01, beta2=0.99)", "(**options)", "not all of its arguments"),
    ],
)
def test_refused(old: str, new: str, reason: str) -> None:
    check.refuses(SCRIPT.replace(old, new), reason)


def test_nothing_to_say() -> None:
    check.ignores(SCRIPT.replace("tf.train.AdamOptimizer(0.01, beta2=0.99)", "tf.train.MomentumOptimizer(0.1, 0.9)"))
    check.ignores(SCRIPT.replace("import tensorflow as tf", "import tensorflow as tf\ntf.enable_eager_execution()"))


RUNS = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
X = rng.randn(2048, 8).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
ds = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(1024)
x, y = tf.data.make_one_shot_iterator(ds).get_next()
kernel = tf.get_variable("kernel", [8, 2], initializer=tf.glorot_uniform_initializer(seed=1))
loss = tf.losses.sparse_softmax_cross_entropy(y, tf.matmul(x, kernel))
train = tf.train.AdamOptimizer(0.05).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    losses = [float(sess.run([loss, train])[0]) for _ in range(60)]
assert losses[-1] < 0.5 * losses[0], losses
print("RESULT", losses[-1])
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_learns_with_everything_on(env: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(RUNS)
    (result,) = rewrite([path], Options(3), lambda _: named({"tf115": "tf1.15", "tf215": "tf2.15"}[env]))
    assert {"lamb", "mixed-precision", "xla", "prefetch"} <= {a.codemod for a in result.applied}, result.refused
    path.write_bytes(result.after)
    done = run_script(tf_env(env), path, timeout=300)
    assert done.returncode == 0 and "RESULT" in done.stdout, done.stderr[-3000:]
