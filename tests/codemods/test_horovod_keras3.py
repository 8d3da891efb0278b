"""What becomes of programs on Keras 3 under `--distribute horovod`, as text."""

from __future__ import annotations

import re
import textwrap
from importlib.resources import files

import pytest

from rewriter.engine import Result
from tests.check import Check

check = Check("horovod", target="tf2.18")

IMPORTS = "import numpy as np\nimport tensorflow as tf\nimport keras\n"
MODEL = "model = keras.Sequential([keras.layers.Dense(1)])\n"
COMPILE = 'model.compile(keras.optimizers.Adam(0.01), "mse")\n'
DATA = "x, y = np.ones((96, 4)), np.ones((96, 1))\n"
FIT = "model.fit(x, y, epochs=20)\n"
VERBOSE = "verbose=1 if hvd.rank() == 0 else 0"
SNIPPET = files("codemods.snippets").joinpath("horovod_keras3.py").read_text(encoding="utf-8")
STEP = """\
class Net(keras.Model):
    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=b, y_pred=self(a, training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}
"""


def part(name: str) -> str:
    return f"{name}[hvd.rank():len({name}) // hvd.size() * hvd.size():hvd.size()]"


def definition(name: str) -> str:
    """A part of the snippet as it is written into a script that has `tf`, `keras` and `hvd`."""
    found = re.search(rf"^(?:def|class) {name}\b.*?(?=\n\n\n|\Z)", SNIPPET, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0].rstrip("\n")


def script(*lines: str, imports: str = IMPORTS) -> str:
    return imports + "".join(textwrap.dedent(line) for line in lines)


def converted(*lines: str, imports: str = IMPORTS, **options: object) -> str:
    """The program; a second run leaves it alone."""
    result = check.run(script(*lines, imports=imports), **options)  # type: ignore[arg-type]
    after = result.after.decode()
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    again = check.run(after, **options)  # type: ignore[arg-type]
    assert again.after == again.before, again.after.decode()
    assert "DistributedOptimizer" not in after and "DistributedGradientTape" not in after
    compile(after, "train.py", "exec")
    return after


def refuses(reason: str, *lines: str, line: int | None = None, **options: object) -> Result:
    return check.refuses(script(*lines), reason, line=line, **options)


class TestTarget:
    @pytest.mark.parametrize("target", ["tf2.16", "tf2.17", "tf2.18"])
    def test_converted(self, target: str) -> None:
        converted(DATA, MODEL, COMPILE, FIT, target=target)

    @pytest.mark.parametrize("target", ["tf2.19", "tf2.21"])
    def test_too_new(self, target: str) -> None:
        result = refuses("Horovod cannot be built for", DATA, MODEL, COMPILE, FIT, target=target)
        assert any("--distribute mirrored" in r.hint for r in result.refused)

    def test_which_one_is_not_known(self) -> None:
        result = refuses("it has to be certain what runs it", DATA, MODEL, COMPILE, FIT, target="keras3")
        assert any("tf2.18" in r.hint for r in result.refused)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'\n", "`TF_USE_LEGACY_KERAS` is mentioned"),
            ("import tf_keras\n", "`tf_keras` is imported"),
            ("import os; os.environ['KERAS_BACKEND'] = 'jax'\n", "Keras computes with jax"),
        ],
    )
    def test_another_keras(self, text: str, reason: str) -> None:
        refuses(reason, text, DATA, MODEL, COMPILE, FIT)


