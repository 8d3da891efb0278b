"""The structure of models: what is in them, what stands at their ends, and what cannot be seen."""

import textwrap
from pathlib import Path

import pytest

from rewriter.engine import Options
from rewriter.models import Structure, models_in, structure
from rewriter.reach import Reach
from rewriter.script import Project, Script
from rewriter.source import parse
from rewriter.target import named

HEAD = "import tensorflow as tf\nfrom tensorflow.keras import Input, Model, Sequential, layers\n"


def script_of(source: str, path: str = "/nowhere/train.py", project: Project | None = None) -> Script:
    project = project or Project(lambda _: named("tf2.15"), Options(), editable={Path(path)})
    return project.add(parse((HEAD + textwrap.dedent(source)).encode(), Path(path)))


def built(source: str, name: str = "model") -> Structure:
    script = script_of(source)
    (model,) = (v for v in script.exported(name) if v.kind in ("model", "layer"))
    return structure(model)


def tails(found: Structure) -> list[str]:
    """Each tail as the arguments of its layers, last first: "3 relu"."""
    return sorted(" < ".join(_shown(v) for v in tail) for tail in found.tails)


def _shown(value: object) -> str:
    node, script = value.node, value.script  # type: ignore[attr-defined]
    text = str(script.source.text.split("\n")[node.lineno - 1][node.col_offset : node.end_col_offset])
    return text.removeprefix("layers.")


SEQUENTIAL = {
    """
    class Net:
        def __init__(self):
            self.net = Sequential()
            self.body()
            self.head(2)
        def block(self, n):
            self.net.add(layers.Dense(n))
        def body(self):
            for n in sizes:
                self.block(n)
        def head(self, n):
            self.net.add(layers.Dense(n + 1))
    model = Net().net
    """: ["Dense(n + 1)"],
    """
    class Net:
        def __init__(self):
            self.net = Sequential()
        def build(self, kinds):
            for kind in kinds:
                if kind == "dense":
                    self.net.add(layers.Dense(1))
                else:
                    self.net.add(layers.Dense(2))
    model = Net().net
    """: ["Dense(1)", "Dense(2)"],
    """
    model = Sequential()
    def one(): model.add(layers.Dense(1))
    def two(): model.add(layers.Dense(2))
    two()
    one()
    """: ["Dense(1)"],
    "model = Sequential([layers.Dense(1), layers.Dense(2)])": ["Dense(2)"],
    "model = Sequential([layers.Dense(1), layers.Dropout(0.5), layers.ReLU()])": ["ReLU() < Dropout(0.5) < Dense(1)"],
    "model = Sequential([layers.Dense(1)] + [layers.Dense(2) for _ in range(3)])": ["Dense(2)"],
    "model = Sequential([*(layers.Dense(n) for n in (1, 2)), layers.Dense(3)])": ["Dense(3)"],
    """
    model = Sequential()
    model.add(layers.Dense(1))
    if flag:
        model.add(layers.Dense(2))
    """: ["Dense(1)", "Dense(2)"],
    """
    model = Sequential()
    for n in (1, 2):
        model.add(layers.Dense(n))
    model.add(layers.Flatten())
    """: ["Flatten()", "Flatten() < Dense(n)"],
    """
    model = Sequential([layers.Dense(1), layers.Dense(2)])
    model.pop()
    """: ["Dense(1)"],
    """
    def head(net, n):
        net.add(layers.Dense(n))

    def body():
        net = Sequential()
        net.add(layers.Dense(1))
        return net

    model = body()
    head(model, 2)
    """: ["Dense(n)"],
    """
    def body():
        return Sequential([layers.Dense(1)])

    model = body()
    model.add(layers.Dense(2))
    """: ["Dense(2)"],
    """
    class Net(Sequential):
        def __init__(self):
            super().__init__()
            self.add(layers.Dense(1))
            self.add(layers.Dense(2))

    model = Net()
    """: ["Dense(2)"],
    """
    for _ in range(3):
        model = Sequential()
        model.add(layers.Dense(1))
        model.add(layers.Dense(2))
    """: ["Dense(2)"],
}


