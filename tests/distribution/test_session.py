"""Programs that train in TensorFlow 1 sessions, converted and run on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution.ranks import converted, trained

pytestmark = pytest.mark.tf

FED = """
import os
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
RANK = os.environ.get("HOROVOD_RANK", "0")
BATCH = int(os.environ["BATCH"])
x_train = np.random.RandomState(0).rand(96, 4).astype("float32")
y_train = x_train[:, :1] * 3 + 1
x_test, y_test = x_train[:16] + 1, y_train[:16] + 3
x = tf.placeholder(tf.float32, [None, 4])
y = tf.placeholder(tf.float32, [None, 1])
w = tf.get_variable("w", [4, 1], initializer=tf.random_normal_initializer(seed=1 + int(os.environ.get("OFF", "0")) * int(RANK)))
b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
tf.summary.scalar("loss", loss)
merged = tf.summary.merge_all()
saver = tf.train.Saver()
seen, losses = [], []
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    writer = tf.summary.FileWriter("logs_%s" % RANK, sess.graph)
    for epoch in range(3):
        total = 0.0
        for i in range(0, len(x_train), BATCH):
            batch_x, batch_y = x_train[i:i + BATCH], y_train[i:i + BATCH]
            _, value, given = sess.run([train, loss, x], feed_dict={x: batch_x, y: batch_y})
            seen.append(given[:, 0].tolist())
            losses.append(value)
        writer.add_summary(sess.run(merged, {x: x_test, y: y_test}), epoch)
        print("epoch", epoch, sess.run(loss, {x: x_test, y: y_test}))
    saver.save(sess, "model_%s/model" % RANK)
    final = [v.tolist() for v in sess.run([w, b])]
"""
TOLD = """
told = {"weights": final, "losses": [float(v) for v in losses], "seen": seen}
"""


def _close(one: list[list[float]], other: list[list[float]]) -> None:
    import numpy as np

    for a, b in zip(one, other, strict=True):
        assert np.allclose(a, b, atol=2e-5), (a, b)


def test_a_fed_loop(tmp_path: Path) -> None:
    """Two ranks with half of the batch each: loss, weights, samples and files."""
    (one,) = trained(FED + TOLD, tmp_path / "one", BATCH="16")
    both = trained(converted(FED, lr_scaling=False) + TOLD, tmp_path / "two", ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    _close(one["weights"], both[0]["weights"])
    means = [(a + b) / 2 for a, b in zip(both[0]["losses"], both[1]["losses"], strict=True)]
    assert means == pytest.approx(one["losses"], rel=1e-4)
    for step, batch in enumerate(one["seen"]):
        assert sorted(both[0]["seen"][step] + both[1]["seen"][step]) == sorted(batch)
    written = sorted(p.name for p in (tmp_path / "two").iterdir() if not p.name.startswith(("told", "launch", "train")))
    assert written == ["logs_0", "model_0"]


def test_the_first_weights_are_those_of_rank_0(tmp_path: Path) -> None:
    both = trained(converted(FED) + TOLD, tmp_path, ranks=2, BATCH="8", OFF="1")
    assert both[0]["weights"] == both[1]["weights"]


CLIPPED = """
import os
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
X = np.random.RandomState(0).randn(128, 3)
x = tf.placeholder(tf.float32, [None, 3])
w = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - x[:, :1]))
tvars = tf.trainable_variables()
grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), 1.0)
optimizer = tf.train.AdamOptimizer(0.05)
train = optimizer.apply_gradients(zip(grads, tvars))
B = int(os.environ["BATCH"])
sess = tf.Session()
sess.run(tf.global_variables_initializer())
n_batches = len(X) // B
for i in range(n_batches):
    sess.run(train, {x: X[i * B:(i + 1) * B]})
final = [sess.run(w).tolist()]
"""


def test_clipped_gradients(tmp_path: Path) -> None:
    (one,) = trained(CLIPPED + '\ntold = {"weights": final}\n', tmp_path / "one", BATCH="16")
    text = converted(CLIPPED, lr_scaling=False) + '\ntold = {"weights": final}\n'
    both = trained(text, tmp_path / "two", ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    _close(one["weights"], both[0]["weights"])


MONITORED = """
import os
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
RANK = os.environ.get("HOROVOD_RANK", "0")
B = int(os.environ["BATCH"])
X = np.arange(64, dtype="float32").reshape(64, 1) / 64
ds = tf.data.Dataset.from_tensor_slices(X).repeat().batch(B)
x = tf.data.make_one_shot_iterator(ds).get_next()
w = tf.get_variable("w", [1, 1], initializer=tf.random_normal_initializer(seed=1))
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 3 * x))
step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.1, step, 10, 0.5)
train = tf.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
seen = []
hooks = [tf.train.StopAtStepHook(last_step=int(os.environ["STEPS"]))]
with tf.train.MonitoredTrainingSession(checkpoint_dir="ckpt_%s" % RANK, hooks=hooks) as sess:
    while not sess.should_stop():
        _, given, final, lr = sess.run([train, x, w, rate])
        seen += given[:, 0].tolist()
"""


def test_a_monitored_session(tmp_path: Path) -> None:
    tell = '\ntold = {"weights": final.tolist(), "seen": seen, "rate": float(lr)}\n'
    (one,) = trained(MONITORED.replace(", 10, 0.5", ", 4, 0.5") + tell, tmp_path / "one", BATCH="16", STEPS="8")
    text = converted(MONITORED.replace(", 10, 0.5", ", 8, 0.5"), lr_scaling=False) + tell
    both = trained(text, tmp_path / "two", ranks=2, BATCH="8", STEPS="16")
    assert both[0]["weights"] == both[1]["weights"]
    _close(one["weights"], both[0]["weights"])
    assert both[0]["rate"] == pytest.approx(one["rate"])
    assert sorted(both[0]["seen"] + both[1]["seen"]) == sorted(one["seen"])
    assert (tmp_path / "two" / "ckpt_0").is_dir() and not (tmp_path / "two" / "ckpt_1").exists()