class TestFit:
    def test_the_whole(self) -> None:
        found = converted(DATA, MODEL, COMPILE, FIT, 'model.save("m.keras")\n')
        parts = ("distribute_optimizer", "BroadcastWeights", "AverageMetrics", "WarmUpLearningRate")
        want = f"""\
{IMPORTS}import horovod.tensorflow as hvd

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")


{(chr(10) * 3).join(map(definition, parts))}


{DATA}{MODEL}model.compile(keras.optimizers.Adam(0.01 * hvd.size()), "mse", jit_compile=False)
distribute_optimizer(model.optimizer)
model.fit({part("x")}, {part("y")}, epochs=20, callbacks=[BroadcastWeights(), AverageMetrics(), \
WarmUpLearningRate(0.01 * hvd.size(), epochs=5)], {VERBOSE})
if hvd.rank() == 0:
    model.save("m.keras")
"""
        assert found == want

    def test_an_exported_model_is_written_once(self) -> None:
        found = converted(DATA, MODEL, COMPILE, FIT, 'model.export("exported")\n')
        assert 'if hvd.rank() == 0:\n    model.export("exported")\n' in found

    def test_as_the_file_spells_it(self) -> None:
        found = converted(DATA, MODEL, COMPILE, FIT, imports="import numpy as np\nfrom tensorflow import keras\n")
        assert "class BroadcastWeights(keras.callbacks.Callback):" in found
        found = converted(
            DATA,
            "model = Sequential([Dense(1)])\nmodel.compile('adam', 'mse')\n",
            FIT,
            imports="import numpy as np\nfrom keras.models import Sequential\nfrom keras.layers import Dense\n"
            "from keras.callbacks import Callback\n",
        )
        assert "class BroadcastWeights(Callback):" in found
        assert "import keras\n" in found and "isinstance(part, keras.optimizers.Optimizer)" in found

    def test_what_the_file_calls_keras_further_down(self) -> None:
        imports = "import numpy as np\nimport tensorflow as tf\n"
        found = converted("keras = tf.keras\n", DATA, MODEL, COMPILE, FIT, imports=imports)
        assert "class BroadcastWeights(tf.keras.callbacks.Callback):" in found
        assert found.index("class BroadcastWeights") < found.index("keras = tf.keras\n")

    def test_names_of_the_script(self) -> None:
        found = converted("hvd = AverageMetrics = 1\n", DATA, MODEL, COMPILE, FIT)
        assert "import horovod.tensorflow as _hvd\n" in found
        assert "class AverageMetrics_2(" in found and "AverageMetrics_2(), " in found
        assert "_hvd.allreduce" in found and " hvd." not in found

    def test_names_of_modules_in_the_helpers(self) -> None:
        """What a helper calls its own must not hide what the file calls Keras or TensorFlow."""
        imports = IMPORTS + "from keras import optimizers as parts\nimport tensorflow as v\n"
        found = converted(DATA, MODEL, COMPILE, FIT, imports=imports)
        assert "parts_2 = [part for part in vars(self.model).values() if isinstance(part, parts.Optimizer)]" in found
        assert "[v_2.value for v_2 in variables]" in found and "v.cast(value, v.float32)" in found

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("'adam'", "keras.optimizers.Adam(learning_rate=0.001 * hvd.size())"),
            ("'lion'", "keras.optimizers.Lion(learning_rate=0.001 * hvd.size())"),
            ("optimizer=keras.optimizers.SGD()", "optimizer=keras.optimizers.SGD(learning_rate=0.01 * hvd.size())"),
            ("keras.optimizers.get(NAME)", "keras.optimizers.get(NAME)"),
            ("keras.optimizers.Adam(Mine())", "keras.optimizers.Adam(Mine())"),
            ("pick()", "pick()"),
            (
                "keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))",
                "keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1 * hvd.size()))",
            ),
        ],
    )
    def test_optimizers(self, before: str, after: str) -> None:
        """What the optimizer is need not be known: it is at hand after `compile`."""
        text = """\
        from somewhere import pick
        class Mine(keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                return 0.1
        """
        found = converted(text, DATA, MODEL, f"model.compile({before}, loss='mse')\n", FIT)
        assert (
            f"model.compile({after}, loss='mse', jit_compile=False)\ndistribute_optimizer(model.optimizer)\n" in found
        )

    def test_unseen_rates_stay(self) -> None:
        text = "from somewhere import pick\nmodel.compile(pick(), loss='mse')\n"
        result = check.run(script(DATA, MODEL, text, FIT))
        assert "WarmUp" not in result.after.decode()
        (applied,) = result.applied
        assert any("learning rates are as they were" in note for note in applied.notes)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("jit_compile=True", "jit_compile=False"),
            ("jit_compile=False", "jit_compile=False"),
            ("run_eagerly=True", "run_eagerly=True"),
            ("steps_per_execution=8", "jit_compile=False"),
        ],
    )
    def test_compile_arguments(self, before: str, after: str) -> None:
        found = converted(DATA, MODEL, f"model.compile('sgd', 'mse', {before})\n", FIT, lr_scaling=False)
        assert f"model.compile('sgd', 'mse', {after})\n" in found

    def test_open_arguments(self) -> None:
        refuses("`jit_compile=False` is needed", DATA, MODEL, "model.compile(**settings)\n", FIT)

    def test_in_a_function(self) -> None:
        text = """\
        def build():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model
        model = build()
        """
        found = converted(DATA, text, FIT, lr_scaling=False)
        assert (
            '    model.compile("sgd", "mse", jit_compile=False)\n    distribute_optimizer(model.optimizer)\n' in found
        )

    def test_a_generator(self) -> None:
        """Keras 3 takes nothing else that goes through batches, such as `islice`."""
        text = """\
        def batches():
            while True:
                yield x, y
        """
        fit = "model.fit(batches(), steps_per_epoch=4)\n"
        found = converted(text, DATA, MODEL, COMPILE, fit, lr_scaling=False)
        assert "model.fit((batch for batch in itertools.islice(batches(), hvd.rank(), None, hvd.size())), " in found

    def test_an_optimizer_that_is_set_later(self) -> None:
        refuses("is set after `compile`", DATA, MODEL, COMPILE, "model.optimizer = keras.optimizers.SGD()\n", FIT)

    def test_an_optimizer_that_applies_gradients_itself(self) -> None:
        text = """\
        class Mine(keras.optimizers.SGD):
            def apply_gradients(self, grads_and_vars):
                for gradient, variable in grads_and_vars:
                    variable.assign_sub(0.1 * gradient)
        model.compile(Mine(), "mse")
        """
        refuses("in a way of its own", DATA, MODEL, text, FIT)

    def test_an_optimizer_of_the_project(self) -> None:
        text = """\
        class Mine(keras.optimizers.SGD):
            def update_step(self, gradient, variable, learning_rate):
                self.assign_sub(variable, 2 * learning_rate * gradient)
        model.compile(Mine(0.1), "mse")
        """
        assert "distribute_optimizer(model.optimizer)" in converted(DATA, MODEL, text, FIT)

    def test_without_a_name(self) -> None:
        text = """\
        def build():
            return keras.Sequential([keras.layers.Dense(1)])
        nets = [build()]
        nets[0].compile("sgd", "mse")
        nets[0].fit(x, y, epochs=2)
        """
        refuses("name here", DATA, text)

    def test_callbacks_on_rank_0(self) -> None:
        fit = "model.fit(x, y, callbacks=[keras.callbacks.CSVLogger('a'), keras.callbacks.EarlyStopping()])\n"
        found = converted(DATA, MODEL, COMPILE, fit, lr_scaling=False)
        assert (
            "callbacks=[BroadcastWeights(), AverageMetrics(), keras.callbacks.CSVLogger('a') if hvd.rank() == 0 else "
            "keras.callbacks.Callback(), keras.callbacks.EarlyStopping()]"
        ) in found


