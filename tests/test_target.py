"""Which TensorFlow and Keras: asked for, packages, requirement files, idioms, and how they combine."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rewriter.detect import Detector
from rewriter.idioms import _KNOWN
from rewriter.requirements import InterpreterError, _is_slow_in_bfloat16, _of_packages, of_folder, of_interpreter
from rewriter.source import parse
from rewriter.target import OPEN, Evidence, Target, named

from .envs import VERSIONS, tf_env


def detect(
    script: str = "import tensorflow as tf\n",
    folder: Path = Path("/nowhere"),
    name: str = "auto",
    interpreter: Evidence | None = None,
) -> Target:
    source = parse(textwrap.dedent(script).encode(), folder / "train.py")
    return Detector(name, interpreter)([source])


def bounds(target: Target) -> tuple[object, ...]:
    return target.lowest, target.highest, target.keras


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "deep").mkdir(parents=True)
    return tmp_path


class TestNamed:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("tf2.15", ((2, 15), (2, 15), 2)),
            ("tf2.15.1", ((2, 15), (2, 15), 2)),
            ("tf1.15", ((1, 15), (1, 15), 2)),
            ("tf2.16", ((2, 16), (2, 16), 3)),
            ("keras3", ((2, 16), OPEN, 3)),
        ],
    )
    def test_target(self, name: str, expected: tuple[object, ...]) -> None:
        assert bounds(named(name)) == expected
        assert bounds(detect("model.fit_generator(g)", name=name)) == expected
        assert detect(name=name).why == f"--target {name}"

    @pytest.mark.parametrize("name", ["tf", "2.15", "keras2", "torch", "tf2"])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(ValueError, match="unknown target"):
            named(name)

    def test_requirements_do_not_overrule_what_is_asked(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow==2.10\n")
        assert bounds(detect(folder=tmp_path, name="tf2.15")) == ((2, 15), (2, 15), 2)


class TestNothingKnown:
    def test_careful(self) -> None:
        target = detect()
        assert bounds(target) == ((2, 8), OPEN, None)
        assert "--target" in target.why

    def test_folder_outside_a_repository_is_not_searched_upward(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow==2.10\n")
        (tmp_path / "src").mkdir()
        assert bounds(detect(folder=tmp_path / "src")) == ((2, 8), OPEN, None)


class TestRequirements:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("tensorflow==2.15.0", ((2, 15), (2, 15), 2)),
            ("tensorflow == 2.15.*", ((2, 15), (2, 15), 2)),
            ("TensorFlow[and-cuda]~=2.17.0 ; python_version > '3.8'", ((2, 17), (2, 17), 3)),
            ("tensorflow>=2.4", ((2, 4), OPEN, None)),
            ("tensorflow>=2.4,<2.16", ((2, 4), (2, 15), 2)),
            ("tensorflow>=2.16,<3", ((2, 16), OPEN, 3)),
            ("tensorflow~=2.16", ((2, 16), OPEN, 3)),
            ("tensorflow<2.16.1", ((2, 8), (2, 16), None)),
            ("tensorflow<2", ((1, 15), (1, 15), 2)),
            ("tensorflow<2.3", ((1, 15), (2, 2), 2)),
            ("tensorflow-gpu==1.15.5  # old", ((1, 15), (1, 15), 2)),
            ("tensorflow==1.4", ((1, 4), (1, 4), 2)),
            ("tf-nightly", ((2, 8), OPEN, None)),
            ("keras==2.3.1", ((2, 8), (2, 15), 2)),
            ("keras>=3.5", ((2, 16), OPEN, 3)),
            ("keras<3", ((2, 8), (2, 15), 2)),
            ("keras", ((2, 8), OPEN, None)),
            ("tensorflow-datasets==4.9\ntensorflow_hub==0.15", ((2, 8), OPEN, None)),
            ("# tensorflow==1.15", ((2, 8), OPEN, None)),
        ],
    )
    def test_line(self, tmp_path: Path, line: str, expected: tuple[object, ...]) -> None:
        (tmp_path / "requirements.txt").write_text(f"numpy>=1.2\n{line}\nscipy\n")
        assert bounds(detect(folder=tmp_path)) == expected

    def test_says_what_it_took(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow >= 2.4, < 2.16\n")
        assert detect(folder=tmp_path).why == "requirements.txt: tensorflow>=2.4,<2.16"

    def test_cpu(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow-cpu==2.15\n")
        assert detect(folder=tmp_path).cpu
        (tmp_path / "requirements.txt").write_text("tensorflow==2.15\n")
        assert not detect(folder=tmp_path).cpu

    def test_lines_for_different_machines_are_joined(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text(
            "tensorflow==2.10; sys_platform == 'win32'\ntensorflow-cpu==2.15; sys_platform != 'win32'\n"
        )
        target = detect(folder=tmp_path)
        assert (bounds(target), target.cpu) == (((2, 10), (2, 15), 2), False)

    def test_included_files_and_keras_beside_tensorflow(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("-r base.txt\n-r requirements.txt\nkeras==3.6.0\n")
        (tmp_path / "base.txt").write_text("tensorflow>=2.16\n")
        target = detect(folder=tmp_path)
        assert (bounds(target), target.keras_version) == (((2, 16), OPEN, 3), (3, 6))

    @pytest.mark.parametrize(
        ("name", "text", "expected"),
        [
            (
                "pyproject.toml",
                '[project]\nname="x"\nversion="1"\ndependencies = ["numpy", "tensorflow>=2.16"]',
                (2, 16),
            ),
            (
                "pyproject.toml",
                '[project.optional-dependencies]\ntrain = ["tensorflow-cpu==2.15.1"]',
                (2, 15),
            ),
            (
                "pyproject.toml",
                '[dependency-groups]\ndev = [{include-group = "x"}, "tensorflow==2.11"]',
                (2, 11),
            ),
            ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.9"\ntensorflow = "^2.12"', (2, 12)),
            (
                "pyproject.toml",
                '[tool.poetry.group.ml.dependencies]\ntensorflow = {version = "2.13.0", extras = ["x"]}',
                (2, 13),
            ),
            ("setup.cfg", "[options]\ninstall_requires =\n    numpy\n    tensorflow>=2.9\n", (2, 9)),
            ("environment.yml", "dependencies:\n  - python=3.9\n  - tensorflow-gpu=2.4.1=gpu_py39\n", (2, 4)),
            ("environment.yaml", 'dependencies:\n  - pip:\n    - "tensorflow==2.14"  # pip\n', (2, 14)),
            ("requirements-gpu.txt", "tensorflow==2.12\n", (2, 12)),
        ],
    )
    def test_files(self, tmp_path: Path, name: str, text: str, expected: tuple[int, int]) -> None:
        (tmp_path / name).write_text(text)
        target = detect(folder=tmp_path)
        assert target.lowest == expected
        assert target.why.startswith(name)

    def test_a_version_beats_a_mere_name(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow\n")
        (tmp_path / "environment.yml").write_text("dependencies:\n  - tensorflow=2.11\n")
        assert bounds(detect(folder=tmp_path)) == ((2, 11), (2, 11), 2)

    def test_files_for_different_machines_are_joined(self, tmp_path: Path) -> None:
        (tmp_path / "requirements-a.txt").write_text("tensorflow==2.10\n")
        (tmp_path / "requirements-b.txt").write_text("tensorflow==2.16\n")
        assert bounds(detect(folder=tmp_path)) == ((2, 10), (2, 16), None)

    def test_up_to_the_root_of_the_repository(self, repository: Path) -> None:
        (repository / "requirements.txt").write_text("tensorflow==2.10\n")
        assert bounds(detect(folder=repository / "src" / "deep")) == ((2, 10), (2, 10), 2)
        (repository / "src" / "requirements.txt").write_text("tensorflow==2.12\n")
        assert bounds(detect(folder=repository / "src" / "deep")) == ((2, 12), (2, 12), 2)

    def test_broken_and_unreadable_files_say_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text("[project\ntensorflow==2.15")
        (tmp_path / "requirements.txt").write_bytes(b"\xff\xfetensorflow\x00")
        (tmp_path / "setup.cfg").mkdir()
        assert of_folder(tmp_path) is None


class TestIdioms:
    @pytest.mark.parametrize(
        ("script", "expected"),
        [
            ("model.fit_generator(g)", ((2, 8), (2, 15), 2)),
            ("model.fit(x, workers=4, use_multiprocessing=True)", ((2, 8), (2, 15), 2)),
            ("import keras\nopt = keras.optimizers.Adam(lr=1e-3)", ((2, 8), (2, 15), 2)),
            ("from tensorflow.keras.optimizers import Adam as A\nA(lr=1)", ((2, 8), (2, 15), 2)),
            ("import tensorflow as tf\ntf.optimizers.SGD(lr=1)", ((2, 8), (2, 15), 2)),
            ("import tensorflow as tf\ntf.keras.optimizers.legacy.Adam()", ((2, 10), (2, 15), 2)),
            ("from keras.utils import np_utils", ((2, 8), (2, 12), 2)),
            ("from keras.layers.core import Dense", ((2, 8), (2, 12), 2)),
            (
                "import tensorflow as tf\ntf.keras.mixed_precision.experimental.set_policy('x')",
                ((2, 8), (2, 9), 2),
            ),
            ("model.predict_classes(x)", ((1, 15), (2, 5), 2)),
            ("import tensorflow as tf\ns = tf.Session()", ((1, 15), (1, 15), 2)),
            ("import tensorflow as tf\nfrom tensorflow.contrib import slim", ((1, 15), (1, 15), 2)),
            ("import tensorflow as tf\nimport keras\ntf.train.AdamOptimizer()", ((1, 15), (1, 15), 2)),
            ("import tensorflow.compat.v1 as tf\ntf.Session()", ((2, 8), OPEN, None)),
            ("import tensorflow as tf\ntf = tf.compat.v1\ntf.Session()", ((2, 8), OPEN, None)),
            ("import keras\nkeras.ops.sum(x)", ((2, 16), OPEN, 3)),
            ("from keras import ops", ((2, 16), OPEN, 3)),
            ("class L(keras.utils.PyDataset): pass\nimport keras", ((2, 16), OPEN, 3)),
            ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", ((2, 16), OPEN, 3)),
            ("import keras\nmodel.save('m.keras')", ((2, 8), OPEN, None)),  # HDF5 under that name before 2.12
            ("import keras\nmodel.fit(x, y, nb_epoch=3)", ((1, 15), (1, 15), 2)),
            ("import keras\nmodel.fit_generator(g, samples_per_epoch=3)", ((1, 15), (1, 15), 2)),
            ("import tensorflow as tf\ntf.enable_v2_behavior()", ((1, 15), (1, 15), 2)),
            ("import keras\nkeras.utils.set_random_seed(1)", ((2, 8), OPEN, None)),
            ("import tensorflow as tf\ntf.estimator.Estimator(f)", ((2, 8), (2, 15), 2)),
            ("import tf_keras", ((2, 8), OPEN, 2)),
            ("import os\nos.environ.setdefault('TF_USE_LEGACY_KERAS', '1')", ((2, 8), OPEN, 2)),
            ("import os\nos.environ |= {'A': '1', 'TF_USE_LEGACY_KERAS': '1'}", ((2, 8), OPEN, 2)),
            ("import os\nos.environ.update(KERAS_BACKEND='jax')\nimport keras", ((2, 16), OPEN, 3)),
            ("from keras.src.testing import test_case", ((2, 16), OPEN, 3)),
            ("from keras.src.testing_infra import test_utils", ((2, 13), (2, 15), 2)),
            ("from keras.src.layers.core import Dense", ((2, 13), OPEN, None)),
            ("import keras\nkeras.layers.Dense(1)", ((2, 8), OPEN, None)),
            ("# fit_generator, tf.Session\nx = 'keras.ops'", ((2, 8), OPEN, None)),
            ("import scipy.optimize\nscipy.Adam(lr=1)", ((2, 8), OPEN, None)),
        ],
    )
    def test_idiom(self, script: str, expected: tuple[object, ...]) -> None:
        assert bounds(detect(script)) == expected

    def test_says_where(self) -> None:
        why = detect("import keras\n\nmodel.fit_generator(g)\n").why
        assert why.startswith("fit_generator (line 3) is Keras 2 only; at least 2.8 is assumed")

    def test_lowest_version_of_lamb(self) -> None:
        assert detect("import keras\nkeras.optimizers.Lamb()").keras_version == (3, 5)

    def test_guarded_idioms_say_nothing(self) -> None:
        target = detect("""
            import tensorflow as tf
            try:
                from tensorflow.contrib import slim
            except ImportError:
                slim = None
            if tf.__version__ < "2":
                tf.Session()
            """)
        assert bounds(target) == ((2, 8), OPEN, None)

    def test_contradiction(self) -> None:
        target = detect("from keras import ops\nmodel.fit_generator(g)\n")
        assert bounds(target) == ((2, 8), OPEN, None)
        assert "suits different versions: fit_generator (line 2), keras.ops (line 1)" in target.why

    def test_scripts_that_run_together_share_their_idioms(self) -> None:
        sources = [
            parse(b"import keras\n", Path("a.py")),
            parse(b"import keras\nm.fit_generator(g)\n", Path("b.py")),
        ]
        target = Detector()(sources)
        assert target.keras == 2
        assert "line 2 of b.py" in target.why

    def test_idioms_narrow_what_requirements_leave_open(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow>=2.4\n")
        target = detect("model.fit_generator(g)", tmp_path)
        assert bounds(target) == ((2, 4), (2, 15), 2)
        assert target.why == "requirements.txt: tensorflow>=2.4; fit_generator (line 1) is Keras 2 only"

    def test_idioms_raise_a_low_bound(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow>=2.0\n")
        assert bounds(detect("import tensorflow as tf\ntf.data.AUTOTUNE", tmp_path)) == ((2, 4), OPEN, None)

    def test_requirements_overrule_idioms(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("tensorflow>=2.16\n")
        target = detect("model.fit_generator(g)", tmp_path)
        assert bounds(target) == ((2, 16), OPEN, 3)
        assert "not followed: fit_generator (line 1)" in target.why

    def test_legacy_keras_with_an_exact_version(self) -> None:
        script = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport tensorflow as tf\n"
        assert bounds(detect(script, name="tf2.17")) == ((2, 17), (2, 17), 2)


class TestInterpreter:
    def test_this_one_has_no_tensorflow(self) -> None:
        evidence = of_interpreter(sys.executable)
        target = detect("model.fit_generator(g)", interpreter=evidence)
        assert bounds(target) == ((2, 8), (2, 15), 2)
        assert f"{sys.executable} has no TensorFlow" in target.why

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ("tf115", ((1, 15), (1, 15), 2)),
            ("tf215", ((2, 15), (2, 15), 2)),
            ("tf221", ((2, 21), (2, 21), 3)),
        ],
    )
    def test_environments(self, environment: str, expected: tuple[object, ...], tmp_path: Path) -> None:
        python = tf_env(environment)
        (tmp_path / "requirements.txt").write_text("tensorflow==2.4\n")
        target = detect("model.fit_generator(g)", tmp_path, interpreter=of_interpreter(str(python)))
        assert bounds(target) == expected
        assert str(python) in target.why
        assert environment == "tf115" or target.cpu  # tensorflow-cpu is installed there

    def test_what_lies_in_the_working_folder_is_not_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "os.py").write_text("raise SystemExit('ran')")
        (tmp_path / "tensorflow-9.9.dist-info").mkdir()
        monkeypatch.chdir(tmp_path)
        assert of_interpreter(sys.executable).lowest is None

    @pytest.mark.parametrize(("python", "message"), [("/no/such/python", "cannot be run"), ("false", "not a Python")])
    def test_not_an_interpreter(self, python: str, message: str) -> None:
        with pytest.raises(InterpreterError, match=message):
            of_interpreter(python)

    def test_two_kerases(self) -> None:
        evidence = _of_packages({"tensorflow-cpu": "2.15.1", "keras": "3.0.5"}, "py")
        assert detect("import keras\nkeras.Model()", interpreter=evidence).keras == 3
        assert detect("import tensorflow as tf\ntf.keras.Model()", interpreter=evidence).keras == 2
        assert detect("import tensorflow as tf\nimport keras\ntf.keras.Model()", interpreter=evidence).keras is None

    @pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvidia-smi")
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ("echo 8.0; echo 9.0", (False, True)),
            ("echo 7.5; echo 8.6", (False, False)),
            ("exit 9", (False, False)),
            ("echo '[N/A]'", (False, False)),
        ],
    )
    def test_gpus(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: tuple[bool, bool]
    ) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        evidence = _of_packages({"tensorflow": "2.15.1"}, "py")
        assert (evidence.cpu, evidence.ampere) == expected
        target = detect(interpreter=evidence)
        assert (target.cpu, target.ampere) == expected
        assert _of_packages({"tensorflow-cpu": "2.15.1"}, "py").cpu

    @pytest.mark.parametrize(
        ("cpuinfo", "slow"),
        [
            ("flags\t\t: fpu avx512f avx512_bf16 amx_tile\n", False),
            ("flags\t\t: fpu amx_bf16\nflags\t\t: fpu amx_bf16\n", False),
            ("Features\t: fp asimd bf16\n", False),
            ("flags\t\t: fpu avx2 avx512f avx512_vnni\n", True),
            ("Features\t: fp asimd\n", True),
            ("processor: 0\n", False),
            (None, False),
        ],
    )
    def test_bfloat16_of_the_cpu(self, tmp_path: Path, cpuinfo: str | None, slow: bool) -> None:
        if cpuinfo is not None:
            (tmp_path / "cpuinfo").write_text(cpuinfo)
        assert _is_slow_in_bfloat16(tmp_path / "cpuinfo") is slow

    def test_vendor_builds(self) -> None:
        evidence = _of_packages({"nvidia-tensorflow": "1.15.5+nv22.12"}, "py")
        assert (evidence.lowest, evidence.highest) == ((1, 15), (1, 15))


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("environment", ["tf115", "tf215", "tf221"])
def test_known_names_are_where_the_table_says(environment: str) -> None:
    """A public name of the table exists in a TensorFlow only where its bounds allow that version."""
    python = tf_env(environment)
    major, minor = VERSIONS[environment].split(".")[:2]
    version = (int(major), int(minor))
    names = {
        name: name.replace("keras", "tensorflow.keras", 1) if name.startswith("keras") else name for name in _KNOWN
    }
    probe = textwrap.dedent(f"""
        import importlib
        for name in {sorted(names.values())!r}:
            parts = name.split(".")
            for end in range(len(parts), 0, -1):
                try:
                    found = importlib.import_module(".".join(parts[:end]))
                    for part in parts[end:]:
                        found = getattr(found, part)
                    getattr(found, "x", None)
                    print("has", name)
                    break
                except Exception:
                    continue
        """)
    done = subprocess.run([str(python), "-c", probe], capture_output=True, text=True, timeout=300, check=True)
    there = set(done.stdout.replace("has ", "").split())
    wrong = [
        name
        for name, spelled in names.items()
        if spelled in there and not (_KNOWN[name].lowest or version) <= version <= (_KNOWN[name].highest or version)
    ]
    if environment == "tf221":
        wrong.remove("keras.optimizers.legacy")  # is there, and every class in it raises ImportError
    assert not wrong
