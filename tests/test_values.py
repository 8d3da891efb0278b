"""What names mean and what values are, through every import form and control flow that scripts use."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from rewriter.engine import Options
from rewriter.script import Project, Script
from rewriter.source import parse
from rewriter.target import named


def script(text: str, folder: Path = Path("/nowhere")) -> Script:
    project = Project(lambda _: named("tf2.15"), Options())
    path = folder / "train.py"
    project.editable.add(path)
    return project.add(parse(textwrap.dedent(text).lstrip("\n").encode(), path))


def last(text: str, folder: Path = Path("/nowhere")) -> list[str]:
    """Kind and name of every alternative of the last statement's expression."""
    s = script(text, folder)
    statement = s.tree.body[-1]
    assert isinstance(statement, ast.Expr)
    return sorted({f"{v.kind} {v.literal if v.kind == 'constant' else v.name}" for v in s.values(statement.value)})


@pytest.mark.parametrize(
    ("imports", "expression", "name"),
    [
        ("import tensorflow as tf", "tf.keras.layers.Dense", "tensorflow.keras.layers.Dense"),
        ("import tensorflow.keras as K", "K.layers.Dense", "tensorflow.keras.layers.Dense"),
        ("import tensorflow.keras", "tensorflow.keras.layers.Dense", "tensorflow.keras.layers.Dense"),
        ("from tensorflow import keras", "keras.layers.Dense", "tensorflow.keras.layers.Dense"),
        ("from tensorflow.keras.optimizers import Adam as A", "A", "tensorflow.keras.optimizers.Adam"),
        ("import keras", "keras.Sequential", "keras.models.Sequential"),
        ("import tensorflow.compat.v1 as tf", "tf.keras.Model", "tensorflow.keras.models.Model"),
        ("if True:\n    import tensorflow as tf", "tf.keras.Model", "tensorflow.keras.models.Model"),
        ("from keras.src import layers", "layers.Dense", "keras.layers.Dense"),
        ("from keras.src.engine.sequential import Sequential", "Sequential", "keras.models.Sequential"),
        ("from keras.src.models.sequential import Sequential", "Sequential", "keras.models.Sequential"),
        ("from keras._tf_keras.keras.layers import Dense", "Dense", "keras.layers.Dense"),
        ("from keras.layers.core import Dense", "Dense", "keras.layers.Dense"),
        ("from keras.layers import *", "Dense", "keras.layers.Dense"),
        (
            "from tensorflow.keras.layers import *\nfrom tensorflow.keras.optimizers import *",
            "Adam",
            "tensorflow.keras.optimizers.Adam",
        ),
        ("from tensorflow import *", "keras.layers.Dense", "tensorflow.keras.layers.Dense"),
        (
            "import tensorflow as tf\nkeras = tf.keras\nlayers = keras.layers",
            "layers.Dense",
            "tensorflow.keras.layers.Dense",
        ),
        (
            "try:\n    import tensorflow.compat.v1 as tf\nexcept ImportError:\n    import tensorflow as tf",
            "tf.keras.Model",
            "tensorflow.keras.models.Model",
        ),
        (
            "try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None",
            "tf.data.Dataset",
            "tensorflow.data.Dataset",
        ),
        ("from tensorflow.python.keras.layers import Dense", "Dense", "tensorflow.keras.layers.Dense"),
        ("import tensorflow as tf", "tf.data.experimental.AUTOTUNE", "tensorflow.data.AUTOTUNE"),
        (
            "import tensorflow as tf\nwith tf.device('/cpu:0'):\n    from tensorflow.keras import layers as L",
            "L.Dense",
            "tensorflow.keras.layers.Dense",
        ),
    ],
)
def test_import_forms(imports: str, expression: str, name: str) -> None:
    assert last(f"{imports}\n{expression}") == [f"symbol {name}"]


def test_imports_for_type_checkers_bind_nothing() -> None:
    assert last("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tensorflow as tf\ntf.keras") == [
        "symbol builtins.tf.keras"
    ]


