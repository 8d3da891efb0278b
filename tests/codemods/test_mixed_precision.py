from dataclasses import replace
from pathlib import Path

import pytest

from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("mixed-precision", level=2)

HEAD = """
import tensorflow as tf
from tensorflow.keras import Input, Model, Sequential, layers
"""
POLICY = 'tf.keras.mixed_precision.set_global_policy("mixed_float16")\n'
TRAIN = """
model.compile("adam", "mse")
model.fit(x, y)
"""


def both(body: str, *, train: str = TRAIN, head: str = HEAD, policy: str = POLICY) -> tuple[str, str]:
    """A script before and after: `>>` in the body stands for what is added."""
    body = body.strip("\n") + "\n"
    before = "\n".join(_without(line) for line in body.split("\n"))
    after = body.replace(">>", "").replace("<<", "")
    return head + before + train, head + policy + after + train


def _without(line: str) -> str:
    while ">>" in line:
        start, end = line.index(">>"), line.index("<<")
        line = line[:start] + line[end + 2 :]
    return line


PIN = '>>, dtype="float32"<<'

OWN_STEP = """
class Net({base}):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {{"loss": loss}}
"""
SHAPES = {
    "an own step for a list": OWN_STEP.format(base="Sequential")
    + f"""
model = Net([layers.Dense(8, activation="relu"), layers.Dense(1{PIN})])""",
    "an own step for inputs and outputs": OWN_STEP.format(base="Model")
    + f"""
inputs = Input((4,))
model = Net(inputs, layers.Dense(1{PIN})(layers.Dense(8)(inputs)))""",
    "a list": f'model = Sequential([layers.Dense(8, activation="relu"), layers.Dense(1{PIN})])',
    "a list by keyword, in a variable": f"""
parts = [layers.Dense(8), layers.Dropout(0.1)]
parts.append(layers.Dense(1{PIN}))
model = Sequential(layers=parts, name="net")""",
    "an add chain": f"""
model = Sequential()
model.add(layers.Dense(8))
model.add(layers.Dense(1{PIN}))""",
    "adds in a loop": f"""
model = Sequential([layers.Dense(8)])
for _ in range(3):
    model.add(layers.Dense(8))
model.add(layers.Dense(1{PIN}))""",
    "adds in branches": f"""
model = Sequential([layers.Dense(8)])
if binary:
    model.add(layers.Dense(1, activation="sigmoid"{PIN}))
else:
    model.add(layers.Dense(10, activation="softmax"{PIN}))""",
    "a softmax layer": """
model = Sequential()
model.add(layers.Dense(8))
model.add(layers.Dense(10))
model.add(layers.Activation("softmax">>, dtype="float32"<<))""",
    "a Softmax without arguments": """
model = Sequential([layers.Dense(8), layers.Dense(10), layers.Softmax(>>dtype="float32"<<)])""",
    "a relu at the end": f"""
model = Sequential([layers.Dense(8), layers.Dense(10{PIN}), layers.Activation("relu"{PIN})])""",
    "a reshape at the end": f"""
model = Sequential([layers.Dense(8), layers.Dense(10{PIN}), layers.Reshape((5, 2){PIN})])""",
    "a scaled output": f"""
model = Sequential([layers.Dense(8), layers.Dense(1{PIN}), layers.Lambda(lambda x: x * 1e6{PIN})])""",
    "functional": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
outputs = layers.Dense(1{PIN})(x)
model = Model(inputs, outputs)""",
    "functional by keyword, layers kept": f"""
inputs = Input((4,))
hidden, last = layers.Dense(8), layers.Dense(1{PIN})
model = Model(outputs=last(hidden(inputs)), inputs=inputs)""",
    "several outputs": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
a = layers.Dense(1{PIN})(x)
b = layers.Dense(3, activation="softmax"{PIN})(x)
model = Model(inputs, [a, b])""",
    "outputs in a dict": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
model = Model(inputs, {{"a": layers.Dense(1{PIN})(x), "b": layers.Dense(1{PIN})(x)}})""",
    "outputs appended": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
outputs = []
for name in ("a", "b"):
    outputs.append(layers.Dense(1, name=name{PIN})(x))
model = Model(inputs, outputs)""",
    "added outputs": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
model = Model(inputs, layers.Add(>>dtype="float32"<<)([layers.Dense(1{PIN})(x), layers.Dense(1{PIN})(x)]))""",
    "an operator at the end": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
v, a = layers.Dense(1{PIN})(x), layers.Dense(3{PIN})(x)
model = Model(inputs, v + (a - tf.reduce_mean(a, axis=1, keepdims=True)))""",
    "a residual to the input": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
model = Model(inputs, layers.Dense(4{PIN})(x) + inputs)""",
    "a loop of residual blocks": f"""
inputs = Input((4,))
x = layers.Dense(8)(inputs)
for _ in range(4):
    y = layers.Dense(8, activation="relu")(x)
    x = layers.Add()([x, y])
    x += layers.Dense(8)(y)
model = Model(inputs, layers.Dense(1{PIN})(x))""",
    "a subclass": f"""
class Net(Model):
    def __init__(self):
        super().__init__()
        self.hidden = [layers.Dense(8) for _ in range(2)]
        self.last = layers.Dense(1{PIN})

    def call(self, x):
        for layer in self.hidden:
            x = layer(x)
        return self.last(x)


model = Net()""",
    "a functional subclass": f"""
class Net(Model):
    def __init__(self):
        inputs = Input((4,))
        super().__init__(inputs=inputs, outputs=layers.Dense(1{PIN})(layers.Dense(8)(inputs)))


model = Net()""",
    "a builder that compiles": f"""
def build(units):
    model = Sequential()
    model.add(layers.Dense(units))
    model.add(layers.Dense(1{PIN}))
    return model


model = build(8)""",
    "a head added by another function": f"""
def body():
    model = Sequential()
    model.add(layers.Dense(8))
    return model


def with_head(model):
    model.add(layers.Dense(1{PIN}))


model = body()
with_head(model)""",
    "transfer learning": f"""
base = tf.keras.applications.MobileNetV2(include_top=False)
base.trainable = False
x = layers.GlobalAveragePooling2D()(base.output)
model = Model(base.input, layers.Dense(3, activation="softmax"{PIN})(x))""",
    "a nested model": f"""
body = Sequential([layers.Dense(8), layers.Dense(8)])
model = Sequential([body, layers.Dense(1{PIN})])""",
    "a nested model at the end": f"""
head = Sequential([layers.Dense(8), layers.Dense(1{PIN})])
model = Sequential([layers.Dense(8), head])""",
    "time distributed": f"""
model = Sequential([layers.LSTM(8, return_sequences=True), layers.TimeDistributed(layers.Dense(3{PIN}))])""",
    "a recurrent output": """
model = Sequential([layers.Dense(8), layers.Bidirectional(layers.LSTM(3>>, dtype="float32"<<))])""",
    "a pinned head": """
model = Sequential([layers.Dense(8), layers.Dense(1, dtype=tf.float32)])""",
    "an own layer": f"""
class Scale(layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],))

    def call(self, x):
        return tf.nn.relu(x * self.w + 0.5) / tf.cast(tf.shape(x)[-1], x.dtype)


model = Sequential([layers.Dense(8), Scale(), layers.Dense(1{PIN})])""",
    "an own layer at the end": """
