"""What becomes of programs that train Estimators under `--distribute horovod`, as text."""

from __future__ import annotations

import pytest

from tests.check import Check

check = Check("horovod", target="tf1.15")

IMPORTS = "import numpy as np\nimport tensorflow as tf\n\n"
MODEL = """
def model_fn(features, labels, mode):
    loss = tf.losses.mean_squared_error(labels, tf.layers.dense(features["x"], 1))
    TRAIN
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

"""
ADAM = """optimizer = tf.train.AdamOptimizer(0.1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())"""
INPUT = """
def input_fn():
    return tf.data.TFRecordDataset("train.tfrecord").repeat().map(parse).batch(8)

"""
EVAL = """
def eval_fn():
    return tf.data.TFRecordDataset("eval.tfrecord").map(parse).batch(8)

"""
MADE = 'est = tf.estimator.Estimator(model_fn, "model")\n'
RUN = "est.train(input_fn, steps=1000)\n"
HOOK = "hvd.BroadcastGlobalVariablesHook(0)"
GPU = "gpu_options=tf.GPUOptions(visible_device_list=str(hvd.local_rank()))"


def script(
    run: str = RUN, *, data: str = INPUT, made: str = MADE, train: str = ADAM, imports: str = IMPORTS, more: str = ""
) -> str:
    return imports + more + MODEL.replace("TRAIN", train) + data + EVAL + made + run


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
    check.fixes(
        script("est.train(input_fn, steps=1000)\nprint(est.evaluate(eval_fn))\n"),
        """
        import numpy as np
        import tensorflow as tf
        import horovod.tensorflow as hvd

        hvd.init()


        def model_fn(features, labels, mode):
            loss = tf.losses.mean_squared_error(labels, tf.layers.dense(features["x"], 1))
            optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1 * hvd.size()))
            train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
            return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


        def input_fn():
            return tf.data.TFRecordDataset("train.tfrecord").shard(hvd.size(), hvd.rank()).repeat().map(parse).batch(8)


        def eval_fn():
            return tf.data.TFRecordDataset("eval.tfrecord").map(parse).batch(8)

        gpu_options = tf.GPUOptions(visible_device_list=str(hvd.local_rank()))
        session_config = tf.ConfigProto(allow_soft_placement=True, gpu_options=gpu_options)
        run_config = tf.estimator.RunConfig(session_config=session_config)
        est = tf.estimator.Estimator(model_fn, "model" if hvd.rank() == 0 else None, config=run_config)
        est.train(input_fn, steps=1000 // hvd.size(), hooks=[hvd.BroadcastGlobalVariablesHook(0)])
        if hvd.rank() == 0:
            print(est.evaluate(eval_fn))
        """,
    )


def test_targets() -> None:
    v1 = "import numpy as np\nimport tensorflow.compat.v1 as tf\n\n"
    assert f"hooks=[{HOOK}]" in converted(script(imports=v1), target="tf2.15")
    after = converted(script().replace("tf.losses", "tf.compat.v1.losses").replace("tf.layers", "tf.compat.v1.layers")
                      .replace("tf.train.", "tf.compat.v1.train."), target="tf2.15")  # fmt: skip
    assert "tf.compat.v1.ConfigProto(allow_soft_placement=True" in after
    check.refuses(script(imports=v1), "Horovod cannot be built", target="tf2.19")
    check.refuses(script(imports=v1), "Estimators are converted for TensorFlow 1.15 to 2.15", target="tf2.17")


def test_no_scaling() -> None:
    assert "hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1))" in converted(script(), lr_scaling=False)


