"""`mirrored` and `multiworker` for programs that train in loops with `GradientTape`: before and after as text."""

from __future__ import annotations

import pytest

from tests.check import Check

mirrored = Check("mirrored")

#: A loop over a dataset with a compiled step; the parts of it that the tests change.
PROGRAM = """
import numpy as np
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))])
optimizer = tf.keras.optimizers.Adam()


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(images) - labels))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(3):
    for images, labels in data:
        loss = train_step(images, labels)
    print(float(loss))
"""
LOSS = "tf.reduce_mean(tf.square(model(images) - labels))"
STEP = "        loss = train_step(images, labels)\n"
UPDATE = "    optimizer.apply_gradients(zip(gradients, model.trainable_variables))\n"


def changed(*pairs: tuple[str, str], program: str = PROGRAM) -> str:
    for old, new in pairs:
        assert old in program
        program = program.replace(old, new)
    return program


def refuses(reason: str, *pairs: tuple[str, str], **options: object) -> None:
    mirrored.refuses(changed(*pairs), reason, **options)


def after(*pairs: tuple[str, str], target: str = "tf2.15") -> str:
    result = mirrored.run(changed(*pairs), target=target)
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    return result.after.decode()


def test_a_step_over_a_dataset() -> None:
    mirrored.fixes(
        PROGRAM,
        """
        import numpy as np
        import tensorflow as tf

        strategy = tf.distribute.MirroredStrategy()

        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))])
            optimizer = tf.keras.optimizers.Adam()


        def share_of_batch(batch):
            \"\"\"The share of the global batch that this replica has: it weights means, which are summed.\"\"\"
            rows = tf.nest.flatten(batch)[0]
            size = tf.cast(tf.shape(rows)[0], tf.float32)
            replica = tf.distribute.get_replica_context()
            return size / replica.all_reduce(tf.distribute.ReduceOp.SUM, size)


        def train_step(images, labels):
            share = share_of_batch(images)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(images) - labels))
                loss = tf.math.multiply_no_nan(loss, share)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss


        @tf.function
        def distributed_train_step(images, labels):
            result = strategy.run(train_step, args=(images, labels))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, result, axis=None)


        distributed_data = strategy.experimental_distribute_dataset(data)
        for epoch in range(3):
            for images, labels in distributed_data:
                loss = distributed_train_step(images, labels)
            print(float(loss))
        """,
    )


def test_keras_3_makes_the_optimizer_first() -> None:
    text = after(target="keras3")
    assert (
        "distributed_data = strategy.experimental_distribute_dataset(data)\n"
        "with strategy.scope():\n"
        "    optimizer.build(model.trainable_variables)\n"
        "for epoch in range(3):\n"
    ) in text


def test_keras_3_makes_models_first_that_are_made_when_called() -> None:
    """The shape of what they are called with is that of the dataset's elements."""
    text = after(("[tf.keras.layers.Dense(4, input_shape=(8,))]", "[tf.keras.layers.Dense(4)]"), target="keras3")
    assert (
        "    model(tf.keras.Input(data.element_spec[0].shape[1:], dtype=data.element_spec[0].dtype))\n"
        "    optimizer.build(model.trainable_variables)\n"
    ) in text
    reason = "which Keras 3 cannot do on a replica"
    late = ("[tf.keras.layers.Dense(4, input_shape=(8,))]", "[tf.keras.layers.Dense(4)]")
    refuses(reason, late, ("model(images)", "model(images[:, :2])"), target="keras3")
    refuses(reason, late, ("tf.square(model(images)", "tf.square(model(tf.cast(images, tf.float32))"), target="keras3")


# -- losses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        "tf.reduce_mean(tf.square(model(images) - labels)) + 0.1 * tf.add_n([tf.nn.l2_loss(w) for w in model.weights])",
        "tf.reduce_mean(tf.reduce_sum(tf.abs(model(images) - labels), axis=1)) / 2",
        "tf.reduce_sum(tf.square(model(images) - labels)) / tf.cast(tf.shape(images)[0], tf.float32)",
        "tf.reduce_mean(tf.keras.losses.mean_squared_error(labels, model(images))) + sum(model.losses)",
        "tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=tf.nn.relu(model(images))))",
        "0.5 * tf.reduce_mean((model(images) - labels) ** 2) + 0.5 * tf.reduce_mean(tf.abs(model(images) - labels))",
    ],
)
def test_means_are_weighted(loss: str) -> None:
    assert "        loss = tf.math.multiply_no_nan(loss, share)\n" in after((LOSS, loss))