def test_an_import_inside_a_function_is_not_seen_outside() -> None:
    s = script("def f():\n    import tensorflow as tf\n    return tf.keras\nf()\ntf.keras")
    assert s.values(s.tree.body[-1].value)[0].name == "builtins.tf.keras"  # type: ignore[attr-defined]
    assert s.values(s.tree.body[-2].value)[0].name == "tensorflow.keras"  # type: ignore[attr-defined]


def test_unknown_star_imports_hide_builtins() -> None:
    assert last("from somewhere import *\nmax") == ["unknown `max` may come from a star import"]
    assert last("from numpy import *\nmax")[0].startswith(("symbol", "unknown"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nx = 2\nx", ["constant 2"]),
        ("x = 1\nif a:\n    x = 2\nx", ["constant 1", "constant 2"]),
        ("if a:\n    x = 1\nelse:\n    x = 2\nx", ["constant 1", "constant 2"]),
        ("x = 1\nif a:\n    x = 2\n    raise E\nx", ["constant 1"]),
        ("x = 1\nfor i in y:\n    x = 2\nx", ["constant 1", "constant 2"]),
        (
            "x = 1\nwhile a:\n    x = x + 1\nx",
            ["constant 1", "constant 2", "unknown it is computed from something that is not known"],
        ),
        ("x = 1\ntry:\n    x = 2\n    f()\nexcept E:\n    pass\nx", ["constant 1", "constant 2"]),
        ("def f():\n    global x\n    x = 2\nx = 1\nx", ["constant 1", "constant 2"]),
        ("x = 1\ndef f():\n    x = 2\nx", ["constant 1"]),
        ("def f(x):\n    return x\nf(3)", ["constant 3"]),
        ("def f(x=4):\n    return x\nf()", ["constant 4"]),
        ("def f(x):\n    return x\nf(3)\ng(f)\nf(3)", ["parameter x"]),
        ("(a, b), c = (1, 2), 3\nb", ["constant 2"]),
        ("a, *b = 1, 2\nb", ["unknown what `b` is given there is not followed"]),
        ("n = 60000 // 128\nn", ["constant 468"]),
        ("import math\nmath.ceil(60000 / 128)", ["constant 469"]),
        ("f = lambda: 3\nf()", ["constant 3"]),
        ("(y := 5)\ny", ["constant 5"]),
        ("x = 1 if a else None\nx", ["constant 1", "constant None"]),
        ("for x in (1, 2):\n    pass\nx", ["constant 1", "constant 2"]),
        ("with open('a') as f:\n    pass\nf", ["object builtins.open"]),
        ("def f():\n    return g()\ndef g():\n    return f()\nf()", ["unknown it depends on itself in a loop"]),
    ],
)
def test_control_flow(text: str, expected: list[str]) -> None:
    assert [v.replace("unknown nothing that was read says what it is", "unknown") for v in last(text)] == expected


