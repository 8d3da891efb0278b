"""What a codemod may ask to be changed. An edit names a syntax node and a slot; the engine applies it.

Edits on one node stack when their slots differ. In the text of an edit `{tensorflow.data.AUTOTUNE}` stands for that
public name, spelled with what the user's file already binds; an import is added only where nothing reaches it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    node: ast.AST

    @property
    def slot(self) -> str:
        """Two edits of one node conflict when they have the same slot and are not equal."""
        raise NotImplementedError

    @property
    def texts(self) -> tuple[str, ...]:
        return ()

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node that it needs to find."""
        return (self.node,)


@dataclass(frozen=True)
class SetKeyword(Edit):
    """Add `name=value` to a call, or give the keyword that is there another value."""

    node: ast.Call
    name: str
    value: str

    @property
    def slot(self) -> str:
        return f"keyword {self.name}"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.value,)


@dataclass(frozen=True)
class DropKeyword(Edit):
    node: ast.Call
    name: str

    @property
    def slot(self) -> str:
        return f"keyword {self.name}"


@dataclass(frozen=True)
class NameArgument(Edit):
    """Write an argument as `name=value`: one given by position (its index), or by another keyword (its name)."""

    node: ast.Call
    argument: int | str
    name: str

    @property
    def slot(self) -> str:
        return f"argument {self.argument}"


@dataclass(frozen=True)
class Chain(Edit):
    """Call a method on the value of an expression: `expr` → `expr.method(arguments)`, laid out like the chain there."""

    node: ast.expr
    call: str  # "prefetch({tensorflow.data.AUTOTUNE})"

    @property
    def slot(self) -> str:
        return "chain"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.call,)


@dataclass(frozen=True)
class Wrap(Edit):
    """Put an expression into another: `expr` → `template`, where `...` in the template is the expression."""

    node: ast.expr
    template: str  # "LossScaleOptimizer(...)"

    @property
    def slot(self) -> str:
        return "wrap"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.template,)


@dataclass(frozen=True)
class Replace(Edit):
    """Put another expression in its place."""

    node: ast.expr
    text: str

    @property
    def slot(self) -> str:
        return "replace"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)


@dataclass(frozen=True)
class Rename(Edit):
    """Give an attribute another name: `model.fit_generator` → `model.fit`."""

    node: ast.Attribute
    name: str

    @property
    def slot(self) -> str:
        return "rename"


@dataclass(frozen=True)
class Insert(Edit):
    """Put statements before or after a statement, at its indentation."""

    node: ast.stmt
    text: str
    after: bool = True
    blank_lines: int = 0  # between what stands above and what is inserted
    below: int = 0  # blank lines between what is inserted before the anchor and the anchor
    own_indent: bool = False  # the text is indented as the file is, not with four spaces

    @property
    def slot(self) -> str:
        return f"insert {self.text}"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)


@dataclass(frozen=True)
class Guard(Edit):
    """Put a statement under a condition: `if test:`. Neighbours with the same test share one `if`."""

    node: ast.stmt
    test: str  # "hvd.rank() == 0"

    @property
    def slot(self) -> str:
        return "guard"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.test,)


@dataclass(frozen=True)
class Within(Edit):
    """Put the statements from one to another of the same block under a header: `with strategy.scope():`.

    What other edits insert before the first stays outside, what they insert after the last comes inside. Ranges that
    are next to each other and have the same header share one block.
    """

    node: ast.stmt  # the first
    last: ast.stmt
    header: str

    @property
    def slot(self) -> str:
        return "within"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.header,)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        return (self.node, self.last)


@dataclass(frozen=True)
class Prepend(Edit):
    """Put elements in front of those of a list that is written out."""

    node: ast.List
    elements: str  # "first(), second()"

    @property
    def slot(self) -> str:
        return f"prepend {self.elements}"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.elements,)


@dataclass(frozen=True)
class Decorate(Edit):
    """Put a decorator onto a function, below those that are there."""

    node: ast.FunctionDef
    text: str  # "{tensorflow.function}"

    @property
    def slot(self) -> str:
        return f"decorate {self.text}"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)


@dataclass(frozen=True)
class Undecorate(Edit):
    """Take a decorator off a function; its number counts from the first."""

    node: ast.FunctionDef
    number: int

    @property
    def slot(self) -> str:
        return f"undecorate {self.number}"


@dataclass(frozen=True)
class Delete(Edit):
    """Remove a statement with the comments directly above it; `pass` stays where a block would be empty."""

    node: ast.stmt

    @property
    def slot(self) -> str:
        return "delete"


@dataclass(frozen=True)
class CallAs(Edit):
    """Let a call of a method be another one, which stands elsewhere in the file: `x.map(f)` → `x.batch(32)`.

    The receiver stays. Each of the calls that change places is the node of such an edit.
    """

    node: ast.Call
    other: ast.Call

    @property
    def slot(self) -> str:
        return "call"