class Scale(layers.Layer):
    def call(self, x):
        return x * 2.0


model = Sequential([layers.Dense(8), Scale(>>dtype="float32"<<)])""",
    "an own block at the end": f"""
class Head(layers.Layer):
    def __init__(self):
        super().__init__()
        self.a = layers.Dense(8)
        self.b = layers.Dense(1{PIN})

    def call(self, x):
        return self.b(self.a(x))


model = Sequential([layers.Dense(8), Head()])""",
    "float32 inside a layer": f"""
class Scaled(Model):
    def __init__(self):
        super().__init__()
        self.a, self.b = layers.Dense(8), layers.Dense(1{PIN})

    def call(self, images):
        x = tf.cast(images, tf.float32) / 255.0 - tf.constant(0.5)
        return self.b(self.a(x))


model = Scaled()""",
    "normalization stays exact": f"""
norm = layers.Normalization(>>dtype="float32"<<)
norm.adapt(x)
model = Sequential([norm, layers.Dense(8), layers.Dense(1{PIN})])""",
    "an own activation": f"""
def swish(v):
    return v * tf.sigmoid(1.5 * v)


model = Sequential([layers.Dense(8, activation=swish), layers.Dense(1{PIN})])""",
    "an exact distance at the end": f"""
def distance(pair):
    a, b = pair
    return tf.sqrt(tf.maximum(tf.reduce_sum(tf.square(a - b), axis=1, keepdims=True), 1e-9))


base = Sequential([layers.Dense(8), layers.Dense(8{PIN})])
left, right = Input((4,)), Input((4,))
model = Model([left, right], layers.Lambda(distance{PIN})([base(left), base(right)]))""",
}


TOKENS = """
class Tokens(layers.Layer):
    def __init__(self):
        super().__init__()
        self.token = layers.Embedding(9999, 8)
        self.position = layers.Embedding(20, 8)

    def call(self, x):
        positions = tf.range(0, tf.shape(x)[-1])
        x = self.token(x)
        return x + self.position(positions)
"""
ROUNDED = "rounded to 16 bits"


def test_ids_of_a_float_input_become_integers() -> None:
    """An own layer casts the floats that it is called with: 300 becomes 300 in float16, and 4099 becomes 4100."""
    check.fixes(
        *both(
            TOKENS
            + f"""
inputs = Input((20,)>>, dtype="int32"<<)
x = layers.GlobalAveragePooling1D()(Tokens()(inputs))
model = Model(inputs, layers.Dense(1{PIN})(x))"""
        )
    )


IDS = {
    "read otherwise too": (
        "inputs = Input((20,))\nx = Tokens()(inputs)\n"
        "model = Model(inputs, layers.Dense(1)(layers.Concatenate()([layers.Flatten()(x), inputs])))",
        ROUNDED,
    ),
    "through another layer": (
        "inputs = Input((20,))\nx = Tokens()(layers.Reshape((10, 2))(inputs))\nmodel = Model(inputs, layers.Dense(1)(x))",
        ROUNDED,
    ),
    "in a Sequential": ("model = Sequential([Input((20,)), Tokens(), layers.Dense(1)])", ROUNDED),
    "given an integer input": (
        "inputs = Input((20,), dtype='int32')\nx = Tokens()(layers.Reshape((20,))(inputs))\n"
        "model = Model(inputs, layers.Dense(1)(x))",
        "",
    ),
    "in a Sequential of integers": ("model = Sequential([Input((20,), dtype='int64'), Tokens(), layers.Dense(1)])", ""),
    "in a Sequential of the data": ("model = Sequential([Tokens(), layers.Dense(1)])", ""),
    "in a subclass": (
        "class Net(Model):\n    def __init__(self):\n        super().__init__()\n"
        "        self.tokens, self.last = Tokens(), layers.Dense(1)\n\n"
        "    def call(self, x):\n        return self.last(self.tokens(x))\n\n\nmodel = Net()",
        "",
    ),
    "in a wrapper": (
        "inputs = Input((5, 20))\nx = layers.TimeDistributed(layers.Embedding(9999, 8))(inputs)\n"
        "model = Model(inputs, layers.Dense(1)(layers.Flatten()(x)))",
        ROUNDED,
    ),
    "looked up directly": (
        "inputs = Input((20,))\nmodel = Model(inputs, layers.Dense(1)(layers.Dense(8)(layers.Embedding(9999, 8)(inputs))))",
        "",
    ),
    "cast behind a layer": (
        "inputs = Input((20,))\nx = layers.Lambda(lambda t: tf.one_hot(tf.cast(t, tf.int32), 9, dtype=t.dtype))(inputs)\n"
        "model = Model(inputs, layers.Dense(1)(x))",
        "rounded before this cast",
    ),
}


@pytest.mark.parametrize("name", IDS)
def test_numbers_of_words(name: str) -> None:
    body, reason = IDS[name]
    source = HEAD + TOKENS + body + TRAIN
    if reason:
        check.refuses(source, reason)
    else:
        assert check.run(source).applied


@pytest.mark.parametrize("name", SHAPES)
def test_pins_the_output(name: str) -> None:
    check.fixes(*both(SHAPES[name]))


MODEL = f"model = Sequential([layers.Dense(8), layers.Dense(1{PIN})])"


def test_policy_of_each_target() -> None:
    old = POLICY.replace("set_global_policy", "experimental.set_policy")
    check.fixes(*both(MODEL, policy=old), target="tf2.3")
    check.fixes(*both(MODEL), target="tf2.4")
    check.fixes(*both(MODEL), target="tf2.21")
    check.fixes(*both(MODEL, policy=POLICY.replace("float16", "bfloat16")), amp_dtype="bfloat16")
    check.refuses(both(MODEL)[0], "before TensorFlow 2.1", target="tf1.15")


def test_policy_of_the_keras_that_layers_come_from() -> None:
    head = "import keras\nfrom keras import Sequential, layers\n"
    policy = 'keras.mixed_precision.set_global_policy("mixed_float16")\n'
    check.fixes(*both(MODEL, head=head, policy=policy), target="keras3")
    check.refuses(both(MODEL, head=head)[0], "not TensorFlow's Keras", target="tf2.3")
    head = "from keras.models import Sequential\nfrom keras import layers\n"
    check.fixes(*both(MODEL, head=head, policy="import keras\n" + policy), target="tf2.15")
    head = "from tensorflow.keras import Sequential, layers, mixed_precision\n"
    check.fixes(*both(MODEL, head=head, policy=policy.replace("keras.", "")))


def test_wrapped_output_in_keras_3() -> None:
    check.fixes(
        *both("model = Sequential([layers.LSTM(8), layers.TimeDistributed(layers.Dense(3)" + PIN + ")])"),
        target="keras3",
    )


PLACES = {
    "a blank line where the script has one": (
        """
import tensorflow as tf
from tensorflow.keras import Sequential, layers
>>
tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<
""",
        MODEL,
    ),
    "docstring, cookie, future, environment": (
        '''
#!/usr/bin/env python
# -*- coding: utf-8 -*-
"""Trains."""; import os, sys
from __future__ import annotations
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
>>tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<layers, Sequential = tf.keras.layers, tf.keras.Sequential
'''.replace(
            "; import os, sys\nfrom __future__ import annotations\n",
            "\nfrom __future__ import annotations\nimport os, sys\n",
        ),
        MODEL,
    ),
    "before a file that may make layers": (
        """