TF = "import tensorflow as tf\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("tf.data.Dataset.range(3).map(f).batch(2)", "dataset"),
        ("ds = tf.data.Dataset.range(3)\nif a:\n    ds = ds.repeat()\nds.batch(2)", "dataset"),
        ("tf.data.TFRecordDataset(files)", "dataset"),
        ("tf.keras.utils.image_dataset_from_directory('d')", "dataset"),
        ("tf.keras.preprocessing.image_dataset_from_directory('d')", "dataset"),
        ("def make():\n    return tf.data.Dataset.range(3), 4\na, b = make()\na", "dataset"),
        ("def make(n):\n    d = tf.data.Dataset.range(n)\n    return d.batch(2)\nmake(3)", "dataset"),
        ("tf.data.Dataset.zip((a, b)).take(3)", "dataset"),
        (
            "import tensorflow_datasets as tfds\n(a, b), info = tfds.load('mnist', split=['train', 'test'], with_info=True)\na",
            "dataset",
        ),
        ("import tensorflow_datasets as tfds\nd = tfds.load('mnist')\nd['train']", "dataset"),
        ("tf.keras.Sequential([])", "model"),
        ("tf.keras.applications.ResNet50(weights=None)", "model"),
        ("tf.keras.models.load_model('m')", "model"),
        ("class M(tf.keras.Model):\n    pass\nM()", "model"),
        ("class A(tf.keras.Model):\n    pass\nclass B(A):\n    pass\nB()", "model"),
        ("class S(tf.keras.utils.Sequence):\n    pass\nS()", "loader"),
        ("def g():\n    yield 1\ng()", "generator"),
        ("tf.keras.layers.Dense(3)", "layer"),
        ("tf.keras.layers.Dense(3)(tf.keras.Input((3,)))", "tensor"),
        ("tf.keras.optimizers.Adam()", "optimizer"),
        ("tf.optimizers.Adam()", "optimizer"),
        ("tf.keras.optimizers.legacy.Adam()", "optimizer"),
        ("tf.keras.optimizers.schedules.ExponentialDecay(1, 2, 3)", "schedule"),
        ("tf.keras.callbacks.EarlyStopping()", "callback"),
        ("tf.keras.preprocessing.image.ImageDataGenerator().flow(x, y)", "loader"),
        (
            "class T:\n    def __init__(self):\n        self.m = tf.keras.Sequential()\n    def go(self):\n"
            "        return self.m\nT().go()",
            "model",
        ),
        ("from keras.layers import InputSpec\nInputSpec(ndim=3)", "object"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    assert {v.split()[0] for v in last(TF + text)} == {kind}


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("import numpy as np\nnp.zeros((512, 3))", 512),
        ("import numpy as np\nnp.random.rand(64, 3).astype('float32') / 255.", 64),
        ("import numpy as np\nn = 100\nx = np.random.randn(n, 3)\nx[:80]", 80),
        ("import numpy as np\nx = np.random.randn(100, 3)\nx[80:]", 20),
        ("import numpy as np\nnp.random.randint(0, 2, size=(77, 1))", 77),
        ("from keras.datasets import mnist\n(a, b), (c, d) = mnist.load_data()\na / 255", 60000),
        ("from keras.datasets import mnist\n(a, b), (c, d) = mnist.load_data()\nd", 10000),
        ("import keras\n(a, b), (c, d) = keras.datasets.cifar10.load_data()\na = a[:1000]\na", 1000),
        ("import keras\n(a, b), _ = keras.datasets.mnist.load_data()\na.reshape(60000, 784)", 60000),
        (
            "from keras.datasets import mnist\nfrom keras.utils import np_utils\n(a, b), _ = mnist.load_data()\n"
            "np_utils.to_categorical(b, 10)",
            60000,
        ),
        ("import numpy as np\nx = np.zeros(unknown)\nx", None),
        ("import numpy as np\nx = np.zeros((100, 3))\nx[::0]", None),
        ("[i for i in range(2, 9, 3)]", 3),
        ("[i for i in range(0, 5, 0)]", None),
        ("[i for i in range(10 ** 30)]", None),
    ],
)
def test_lengths(text: str, length: int | None) -> None:
    s = script(text)
    assert [v.length for v in s.values(s.tree.body[-1].value)] == [length]  # type: ignore[attr-defined]


def test_sibling_modules_are_followed_without_running_them(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import tensorflow as tf\nraise SystemExit\ndef build():\n    return tf.keras.Sequential([])\n"
    )
    (tmp_path / "net").mkdir()
    (tmp_path / "net/__init__.py").write_text("from .deep import make\n")
    (tmp_path / "net/deep.py").write_text("import keras\ndef make():\n    return keras.Sequential()\n")
    assert last("from model import build\nbuild()", tmp_path) == ["model tensorflow.keras.models.Sequential"]
    assert last("import model as m\nm.build()", tmp_path) == ["model tensorflow.keras.models.Sequential"]
    assert last("from net import make\nmake()", tmp_path) == ["model keras.models.Sequential"]
    assert last("import net.deep\nnet.deep.make()", tmp_path) == ["model keras.models.Sequential"]
    assert last("from model import nothing\nnothing()", tmp_path)[0].startswith("unknown")


