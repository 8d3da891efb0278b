"""What becomes of one program: all of its edits, or the reasons why there are none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from rewriter.codemod import Finding, Fix, Refusal
from rewriter.distribution.program import Program
from rewriter.distribution.sources import Problem
from rewriter.edits import Edit, Insert
from rewriter.script import Script
from rewriter.spelling import import_anchor, spell_out, tensorflow_imports
from rewriter.target import Target
from rewriter.training import FITS


@dataclass(eq=False)
class Conversion:
    """Edits and refusals of one program; where there is a refusal, nothing is edited.

    module: what is imported as `hvd`. pins: whether `tf.config` gives a process its GPU; sessions have it configured.
    """

    program: Program
    module: str = "horovod.tensorflow.keras"
    pins: bool = True
    edits: list[Edit] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: set[ast.AST] = field(default_factory=set)  # datasets and loaders that are split where they are made
    seeds: set[str] = field(default_factory=set)  # statements that seed what orders the data
    alone: dict[ast.stmt, Script] = field(default_factory=dict)  # what only rank 0 does, besides files and prints
    helpers: dict[Script, dict[str, list[ast.AST]]] = field(default_factory=dict)  # which a file gets, and their uses
    started: int = 0  # the line below which Horovod is initialised
    place: ast.AST | None = None  # where the conversion is reported, if not where Horovod is imported
    _imports: dict[Script, tuple[str, ast.AST]] = field(default_factory=dict)

    @property
    def script(self) -> Script:
        return self.program.script

    @property
    def target(self) -> Target:
        return self.script.target

    @property
    def scaling(self) -> bool:
        """Whether learning rates grow with the number of ranks."""
        return self.script.options.lr_scaling

    def add(self, *edits: Edit) -> None:
        self.edits += [e for e in edits if e not in self.edits]

    def refuse(self, script: Script, node: ast.AST, reason: str, hint: str = "") -> None:
        """Nothing of the program is converted, because of this."""
        if script is not self.script and (place := script.at(node)) not in reason:
            reason = f"{reason} ({place})"
        refusal = Refusal(node, reason, hint)
        if all((r.node, r.reason) != (node, reason) for r in self.refusals):
            self.refusals.append(refusal)

    def refuse_problem(self, problem: Problem) -> None:
        self.refuse(problem.script, problem.node, problem.reason, problem.hint)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def hvd(self, script: Script, node: ast.AST) -> str:
        """The name of Horovod in a file, which is imported there above this node."""
        if script not in self._imports:
            name = "hvd"
            while not script.is_free(name):
                name = f"_{name}"
            self._imports[script] = name, node
        name, first = self._imports[script]
        if getattr(node, "lineno", 0) < getattr(first, "lineno", 0):
            self._imports[script] = name, node
        return name

    def free_name(self, script: Script, *wanted: str) -> str:
        """The first of these names that the file does not have."""
        return script.free_name(*wanted, f"_hvd_{wanted[0]}")

    def rank_0(self, script: Script, node: ast.AST) -> str:
        return f"{self.hvd(script, node)}.rank() == 0"

    def result(self, message: str) -> Iterator[Finding]:
        """One fix, or the refusals."""
        if not self.refusals:
            for edit in self.edits:
                owner = self.script.project.owner(edit.node)
                if (other := self.program.shares(owner)) is not None:
                    self.refuse(
                        owner, edit.node, f"`{other.path.name}` uses this file too, and would not run on several ranks"
                    )
                    break
        if self.refusals:
            yield from self.refusals
            return
        imports = [
            Insert(self._anchor(script, node), f"import {self.module} as {name}")
            for script, (name, node) in self._imports.items()
        ]
        first = [e for edit in self.edits if isinstance(edit, Insert) for e in spell_out(self._owner(edit), edit)[1]]
        yield Fix(self._place(), message, [*first, *imports, *self.edits], notes=tuple(self.notes))

    def _owner(self, edit: Edit) -> Script:
        return self.script.project.owner(edit.node)

    def _anchor(self, script: Script, node: ast.AST) -> ast.stmt:
        anchor = import_anchor(script, node)
        if script.function_of(anchor) is not None:  # functions import TensorFlow for themselves: Horovod is for all
            imports = [s for s in script.tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
            return imports[-1] if imports else script.tree.body[0]
        return anchor

    def _place(self) -> ast.AST:
        if self.place is not None:
            return self.place
        return self._imports[self.script][1] if self.script in self._imports else self.script.tree


def operand(node: ast.expr) -> str:
    """`...` for a template that goes on with an operator: in parentheses where the expression needs them."""
    plain = isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv)
    return "..." if plain or product else "(...)"


def untrained(program: Program) -> Iterator[Finding]:
    """A program that does not train, or a file that only defines what trains."""
    script = program.script
    for site in script.sites(*FITS):
        if any(m.kind in ("model", "parameter") for m in site.models):
            yield Refusal(site.call, "nothing in this file runs it: give the script that is started, too")
            return
    runs = any(isinstance(s, ast.For | ast.While | ast.With | ast.If) or _calls(s) for s in script.tree.body)
    if runs and (imports := tensorflow_imports(script)):
        yield Refusal(imports[0], "no training is seen in this program: there is nothing to distribute")


def _calls(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