class TestOptimizers:
    def test_gradients_by_hand(self) -> None:
        train = """tvars = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), 1.0)
    train_op = tf.train.AdamOptimizer(0.1).apply_gradients(zip(grads, tvars), tf.train.get_global_step())"""
        after = converted(script(train=train))
        assert "[g if g is None else hvd.allreduce(g) for g in tf.gradients(loss, tvars)]" in after
        assert "DistributedOptimizer" not in after

    def test_decay(self) -> None:
        train = """rate = tf.train.exponential_decay(0.1, tf.train.get_global_step(), 500, 0.9)
    train_op = tf.train.AdamOptimizer(rate).minimize(loss, tf.train.get_global_step())"""
        after = converted(script(train=train))
        assert "tf.train.get_global_step(), 500 // hvd.size(), 0.9)" in after
        assert "AdamOptimizer(rate * hvd.size())" in after

    @pytest.mark.parametrize(
        ("train", "reason"),
        [
            (ADAM.replace("0.1", "np.random.rand()"), "may differ from rank to rank"),
            ("train_op = tf.contrib.layers.optimize_loss(loss, None, 0.1, 'SGD')", "no optimizer of TensorFlow is seen"),
            (
                "optimizer = tf.train.AdamOptimizer(0.1) if FAST else private.Optimizer(0.1)\n"
                "    train_op = optimizer.minimize(loss)",
                "may also be `private.Optimizer`",
            ),
            (
                "step = tf.train.get_global_step()\n    rate = tf.minimum(tf.cast(step, tf.float32), 1.0)\n    "
                + ADAM.replace("0.1", "rate"),
                "is given the number of steps of one rank",
            ),
            (
                "step = tf.train.get_global_step()\n    rate = tf.train.piecewise_constant(step, [10], [0.1, 0.01])\n    "
                + ADAM.replace("0.1", "rate"),
                "the numbers of steps in `tf.train.piecewise_constant` are not converted",
            ),
        ],
    )  # fmt: skip
    def test_refused(self, train: str, reason: str) -> None:
        check.refuses(script(train=train), reason)


class TestCanned:
    COLUMNS = 'columns = [tf.feature_column.numeric_column("x")]\n'

    def made(self, made: str, **options: object) -> str:
        return converted(IMPORTS + INPUT + EVAL + self.COLUMNS + f"est = tf.estimator.{made}\n" + RUN, **options)

    def test_instance(self) -> None:
        """It is made in the graph of the Estimator."""
        after = self.made("DNNClassifier([4], columns, optimizer=tf.train.AdamOptimizer(0.1))")
        assert "optimizer=lambda: hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1 * hvd.size()))" in after

    def test_function(self) -> None:
        after = self.made("DNNClassifier([4], columns, optimizer=lambda: tf.train.AdamOptimizer(0.1))")
        assert "optimizer=lambda: hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1 * hvd.size()))" in after

    def test_names(self) -> None:
        """The rates are those that the Estimators give such optimizers."""
        after = self.made('DNNRegressor([4], columns, optimizer="Adam")')
        assert "lambda: hvd.DistributedOptimizer(tf.train.AdamOptimizer(learning_rate=0.05 * hvd.size()))" in after
        after = self.made("LinearClassifier(columns)")
        assert "lambda: hvd.DistributedOptimizer(tf.train.FtrlOptimizer(learning_rate=0.2 * hvd.size()))" in after
        after = self.made("DNNLinearCombinedClassifier(linear_feature_columns=columns)")
        assert "tf.train.FtrlOptimizer(learning_rate=0.005 * hvd.size())" in after
        assert "tf.train.AdagradOptimizer(learning_rate=0.001 * hvd.size())" in after

    def test_keras_optimizers(self) -> None:
        after = self.made("DNNClassifier([4], columns)", target="tf2.15", lr_scaling=False)
        wanted = "lambda: hvd.DistributedOptimizer(tf.keras.optimizers.legacy.Adagrad(learning_rate=0.001))"
        assert f"optimizer={wanted}" in after
        made = "DNNClassifier([4], columns, optimizer=lambda: tf.keras.optimizers.legacy.Adam())"
        after = self.made(made, target="tf2.15")
        assert "hvd.DistributedOptimizer(tf.keras.optimizers.legacy.Adam(learning_rate=0.001 * hvd.size()))" in after
        after = self.made(made.replace("lambda: ", ""), target="tf2.15")
        assert "hvd.DistributedOptimizer(tf.keras.optimizers.legacy.Adam(learning_rate=0.001 * hvd.size()))" in after

    @pytest.mark.parametrize(
        ("made", "reason"),
        [
            ("BoostedTreesClassifier(columns, 1)", "trains in a way of its own"),
            ("DNNClassifier([4], columns, optimizer=chosen)", "what the optimizer `chosen` is is not seen"),
            ("DNNClassifier([4], columns, optimizer='Magic')", "no optimizer is known as 'Magic'"),
        ],
    )
    def test_refused(self, made: str, reason: str) -> None:
        check.refuses(IMPORTS + INPUT + self.COLUMNS + f"est = tf.estimator.{made}\n" + RUN, reason)


