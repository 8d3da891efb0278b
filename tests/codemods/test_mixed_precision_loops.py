"""`mixed-precision` in training steps that a script writes by hand."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from rewriter.engine import Result
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("mixed-precision", level=2)
TARGETS = {"tf215": "tf2.15", "tf221": "tf2.21"}

HEAD = """
import numpy as np
import tensorflow as tf
"""
SET = 'tf.keras.mixed_precision.set_global_policy("mixed_float16")\n'
DATA = """
tf.keras.utils.set_random_seed(1)
x = np.random.rand(32, 4).astype("float32")
y = x @ np.float32([[1], [2], [3], [4]])
losses = []
"""
PIN = '>>, dtype="float32"<<'
L, R = ">>tf.keras.mixed_precision.LossScaleOptimizer(<<", ">>)<<"
MODEL = f"""
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1{PIN})])
"""
SGD = f"""
opt = {L}tf.keras.optimizers.SGD(0.05){R}
"""

#: Bodies of scripts: `>>...<<` is what is added, `>>2...<<` only for Keras 2, `>>3...<<` only for Keras 3.
STEPS = {
    "in the loop": MODEL
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
    losses.append(float(loss))
""",
    "a function": MODEL
    + SGD
    + """
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss
for _ in range(20):
    losses.append(float(step(x, y)))
""",
    "a graph": MODEL
    + SGD
    + """
mse = tf.keras.losses.MeanSquaredError()
metric = tf.keras.metrics.MeanSquaredError()
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        pred = model(x, training=True)
        total_loss = mse(y, pred)
>>        scaled_total_loss = opt.get_scaled_loss(total_loss)
<<    grads = tape.gradient(>>scaled_<<total_loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
    metric.update_state(y, pred)
    return total_loss
for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(16).repeat(10):
    losses.append(float(step(*batch)))
""",
    "the gradient in the call": MODEL
    + SGD
    + """
model.build((None, 4))
def step(x, y):
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    opt.apply_gradients(zip(>>2opt.get_unscaled_gradients(<<tape.gradient(>>scaled_<<loss, variables)>>2)<<, variables))
    return loss
for _ in range(20):
    losses.append(float(step(x, y)))
""",
    "a function that gives the gradients": MODEL
    + """
def grad(model, x, y):
    with tf.GradientTape() as tape:
        loss_value = tf.reduce_mean(tf.square(model(x) - y))
>>        scaled_loss_value = opt.get_scaled_loss(loss_value)
<<    return loss_value, >>2opt.get_unscaled_gradients(<<tape.gradient(>>scaled_<<loss_value, model.trainable_variables)>>2)<<
"""
    + SGD
    + """
for _ in range(20):
    loss, grads = grad(model, x, y)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    losses.append(float(loss))
""",
    "a trainer": MODEL
    + f"""
class Trainer:
    def __init__(self, model, rate):
        self.model = model
        self.optimizer = {L}tf.keras.optimizers.SGD(rate){R}
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
>>            scaled_loss = self.optimizer.get_scaled_loss(loss)
<<        grads = tape.gradient(>>scaled_<<loss, self.model.trainable_variables)
>>2        grads = self.optimizer.get_unscaled_gradients(grads)
<<        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss
trainer = Trainer(model, 0.05)
for _ in range(20):
    losses.append(float(trainer.step(x, y)))
""",
    "clipped by the global norm": MODEL
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    grads, _ = tf.clip_by_global_norm(grads, >>3opt.scale_loss(<<1.0>>3)<<)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    losses.append(float(loss))
""",
    "clipped one by one": MODEL
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    clipped = [(tf.clip_by_norm(g, >>3opt.scale_loss(<<0.5>>3)<<), v) for g, v in zip(grads, model.trainable_variables)]
    opt.apply_gradients(clipped)
    losses.append(float(loss))
""",
    "two optimizers": f"""
g = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(4{PIN})])
d = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1{PIN})])
g_opt = {L}tf.keras.optimizers.Adam(0.01){R}
d_opt = {L}tf.keras.optimizers.Adam(0.01){R}
def step(real):
    noise = tf.random.normal([32, 2], seed=3)
    with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
        fake = g(noise, training=True)
        on_real, on_fake = d(real, training=True), d(fake, training=True)
        g_loss = tf.reduce_mean(tf.nn.softplus(-on_fake))
        d_loss = tf.reduce_mean(tf.nn.softplus(-on_real) + tf.nn.softplus(on_fake))
>>        scaled_g_loss = g_opt.get_scaled_loss(g_loss)
<<>>        scaled_d_loss = d_opt.get_scaled_loss(d_loss)
<<    g_grads = g_tape.gradient(>>scaled_<<g_loss, g.trainable_variables)
>>2    g_grads = g_opt.get_unscaled_gradients(g_grads)
<<    d_grads = d_tape.gradient(>>scaled_<<d_loss, d.trainable_variables)
>>2    d_grads = d_opt.get_unscaled_gradients(d_grads)
<<    g_opt.apply_gradients(zip(g_grads, g.trainable_variables))
    d_opt.apply_gradients(zip(d_grads, d.trainable_variables))
    return d_loss
for _ in range(20):
    losses.append(float(step(x)))
""",
    "one loss for two optimizers": f"""
a = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(4{PIN})])
b = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1{PIN})])
a_opt = {L}tf.keras.optimizers.SGD(0.02){R}
b_opt = {L}tf.keras.optimizers.SGD(0.05){R}
for _ in range(20):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(tf.square(b(a(x)) - y))
>>        scaled_loss = a_opt.get_scaled_loss(loss)
<<>>        scaled_loss_2 = b_opt.get_scaled_loss(loss)
<<    a_grads = tape.gradient(>>scaled_<<loss, a.trainable_variables)
>>2    a_grads = a_opt.get_unscaled_gradients(a_grads)
<<    b_grads = tape.gradient(>>scaled_<<loss>>_2<<, b.trainable_variables)
>>2    b_grads = b_opt.get_unscaled_gradients(b_grads)
<<    a_opt.apply_gradients(zip(a_grads, a.trainable_variables))
    b_opt.apply_gradients(zip(b_grads, b.trainable_variables))
    losses.append(float(loss))
""",
    "a model with a call": f"""
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(8, activation="relu")
        self.out = tf.keras.layers.Dense(1{PIN})
    def call(self, inputs, training=False):
        return self.out(self.hidden(inputs))
net = Net()
"""
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(net(x, training=True) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, net.trainable_weights)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, net.trainable_weights))
    losses.append(float(loss))