@pytest.mark.parametrize(
    "loss",
    ["tf.reduce_sum(tf.square(model(images) - labels))", "tf.reduce_sum(tf.square(model(images) - labels)) / 32"],
)
def test_sums_are_not(loss: str) -> None:
    """The sum of the replicas' sums is that of the whole batch already."""
    text = after((LOSS, loss))
    assert "share" not in text
    assert "result, axis=None)" in text


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        ("tf.sqrt(tf.reduce_mean(tf.square(model(images) - labels)))", "is no mean over the batch, and no sum"),
        ("tf.reduce_max(tf.square(model(images) - labels))", "is of all samples of a batch together"),
        (
            "tf.reduce_sum(tf.square(model(images) - labels) * labels) / tf.reduce_sum(labels)",
            "is no mean over the batch, and no sum",
        ),
        (
            "tf.reduce_sum(tf.square(model(images) - labels)) + 0.1 * tf.add_n([tf.nn.l2_loss(w) for w in model.weights])",
            "adds a sum over the batch to what is none",
        ),
        (
            "tf.reduce_mean(tf.square(model(images) - tf.reduce_mean(labels)))",
            "computes with every sample and with what the whole batch has",
        ),
        (
            "tf.reduce_mean(tf.matmul(model(images), labels, transpose_b=True))",
            "computes with several samples together",
        ),
        ("tf.reduce_mean(tf.boolean_mask(model(images), labels > 0))", "is not known"),
        ("tf.reduce_mean(model(images)[:8])", "takes some of the samples"),
        ("tf.keras.losses.mean_squared_error(labels, model(images))", "one number, or one for every sample"),
        ("tf.reduce_mean(tf.norm(model(images) - labels))", "computes with several samples together"),
        ("tf.reduce_mean(tf.math.l2_normalize(model(images)))", "computes with several samples together"),
        ("tf.reduce_mean(tf.nn.softmax(model(images), axis=0) * labels)", "computes with several samples together"),
        ("tf.reduce_mean(tf.expand_dims(model(images), 0) - tf.expand_dims(labels, 1))", "several samples together"),
        ("tf.reduce_mean(tf.transpose(model(images)) @ labels)", "turns the samples around"),
        ("tf.reduce_mean(tf.reshape(model(images), [32, 4]))", "has a batch of a fixed size"),
        ("tf.reduce_mean(model(images) * tf.random.uniform([32, 1]))", "random rows of a fixed number"),
    ],
)
def test_what_is_no_mean_and_no_sum(loss: str, reason: str) -> None:
    refuses(reason, (LOSS, loss))


def test_losses_of_keras() -> None:
    """Their own mean is an error under a strategy in Keras 2, and divided by the replicas in Keras 3."""
    text = after(
        ("optimizer =", "mse = tf.keras.losses.MeanSquaredError()\noptimizer ="), (LOSS, "mse(labels, model(images))")
    )
    assert 'mse = tf.keras.losses.MeanSquaredError(reduction="none")' in text
    assert "loss = tf.reduce_mean(mse(labels, model(images)))" in text
    text = after(
        ("optimizer =", 'mse = tf.keras.losses.MeanSquaredError(reduction="sum")\noptimizer ='),
        (LOSS, "mse(labels, model(images))"),
    )
    assert "share" not in text


def test_a_loss_of_keras_that_others_use() -> None:
    text = after(
        ("optimizer =", "mse = tf.keras.losses.MeanSquaredError()\noptimizer ="),
        (LOSS, "mse(labels, model(images))"),
        ("    print(float(loss))", "    print(float(mse(y, model(x))))"),
    )
    assert "print(float(tf.reduce_mean(mse(y, model(x)))))" in text
    refuses(
        "it no longer takes the mean",
        ("optimizer =", "mse = tf.keras.losses.MeanSquaredError()\noptimizer ="),
        (LOSS, "mse(labels, model(images))"),
        ("    print(float(loss))", "    print(report(mse))"),
    )


