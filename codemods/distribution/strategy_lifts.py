"""Steps that stand in the loop become functions first, where everything else can be converted then."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from codemods.tf_function import lifted
from rewriter.codemod import Fix, Refusal
from rewriter.edits import Edit
from rewriter.loops.steps import Step, compiled
from rewriter.script import Project, Script

from .strategies import ByStrategy


def lift(conversion: ByStrategy, found: Sequence[Step]) -> None:
    """Move the steps into functions in front of their loops: the first of two changes, if the second can be made."""
    edits: list[Edit] = []
    taken: set[str] = set()
    anchors: set[ast.For | ast.While | ast.FunctionDef] = set()
    for step in found:
        script = step.script
        if step.function is not None and (why := compiled(script, step.function)):
            conversion.refuse(script, step.node, f"the loop around the step is compiled by {why}")
            continue
        if script is not conversion.script:
            reason = f"the step stands where `{conversion.strategy}` is not known"
            conversion.refuse(script, step.node, reason, "let the script that is started have the step and its loop")
            continue
        fix = lifted(script, step, taken, anchors)
        if isinstance(fix, Fix):
            edits += fix.edits
            conversion.message = f"{fix.message.partition(',')[0]}, which every replica runs"
        else:
            reason = f"the step stands in the loop, and cannot be a function of its own: {fix.reason}"
            conversion.refuse(script, step.node, reason)
    if conversion.refusals:
        return
    _try(conversion, found[0], edits)
    conversion.add(*edits)


def _try(conversion: ByStrategy, step: Step, edits: Sequence[Edit]) -> None:
    """Refuse for what would stand against the second change."""
    from rewriter.diffs import Diff, python_lines
    from rewriter.engine import edited

    from .strategies import convert

    script = conversion.script
    old = script.project
    project = Project(old.target_of, old.options, editable=set(old.editable))
    source = edited(script, edits)
    after = project.add(source)
    for path in old.editable - {script.path}:
        if path in old.scripts:
            project.add(old.scripts[path].source)
    diff = Diff(script.source.data, source.data, python_lines)
    for finding in convert(after, conversion.kind):
        if not isinstance(finding, Refusal):
            continue
        node = step.node
        if finding.node in after.names.parents:
            line = diff.position(*after.position(finding.node))[0]
            node = next((s for s in _statements(script) if s.lineno == line), step.node)
        conversion.refuse(script, node, _in_original(script, diff, finding.reason), finding.hint)


def _statements(script: Script) -> list[ast.stmt]:
    return [n for n in script.names.parents if isinstance(n, ast.stmt)]


def _in_original(script: Script, diff: object, reason: str) -> str:
    """A reason that names lines of the file as it is."""
    shown = script.at(script.tree).rpartition(":")[0]
    position = diff.position  # type: ignore[attr-defined]
    return re.sub(rf"(?<![\w./-]){re.escape(shown)}:(\d+)", lambda m: f"{shown}:{position(int(m[1]), 1)[0]}", reason)
