"""Before and after as text: `fixes`, `refuses` and `ignores` for one codemod."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from unittest.mock import patch

from rewriter.codemod import registry
from rewriter.engine import Options, Result, rewrite
from rewriter.source import parse
from rewriter.target import named


class Check:
    """Runs one codemod over source text; `files` are modules beside the script, read-only unless `edit_all`."""

    def __init__(
        self,
        codemod: str,
        *,
        target: str = "tf2.15",
        level: int = 3,
        amp_dtype: str | None = None,
        width: int = 1000,  # the layout of long lines is not what is tested, as a rule
    ) -> None:
        assert codemod in registry(), f"no codemod {codemod}"
        self.codemod, self.target, self.level, self.amp_dtype, self.width = codemod, target, level, amp_dtype, width

    def run(
        self,
        source: str,
        *,
        target: str | None = None,
        level: int | None = None,
        amp_dtype: str | None = None,
        lr_scaling: bool = True,
        folder: Path = Path("/nowhere"),
    ) -> Result:
        path = folder / "train.py"
        options = Options(
            level or self.level,
            frozenset({self.codemod}),
            amp_dtype=amp_dtype or self.amp_dtype,
            distribute=registry()[self.codemod].distribute or "none",
            lr_scaling=lr_scaling,
        )
        goal = named(target or self.target)
        data = {path: textwrap.dedent(source).lstrip("\n").encode()}
        with patch("rewriter.folding.WIDTH", self.width):
            (result,) = rewrite([path], options, lambda _: goal, data)
        assert result.error is None, result.error
        return result

    def fixes(self, before: str, after: str, **options: object) -> Result:
        """The codemod turns `before` into `after`, and leaves `after` alone."""
        result = self.run(before, **options)  # type: ignore[arg-type]
        expected = textwrap.dedent(after).lstrip("\n")
        reasons = [f"{r.line}: {r.reason}" for r in result.refused]
        assert result.after.decode() == expected, f"\n{result.after.decode()}\nrefused: {reasons}"
        assert result.applied
        again = self.run(expected, **options)  # type: ignore[arg-type]
        assert again.after == again.before, "a second run changes the script again"
        ast.parse(parse(result.after, result.path).text)
        return result

    def refuses(self, source: str, reason: str, *, line: int | None = None, **options: object) -> Result:
        """Nothing changes, and a refusal whose reason contains `reason` says why."""
        result = self.run(source, **options)  # type: ignore[arg-type]
        assert result.after == result.before, result.after.decode()
        reasons = [(r.line, r.reason) for r in result.refused]
        assert any(reason in text and line in (None, at) for at, text in reasons), reasons
        return result

    def ignores(self, source: str, **options: object) -> Result:
        """There is nothing to do and nothing to say."""
        result = self.run(source, **options)  # type: ignore[arg-type]
        assert result.after == result.before, result.after.decode()
        assert not result.refused, result.refused
        return result