class TestKerasModels:
    SOURCE = """
        import tensorflow as tf

        model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(3,))])
        model.compile(OPTIMIZER, "mse")
        est = tf.keras.estimator.model_to_estimator(model)
        est.train(lambda: tf.data.TFRecordDataset("train").repeat().map(parse).batch(8), steps=100)
        """

    def test_legacy(self) -> None:
        after = converted(self.SOURCE.replace("OPTIMIZER", "tf.keras.optimizers.legacy.Adam(0.1)"), target="tf2.15")
        assert "model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.legacy.Adam(0.1 * hvd.size()))" in after
        assert 'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")' in after

    def test_others_are_not_averaged(self) -> None:
        source = self.SOURCE.replace("OPTIMIZER", "tf.keras.optimizers.Adam(0.1)")
        check.refuses(source, "Horovod does not average the gradients of `Adam` in an Estimator", target="tf2.15")
        check.refuses(self.SOURCE.replace("OPTIMIZER", '"adam"'), "which class of optimizer", target="tf2.15")


class TestConfiguration:
    def made(self, config: str, more: str = "") -> str:
        return converted(script(made=f"{more}est = tf.estimator.Estimator(model_fn, config={config})\n"))

    def test_extended(self) -> None:
        after = self.made('tf.estimator.RunConfig("model", save_summary_steps=5)')
        soft = f"session_config=tf.ConfigProto(allow_soft_placement=True, {GPU})"
        assert f'RunConfig("model" if hvd.rank() == 0 else None, save_summary_steps=5, {soft})' in after

    def test_one_that_configures_its_session(self) -> None:
        more = "own = tf.ConfigProto(allow_soft_placement=True)\nown.gpu_options.allow_growth = True\n"
        after = self.made("tf.estimator.RunConfig(session_config=own)", more)
        assert f"own = tf.ConfigProto(allow_soft_placement=True, {GPU})" in after

    def test_replaced(self) -> None:
        """What is configured behind it counts."""
        more = "config = tf.estimator.RunConfig()\nconfig = config.replace(model_dir=where, session_config=tf.ConfigProto())\n"
        after = self.made("config", more)
        assert "config = tf.estimator.RunConfig()\n" in after
        assert (
            f"config.replace(model_dir=where if hvd.rank() == 0 else None, session_config=tf.ConfigProto({GPU}))"
            in after
        )

    def test_its_folder_is_that_of_rank_0(self) -> None:
        made = 'config = tf.estimator.RunConfig("model")\nest = tf.estimator.Estimator(model_fn, config=config)\n'
        more = "path = config.model_dir + '/logs'\nkeep(path)\n"
        after = converted(script(made=made + more))
        assert "if hvd.rank() == 0:\n    path = config.model_dir + '/logs'\n    keep(path)\n" in after

    def test_two_share_one(self) -> None:
        made = MADE + MADE.replace("est =", "other =").replace('"model"', '"second"')
        assert converted(script(made=made)).count("run_config = ") == 1

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ("load_config()", "`load_config()` is made where it is not seen"),
            ("tf.estimator.RunConfig(train_distribute=where)", "`train_distribute` distributes the program already"),
            (
                "tf.estimator.RunConfig(session_config=tf.ConfigProto(gpu_options=tf.GPUOptions(visible_device_list='1')))",
                "it chooses GPUs itself",
            ),
        ],
    )
    def test_refused(self, config: str, reason: str) -> None:
        check.refuses(script(made=f"est = tf.estimator.Estimator(model_fn, config={config})\n"), reason)