def test_what_is_made_of_an_array_stands_where_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("\n" * 40 + "import numpy as np\nx = np.zeros((9, 4))\n")
    for made in ("x[2:]", "x[2:].astype('float32')", "x.T"):
        (value,) = (s := script(f"from data import x\n{made}\n", tmp_path)).values(s.tree.body[-1].value)
        assert (value.kind, value.script) == ("array", s), made


def test_packages_above_the_script(tmp_path: Path) -> None:
    inner = tmp_path / "pkg" / "sub"
    inner.mkdir(parents=True)
    (tmp_path / "pkg" / "model.py").write_text("SIZE = 7\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "conf.py").write_text("SIZE = 8\n")
    assert last("from pkg.model import SIZE\nSIZE", tmp_path / "pkg") == ["constant 7"]
    assert last("import pkg.model as m\nm.SIZE", inner) == ["constant 7"]
    assert last("from other.conf import SIZE\nSIZE", tmp_path / "pkg") == ["constant 8"]
    assert last("from other.conf import SIZE\nSIZE", inner) == ["symbol other.conf.SIZE"]  # not known to be one project
    (inner / "__init__.py").touch()
    assert last("from other.conf import SIZE\nSIZE", inner) == ["constant 8"]
    (inner / "pkg").mkdir()
    (inner / "pkg" / "model.py").write_text("SIZE = 9\n")
    assert last("from pkg.model import SIZE\nSIZE", inner) == ["constant 9"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A:\n    n = 3\nA.n", ["constant 3"]),
        ("class A:\n    n = 3\n    n = n + 1\nA.n", ["constant 4"]),
        ("class A:\n    n = 3\n    n = n + 1\nA().n", ["constant 4"]),
        ("class A:\n    n = 3\nA.n += 1\nA.n", ["constant 3", "unknown `n` is set in more places"]),
        ("class A:\n    n = 3\nclass B(A):\n    pass\nB.n", ["constant 3"]),
        ("class A:\n    def n(self): pass\nA.n", ["function n"]),
        ("class A:\n    m = None\nA.n", ["method n"]),
    ],
)
def test_attributes_of_classes(text: str, expected: list[str]) -> None:
    assert last(text) == expected


def test_what_a_class_body_holds_is_followed_to_where_it_is_read() -> None:
    s = script("class A:\n    n = [1]\n    m = n\nf(A.n, A().n, B.n)\nclass B:\n    n = 2\n")
    (made,) = [node for node in ast.walk(s.tree) if isinstance(node, ast.List)]
    assert sorted(ast.unparse(e) for _, e in s.flow(made)) == ["A().n", "A.n", "[1]", "n"]


def test_arguments_are_matched_by_signature() -> None:
    s = script("m.fit(x, y, 32, epochs=3, **opts)\nm.compile('adam', loss='mse', **dict(metrics=[]))\n")
    fit, compile_ = s.tree.body[0].value, s.tree.body[1].value  # type: ignore[attr-defined]
    bound = s.bind(fit, "Model.fit")
    assert set(bound.given) == {"x", "y", "batch_size", "epochs"} and bound.open
    bound = s.bind(compile_, "Model.compile")
    assert set(bound.given) == {"optimizer", "loss", "metrics"} and not bound.open


def test_a_splat_of_a_changed_dict_is_open() -> None:
    s = script("cfg = dict(loss='mse')\ncfg['jit_compile'] = True\nm.compile('sgd', **cfg)\n")
    assert s.bind(s.tree.body[-1].value, "Model.compile").open  # type: ignore[attr-defined]


def test_flow_follows_names_returns_parameters_and_containers() -> None:
    s = script("""
    import tensorflow as tf
    def make():
        d = tf.data.Dataset.range(3)
        return d, 1
    def use(x):
        x.consume()
    a, n = make()
    b = a
    use(b)
    """)
    source = next(c for c in s.calls if ast.unparse(c.func).endswith("range"))
    parents = [type(p.parents[e]).__name__ + " " + ast.unparse(p.parents[e]) for p, e in s.flow(source)]
    assert "Attribute x.consume" in parents