import numpy as np
import tensorflow as tf
from tensorflow.keras import Sequential, layers
>>tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<from my_layers import Block
""",
        MODEL,
    ),
    "below imports under a condition and a few settings": (
        """
import os, sys
import tensorflow as tf
from tensorflow.keras import Sequential, layers
if sys.version_info < (3,):
    import cPickle as pickle
else:
    import pickle
os.environ["A"] = "1"
os.environ["B"] = "1"
os.environ["C"] = "1"
if len(sys.argv) > 1:
    os.environ["D"] = sys.argv[1]
import segmentation_models as sm
import numpy as np
>>tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<""",
        MODEL,
    ),
    "before an import under a condition that may make layers": (
        """
import tensorflow as tf
from tensorflow.keras import Sequential, layers
>>tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<try:
    from my_layers import Block
except ImportError:
    Block = None
import numpy as np
""",
        MODEL,
    ),
    "behind the choice of GPUs": (
        """
import os
import tensorflow as tf
from tensorflow.keras import Sequential, layers

os.environ["CUDA_VISIBLE_DEVICES"] = "1"
>>tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<EPOCHS = 3
""",
        MODEL,
    ),
    "where TensorFlow may be absent": (
        """
try:
    import tensorflow as tf
    from tensorflow.keras import Sequential, layers
except ImportError:
    tf, BACKEND = None, "numpy"

if tf is not None:
    >>tf.keras.mixed_precision.set_global_policy("mixed_float16")
    <<model = Sequential([layers.Dense(8), layers.Dense(1>>, dtype="float32"<<)])
    model.compile("adam", "mse")
    model.fit(x, y)
""",
        "",
    ),
    "behind a try that always imports": (
        """
try:
    import tensorflow as tf
    from tensorflow.keras import Sequential, layers
except ImportError:
    raise SystemExit("no TensorFlow")
>>tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<""",
        MODEL,
    ),
    "in the function that imports": (
        """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def train():
    import tensorflow as tf
    >>tf.keras.mixed_precision.set_global_policy("mixed_float16")
    <<model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1>>, dtype="float32"<<)])
    model.compile("adam", "mse")
    model.fit(x, y)


train()
""",
        "",
    ),
    "before a model that is made on import": (
        """
import tensorflow as tf
>>
tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<

def build():
    return tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1>>, dtype="float32"<<)])


NET = build()


def main():
    NET.compile("adam", "mse")
    NET.fit(x, y)


if __name__ == "__main__":
    main()
""",
        "",
    ),
    "the file's quotes": (
        """
import tensorflow as tf
from tensorflow.keras import Sequential, layers
>>tf.keras.mixed_precision.set_global_policy('mixed_float16')
<<print('a', 'b', 'c', 'd')
""",
        MODEL.replace('"', "'"),
    ),
}


DEVICES = {
    "in a condition": """
import os
import tensorflow as tf
from tensorflow.keras import Sequential, layers
BIG = 3
if BIG:
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
>>tf.keras.mixed_precision.set_global_policy("mixed_float16")
<<model = Sequential([layers.Dense(8), layers.Dense(1>>, dtype="float32"<<)])
model.compile("adam", "mse")
model.fit(x, y)
""",
    "in the function that trains": """
import os
import tensorflow as tf


def main(gpu):
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    >>tf.keras.mixed_precision.set_global_policy("mixed_float16")
    <<model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1>>, dtype="float32"<<)])
    model.compile("adam", "mse")
    model.fit(x, y)


if __name__ == "__main__":
    main("1")
""",
    "under the main guard": """
import os
import tensorflow as tf


def main():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1>>, dtype="float32"<<)])
    model.compile("adam", "mse")
    model.fit(x, y)


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    >>tf.keras.mixed_precision.set_global_policy("mixed_float16")
    <<main()
""",
}


@pytest.mark.parametrize("name", DEVICES)
def test_place_behind_the_choice_of_gpus(name: str) -> None:
    """A float16 policy of Keras 2 looks for GPUs, and TensorFlow looks only once."""
    text = DEVICES[name]
    before = text
    while ">>" in before:
        start, end = before.index(">>"), before.index("<<")
        before = before[:start] + before[end + 2 :]
    check.fixes(before, text.replace(">>", "").replace("<<", ""))


def test_refuses_where_gpus_are_chosen_too_late() -> None:
    source = """
    import os
    import tensorflow as tf


    def choose():
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"


    choose()
    model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(x, y)
    """
    check.refuses(source, "which GPUs are used", line=6)
    assert check.run(source, target="keras3").applied
    assert check.run(source, amp_dtype="bfloat16").applied


@pytest.mark.parametrize("name", PLACES)
def test_place_of_the_policy(name: str) -> None:
    head, model = PLACES[name]
    text = head + (model + TRAIN if model else "")
    before = text
    while ">>" in before:
        start, end = before.index(">>"), before.index("<<")
        before = before[:start] + before[end + 2 :]
    check.fixes(before, text.replace(">>", "").replace("<<", ""))


def test_silent_where_precision_is_decided_or_nothing_is_trained() -> None:
    script = both(MODEL)[0]
    check.ignores(script.replace("model =", 'tf.keras.mixed_precision.set_global_policy("float32")\nmodel ='))
    check.ignores(
        script.replace("model =", 'tf.keras.mixed_precision.experimental.set_policy("mixed_float16")\nmodel =')
    )
    check.ignores(
        script.replace("layers.Dense(8)", 'layers.Dense(8, dtype=tf.keras.mixed_precision.Policy("float32"))')
    )
    check.ignores(script.replace("model.fit(x, y)", "model.summary()"))
    check.ignores("from sklearn.svm import SVC\nimport tensorflow as tf\nSVC().fit(x, y)\n")
    check.refuses(
        HEAD + "def train(x, y):\n    " + _without(MODEL) + "\n    model.compile('adam', 'mse')\n    model.fit(x, y)\n",
        "only defines",
    )


LAYER = """
class Own(layers.Layer):
    def call(self, x):
        {body}


