"""`--distribute` on the command line and in the configuration."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli import tfboost

SCRIPT = """\
import numpy as np
import tensorflow as tf
x, y = np.ones((96, 4)), np.ones((96, 1))
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile("adam", "mse")
model.fit(x, y, epochs=20)
"""


def test_the_report_ends_with_how_to_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = tfboost(
        "rewrite", "train.py", "-o", "train_hvd.py", "--target", "tf2.15", "--distribute", "horovod", cwd=tmp_path
    )
    assert done.returncode == 0
    assert done.stdout.decode().splitlines()[-2:] == [
        "start it: horovodrun -np 4 python train_hvd.py",
        "on several hosts: horovodrun -np 8 -H host1:4,host2:4 python train_hvd.py",
    ]
    assert b"effective batch: 32 samples on every rank" in done.stdout
    assert "hvd.DistributedOptimizer" in (tmp_path / "train_hvd.py").read_text()


def test_the_document_has_it_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--target", "tf2.15", "--distribute", "horovod", "--no-lr-scaling", "--format", "json")
    done = tfboost("rewrite", "train.py", "-o", "out.py", *options, cwd=tmp_path)
    applied = json.loads(done.stdout)["files"][0]["applied"]
    notes = next(a["notes"] for a in applied if a["codemod"] == "horovod")
    assert "start it: horovodrun -np 4 python out.py" in notes
    assert "learning rates are as they were (--no-lr-scaling)" in notes
    assert "0.001 * hvd.size()" not in (tmp_path / "out.py").read_text()


def test_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tfboost]\ndistribute = "horovod"\nlr-scaling = false\ntarget = "tf2.15"\n'
    )
    found = tfboost("diff", "train.py", cwd=tmp_path).stdout
    assert b"+hvd.init()" in found and b"Warmup" not in found
    assert b"hvd" not in tfboost("diff", "train.py", "--distribute", "none", cwd=tmp_path).stdout
    (tmp_path / "pyproject.toml").write_text('[tool.tfboost]\ndistribute = "hovorod"\n')
    assert b"must be none, horovod" in tfboost("diff", "train.py", cwd=tmp_path).stderr


def test_what_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = tfboost("diff", "train.py", "--distribute", "hovorod", cwd=tmp_path)
    assert done.returncode == 2 and b"must be none, horovod" in done.stderr


def test_the_catalogue(tmp_path: Path) -> None:
    line = next(x for x in tfboost("list", cwd=tmp_path).stdout.decode().splitlines() if x.startswith("horovod "))
    assert line.split()[1] == "distribute"
    assert tfboost("explain", "horovod", cwd=tmp_path).stdout.startswith(
        b"horovod (distribute, distribute, for several"
    )