def test_gradients_that_are_clipped() -> None:
    text = "    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)\n"
    refuses("changes the gradients of one replica before they are summed", (UPDATE, text + UPDATE))
    refuses(
        "changes the gradients of one replica",
        (UPDATE, "    gradients = [tf.clip_by_value(g, -1, 1) for g in gradients]\n" + UPDATE),
    )
    refuses("`clipnorm` clips the gradients of one replica", ("Adam()", "Adam(clipnorm=1.0)"))
    assert "gradients = [0.5 * g for g in gradients]" in after(
        (UPDATE, "    gradients = [0.5 * g for g in gradients]\n" + UPDATE)
    )


def test_a_layer_with_statistics() -> None:
    norm = ("Dense(4, input_shape=(8,))", "Dense(4, input_shape=(8,)), tf.keras.layers.BatchNormalization()")
    assert "BatchNormalization(synchronized=True)" in after(norm)
    refuses("statistics of one replica's part", norm, target="tf2.11")
    refuses(
        "layers of this model may take statistics",
        ("tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))])", "tf.keras.applications.ResNet50()"),
    )


# -- metrics, and what is returned -----------------------------------------------------------------------------

METRICS = ("optimizer =", "mean = tf.keras.metrics.Mean()\nvalidation = tf.keras.metrics.Mean()\noptimizer =")


def test_metrics_in_the_step() -> None:
    """A mean is counted once for every replica; a metric that no replica updates is not made under the scope."""
    text = after(METRICS, ("    return loss\n", "    mean.update_state(loss)\n    return loss\n"))
    assert "    mean.update_state(loss * strategy.num_replicas_in_sync)\n" in text
    assert "with strategy.scope():\n    model" in text
    assert "\nvalidation = tf.keras.metrics.Mean()\n" in text
    before = ("    gradients =", "        mean(loss)\n    gradients =")
    assert "mean(tf.math.multiply_no_nan(loss, share) * strategy.num_replicas_in_sync)" in after(METRICS, before)
    exact = ("Mean()\nvalidation", "MeanAbsoluteError()\nvalidation")
    assert "    mean(labels, model(images))\n" in after(
        METRICS, exact, ("    return loss\n", "    mean(labels, model(images))\n    return loss\n")
    )


def test_metrics_that_are_refused() -> None:
    step = ("    return loss\n", "    mean.update_state(loss)\n    return loss\n")
    refuses("where a replica knows only of its own part", METRICS, ("return loss\n", "return mean.result()\n"))
    refuses("is updated here too", METRICS, step, ("    print(float(loss))", "    mean(0.0)"))
    own = ("mean = tf.keras.metrics.Mean()", "mean = Own()")
    own_class = ("data =", "class Own(tf.keras.metrics.Metric):\n    pass\n\n\ndata =")
    refuses("", METRICS, own, own_class, step)


def test_what_the_step_returns() -> None:
    text = after(
        ("    return loss\n", "    return loss, tf.reduce_mean(labels)\n"),
        ("loss = train_step", "loss, _ = train_step"),
    )
    assert "return loss, tf.math.multiply_no_nan(tf.reduce_mean(labels), share)" in text
    assert "return [strategy.reduce(tf.distribute.ReduceOp.SUM, result, axis=None) for result in results]" in text
    text = after(("    return loss\n", '    return {"loss": loss}\n'))
    assert "for key, value in results.items()}" in text
    refuses("it has something for every sample", ("    return loss\n", "    return model(images)\n"))
    refuses("gradients are of one replica", ("    return loss\n", "    return loss, gradients\n"))
    refuses("it is the same on every replica", ("    return loss\n", "    return optimizer.learning_rate\n"))
    text = after(("loss = train_step", "train_step"), ("return loss", "return model(images)"), ("float(loss)", "epoch"))
    assert "    strategy.run(train_step, args=(images, labels))\n" in text


def test_random_rows() -> None:
    """As many as there are samples, or a part of a fixed number."""
    text = after((LOSS, "tf.reduce_mean(model(tf.random.normal([32, 8]))) + tf.reduce_mean(model(images))"))
    assert "tf.random.normal([32 // strategy.num_replicas_in_sync, 8])" in text
    text = after((LOSS, "tf.reduce_mean(model(images + tf.random.normal(tf.shape(images))))"))
    assert "model(images + tf.random.normal(tf.shape(images)))" in text


def test_the_size_of_the_batch_in_the_step() -> None:
    size = ("data =", "SIZE = 32\ndata ="), ("batch(32)", "batch(SIZE)")
    refuses("is the size of the whole batch", *size, (LOSS, "tf.reduce_mean(model(images) * [[1.0]] * SIZE)"))
    assert "/ SIZE" in after(*size, (LOSS, "tf.reduce_sum(tf.square(model(images) - labels)) / SIZE"))