model = Sequential([layers.Dense(8), Own(), layers.Dense(1)])"""
MIXED = "does not mix them"

CODE = {
    "x + tf.constant(1.0)": MIXED,
    "x * tf.Variable(1.0)": MIXED,
    "x + tf.random.normal(tf.shape(x))": MIXED,
    "x / tf.sqrt(tf.cast(tf.shape(x)[-1], tf.float32))": MIXED,
    "tf.matmul(x, tf.ones((8, 8)))": MIXED,
    "tf.concat([x, tf.zeros((2, 8))], 0)": MIXED,
    "tf.where(x > tf.constant(0.5), x, 0.0)": MIXED,
    "tf.cast(x, 'float32') + x": MIXED,
    "x * SCALE": MIXED,
    "x * helper(2)": MIXED,
    "tf.one_hot(tf.argmax(x, -1), 8) * x": MIXED,
    "tf.py_function(f, [x], tf.float32)": "fixed types",
    "tf.linalg.inv(x)": "no half-precision version",
    "tf.signal.fft(x)": "no half-precision version",
    "other.special(x)": "not known",
}
FLOAT16 = {
    "x / (tf.norm(x) + 1e-8)": "zero in float16",
    "tf.math.log(x + EPS)": "zero in float16",
    "tf.maximum(x, 1e-12)": "zero in float16",
    "x + (1.0 - tf.cast(x > 0, x.dtype)) * -1e9": "infinite in float16",
    "tf.where(x > 0, x, -1e9)": "infinite in float16",
    "x * 100000": "infinite in float16",
    "tf.where(x > 0, x, tf.float32.min)": "infinite in float16",
    "tf.exp(x)": "overflows",
    "tf.nn.l2_normalize(x, axis=-1)": "1e-12",
}
FINE = (
    "x + 1.0",
    "tf.exp(x - tf.reduce_max(x))",
    "x * tf.cast(3, x.dtype)",
    "tf.zeros_like(x) + x",
    "x * NUMBERS",
    "tf.cast(tf.cast(x, tf.float32) * SCALE, x.dtype)",
    "tf.where(x > 0, x, 0.0)",
    "einops.rearrange(x, 'a b -> b a')",
)
EXTRA = """
import numpy as np
import other, einops
SCALE, EPS, NUMBERS = tf.constant(3.0), 1e-10, np.arange(8.0)


def helper(n):
    return tf.ones((n,)) * 2.0


"""


def _own(body: str) -> str:
    return HEAD + EXTRA + LAYER.format(body="return " + body) + TRAIN


@pytest.mark.parametrize("body", [*CODE, *FLOAT16])
def test_code_that_low_precision_breaks(body: str) -> None:
    check.refuses(_own(body), {**CODE, **FLOAT16}[body])
    check.refuses(
        _own(body).replace("Own(), layers.Dense(1)", f"layers.Lambda(lambda x: {body}), layers.Dense(1)"),
        {**CODE, **FLOAT16}[body],
    )
    check.refuses(
        HEAD
        + EXTRA
        + f"def act(x):\n    return {body}\n\n"
        + "model = Sequential([layers.Dense(8, activation=act), layers.Dense(1)])"
        + TRAIN,
        {**CODE, **FLOAT16}[body],
    )


def test_methods_that_a_layer_of_keras_calls() -> None:
    body = """
class Standardized(layers.Conv2D):
    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel / (tf.math.reduce_std(kernel) + 1e-10))


model = Sequential([Standardized(8, 3), layers.Flatten(), layers.Dense(1)])"""
    check.refuses(HEAD + body + TRAIN, "zero in float16")
    assert check.run(HEAD + body.replace("1e-10", "1e-5") + TRAIN).applied


@pytest.mark.parametrize("body", FLOAT16)
def test_bfloat16_has_the_range_of_float32(body: str) -> None:
    assert check.run(_own(body), amp_dtype="bfloat16").applied


@pytest.mark.parametrize("body", FINE)
def test_code_that_keeps_the_precision(body: str) -> None:
    assert check.run(_own(body)).applied


REFUSED = {
    "another default precision": (
        'tf.keras.backend.set_floatx("float64")\n' + MODEL,
        "chooses its precision",
    ),
    "an explicit dtype": (MODEL.replace("Dense(8", "Dense(8, dtype='float64'"), "sets a precision itself"),
    "a float64 input": (
        "inputs = Input((4,), dtype='float64')\nmodel = Model(inputs, layers.Dense(1)(inputs))",
        "sets a precision itself",
    ),
    "a mask value that overflows": (
        "model = Sequential([layers.Masking(mask_value=-1e9), layers.LSTM(8), layers.Dense(1)])",
        "mask value",
    ),
    "an input added to a layer": (
        "inputs = Input((4,))\nx = layers.Dense(4)(inputs) + inputs\nmodel = Model(inputs, layers.Dense(1)(x))",
        MIXED,
    ),
    "ids that are rounded": (
        "inputs = Input((2,))\nx = layers.Lambda(lambda t: t[:, 0])(inputs)\n"
        "model = Model(inputs, layers.Dense(1)(layers.Embedding(9999, 8)(x)))",
        ROUNDED,
    ),
    "add_loss": (
        "inputs = Input((4,))\nx = layers.Dense(8)(inputs)\nmodel = Model(inputs, layers.Dense(1)(x))\n"
        "model.add_loss(tf.reduce_mean(x))",
        "add_loss",
    ),
    "a loaded model": ("model = tf.keras.models.load_model('m.h5')", "loaded"),
    "layers of another library": (
        "import hub\nmodel = Sequential([hub.KerasLayer('u'), layers.Dense(1)])",
        "not a layer that is known",
    ),
    "an application as it is": ("model = tf.keras.applications.VGG16(weights=None, classes=3)", "VGG16"),
    "a model from elsewhere": (
        "import zoo\nmodel = zoo.build()",
        "which model `model` is is not known: it is made by `zoo.build`",
    ),
    "hidden layers made by the same call": (
        """
def dense(x, n):
    return layers.Dense(n)(x)


inputs = Input((4,))
model = Model(inputs, dense(dense(inputs, 8), 1))""",
        "hidden layer",
    ),
    "an own class without dtype": (
        """
class Own(layers.Layer):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def call(self, x):
        return x * self.scale


model = Sequential([layers.Dense(8), Own(2.0)])""",
        "takes no dtype",
    ),
    "a loss that reads a hidden tensor": (
        """
inputs = Input((4,))
z = layers.Dense(2)(inputs)
model = Model(inputs, layers.Dense(1)(z))


def vae_loss(t, p):
    return tf.reduce_mean((t - p) ** 2) + tf.reduce_mean(z)


model.compile("adam", loss=vae_loss)""",
        "reads `z`",
    ),
    "a loss class that reads a hidden tensor": (
        """
inputs = Input((4,))
z = layers.Dense(2)(inputs)
model = Model(inputs, layers.Dense(1)(z))


class Own(tf.keras.losses.Loss):
    def call(self, t, p):
        return tf.reduce_mean(t - p) + tf.reduce_sum(z)


model.compile("adam", loss=Own())""",
        "reads `z`",
    ),
    "a perceptual loss": (
        """
vgg = tf.keras.applications.VGG16(include_top=False)
model = Sequential([layers.Conv2D(8, 3), layers.Conv2D(3, 3)])
model.compile("adam", loss=lambda t, p: tf.reduce_mean(vgg(t) - vgg(p)))""",
        "computes with layers",
    ),
    "an activation by a name of its own": (
        "model = Sequential([layers.Dense(8, activation='own'), layers.Dense(1)])",
        "activation `own`",
    ),
    "a written out float16": (
        "model = Sequential([layers.Lambda(lambda x: tf.cast(x, tf.float16)), layers.Dense(1)])",
        "written out",
    ),
    "a second input that is not cast": (
        """
class Gate(layers.Layer):
    def call(self, x, gate):
        return x * gate


a, b = Input((4,)), Input((4,))
model = Model([a, b], layers.Dense(1)(Gate()(layers.Dense(4)(a), b)))""",
        "casts only the first",
    ),
    "a float32 state": (
        """
class Net(Model):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = layers.LSTM(8), layers.Dense(1)

    def call(self, x):
        zeros = tf.zeros((tf.shape(x)[0], 8))
        return self.last(self.lstm(x, initial_state=[zeros, zeros]))