class TestRates:
    def test_warm_up(self) -> None:
        found = converted(DATA, MODEL, 'model.compile("sgd", "mse")\n', "model.fit(x, y, epochs=4)\n")
        assert "WarmUpLearningRate(0.01 * hvd.size(), epochs=2)" in found

    def test_none_with_a_schedule_of_another_compile(self) -> None:
        """Which `compile` is in force is not told: a schedule takes no other rate."""
        text = """\
        rate = keras.optimizers.schedules.CosineDecay(0.1, 60)
        model.compile(keras.optimizers.SGD(rate), "mse")
        model.fit(x, y, epochs=20)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        model.fit(x, y, epochs=20)
        """
        found = converted(DATA, MODEL, text)
        assert "CosineDecay(0.1 * hvd.size(), 60 // hvd.size())" in found and "SGD(0.01 * hvd.size())" in found
        assert "WarmUp" not in found

    def test_schedule_of_its_own(self) -> None:
        text = """\
        class Mine(keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                return 0.1
        model.compile(keras.optimizers.SGD(Mine()), "mse")
        """
        result = check.run(script(DATA, MODEL, text, FIT))
        assert any("counts the steps of one rank" in note for note in result.applied[0].notes)


class TestTrainStep:
    def test_the_tape_averages(self) -> None:
        found = converted(STEP, DATA, "model = Net()\n", COMPILE, FIT)
        assert "grads = average_gradients(tape.gradient(loss, self.trainable_variables))" in found
        assert "distribute_optimizer" not in found and "jit_compile=False" in found

    def test_compiled_by_xla(self) -> None:
        text = STEP.replace("    def train_step", "    @tf.function(jit_compile=True)\n    def train_step")
        assert "@tf.function()\n" in converted(text, DATA, "model = Net()\n", COMPILE, FIT)

    def test_keras_takes_the_step(self) -> None:
        text = """\
        class Net(keras.Model):
            def train_step(self, data):
                logs = super().train_step(data)
                return {**logs, "more": 1.0}
        """
        found = converted(text, DATA, "model = Net()\n", COMPILE, FIT)
        assert "distribute_optimizer(model.optimizer)" in found and "average_gradients" not in found

    GAN = """\
    class GAN(keras.Model):
        def __init__(self, a, b):
            super().__init__()
            self.a, self.b = a, b
        def compile(self, first, second):
            super().compile({0})
            self.first, self.second = first, second
        def train_step(self, data):
            with tf.GradientTape(persistent=True) as tape:
                one, two = self.a(data), self.b(data)
            self.first.apply_gradients(zip(tape.gradient(one, self.a.trainable_weights), self.a.trainable_weights))
            grads = tape.gradient(two, self.b.trainable_weights)
            self.second.apply_gradients(zip(grads, self.b.trainable_weights))
            return {{"one": one}}
    gan = GAN(keras.Sequential([keras.layers.Dense(1)]), keras.Sequential([keras.layers.Dense(1)]))
    gan.compile(keras.optimizers.Adam(), keras.optimizers.SGD())
    gan.fit(x)
    """

    def test_two_optimizers(self) -> None:
        found = converted(DATA, self.GAN.format(""))
        assert found.count("average_gradients(tape.gradient(") == 2
        assert "super().compile(jit_compile=False)" in found
        assert "keras.optimizers.Adam(), keras.optimizers.SGD()" in found

    @pytest.mark.parametrize("given", ["jit_compile=True", "steps_per_execution=4"])
    def test_compile_of_its_own(self, given: str) -> None:
        refuses("does not go together with Horovod", DATA, self.GAN.format(given))

    def test_gradients_of_another_function(self) -> None:
        text = STEP.replace("tape.gradient(loss, self.trainable_variables)", "self.take(tape, loss)")
        text += "    def take(self, tape, loss):\n        return tape.gradient(loss, self.trainable_variables)\n"
        refuses("is not seen", text, DATA, "model = Net()\n", COMPILE, FIT)


