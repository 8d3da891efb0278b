"""Which TensorFlow and Keras the script will run on, and how that is known."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

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
    keras_version: Version | None = None  # the lowest that it may be, where that is known
    ampere: bool = False  # every GPU of the machine that will train is known to be an Ampere or newer
    slow_bfloat16: bool = False  # the CPU of that machine is known to have no instructions for bfloat16

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

#: What is taken to be there where nothing says otherwise.
ASSUMED: Version = (2, 8)
OLDEST: Version = (1, 15)
LAST_KERAS2: Version = (2, 15)
FIRST_KERAS3: Version = (2, 16)


def named(name: str) -> Target:
    """The target that `--target` names: `tf2.15`, `tf1.15`, `keras3`. Raises `ValueError` for others."""
    why = f"--target {name}"
    if name == "keras3":
        return Target(FIRST_KERAS3, OPEN, 3, why)
    if match := re.fullmatch(r"tf([12])\.(\d+)(?:\.\d+)?", name):
        version = (int(match[1]), int(match[2]))
        if version[0] == 2 or version <= (1, 15):
            return Target(version, version, 3 if version >= FIRST_KERAS3 else 2, why)
    raise ValueError(f"unknown target `{name}`: give tf2.15, tf1.15 (any TensorFlow version), keras3 or auto")


@dataclass(frozen=True)
class Evidence:
    """What one source of knowledge says about the target; None where it says nothing."""

    lowest: Version | None = None
    highest: Version | None = None
    keras: int | None = None
    why: tuple[str, ...] = ()
    cpu: bool = False
    keras_version: Version | None = None
    ampere: bool = False
    slow_bfloat16: bool = False
    two_keras: bool = False  # `keras` and `tf.keras` are known to be different packages

    @property
    def exact(self) -> bool:
        return self.lowest is not None and self.lowest == self.highest

    @property
    def says_version(self) -> bool:
        return bool(self.lowest or self.highest or self.keras)

    def contradicts(self, other: Evidence) -> bool:
        lowest, highest = self._bounds_with(other)
        return bool(
            (lowest and highest and lowest > highest) or (self.keras and other.keras and self.keras != other.keras)
        )

    def narrowed(self, other: Evidence) -> Evidence:
        """With what a weaker source adds; where it contradicts it is not followed, which `why` tells."""
        if self.contradicts(other):
            return replace(self, why=(*self.why, *(f"not followed: {reason}" for reason in other.why)))
        lowest, highest = self._bounds_with(other)
        both = Evidence(
            lowest,
            highest,
            self.keras or other.keras,
            self.why,
            self.cpu or other.cpu,
            self.keras_version or other.keras_version,
            self.ampere or other.ampere,
            self.slow_bfloat16 or other.slow_bfloat16,
            self.two_keras or other.two_keras,
        )
        if both == self and self.says_version:
            return self
        return replace(both, why=(*self.why, *other.why))

    def _bounds_with(self, other: Evidence) -> tuple[Version | None, Version | None]:
        return (
            max(filter(None, (self.lowest, other.lowest)), default=None),
            min(filter(None, (self.highest, other.highest)), default=None),
        )

    def target(self) -> Target:
        """The target, with careful assumptions where nothing is known."""
        lowest, highest, why = self.lowest, self.highest or OPEN, list(self.why)
        if lowest is None and self.keras == 3:
            lowest = FIRST_KERAS3
        if lowest is None:
            lowest = ASSUMED if highest >= ASSUMED else min(OLDEST, highest)
            if lowest != highest:
                why.append(f"at least {lowest[0]}.{lowest[1]} is assumed: --target or --python tells exactly")
        keras = self.keras or (
            None if self.two_keras else 2 if highest <= LAST_KERAS2 else 3 if lowest >= FIRST_KERAS3 else None
        )
        told = "; ".join(why)
        return Target(lowest, highest, keras, told, self.cpu, self.keras_version, self.ampere, self.slow_bfloat16)