model = Net()""",
        "casts only the first",
    ),
    "an optimizer that is not Keras's": (
        MODEL + "\nmodel.compile(optimizer=tf.compat.v1.train.AdamOptimizer(1e-3), loss='mse')",
        "AdamOptimizer",
    ),
    "an attribute of the optimizer": (MODEL + "\nprint(model.optimizer.get_config())", "wraps the optimizer"),
    "gradients": (MODEL + "\nwith tf.GradientTape() as tape:\n    pass", "GradientTape"),
    "an own train_step": (
        "class Net(Model):\n    def call(self, x):\n        return x\n\n    def train_step(self, d):\n"
        "        return {}\n\n\nmodel = Net()",
        "train_step",
    ),
    "the graph mode of TensorFlow 1": ("tf.compat.v1.disable_eager_execution()\n" + MODEL, "graph mode"),
    "a TPU": ("strategy = tf.distribute.TPUStrategy(resolver)\n" + MODEL, "bfloat16"),
    "raw inputs that overflow": (
        "import numpy as np\nx = np.random.uniform(1e5, 9e5, (99, 4))\n" + MODEL,
        "100000",
    ),
    "a legacy Keras": ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + MODEL, "TF_USE_LEGACY_KERAS"),
    "features that someone reads": (
        """
inputs = Input((4,))
x = layers.Dense(8, name="code")(inputs)
model = Model(inputs, layers.Dense(1)(x))
encoder = Model(inputs, model.get_layer("code").output)
encoder.predict(data)""",
        "another model",
    ),
    "numbers outside of float16 in float16": (
        "class Net(Model):\n    def __init__(self):\n        super().__init__()\n"
        "        self.n, self.d = layers.Normalization(), layers.Dense(1)\n\n"
        "    def call(self, x):\n        return self.d(self.n(x))\n\n\nmodel = Net()",
        "raw features",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    body, reason = REFUSED[name]
    check.refuses(
        HEAD + _without(body) + TRAIN
        if "\n" not in body
        else HEAD + "\n".join(_without(line) for line in body.split("\n")) + TRAIN,
        reason,
    )


def test_refuses_without_fit() -> None:
    """Where no `fit` is to be seen there is still something to say about loops and about precision."""
    loop = HEAD + _without(MODEL) + "\nwith tf.GradientTape() as tape:\n    loss = model(x)\n"
    check.refuses(loop, "no training step of a Keras model", line=4)
    chosen = HEAD + "tf.keras.backend.set_floatx('float64')\n" + _without(MODEL) + "\nprint(model(x))\n"
    check.refuses(chosen, "float64", line=3)
    check.ignores(HEAD + "def build():\n    " + _without(MODEL) + "\n    return model\n")


L2 = 'activity_regularizer="l2"'
ZERO = "normalize=True"
STAY = {
    # a layer, and where it has to stay in float32: the Keras, the precision
    f"layers.Dense(8, {L2})": ("", ""),
    "layers.ActivityRegularization(0.1)": ("", ""),
    "layers.RandomErasing()": ("keras3", ""),
    "layers.RandomZoom(0.1)": ("tf2.15", "bfloat16"),
    "layers.GroupNormalization(2, epsilon=1e-8)": ("tf2.15", "float16"),
    "layers.GroupNormalization(2, -1, 1e-8)": ("tf2.15", "float16"),
    "layers.UnitNormalization()": ("", "float16"),
    "layers.Normalization()": ("", ""),
    "layers.GroupNormalization(2, epsilon=1e-3)": ("none", ""),
    "layers.LayerNormalization(epsilon=1e-12)": ("none", ""),
    "layers.Dense(8, activity_regularizer=None)": ("none", ""),
}


@pytest.mark.parametrize("layer", STAY)
def test_layers_that_do_not_work_in_low_precision_stay_in_float32(layer: str) -> None:
    keras, precision = STAY[layer]
    for target in ("tf2.15", "keras3"):
        for dtype in ("float16", "bfloat16"):
            stays = keras in ("", target) and precision in ("", dtype)
            pinned = layer[:-1] + PIN + ")" if not layer.endswith("()") else layer[:-1] + PIN.replace(", ", "") + ")"
            body = (
                f"one = {pinned if stays else layer}\nmodel = Sequential([layers.Dense(8), one, layers.Dense(1{PIN})])"
            )
            policy = POLICY.replace("float16", dtype)
            check.fixes(*both(body, policy=policy), target=target, amp_dtype=dtype)


def test_products_that_are_normalized_stay_in_float32() -> None:
    for product in (f"layers.Dot(1, {ZERO}{PIN})([x, z])", f"layers.dot([x, z], 1, True{PIN})"):
        body = f"a = Input((4,))\nx, z = layers.Dense(3)(a), layers.Dense(3)(a)\nq = {product}\n"
        check.fixes(*both(body + f"model = Model(a, layers.Dense(1{PIN})(q))"))


def test_mixing_of_images_stays_in_float32_in_keras_3() -> None:
    body = f'mix = layers.MixUp(>>dtype="float32"<<)\ndata = data.map(mix)\n{MODEL}'
    check.fixes(*both(body), target="keras3")


def test_what_stays_in_float32_must_be_seen() -> None:
    body = "model = Sequential([layers.UnitNormalization(**more), layers.Dense(8), layers.Dense(1)])"
    check.refuses(HEAD + body + TRAIN, "cannot all be seen")


@pytest.mark.parametrize("target", ["tf2.15", "keras3"])
def test_penalties_of_own_layers(target: str) -> None:
    own = """
class Own(layers.Dense):
    def __init__(self, n):
        super().__init__(n, activity_regularizer="l2")


model = Sequential([Own(8), layers.Dense(1)])"""
    check.refuses(HEAD + own + TRAIN, "activity regularization", target=target)


def test_float32_that_meets_low_precision_in_keras_3() -> None:
    mixed = (
        HEAD + "inputs = Input((4,))\nx = layers.Dense(4)(inputs) + inputs\n"
        "model = Model(inputs, layers.Dense(1)(x))" + TRAIN
    )
    assert check.run(mixed, target="keras3").applied


LAYER_ALONE = {
    "z = one(np.arange(3))": "`one` calls a layer outside of a model",
    "def show(ids):\n    return one(ids).numpy()\n\n\nshow(np.arange(3))": "`one` calls a layer",
    "one(np.arange(3))": "",
    "print(one(np.arange(3)).shape)": "",
    "z = Model(inputs, one(inputs))": "",
    "z = layers.Rescaling(1 / 255)(np.arange(3))": "",
    "z = layers.Dense(3)(np.ones((2, 2)))": "calls a layer outside of a model",
    "z = layers.Dense(3, dtype='float32')(np.ones((2, 2)))": "",
}


@pytest.mark.parametrize("use", LAYER_ALONE)
def test_layers_that_are_called_outside_of_models(use: str) -> None:
    source = f"""
