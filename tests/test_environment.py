"""Environment variables that a script sets for itself."""

from __future__ import annotations

import ast

import pytest

from rewriter.environment import settings
from tests.check import Check


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ('os.environ["A"] = "0"', ["A"]),
        ('environ["A"] = x = os.environ["B"] = "0"', ["A", "B"]),
        ('os.environ.setdefault("A", "0")', ["A"]),
        ('os.environ.update({"A": "0", "B": "1"}, C="2")', ["A", "B", "C"]),
        ('os.environ.update(dict(A="0"), **more)', ["A", ""]),
        ('os.environ |= {"A": "0", **more}', ["A", ""]),
        ("os.environ.update(more)", [""]),
        ('os.putenv("A", "0")', ["A"]),
        ('putenv("A", "0")', ["A"]),
        ('os.environ["A"] += "0"', []),
        ('settings.update({"A": "0"})', []),
        ('os.environ.get("A", "0")', []),
    ],
)
def test_the_ways_to_set_a_variable(statement: str, names: list[str]) -> None:
    found = [key for node in ast.walk(ast.parse(statement)) for key, _ in settings(node)]
    assert [key.value if isinstance(key, ast.Constant) else key for key in found] == names


def test_what_chooses_gpus_stays_above_what_asks_for_them() -> None:
    text = """import os
import tensorflow as tf
os.environ.update({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"})
%smodel = tf.keras.Sequential([tf.keras.layers.Dense(64)])
model.add(tf.keras.layers.Dense(1%s))
model.compile("adam", "mse")
model.fit(x, y)
"""
    policy = 'tf.keras.mixed_precision.set_global_policy("mixed_float16")\n'
    Check("mixed-precision").fixes(text % ("", ""), text % (policy, ', dtype="float32"'))
