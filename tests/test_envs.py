"""The environments hold what the other tests count on, and the helpers behave."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.envs import VERSIONS, run_script, tf_env

HOROVOD = """
import horovod.tensorflow as hvd
import horovod.tensorflow.keras
hvd.init()
print(hvd.size(), hvd.gloo_enabled())
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.mark.tf
@pytest.mark.parametrize("name", VERSIONS)
def test_has_its_tensorflow(name: str, tmp_path: Path) -> None:
    path = script(tmp_path, "import tensorflow as tf\nprint(tf.__version__)\n")
    done = run_script(tf_env(name), path, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, VERSIONS[name]), done.stderr


@pytest.mark.tf
@pytest.mark.parametrize("name", ["tf215", "tf218"])
def test_has_horovod(name: str, tmp_path: Path) -> None:
    done = run_script(tf_env(name), script(tmp_path, HOROVOD), timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "1 True"), done.stderr


@pytest.mark.parametrize(
    ("name", "ci", "outcome"),
    [
        ("tf215", "", pytest.skip.Exception),
        ("tf215", "true", pytest.fail.Exception),
        ("tf115", "true", pytest.skip.Exception),
    ],
)
def test_without_an_environment(
    name: str, ci: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFBOOST_ENVS", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=name):
        tf_env(name)


def test_a_script_gets_clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    path = script(
        tmp_path,
        "import os, sys\n"
        "print(os.getcwd(), sys.argv[1], os.environ['MORE'], repr(os.environ['CUDA_VISIBLE_DEVICES']))\n"
        "sys.exit('TF_USE_LEGACY_KERAS' in os.environ)\n",
    )
    done = run_script(Path("python"), path, "argument", timeout=30, env={"MORE": "more"})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path} argument more ''\n"), done.stderr


def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    child = f"import time\nwhile True: open({str(beat)!r}, 'a').write('.'); time.sleep(0.05)"
    path = script(tmp_path, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run_script(Path("python"), path, timeout=2)
    size = beat.stat().st_size
    time.sleep(0.3)
    assert size == beat.stat().st_size > 0
