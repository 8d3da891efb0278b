"""Whole jobs: a rank that is killed, other optimizations in the same rewrite, two hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.distribution.ranks import TELL, converted, run, told, trained
from tests.envs import REMOVED, SET, tf_env

pytestmark = pytest.mark.tf

DATA = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(3)
x = np.random.RandomState(0).rand(2048, 8).astype("float32")
y = (x.sum(1) > 4).astype("int32")
"""
#: A case that shows in another form what one beside it shows.
THOROUGH = pytest.mark.thorough
#: What every rank ends with: the conversion leaves it on all of them.
FINAL = "\ntold = {'weights': [w.tolist() for w in final]}\n"
WEIGHTS = "\ntold = {'weights': [w.numpy().tolist() for w in model.trainable_variables]}\n"

# -- a rank that is killed ---------------------------------------------------------------------------------------

TAPE = (
    DATA
    + """
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32, drop_remainder=True)
model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
optimizer = tf.keras.optimizers.Adam(0.01)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = loss_fn(targets, model(inputs, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(EPOCHS):
    for inputs, targets in dataset:
        loss = train_step(inputs, targets)  # here
"""
)
STEP = (
    DATA
    + """

class Net(tf.keras.Sequential):
    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(inputs, training=True)[:, 0] - tf.cast(targets, tf.float32)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


class Watch(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.seen = epoch  # here


model = Net([tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1)])
model.compile(optimizer=tf.keras.optimizers.Adam(0.01))
model.fit(x, y, epochs=EPOCHS, callbacks=[Watch()])
"""
)
GRAPH = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
x = np.random.RandomState(0).rand(2048, 8).astype("float32")
y = (x.sum(1, keepdims=True) > 4).astype("float32")
"""
SESSION = (
    GRAPH
    + """
a = tf.placeholder(tf.float32, [None, 8])
b = tf.placeholder(tf.float32, [None, 1])
loss = tf.reduce_mean(tf.square(tf.layers.dense(a, 1) - b))
train = tf.train.AdamOptimizer(0.01).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(EPOCHS):
        for i in range(0, len(x), 32):
            sess.run(train, feed_dict={a: x[i:i + 32], b: y[i:i + 32]})  # here
"""
)
MONITORED = (
    GRAPH
    + """
a, b = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)).get_next()
loss = tf.reduce_mean(tf.square(tf.layers.dense(a, 1) - b))
step = tf.train.get_or_create_global_step()
train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(last_step=64 * EPOCHS)]) as sess:
    while not sess.should_stop():
        sess.run(train)  # here
"""
)
#: Rank 1 is killed, as the kernel does it, after some steps.
COUNT = "import os\n_steps = []\n"
KILL = "_steps.append(1) or len(_steps) == 9 and os.environ['HOROVOD_RANK'] == '1' and os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    "program", [TAPE, STEP, SESSION, MONITORED], ids=["tape", "train_step", "session", "monitored"]
)
def test_a_rank_that_is_killed_ends_the_job(program: str, tmp_path: Path) -> None:
    text = converted(program.replace("EPOCHS", "100_000"))
    assert text.count("  # here") == 1
    line = next(line for line in text.split("\n") if line.endswith("  # here"))
    indent = line[: len(line) - len(line.lstrip())]
    text = COUNT + text.replace(line, f"{line}\n{indent}{KILL}")
    began = time.monotonic()
    done = run(text + "\ntold = {}\n", tmp_path, ranks=2, timeout=180)
    assert done.returncode != 0 and time.monotonic() - began < 150
    assert "Process name: 1\nExit code: 137" in done.stderr, done.stderr[-3000:]
    assert not list(tmp_path.glob("told_*"))


# -- other optimizations in the same rewrite -----------------------------------------------------------------------


FIT = (
    DATA
    + """

def prepare(inputs, target):
    return tf.cast(inputs, tf.float32) * 2.0, target


