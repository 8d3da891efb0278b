"""Files, prints and plots are for rank 0 alone."""

from __future__ import annotations

import ast

from rewriter.distribution.writes import for_rank_0
from rewriter.edits import Guard, SetKeyword
from rewriter.script import Script
from rewriter.training import TESTS

from . import callbacks
from .conversion import Conversion


def on_rank_0(conversion: Conversion) -> None:
    """Put what writes under `if hvd.rank() == 0:`; folders may be there already."""
    own_callbacks = [
        cls
        for script in conversion.program.scripts
        for cls in script.all(ast.ClassDef)
        if script.kind_of_class(cls) == "callback"
    ]
    found = for_rank_0(conversion.program, own_callbacks, conversion.alone)
    for problem in found.problems:
        conversion.refuse_problem(problem)
    for _, call in found.folders:
        conversion.add(SetKeyword(call, "exist_ok", "True"))
    statements = {**found.statements, **conversion.alone}
    for statement, script in statements.items():
        if any(s in statements for s in script.enclosing(statement, ast.stmt)):
            continue
        if _before_start(conversion, script, statement):
            continue  # no rank is known there
        conversion.add(Guard(statement, conversion.rank_0(script, statement)))
    for site in conversion.program.sites(*TESTS):
        around = list(site.script.enclosing(site.call, ast.ClassDef, ast.stmt))
        alone = any(node in statements or node in own_callbacks for node in around)
        if not alone and not _before_start(conversion, site.script, site.script.statement(site.call)):
            callbacks.quiet(conversion, site)


def _before_start(conversion: Conversion, script: Script, statement: ast.stmt) -> bool:
    """Whether a statement runs before `hvd.init()`: above it, or while the file that it stands in is imported."""
    if script.function_of(statement) is not None:
        return False
    return script is not conversion.script or statement.lineno <= conversion.started