""",
    "a model with methods of its own": f"""
class Auto(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.enc = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(4{PIN})])
        self.dec = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(4{PIN})])
    def encode(self, data):
        mean, logvar = tf.split(self.enc(data), num_or_size_splits=2, axis=1)
        return mean, logvar
    def sample(self, mean, logvar):
        return tf.random.normal(tf.shape(mean), seed=2) * tf.exp(logvar * 0.5) * 0.01 + mean
auto = Auto()
opt = {L}tf.keras.optimizers.Adam(0.02){R}
def compute_loss(model, data):
    mean, logvar = model.encode(data)
    error = tf.reduce_mean(tf.square(model.dec(model.sample(mean, logvar)) - data))
    return error + 1e-3 * tf.reduce_mean(tf.square(mean) + tf.exp(logvar) - logvar)
def step(model, data, opt):
    with tf.GradientTape() as tape:
        loss = compute_loss(model, data)
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss
for _ in range(20):
    losses.append(float(step(auto, x, opt)))
""",
    "regularization losses": f"""
model = tf.keras.Sequential([
    tf.keras.layers.Dense(8, activation="relu", kernel_regularizer=tf.keras.regularizers.l2(1e-3)),
    tf.keras.layers.Dense(1{PIN}),
])
"""
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        loss += tf.add_n(model.losses)
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
    losses.append(float(loss))
""",
    "variables in two lists": MODEL
    + SGD
    + """
model.build((None, 4))
kernels = model.layers[0].trainable_variables + model.layers[1].trainable_variables
for _ in range(20):
    with tf.GradientTape() as tape:
        pred = model(x)
        loss = tf.reduce_mean(tf.square(pred - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, kernels)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients((g, v) for g, v in zip(grads, kernels) if g is not None)
    losses.append(float(loss))
""",
    "train_step": f"""
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(8, activation="relu")
        self.out = tf.keras.layers.Dense(1{PIN})
    def call(self, inputs, training=False):
        return self.out(self.hidden(inputs))
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
>>            scaled_loss = self.optimizer.get_scaled_loss(loss)
<<        grads = tape.gradient(>>scaled_<<loss, self.trainable_variables)
>>2        grads = self.optimizer.get_unscaled_gradients(grads)
<<        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {{"loss": loss}}
net = Net()
net.compile(optimizer=tf.keras.optimizers.SGD(0.05))
losses += net.fit(x, y, batch_size=32, epochs=20, verbose=0, shuffle=False).history["loss"]
""",
    "train_step with optimizers of its own": f"""
class Pair(tf.keras.Model):
    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b
    def compile(self, a_opt, b_opt):
        super().compile()
        self.a_opt = a_opt
        self.b_opt = b_opt
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.a(x) - y))
>>            scaled_loss = self.a_opt.get_scaled_loss(loss)
<<        grads = tape.gradient(>>scaled_<<loss, self.a.trainable_variables)
>>2        grads = self.a_opt.get_unscaled_gradients(grads)
<<        self.a_opt.apply_gradients(zip(grads, self.a.trainable_variables))
        with tf.GradientTape() as tape:
            other = tf.reduce_mean(tf.square(self.b(x) - y))
>>            scaled_other = self.b_opt.get_scaled_loss(other)
<<        grads = tape.gradient(>>scaled_<<other, self.b.trainable_variables)
>>2        grads = self.b_opt.get_unscaled_gradients(grads)
<<        self.b_opt.apply_gradients(zip(grads, self.b.trainable_variables))
        return {{"loss": loss + other}}
a = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1{PIN})])
b = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1{PIN})])
pair = Pair(a, b)
pair.compile(
    {L}tf.keras.optimizers.SGD(0.05){R}, {L}tf.keras.optimizers.SGD(0.05){R}
)
losses += pair.fit(x, y, batch_size=32, epochs=20, verbose=0, shuffle=False).history["loss"]
""",
}