LOOP = """\
model = keras.Sequential([keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.01)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
for a, b in ds:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
"""


class TestLoop:
    def test_the_whole(self) -> None:
        found = converted(DATA, LOOP)
        assert found.endswith("""\
first_step = True
for a, b in ds:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    grads = average_gradients(tape.gradient(loss, model.trainable_variables))
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_step:
        hvd.broadcast_variables([v.value for v in model.weights], root_rank=0)
        hvd.broadcast_variables([v.value for v in opt.variables], root_rank=0)
        first_step = False
""")
        assert definition("average_gradients") in found and "class " not in found

    def test_apply(self) -> None:
        text = LOOP.replace(
            "opt.apply_gradients(zip(grads, model.trainable_variables))", "opt.apply(grads, model.trainable_variables)"
        )
        assert "average_gradients(tape" in converted(DATA, text)

    def test_single_variables_and_a_single_gradient(self) -> None:
        text = LOOP.replace("model = ", "w = tf.Variable(1.0)\nmodel = ").replace("(model(a) - b)", "(w * a - b)")
        text = text.replace("model.trainable_variables)\n    opt", "w)\n    opt").replace(
            "zip(grads, model.trainable_variables)", "[(grads, w)]"
        )
        found = converted(DATA, text)
        assert "average_gradients(tape.gradient(loss, w))" in found
        assert "hvd.broadcast_variables([w], root_rank=0)" in found

    def test_sources_by_name(self) -> None:
        text = LOOP.replace("tape.gradient(loss, model", "tape.gradient(target=loss, sources=model")
        assert "for v in model.weights]" in converted(DATA, text)

    def test_variables_that_are_not_seen(self) -> None:
        text = "from somewhere import more\n" + LOOP.replace("model.trainable_variables", "more")
        refuses("every rank has to begin with the same", DATA, text)

    def test_gradients_of_inputs_stay(self) -> None:
        text = LOOP.replace("as tape:", "as tape:\n        tape.watch(a)").replace("    opt.", "    opt.", 1)
        text = text.replace("tf.GradientTape()", "tf.GradientTape(persistent=True)")
        text = text.replace("    opt.apply", "    saliency = tape.gradient(loss, a)\n    opt.apply")
        found = converted(DATA, text)
        assert "saliency = tape.gradient(loss, a)\n" in found and "grads = average_gradients(" in found

    def test_only_gradients_of_inputs(self) -> None:
        text = """\
        image = tf.constant(x)
        for _ in range(9):
            with tf.GradientTape() as tape:
                tape.watch(image)
                loss = tf.reduce_mean(model(image))
            image = image + tape.gradient(loss, image)
        """
        refuses("there is nothing to distribute", DATA, MODEL, text)

    def test_jacobians(self) -> None:
        refuses("is not averaged", DATA, LOOP.replace("tape.gradient(", "tape.jacobian("))


def test_a_model_that_is_loaded_with_its_optimizer() -> None:
    load = "model = keras.models.load_model('m.keras')\n"
    check.refuses(script(DATA, load, FIT), "it trains a model that is loaded with its optimizer")
    either = f"if len(x) > 9:\n    {load}else:\n    {MODEL}    {COMPILE}"
    check.refuses(script(DATA, either, FIT), "where no `compile` follows")
    assert "distribute_optimizer(model.optimizer)\n" in converted(DATA, load, COMPILE, FIT)


def test_progress_of_rank_0() -> None:
    after = converted(DATA, MODEL, COMPILE, FIT, "scores = model.evaluate(x, y)\nfound = model.predict(x, verbose=2)\n")
    assert after.endswith(
        f"scores = model.evaluate(x, y, {VERBOSE})\nfound = model.predict(x, verbose=2 if hvd.rank() == 0 else 0)\n"
    )
