"""What becomes of programs that train with `fit` under `--distribute horovod`, as text."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.check import Check

check = Check("horovod")

INIT = """\
hvd.init()
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
"""
MODEL = "model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])\n"
COMPILE = 'model.compile(tf.keras.optimizers.Adam(0.01), "mse")\n'
DATA = "x, y = np.ones((96, 4)), np.ones((96, 1))\n"
FIT = "model.fit(x, y, epochs=20)\n"
OWN = "hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()"
WARM = "hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size(), warmup_epochs=5)"
PART = "[hvd.rank():len({0}) // hvd.size() * hvd.size():hvd.size()]"
VERBOSE = "verbose=1 if hvd.rank() == 0 else 0"


def part(name: str) -> str:
    return name + PART.format(name)


def script(*lines: str, imports: str = "import numpy as np\nimport tensorflow as tf\n") -> str:
    return imports + "".join(textwrap.dedent(line) for line in lines)


def converted(*lines: str, imports: str = "import numpy as np\nimport tensorflow as tf\n", **options: object) -> str:
    """The program behind the start of Horovod; a second run leaves it alone."""
    result = check.run(script(*lines, imports=imports), **options)  # type: ignore[arg-type]
    after = result.after.decode()
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    again = check.run(after, **options)  # type: ignore[arg-type]
    assert again.after == again.before, again.after.decode()
    compile(after, "train.py", "exec")
    assert "import horovod.tensorflow.keras as hvd\n" in after and INIT in after, after
    return after.partition(INIT)[2]


def refuses(reason: str, *lines: str, line: int | None = None, **options: object) -> Result:
    return check.refuses(script(*lines), reason, line=line, **options)


class TestStart:
    def test_the_whole(self) -> None:
        found = converted(DATA, MODEL, COMPILE, FIT, 'model.save("m.h5")\n')
        assert found == "".join(
            [
                DATA,
                MODEL,
                'model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01 * hvd.size())), "mse")\n',
                f"model.fit({part('x')}, {part('y')}, epochs=20, callbacks=[{OWN}, {WARM}], {VERBOSE})\n",
                'if hvd.rank() == 0:\n    model.save("m.h5")\n',
            ]
        )

    def test_before_operations_of_the_module(self) -> None:
        found = converted("SCALE = tf.constant(2.0)\n", DATA, MODEL, COMPILE, FIT)
        assert found.startswith("SCALE = ")

    def test_before_a_module_that_uses_devices_when_imported(self, tmp_path: Path) -> None:
        (tmp_path / "net.py").write_text("import tensorflow as tf\n" + MODEL)
        result = check.run(script("from net import model\n", DATA, COMPILE, FIT), folder=tmp_path)
        assert result.after.decode().index("hvd.init()") < result.after.decode().index("from net")

    def test_a_module_that_uses_devices_above_tensorflow(self, tmp_path: Path) -> None:
        (tmp_path / "net.py").write_text("import tensorflow as tf\n" + MODEL)
        text = "from net import model\nimport numpy as np\nimport tensorflow as tf\n" + DATA + COMPILE + FIT
        check.refuses(text, "before anything that uses a device", folder=tmp_path)

    def test_names_of_the_script(self) -> None:
        result = check.run(script("hvd = gpus = gpu = 1\n", DATA, MODEL, COMPILE, FIT))
        text = result.after.decode()
        assert "import horovod.tensorflow.keras as _hvd\n" in text and "for physical_gpu in physical_gpus:" in text

    def test_memory_growth_of_the_script_stays(self) -> None:
        growth = (
            "for g in tf.config.list_physical_devices('GPU'):\n    tf.config.experimental.set_memory_growth(g, True)\n"
        )
        assert growth in converted(growth, DATA, MODEL, COMPILE, FIT)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n", "same GPUs"),
            ("tf.config.set_visible_devices(tf.config.list_physical_devices('GPU')[0], 'GPU')\n", "chooses the GPUs"),
            ("with tf.device('/gpu:1'):\n    z = 1\n", "one GPU"),
            ("tf.compat.v1.disable_eager_execution()\n", "graph mode"),
        ],
    )
    def test_devices_of_the_script(self, line: str, reason: str) -> None:
        refuses(reason, line, DATA, MODEL, COMPILE, FIT)

    def test_main(self) -> None:
        text = (
            "def main():\n"
            + textwrap.indent(DATA + MODEL + COMPILE + FIT, "    ")
            + 'if __name__ == "__main__":\n    main()\n'
        )
        assert "    model.compile(hvd.DistributedOptimizer(" in converted(text)

    def test_aliases(self) -> None:
        text = (
            "import numpy as np\nfrom tensorflow import keras\n"
            + DATA
            + 'model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])\nmodel.compile("adam", "mse")\n'
            + FIT
        )
        after = check.run(text).after.decode()
        assert "hvd.DistributedOptimizer(keras.optimizers.Adam(learning_rate=0.001 * hvd.size()))" in after
        assert "import tensorflow as tf\n" in after


class TestOptimizers:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("'adam'", "hvd.DistributedOptimizer(tf.keras.optimizers.Adam(learning_rate=0.001 * hvd.size()))"),
            ("'sgd'", "hvd.DistributedOptimizer(tf.keras.optimizers.SGD(learning_rate=0.01 * hvd.size()))"),
            (
                "tf.keras.optimizers.Adam()",
                "hvd.DistributedOptimizer(tf.keras.optimizers.Adam(learning_rate=0.001 * hvd.size()))",
            ),
            (
                "tf.keras.optimizers.SGD(lr=0.1, momentum=0.9)",
                "hvd.DistributedOptimizer(tf.keras.optimizers.SGD(lr=0.1 * hvd.size(), momentum=0.9))",
            ),
            (
                "tf.keras.optimizers.SGD(RATE / 2 + 1)",
                "hvd.DistributedOptimizer(tf.keras.optimizers.SGD((RATE / 2 + 1) * hvd.size()))",
            ),
            (
                "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))",
                "tf.keras.mixed_precision.LossScaleOptimizer(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1 * hvd.size())))",
            ),
        ],
    )
    def test_given(self, before: str, after: str) -> None:
        assert f"model.compile({after}, 'mse')" in converted(
            "RATE = 0.1\n", DATA, MODEL, f"model.compile({before}, 'mse')\n", FIT
        )

    def test_keyword(self) -> None:
        found = converted(DATA, MODEL, "model.compile(loss='mse', optimizer='adam')\n", FIT)
        assert "optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(" in found

    def test_variable(self) -> None:
        found = converted(DATA, MODEL, "opt = tf.keras.optimizers.Adam(0.01)\nmodel.compile(opt, 'mse')\n", FIT)
        assert "opt = tf.keras.optimizers.Adam(0.01 * hvd.size())\n" in found
        assert "model.compile(hvd.DistributedOptimizer(opt), 'mse')" in found

    def test_variable_that_is_used_elsewhere_too(self) -> None:
        text = "opt = tf.keras.optimizers.Adam(0.01)\nmodel.compile(opt, 'mse')\n"
        found = converted(DATA, MODEL, text, FIT, "print(opt.iterations)\n")
        assert "opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01 * hvd.size()))\n" in found
        assert "model.compile(opt, 'mse')" in found

    def test_factory(self) -> None:
        text = """\
        KINDS = {"sgd": tf.keras.optimizers.SGD, "adam": tf.keras.optimizers.Adam}
        def pick(kind, rate):
            return KINDS[kind](rate)
        """
        found = converted(text, DATA, MODEL, "model.compile(pick('sgd', 0.01), 'mse')\n", FIT)
        assert "model.compile(hvd.DistributedOptimizer(pick('sgd', 0.01)), 'mse')" in found

    def test_unseen_rate_is_scaled_by_the_warm_up(self) -> None:
        found = converted(
            "import os\nKINDS = {'sgd': tf.keras.optimizers.SGD}\n",
            DATA,
            MODEL,
            "model.compile(KINDS[os.environ['K']](0.1), 'mse')\n",
            FIT,
        )
        assert "initial_lr=float(model.optimizer.learning_rate.numpy()) * hvd.size(), warmup_epochs=5" in found
        assert "momentum_correction=False" in found

    def test_one_of_several_names(self) -> None:
        found = converted(
            "import sys\nname = 'adam' if sys.argv[1:] else 'sgd'\n", DATA, MODEL, "model.compile(name, 'mse')\n", FIT
        )
        assert "model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.get(name)), 'mse')" in found

    def test_jit_compile_and_steps_per_execution_are_left_out(self) -> None:
        text = "model.compile('sgd', 'mse', jit_compile=True, steps_per_execution=4)\n"
        found = converted(DATA, MODEL, text, FIT)
        assert "jit_compile" not in found and "steps_per_execution" not in found

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("setup = model.compile\nsetup('sgd', 'mse')\n", "passed on"),
            ("getattr(model, 'compile')('sgd', 'mse')\n", "may train where it is not seen"),
            ("model.compile('foo', 'mse')\n", "no optimizer is known"),
            ("model.compile(loss='mse')\n", "no optimizer"),
            ("model.compile(**settings())\n", "may hold the optimizer"),
        ],
    )
    def test_not_proven(self, text: str, reason: str) -> None:
        refuses(reason, DATA, MODEL, text, FIT)

    def test_own_optimizer_without_get_config(self) -> None:
        text = """\
        class Mine(tf.keras.optimizers.Optimizer):
            def __init__(self, learning_rate=0.1):
                super().__init__(name="mine")
        model.compile(Mine(0.1), "mse")
        """
        refuses("`get_config`", DATA, MODEL, text, FIT)


class TestRates:
    def test_no_scaling(self) -> None:
        found = converted(DATA, MODEL, COMPILE, FIT, lr_scaling=False)
        assert 'hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), "mse")' in found
        assert f"callbacks=[{OWN}]" in found

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("ExponentialDecay(0.1, 100, 0.9)", "ExponentialDecay(0.1 * hvd.size(), 100 // hvd.size(), 0.9)"),
            (
                "CosineDecay(initial_learning_rate=0.1, decay_steps=10 * len(x))",
                "CosineDecay(initial_learning_rate=0.1 * hvd.size(), decay_steps=10 * len(x) // hvd.size())",
            ),
            (
                "PolynomialDecay(0.1, 100)",
                "PolynomialDecay(0.1 * hvd.size(), 100 // hvd.size(), end_learning_rate=0.0001 * hvd.size())",
            ),
            (
                "PiecewiseConstantDecay([10, 20], [0.1, 0.01, 0.001])",
                "PiecewiseConstantDecay([step // hvd.size() for step in [10, 20]], "
                "[rate * hvd.size() for rate in [0.1, 0.01, 0.001]])",
            ),
        ],
    )
    def test_schedules(self, before: str, after: str) -> None:
        text = f"rate = tf.keras.optimizers.schedules.{before}\nmodel.compile(tf.keras.optimizers.SGD(rate), 'mse')\n"
        found = converted(DATA, MODEL, text, FIT)
        assert f"rate = tf.keras.optimizers.schedules.{after}\n" in found
        assert "LearningRateWarmupCallback" not in found

    def test_own_schedule(self) -> None:
        text = """\
        class Mine(tf.keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                return 0.1
        model.compile(tf.keras.optimizers.SGD(Mine()), "mse")
        """
        refuses("schedule of a class of its own", DATA, MODEL, text, FIT)

    def test_absolute_plan(self) -> None:
        text = """\
        def plan(epoch):
            return 0.1 if epoch < 2 else 0.01
        """
        fit = "model.fit(x, y, epochs=3, callbacks=[tf.keras.callbacks.LearningRateScheduler(plan)])\n"
        found = converted(text, DATA, MODEL, COMPILE, fit)
        factor = "(1 + (hvd.size() - 1) * min(epoch, 1))"
        assert f"LearningRateScheduler(lambda epoch: plan(epoch) * {factor})" in found
        assert "Adam(0.01 * hvd.size())" in found and "LearningRateWarmupCallback" not in found

    def test_plan_in_a_lambda(self) -> None:
        fit = "model.fit(x, y, epochs=30, callbacks=[tf.keras.callbacks.LearningRateScheduler(lambda e: 0.1 * 0.9 ** e)])\n"
        found = converted(DATA, MODEL, COMPILE, fit)
        assert "LearningRateScheduler(lambda e: 0.1 * 0.9 ** e * (1 + (hvd.size() - 1) * min(e / 5, 1)))" in found

    def test_relative_plan_stays(self) -> None:
        text = """\
        def plan(epoch, lr):
            if epoch < 10:
                return lr
            return lr * 0.9
        """
        fit = "model.fit(x, y, epochs=20, callbacks=[tf.keras.callbacks.LearningRateScheduler(plan)])\n"
        found = converted(text, DATA, MODEL, COMPILE, fit)
        assert "LearningRateScheduler(plan)" in found and "Adam(0.01 * hvd.size())" in found
        assert "Warmup" not in found  # it would overrule the plan

    def test_plateau(self) -> None:
        fit = "model.fit(x, y, epochs=20, callbacks=[tf.keras.callbacks.ReduceLROnPlateau(min_lr=1e-5)])\n"
        assert "ReduceLROnPlateau(min_lr=1e-5 * hvd.size())" in converted(DATA, MODEL, COMPILE, fit)

    def test_a_callback_that_sets_rates_leaves_all(self) -> None:
        text = """\
        class Steps(tf.keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self.model.optimizer.learning_rate = 0.1
        """
        found = converted(text, DATA, MODEL, COMPILE, "model.fit(x, y, callbacks=[Steps()])\n")
        assert "Adam(0.01)" in found and "Warmup" not in found and "Steps()]" in found

    def test_set_elsewhere_leaves_all(self) -> None:
        text = "tf.keras.backend.set_value(model.optimizer.lr, 0.5)\n"
        assert "Adam(0.01)" in converted(DATA, MODEL, COMPILE, text, FIT)

    def test_a_loop_of_fits(self) -> None:
        found = converted(DATA, MODEL, COMPILE, "for _ in range(3):\n    model.fit(x, y)\n")
        assert "Warmup" not in found and "Adam(0.01 * hvd.size())" in found

    @pytest.mark.parametrize(
        ("epochs", "warm_up"),
        [("3", "1"), ("8", "4"), ("10", "5"), ("EPOCHS()", "5"), ("N.epochs", "min(5, N.epochs)")],
    )
    def test_length_of_the_warm_up(self, epochs: str, warm_up: str) -> None:
        found = converted("EPOCHS = N = input\n", DATA, MODEL, COMPILE, f"model.fit(x, y, epochs={epochs})\n")
        assert f"warmup_epochs={warm_up})" in found

    def test_second_fit_has_no_warm_up(self) -> None:
        assert converted(DATA, MODEL, COMPILE, FIT, FIT).count("Warmup") == 1


class TestData:
    def fit(self, *lines: str, **options: object) -> str:
        return converted(DATA, MODEL, COMPILE, *lines, **options)

    def test_sample_weight_and_labels(self) -> None:
        found = self.fit("w = np.ones(96)\nmodel.fit(x=x, y=y, sample_weight=w, epochs=20)\n")
        assert f"x={part('x')}, y={part('y')}, sample_weight={part('w')}" in found

    def test_several_inputs(self) -> None:
        found = self.fit("a = np.ones((96, 4))\nmodel.fit([x, a], y, epochs=20)\n")
        assert f"model.fit([{part('x')}, {part('a')}], {part('y')}, " in found

    def test_list_of_inputs_in_a_variable(self) -> None:
        found = self.fit("a = [x, x]\nmodel.fit(a, y, epochs=20)\n")
        assert f"model.fit([array{PART.format('array')} for array in a], " in found

    def test_dict_of_inputs(self) -> None:
        found = self.fit("a = {'one': x}\nmodel.fit(a, y, epochs=20)\n")
        assert f"{{name: array{PART.format('array')} for name, array in a.items()}}" in found

    def test_computed(self) -> None:
        found = self.fit("model.fit(x / scale(), y, epochs=20)\n")
        assert f"inputs = x / scale()\nmodel.fit({part('inputs')}, {part('y')}, " in found

    def test_of_known_length(self) -> None:
        found = self.fit("model.fit(np.ones((32, 4)) / 2, np.ones((32, 1)), epochs=20)\n")
        part = "[hvd.rank():32 // hvd.size() * hvd.size():hvd.size()]"
        assert f"model.fit((np.ones((32, 4)) / 2){part}, np.ones((32, 1)){part}, " in found

    def test_computed_in_a_lambda(self) -> None:
        refuses("computed where it is handed over", DATA, MODEL, COMPILE, "f = lambda: model.fit(x / z, y)\nf()\n")

    def test_steps_per_epoch(self) -> None:
        found = self.fit("model.fit(x, y, epochs=20, steps_per_epoch=len(x) // 32)\n")
        assert "steps_per_epoch=len(x) // 32 // hvd.size()" in found

    def test_validation_stays_whole(self) -> None:
        assert "validation_data=(x, y)" in self.fit("model.fit(x, y, epochs=20, validation_data=(x, y))\n")

    def test_validation_split(self) -> None:
        assert "validation_split=0.2" in self.fit("model.fit(x, y, epochs=20, validation_split=0.2)\n")

    def test_an_unseeded_split(self) -> None:
        text = (
            "from sklearn.model_selection import train_test_split\na, b, c, d = train_test_split(x, y, test_size=0.2)\n"
        )
        found = self.fit(text, "model.fit(a, c, epochs=20, validation_data=(b, d))\n")
        assert "train_test_split(x, y, test_size=0.2, random_state=0)" in found

    def test_an_unseeded_shuffle(self) -> None:
        found = self.fit("i = np.random.permutation(96)\nx, y = x[i], y[i]\n", FIT)
        assert found.startswith("np.random.seed(0)  # the order of the data is the same on every rank\n")
        assert "seed(0)" not in self.fit("np.random.seed(1)\nnp.random.shuffle(x)\n", FIT)

    def test_an_unseeded_shuffle_of_python(self) -> None:
        imports = "import random\nimport numpy as np\nimport tensorflow as tf\n"
        found = self.fit("files = ['a', 'b']\nrandom.shuffle(files)\n", FIT, imports=imports)
        assert "\nrandom.seed(0)  # the order" in "\n" + found

    def test_an_unseeded_generator(self) -> None:
        assert "rng = np.random.default_rng(0)\n" in self.fit("rng = np.random.default_rng()\nrng.shuffle(x)\n", FIT)

    def test_looking_at_some_elements(self) -> None:
        text = """\
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
        for a, b in ds.take(1):
            print(a.shape)
        first, _ = next(iter(ds))
        model.fit(ds, epochs=20)
        """
        assert f"from_tensor_slices((x, y)){self.SHARD}.shuffle(96)" in self.fit(text)

    SHARD = ".shard(hvd.size(), hvd.rank()).take(len(x) // hvd.size())"

    def test_at_the_source(self) -> None:
        found = self.fit(
            "ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)\nmodel.fit(ds, epochs=20)\n"
        )
        assert f"ds = tf.data.Dataset.from_tensor_slices((x, y)){self.SHARD}.shuffle(96).batch(8)\n" in found

    def test_behind_take_and_skip(self) -> None:
        text = """\
        full = tf.data.Dataset.from_tensor_slices((x, y))
        train = full.take(80).shuffle(80).batch(8)
        model.fit(train, validation_data=full.skip(80).batch(8), epochs=20)
        """
        apply = "apply(lambda part: part.shard(hvd.size(), hvd.rank()).take(part.cardinality() // hvd.size()))"
        assert f"train = full.take(80).{apply}.shuffle(80).batch(8)\n" in self.fit(text)

    def test_shuffled_before_it_is_divided(self) -> None:
        text = """\
        full = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96)
        model.fit(full.take(80).batch(8), epochs=20)
        """
        refuses("shuffled differently", DATA, MODEL, COMPILE, text)

    def test_seeded_before_it_is_divided(self) -> None:
        text = """\
        full = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=1, reshuffle_each_iteration=False)
        model.fit(full.take(80).batch(8), epochs=20)
        """
        assert "full.take(80).apply(lambda part:" in self.fit(text)

    def test_a_function_for_training_and_validation(self) -> None:
        text = """\
        def prepare(ds):
            return ds.shuffle(10).batch(8)
        train = tf.data.Dataset.from_tensor_slices((x, y))
        val = tf.data.Dataset.from_tensor_slices((x, y))
        model.fit(prepare(train), validation_data=prepare(val), epochs=20)
        """
        apply = "apply(lambda part: part.shard(hvd.size(), hvd.rank()).take(part.cardinality() // hvd.size()))"
        assert f"model.fit(prepare(train.{apply}), validation_data=prepare(val), epochs=20" in self.fit(text)

    def test_one_dataset_for_both(self) -> None:
        text = (
            "ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)\nmodel.fit(ds, validation_data=ds, epochs=20)\n"
        )
        found = self.fit(text)
        assert "model.fit(ds.apply(lambda part: " in found and "validation_data=ds," in found

    def test_records(self) -> None:
        text = """\
        ds = tf.data.TFRecordDataset(["a", "b"]).map(tf.io.parse_tensor).shuffle(100).repeat().batch(8)
        model.fit(ds, epochs=20, steps_per_epoch=100)
        """
        found = self.fit(text)
        assert 'TFRecordDataset(["a", "b"]).shard(hvd.size(), hvd.rank()).map(' in found
        assert "steps_per_epoch=100 // hvd.size()" in found

    def test_records_of_unknown_number(self) -> None:
        text = """\
        def read(path):
            return tf.data.TFRecordDataset(path).map(tf.io.parse_tensor).batch(8)
        model.fit(read("a"), epochs=20)
        """
        found = self.fit(text)
        assert "def part_of_rank(records):\n" in found
        assert found.index("def part_of_rank") < found.index("def read(")
        assert "tf.data.TFRecordDataset(path).apply(part_of_rank).map(" in found

    def test_files_that_are_listed(self) -> None:
        text = """\
        files = tf.data.Dataset.list_files("*.tfrecord")
        ds = files.interleave(tf.data.TFRecordDataset, cycle_length=4).shuffle(100).repeat().batch(8)
        model.fit(ds, epochs=20, steps_per_epoch=100)
        """
        found = self.fit(text)
        assert 'list_files("*.tfrecord", seed=0)' in found
        assert "cycle_length=4).shard(hvd.size(), hvd.rank()).shuffle(100)" in found

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                "ds = tf.data.TFRecordDataset(['a'], num_parallel_reads=tf.data.AUTOTUNE).repeat()\n",
                "depends on the machine",
            ),
            (
                "ds = tf.data.Dataset.from_generator(lambda: iter(np.random.permutation(4)), tf.float32).repeat()\n",
                "random",
            ),
            (
                "ds = tf.data.Dataset.list_files('*').interleave(tf.data.TFRecordDataset, num_parallel_calls=-1).repeat()\n",
                "depends on",
            ),
        ],
    )
    def test_orders_that_differ(self, text: str, reason: str) -> None:
        refuses(reason, DATA, MODEL, COMPILE, text, "model.fit(ds.batch(8), steps_per_epoch=9, epochs=20)\n")

    def test_steps_that_are_counted_on_the_part(self) -> None:
        text = """\
        ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        model.fit(ds.repeat(), epochs=20, steps_per_epoch=len(ds))
        """
        assert "steps_per_epoch=len(ds)," in self.fit(text)

    def test_cache_files(self) -> None:
        text = """\
        ds = tf.data.Dataset.from_tensor_slices((x, y)).cache("train").cache().batch(8)
        val = tf.data.Dataset.from_tensor_slices((x, y)).cache("val").batch(8)
        model.fit(ds, validation_data=val, epochs=20)
        """
        found = self.fit(text)
        assert '.cache("train" + str(hvd.rank())).cache().batch(8)' in found
        assert '.cache("val" + str(hvd.rank()))' in found

    def test_images_of_a_directory(self) -> None:
        text = """\
        ds = tf.keras.utils.image_dataset_from_directory("images")
        print(ds.class_names)
        ds = ds.cache().prefetch(1)
        model.fit(ds, epochs=20)
        """
        found = self.fit(text)
        assert 'image_dataset_from_directory("images", seed=0)' in found
        assert "ds = ds.apply(lambda part: " in found and ".cache().prefetch(1)" in found

    def test_flow(self) -> None:
        text = """\
        gen = tf.keras.preprocessing.image.ImageDataGenerator()
        model.fit(gen.flow(x, y, batch_size=8), steps_per_epoch=len(x) // 8, epochs=20)
        """
        found = self.fit(text)
        assert f"gen.flow({part('x')}, {part('y')}, batch_size=8)" in found
        assert "steps_per_epoch=len(x) // 8 // hvd.size()" in found

    def test_flow_that_tells_its_steps(self) -> None:
        text = """\
        gen = tf.keras.preprocessing.image.ImageDataGenerator().flow(x, y, batch_size=8)
        model.fit(gen, steps_per_epoch=len(gen), epochs=20)
        """
        assert "steps_per_epoch=len(gen)," in self.fit(text)

    def test_a_generator(self) -> None:
        text = """\
        def batches():
            while True:
                for i in range(0, 96, 8):
                    yield x[i:i + 8], y[i:i + 8]
        model.fit(batches(), steps_per_epoch=12, epochs=20)
        """
        result = check.run(script(DATA, MODEL, COMPILE, text)).after.decode()
        assert result.startswith("import itertools\nimport numpy as np\n")
        taken = (
            "model.fit(itertools.islice(batches(), hvd.rank(), None, hvd.size()), steps_per_epoch=12 // hvd.size(), "
        )
        assert taken in result

    def test_a_generator_that_ends(self) -> None:
        text = "def batches():\n    yield x, y\nmodel.fit(batches(), steps_per_epoch=1)\n"
        refuses("may end", DATA, MODEL, COMPILE, text)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                "class Mine(tf.keras.utils.Sequence):\n    def __len__(self):\n        return 3\ndata = Mine()\n",
                "how `Mine` gives its batches is not seen",
            ),
            ("def gen():\n    yield x, y\ndata = gen()\n", "different numbers of steps"),
            ("import other\ndata = other.load()\n", "is not known"),
        ],
    )
    def test_not_split(self, text: str, reason: str) -> None:
        refuses(reason, DATA, MODEL, COMPILE, text, "model.fit(data, epochs=20)\n")


class TestCallbacks:
    def fit(self, callbacks: str, *before: str) -> str:
        return converted(*before, DATA, MODEL, COMPILE, f"model.fit(x, y, epochs=20, callbacks={callbacks})\n")

    def test_first_in_the_list(self) -> None:
        found = self.fit("[tf.keras.callbacks.EarlyStopping()]")
        assert f"callbacks=[{OWN}, {WARM}, tf.keras.callbacks.EarlyStopping()]" in found

    def test_a_variable(self) -> None:
        found = self.fit("cbs", "cbs = [tf.keras.callbacks.EarlyStopping()]\n")
        assert f"callbacks=[{OWN}, {WARM}, *cbs]" in found

    def test_a_variable_that_may_be_none(self) -> None:
        found = self.fit("cbs", "import sys\ncbs = [tf.keras.callbacks.EarlyStopping()] if sys.argv else None\n")
        assert f"callbacks=[{OWN}, {WARM}, *(cbs or [])]" in found

    def test_none(self) -> None:
        assert f"callbacks=[{OWN}, {WARM}]" in self.fit("None")

    @pytest.mark.parametrize("name", ["ModelCheckpoint('m.h5')", "TensorBoard('logs')", "CSVLogger('log.csv')"])
    def test_those_that_write(self, name: str) -> None:
        found = self.fit(f"[tf.keras.callbacks.{name}]")
        assert f"tf.keras.callbacks.{name} if hvd.rank() == 0 else tf.keras.callbacks.Callback()]" in found

    def test_those_that_write_in_a_variable(self) -> None:
        found = self.fit("cbs", "cbs = []\nc = tf.keras.callbacks.ModelCheckpoint('m.h5')\ncbs.append(c)\n")
        assert (
            "c = tf.keras.callbacks.ModelCheckpoint('m.h5') if hvd.rank() == 0 else tf.keras.callbacks.Callback()\n"
            in found
        )

    def test_what_is_asked_of_them(self) -> None:
        text = "c = tf.keras.callbacks.ModelCheckpoint('m.h5')\n"
        refuses("only rank 0 has", text, DATA, MODEL, COMPILE, "model.fit(x, y, callbacks=[c])\nbest = c.best\n")

    @pytest.mark.parametrize("name", ["BackupAndRestore('b')", "TerminateOnNaN()"])
    def test_those_that_end_alone(self, name: str) -> None:
        refuses("alone", DATA, MODEL, COMPILE, f"model.fit(x, y, callbacks=[tf.keras.callbacks.{name}])\n")

    def test_own_that_prints(self) -> None:
        text = """\
        class Show(tf.keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                print(epoch)
        """
        assert "Show() if hvd.rank() == 0 else tf.keras.callbacks.Callback()]" in self.fit("[Show()]", text)

    def test_own_that_decides(self) -> None:
        text = """\
        class Stop(tf.keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if logs["loss"] < 0.1:
                    print("enough")
                    self.model.stop_training = True
        """
        assert "*cbs" not in self.fit("[Stop()]", text) and ", Stop()]" in self.fit("[Stop()]", text)

    def test_own_that_decides_per_batch(self) -> None:
        text = """\
        class Stop(tf.keras.callbacks.Callback):
            def on_batch_end(self, batch, logs=None):
                self.model.stop_training = logs["loss"] < 0.1
        """
        refuses("one rank alone", text, DATA, MODEL, COMPILE, "model.fit(x, y, callbacks=[Stop()])\n")

    def test_own_that_decides_and_writes(self) -> None:
        text = """\
        class Stop(tf.keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.save("m.h5")
                self.model.stop_training = logs["loss"] < 0.1
        """
        refuses("decides how training goes on", text, DATA, MODEL, COMPILE, "model.fit(x, y, callbacks=[Stop()])\n")

    def test_unseen(self) -> None:
        refuses("callbacks", DATA, MODEL, COMPILE, "import other\nmodel.fit(x, y, callbacks=other.callbacks())\n")

    @pytest.mark.parametrize(
        ("given", "after"), [("2", "2 if hvd.rank() == 0 else 0"), ("0", "0"), ("V", "V if hvd.rank() == 0 else 0")]
    )
    def test_verbose(self, given: str, after: str) -> None:
        found = converted("V = int(input())\n", DATA, MODEL, COMPILE, f"model.fit(x, y, epochs=20, verbose={given})\n")
        assert f"verbose={after}," in found


class TestWrites:
    def after(self, *lines: str) -> str:
        return converted(DATA, MODEL, COMPILE, FIT, *lines).partition(VERBOSE + ")\n")[2]

    def test_together_under_one_condition(self) -> None:
        assert self.after("print(1)\nmodel.save('m.h5')\nz = 1\nprint(2)\n") == (
            "if hvd.rank() == 0:\n    print(1)\n    model.save('m.h5')\nz = 1\nif hvd.rank() == 0:\n    print(2)\n"
        )

    def test_files(self) -> None:
        text = "with open('a.txt', 'w') as f:\n    f.write('a')\n"
        assert self.after(text) == "if hvd.rank() == 0:\n" + textwrap.indent(text, "    ")

    def test_reading_stays(self) -> None:
        text = "with open('a.txt') as f:\n    a = f.read()\n"
        assert self.after(text) == text

    def test_names_that_depend_on_it(self) -> None:
        assert self.after("f = open('a', 'w')\nf.write('b')\nf.close()\n") == (
            "if hvd.rank() == 0:\n    f = open('a', 'w')\n    f.write('b')\n    f.close()\n"
        )

    def test_a_name_that_every_rank_uses(self) -> None:
        text = """\
        man = tf.train.CheckpointManager(tf.train.Checkpoint(net=model), "ck", max_to_keep=1)
        saved = man.save()
        for _ in range(2):
            model.fit(x, y, verbose=len(saved))
        """
        refuses("is used on every rank", DATA, MODEL, COMPILE, FIT, text)

    def test_folders(self) -> None:
        assert self.after("import os\nos.makedirs('out')\n") == "import os\nos.makedirs('out', exist_ok=True)\n"

    def test_a_checkpoint_that_is_read_back(self) -> None:
        found = converted(
            DATA,
            MODEL,
            COMPILE,
            "c = tf.keras.callbacks.ModelCheckpoint('m.h5')\nmodel.fit(x, y, epochs=20, callbacks=[c])\n",
            "model.load_weights('m.h5')\nscore = model.evaluate(x, y)\nprint(score)\n",
        )
        assert found.endswith(
            f"if hvd.rank() == 0:\n    model.load_weights('m.h5')\nscore = model.evaluate(x, y, {VERBOSE})\n"
            "if hvd.rank() == 0:\n    print(score)\n"
        )

    def test_weights_that_are_there_before(self) -> None:
        text = "model.load_weights('start.h5')\n"
        assert text in converted(DATA, MODEL, text, COMPILE, FIT).splitlines(keepends=True)

    def test_a_print_that_trains(self) -> None:
        found = converted(DATA, MODEL, COMPILE, "print(model.fit(x, y, epochs=20).history)\n")
        assert "\nprint(model.fit(" in found

    def test_plots(self) -> None:
        found = self.after("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('a.png')\nplt.show()\n")
        assert found.endswith("plt.plot([1])\nif hvd.rank() == 0:\n    plt.savefig('a.png')\n    plt.show()\n")

    def test_in_functions(self) -> None:
        found = converted("def report(h):\n    print(h)\n", DATA, MODEL, COMPILE, FIT, "report(1)\n")
        assert found.startswith("def report(h):\n    if hvd.rank() == 0:\n        print(h)\n")


class TestWhole:
    def test_other_ways_to_train(self) -> None:
        text = """\
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        """
        refuses("`GradientTape`", DATA, MODEL, COMPILE, FIT, text)
        refuses("`train_on_batch`", DATA, MODEL, COMPILE, FIT, "model.train_on_batch(x, y)\n")

    def test_train_step(self) -> None:
        text = """\
        class Net(tf.keras.Model):
            def train_step(self, data):
                return {}
        model = Net()
        """
        refuses("`train_step`", DATA, text, COMPILE, FIT)

    def test_strategy(self) -> None:
        refuses(
            "`MirroredStrategy`",
            DATA,
            "strategy = tf.distribute.MirroredStrategy()\nwith strategy.scope():\n    " + MODEL + "    " + COMPILE,
            FIT,
        )

    def test_horovod_already(self) -> None:
        lines = ("import horovod.tensorflow.keras as hvd\nhvd.init()\n", DATA, MODEL, COMPILE, FIT)
        refuses("already, but nothing averages the gradients", *lines)

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            ("tf2.19", "cannot be built"),
            ("tf2.21", "cannot be built"),
            ("keras3", "certain what runs it"),
            ("tf2.3", "2.4 to 2.15"),
        ],
    )
    def test_targets(self, target: str, reason: str) -> None:
        refuses(reason, DATA, MODEL, COMPILE, FIT, target=target)

    def test_keras_of_its_own(self) -> None:
        refuses("another package", "import keras\n", DATA, MODEL, COMPILE, FIT, target="tf2.5")

    def test_nothing_without_the_option(self) -> None:
        path = Path("/nowhere/train.py")
        data = {path: script(DATA, MODEL, COMPILE, FIT).encode()}
        (result,) = rewrite([path], Options(3, frozenset({"horovod"})), lambda _: named("tf2.15"), data)
        assert result.after == result.before and not result.refused

    def test_no_training(self) -> None:
        refuses("nothing to distribute", "def main():\n    print(1)\nmain()\n")
        check.ignores(script("SIZE = 3\n"))

    def test_a_model_in_a_file_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "net.py").write_text(
            "import tensorflow as tf\ndef build():\n" + textwrap.indent(MODEL + COMPILE, "    ") + "    return model\n"
        )
        (tmp_path / "train.py").write_text(script("from net import build\n", DATA, "model = build()\n", FIT))
        paths = [tmp_path / "train.py", tmp_path / "net.py"]
        options = Options(select=frozenset({"horovod"}), distribute="horovod")
        train, net = rewrite(paths, options, lambda _: named("tf2.15"))
        assert b"hvd.init()" in train.after and b"hvd.init()" not in net.after
        assert b"import horovod.tensorflow.keras as hvd\n" in net.after and b"hvd.DistributedOptimizer(" in net.after
        (alone,) = rewrite(paths[:1], options, lambda _: named("tf2.15"))
        assert alone.after == alone.before and "needs a change in" in alone.refused[0].reason

    def test_a_file_that_another_program_uses(self, tmp_path: Path) -> None:
        (tmp_path / "net.py").write_text(
            "import tensorflow as tf\ndef build():\n" + textwrap.indent(MODEL + COMPILE, "    ") + "    return model\n"
        )
        for name in ("train", "other"):
            (tmp_path / f"{name}.py").write_text(script("from net import build\n", DATA, "model = build()\n", FIT))
        paths = [tmp_path / f"{name}.py" for name in ("train", "other", "net")]
        options = Options(select=frozenset({"horovod"}), distribute="horovod")
        results = rewrite(paths, options, lambda _: named("tf2.15"))
        assert all(r.after == r.before for r in results)
        assert any("uses this file too" in r.reason for result in results for r in result.refused)

    def test_notes(self) -> None:
        result = check.run(script(DATA, MODEL, COMPILE, FIT))
        (applied,) = result.applied
        assert "start it: horovodrun -np 4 python {script}" in applied.notes
        assert any("128 with 4" in note for note in applied.notes)


class TestKinds:
    """Faults that conversions of public scripts had."""

    def test_the_warm_up_is_that_of_the_compile_before(self) -> None:
        """Fine-tuning compiles the same model again, with another rate."""
        again = "model.compile(tf.keras.optimizers.Adam(1e-5), 'mse')\n"
        found = converted(DATA, MODEL, COMPILE, FIT, again, FIT, FIT)
        assert found.count("Warmup") == 2
        assert found.count("initial_lr=float(model.optimizer.learning_rate.numpy()), warmup_epochs=5)") == 2

    def test_models_that_one_function_makes(self) -> None:
        build = "def build():\n" + textwrap.indent(MODEL + COMPILE, "    ") + "    return model\n"
        found = converted(DATA, build, "a = build()\nb = build()\na.fit(x, y, epochs=20)\nb.fit(x, y, epochs=20)\n")
        assert found.count(WARM) == 2

    @pytest.mark.parametrize("made", ["tf.compat.v1.train.AdamOptimizer(0.1)", "other.make()", "dp.DPAdam(0.1)"])
    def test_optimizers_that_are_not_of_keras(self, made: str) -> None:
        lines = ("import other, dp\n", DATA, MODEL, f"model.compile({made}, 'mse')\n", FIT)
        refuses("is an optimizer of Keras is not known", *lines)

    def test_a_class_by_its_name(self) -> None:
        text = "import sys\nmodel.compile(getattr(tf.keras.optimizers, sys.argv[1])(0.1), 'mse')\n"
        assert "hvd.DistributedOptimizer(getattr(" in converted(DATA, MODEL, text, FIT)

    def test_data_that_a_loop_makes(self) -> None:
        """Every rank plays another game, and has other numbers of moves to train on."""
        text = "for _ in range(9):\n    a, b = play(model)\n    model.fit(a, b)\n"
        refuses("made anew in the loop", DATA, MODEL, COMPILE, "from game import play\n", text)

    def test_folds(self) -> None:
        text = """\
        from sklearn.model_selection import KFold
        for train, val in KFold(5, shuffle=True).split(x):
            model.fit(x[train], y[train], epochs=20)
        """
        found = converted(DATA, MODEL, COMPILE, text)
        assert "KFold(5, shuffle=True, random_state=0)" in found and "    inputs = x[train]\n" in found

    def test_files_that_are_moved_before_training(self) -> None:
        text = """\
        import shutil
        shutil.move("all/a.png", "train/a.png")
        ds = tf.keras.utils.image_dataset_from_directory("train", seed=1)
        model.fit(ds, epochs=20)
        """
        refuses("writes files before training", DATA, MODEL, COMPILE, text)

    def test_files_in_a_folder_of_every_rank(self) -> None:
        text = """\
        import os, tempfile
        def prepare(folder):
            with tf.io.TFRecordWriter(os.path.join(folder, "a")) as writer:
                writer.write(b"a")
        folder = tempfile.mkdtemp()
        prepare(folder)
        ds = tf.data.TFRecordDataset(os.path.join(folder, "a")).repeat().batch(8)
        model.fit(ds, epochs=20, steps_per_epoch=10)
        """
        assert "\n    with tf.io.TFRecordWriter" in converted(DATA, MODEL, COMPILE, text)

    def test_a_model_that_is_read_back_and_trained_on(self) -> None:
        text = "model.save('m.h5')\nmodel = tf.keras.models.load_model('m.h5')\nmodel.fit(x, y)\n"
        check.refuses(script(DATA, MODEL, COMPILE, FIT, text), "")

    def test_inputs_from_comprehensions(self) -> None:
        found = converted(DATA, MODEL, COMPILE, "a = {k: x for k in 'ab'}\nmodel.fit(a, y, epochs=20)\n")
        assert "for name, array in a.items()}" in found
        refuses("of samples or of inputs", DATA, MODEL, COMPILE, "a = [v for v in x]\nmodel.fit(a, y)\n")

    def test_files_that_name_the_class_of_the_optimizer(self) -> None:
        found = converted(DATA, MODEL, COMPILE, FIT, "model.save('m.keras')\n")
        assert (
            'wrapped = getattr(model.optimizer, "inner_optimizer", model.optimizer)\n'
            "type(wrapped).__module__ = type(wrapped).__mro__[1].__module__" in found.replace("'", '"')
        )
        assert "wrapped" not in converted(DATA, MODEL, COMPILE, FIT, "model.save('m.h5')\n")

    def test_metrics_that_are_written_as_json(self) -> None:
        """The mean over the ranks is a number of NumPy."""
        found = converted(
            DATA, MODEL, COMPILE, "import json\nh = " + FIT + "logs = h.history\nprint(json.dumps({'a': logs}))\n"
        )
        assert "print(json.dumps({'a': logs}, default=float))" in found
        train = "def train():\n    return model.fit(x, y, epochs=20).history\n"
        found = converted(DATA, MODEL, COMPILE, train, "import json\nlogs = train()\nprint(json.dumps(logs['loss']))\n")
        assert "json.dumps(logs['loss'], default=float)" in found
        assert "default" not in converted(DATA, MODEL, COMPILE, FIT, "import json\nprint(json.dumps({'a': 1}))\n")


class TestLoaded:
    """A model that is loaded with its optimizer averages nothing, not even by `hvd.load_model`."""

    LOAD = "model = tf.keras.models.load_model('m.h5')\n"
    EITHER = "import os\nif os.path.exists('m.h5'):\n    {load}\nelse:\n    " + MODEL + "    {compile}\n"

    def test_trained_as_it_is(self) -> None:
        refuses("for which Horovod's `hvd.load_model` averages no gradients", DATA, self.LOAD, FIT)
        refuses("it trains a model that is loaded with its optimizer", DATA, self.LOAD, FIT, target="tf2.10")

    @pytest.mark.parametrize(
        "load",
        [
            "model = tf.keras.models.load_model('m.h5')",
            "model = tf.keras.models.load_model('m.h5', custom_objects={})",
            "import pickle; model = pickle.load(open('m.pkl', 'rb'))",
            "import joblib; model = joblib.load('m.pkl')",
            "import mlflow; model = mlflow.keras.load_model('m')",
        ],
    )
    def test_in_one_branch(self, load: str) -> None:
        """`load_model` to go on with training, or a new model that is compiled."""
        text = self.EITHER.format(load=load, compile=COMPILE.rstrip())
        refuses("loaded with its optimizer", DATA, text, FIT)

    def test_in_a_function(self) -> None:
        text = "def make(path=None):\n    if path:\n        return tf.keras.models.load_model(path)\n"
        text += f"    {MODEL}    {COMPILE}    return model\n"
        refuses("where no `compile` follows (line ", DATA, text, "import sys\nmodel = make(sys.argv[1])\n", FIT)

    def test_a_model_that_is_there_or_none(self) -> None:
        text = "import os\nmodel = None\nif os.path.exists('m.h5'):\n    " + self.LOAD
        refuses("where no `compile` follows", DATA, text, f"if model is None:\n    {MODEL}    {COMPILE}", FIT)

    def test_compiled_in_some_cases(self) -> None:
        refuses("where no `compile` follows", DATA, self.LOAD, f"if len(x) > 9:\n    {COMPILE}", FIT)

    def test_compiled_too_late(self) -> None:
        refuses("where no `compile` follows", DATA, self.LOAD, FIT, COMPILE, FIT)

    @pytest.mark.parametrize(
        "text",
        [
            LOAD + COMPILE + FIT,
            f"if len(x) > 9:\n    {LOAD}    {COMPILE}    {FIT}",
            EITHER.format(load=LOAD.rstrip(), compile="pass") + COMPILE + FIT,
            LOAD.replace("h5'", "h5', compile=False") + f"if len(x) > 9:\n    {COMPILE}" + FIT,
            f"def load():\n    return {LOAD.removeprefix('model = ')}if __name__ == '__main__':\n"
            f"    model = load()\n    {COMPILE}    {FIT}",
        ],
    )
    def test_compiled_again(self, text: str) -> None:
        assert "hvd.DistributedOptimizer(" in converted(DATA, text)


class TestProgress:
    """`evaluate` and `predict` on every rank show what they do once."""

    @pytest.mark.parametrize(
        ("call", "wanted"),
        [
            ("model.evaluate(x, y)", f"model.evaluate(x, y, {VERBOSE})"),
            ("model.evaluate(x, y, verbose=2)", "model.evaluate(x, y, verbose=2 if hvd.rank() == 0 else 0)"),
            ("model.evaluate(x, y, 8, 1)", "model.evaluate(x, y, 8, 1 if hvd.rank() == 0 else 0)"),
            ("model.predict(x)", f"model.predict(x, {VERBOSE})"),
            ("model.predict(x, verbose=0)", "model.predict(x, verbose=0)"),
            ("model.evaluate(x, y, verbose=False)", "model.evaluate(x, y, verbose=False)"),
            ("model.evaluate(x, y, **{'steps': len(x)})", f"model.evaluate(x, y, **{{'steps': len(x)}}, {VERBOSE})"),
        ],
    )
    def test_of_rank_0(self, call: str, wanted: str) -> None:
        assert converted(DATA, MODEL, COMPILE, FIT, f"result = {call}\n").endswith(f"result = {wanted}\n")

    def test_predict_was_quiet(self) -> None:
        """Before TensorFlow 2.9."""
        found = converted(DATA, MODEL, COMPILE, FIT, "p = model.predict(x)\ns = model.evaluate(x, y)\n", target="tf2.8")
        assert found.endswith(f"p = model.predict(x)\ns = model.evaluate(x, y, {VERBOSE})\n")

    def test_where_rank_0_is_alone(self) -> None:
        found = converted(DATA, MODEL, COMPILE, FIT, "print(model.evaluate(x, y))\n")
        assert found.endswith("if hvd.rank() == 0:\n    print(model.evaluate(x, y))\n")

    def test_methods_of_the_project(self) -> None:
        """They need not take `verbose`."""
        net = "class Net(tf.keras.Model):\n    def predict(self, x):\n        return self(x)\nmodel = Net()\n"
        text = "p = model.predict(x)\ns = model.evaluate(x, y)\n"
        assert converted(DATA, net, COMPILE, FIT, text).endswith(
            f"p = model.predict(x)\ns = model.evaluate(x, y, {VERBOSE})\n"
        )

    def test_what_is_no_model_of_keras(self) -> None:
        text = "from sklearn.svm import SVC\nother = SVC()\np = other.predict(x)\n"
        assert converted(DATA, MODEL, COMPILE, FIT, text).endswith("p = other.predict(x)\n")