#: What only Keras 2 has, or allows.
KERAS_2 = {
    "minimize": MODEL
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    opt.minimize(loss, model.trainable_variables, tape=tape)
    losses.append(float(loss))
""",
    "minimize a function": MODEL
    + SGD
    + """
model.build((None, 4))
def loss():
    return tf.reduce_mean(tf.square(model(x) - y))
for _ in range(20):
    losses.append(float(loss()))
    opt.minimize(loss, model.trainable_variables)
""",
    "gradients that are added up": MODEL
    + SGD
    + """
model.build((None, 4))
for _ in range(20):
    total = [tf.zeros_like(v) for v in model.trainable_variables]
    for part in (slice(0, 16), slice(16, 32)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[part]) - y[part])) / 2
>>            scaled_loss = opt.get_scaled_loss(loss)
<<        grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>        grads = opt.get_unscaled_gradients(grads)
<<        total = [t + g for t, g in zip(total, grads)]
    opt.apply_gradients(zip(total, model.trainable_variables))
    losses.append(float(loss))
""",
    "a norm that is logged": MODEL
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>    grads = opt.get_unscaled_gradients(grads)
<<    grads, norm = tf.clip_by_global_norm(grads, 5.0)
    print("norm", float(norm), [float(tf.norm(g)) for g in grads])
    opt.apply_gradients(zip(grads, model.trainable_variables))
    losses.append(float(loss))
""",
}


def before(body: str) -> str:
    return re.sub(r">>.*?<<", "", body, flags=re.DOTALL)


def after(body: str, keras: int, dtype: str = "float16") -> str:
    other = 5 - keras
    body = re.sub(rf">>{other}.*?<<", "", body, flags=re.DOTALL)
    body = re.sub(rf">>{keras}?(.*?)<<", r"\1", body, flags=re.DOTALL)
    return body.replace("get_scaled_loss", "scale_loss") if keras == 3 else body


def rewritten(body: str, target: str, dtype: str = "float16") -> tuple[str, Result]:
    result = check.run(HEAD + DATA + before(body), target=target, amp_dtype=dtype)
    return result.after.decode(), result


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_scales(name: str, target: str) -> None:
    keras = 2 if target == "tf2.15" else 3
    wanted = HEAD + "\n" + SET + DATA + after(STEPS[name], keras)
    result = check.fixes(HEAD + DATA + before(STEPS[name]), wanted, target=target)
    assert "the losses of own steps are scaled" in result.applied[0].message


