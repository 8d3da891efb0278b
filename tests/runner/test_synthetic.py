"""The data that `--synthetic-data` puts in place of downloads."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewriter.runner.process import HARNESS
from tests.envs import run_script, tf_env

RUNNER = HARNESS.parent

#: Squares of a JPEG file, as red, green and blue.
COLORS = np.array([[(200, 30, 40), (0, 0, 0), (255, 255, 255)], [(10, 220, 60), (90, 90, 90), (20, 40, 250)]])

#: What the harness runs: its results are the last line of the output.
SCRIPT = """
import tensorflow_datasets as tfds  # not installed; before TensorFlow
import json
import os

import numpy as np
import tensorflow as tf
from tensorflow.keras.datasets import mnist
from tensorflow.keras.utils import get_file

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
if VERSION < (2, 6):
    from tensorflow.keras.datasets import cifar10
    from tensorflow.python.keras.utils.data_utils import get_file as other_get_file
else:
    from keras.datasets import cifar10
    from keras.utils import get_file as other_get_file
found = {"sets": {}}


def arrays(name, load, **options):
    parts = [array for part in load(**options) for array in part]
    found["sets"][name] = [
        [list(a.shape), str(a.dtype)] + ([float(a.min()), float(a.max())] if a.dtype != object else []) for a in parts
    ]
    return parts