class TestData:
    def test_a_pipeline_that_ends(self) -> None:
        """As many records on each rank, without counting them."""
        after = converted(script(data=INPUT.replace(".repeat()", ".repeat(3)")))
        part = "batch(hvd.size(), drop_remainder=True).map(lambda records: records[hvd.rank()])"
        assert f'tf.data.TFRecordDataset("train.tfrecord").{part}.repeat(3).map(parse)' in after

    def test_lines_behind_a_header(self) -> None:
        after = converted(script(data=INPUT.replace(".repeat()", ".skip(1)")))
        assert ".skip(1).batch(hvd.size(), drop_remainder=True).map(" in after

    def test_an_unknown_number_of_epochs_may_end(self) -> None:
        after = converted(script(data=INPUT.replace(".repeat()", ".repeat(epochs)")))
        assert "drop_remainder=True" in after

    def test_arrays(self) -> None:
        data = """
def input_fn():
    ds = tf.data.Dataset.from_tensor_slices(({"x": x}, y))
    return ds.shuffle(100).batch(8)

"""
        after = converted(script(data=data, more='x, y = np.load("x.npy"), np.load("y.npy")\n'))
        assert (
            "from_tensor_slices(({\"x\": x}, y)).apply(lambda part: part.shard(hvd.size(), hvd.rank())"
            ".take(tf.data.experimental.cardinality(part) // hvd.size()))"
        ) in after  # fmt: skip

    def test_an_iterator(self) -> None:
        data = """
def input_fn():
    ds = tf.data.TFRecordDataset("train.tfrecord").repeat().map(parse).batch(8)
    features, labels = ds.make_one_shot_iterator().get_next()
    return {"x": features}, labels

"""
        assert '("train.tfrecord").shard(hvd.size(), hvd.rank()).repeat()' in converted(script(data=data))

    SHARED = """
def read(path, is_training):
    ds = tf.data.TFRecordDataset(path)
    if is_training:
        ds = ds.shuffle(100).repeat()
    return ds.map(parse).batch(8)

"""

    def test_a_function_for_training_and_evaluation(self) -> None:
        run = 'est.train(lambda: read("a", True), steps=100)\nest.evaluate(lambda: read("b", False))\n'
        after = converted(script(run, data=self.SHARED))
        assert (
            "    ds = tf.data.TFRecordDataset(path)\n"
            "    if is_training:\n"
            "        ds = ds.shard(hvd.size(), hvd.rank())\n"
            "        ds = ds.shuffle(100).repeat()\n"
        ) in after

    def test_training_data_that_ends(self) -> None:
        run = 'est.train(lambda: read("a", True), steps=100)\nest.evaluate(lambda: read("b", False))\n'
        after = converted(script(run, data=self.SHARED.replace(".repeat()", "")))
        part = "ds.batch(hvd.size(), drop_remainder=True).map(lambda records: records[hvd.rank()])"
        assert f"    if is_training:\n        ds = {part}\n        ds = ds.shuffle(100)\n" in after

    def test_it_stands_in_a_chain(self) -> None:
        data = self.SHARED.replace(
            "ds = tf.data.TFRecordDataset(path)", "ds = tf.data.TFRecordDataset(path).map(parse)"
        )
        run = 'est.train(lambda: read("a", is_training=True), steps=100)\nest.evaluate(lambda: read("b", False))\n'
        after = converted(script(run, data=data))
        assert "    ds = tf.data.TFRecordDataset(path)\n    if is_training:\n" in after
        assert "    ds = ds.map(parse)\n" in after

    def test_the_mode_tells(self) -> None:
        data = (
            self.SHARED.replace("path, is_training", "mode")
            .replace("path", '"a"')
            .replace("is_training", "mode == 'train'")
        )
        after = converted(script("est.train(read, steps=100)\nest.evaluate(read)\n", data=data))
        assert (
            "    if mode == tf.estimator.ModeKeys.TRAIN:\n        ds = ds.batch(" in after
        )  # other words for it below

    def test_a_function_that_makes_functions(self) -> None:
        data = """
def build(path, mode):
    def input_fn():
        return tf.data.TFRecordDataset(path).repeat().map(parse).batch(8)
    return input_fn

"""
        run = (
            'est.train(build("a", tf.estimator.ModeKeys.TRAIN), steps=100)\n'
            'est.evaluate(build("b", tf.estimator.ModeKeys.EVAL), steps=3)\n'
        )
        after = converted(script(run, data=data))
        test = "if mode == tf.estimator.ModeKeys.TRAIN else part"
        assert f".apply(lambda part: part.shard(hvd.size(), hvd.rank()) {test}).repeat()" in after

    def test_partial(self) -> None:
        run = (
            'est.train(functools.partial(read, "a", is_training=True), steps=100)\n'
            'est.evaluate(functools.partial(read, "b", is_training=False))\n'
        )
        after = converted(script(run, data=self.SHARED, more="import functools\n"))
        assert "    if is_training:\n        ds = ds.shard(" in after

    NUMPY = 'tf.estimator.inputs.numpy_input_fn(x={"x": x}, y=y, num_epochs=None, shuffle=True)'

    def test_input_functions_of_arrays(self) -> None:
        more = 'x, y = np.load("x.npy"), np.load("y.npy")\n'
        run = f"train_fn = {self.NUMPY}\nest.train(train_fn, steps=100)\nest.evaluate({self.NUMPY})\n"
        after = converted(script(run, data="", more=more))
        part = "[hvd.rank():len({0}) // hvd.size() * hvd.size():hvd.size()]"
        assert (
            f'train_fn = tf.estimator.inputs.numpy_input_fn(x={{"x": x{part.format("x")}}}, y=y{part.format("y")},'
            in after
        )
        assert f"est.evaluate({self.NUMPY})" in after

    def test_one_of_two_ways(self) -> None:
        """What stands in the way of training is split there, and the other is left alone."""
        data = """
def make(mode):
    if mode == "train":
        fn = tf.estimator.inputs.numpy_input_fn({"x": x}, y, num_epochs=None, shuffle=True)
    else:
        fn = tf.estimator.inputs.numpy_input_fn({"x": x}, y, num_epochs=1, shuffle=False)
    return fn

"""
        run = 'est.train(make("train"), steps=100)\nest.evaluate(make("eval"))\n'
        after = converted(script(run, data=data, more='x, y = np.load("x.npy"), np.load("y.npy")\n'))
        part = "[hvd.rank():len({0}) // hvd.size() * hvd.size():hvd.size()]"
        assert f'({{"x": x{part.format("x")}}}, y{part.format("y")}, num_epochs=None' in after
        assert '({"x": x}, y, num_epochs=1, shuffle=False)' in after

    def test_one_of_two_pipelines(self) -> None:
        data = """
def read(is_training):
    if is_training:
        ds = tf.data.TFRecordDataset("a").repeat()
    else:
        ds = tf.data.TFRecordDataset("b")
    return ds.map(parse).batch(8)

"""
        run = "est.train(lambda: read(True), steps=100)\nest.evaluate(lambda: read(False))\n"
        after = converted(script(run, data=data))
        assert '        ds = tf.data.TFRecordDataset("a").shard(hvd.size(), hvd.rank()).repeat()\n' in after
        assert '        ds = tf.data.TFRecordDataset("b")\n    return' in after

    def test_a_function_that_makes_those(self) -> None:
        """The calls for training give it parts."""
        data = """
def make(features, labels, epochs):
    return tf.estimator.inputs.numpy_input_fn({"x": features}, labels, num_epochs=epochs, shuffle=True)

"""
        run = "est.train(make(x, labels=y, epochs=None), steps=100)\nest.evaluate(make(x, y, 1))\n"
        after = converted(script(run, data=data, more='x, y = np.load("x.npy"), np.load("y.npy")\n'))
        part = "[hvd.rank():len({0}) // hvd.size() * hvd.size():hvd.size()]"
        assert f"est.train(make(x{part.format('x')}, labels=y{part.format('y')}, epochs=None)," in after
        assert "est.evaluate(make(x, y, 1))" in after and '{"x": features}, labels, num_epochs' in after

    @pytest.mark.parametrize(
        ("run", "data", "reason"),
        [
            ("est.train(read, steps=100)\nest.evaluate(read)\n", SHARED.replace("path, is_training", "").replace("is_training", "True"),
             "the training data is made where that of evaluation is, too"),
            (RUN, INPUT.replace(".repeat()", ".repeat(2).filter(good)"), "would make different numbers of steps"),
            (RUN, INPUT.replace('tf.data.TFRecordDataset("train.tfrecord")', "tf.data.Dataset.from_generator(make, tf.float32)"
                                ).replace(".repeat()", ""), "is not seen"),
            (RUN, "def input_fn():\n    return tf.train.batch(read(), 8)\n", "is not seen"),
            ("fn = " + NUMPY + "\nest.train(fn, steps=100)\nest.evaluate(fn)\n", "x = y = np.load('x.npy')\n",
             "the training data is read by something else too: `evaluate`"),
            ("for _ in range(9):\n    est.train(input_fn, steps=1)\n", INPUT, "a training of 1 steps cannot be divided"),
        ],
    )  # fmt: skip
    def test_refused(self, run: str, data: str, reason: str) -> None:
        check.refuses(script(run, data=data), reason)

    def test_a_few_steps_to_look_at(self) -> None:
        assert "est.train(input_fn, steps=1, hooks=" in converted(script("est.train(input_fn, steps=1)\n" + RUN))