import numpy as np
inputs = Input((20,))
one = layers.Embedding(99, 8)
model = Model(inputs, layers.Dense(1)(layers.Dense(8)(layers.Flatten()(one(inputs)))))
{use}"""
    if LAYER_ALONE[use]:
        check.refuses(HEAD + source + TRAIN, LAYER_ALONE[use])
    else:
        assert check.run(HEAD + source + TRAIN).applied


PASSED_ON = {
    "kw = dict(dtype='float64')\none = layers.Dense(8, **kw)": True,
    "kw = {}\nkw['dtype'] = 'float64'\none = layers.Dense(8, **kw)": True,
    "kw = {}\nkw.update(dtype='float16')\none = layers.Dense(8, **kw)": True,
    "def dense(n, **kw):\n    return layers.Dense(n, **kw)\n\n\none = dense(8, dtype=tf.float64)": True,
    "def dense(n, **kw):\n    return layers.Dense(n, **kw)\n\n\none = dense(8, dtype='float32')": False,
    "def dense(n, **kw):\n    return layers.Dense(n, **kw)\n\n\none = dense(8)\nz = tf.zeros(3, dtype='float64')": False,
    "kw = {}\nkw.setdefault('dtype', 'float16')\none = layers.Dense(8, **kw)": True,
    "one = layers.Dense(8)\nkw = dict(dtype='float64')": False,
}


@pytest.mark.parametrize("made", PASSED_ON)
def test_a_precision_that_is_passed_on_to_layers(made: str) -> None:
    source = HEAD + made + "\nmodel = Sequential([one, layers.Dense(1)])" + TRAIN
    if PASSED_ON[made]:
        check.refuses(source, "set")
    else:
        assert check.run(source).applied


DENSE = "model = Sequential([layers.Dense(8), layers.Dense(1)])"
LOOKED_UP = "model = Sequential([layers.Embedding(99999, 8), layers.Flatten(), layers.Dense(8), layers.Dense(1)])"
OWN = """
class Net(Model):
    def __init__(self):
        super().__init__()
        self.rows, self.mixed, self.last = layers.Embedding(99999, 8), layers.Dense(8), layers.Dense(1)

    def call(self, x):
        return self.last(self.mixed(self.rows(x)))


model = Net()"""
INFINITE, AS_FLOATS = "infinite in float16", "called with floats"
FEATURES = [
    (DENSE, "np.random.randint(0, 100000, (10, 4))", INFINITE),
    (DENSE, "np.random.default_rng(1).integers(100000, size=(10, 4))", INFINITE),
    (DENSE, "np.arange(100000).reshape(-1, 4).astype('float32')", INFINITE),
    (DENSE, "np.full((10, 4), 1e6)", INFINITE),
    (DENSE, "np.full(100000, 1.0)", ""),
    (DENSE, "np.linspace(0, 1, 100000)", ""),
    (DENSE, "np.arange(100000) * 0.001", ""),
    (DENSE, "np.sin(np.arange(100000))", ""),
    (DENSE, "np.random.randint(0, 1000, (10, 4))", ""),
    (DENSE, "tf.data.Dataset.from_tensor_slices((np.arange(100000), y)).batch(9)", INFINITE),
    (DENSE, "tf.data.Dataset.from_tensor_slices((np.arange(100000), y)).map(scale).batch(9)", ""),
    (LOOKED_UP, "np.random.randint(0, 100000, (10, 4))", ""),
    (OWN, "np.random.randint(0, 100000, (10, 4))", ""),
    (OWN, "np.arange(0.0, 9.0)", AS_FLOATS),
    (OWN, "np.linspace(0, 9, 10)", AS_FLOATS),
    (OWN, "np.floor(np.random.rand(10, 4) * 5000)", AS_FLOATS),
    (OWN, "np.asarray(ids, dtype='float32')", AS_FLOATS),
    (OWN, "tf.cast(ids, tf.float32)", AS_FLOATS),
    (OWN, "np.zeros((10, 4), dtype='int32')", ""),
    (OWN, "tf.data.Dataset.from_tensor_slices((ids.astype('float32'), y)).batch(9)", AS_FLOATS),
]


@pytest.mark.parametrize(("model", "features", "reason"), FEATURES)
def test_numbers_that_a_model_is_called_with(model: str, features: str, reason: str) -> None:
    source = HEAD + f"import numpy as np\nx = {features}\n" + model + TRAIN
    if reason:
        check.refuses(source, reason)
    else:
        assert check.run(source).applied


def test_pins_an_encoder_that_is_used() -> None:
    body = """
inputs = Input((4,))
code = layers.Dense(2, activation="relu"{pin})(layers.Dense(8)(inputs))
model = Model(inputs, layers.Dense(4{all})(code))
encoder = Model(inputs, code)
"""
    for use, pin in (("encoder.predict(x)", PIN), ("encoder.summary()", "")):
        check.fixes(*both(body.format(pin=pin, all=PIN) + use))


@pytest.mark.parametrize(
    "model, gains",
    [
        ("Sequential([layers.Dense(1)])", False),
        ("Sequential([layers.Embedding(99, 8), layers.Flatten(), layers.Dense(1)])", False),
        ("Sequential([layers.Flatten(), layers.Dense(9, 'relu'), layers.Dense(1)])", True),
        ("Sequential([Sequential([layers.Conv2D(8, 3)]), layers.Flatten(), layers.Dense(1)])", True),
        ("Sequential([layers.Lambda(lambda t: tf.matmul(t, t)), layers.Dense(1)])", True),
        ("Sequential([layers.Embedding(99, 8), layers.Lambda(lambda t: tf.reduce_mean(t, 1))])", False),
    ],
)
def test_a_model_that_is_all_output(model: str, gains: bool) -> None:
    source = f"{HEAD}model = {model}{TRAIN}"
    if gains:
        assert check.run(source).applied
    else:
        check.refuses(source, "what is computed in 16 bits multiplies no matrices")


def test_the_old_copy_of_keras_inside_tensorflow() -> None:
    before, _ = both(MODEL)
    old = "from tensorflow.python.keras.optimizers import SGD\n"
    check.refuses(before + old, "an old copy of Keras, have a policy of their own")
    plots = "\nfrom tensorflow.python.keras.utils.vis_utils import plot_model\n"
    assert check.run(before.replace("\nimport", plots + "import", 1)).applied


def test_a_converted_model_and_one_that_is_only_run() -> None:
    convert = MODEL + "\ntf.lite.TFLiteConverter.from_keras_model(model)\n"
    check.refuses(both(convert)[0], "converts the model")
    check.fixes(*both(MODEL, train=TRAIN + "tf.lite.Interpreter('other.tflite')\n"))


def test_another_backend_is_the_only_reason() -> None:
    head = "import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\nimport tensorflow as tf\n"
    source = head + "keras.config.set_epsilon(1e-12)\nmodel = keras.Sequential([keras.layers.Dense(1)])" + TRAIN
    (refused,) = check.run(source, target="keras3").refused
    assert (refused.reason, refused.hint) == ("Keras runs on torch, not on TensorFlow", "")


# -- with a file beside the script ---------------------------------------------------------------------------

SIBLING = """
from tensorflow.keras import Sequential, layers


def build():
    return Sequential([layers.Dense(8), layers.Dense(1)])
"""
MAIN = """
import tensorflow as tf
from model import build