@pytest.mark.parametrize("name", KERAS_2)
def test_scales_in_keras_2(name: str) -> None:
    wanted = HEAD + "\n" + SET + DATA + after(KERAS_2[name], 2)
    check.fixes(HEAD + DATA + before(KERAS_2[name]), wanted)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("minimize", "no `minimize`"),
        ("minimize a function", "no `minimize`"),
        ("gradients that are added up", "scaled gradients"),
        ("a norm that is logged", "scaled gradients"),
    ],
)
def test_keras_3_unscales_too_late(name: str, reason: str) -> None:
    check.refuses(HEAD + DATA + before(KERAS_2[name]), reason, target="tf2.21")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_bfloat16_needs_no_scaling(name: str, target: str) -> None:
    text, result = rewritten(STEPS[name], target, "bfloat16")
    assert 'set_global_policy("mixed_bfloat16")' in text and 'dtype="float32"' in text
    assert "LossScale" not in text and "scale" not in text.replace("scaled_", "")
    assert "no loss scaling is needed" in result.applied[0].message


def test_before_2_4_the_names_are_others() -> None:
    text, _ = rewritten(STEPS["a function"], "tf2.3")
    assert 'tf.keras.mixed_precision.experimental.set_policy("mixed_float16")' in text
    assert 'experimental.LossScaleOptimizer(tf.keras.optimizers.SGD(0.05), "dynamic")' in text
    assert "opt.get_unscaled_gradients(grads)" in text


def test_aliases_and_quotes_of_the_file() -> None:
    check.fixes(
        """
        import tensorflow as tf
        from tensorflow import keras
        from tensorflow.keras.optimizers import Adam

        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1, name='out')])
        optimizer = Adam()

        def step(x, y):
          with tf.GradientTape() as tape:
            cost = keras.losses.MeanSquaredError()(y, model(x))
          optimizer.apply_gradients(zip(tape.gradient(cost, model.trainable_weights), model.trainable_weights))

        for x, y in data:
          step(x, y)
        """,
        """
        import tensorflow as tf
        from tensorflow import keras
        from tensorflow.keras.optimizers import Adam

        keras.mixed_precision.set_global_policy('mixed_float16')

        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1, name='out', dtype='float32')])
        optimizer = keras.mixed_precision.LossScaleOptimizer(Adam())

        def step(x, y):
          with tf.GradientTape() as tape:
            cost = keras.losses.MeanSquaredError()(y, model(x))
            scaled_cost = optimizer.scale_loss(cost)
          optimizer.apply_gradients(zip(tape.gradient(scaled_cost, model.trainable_weights), model.trainable_weights))

        for x, y in data:
          step(x, y)
        """,
        target="tf2.21",
    )


def test_a_name_that_is_taken() -> None:
    text, _ = rewritten(STEPS["a function"] + "scaled_loss = None\n", "tf2.15")
    assert "scaled_loss_1 = opt.get_scaled_loss(loss)" in text and "gradient(scaled_loss_1, " in text


