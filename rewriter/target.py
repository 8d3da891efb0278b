"""Which TensorFlow and Keras the script will run on."""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int]


@dataclass(frozen=True)
class Target:
    """Bounds on the TensorFlow version (both included), the Keras major version, and how they are known.

    `exact` targets have equal bounds. Nothing is assumed between the bounds: `since` and `before` answer only
    what is certain.
    """

    lowest: Version
    highest: Version
    keras: int | None  # 2 (also the Keras inside TensorFlow up to 2.15) or 3; None where it may be either
    why: str
    cpu: bool = False  # the machine that will train is known to have no GPU
    keras_version: Version | None = None

    def since(self, major: int, minor: int) -> bool:
        """Certainly this version or later."""
        return self.lowest >= (major, minor)

    def before(self, major: int, minor: int) -> bool:
        """Certainly earlier than this version."""
        return self.highest < (major, minor)

    def __str__(self) -> str:
        low, high = (".".join(map(str, v)) for v in (self.lowest, self.highest))
        versions = low if low == high else f"{low} or later" if self.highest >= OPEN else f"{low} to {high}"
        return f"TensorFlow {versions}" + (f", Keras {self.keras}" if self.keras else "")


#: Upper bound of a target that has none.
OPEN: Version = (99, 0)


def named(name: str) -> Target:
    """The target that `--target` names: `tf2.15`, `tf1.15`, `keras3`. Raises `ValueError` for anything else."""
    why = f"--target {name}"
    if name == "keras3":
        return Target((2, 16), OPEN, 3, why)
    if match := re.fullmatch(r"tf(\d+)\.(\d+)(?:\.\d+)?", name):
        version = (int(match[1]), int(match[2]))
        return Target(version, version, 3 if version >= (2, 16) else 2, why)
    raise ValueError(f"unknown target `{name}`: give tf2.15, tf1.15 (any TensorFlow version), keras3 or auto")