# -- data ------------------------------------------------------------------------------------------------------


def test_batches_that_the_loop_looks_at() -> None:
    text = after((STEP, STEP + "        print(images.shape)\n"))
    assert "loss = distributed_train_step(divide_batch(images), divide_batch(labels))" in text
    assert "for images, labels in data:" in text
    assert "t[context.replica_id_in_sync_group :: context.num_replicas_in_sync]" in text


def test_slices_of_arrays() -> None:
    text = after(
        ("for images, labels in data:", "for i in range(0, 320, 32):"),
        ("train_step(images, labels)\n    print", "train_step(x[i:i + 32], y[i:i + 32])\n    print"),
        ("data = tf", "x, y = np.ones((320, 8)), np.ones((320, 4))\ndata = tf"),
    )
    assert "distributed_train_step(divide_batch(x[i:i + 32]), divide_batch(y[i:i + 32]))" in text


def test_a_dataset_that_is_made_for_every_epoch() -> None:
    """It is distributed where it is, as it is made there."""
    text = after(("    for images", "    data = data.shuffle(9)\n    for images"))
    assert "for images, labels in strategy.experimental_distribute_dataset(data):" in text


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (".batch(32)", "", "gives batches is not seen"),
        (".batch(32)", ".batch(1)", "a batch of one sample cannot be divided"),
        (".batch(32)", ".batch(32).unbatch()", "whether `unbatch` keeps batches together is not known"),
        ("for images, labels in data:", "for images, labels in load():", "which loop goes through the batches"),
        ("train_step(images, labels)\n    print", "train_step(*(images, labels))\n    print", "is not seen"),
        ("train_step(images, labels)\n    print", "train_step(images[0], labels)\n    print", "on a part of a batch"),
        (
            "train_step(images, labels)\n    print",
            "train_step(images, tf.zeros((32, 4)))\n    print",
            "has a row for every sample of a batch is not seen",
        ),
    ],
)
def test_data_that_is_refused(old: str, new: str, reason: str) -> None:
    refuses(reason, (old, new))


# -- steps -----------------------------------------------------------------------------------------------------


def test_a_step_that_stands_in_the_loop() -> None:
    source = """
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((tf.ones((96, 8)), tf.ones((96, 4)))).batch(32)
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))])
    optimizer = tf.keras.optimizers.Adam()
    for images, labels in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images) - labels))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        print(float(loss))
    """
    result = mirrored.run(source)
    text = result.after.decode()
    assert "\ndef train_step(images, labels):\n    share = share_of_batch(images)\n" in text
    assert "\n@tf.function\ndef distributed_train_step(images, labels):\n" in text
    assert "    loss = distributed_train_step(images, labels)\n    print(float(loss))" in text
    assert mirrored.run(text).after.decode() == text
    bad = source.replace("tf.reduce_mean(tf.square(model(images) - labels))", "tf.reduce_max(model(images))")
    mirrored.refuses(bad, "is of all samples of a batch together")  # and it is not moved either


def test_a_step_of_a_class() -> None:
    result = mirrored.run("""
    import tensorflow as tf


    class Trainer:
        def __init__(self, model):
            self.model = model
            self.optimizer = tf.keras.optimizers.Adam()

        def step(self, images, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.model(images) - labels))
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
            return loss

        def fit(self, data):
            for images, labels in data:
                print(float(self.step(images, labels)))


    def main():
        data = tf.data.Dataset.from_tensor_slices((tf.ones((96, 8)), tf.ones((96, 4)))).batch(32)
        trainer = Trainer(tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))]))
        trainer.fit(data)


    main()
    """)
    text = result.after.decode()
    assert "    with strategy.scope():\n        trainer = Trainer(" in text
    assert (
        "    @tf.function\n    def distributed_step(self, images, labels):\n"
        "        result = strategy.run(self.step, args=(images, labels))\n"
    ) in text
    assert "print(float(self.distributed_step(images, labels)))" in text