@pytest.mark.parametrize("source", SEQUENTIAL)
def test_end_of_a_sequential(source: str) -> None:
    found = built(source)
    assert tails(found) == SEQUENTIAL[source]
    assert not found.unseen


FUNCTIONAL = {
    "i = Input((1,))\nmodel = Model(i, layers.Dense(1)(i))": ["Dense(1)"],
    "i = Input((1,))\nmodel = Model(i, {'a': layers.Dense(1)(i), 'b': layers.Dense(2)(i)})": [
        "Dense(1)",
        "Dense(2)",
    ],
    "i = Input((1,))\nmodel = Model(i, layers.Add()([layers.Dense(1)(i), layers.Dense(2)(i)]))": [
        "Add() < Dense(1)",
        "Add() < Dense(2)",
    ],
    "i = Input((1,))\nx, state = layers.GRU(1, return_state=True)(i)\nmodel = Model(i, [x, state])": [
        "GRU(1, return_state=True)"
    ],
    "i = Input((1,))\nmodel = Model(i, [layers.Dense(n)(i) for n in (1, 2)])": ["Dense(n)"],
    "i = Input((1,))\nx = layers.Dense(1)(i)\nmodel = Model(i, x[:, 0] * 2)": ["x[:, 0] * 2 < x[:, 0] < Dense(1)"],
    """
    def block(x, n):
        y = layers.Dense(n)(x)
        return layers.Activation("relu")(y)

    i = Input((1,))
    x = i
    for n in (1, 2):
        x = block(x, n)
    model = Model(i, x)
    """: ['Activation("relu") < Dense(n)', "Input((1,))"],
    """
    base = tf.keras.applications.VGG16(include_top=False)
    model = Model(base.input, layers.Flatten()(base.output))
    """: ["Flatten() < tf.keras.applications.VGG16(include_top=False)"],
    """
    body = Sequential([layers.Dense(1), layers.Dense(2)])
    i = Input((1,))
    model = Model(i, layers.Flatten()(body(i)))
    """: ["Flatten() < Dense(2)"],
    """
    class Net(Model):
        def __init__(self, last):
            super().__init__()
            self.first, self.last = layers.Dense(1), last

        def call(self, x):
            return self.last(self.first(x))

    model = Net(layers.Dense(2))
    """: ["Dense(2)"],
    "i = Input((1,))\none = Model(i, layers.Dense(1)(i))\nmodel = tf.keras.models.clone_model(one)": ["Dense(1)"],
}


@pytest.mark.parametrize("source", FUNCTIONAL)
def test_outputs_of_a_functional_model(source: str) -> None:
    found = built(source)
    assert tails(found) == FUNCTIONAL[source]
    assert not found.unseen


def test_everything_inside_is_listed() -> None:
    found = built("""
    def gelu(x):
        return x

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.parts = [layers.LSTM(2, activation=gelu) for _ in range(2)]

        def call(self, x):
            for part in self.parts:
                x = part(x)
            return tf.nn.relu(x)

    body = Sequential([layers.Embedding(9, 2), layers.Bidirectional(layers.GRU(2))])
    i = Input((1,), dtype="int32")
    x = body(i) + layers.Lambda(lambda t: t * 2)(layers.Dense(3)(i))
    model = Model(i, layers.Dense(1)(Block()(x)))
    """)
    assert found.layer_names() == {
        "Embedding",
        "Bidirectional",
        "GRU",
        "Lambda",
        "Dense",
        "LSTM",
        "Layer",
    }
    assert {(c.role, getattr(c.node, "name", "")) for c in found.code} == {
        ("activation", "gelu"),
        ("lambda", ""),
        ("method", "__init__"),
        ("method", "call"),
    }
    assert [m.keras for m in found.models] == ["models.Sequential"]
    assert len(found.operators) == 2 and len(found.inputs) == 1
    dense = {v.node.lineno: v.node in found.hidden for v in found.layers if v.keras == "layers.Dense" and v.node}  # type: ignore
    assert sorted(dense.values()) == [False, True]