model = build()
model.compile("adam", "mse")
model.fit(x, y)
"""


def _pair(folder: Path, main: str, model: str, edit: bool) -> list[Result]:
    (folder / "model.py").write_text(model)
    (folder / "train.py").write_text(main)
    paths = [folder / "train.py", folder / "model.py"]
    return rewrite(
        paths if edit else paths[:1],
        Options(select=frozenset({"mixed-precision"})),
        lambda _: named("tf2.15"),
    )


def test_both_files_or_neither(tmp_path: Path) -> None:
    train, model = _pair(tmp_path, MAIN, SIBLING, edit=True)
    assert POLICY in train.after.decode() and 'layers.Dense(1, dtype="float32")' in model.after.decode()
    assert POLICY not in model.after.decode()
    (alone,) = _pair(tmp_path, MAIN, SIBLING, edit=False)
    assert alone.after == alone.before
    assert "needs a change in" in alone.refused[0].reason and "model.py:6" in alone.refused[0].reason


def test_policy_before_a_file_that_makes_layers(tmp_path: Path) -> None:
    sibling = SIBLING + "\n\nNET = build()\n"
    train, _ = _pair(tmp_path, MAIN.replace("build", "NET").replace("NET()", "NET"), sibling, edit=True)
    assert train.after.decode().index(POLICY) < train.after.decode().index("from model")
    early = MAIN.replace(
        "import tensorflow as tf\nfrom model import build", "from model import NET\nimport tensorflow as tf"
    )
    train, _ = _pair(tmp_path, early.replace("build()", "NET"), sibling, edit=True)
    assert train.after == train.before and "before TensorFlow is imported" in train.refused[0].reason


def test_training_in_the_file_beside(tmp_path: Path) -> None:
    sibling = (
        SIBLING
        + """

def train(x, y):
    model = build()
    model.compile("adam", "mse")
    model.fit(x, y)
"""
    )
    main = "import tensorflow as tf\nfrom model import train\n\ntrain(x, y)\n"
    train, model = _pair(tmp_path, main, sibling, edit=True)
    assert POLICY in train.after.decode() and POLICY not in model.after.decode() and b"dtype" in model.after
    unused = "import tensorflow as tf\nfrom model import build\n\nbuild().summary()\n"
    train, model = _pair(tmp_path, unused, sibling, edit=True)
    assert train.after == train.before


# -- in TensorFlow -------------------------------------------------------------------------------------------

RUN = """
import numpy as np
import tensorflow as tf
from tensorflow.keras import Input, Model, Sequential, layers

tf.keras.utils.set_random_seed(1)
binary = False
data, targets = np.random.rand(64, 4).astype("float32"), np.random.rand(64, 1).astype("float32")
x = data
"""
CHECKS = """
model.compile("adam", "mse")
history = model.fit(data, targets, epochs=2, verbose=0)
assert all(np.isfinite(history.history["loss"])), history.history
low = [l.name for l in model.layers if getattr(l, "compute_dtype", "") == "%s"]
print("RESULT", model.predict(data[:3], verbose=0).dtype, len(low) > 0)
"""
RUNS = (
    "a list",
    "an add chain",
    "a relu at the end",
    "a scaled output",
    "an operator at the end",
    "a residual to the input",
    "a loop of residual blocks",
    "a subclass",
    "a functional subclass",
    "a nested model at the end",
    "an own layer",
    "an own layer at the end",
    "an own block at the end",
    "float32 inside a layer",
    "normalization stays exact",
    "an own activation",
)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(("env", "target"), [("tf215", "tf2.15"), ("tf221", "tf2.21")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rewritten_models_train(env: str, target: str, dtype: str, tmp_path: Path) -> None:
    """Every shape in one process: each is a function of its own, so that one policy serves them all."""
    python = tf_env(env)
    parts = []
    names = [n for n in RUNS if env == "tf215" or n != "an operator at the end"]  # (tf.* on inputs: not in Keras 3)
    for name in names:
        source = RUN + "\n".join(_without(line) for line in SHAPES[name].split("\n")) + CHECKS % dtype
        after = check.run(source, target=target, amp_dtype=dtype)
        assert after.applied, (name, after.refused)
        parts.append(after.after.decode())
    path = tmp_path / "all.py"
    path.write_text(
        "\n".join(f"exec(compile({part!r}, {name!r}, 'exec'), {{}})" for name, part in zip(names, parts, strict=True))
    )
    done = run_script(python, path, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(results) == len(names)
    assert all(line.startswith("RESULT float32") for line in results), dict(zip(names, results, strict=True))


BROKEN = (
    "x + tf.constant(1.0)",
    "x / tf.sqrt(tf.cast(tf.shape(x)[-1], tf.float32))",
    "tf.one_hot(tf.argmax(x, -1), 8) * x",
    "x * SCALE",
    "tf.linalg.inv(tf.matmul(x, x, transpose_a=True))",
)


@pytest.mark.tf
@pytest.mark.slow
def test_what_is_refused_does_break(tmp_path: Path) -> None:
    """The refused code fails when the policy is set over it by hand: the refusals are not made up."""
    python = tf_env("tf215")
    scripts = []
    for body in BROKEN:
        source = RUN + "SCALE = tf.constant(3.0)\n" + LAYER.format(body="return " + body) + CHECKS % "bfloat16"
        check.refuses(source, "")
        scripts.append(
            source.replace(
                "tf.keras.utils.set",
                'tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")\ntf.keras.utils.set',
            )
        )
    path = tmp_path / "all.py"
    path.write_text(f"""
for source in {scripts!r}:
    try:
        exec(compile(source, "s", "exec"), {{}})
    except Exception as error:
        print("RESULT", type(error).__name__)
    else:
        print("RESULT trained")