LOOP = (
    MODEL
    + SGD
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    {0}
"""
)
APPLY = "opt.apply_gradients(zip(grads, model.trainable_variables))"
GRADS = "grads = tape.gradient(loss, model.trainable_variables)\n    "


def loop(rest: str) -> str:
    return HEAD + DATA + before(LOOP).format(rest)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (
            GRADS + "grads = [tf.clip_by_value(g, -1, 1) for g in grads]\n    " + APPLY,
            "`clip_by_value` (line 17) makes finite numbers of gradients that overflow",
        ),
        (
            GRADS + "grads = [tf.where(tf.math.is_nan(g), 0.0, g) for g in grads]\n    " + APPLY,
            "makes finite numbers",
        ),
        (
            GRADS + "for v, g in zip(model.trainable_variables, grads):\n        v.assign_sub(0.1 * g)",
            "without an optimizer",
        ),
        (GRADS + "print(grads)", "no training step of a Keras model"),
        ("loss = 2 * loss\n    " + GRADS + APPLY, "gets its value behind the tape"),
        ("grads = tape.gradient(loss + 1.0, model.trainable_variables)\n    " + APPLY, "not of a loss that has a name"),
        (
            "grads = tape.gradient([loss, loss], model.trainable_variables)\n    " + APPLY,
            "not of a loss that has a name",
        ),
        (
            "grads = tape.gradient(loss, [model.trainable_variables])\n    opt.apply_gradients(grads)",
            "gives a list is not seen",
        ),
        (
            GRADS
            + APPLY
            + "\n    other = tf.keras.optimizers.SGD(0.1)\n    other.apply_gradients(zip(grads, model.trainable_variables))",
            "which may scale differently",
        ),
        (GRADS + APPLY + "\nprint(opt.get_config())", "`opt.get_config` is used"),
        (GRADS + APPLY + "\nprint(opt.beta_1)", "`opt.beta_1` is used"),
        (GRADS + APPLY + "\nmodel.compile(opt)", "compiled into a model as well"),
        (GRADS + APPLY + "\nimport lib\nlib.watch(opt)", "what it does with it is not seen"),
    ],
)
@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_refuses_in_float16(rest: str, reason: str, target: str) -> None:
    check.refuses(loop(rest), reason, target=target)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (GRADS + "norm = tf.linalg.global_norm(grads)\n    " + APPLY, "scaled gradients"),
        (GRADS + "grads = [g + 0.1 * v for g, v in zip(grads, model.trainable_variables)]\n    " + APPLY, "scaled"),
        (GRADS + "saved = [g.numpy() for g in grads]\n    " + APPLY, "scaled gradients"),
        (GRADS + "grads, norm = tf.clip_by_global_norm(grads, 1.0)\n    print(norm)\n    " + APPLY, "scaled gradients"),
    ],
)
def test_refuses_scaled_gradients_in_keras_3(rest: str, reason: str) -> None:
    check.refuses(loop(rest), reason, target="tf2.21")
    assert rewritten(LOOP.format(rest), "tf2.15")[1].applied


TWO = """
import tensorflow as tf
actor = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
critic = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.05)
def gradients(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    return loss, tape.gradient(loss, model.trainable_variables)
for x, y in data:
"""
SHARED = """
    with tf.GradientTape(persistent=True) as tape:
        first = tf.reduce_mean(tf.square(actor(x) - y))
        second = tf.reduce_mean(tf.square(critic(x) - y))
"""
OWN = """
    with tf.GradientTape() as tape:
        {loss} = tf.reduce_mean(tf.square({model}(x) - y))
"""
TAKE = "    {loss}_grads = tape.gradient({loss}, {model}.trainable_variables)\n"
GIVE = "    opt.apply_gradients(zip({loss}_grads, {model}.trainable_variables))\n"
CALL = "    {loss}, {loss}_grads = gradients({model}, x, y)\n"
A, C = {"loss": "first", "model": "actor"}, {"loss": "second", "model": "critic"}


def indented(text: str) -> str:
    return textwrap.indent(text, "    ")


@pytest.mark.parametrize(
    "body, keras_2, keras_3",
    [
        pytest.param(
            SHARED + (TAKE + GIVE).format(**A) + (TAKE + GIVE).format(**C), False, False, id="one after the other"
        ),
        pytest.param(CALL.format(**A) + GIVE.format(**A), True, True, id="by a function"),
        pytest.param(
            CALL.format(**A) + CALL.format(**C) + GIVE.format(**A) + GIVE.format(**C),
            True,
            False,
            id="by a function, first both gradients",
        ),
        pytest.param(
            SHARED + TAKE.format(**A) + TAKE.format(**C) + GIVE.format(**A) + GIVE.format(**C),
            True,
            False,
            id="both gradients first",
        ),
        pytest.param(
            SHARED
            + TAKE.format(**A)
            + TAKE.format(**C)
            + "    opt.apply_gradients(zip([*first_grads, *second_grads], actor.trainable_variables + critic.weights))\n",
            True,
            True,
            id="together",
        ),
        pytest.param(
            SHARED + "    for part in range(2):\n" + indented((TAKE + GIVE).format(**A)), False, False, id="in a loop"
        ),
        pytest.param(
            SHARED
            + "    if tf.reduce_mean(x) > 0:\n"
            + indented((TAKE + GIVE).format(**A))
            + "    else:\n"
            + indented((TAKE + GIVE).format(**C)),
            True,
            True,
            id="one of them",
        ),
        pytest.param(
            (OWN + TAKE + GIVE).format(**A) + (OWN + TAKE + GIVE).format(**C), True, True, id="each with its tape"
        ),
    ],
)
def test_an_optimizer_that_applies_two_gradients(body: str, keras_2: bool, keras_3: bool) -> None:
    for target, scaled in (("tf2.15", keras_2), ("tf2.21", keras_3)):
        result = check.run(TWO + body, target=target)
        assert bool(result.applied) is scaled, result.refused
        assert ("its loss scale may have changed" in str(result.refused)) is not scaled


@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_refuses_gradient_penalties_in_float16(target: str) -> None:
    source = (
        HEAD
        + DATA
        + before(MODEL + SGD)
        + """
x = tf.constant(x)
for _ in range(3):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            pred = model(x)
        slope = inner.gradient(pred, x)
        loss = tf.reduce_mean(tf.square(pred - y)) + tf.reduce_mean(tf.square(slope))
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
"""
    )
    check.refuses(source, "gradient penalty", target=target)
    assert check.run(source, target=target, amp_dtype="bfloat16").applied


@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_an_update_before_the_loop(target: str) -> None:
    source = before(STEPS["a function that gives the gradients"]).replace(
        "for _ in range(20):",
        "loss, grads = grad(model, x, y)\nopt.apply_gradients(zip(grads, model.trainable_variables))\nfor _ in range(20):",
    )
    assert check.run(HEAD + DATA + source, target=target).applied


@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_refuses_gradients_that_come_from_elsewhere(target: str) -> None:
    step = HEAD + DATA + before(STEPS["a function"])
    check.refuses(
        step + "import lib\nopt.apply_gradients(zip(lib.gradients(model), model.trainable_variables))\n",
        "where the gradients of", target=target,
    )  # fmt: skip
    sums = step.replace("opt.apply_gradients(zip(grads,", "sums.extend(grads)\n    opt.apply_gradients(zip(sums,")
    check.refuses("\nsums = []" + sums, "", target=target)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("opt = tf.compat.v1.train.AdamOptimizer(0.1)", "not one of Keras's optimizers"),
        ("class Mine(tf.keras.optimizers.SGD):\n    pass\nopt = Mine(0.1)", "the script's own"),
        ("import lib\nopt = lib.make()", "not one of Keras's optimizers"),
        ("opt = globals()['opt']", "which optimizer `opt` is is not known"),
    ],
)
def test_refuses_optimizers_that_cannot_be_wrapped(made: str, reason: str) -> None:
    source = HEAD + DATA + before(STEPS["a function"]).replace("opt = tf.keras.optimizers.SGD(0.05)", made)
    check.refuses(source, reason)
    assert check.run(source, amp_dtype="bfloat16").applied


def test_refuses_checkpoints_that_keras_3_cannot_restore() -> None:
    source = (
        HEAD
        + DATA
        + before(STEPS["a function"])
        + """
checkpoint = tf.train.Checkpoint(optimizer=opt, model=model)
checkpoint.restore(tf.train.latest_checkpoint("saved"))
"""
    )
    check.refuses(source, "cannot restore an older one", target="tf2.21")
    assert check.run(source, target="tf2.15").applied
    check.refuses(source + "\ncheckpoint.restore('a').assert_consumed()\n", "must hold every variable")
    assert check.run(source.replace("restore", "save"), target="tf2.21").applied


def test_refuses_strategies_in_float16() -> None:
    source = HEAD + "strategy = tf.distribute.MirroredStrategy()\n" + DATA + before(STEPS["a function"])
    check.refuses(source, "MirroredStrategy")
    assert check.run(source, amp_dtype="bfloat16").applied


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_refuses_layers_that_a_step_calls_alone(dtype: str) -> None:
    source = """
    import tensorflow as tf
    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.b(self.a(x)) - y))
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
            return {"loss": loss}
    net = Net()
    net.compile("adam")
    net.fit(x, y)
    """
    check.refuses(source, "calls a layer outside of a model", amp_dtype=dtype)


def test_refuses_layers_that_other_steps_call_alone() -> None:
    source = (
        HEAD
        + DATA
        + before(STEPS["train_step"]).replace(
            "net = Net()",
            "    def test_step(self, data):\n        return {'loss': tf.reduce_mean(self.hidden(data[0]))}\nnet = Net()",
        )
    )
    check.refuses(source, "`self.hidden` calls a layer outside of a model")


def test_layers_that_prepare_data_in_a_step_stay_in_float32() -> None:
    body = (
        MODEL
        + SGD
        + f"""
