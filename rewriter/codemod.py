"""The protocol of a codemod: a generator over a script's facts that yields fixes and refusals.

A file in `codemods/` with one decorated function is registered by being there:

    @codemod(level=1, phase="input")
    def prefetch(script):
        \"\"\"One line that says what it does.

        Why: ...
        Not applied: ...

        Before:
            ds = ds.batch(32)
        After:
            ds = ds.batch(32).prefetch(tf.data.AUTOTUNE)
        \"\"\"
        for call in script.dataset_calls("batch"):
            yield Fix(call, "what the user gains", [Chain(call, "prefetch({tensorflow.data.AUTOTUNE})")])
            yield Refusal(call, "why not")
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from .edits import Edit
from .script import Script

#: The order in which codemods run and their refusals are listed.
PHASES = ("input", "loop", "precision", "compile", "optimizer", "distribute")
Phase = Literal["input", "loop", "precision", "compile", "optimizer", "distribute"]


@dataclass(frozen=True)
class Fix:
    """Edits that belong together: all are applied or none. `node` is where it is reported."""

    node: ast.AST
    message: str
    edits: Sequence[Edit]
    level: int | None = None  # where this one needs a higher -O level than its codemod
    notes: tuple[str, ...] = ()  # what the report ends with; `{script}` stands for the file as it is written


@dataclass(frozen=True)
class Refusal:
    """An opportunity that was not taken, and why; `hint` says what to try by hand."""

    node: ast.AST
    reason: str
    hint: str = ""


Finding: TypeAlias = Fix | Refusal


@dataclass(frozen=True)
class Codemod:
    """A registered codemod. `level` is the -O level from which it runs; `hardware` what it is meant for.

    distribute: it runs with `--distribute` of this value only, at every level.
    """

    name: str
    level: int
    phase: Phase
    hardware: str
    run: Callable[[Script], Iterator[Finding]]
    distribute: str = ""

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.run) or ""

    @property
    def summary(self) -> str:
        return self.doc.partition("\n")[0]

    @property
    def shown_level(self) -> str:
        return "distribute" if self.distribute else f"-O{self.level}"


def codemod(
    *, level: int = 1, phase: Phase, hardware: str = "any", distribute: str = ""
) -> Callable[[Callable[[Script], Iterator[Finding]]], Codemod]:
    """Register a generator function; its name, with dashes, is the codemod's name."""

    def register(function: Callable[[Script], Iterator[Finding]]) -> Codemod:
        return Codemod(function.__name__.replace("_", "-"), level, phase, hardware, function, distribute)

    return register


@cache
def registry() -> dict[str, Codemod]:
    """Every codemod by name, in the order in which they run."""
    import codemods

    found = []
    for module_info in pkgutil.iter_modules(codemods.__path__):
        if not module_info.ispkg:
            module = importlib.import_module(f"codemods.{module_info.name}")
            found += [value for value in vars(module).values() if isinstance(value, Codemod)]
    found.sort(key=lambda c: (PHASES.index(c.phase), c.name))
    return {c.name: c for c in found}