def test_an_evaluation_whose_metrics_are_made_with_the_model() -> None:
    """It has to run on the replicas too; what a loss of Keras gives there is a mean of one replica's part."""
    text = mirrored.run("""
    import tensorflow as tf


    class Trainer:
        def __init__(self):
            self.model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))])
            self.optimizer = tf.keras.optimizers.Adam()
            self.mse = tf.keras.losses.MeanSquaredError()
            self.mean = tf.keras.metrics.Mean()

        @tf.function
        def step(self, x, y):
            with tf.GradientTape() as tape:
                loss = self.mse(y, self.model(x))
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))

        @tf.function
        def test(self, x, y):
            self.mean(self.mse(y, self.model(x)))

        def fit(self, data, validation):
            for x, y in data:
                self.step(x, y)
            for x, y in validation:
                self.test(x, y)
            print(float(self.mean.result()))


    data = tf.data.Dataset.from_tensor_slices((tf.ones((96, 8)), tf.ones((96, 4)))).batch(32)
    Trainer().fit(data, data)
    """).after.decode()
    assert (
        "        self.mean(tf.math.multiply_no_nan(tf.reduce_mean(self.mse(y, self.model(x))), share) "
        "* strategy.num_replicas_in_sync)\n"
    ) in text
    assert "            self.distributed_test(x, y)\n" in text


def test_a_tape_in_a_function_of_its_own() -> None:
    text = after(
        (
            "@tf.function\n",
            "def gradients_of(images, labels):\n    with tf.GradientTape() as tape:\n        loss = "
            f"{LOSS}\n    return loss, tape.gradient(loss, model.trainable_variables)\n\n\n@tf.function\n",
        ),
        (
            f"    with tf.GradientTape() as tape:\n        loss = {LOSS}\n"
            "    gradients = tape.gradient(loss, model.trainable_variables)\n    optimizer",
            "    loss, gradients = gradients_of(images, labels)\n    optimizer",
        ),
    )
    assert "def gradients_of(images, labels):\n    share = share_of_batch(images)\n" in text
    assert "def train_step(images, labels):\n    loss, gradients = gradients_of(images, labels)\n" in text


def test_options_of_tf_function() -> None:
    text = after(("@tf.function\n", "@tf.function(jit_compile=True, reduce_retracing=True)\n"))
    assert "\n@tf.function(reduce_retracing=True)\ndef distributed_train_step" in text
    assert "jit_compile" not in text


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([("@tf.function\n", ""), ("    return loss\n", "    print(loss)\n    return loss\n")], "it prints"),
        (
            [
                ("Adam()", "Adam()\ncount = tf.Variable(0)"),
                ("    return loss\n", "    count.assign_add(1)\n    return loss\n"),
            ],
            "sets a variable",
        ),
        ([("def train_step(images, labels)", "def train_step(images, *labels)")], "any arguments"),
        ([(UPDATE, "    pass\n")], ""),
        (
            [("print(float(loss))", "model.fit(x, y)"), ("optimizer = ", "model.compile('sgd')\noptimizer = ")],
            "by Keras",
        ),
    ],
)
def test_steps_that_are_refused(pairs: list[tuple[str, str]], reason: str) -> None:
    refuses(reason, *pairs)


# -- variables that the script changes itself ------------------------------------------------------------------

ASSIGNS = """
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
w = tf.Variable(tf.ones((8, 4)))
b = tf.Variable(tf.zeros(4))


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(images @ w + b - labels))
    for variable, gradient in zip([w, b], tape.gradient(loss, [w, b])):
        variable.assign_sub(0.1 * gradient)
    return loss


for images, labels in data:
    print(float(train_step(images, labels)))
"""


def test_variables_that_the_step_assigns_to() -> None:
    """What every replica subtracts is added up by the variable."""
    text = mirrored.run(ASSIGNS).after.decode()
    assert "    w = tf.Variable(tf.ones((8, 4)), aggregation=tf.VariableAggregation.SUM)\n" in text
    assert "    b = tf.Variable(tf.zeros(4), aggregation=tf.VariableAggregation.SUM)\n" in text
    assert "loss = tf.math.multiply_no_nan(loss, share)" in text
    for new in ("variable.assign(variable - 0.1 * gradient)", "variable.assign_sub(tf.clip_by_norm(gradient, 1.0))"):
        mirrored.refuses(ASSIGNS.replace("variable.assign_sub(0.1 * gradient)", new), "on every replica for itself")
    given = ASSIGNS.replace("tf.zeros(4))", "tf.zeros(4), aggregation=tf.VariableAggregation.MEAN)")
    mirrored.refuses(given, "is given already")


