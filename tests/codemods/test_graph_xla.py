"""`xla` for TensorFlow 1 sessions: the configuration that is there or a new one, and all else as it was."""

from pathlib import Path

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import Target
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("xla", target="tf1.15")

HEAD = """\
import tensorflow as tf

x = tf.placeholder(tf.float32, [None, 20])
loss = tf.reduce_mean(tf.layers.dense(x, 10))
train_op = tf.train.AdamOptimizer().minimize(loss)
"""
LEVEL = "graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1\n"
NEW = f"config = tf.ConfigProto()\nconfig.{LEVEL}"
INLINE = (
    "graph_options=tf.GraphOptions(optimizer_options=tf.OptimizerOptions(global_jit_level=tf.OptimizerOptions.ON_1))"
)


def fixes(before: str, after: str, **options: object) -> None:
    check.fixes(HEAD + before, HEAD + after, **options)


def refuses(text: str, reason: str, **options: object) -> None:
    check.refuses(HEAD + text, reason, **options)


# -- a new configuration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "after"),
    [
        ("sess = tf.Session()\n", "sess = tf.Session(config=config)\n"),
        ("sess = tf.InteractiveSession()\n", "sess = tf.InteractiveSession(config=config)\n"),
        ("with tf.Session() as sess:\n    pass\n", "with tf.Session(config=config) as sess:\n    pass\n"),
        ("sess = tf.Session(graph=g)\n", "sess = tf.Session(graph=g, config=config)\n"),
        ("sess = tf.Session('', g)\n", "sess = tf.Session('', g, config=config)\n"),
        ("sess = tf.Session(config=None)\n", "sess = tf.Session(config=config)\n"),
        (
            "with tf.train.MonitoredTrainingSession(hooks=h) as sess:\n    pass\n",
            "with tf.train.MonitoredTrainingSession(hooks=h, config=config) as sess:\n    pass\n",
        ),
        (
            "tf.contrib.slim.learning.train(train_op, LOGS)\n",
            "tf.contrib.slim.learning.train(train_op, LOGS, session_config=config)\n",
        ),
        (
            "from keras import backend as K\nK.set_session(tf.Session())\n",
            "K.set_session(tf.Session(config=config))\n",
        ),
    ],
)  # fmt: skip
def test_new_configuration(session: str, after: str) -> None:
    imports = "from keras import backend as K\n" if "import" in session else ""
    fixes(session, imports + NEW + after)


def test_managed_session() -> None:
    start = "sv = tf.train.Supervisor(logdir=LOGS)\n"
    fixes(
        start + "with sv.managed_session() as sess:\n    sess.run(train_op)\n",
        start + NEW + "with sv.managed_session(config=config) as sess:\n    sess.run(train_op)\n",
    )


def test_one_configuration_for_several_sessions() -> None:
    fixes(
        "a = tf.Session()\ndef f():\n    return tf.Session()\nif B:\n    b = tf.Session()\n",
        f"{NEW}a = tf.Session(config=config)\ndef f():\n    config = tf.ConfigProto()\n    config.{LEVEL}"
        "    return tf.Session(config=config)\nif B:\n    b = tf.Session(config=config)\n",
    )


def test_branches_have_their_own() -> None:
    inner = "    config = tf.ConfigProto()\n    config." + LEVEL
    fixes(
        "if A:\n    s = tf.Session()\nelse:\n    s = tf.InteractiveSession()\n",
        f"if A:\n{inner}    s = tf.Session(config=config)\nelse:\n{inner}    s = tf.InteractiveSession(config=config)\n",
    )


def test_name_that_is_taken() -> None:
    fixes(
        "config = {'a': 1}\nsess = tf.Session()\n",
        "config = {'a': 1}\nsession_config = tf.ConfigProto()\nsession_config." + LEVEL
        + "sess = tf.Session(config=session_config)\n",
    )  # fmt: skip


def test_where_no_line_can_stand_before() -> None:
    fixes("make = lambda: tf.Session()\n", f"make = lambda: tf.Session(config=tf.ConfigProto({INLINE}))\n")
    fixes(
        "class A:\n    sess = tf.Session()\n",
        f"class A:\n    sess = tf.Session(config=tf.ConfigProto({INLINE}))\n",
    )


# -- a configuration that is there -----------------------------------------------------------------------------------


def test_named_configuration_keeps_its_settings() -> None:
    start = (
        "config = tf.ConfigProto(allow_soft_placement=True, inter_op_parallelism_threads=2)\n"
        "config.gpu_options.allow_growth = True\nconfig.gpu_options.per_process_gpu_memory_fraction = 0.4\n"
    )
    end = "with tf.Session(config=config) as sess:\n    sess.run(train_op)\n"
    fixes(start + end, start + "config." + LEVEL + end)