UNSEEN = {
    "model = tf.keras.models.load_model('m')": "loaded from a file",
    "model = Sequential(read())": "which layers `read()` holds is not known",
    "import hub\nmodel = Sequential([hub.KerasLayer('u')])": "`hub.KerasLayer` is not a layer",
    "i = Input((1,))\nmodel = Model(i, make()(i))": "which layer makes the output `make()(i)` is not known",
    "i = Input((1,))\nmodel = Model(i, layers.Dense(1)(make()(i)))": "what makes the tensor `make()(i)` is not known",
    "model = Sequential()": "no layer is added to the model where it can be seen",
    "model = Sequential()\nfill(model)": "which layers `fill` (/nowhere/train.py:4) adds to the model is not seen",
    "model = Sequential(*given)": "through `*` or `**`",
    "class Net(Model):\n    pass\n\nmodel = Net()": "no `call`",
    """
    one = Sequential([layers.Dense(1)])
    model = Model(one.input, one.get_layer("a").output)
    """: 'the output `one.get_layer("a").output` is not known',
    "model = tf.keras.models.clone_model(make())": "which model `make()` is that is cloned is not known",
    "model = Sequential([layers.Dense(1), make(1,\n  2)])": "what the last layer `make(1, 2)` is is not known",
}


@pytest.mark.parametrize("source", UNSEEN)
def test_what_cannot_be_seen_has_a_reason(source: str) -> None:
    assert any(UNSEEN[source] in unseen.reason for unseen in built(source).unseen)


def test_recursion_ends() -> None:
    found = built("""
    class Net(Model):
        def __init__(self, inner=None):
            super().__init__()
            self.inner = Net() if inner else layers.Dense(1)

        def call(self, x):
            return self.inner(self.call(x))

    model = Net(True)
    """)
    assert "Dense" in found.layer_names()


@pytest.mark.parametrize("step", ["x + layers.ReLU()(x)", "layers.Add()([x, layers.ReLU()(x)])", "tf.abs(x) * x"])
def test_too_many_ways_back_from_an_output_end(step: str) -> None:
    found = built("x = inputs = Input((4,))\n" + f"x = {step}\n" * 40 + "model = Model(inputs, x)")
    assert any(u.output and "too many ways" in u.reason for u in found.unseen)


def test_models_in_source_order() -> None:
    script = script_of("a = Sequential()\nb = Model(1, 2)\nc = tf.keras.models.load_model('m')\n")
    assert [v.keras for v in models_in(script)] == ["models.Sequential", "models.Model", "models.load_model"]


def test_reach(tmp_path: Path) -> None:
    (tmp_path / "zoo.py").write_text(
        "def used():\n    helper()\n\n\ndef helper():\n    a()\n\n\ndef other():\n    b()\n\n\n"
        "if __name__ == '__main__':\n    other()\n"
    )
    script = script_of("import zoo\nzoo.used()\n", str(tmp_path / "train.py"))
    reach = Reach(script)
    called = {c.func.id for _, c in reach.calls() if hasattr(c.func, "id")}
    assert {"helper", "a"} <= called and "b" not in called
    assert reach.is_program
    zoo = script.project.scripts[tmp_path / "zoo.py"]
    assert Reach(zoo).is_program
    library = script_of("def train():\n    model = Sequential()\n", "/nowhere/library.py")
    assert not Reach(library).is_program


def test_the_body_of_a_class_runs_with_what_is_around_it() -> None:
    script = script_of(
        "def used():\n    a()\n\n\ndef other():\n    b()\n\n\nclass Settings:\n    net = used()\n    c()\n\n"
        "    def never(self):\n        other()\n\n\ndef unused():\n    class Inner:\n        d()\n",
        "/nowhere/train.py",
    )
    called = {c.func.id for _, c in Reach(script).calls() if hasattr(c.func, "id")}
    assert {"used", "a", "c"} <= called
    assert called.isdisjoint({"b", "d"})