class TestHooks:
    def train(self, hooks: str, more: str = "") -> str:
        return script(f"{more}est.train(input_fn, steps=100, hooks={hooks})\n")

    def test_the_first_weights_come_first(self) -> None:
        log = "tf.train.LoggingTensorHook(names, 10)"
        assert f"hooks=[{HOOK}, {log}])" in converted(self.train(f"[{log}]"))
        assert f"hooks=[{HOOK}])" in converted(self.train("[]"))
        assert f"hooks=[{HOOK}])" in converted(self.train("None"))
        assert f"hooks=[{HOOK}, *own])" in converted(self.train("own", f"own = [{log}]\n"))

    def test_number_of_steps(self) -> None:
        assert "StopAtStepHook(500 // hvd.size())" in converted(self.train("[tf.train.StopAtStepHook(500)]"))

    OWN = "class Own(tf.train.SessionRunHook):\n    def after_run(self, context, values):\n        BODY\n\n"

    def test_one_that_prints(self) -> None:
        after = converted(self.train("[Own()]", self.OWN.replace("BODY", "print(values.results)")))
        assert "        if hvd.rank() == 0:\n            print(values.results)\n" in after

    @pytest.mark.parametrize(
        ("hooks", "more", "reason"),
        [
            ("[Own()]", OWN.replace("BODY", "context.request_stop()"), "may end the training"),
            ("[tf.train.SummarySaverHook(10)]", "", "on several ranks is not known"),
            ("[tf.train.NanTensorHook(loss, fail_on_nan_loss=False)]", "", "may end the training on one rank"),
            ("[tf.contrib.estimator.stop_if_no_increase_hook(est, 'a', 5)]", "", "may end the training on one rank"),
            ("make_hooks()", "", "which hooks `make_hooks()` are is not seen"),
        ],
    )
    def test_refused(self, hooks: str, more: str, reason: str) -> None:
        check.refuses(self.train(hooks, more), reason)