""")
    done = run_script(python, path, timeout=600)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(results) == len(BROKEN), done.stderr[-2000:]
    assert "RESULT trained" not in results, dict(zip(BROKEN, results, strict=True))


def test_a_layer_of_another_library_handed_to_a_model() -> None:
    Check("mixed-precision").refuses(
        """
        import tensorflow as tf
        import tensorflow_hub as hub
        class Net(tf.keras.Model):
            def __init__(self, module):
                super().__init__()
                self.module_ = module
                self.head = tf.keras.layers.Dense(3)
            def call(self, images):
                return self.head(self.module_(images))
        net = Net(module=hub.KerasLayer("x"))
        net.compile("sgd", "mse")
        net.fit(x, y)
        """,
        "`self.module_` comes from outside",
    )


def test_the_state_of_a_cell_is_not_cast_by_keras_2() -> None:
    Check("mixed-precision").refuses(
        """
        import tensorflow as tf
        class Net(tf.keras.Model):
            def __init__(self):
                super().__init__()
                self.state = [tf.zeros([4, 8])]
                self.cell = tf.keras.layers.SimpleRNNCell(8)
                self.head = tf.keras.layers.Dense(1)
            def call(self, x):
                state = self.state
                for word in tf.unstack(x, axis=1):
                    out, state = self.cell(word, state)
                return self.head(out)
        net = Net()
        net.compile("sgd", "mse")
        net.fit(x, y)
        """,
        "Keras 2 casts only the first",
    )


@pytest.mark.parametrize(
    "state, target, full",
    [
        ("batch_size=4, dtype=tf.float32", "tf2.15", True),
        ("None, 4, 'float32'", "tf2.15", True),
        ("tf.ones((4, 3))", "tf2.15", True),
        ("x", "tf2.15", False),
        ("batch_size=4, dtype=self.compute_dtype", "tf2.15", False),
        ("batch_size=4", "keras3", False),
    ],
)
def test_the_state_that_a_cell_begins_with(state: str, target: str, full: bool) -> None:
    source = f"""
        import tensorflow as tf
        class Net(tf.keras.Model):
            def __init__(self):
                super().__init__()
                self.cell = tf.keras.layers.LSTMCell(8)
                self.head = tf.keras.layers.Dense(1)
            def call(self, x):
                state = self.cell.get_initial_state({state})
                for i in range(5):
                    out, state = self.cell(x[:, i], state)
                return self.head(out)
        net = Net()
        net.compile("sgd", "mse")
        net.fit(x, y)
        """
    result = Check("mixed-precision", target=target).run(source)
    assert bool(result.applied) is not full
    assert full is ("Keras 2 casts only the first" in str(result.refused))


TRAINED = """
import tensorflow as tf
m = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(4,)), tf.keras.layers.Dense(1)])
m.compile("sgd", "mse")
m.fit(x, y)
"""


def test_models_that_are_converted_stay_in_float32() -> None:
    Check("mixed-precision").refuses(
        TRAINED + "flat = tf.lite.TFLiteConverter.from_keras_model(m).convert()\n", "converts the model", line=5
    )


def test_watched_operations_do_not_go_with_loss_scaling() -> None:
    watched = TRAINED.replace("\nm = ", "\ntf.debugging.enable_check_numerics()\nm = ")
    Check("mixed-precision").refuses(watched, "watches every operation")
    Check("xla").refuses(watched, "watches every operation")


@pytest.mark.parametrize(
    "use",
    [
        "h = m.layers[0](tf.ones((2, 4))) + tf.ones((2, 8))",
        "h = m.get_layer(index=0)(x)",
        "first = m.layers[0]\nh = first(x)",
        "h = x\nfor layer in m.layers[:-1]:\n    h = layer(h)",
    ],
)
def test_hidden_layers_that_are_called_by_themselves(use: str) -> None:
    Check("mixed-precision").refuses(TRAINED + use + "\n", "calls a layer of the model by itself")


NET = """
import tensorflow as tf
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.head = tf.keras.layers.Dense(1)
        self.body = [tf.keras.layers.Dense(8) for _ in range(3)]
        self.first = tf.keras.layers.Dense(8)
    def encode(self, x):
        return {}
    def call(self, x):
        return self.head(self.encode(x))
net = Net()
net.compile("sgd", "mse")
net.fit(x, y)
"""


@pytest.mark.parametrize("code", ["self.layers[2](x)", "self.body[i](x)", "self.get_layer(index=2)(x)"])
def test_layers_that_a_model_calls_of_its_own_are_inside_it(code: str) -> None:
    before = NET.format(code)
    after = before.replace("as tf\n", "as tf\n" + POLICY).replace("Dense(1)", 'Dense(1, dtype="float32")')
    check.fixes(before, after)
    check.refuses(before + "print(net.encode(x))\n", "by itself") if "body" not in code else None


def test_a_layer_of_a_model_that_may_be_the_output_is_float32_in_it() -> None:
    check.refuses(NET.format("self.layers[i](x) + self.first(x)"), "float32")


@pytest.mark.parametrize("loop", ["for layer in self.layers", "for i, layer in enumerate(self.layers)"])
def test_a_list_of_layers_of_a_class_of_its_own(loop: str) -> None:
    before = f"""
    import tensorflow as tf
    class Block(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.layers = [tf.keras.layers.Dense(8), tf.keras.layers.Dense(8)]
        def call(self, x):
            {loop}:
                x = layer(x)
            return x
    net = tf.keras.Sequential([Block(), tf.keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    net.fit(x, y)
    """
    after = before.replace("as tf\n", f"as tf\n    {POLICY}").replace("Dense(1)", 'Dense(1, dtype="float32")')
    check.fixes(before, after)


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        ("layers.SimpleRNN(8, activation='relu'{})", True),
        ("layers.SimpleRNN(8, 'linear'{})", True),
        ("layers.LSTM(8, activation=None{})", True),
        ("layers.GRU(8, activation=tf.nn.elu{})", True),
        ("layers.GRU(8, activation=choose(){})", True),
        ("layers.ConvLSTM2D(8, 3, activation='relu'{})", True),
        ("layers.Bidirectional(layers.LSTM(8, activation='relu'{}))", True),
        ("layers.SimpleRNN(8{})", False),
        ("layers.LSTM(8, 'tanh'{})", False),
        ("layers.GRU(8, activation=tf.keras.activations.sigmoid{})", False),
    ],
)
@pytest.mark.parametrize("target", ["tf2.15", "keras3"])
def test_recurrent_layers_that_may_grow_stay_in_float32(layer: str, kept: bool, target: str) -> None:
    made = "model = Sequential([layers.Dense(8), {}, layers.Dense(1{})])\n"
    quote = "'" if "'" in layer else '"'
    before = HEAD + made.format(layer.format(""), "") + TRAIN
    pin = f", dtype={quote}float32{quote}"
    fixed = made.format(layer.format(pin if kept else ""), ', dtype="float32"')
    result = check.run(before, target=target)
    assert result.after.decode().replace("'", '"') == (HEAD + POLICY + fixed + TRAIN).lstrip().replace("'", '"')
    result = check.run(before, target=target, amp_dtype="bfloat16")
    assert result.after.decode().count("float32") == 1  # bfloat16 has the range


def test_recurrent_cells_that_may_grow() -> None:
    model = "model = Sequential([layers.RNN(layers.LSTMCell(8{})), layers.Dense(8), layers.Dense(1)])\n"
    check.refuses(HEAD + model.format(", activation='relu'") + TRAIN, "may exceed float16 from step to step")
    assert not check.run(HEAD + model.format("") + TRAIN).refused


def test_recurrent_layers_whose_arguments_are_not_seen() -> None:
    check.refuses(
        HEAD + "model = Sequential([layers.Dense(8), layers.GRU(8, **options), layers.Dense(1)])\n" + TRAIN,
        "may have to stay in float32 cannot all be seen",
    )


@pytest.mark.parametrize(
    ("layer", "slow", "named_too", "reason"),
    [
        ("Dense(8)", False, False, ""),
        ("Dense(8)", True, False, "has no instructions for bfloat16"),
        ("Dense(8)", True, True, ""),
        ("GRU(8)", False, False, "`GRU` multiplies"),
        ("Bidirectional(layers.LSTM(8))", False, False, "`LSTM` multiplies"),
        ("GRU(8)", False, True, ""),
    ],
)
def test_a_cpu(layer: str, slow: bool, named_too: bool, reason: str) -> None:
    """What costs a CPU more than it gains is done only where it is named: by the user, or by `tune`."""
    body = f"model = Sequential([Input((9, 4)), layers.{layer}, layers.Flatten(), layers.Dense(1)])\n"
    before, _ = both(body)
    target = replace(named("tf2.15"), cpu=True, slow_bfloat16=slow)
    path, select = Path("train.py"), frozenset({"mixed-precision"}) if named_too else None
    (result,) = rewrite([path], Options(2, select), lambda _: target, {path: before.encode()})
    assert ("mixed_bfloat16" in result.after.decode()) is (not reason)
    refused = [r for r in result.refused if r.codemod == "mixed-precision"]
    assert [reason in r.reason and "tune" in r.hint for r in refused] == ([True] if reason else [])