dataset = tf.data.Dataset.from_tensor_slices((x, y)).map(prepare).shuffle(2048).batch(BATCH, drop_remainder=True)
model = tf.keras.Sequential([
    tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)),
    tf.keras.layers.Dense(2, activation="softmax"),
])
model.compile(tf.keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
model.fit(dataset, epochs=3)
"""
)
#: What is slow by hand, and what Horovod does not go with, is there already.
HAND = FIT.replace('"sparse_categorical_crossentropy")', '"sparse_categorical_crossentropy", jit_compile=True)')
EAGER = TAPE.replace("@tf.function\n", "").replace("EPOCHS", "1")
FED = SESSION.replace("EPOCHS", "2") + "    final = sess.run(tf.trainable_variables())\n"
QUEUED = MONITORED.replace("EPOCHS", "2").replace(
    "sess.run(train)  # here", "_, final = sess.run([train, tf.trainable_variables()])"
)


def together(program: str, level: int, amp: str | None) -> tuple[str, set[str], dict[str, str]]:
    """What a rewrite with everything makes of a program: the text, what was applied, what was not and why."""
    path = Path("/nowhere/train.py")
    wanted = Options(level, amp_dtype=amp, distribute="horovod")

    def once(text: str) -> tuple[str, set[str], dict[str, str]]:
        (done,) = rewrite([path], wanted, lambda _: named("tf2.15"), {path: text.encode()})
        assert done.error is None, done.error
        return done.after.decode(), {a.codemod for a in done.applied}, {r.codemod: r.reason for r in done.refused}

    text, applied, refused = once(textwrap.dedent(program).lstrip("\n"))
    again, more, _ = once(text)
    assert (again, more) == (text, set())
    return text, applied, refused


@pytest.mark.parametrize(
    ("program", "level", "amp", "applied", "refused"),
    [
        (
            FIT.replace("BATCH", "32"), 2, "float16", {"mixed-precision", "prefetch", "parallel-map"},
            {"xla": "Horovod, which does not mix with a compiled step", "steps-per-execution": "under Horovod"},
        ),
        pytest.param(FIT.replace("BATCH", "32"), 2, "bfloat16", {"mixed-precision"}, {"xla": "Horovod"}, marks=THOROUGH),
        (FIT.replace("BATCH", "512"), 3, None, {"mixed-precision"}, {"xla": "Horovod", "lamb": "distributed"}),
        (HAND.replace("BATCH", "32"), 2, "float16", {"mixed-precision"}, {}),
        (TAPE.replace("EPOCHS", "1"), 2, "bfloat16", {"mixed-precision", "prefetch"}, {"xla": "Horovod"}),
        (TAPE.replace("EPOCHS", "1"), 2, "float16", {"prefetch"}, {"xla": "Horovod", "mixed-precision": "Horovod"}),
        pytest.param(EAGER, 2, "bfloat16", {"mixed-precision", "prefetch"}, {"xla": "Horovod", "tf-function": "Horovod"}, marks=THOROUGH),
        (STEP.replace("EPOCHS", "1"), 2, "bfloat16", {"mixed-precision"}, {"xla": "Horovod"}),
        (FED, 2, None, {"feed-dict", "xla"}, {}),
        pytest.param(QUEUED, 2, None, {"prefetch", "xla"}, {}, marks=THOROUGH),
        pytest.param(STEP.replace("EPOCHS", "1"), 2, "float16", set(), {"xla": "Horovod", "mixed-precision": "Horovod"}, marks=THOROUGH),
    ],
    ids=["fit-fp16", "fit-bf16", "fit-lamb", "fit-jit", "tape-bf16", "tape-fp16", "eager-bf16", "train_step-bf16",
         "session", "monitored", "train_step-fp16"],
)  # fmt: skip
def test_with_other_optimizations(
    program: str, level: int, amp: str | None, applied: set[str], refused: dict[str, str], tmp_path: Path
) -> None:
    """One rewrite does all of it or says why not; the ranks stay together."""
    text, done, reasons = together(program, level, amp)
    assert {"horovod", *applied} <= done, (done, reasons)
    for name, why in refused.items():
        assert name not in done and why in reasons.get(name, ""), (name, reasons)
    assert "jit_compile=True" not in text
    both = trained(text + (FINAL if "final = " in text else WEIGHTS), tmp_path, ranks=2)
    assert both[0] == both[1]
    assert all(weight == weight for weight in _flat(both[0]["weights"]))  # none is NaN


def _flat(values: object) -> list[float]:
    return [v for one in values for v in _flat(one)] if isinstance(values, list) else [values]  # type: ignore[list-item]


# -- several hosts -------------------------------------------------------------------------------------------------

#: In namespaces of its own, a second host is made: both have an address, a name and a shell that `ssh` reaches.
HOSTS = r"""
set -e
mount --bind hosts /etc/hosts
hostname host1
ip link set lo up
unshare --net --uts sleep 1000 &
other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link add eth0 type veth peer name eth0 netns $other
ip address add 10.77.0.1/24 dev eth0
ip link set eth0 up
nsenter --target $other --net --uts sh -c '
    hostname host2
    ip link set lo up
    ip address add 10.77.0.2/24 dev eth0
    ip link set eth0 up
'
export OTHER_HOST=$other PATH="$PWD/bin:$PATH"
"$@"
"""
#: Takes the options of `ssh`, before and behind the host, and runs the rest on host2 in an environment of its own.
SSH = r"""#!/bin/sh
host=
while [ $# -gt 0 ]; do
    case "$1" in
        -o|-p|-i) shift 2 ;;
        *) [ -z "$host" ] || break; host=$1; shift ;;
    esac
done
[ "$host" = host2 ] || { echo "unknown host $host" >&2; exit 255; }
exec nsenter --target "$OTHER_HOST" --net --uts env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"
"""
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")  # fmt: skip


def why_no_hosts(folder: Path) -> str:
    """What stands against namespaces here, or nothing."""
    (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 host1\n10.77.0.2 host2\n")
    for tool in ("unshare", "nsenter", "ip", "mount", "hostname"):
        if shutil.which(tool) is None:
            return f"there is no `{tool}`"
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", HOSTS, "sh", "true"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return f"namespaces are not allowed: {done.stderr.strip()}" if done.returncode else ""


def test_two_hosts(tmp_path: Path) -> None:
    """The command of the report, on two hosts that have nothing in common but files and a network."""
    if reason := why_no_hosts(tmp_path):
        pytest.skip(reason)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    text = converted(TAPE.replace("EPOCHS", "1")) + WEIGHTS + "import socket\ntold['host'] = socket.gethostname()\n"
    (tmp_path / "train.py").write_text(text + TELL)
    python = tf_env("tf215")
    command = ["horovodrun", "-np", "2", "-H", "host1:1,host2:1", "--gloo", "python", "train.py"]
    variables = {name: value for name, value in os.environ.items() if name not in REMOVED}
    path = f"{python.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", HOSTS, "sh", *command],
        cwd=tmp_path,
        env={**variables, **SET, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    both = told(tmp_path, 2)
    assert [rank.pop("host") for rank in both] == ["host1", "host2"]
    assert both[0] == both[1]
