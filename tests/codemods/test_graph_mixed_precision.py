"""`mixed-precision` for TensorFlow 1 graphs: the wrapped optimizer, and where it stays as it is."""

from pathlib import Path

import pytest

from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("mixed-precision", target="tf1.15")

HEAD = """\
import tensorflow as tf

x = tf.placeholder(tf.float32, [None, 20])
y = tf.placeholder(tf.int32, [None])
logits = tf.layers.dense(tf.layers.dense(x, 64, tf.nn.relu), 10)
loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
"""
TAIL = """\
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train_op)
"""
REWRITE = "tf.train.experimental.enable_mixed_precision_graph_rewrite"


def script(middle: str) -> str:
    return HEAD + middle + TAIL


def fixes(before: str, after: str, **options: object) -> None:
    check.fixes(script(before), script(after.replace("REWRITE", REWRITE)), **options)


def refuses(middle: str, reason: str, **options: object) -> None:
    check.refuses(script(middle), reason, **options)


PLAIN = "opt = tf.train.AdamOptimizer(1e-3)\ntrain_op = opt.minimize(loss)\n"


# -- where it is wrapped ---------------------------------------------------------------------------------------


def test_optimizer_in_a_variable() -> None:
    fixes(PLAIN, "opt = tf.train.AdamOptimizer(1e-3)\nopt = REWRITE(opt)\ntrain_op = opt.minimize(loss)\n")


def test_chain_gets_lines_of_its_own() -> None:
    fixes(
        "train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)\n",
        "optimizer = tf.train.AdamOptimizer(1e-3)\noptimizer = REWRITE(optimizer)\ntrain_op = optimizer.minimize(loss)\n",
    )


def test_a_name_that_is_taken_is_not_used() -> None:
    fixes(
        "optimizer = tf.train.AdamOptimizer(1e-3).minimize(loss)\ntrain_op = optimizer\n",
        "opt = tf.train.AdamOptimizer(1e-3)\nopt = REWRITE(opt)\noptimizer = opt.minimize(loss)\ntrain_op = optimizer\n",
    )


def test_two_optimizers_are_both_wrapped() -> None:
    fixes(
        "d_opt = tf.train.AdamOptimizer(1e-3)\ng_opt = tf.train.AdamOptimizer(2e-3)\n"
        "train_op = [d_opt.minimize(loss), g_opt.minimize(loss)]\n",
        "d_opt = tf.train.AdamOptimizer(1e-3)\nd_opt = REWRITE(d_opt)\ng_opt = tf.train.AdamOptimizer(2e-3)\n"
        "g_opt = REWRITE(g_opt)\ntrain_op = [d_opt.minimize(loss), g_opt.minimize(loss)]\n",
    )


def test_clipped_gradients() -> None:
    fixes(
        "opt = tf.train.RMSPropOptimizer(1e-3)\ngrads = opt.compute_gradients(loss)\n"
        "grads = [(tf.clip_by_norm(g, 1.0), v) for g, v in grads]\ntrain_op = opt.apply_gradients(grads)\n",
        "opt = tf.train.RMSPropOptimizer(1e-3)\nopt = REWRITE(opt)\ngrads = opt.compute_gradients(loss)\n"
        "grads = [(tf.clip_by_norm(g, 1.0), v) for g, v in grads]\ntrain_op = opt.apply_gradients(grads)\n",
    )


CHAIN = """\
def make(name):
    if name == "sgd":
        opt = tf.train.GradientDescentOptimizer(0.1)
    elif name == "adam":
        opt = tf.train.AdamOptimizer()
    else:
        raise ValueError(name)
%s    return opt

train_op = make("adam").minimize(loss)
"""


def test_branches_are_wrapped_once_after_them() -> None:
    fixes(CHAIN % "", CHAIN % f"    opt = {REWRITE}(opt)\n")


def test_branches_that_train_themselves_are_wrapped_one_by_one() -> None:
    branches = (
        "if ADAM:\n    opt = tf.train.AdamOptimizer()\n{}    train_op = opt.minimize(loss)\n"
        "else:\n    opt = tf.train.GradientDescentOptimizer(0.1)\n{}    train_op = opt.minimize(loss)\n"
    )
    fixes(branches.format("", ""), branches.format(*["    opt = REWRITE(opt)\n"] * 2))


def test_conditional_expression() -> None:
    start = "opt = tf.train.AdamOptimizer() if ADAM else tf.train.GradientDescentOptimizer(0.1)\n"
    fixes(start + "train_op = opt.minimize(loss)\n", start + "opt = REWRITE(opt)\ntrain_op = opt.minimize(loss)\n")