def test_inline_configuration_gets_a_name() -> None:
    fixes(
        "sess = tf.Session('', None, tf.ConfigProto(log_device_placement=True))\n",
        f"config = tf.ConfigProto(log_device_placement=True)\nconfig.{LEVEL}sess = tf.Session('', None, config)\n",
    )


def test_two_inline_configurations_are_kept_apart() -> None:
    sessions = "a = tf.Session(config=tf.ConfigProto(log_device_placement=True))\nb = tf.Session()\n"
    fixes(
        sessions,
        f"config = tf.ConfigProto(log_device_placement=True)\nconfig.{LEVEL}a = tf.Session(config=config)\n"
        f"{NEW}b = tf.Session(config=config)\n",
    )
    both = "with tf.Session(config=tf.ConfigProto()) as a, tf.Session(config=tf.ConfigProto(isolate_session_state=True)) as b:\n    pass\n"
    fixes(
        both,
        both.replace("tf.ConfigProto()", f"tf.ConfigProto({INLINE})").replace("state=True", f"state=True, {INLINE}"),
    )


def test_configuration_over_several_lines() -> None:
    text = (
        "sess = tf.Session(config=tf.ConfigProto(\n    allow_soft_placement=True,\n    log_device_placement=False))\n"
    )
    fixes(text, text.replace("False))", f"False,\n    {INLINE}))"))


def test_configuration_of_a_helper() -> None:
    helper = (
        "def get_config():\n    config = tf.ConfigProto()\n    config.gpu_options.allow_growth = True\n%s    return config\n"
        "sess = tf.Session(config=get_config())\nother = tf.Session(config=get_config())\n"
    )
    fixes(helper % "", helper % ("    config." + LEVEL))
    direct = "def get_config():\n    return tf.ConfigProto(allow_soft_placement=True%s)\nsess = tf.Session(config=get_config())\n"
    fixes(direct % "", direct % f", {INLINE}")


def test_configuration_in_an_attribute_or_branches() -> None:
    text = (
        "class A:\n    def __init__(self):\n        self.config = tf.ConfigProto()\n%s"
        "        self.sess = tf.Session(config=self.config)\n"
    )
    fixes(text % "", text % ("        self.config." + LEVEL))
    text = "if A:\n    c = tf.ConfigProto()\n%selse:\n    c = tf.ConfigProto(log_device_placement=True)\n%ss = tf.Session(config=c)\n"
    fixes(text % ("", ""), text % (("    c." + LEVEL,) * 2))


def test_compat_v1() -> None:
    text = HEAD.replace("as tf", "as tf\ntf.compat.v1.disable_eager_execution()").replace(
        "tf.placeholder", "tf.compat.v1.placeholder"
    )
    text = text.replace("tf.train", "tf.compat.v1.train").replace("tf.layers", "tf.compat.v1.layers")
    after = NEW.replace("tf.", "tf.compat.v1.")
    check.fixes(
        text + "sess = tf.compat.v1.Session()\n",
        text + after + "sess = tf.compat.v1.Session(config=config)\n",
        target="tf2.15",
    )


ESTIMATOR = "import tensorflow as tf\n\n%sest = tf.estimator.Estimator(model_fn%s)\nest.train(input_fn)\n"
SOFT = f"config = tf.ConfigProto(allow_soft_placement=True)\nconfig.{LEVEL}"


def test_estimator_without_configuration_keeps_soft_placement() -> None:
    check.fixes(ESTIMATOR % ("", ""), ESTIMATOR % (SOFT, ", config=tf.estimator.RunConfig(session_config=config)"))


def test_run_config() -> None:
    run = "run = tf.estimator.RunConfig(save_summary_steps=9%s)\n"
    check.fixes(
        ESTIMATOR % (run % "", ", config=run"),
        ESTIMATOR % (SOFT + run % ", session_config=config", ", config=run"),
    )
    made = "sess_config = tf.ConfigProto(allow_soft_placement=True)\n%s"
    run %= ", session_config=sess_config"
    check.fixes(
        ESTIMATOR % (made % "" + run, ", config=run"),
        ESTIMATOR % (made % ("sess_config." + LEVEL) + run, ", config=run"),
    )


