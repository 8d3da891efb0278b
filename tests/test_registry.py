"""The pages of the catalogue are true: every codemod's Before becomes its After."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from rewriter.codemod import PHASES, Codemod, registry
from tests.check import Check

ROOT = Path(__file__).parent.parent
NAMES = "prefetch parallel-map parallel-reads loader-workers steps-per-execution mixed-precision xla tf32 lamb".split()


def test_the_catalogue() -> None:
    assert set(NAMES) <= set(registry())
    assert [PHASES.index(c.phase) for c in registry().values()] == sorted(
        PHASES.index(c.phase) for c in registry().values()
    )


@pytest.mark.parametrize("codemod", registry().values(), ids=lambda c: c.name)
def test_page(codemod: Codemod) -> None:
    for part in ("Why: ", "Not applied: ", "\nBefore", "\nAfter"):
        assert part in codemod.doc
    assert codemod.summary.endswith(".") and len(codemod.summary) < 100
    assert 1 <= codemod.level <= 3
    assert codemod.shown_level == ("distribute" if codemod.phase == "distribute" else f"-O{codemod.level}")


@pytest.mark.parametrize("codemod", registry().values(), ids=lambda c: c.name)
def test_before_becomes_after(codemod: Codemod) -> None:
    found = re.search(
        r"^Before(?: \(([^)]*)\))?:\n(.*?)^After(?: \(([^)]*)\))?:\n(.*?)(?=^\S|\Z)", codemod.doc, re.M | re.S
    )
    assert found, "the page has no Before: and After: blocks"
    where, before, also, after = found.groups()
    where = where or also or "TensorFlow 2.15"
    target = "keras3" if where == "Keras 3" else where.replace("TensorFlow ", "tf")
    width = 108 if codemod.distribute else 1000  # pages are indented
    check = Check(codemod.name, target=target, level=codemod.level, width=width)
    check.fixes(textwrap.dedent(before).strip() + "\n", textwrap.dedent(after).strip() + "\n")


@pytest.mark.parametrize("codemod", registry().values(), ids=lambda c: c.name)
def test_every_codemod_has_a_test_file(codemod: Codemod) -> None:
    name = codemod.name.replace("-", "_")
    assert (ROOT / f"codemods/{name}.py").is_file()
    assert (ROOT / f"tests/codemods/test_{name}.py").is_file()