def refusal(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except (RuntimeError, AttributeError, ValueError) as error:
        return str(error)


def losses(x, y, classes, epochs):
    model = tf.keras.Sequential([tf.keras.layers.Dense(classes, activation="softmax")])
    model.compile(tf.keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy")
    x = np.asarray(x, "float32")
    untrained = float(model.evaluate(x, y, verbose=0))
    return [untrained] + [float(loss) for loss in model.fit(x, y, epochs=epochs, verbose=0).history["loss"]]


state = np.random.get_state()[1].tolist()
x, y, x_test, y_test = arrays("mnist", mnist.load_data)
arrays("fashion_mnist", tf.keras.datasets.fashion_mnist.load_data)
arrays("cifar10", cifar10.load_data)
tfds.load("iris")
assert state == np.random.get_state()[1].tolist(), "the script's random numbers have changed"
found["mnist"] = losses(x[:3000].reshape(-1, 784) / 255.0, y[:3000], 10, 3)
found["dark"] = float((x[:1000] == 0).mean())
arrays("boston_housing", tf.keras.datasets.boston_housing.load_data)
x, y, _, _ = arrays("reuters", tf.keras.datasets.reuters.load_data, num_words=1000, test_split=0.5)
found["word"] = max(map(max, x))
bags = np.stack([np.bincount(words, minlength=1000).clip(0, 1) for words in x])
found["reuters"] = losses(bags.astype("float32"), y, 46, 3)
if VERSION >= (2, 16):
    arrays("cifar100", tf.keras.datasets.cifar100.load_data, label_mode="coarse")
    arrays("california_housing", tf.keras.datasets.california_housing.load_data, version="small")
if (2, 0) < VERSION < (2, 16):
    arrays("imdb", tf.keras.datasets.imdb.load_data, num_words=500)
    found["words"] = len(tf.keras.datasets.imdb.get_word_index())


def tree(path):
    return sorted({os.path.relpath(folder, path) for folder, _, files in os.walk(path) if files})


BASE = "https://storage.googleapis.com/"
path = get_file("facades", origin=BASE + "facades.tar.gz", untar=True, cache_dir=".", cache_subdir="")
found["untar"] = [os.path.basename(path), tree(path)]
path = get_file("pairs.zip", origin=BASE + "download.tensorflow.org/data/spa-eng.zip", extract=True, file_hash="0" * 32)
found["extract"] = [os.path.basename(path), tree(path), tree(os.path.join(os.path.dirname(path), "spa-eng"))]
path = get_file("train.csv", BASE + "tf-datasets/titanic/train.csv")
found["csv"] = open(path).readlines()[0].strip(), len(open(path).readlines())
found["inside"] = os.path.abspath(path).startswith(os.path.realpath(os.environ["TMPDIR"]) + os.sep)
found["same"] = get_file is other_get_file
found["refused"] = [
    refusal(get_file, "a.bin", origin="https://example.com/a.bin"),
    refusal(tf.keras.applications.MobileNetV2, weights="imagenet"),
    refusal(tfds.load, "no_such_set"),
    refusal(tfds.load, "imdb_reviews/subwords8k"),
    refusal(tfds.load, "mnist", split="train[:3shard]"),
    refusal(lambda: tfds.deprecated.text),
]

(train, valid), info = tfds.load(
    "mnist:3.*.*", split=["train[:80%]", "train[80%:]"], as_supervised=True, with_info=True, shuffle_files=True
)
label = info.features["label"]
found["info"] = [label.num_classes, label.names[:2], info.splits["train"].num_examples,
                 info.splits["train[:10%]"].num_examples, info.features["image"].shape]
images, labels = next(iter(tfds.as_numpy(train.batch(1500))))
found["tfds"] = [list(images.shape), str(images.dtype), str(labels.dtype), int(images.min()), int(images.max())]
found["tfds_mnist"] = losses(images.reshape(-1, 784) / 255.0, labels, 10, 3)
images, labels = tfds.as_numpy(tfds.load("mnist", split="train[48000:48005]", batch_size=-1, as_supervised=True))
found["next"] = bool((images[0] == next(iter(tfds.as_numpy(valid)))[0]).all())
pets = list(tfds.as_numpy(tfds.load("oxford_iiit_pet")["test"].take(2)))
found["pets"] = {key: [list(np.shape(value)), str(getattr(value, "dtype", "bytes"))] for key, value in pets[0].items()}
found["differ"] = pets[0]["image"].shape != pets[1]["image"].shape
text = next(iter(tfds.as_numpy(tfds.load("glue/sst2", split="validation+test", batch_size=4))))
found["text"] = [str(text["sentence"].dtype), list(text["label"].shape)]

with open(os.path.join(os.environ["TMPDIR"], "colors.jpg"), "rb") as file:
    decoded = tf.io.decode_jpeg(file.read())
if VERSION < (2, 0):
    decoded = tf.compat.v1.Session().run(decoded)
found["jpeg"] = np.asarray(decoded).tolist()
print("\\n" + json.dumps(found))
"""


@pytest.fixture
def synthetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module as the harness loads it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = list(sys.meta_path)
    module = types.ModuleType("tfboost_synthetic")
    exec((RUNNER / "synthetic.py").read_text(), module.__dict__)
    yield module
    sys.meta_path[:] = before


@pytest.fixture(params=["tf221", "tf215", "tf115"])
def found(request: pytest.FixtureRequest, synthetic: Any, tmp_path: Path) -> dict[str, Any]:
    python = tf_env(request.param)
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    (temporary / "colors.jpg").write_bytes(synthetic.jpeg(COLORS))
    script = work / "train.py"
    script.write_text(SCRIPT)
    config = {
        "script": str(script),
        "records": str(tmp_path),
        "mode": "speed",
        "synthetic": str(RUNNER / "synthetic.py"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    variables = {"TMPDIR": str(temporary), "HOME": str(tmp_path / "home"), "https_proxy": "http://127.0.0.1:9"}
    done = run_script(
        python, RUNNER / "harness.py", str(tmp_path / "config.json"), cwd=work, env=variables, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("--synthetic-data: mnist.npz is made up\n") == 1
    assert [path.name for path in work.iterdir()] == ["train.py"]
    assert not list(temporary.glob("tfboost-synthetic-*"))
    return {"env": request.param, **json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.tf
def test_in_tensorflow(found: dict[str, Any]) -> None:
    sets, env = found["sets"], found["env"]
    for name in ("mnist", "fashion_mnist"):
        x, y, x_test, y_test = sets[name]
        assert x == [[60000, 28, 28], "uint8", 0, 255] and y == [[60000], "uint8", 0, 9], name
        assert x_test == [[10000, 28, 28], "uint8", 0, 255] and y_test == [[10000], "uint8", 0, 9], name
    x, y, x_test, y_test = sets["cifar10"]
    assert (x[:2], y) == ([[50000, 32, 32, 3], "uint8"], [[50000, 1], "uint8", 0, 9])
    assert (x_test[:2], y_test[0]) == ([[10000, 32, 32, 3], "uint8"], [10000, 1])
    assert x[2] < 10 and x[3] > 245
    x, y, x_test, _ = sets["boston_housing"]
    assert x[:2] == [[404, 13], "float64"] and x_test[0] == [102, 13] and 600 < x[3] <= 711
    assert y[:2] == [[404], "float64"] and 5 <= y[2] < 15 and 35 < y[3] <= 50
    x, y, x_test, _ = sets["reuters"]
    assert x == [[5614], "object"] and x_test == x and y == [[5614], "int64", 0, 45]
    assert found["word"] == 999
    if env == "tf221":
        x, y, _, y_test = sets["cifar100"]
        assert x[:2] == [[50000, 32, 32, 3], "uint8"] and y[0] == [50000, 1] and y_test[2:] == [0, 19]
        x, y, _, _ = sets["california_housing"]
        assert x[:2] == [[480, 8], "float32"] and y[:2] == [[480], "float32"] and 14999 <= y[2] < y[3] <= 500001
    if env == "tf215":
        assert sets["imdb"][0] == sets["imdb"][2] == [[25000], "object"] and found["words"] == 88584
        assert sets["imdb"][1] == [[25000], "int64", 0, 1]

    for name in ("mnist", "reuters", "tfds_mnist"):
        assert found[name][-1] < 0.5 * found[name][0], f"{name}: the loss does not fall"
    assert found["mnist"][-1] > 0.2  # some labels are wrong
    assert 0.4 < found["dark"] < 0.9

    keras3 = env == "tf221"
    parts = [("facades/" if keras3 else "") + part for part in ("test", "train", "val")]
    assert found["untar"] == ["facades", parts]
    assert found["extract"] == (["pairs_extracted", ["spa-eng"], []] if keras3 else ["pairs.zip", [], ["."]])
    assert found["csv"] == ["survived,sex,age,n_siblings_spouses,parch,fare,class,deck,embark_town,alone", 628]
    assert found["inside"] and found["same"]
    unknown, weights, *others = found["refused"]
    assert unknown == "--synthetic-data has no stand-in for https://example.com/a.bin"
    assert weights.startswith("--synthetic-data has no stand-in for https://") and weights.endswith("use weights=None")
    for refused, what in zip(
        others, ("no_such_set", "imdb_reviews/subwords8k", "train[:3shard]", "tfds.deprecated"), strict=True
    ):
        assert "--synthetic-data has no stand-in for" in refused and what in refused

    assert found["info"] == [10, ["0", "1"], 60000, 6000, [28, 28, 1]]
    assert found["tfds"][:4] == [[1500, 28, 28, 1], "uint8", "int64", 0] and found["tfds"][4] > 250
    assert found["next"], "train[48000:] does not begin where train[80%:] does"
    assert {key: value[1] for key, value in found["pets"].items()} == {
        "image": "uint8",
        "label": "int64",
        "species": "int64",
        "segmentation_mask": "uint8",
        "file_name": "bytes",
    }
    assert found["differ"] and found["text"] == ["object", [4]]
    decoded = np.array(found["jpeg"])
    assert decoded.shape == (16, 24, 3)
    assert abs(decoded - COLORS.repeat(8, axis=0).repeat(8, axis=1)).max() <= 2


# -- without TensorFlow ----------------------------------------------------------------------------------------


FILES = ["boston_housing.npz", "reuters_word_index.json", "shakespeare.txt", "auto-mpg.data", "iris_training.csv"]
FILES += ["heart.csv", "titanic/eval.csv", "validation-horse-or-human.zip", "spa-eng.zip", "t10k-images-idx3-ubyte.gz"]


def test_files_are_the_same_in_every_run(synthetic: Any, tmp_path: Path) -> None:
    sums = []
    for run in ("first", "second"):
        synthetic.spelling.cache_clear()
        for name in FILES:
            path = tmp_path / run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            synthetic.STAND_INS[name](str(path))
            sums.append(hashlib.sha256(path.read_bytes()).hexdigest())
    assert sums[: len(FILES)] == sums[len(FILES) :]
    assert len(set(sums)) == len(FILES)


def test_tables(synthetic: Any, tmp_path: Path) -> None:
    def lines(name: str) -> list[str]:
        path = tmp_path / name
        synthetic.STAND_INS[name](str(path))
        return path.read_text().splitlines()

    cars = [line.split("\t")[0].split() for line in lines("auto-mpg.data")]
    assert len(cars) == 398 and {len(car) for car in cars} == {8}
    assert sum(car[3] == "?" for car in cars) == 6 and all(9 <= float(car[0]) <= 46.6 for car in cars)
    iris = lines("iris_training.csv")
    assert iris[0] == "120,4,setosa,versicolor,virginica" and len(iris) == 121
    assert {line.split(",")[4] for line in iris[1:]} == {"0", "1", "2"}
    heart = lines("heart.csv")
    assert len(heart) == 304 and {line.split(",")[12] for line in heart[1:]} == {"normal", "reversible", "fixed"}


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ("train", [("train", 0, 105)]),
        ("train[:80%]", [("train", 0, 84)]),
        ("train[-10:]", [("train", 95, 105)]),
        ("train[10%:50%]", [("train", 10, 52)]),
        ("train[200:]", [("train", 105, 105)]),
        ("test[5:2]+train[:1_0]", [("test", 5, 5), ("train", 0, 10)]),
        ("all", [("train", 0, 105), ("test", 0, 20)]),
    ],
)
def test_splits(synthetic: Any, split: str, parts: list[tuple[str, int, int]]) -> None:
    sizes = {"train": 105, "test": 20}
    assert synthetic.chosen(split, sizes) == parts
    assert synthetic.Splits(sizes)[split].num_examples == sum(end - begin for _, begin, end in parts)


def test_read_instructions_are_splits(synthetic: Any) -> None:
    read = synthetic.Split
    assert read("train", to=80, unit="%") + read("test", from_=-5, unit="abs") == "train[:80%]+test[-5:]"


def test_other_splits_are_refused(synthetic: Any) -> None:
    with pytest.raises(ValueError, match="Unknown split 'valid'"):
        synthetic.chosen("valid[:10%]", {"train": 10})
    with pytest.raises(RuntimeError, match="no stand-in for the split 'train@4'"):
        synthetic.chosen("train@4", {"train": 10})


def make_get_file() -> Any:
    def get_file(fname=None, origin=None, cache_subdir="datasets", file_hash=None, *, cache_dir=None):
        return fname, origin, cache_subdir, file_hash, cache_dir

    return get_file


def test_get_file_is_replaced_where_it_is_bound_already(synthetic: Any, tmp_path: Path) -> None:
    get_file = make_get_file()
    bound_before = get_file
    keras = types.SimpleNamespace(utils=types.SimpleNamespace(get_file=get_file))
    synthetic.install("keras", keras)
    synthetic.install("keras", keras)  # a second Keras shares the function
    name, origin, subdir, file_hash, cache = bound_before(
        "/content/iris.csv", "https://x/data/iris_training.csv?alt=media", "../../up", "12", cache_dir="/data"
    )
    assert (name, subdir, file_hash) == ("content/iris.csv", "up", None)
    assert cache.startswith(str(tmp_path)) and Path(origin[len("file:") :]).name == "iris_training.csv"
    assert Path(origin[len("file:") :]).read_text().startswith("120,4,")
    assert bound_before("a", "file:///b")[1] == "file:///b"
    with pytest.raises(TypeError, match="unexpected keyword argument 'url'"):
        bound_before("a", url="https://x/iris.csv")


def test_weights_in_the_cache_are_used(synthetic: Any, tmp_path: Path) -> None:
    get_file = make_get_file()
    synthetic.install("tf_keras", types.SimpleNamespace(utils=types.SimpleNamespace(get_file=get_file)))
    origin = "https://storage.googleapis.com/keras-applications/b0_notop.h5"
    with pytest.raises(RuntimeError, match=r"b0_notop\.h5: use weights=None"):
        get_file("b0_notop.h5", origin, "models", cache_dir=str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "b0_notop.h5").touch()
    assert get_file("b0_notop.h5", origin, "models", "12", cache_dir=str(tmp_path))[1:4] == (origin, "models", "12")


def test_an_installed_tensorflow_datasets_keeps_the_rest(
    synthetic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tensorflow_datasets"
    (package / "core").mkdir(parents=True)
    (package / "core" / "__init__.py").touch()
    (package / "core" / "load.py").write_text("def load(): pass\ndef builder(): pass\n")
    (package / "__init__.py").write_text("from tensorflow_datasets.core.load import builder, load\nfeatures = 'real'\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        module = importlib.import_module("tensorflow_datasets")
        synthetic.install("tensorflow_datasets", module)
        assert module.load is synthetic.load and sys.modules["tensorflow_datasets.core.load"].load is synthetic.load
        assert module.builder is synthetic.builder and module.features == "real"
    finally:
        for name in ("", ".core", ".core.load"):
            sys.modules.pop("tensorflow_datasets" + name, None)


def test_said_once_and_smaller_sets_are_named(synthetic: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        builder = synthetic.builder("yelp_polarity_reviews")
        assert builder.info.splits["train"].num_examples == 120000
        synthetic.builder("cats_vs_dogs:4.*.*")
    assert capsys.readouterr().err == (
        "--synthetic-data: the data set yelp_polarity_reviews is made up, with 158000 of 598000 examples\n"
        "--synthetic-data: the data set cats_vs_dogs is made up\n"
    )