def test_class_from_a_dictionary() -> None:
    start = 'CLASSES = {"adam": tf.train.AdamOptimizer, "sgd": tf.train.GradientDescentOptimizer}\nopt = CLASSES[NAME](0.1)\n'
    fixes(start + "train_op = opt.minimize(loss)\n", start + "opt = REWRITE(opt)\ntrain_op = opt.minimize(loss)\n")


def test_returned_optimizer() -> None:
    fixes(
        "def make():\n    return tf.train.AdamOptimizer(0.1)\ntrain_op = make().minimize(loss)\n",
        "def make():\n    return REWRITE(tf.train.AdamOptimizer(0.1))\ntrain_op = make().minimize(loss)\n",
    )


def test_attribute_of_a_model() -> None:
    model = (
        "class Model:\n    def __init__(self):\n        self.opt = tf.train.AdamOptimizer()\n{}"
        "        self.train = self.opt.minimize(loss)\ntrain_op = Model().train\n"
    )
    fixes(model.format(""), model.format("        self.opt = REWRITE(self.opt)\n"))


def test_create_train_op() -> None:
    fixes(
        "opt = tf.train.AdamOptimizer(1e-3)\ntrain_op = tf.contrib.training.create_train_op(loss, opt)\n",
        "opt = tf.train.AdamOptimizer(1e-3)\nopt = REWRITE(opt)\n"
        "train_op = tf.contrib.training.create_train_op(loss, opt)\n",
    )


def test_compat_v1_spellings() -> None:
    text = script(PLAIN).replace(
        "import tensorflow as tf", "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()"
    )
    wrapped = text.replace("train_op = opt", f"opt = {REWRITE}(opt)\ntrain_op = opt")
    for target in ("tf1.15", "tf2.15"):
        check.fixes(text, wrapped, target=target)
    text = script(PLAIN).replace("tf.", "tf.compat.v1.").replace("tf.compat.v1.nn", "tf.nn")
    text = text.replace("tensorflow as tf\n", "tensorflow as tf\ntf.compat.v1.disable_eager_execution()\n")
    rewrite = REWRITE.replace("tf.", "tf.compat.v1.")
    check.fixes(text, text.replace("train_op = opt", f"opt = {rewrite}(opt)\ntrain_op = opt"), target="tf2.15")


def test_horovod_is_wrapped_outside() -> None:
    start = (
        "import horovod.tensorflow as hvd\nopt = tf.train.AdamOptimizer(1e-3)\nopt = hvd.DistributedOptimizer(opt)\n"
    )
    fixes(start + "train_op = opt.minimize(loss)\n", start + "opt = REWRITE(opt)\ntrain_op = opt.minimize(loss)\n")


def test_monitored_session_needs_no_initializer() -> None:
    text = HEAD + PLAIN + "with tf.train.MonitoredTrainingSession() as sess:\n    sess.run(train_op)\n"
    check.fixes(text, text.replace("train_op = opt", f"opt = {REWRITE}(opt)\ntrain_op = opt"))


ESTIMATOR = """\
import tensorflow as tf

def model_fn(features, labels, mode):
    logits = tf.layers.dense(features, 10)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    opt = tf.train.AdamOptimizer()
%s    train_op = opt.minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

tf.estimator.Estimator(model_fn).train(input_fn)
"""


def test_estimator_wraps_inside_model_fn() -> None:
    check.fixes(ESTIMATOR % "", ESTIMATOR % f"    opt = {REWRITE}(opt)\n")


def test_canned_estimator_is_given_a_function() -> None:
    before = (
        "import tensorflow as tf\nest = tf.estimator.DNNClassifier([4], columns, "
        "optimizer=tf.train.GradientDescentOptimizer(0.05))\nest.train(input_fn)\n"
    )
    after = before.replace("optimizer=tf", f"optimizer=lambda: {REWRITE}(tf").replace("(0.05))", "(0.05)))")
    check.fixes(before, after)