noise = tf.keras.layers.Rescaling(1 / 255{PIN})
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(noise(x)) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
"""
    )
    check.fixes(HEAD + DATA + before(body), HEAD + "\n" + SET + DATA + after(body, 2))


def test_a_layer_that_samples_in_a_step_stays_in_float32() -> None:
    body = f"""
class Sampler(tf.keras.layers.Layer):
    def call(self, mean, spread):
        return mean + tf.exp(spread) * tf.random.normal(tf.shape(mean))
enc = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(4{PIN})])
dec = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(4{PIN})])
sampler = Sampler(>>dtype="float32"<<)
opt = {L}tf.keras.optimizers.SGD(0.1){R}
for _ in range(20):
    with tf.GradientTape() as tape:
        mean, spread = tf.split(enc(x), 2, axis=1)
        loss = tf.reduce_mean(tf.square(dec(sampler(mean, spread)) - x))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    weights = enc.trainable_weights + dec.trainable_weights
    grads = tape.gradient(>>scaled_<<loss, weights)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, weights))
"""
    check.fixes(HEAD + DATA + before(body), HEAD + "\n" + SET + DATA + after(body, 2))


RAW = """
import tensorflow as tf
w = tf.Variable(tf.zeros([4, 1]))
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ w - y))
    {}
for x, y in data:
    step(x, y)
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_says_that_a_policy_does_nothing_for_variables(dtype: str) -> None:
    check.refuses(
        RAW.format("w.assign_sub(0.1 * tape.gradient(loss, w))"), "a policy acts on Keras layers only", line=3,
        amp_dtype=dtype,
    )  # fmt: skip
    check.refuses(
        RAW.format("tf.keras.optimizers.SGD().apply_gradients([(tape.gradient(loss, w), w)])"),
        "a policy acts on Keras layers only", amp_dtype=dtype,
    )  # fmt: skip