def test_numbers_that_change_are_handed_over_as_tensors() -> None:
    source = ASSIGNS.replace("@tf.function\n", "").replace(
        "(images, labels):\n    with", "(images, labels, rate):\n    with"
    )
    source = source.replace("0.1 * gradient", "rate * gradient")
    source = source.replace("\n\nfor images", "\n\nrate = 0.1\nfor images").replace(
        "train_step(images, labels)))", "train_step(images, labels, rate)))\n    rate = rate * 0.9"
    )
    assert "distributed_train_step(images, labels, tf.constant(rate))" in mirrored.run(source).after.decode()


# -- several hosts ---------------------------------------------------------------------------------------------

multiworker = Check("multiworker")


def on_hosts(*pairs: tuple[str, str]) -> str:
    result = multiworker.run(changed(*pairs))
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    return result.after.decode()


def test_all_workers_have_the_same_batches() -> None:
    text = on_hosts()
    assert "strategy = tf.distribute.MultiWorkerMirroredStrategy()" in text
    assert ".shuffle(100, seed=0).batch(32)" in text
    assert "strategy.experimental_distribute_dataset(data)" in text
    text = on_hosts(("tf.data.Dataset.from_tensor_slices((x, y))", 'tf.data.TFRecordDataset("a").map(parse)'))
    assert "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA\n" in text
    assert "strategy.experimental_distribute_dataset(data.with_options(options))" in text


def test_files_of_the_chief() -> None:
    """Checkpoints are saved by all workers, what is plotted or written by the chief."""
    text = on_hosts(
        ("optimizer = tf", "checkpoint = tf.train.Checkpoint(model=model)\noptimizer = tf"),
        (
            "    print(float(loss))",
            '    checkpoint.save("saved/c")\n    with open("log", "a") as log:\n        log.write(str(epoch))',
        ),
    )
    assert '    checkpoint.save(path_of_worker("saved/c"))\n' in text
    assert '    if is_chief:\n        with open("log", "a") as log:\n' in text


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(STEP, STEP + "        if loss < 0.1:\n            break\n")], "may differ from worker to worker"),
        (
            [("optimizer = tf", 'c = tf.train.Checkpoint(model=model)\nc.restore("a")\noptimizer = tf')],
            "what the other workers may not find",
        ),
        ([("for images, labels in data:", "for i in range(0, 96, 32):"), ("train_step(images, labels)\n    print", "train_step(x[i:i + 32], y[i:i + 32])\n    print")], "is not proven"),
        (
            [("optimizer = tf", "tf.random.set_seed(1)\noptimizer = tf"), (LOSS, "tf.reduce_mean(model(tf.random.normal([32, 8]))) + tf.reduce_mean(model(images))")],
            "every worker draws the same random rows",
        ),
    ],
)  # fmt: skip
def test_hosts_that_are_refused(pairs: list[tuple[str, str]], reason: str) -> None:
    multiworker.refuses(changed(*pairs), reason)


def test_a_dataset_that_is_divided_again_in_every_epoch() -> None:
    source = (
        PROGRAM.replace(
            "for epoch in range(3):\n    for images",
            "def run(dataset):\n    for images",
        )
        .replace("in data:", "in dataset:")
        .replace("    print(float(loss))", "\n\nfor epoch in range(3):\n    run(data)")
    )
    multiworker.refuses(source, "which is divided anew each time")
    assert "in strategy.experimental_distribute_dataset(dataset):" in mirrored.run(source).after.decode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("self.add_loss(tf.reduce_sum(tf.square(x)))\n        return x", "adds a loss that is no mean over the batch"),
        ("return x - tf.reduce_mean(x, axis=0)", "with what the whole batch has"),
    ],
)
def test_layers_over_the_batch(body: str, reason: str) -> None:
    """Also those that a `Sequential` holds."""
    layer = f"class Own(tf.keras.layers.Layer):\n    def call(self, x):\n        {body}\n\n\ndata ="
    refuses(reason, ("data =", layer), ("input_shape=(8,))]", "input_shape=(8,)), Own()]"))


def test_a_gradient_penalty_of_a_list() -> None:
    penalty = """
def penalty(images):
    with tf.GradientTape() as tape:
        tape.watch(images)
        out = model(images)
    slopes = tape.gradient(out, [images])[0]
    return tf.reduce_mean((tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=1)) - 1.0) ** 2)


@tf.function
def train_step"""
    after(("\n@tf.function\ndef train_step", penalty), (LOSS, f"{LOSS} + 10 * penalty(images)"))