# -- where it is not -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (PLAIN + "print(opt._lr)\n", "`opt._lr` is used"),
        (PLAIN + "slots = opt.get_slot_names()\n", "`opt.get_slot_names` is used"),
        (PLAIN + "variables = opt.variables()\n", "`opt.variables` is used"),
        (PLAIN + "saver = tf.train.Saver()\nsaver.restore(tf.Session(), PATH)\n", "restores a checkpoint"),
        (PLAIN + "path = tf.train.latest_checkpoint(FOLDER)\n", "restores a checkpoint"),
        (PLAIN + "penalty = tf.gradients(loss, x)\n", "takes gradients of a loss that is not scaled"),
        (PLAIN + "z = tf.log(tf.nn.softmax(logits))\n", "takes the logarithm"),
        (PLAIN + "z = tf.reduce_mean(tf.square(logits - 1.0))\n", "compares numbers of any size"),
        (PLAIN + "z = tf.reduce_mean((logits - 1.0) ** 2)\n", "compares numbers of any size"),
        (PLAIN + "z = tf.losses.mean_squared_error(y, logits)\n", "compares numbers of any size"),
        (PLAIN + "z = logits / (tf.reduce_sum(logits) + 1e-8)\n", "is zero in float16"),
        (PLAIN + "z = tf.maximum(logits, 1e-12)\n", "is zero in float16"),
        (PLAIN + "z = logits + (1.0 - x) * -1e9\n", "is more than float16 can hold"),
        (PLAIN + "z = tf.cast(logits, tf.float64)\n", "chooses its precision"),
        (PLAIN + "import numpy as np\nz = tf.Variable(np.random.randn(3))\n", "may be float64"),
        (PLAIN + "z = tf.check_numerics(logits, '')\n", "stops at the infinities"),
        (PLAIN + "cluster = tf.train.ClusterSpec(HOSTS)\n", "distributes training"),
        (PLAIN + "config = tf.ConfigProto(device_count={'GPU': 0})\n", "asks for no GPU"),
        (PLAIN + "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n", "hides the GPUs"),
        ("opt = tf.train.AdamOptimizer()\nopt = tf.train.SyncReplicasOptimizer(opt, 2)\ntrain_op = opt.minimize(loss)\n",
         "`tf.train.SyncReplicasOptimizer` is given it"),
        ("opt = tf.train.AdamOptimizer()\nif MANY:\n    opt = hvd.DistributedOptimizer(opt)\ntrain_op = opt.minimize(loss)\n"
         .replace("opt = tf.train", "import horovod.tensorflow as hvd\nopt = tf.train", 1), "in some cases only"),
        ("opt = tf.train.AdamOptimizer()\ngrads = opt.compute_gradients(loss)\n"
         "train_op = tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients(grads)\n", "applied by something else"),
        (PLAIN + "server = tf.train.Server(CLUSTER)\n", "distributes training"),
        ("opt = tf.train.AdamOptimizer()\ntrain_op = unseen(opt, loss)\n", "`unseen` is given it"),
        ("opt = tf.train.GradientDescentOptimizer(0.1)\ninit = tf.global_variables_initializer()\n"
         "train_op = opt.minimize(loss)\nwith tf.Session() as s:\n    s.run(init)\n", "compares"),
    ],
)  # fmt: skip
def test_refused(middle: str, reason: str) -> None:
    if "init = " in middle:
        text = HEAD + middle + "    s.run(train_op)\n"
        check.refuses(text, "the variables are initialized before it is made")
    else:
        refuses(middle, reason)


def test_session_first() -> None:
    check.refuses(
        "import tensorflow as tf\nsess = tf.Session()\n" + HEAD.split("\n", 1)[1] + PLAIN
        + "sess.run(tf.global_variables_initializer())\nsess.run(train_op)\n",
        "the session is started before it is made",
    )  # fmt: skip
    nested = HEAD.replace("import tensorflow as tf\n", "").strip().replace("\n", "\n    ")
    check.refuses(
        f"import tensorflow as tf\ndef build():\n    {nested}\n    return tf.train.AdamOptimizer().minimize(loss)\n"
        "def main():\n    with tf.Session() as sess:\n        train_op = build()\n"
        "        sess.run(tf.global_variables_initializer())\n        sess.run(train_op)\nmain()\n",
        "the session is started before it is made",
    )


def test_numbers_that_are_settings_do_not_matter() -> None:
    text = script(
        "rate = tf.train.exponential_decay(1e-3, step, 100000, 0.96)\nopt = tf.train.AdamOptimizer(rate, epsilon=1e-8)\n"
        "train_op = opt.minimize(loss)\n"
    )
    check.fixes(text, text.replace("train_op = opt", f"opt = {REWRITE}(opt)\ntrain_op = opt"))


def test_versions_and_machines() -> None:
    refuses(PLAIN, "came with TensorFlow 1.14", target="tf1.13")
    refuses(PLAIN, "float16 only", amp_dtype="bfloat16")