def test_says_that_a_policy_does_nothing_for_modules() -> None:
    source = """
    import tensorflow as tf
    class Linear(tf.Module):
        def __init__(self):
            self.w = tf.Variable(tf.zeros([4, 1]))
        def __call__(self, x):
            return x @ self.w
    model = Linear()
    opt = tf.keras.optimizers.SGD(0.1)
    for x, y in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
    """
    check.refuses(source, "a policy acts on Keras layers only")


@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_an_unknown_model_in_a_step(target: str) -> None:
    source = HEAD + "from lib import build\nmodel = build()\nother = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
    source += (
        DATA + before(SGD) + "\n".join(before(STEPS["a function"]).split("\n")[5:]).replace("- y))", "- other(x)))")
    )
    check.refuses(source, "not known", target=target)


def test_several_inputs_of_a_model_are_cast_in_keras_3_only() -> None:
    source = """
    import tensorflow as tf
    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = tf.keras.layers.Dense(8)
            self.out = tf.keras.layers.Dense(1)
        def call(self, x, state):
            return self.out(self.hidden(x) + state)
    net = Net()
    opt = tf.keras.optimizers.SGD(0.1)
    for x, y, state in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(x, state) - y))
        grads = tape.gradient(loss, net.trainable_variables)
        opt.apply_gradients(zip(grads, net.trainable_variables))
    """
    check.refuses(source, "a float32 tensor", target="tf2.15", amp_dtype="bfloat16")
    assert check.run(source, target="tf2.21", amp_dtype="bfloat16").applied


def test_data_that_float16_cannot_hold() -> None:
    source = HEAD + DATA + "x = np.random.uniform(0, 1e6, (32, 4)).astype('float32')\n" + before(STEPS["a function"])
    check.refuses(source, "infinite in float16")
    assert check.run(source, amp_dtype="bfloat16").applied


# -- real training -------------------------------------------------------------------------------------------

RUN = """
import json, runpy, sys
import tensorflow as tf
for name in json.loads(sys.argv[1]):
    found = []
    for when in ("before", "after"):
        tf.keras.backend.clear_session()
        tf.keras.mixed_precision.set_global_policy("float32")
        space = runpy.run_path(f"{when} {name}.py")
        found.append([float(x) for x in space["losses"]])
    optimizers = [type(v).__name__ for v in space.values() if isinstance(v, tf.keras.optimizers.Optimizer)]
    for v in space.values():
        if isinstance(v, tf.keras.Model) and getattr(v, "optimizer", None) is not None:
            optimizers.append(type(v.optimizer).__name__)
    print("RESULT", json.dumps([name, *found, optimizers]))
"""