# -- where nothing is done -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def main(config):\n    return tf.Session(config=config)\n", "is made where it is not seen"),
        ("sess = tf.Session(**options)\n", "is given is not seen"),
        (
            "config = tf.ConfigProto()\nconfig.graph_options.CopyFrom(options)\nsess = tf.Session(config=config)\n",
            "may replace what is set",
        ),
        ("config = tf.ConfigProto()\nconfig.Clear()\nsess = tf.Session(config=config)\n", "may replace what is set"),
        ("from elsewhere import config\nsess = tf.Session(config=config)\n", "is made where it is not seen"),
        ("sess = tf.Session()\ndata = data.padded_batch(8, [None])\n", "varying shape"),
        ("sess = tf.Session()\nq = tf.train.batch([x], 8, dynamic_pad=True)\n", "varying shape"),
        ("sess = tf.Session()\nz = tf.placeholder(tf.int32, [None, None])\n", "varying shape"),
        ("sess = tf.Session(config=tf.ConfigProto(device_count={'GPU': 0}))\n", "asks for no GPU"),
        ("sess = tf.Session()\nstrategy = tf.distribute.MirroredStrategy()\n", "distributed"),
        ("sess = tf.Session(config=tf.ConfigProto(graph_options=tf.GraphOptions(build_cost_model=1),\n  ))\n", "own `graph_options`"),
        ("o = tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)\nsess = tf.Session()\n", "own options for optimizing"),
        ("r = tf.contrib.tpu.RunConfig()\nsess = tf.Session()\n", "TPU"),
    ],
)  # fmt: skip
def test_refused(text: str, reason: str) -> None:
    refuses(text, reason)


def test_decided() -> None:
    for text in ("config." + LEVEL, "import os\nos.environ['TF_XLA_FLAGS'] = '--tf_xla_auto_jit=2'\n"):
        check.ignores(HEAD + "config = tf.ConfigProto()\n" + text + "sess = tf.Session(config=config)\n")


def test_sessions_that_do_not_train() -> None:
    check.ignores("import tensorflow as tf\nsess = tf.Session()\nprint(sess.run(tf.constant(1)))\n")


def test_a_session_of_tensorflow_2_runs_no_keras() -> None:
    check.ignores(
        "import tensorflow as tf\nopt = tf.compat.v1.train.AdamOptimizer()\nopt.minimize(loss)\n"
        "config = tf.compat.v1.ConfigProto()\nconfig.gpu_options.allow_growth = True\n"
        "tf.compat.v1.keras.backend.set_session(tf.compat.v1.Session(config=config))\n",
        target="tf2.15",
    )


def test_cpu() -> None:
    cpu = Target((1, 15), (1, 15), 2, "", cpu=True)
    text = (HEAD + "sess = tf.Session()\n").encode()
    path = Path("/nowhere/train.py")
    (plain,) = rewrite([path], Options(2), lambda _: cpu, {path: text})
    assert plain.after == text
    assert any(r.codemod == "xla" and "TF_XLA_FLAGS" in r.reason for r in plain.refused)
    (asked,) = rewrite([path], Options(2, frozenset({"xla"})), lambda _: cpu, {path: text})
    assert "TF_XLA_FLAGS=--tf_xla_cpu_global_jit" in asked.applied[0].message


# -- with TensorFlow -------------------------------------------------------------------------------------------

RUNS = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None, 20])
w = tf.get_variable("w", [20, 8], initializer=tf.glorot_uniform_initializer(seed=1))
loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(x), w) - 1.0))
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
data = np.random.RandomState(0).rand(16, 20)


def get_config():
    config = tf.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    return config


losses = []
for config in get_config(), None:
    graphs = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    with tf.Session(config=get_config()) as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(5):
            losses.append(float(sess.run([loss, train_op], {x: data}, options, graphs)[0]))
sess = tf.Session("", tf.get_default_graph(), tf.ConfigProto(inter_op_parallelism_threads=3))
assert sess._config.inter_op_parallelism_threads == 3
print("RESULT", ["%.5f" % value for value in losses])
print("COMPILED", any("_Xla" in node.op for graph in graphs.partition_graphs for node in graph.node))
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_compiles_with_the_same_numbers(env: str, tmp_path: Path) -> None:
    result = check.run(RUNS, target={"tf115": "tf1.15", "tf215": "tf2.15"}[env])
    found = []
    for name, data in (("before", result.before), ("after", result.after)):
        path = tmp_path / f"{name}.py"
        path.write_bytes(data)
        done = run_script(tf_env(env), path, timeout=300, env={"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"})
        assert done.returncode == 0, done.stderr[-3000:]
        found.append({x.split()[0]: x for x in done.stdout.splitlines() if x.startswith(("RESULT", "COMPILED"))})
    assert found[0]["RESULT"] == found[1]["RESULT"]
    assert found[0]["COMPILED"] == "COMPILED False"
    assert found[1]["COMPILED"] == "COMPILED True"