class TestRank0:
    def test_what_evaluation_gives(self) -> None:
        run = (
            RUN
            + "scores = []\nresult = est.evaluate(eval_fn)\nscores.append(result['loss'])\nif result['loss'] < 1:\n"
            + "    print('good')\nfor row in est.predict(eval_fn):\n    use(row)\nbest = min(scores)\nprint(best)\n"
        )
        after = converted(script(run))
        assert after.endswith(
            "scores = []\nif hvd.rank() == 0:\n    result = est.evaluate(eval_fn)\n    scores.append(result['loss'])\n"
            "    if result['loss'] < 1:\n        print('good')\n    for row in est.predict(eval_fn):\n        use(row)\n"
            "    best = min(scores)\n    print(best)\n"
        )

    def test_a_function_that_returns_it(self) -> None:
        run = RUN + "def score():\n    return est.evaluate(eval_fn)\n\nprint(score())\n"
        after = converted(script(run))
        assert "    return est.evaluate(eval_fn) if hvd.rank() == 0 else None\n" in after
        assert "if hvd.rank() == 0:\n    print(score())\n" in after

    def test_train_and_evaluate(self) -> None:
        run = (
            "spec = tf.estimator.TrainSpec(input_fn, max_steps=1000)\n"
            "tf.estimator.train_and_evaluate(est, spec, tf.estimator.EvalSpec(eval_fn))\n"
        )
        after = converted(script(run))
        assert f"spec = tf.estimator.TrainSpec(input_fn, max_steps=1000 // hvd.size(), hooks=[{HOOK}])\n" in after
        assert after.endswith(
            "if hvd.rank() == 0:\n    tf.estimator.train_and_evaluate(est, spec, tf.estimator.EvalSpec(eval_fn))\n"
            "if hvd.rank() != 0:  # evaluates nothing\n"
            "    est.train(spec.input_fn, hooks=spec.hooks, max_steps=spec.max_steps)\n"
        )

    def test_a_specification_without_a_name(self) -> None:
        """All ranks evaluate, each in a folder of its own."""
        run = (
            "tf.estimator.train_and_evaluate(\n    est,\n    tf.estimator.TrainSpec(input_fn, max_steps=1000),\n"
            "    tf.estimator.EvalSpec(eval_fn),\n)\n"
        )
        after = converted(script(run))
        assert f"tf.estimator.TrainSpec(input_fn, max_steps=1000 // hvd.size(), hooks=[{HOOK}])" in after
        assert "est.train(" not in after

    def test_folders_and_logs(self) -> None:
        more = "import shutil\ntf.logging.set_verbosity(tf.logging.INFO)\nshutil.rmtree('model', ignore_errors=True)\n"
        after = converted(script(more=more).replace('"model"', "'model'"))
        assert "if hvd.rank() == 0:\n    tf.logging.set_verbosity(tf.logging.INFO)\n    shutil.rmtree('model'" in after

    @pytest.mark.parametrize(
        ("run", "reason"),
        [
            (
                "for _ in range(9):\n    est.train(input_fn, steps=100)\n"
                "    if est.evaluate(eval_fn)['loss'] < 1:\n        break\n",
                "decides how the program goes on",
            ),
            ("print(est.train(input_fn, steps=100).evaluate(eval_fn))\n", "training, which all ranks take part in, depends"),
            (
                RUN + "rate = est.evaluate(eval_fn)['loss']\nest.train(input_fn, steps=int(100 * rate))\n",
                "training, which all ranks take part in, depends on it",
            ),
            (
                RUN + "history = [0]\nhistory.append(est.evaluate(eval_fn)['loss'])\n"
                "est.train(input_fn, steps=100 * len(history))\n",
                "training, which all ranks take part in, depends on it",
            ),
            (
                "def objective(trial):\n    est.train(input_fn, steps=100)\n    return est.evaluate(eval_fn)\n\n"
                "study.optimize(objective)\n",
                "how often `objective`, which trains, is called is not seen",
            ),
            (RUN + "def score(x):\n    return est.evaluate(eval_fn)\n\nkeep(score)\n", "to a caller that is not seen"),
            ("import os\nif not os.path.exists('model'):\n    est.train(input_fn, steps=100)\n", "may differ from rank to rank"),
            ("import time\nwhile time.time() < 9:\n    est.train(input_fn, steps=100)\n", "may differ from rank to rank"),
            ("try:\n    est.train(input_fn, steps=100)\nexcept ValueError:\n    pass\n", "an error that is caught around training"),
        ],
    )  # fmt: skip
    def test_refused(self, run: str, reason: str) -> None:
        check.refuses(script(run), reason)


class TestRecognised:
    def test_main_is_called_by_the_library(self) -> None:
        run = f"\ndef main(_):\n    {MADE}    {RUN}\n\nif __name__ == '__main__':\n    tf.app.run()\n"
        assert HOOK in converted(script(run, made=""))

    def test_nothing_is_trained(self) -> None:
        check.refuses(script("print(est.evaluate(eval_fn))\n"), "no training is seen in this program")

    @pytest.mark.parametrize(
        ("made", "reason"),
        [
            ("est = tf.contrib.tpu.TPUEstimator(model_fn)\n", "trains in a way of its own"),
            ("est = tf.contrib.learn.Estimator(model_fn)\n", "trains in a way of its own"),
            (MADE + "experiment = tf.contrib.learn.Experiment(est, input_fn, eval_fn)\n", "is not converted"),
            (MADE + "keep(est)\n", "`keep` is given the Estimator"),
            (MADE + "tf.Session()\n", "in other ways too"),
        ],
    )
    def test_refused(self, made: str, reason: str) -> None:
        check.refuses(script(made=made), reason)