def train(
    env: str, bodies: dict[str, str], dtype: str, folder: Path
) -> dict[str, tuple[list[float], list[float], list[str]]]:
    """The losses of each script before and after, in one process, and the optimizers that it trained with."""
    for name, body in bodies.items():
        text, result = rewritten(body, TARGETS[env], dtype)
        assert result.applied, (name, result.refused)
        (folder / f"before {name}.py").write_text(HEAD + DATA + before(body))
        (folder / f"after {name}.py").write_text(text)
    (folder / "run.py").write_text(RUN)
    done = run_script(tf_env(env), folder / "run.py", json.dumps(list(bodies)), timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(x.removeprefix("RESULT")) for x in done.stdout.splitlines() if x.startswith("RESULT")]
    return {name: (a, b, optimizers) for name, a, b, optimizers in found}


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("env", TARGETS)
def test_trains_as_before(env: str, dtype: str, tmp_path: Path) -> None:
    bodies = STEPS | (KERAS_2 if env == "tf215" else {})
    found = train(env, bodies, dtype, tmp_path)
    assert set(found) == set(bodies)
    for name, (original, changed, optimizers) in found.items():
        assert len(original) == len(changed), name
        told = f"{name}: {original} became {changed}"
        random = "methods of its own" in name or name == "two optimizers"  # a policy changes the seeds of operations
        assert changed[0] == pytest.approx(original[0], rel=0.3 if random else 0.05), told
        skipped = sum(loss == changed[0] for loss in changed[1:4])  # (those in which the scaled loss overflows)
        assert changed[-1] == pytest.approx(original[-1 - skipped], rel=0.3, abs=0.15), told
        if dtype == "float16" and "train_step with" not in name and name != "a trainer":
            assert any("LossScale" in o for o in optimizers), (name, optimizers)


UNDERFLOW = (
    MODEL.replace("Dense(8", "Dense(8, kernel_initializer='ones'")
    + f"""
opt = {L}tf.keras.optimizers.SGD(1e8){R}
"""
    + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = 1e-9 * tf.reduce_mean(tf.square(model(x, training=True) - y))
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>2    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
    losses.append(float(loss) * 1e9)
"""
)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("env", TARGETS)
def test_small_gradients_do_not_vanish(env: str, tmp_path: Path) -> None:
    """Gradients of about 1e-9, which are zero in float16, arrive because the loss is scaled."""
    ((original, changed, _),) = train(env, {"small": UNDERFLOW}, "float16", tmp_path).values()
    assert original[-1] < 0.5 * original[0]
    assert changed[-1] == pytest.approx(original[-1], rel=0.3, abs=0.1), f"{original} became {changed}"


def test_refuses_where_all_layers_give_outputs() -> None:
    """Both layers stay in float32, because the loss is computed from what they return: nothing is left."""
    source = (
        HEAD
        + DATA
        + """
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.code, self.head = tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)

    def call(self, x):
        code = self.code(x)
        return %s, code

model = Net()
opt = tf.keras.optimizers.SGD(0.05)
for _ in range(20):
    with tf.GradientTape() as tape:
        out, code = model(x)
        loss = tf.reduce_mean(tf.square(out - y)) + 0.1 * tf.reduce_sum(code)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""
    )
    check.refuses(source % "self.head(code)", "multiplies no matrices")
    assert "multiplies no matrices" not in str(check.run(source % "self.head(code @ code)").refused)


def test_a_penalty_on_what_a_layer_returns_stays_in_float32() -> None:
    layers = """
model = tf.keras.Sequential([
    tf.keras.layers.Dense(8), tf.keras.layers.Dense(8, activity_regularizer="l2"%s), tf.keras.layers.Dense(1%s)
])
"""
    step = (
        SGD
        + """
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y)) + sum(model.losses)
>>        scaled_loss = opt.get_scaled_loss(loss)
<<    grads = tape.gradient(>>scaled_<<loss, model.trainable_variables)
>>    grads = opt.get_unscaled_gradients(grads)
<<    opt.apply_gradients(zip(grads, model.trainable_variables))
"""
    )
    source = HEAD + DATA + layers % (PIN, PIN) + step
    original = re.sub(">>.*?<<", "", source, flags=re.DOTALL)
    rewritten = check.run(original).after.decode()
    assert rewritten.count('dtype="float32"') == 2, rewritten
    assert "get_unscaled_gradients" in rewritten
