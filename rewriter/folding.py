"""Spreads an expression over several lines, as black would, where an edit makes its line too long."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from .edits import CallAs, Chain, Edit, Guard, Insert, NameArgument, Prepend, Rename, Replace, SetKeyword, Within, Wrap
from .source import Source

#: Lines may be this long, or as long as the file's own longest.
WIDTH = 100

_STATEMENTS = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return)


def width(source: Source) -> int:
    """How long lines may be: comments and imports do not count."""
    return max(
        [WIDTH, *(len(line) for line in source.lines if not line.lstrip().startswith(("#", "from ", "import ")))]
    )


def grown(source: Source, edits: Iterable[Edit]) -> dict[int, list[Edit]]:
    """The edits on lines that they make too long, by line."""
    lines: dict[int, list[Edit]] = {}
    for edit in edits:
        if isinstance(edit.node, ast.expr):
            lines.setdefault(_line(edit), []).append(edit)
    limit = width(source)
    return {n: e for n, e in lines.items() if len(source.lines[n - 1]) + sum(map(_growth, e)) > limit}


def _line(edit: Edit) -> int:
    """The line that gets longer; a new keyword stands behind the last argument."""
    node = edit.node
    assert isinstance(node, ast.expr) and node.end_lineno is not None
    if isinstance(edit, SetKeyword) and (edit.node.args or edit.node.keywords):
        arguments = [*edit.node.args, *(k.value for k in edit.node.keywords)]
        return max(a.end_lineno or 0 for a in arguments)
    return node.end_lineno


def _growth(edit: Edit) -> int:
    match edit:
        case SetKeyword(node, name, value):
            there = next((k.value for k in node.keywords if k.arg == name), None)
            return len(value) - _length(there) if there else len(f", {name}={value}")
        case Chain(_, call):
            return len(call) + 1
        case NameArgument(_, argument, name):
            return len(name) + 1 if isinstance(argument, int) else len(name) - len(argument)
        case Rename(node, name):
            return len(name) - len(node.attr)
        case Wrap(_, template):
            return len(template) - 3
        case Replace(node, text):
            return len(text) - _length(node)
        case Prepend(_, elements):
            return len(elements) + 2
        case CallAs(node, other):
            return _trailer(other) - _trailer(node)
    assert not isinstance(edit, Insert)
    return 0


def _length(node: ast.expr) -> int:
    return (node.end_col_offset or 0) - node.col_offset if node.end_lineno == node.lineno else 0


def _trailer(call: ast.Call) -> int:
    """The length of `.method(arguments)`."""
    return _length(call) - _length(call.func.value) if isinstance(call.func, ast.Attribute) else 0


@dataclass(frozen=True)
class Fold:
    """How to spread an expression: `whole` is the value of a statement, which may be put in parentheses."""

    module: cst.Module
    indent: str  # of the line
    step: str
    whole: bool = False

    def __call__(self, node: Any) -> Any:
        if isinstance(node, cst.List) and len(node.elements) > 1:
            return self._list(node)
        calls: list[Any] = list(_trailers(node))
        if not calls:
            return node
        if self.whole and any(_continues(call) and call.func.value.args for call in calls) and len(node.lpar) < 2:
            return self._at_dots(node)
        longest = max(calls, key=lambda call: len(self._code(call.args)))
        return _with_trailer(node, longest, self._arguments(longest))

    def _deeper(self) -> Fold:
        return Fold(self.module, self.indent + self.step, self.step)

    def _code(self, nodes: Sequence[cst.CSTNode]) -> str:
        return "".join(self.module.code_for_node(node) for node in nodes)

    def _at_dots(self, node: Any) -> Any:
        """The chain in parentheses, each of its calls on a line of its own."""
        deeper = self._deeper()
        inner: Any = node.with_changes(lpar=[], rpar=[])
        for call in list(_trailers(inner)):
            before = call.func.value if isinstance(call.func, cst.Attribute) and _continues(call) else None
            line = deeper.indent + self._code([call])[len(self._code([before])) if before else 0 :]
            new: Any = deeper._arguments(call) if len(line) > WIDTH else call
            if _continues(call):
                dot = cst.Dot(whitespace_before=_newline(deeper.indent))
                new = new.with_changes(func=new.func.with_changes(dot=dot))
            inner = _with_trailer(inner, call, new)
        return inner.with_changes(
            lpar=[cst.LeftParen(whitespace_after=_newline(deeper.indent))],
            rpar=[cst.RightParen(whitespace_before=_newline(self.indent))],
        )

    def _arguments(self, call: cst.Call) -> cst.Call:
        """The arguments on the next line, or each on a line of its own where they do not fit on one."""
        if not call.args:
            return call
        deeper = self._deeper()
        end = _newline(self.indent)
        last = call.args[-1]
        if isinstance(last.value, cst.List) and len(call.args) == 1 and len(last.value.elements) > 1:
            return call.with_changes(args=[last.with_changes(value=self._list(last.value))])
        together = [*call.args[:-1], last.with_changes(whitespace_after_arg=end)]
        if len(deeper.indent + self._code(call.args)) <= WIDTH and not isinstance(last.comma, cst.Comma):
            return call.with_changes(whitespace_before_args=_newline(deeper.indent), args=together)
        args = together
        if not isinstance(last.value, cst.GeneratorExp) or last.value.lpar:  # no comma may follow a bare generator
            spaces = [_newline(deeper.indent)] * (len(args) - 1) + [end]
            args = [
                deeper._argument(arg).with_changes(
                    comma=cst.Comma(whitespace_after=space), whitespace_after_arg=cst.SimpleWhitespace("")
                )
                for arg, space in zip(call.args, spaces, strict=True)
            ]
        return call.with_changes(whitespace_before_args=_newline(deeper.indent), args=args)

    def _list(self, node: cst.List) -> cst.List:
        """`Sequential([`, each layer on a line of its own, `])`."""
        deeper = self._deeper()
        spaces = [_newline(deeper.indent)] * (len(node.elements) - 1) + [_newline(self.indent)]
        return node.with_changes(
            lbracket=cst.LeftSquareBracket(whitespace_after=spaces[0]),
            elements=[
                deeper._element(element).with_changes(comma=cst.Comma(whitespace_after=space))
                for element, space in zip(node.elements, spaces, strict=True)
            ],
            rbracket=cst.RightSquareBracket(),
        )

    def _element(self, element: Any) -> Any:
        long = len(self.indent + self._code([element.value])) > WIDTH
        return element.with_changes(value=self(element.value)) if long else element

    def _argument(self, arg: cst.Arg) -> cst.Arg:
        return arg.with_changes(value=self(arg.value)) if len(self.indent + self._code([arg]).rstrip()) > WIDTH else arg


def _trailers(node: Any) -> Iterable[cst.Call]:
    """The calls of a chain, the last one first."""
    while isinstance(node, cst.Call | cst.Attribute | cst.Subscript):
        if isinstance(node, cst.Call):
            yield node
            node = node.func
        else:
            node = node.value


def _continues(call: Any) -> bool:
    """A method of what another call returns, `super()` apart."""
    inner = call.func.value if isinstance(call.func, cst.Attribute) else None
    return isinstance(inner, cst.Call) and not (isinstance(inner.func, cst.Name) and inner.func.value == "super")


def _with_trailer(node: Any, old: cst.Call, new: cst.Call) -> Any:
    if node is old:
        return new
    if isinstance(node, cst.Call):
        return node.with_changes(func=_with_trailer(node.func, old, new))
    return node.with_changes(value=_with_trailer(node.value, old, new))


def _newline(indent: str) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(indent=False, last_line=cst.SimpleWhitespace(indent))


def _in_one_line(code: str) -> bool:
    return "\n" not in code and "\r" not in code


def _shares_line(line: str, code: str, around: Sequence[cst.CSTNode]) -> bool:
    """An argument of a call in several lines that is not alone on its line: spreading it would tear those apart."""
    before, _, after = line.partition(code)
    return any(isinstance(n, cst.Call) for n in around) and ("(" in before or bool(after.strip(" ,)]}")))


#: Edits that make an argument longer where it stands.
_IN_PLACE = (Wrap, Replace, Prepend)


def _laid_out(module: cst.Module, path: Sequence[cst.CSTNode]) -> cst.Call | None:
    """The call, in several lines without comments, around what an edit changes: it may be laid out anew."""
    for outer, argument in zip(reversed(path[:-1]), reversed(path), strict=False):
        if not isinstance(outer, cst.Call) or _in_one_line(module.code_for_node(outer)):
            continue
        spaces: list[Any] = [outer.whitespace_before_args]
        spaces += [part for a in outer.args for part in (a.comma, a.whitespace_after_arg)]
        text = "".join(module.code_for_node(s) for s in spaces if isinstance(s, cst.CSTNode))
        alone = all(_in_one_line(module.code_for_node(a.value)) for a in outer.args)
        return outer if alone and isinstance(argument, cst.Arg) and "#" not in text else None
    return None


def _indent_at(source: Source, node: ast.AST) -> str:
    """The indentation of the line where the call in several lines around a node begins."""
    while not isinstance(node, ast.stmt) and not (isinstance(node, ast.Call) and node.lineno != node.end_lineno):
        node = source.parents[node]
    line = source.lines[node.lineno - 1]
    return line[: len(line) - len(line.lstrip())]


def spread(
    module: cst.Module, source: Source, edits: Iterable[Edit], paths: dict[ast.AST, tuple[cst.CSTNode, ...]], step: str
) -> tuple[dict[int, Fold], set[int]]:
    """What to spread, by the id of the node; and the calls, in several lines already, whose new keyword needs one."""
    found: dict[int, Fold] = {}
    own_line: set[int] = set()
    edits = list(edits)
    deeper = [range(e.node.lineno, (e.nodes[-1].end_lineno or 0) + 1) for e in edits if isinstance(e, Guard | Within)]  # type: ignore[attr-defined]
    for line, here in grown(source, edits).items():
        text = source.lines[line - 1]
        under = step * any(line in lines for lines in deeper)  # what comes under a header of its own
        indent = text[: len(text) - len(text.lstrip())] + under
        for edit in here:
            path = paths[edit.node]
            start = max(i for i, n in enumerate(path) if isinstance(n, cst.BaseSmallStatement | cst.BaseStatement))
            if any(isinstance(n, cst.FormattedStringExpression) for n in path):
                continue
            target = next(
                (
                    i
                    for i, n in enumerate(path)
                    if i > start and isinstance(n, cst.Call | cst.List) and _in_one_line(module.code_for_node(n))
                ),
                None,
            )
            if target is not None and _shares_line(text, module.code_for_node(path[target]), path[start:target]):
                target = None
                if not isinstance(edit, _IN_PLACE):
                    continue
            if target is not None:
                whole = isinstance(path[target - 1], _STATEMENTS)
                found[id(path[target])] = Fold(module, indent, step, whole)
            elif isinstance(edit, SetKeyword):
                own_line.add(id(path[-1]))
            elif isinstance(edit, _IN_PLACE) and (call := _laid_out(module, path[start:])) is not None:
                found[id(call)] = Fold(module, _indent_at(source, edit.node) + under, step)
    return found, own_line
