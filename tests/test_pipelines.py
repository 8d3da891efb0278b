import ast
import textwrap
from pathlib import Path

from rewriter.data.pipelines import consumers, prefetched, related, role, roles, routes, stages, upstream
from rewriter.data.purity import effects, seeds
from rewriter.engine import Options
from rewriter.script import Project, Script
from rewriter.source import parse
from rewriter.target import named
from rewriter.values import Value


def script(text: str, folder: Path = Path("/nowhere")) -> Script:
    project = Project(lambda _: named("tf2.15"), Options(2))
    path = folder / "train.py"
    project.editable = {path}
    return project.add(parse(textwrap.dedent(text).lstrip("\n").encode(), path))


def dataset(s: Script, method: str) -> ast.Call:
    """The call of this name that makes a dataset."""
    return next(c for c in s.calls if isinstance(c.func, ast.Attribute) and c.func.attr == method)


def value(s: Script, method: str) -> Value:
    return s.values(dataset(s, method))[0]


def ends(s: Script, method: str) -> list[tuple[tuple[str, ...], str]]:
    return [(r.names(), r.end.kind) for r in routes(s, dataset(s, method))]


HEAD = "import tensorflow as tf\nmodel = tf.keras.Sequential([])\n"


def test_stages_and_upstream() -> None:
    s = script(
        HEAD
        + """
a = tf.data.Dataset.from_tensor_slices(x).map(f)
b = tf.data.TFRecordDataset(tf.data.Dataset.list_files("*"))
both = tf.data.Dataset.zip((a, b)).shuffle(10).batch(32)
"""
    )
    batch = value(s, "batch")
    assert [v.name.rpartition(".")[2] for v in stages(batch)] == ["zip", "shuffle", "batch"]
    assert [v.name.rpartition(".")[2] for v in upstream(batch)] == [
        "batch",
        "shuffle",
        "zip",
        "map",
        "TFRecordDataset",
        "from_tensor_slices",
        "list_files",
    ]


def test_prefetched() -> None:
    s = script(
        HEAD + "a = tf.data.Dataset.range(3).batch(2).prefetch(1).repeat()\n"
        "b = tf.data.Dataset.range(3).prefetch(1).padded_batch(2)\n"
    )
    assert prefetched(value(s, "repeat")) and not prefetched(value(s, "padded_batch"))


def test_routes_tell_what_a_dataset_is_for() -> None:
    s = script(
        HEAD
        + """
source = tf.data.Dataset.from_tensor_slices(x)
train = source.skip(100).shuffle(10)
val = source.take(100)
model.fit(train.batch(8), validation_data=val.batch(8))
model.evaluate(val)
"""
    )
    assert ends(s, "from_tensor_slices") == [
        (("skip", "shuffle", "batch"), "fit"),
        (("take", "batch"), "validate"),
        (("take",), "evaluate"),
    ]
    assert roles(s, dataset(s, "skip")) == {"training"}
    assert roles(s, dataset(s, "take")) == {"validation"}


def test_routes_through_functions_attributes_tuples_and_dicts() -> None:
    s = script(
        HEAD
        + """
class Data:
    def __init__(self, ds):
        self.ds = ds
    @property
    def ready(self):
        return self.ds.repeat()
def load():
    return tf.data.Dataset.from_tensor_slices(x), 3
def prepare(d, *, size):
    return {"train": d.batch(size)}
def run(m, d):
    m.fit(d)
ds, n = load()
run(model, prepare(ds, size=2)["train"])
data = Data(ds)
model.evaluate(data.ready)
"""
    )
    assert sorted(ends(s, "from_tensor_slices")) == [(("batch",), "fit"), (("repeat",), "evaluate")]


def test_escapes() -> None:
    s = script(
        HEAD
        + """
from elsewhere import use
a = tf.data.Dataset.from_tensor_slices(x)
use(a)
def library():
    return a.cache()
stored["a"] = a.repeat()
"""
    )
    assert sorted(ends(s, "from_tensor_slices")) == [((), "escape"), (("cache",), "escape"), (("repeat",), "escape")]
    assert roles(s, dataset(s, "from_tensor_slices")) == {"unknown"}


def test_an_argument_that_a_function_does_not_use_is_no_escape() -> None:
    s = script(
        HEAD
        + """
def run(ds, m):
    m.fit(x)
run(tf.data.Dataset.from_tensor_slices(x), model)
"""
    )
    assert ends(s, "from_tensor_slices") == []


def test_reading_functions_of_interleave() -> None:
    s = script(
        HEAD
        + """
def read(name):
    return tf.data.TextLineDataset(name).skip(1)
ds = tf.data.Dataset.list_files("*").interleave(read, cycle_length=2)
model.fit(ds.batch(2))
"""
    )
    assert ends(s, "TextLineDataset") == [(("skip", "interleave", "batch"), "fit")]


def test_loops() -> None:
    s = script(
        HEAD
        + """
def step(x):
    with tf.GradientTape() as tape:
        return model(x)
a = tf.data.Dataset.from_tensor_slices(x)
for b in a.batch(2):
    step(b)
for b in a.padded_batch(2):
    model(b)
for b in a.take(2):
    print(b)
it = iter(a.repeat())
while True:
    step(next(it))
"""
    )
    assert [roles(s, dataset(s, m)) for m in ("batch", "padded_batch", "take", "repeat")] == [
        {"training"},
        {"validation"},
        {"iteration"},
        {"training"},
    ]
    assert [(u.kind, role(u)) for u in consumers(s)] == [
        ("loop", "training"),
        ("loop", "validation"),
        ("iterator", "training"),
    ]


def test_modules_of_a_program_belong_together(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import helpers\n")
    (tmp_path / "helpers.py").write_text("import tensorflow as tf\ntf.random.set_seed(1)\n")
    (tmp_path / "other.py").write_text("import tensorflow as tf\ntf.random.set_seed(1)\n")
    s = script("import tensorflow as tf\nimport data\n", tmp_path)
    assert [m.path.name for m in related(s)] == ["train.py", "data.py", "helpers.py"]
    assert [(m.path.name, name) for m, _, name in seeds(s)] == [("helpers.py", "tf.random.set_seed")]


def test_effects() -> None:
    s = script(
        HEAD
        + """
class Reader:
    def __init__(self):
        self.seen = tf.Variable(0)
        self.layers = tf.keras.Sequential([tf.keras.layers.RandomZoom(0.1), tf.keras.layers.Lambda(noise)])
    def parse(self, r):
        self.seen.assign_add(1)
        x = tf.io.decode_raw(r, tf.uint8)
        tf.print(x)
        return self.layers(tf.numpy_function(load, [x], tf.float32))
def noise(x):
    return x + tf.random.normal((3,), seed=4) + helper(x)
ds = tf.data.Dataset.range(3).map(Reader().parse)
"""
    )
    found = effects(s, dataset(s, "map").args[0])
    assert sorted((e.kind, e.what) for e in found) == [
        ("print", "tf.print"),
        ("python", "tf.numpy_function"),
        ("random", "RandomZoom"),
        ("seeded", "tf.random.normal"),
        ("unknown", "helper"),
        ("write", "self.seen.assign_add"),
    ]