def test_another_graph() -> None:
    check.refuses(
        ESTIMATOR.replace("    opt = tf.train.AdamOptimizer()\n%s", "").replace(
            "def model_fn", "opt = tf.train.AdamOptimizer()\n\ndef model_fn"
        ),
        "outside of the function that builds the Estimator's graph",
    )
    block = HEAD.split("\n", 2)[2].strip().replace("\n", "\n    ")
    check.refuses(
        f"import tensorflow as tf\nopt = tf.train.AdamOptimizer()\nwith tf.Graph().as_default():\n    {block}\n"
        "    train_op = opt.minimize(loss)\n    with tf.Session() as sess:\n"
        "        sess.run(tf.global_variables_initializer())\n",
        "outside of the graph that it trains",
    )


def test_other_canned_estimators() -> None:
    text = "import tensorflow as tf\nest = tf.estimator.{}([4], columns, optimizer={})\nest.train(input_fn)\n"
    check.refuses(text.format("DNNRegressor", "tf.train.AdamOptimizer(0.1)"), "`tf.estimator.DNNRegressor` is given it")
    check.refuses(text.format("DNNClassifier", "tf.train.AdamOptimizer(RATE)"), "is given it")


def test_eager_and_unseen_sessions() -> None:
    check.refuses("import tensorflow as tf\ntf.enable_eager_execution()\n" + PLAIN, "operations run at once")
    check.refuses(HEAD + PLAIN, "no session that trains with it is seen")


def test_all_variables() -> None:
    refuses(
        PLAIN + "ema = tf.train.ExponentialMovingAverage(0.9).apply(tf.global_variables())\n", "would hold the scale"
    )
    refuses(PLAIN + "copies = [v.assign(w) for v, w in zip(tf.global_variables(), saved)]\n", "would hold the scale")
    text = script(PLAIN + "saver = tf.train.Saver(tf.global_variables())\n")
    check.fixes(text, text.replace("train_op = opt", f"opt = {REWRITE}(opt)\ntrain_op = opt"))


def test_decided() -> None:
    check.ignores(script(PLAIN.replace("train_op", f"opt = {REWRITE}(opt)\ntrain_op", 1)))
    check.ignores(script("config.graph_options.rewrite_options.auto_mixed_precision = 1\n" + PLAIN))


# -- with TensorFlow -------------------------------------------------------------------------------------------

RUNS = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)
X = np.random.RandomState(0).rand(64, 20).astype("float32")
Y = (X[:, 0] > 0.5).astype("int32")


def network():
    x, y = tf.placeholder(tf.float32, [None, 20]), tf.placeholder(tf.int32, [None])
    init = tf.glorot_uniform_initializer(seed=1)
    w, v = tf.get_variable("w", [20, 8], initializer=init), tf.get_variable("v", [8, 2], initializer=init)
    logits = tf.matmul(tf.nn.relu(tf.matmul(x, w)), v)
    return x, y, tf.losses.sparse_softmax_cross_entropy(y, logits)


def pick(name):
    if name == "adam":
        opt = tf.train.AdamOptimizer(0.01)
    else:
        opt = tf.train.MomentumOptimizer(0.01, 0.9)
    return opt


def clipped(opt, loss):
    return opt.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in opt.compute_gradients(loss)])


def chain(loss):
    return tf.train.AdamOptimizer(0.01).minimize(loss)


def two(loss):
    first, second = tf.train.AdamOptimizer(0.01), tf.train.GradientDescentOptimizer(0.1)
    return [first.minimize(loss), second.minimize(loss)]


losses = []
for train in (lambda l: pick("adam").minimize(l), lambda l: clipped(pick("sgd"), l), chain, two):
    tf.reset_default_graph()
    x, y, loss = network()
    steps = train(loss)
    steps = steps if isinstance(steps, list) else [steps]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses += [float(sess.run([loss, step], {x: X, y: Y})[0]) for _ in range(4) for step in steps]
        count = len(tf.global_variables())
print("RESULT", losses)
print("VARIABLES", count)
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_trains_the_same(env: str, tmp_path: Path) -> None:
    """A CPU leaves the graph as it is: what is seen is that scaling and unscaling change nothing."""
    result = check.run(RUNS, target={"tf115": "tf1.15", "tf215": "tf2.15"}[env])
    assert result.after.count(b"enable_mixed_precision_graph_rewrite") == 4, result.after.decode()
    found = []
    for name, data in (("before", result.before), ("after", result.after)):
        path = tmp_path / f"{name}.py"
        path.write_bytes(data)
        done = run_script(tf_env(env), path, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append({line.split()[0]: line for line in done.stdout.splitlines() if line.startswith(("RESULT", "VAR"))})
    assert found[0]["RESULT"] == found[1]["RESULT"]
    assert found[0]["VARIABLES"] != found[1]["VARIABLES"]
