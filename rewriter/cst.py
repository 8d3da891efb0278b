"""Applies edits to a LibCST tree: parse once, find the nodes by position, rebuild only what lies above them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import libcst as cst
from libcst._nodes.internal import CodegenState

from .edits import (
    CallAs,
    Chain,
    Decorate,
    Delete,
    DropKeyword,
    Edit,
    Guard,
    Insert,
    NameArgument,
    Prepend,
    Rename,
    Replace,
    SetKeyword,
    Undecorate,
    Within,
    Wrap,
)
from .folding import Fold, spread
from .source import Source, SourceError

_PLACEHOLDER = "__tfboost_wrapped__"


@dataclass
class _Locator(CodegenState):
    """Generates the code, as LibCST does, and notes the nodes at the wanted character offsets on the way."""

    wanted: dict[tuple[int, int], None] = field(default_factory=dict)
    offset: int = 0
    stack: list[cst.CSTNode] = field(default_factory=list)
    found: dict[tuple[int, int], tuple[cst.CSTNode, ...]] = field(default_factory=dict)

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.offset += len(value)

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.add_token(token)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.stack.append(node)

    def after_codegen(self, node: cst.CSTNode) -> None:
        self.stack.pop()

    @contextmanager
    def record_syntactic_position(
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> Iterator[None]:
        start = self.offset
        yield
        span = (start, self.offset)
        if span in self.wanted and isinstance(node, cst.BaseExpression):
            self.found[span] = tuple(self.stack)
        elif (start, -1) in self.wanted and isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            self.found.setdefault((start, -1), tuple(self.stack))


class Tree:
    """A source as LibCST sees it. Raises `SourceError` where LibCST cannot give the same bytes back."""

    def __init__(self, source: Source, nodes: Sequence[ast.AST]) -> None:
        self.source = source
        try:
            self.module = cst.parse_module(source.data)
        except cst.ParserSyntaxError as error:
            raise SourceError(
                source.path, f"LibCST cannot parse it: {error.message}", error.raw_line, error.raw_column + 1
            ) from None
        except RecursionError:
            raise SourceError(source.path, "cannot be handled: an expression is nested too deeply") from None
        moved = {call: None for node in nodes for call in self._moved(node)}
        spans = {node: self._span(node) for node in [*nodes, *moved]}
        state = _Locator(self.module.default_indent, self.module.default_newline, wanted=dict.fromkeys(spans.values()))
        if source.text.startswith("\N{ZERO WIDTH NO-BREAK SPACE}"):
            state.offset = 1
        try:
            self.module._codegen(state)
        except RecursionError:
            raise SourceError(source.path, "cannot be handled: an expression is nested too deeply") from None
        self._check_round_trip("".join(state.tokens))
        self.paths = {node: state.found[span] for node, span in spans.items() if span in state.found}
        missing = [node for node in nodes if node not in self.paths]
        if missing:
            line = getattr(missing[0], "lineno", 0)
            raise SourceError(source.path, "LibCST and Python disagree about where an expression stands", line)
        #: Calls whose opening bracket an edit may move, with the column behind it.
        self.brackets = {id(self.paths[c][-1]): self._bracket(c) for c in moved if c in self.paths}

    def _moved(self, node: ast.AST) -> Iterator[ast.Call]:
        """The calls, in several lines, that an expression is, or of which it is a part of what is called."""
        inner: ast.AST | None = None
        around: ast.AST | None = node
        while around is not None and not isinstance(around, ast.stmt):
            if (
                isinstance(around, ast.Call)
                and inner in (None, around.func)
                and around.end_lineno != around.func.end_lineno
            ):
                yield around
            inner, around = around, self.source.parents.get(around)

    def _bracket(self, call: ast.Call) -> int:
        assert call.func.end_lineno is not None and call.func.end_col_offset is not None
        return self.source.column(call.func.end_lineno, call.func.end_col_offset) + 1

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        start, end = self.source.span(node)
        if isinstance(node, ast.stmt):
            return start, -1
        return start, end

    def _check_round_trip(self, generated: str) -> None:
        """The same bytes have the same syntax tree, so one comparison proves both."""
        data = generated.encode(self.module.encoding)
        if self.source.data.startswith(b"\xef\xbb\xbf") and not data.startswith(b"\xef\xbb\xbf"):
            data = b"\xef\xbb\xbf" + data
        if data != self.source.data:
            at = next((i for i, (a, b) in enumerate(zip(data, self.source.data, strict=False)) if a != b), len(data))
            line = self.source.data[:at].count(b"\n") + 1
            raise SourceError(
                self.source.path, "LibCST does not give the same bytes back (unusual line ends or whitespace)", line
            )

    # -- applying ------------------------------------------------------------------------------------------------

    def apply(self, edits: Sequence[Edit]) -> bytes:
        """The file's bytes with the edits made; texts must be spelled out already."""
        by_node: dict[int, list[Edit]] = {}
        dirty: set[int] = set()
        for edit in edits:
            by_node.setdefault(id(self.paths[edit.node][-1]), []).append(edit)
            dirty.update(id(n) for node in edit.nodes for n in self.paths[node])
        step = self.module.default_indent if self.module.default_indent.strip(" \t") == "" else "    "
        folds, own_line = spread(self.module, self.source, edits, self.paths, step)
        rebuild = _Rebuild(self.module, self.source, by_node, dirty, step, folds, own_line, self.brackets)
        rebuild.calls = {e.other: self.paths[e.other][-1] for e in edits if isinstance(e, CallAs)}
        rebuild.ends = {id(self.paths[e.last][-1]): e.header for e in edits if isinstance(e, Within)}
        module = rebuild.node(self.module)
        assert isinstance(module, cst.Module)
        data = module.bytes
        if self.source.data.startswith(b"\xef\xbb\xbf") and not data.startswith(b"\xef\xbb\xbf"):
            data = b"\xef\xbb\xbf" + data
        return data


#: Edits that put something beside or around a statement, or remove it.
_OF_STATEMENTS = (Insert, Delete, Guard, Within)


class _Rebuild:
    def __init__(
        self,
        module: cst.Module,
        source: Source,
        by_node: dict[int, list[Edit]],
        dirty: set[int],
        indent: str,
        folds: dict[int, Fold],
        own_line: set[int],
        brackets: dict[int, int],
    ) -> None:
        self.module, self.source, self.by_node, self.dirty = module, source, by_node, dirty
        self.indent, self.folds, self.own_line, self.brackets = indent, folds, own_line, brackets
        self.blocks: list[str] = []  # the indentation of the blocks around
        self.calls: dict[ast.AST, cst.CSTNode] = {}  # those that stand elsewhere afterwards, as they were
        self.ends: dict[int, str] = {}  # the last statements of ranges, and the headers that these are put under
        self.config = cst.PartialParserConfig(
            encoding=module.encoding, default_indent=self.indent, default_newline=module.default_newline
        )

    def node(self, node: cst.CSTNode) -> Any:
        """The node with everything beneath it edited: itself, or a new one."""
        if id(node) not in self.dirty:
            return node
        block = isinstance(node, cst.IndentedBlock)
        if block:
            self.blocks.append(self.module.default_indent if node.indent is None else node.indent)  # type: ignore[attr-defined]
        changes: dict[str, Any] = {}
        for f in fields(node):
            value = getattr(node, f.name)
            if isinstance(value, cst.CSTNode):
                if id(value) in self.dirty:
                    changes[f.name] = self.node(value)
            elif isinstance(value, list | tuple) and any(id(v) in self.dirty for v in value):
                changes[f.name] = self._sequence(node, value)
        edited = node.with_changes(**changes) if changes else node
        if block:
            self.blocks.pop()
        if isinstance(node, cst.Attribute) and any(isinstance(e, Chain) for e in self.by_node.get(id(node.value), ())):
            edited = _comment_stays(node, edited)
        if id(node) in self.brackets:
            edited = self._realigned(node, edited, self.brackets[id(node)])
        if isinstance(node, cst.SimpleStatementSuite):
            edited = self._open_suite(node, edited)
        for edit in sorted(self.by_node.get(id(node), []), key=_order):
            if not isinstance(edit, _OF_STATEMENTS):
                edited = self._apply(
                    edited, edit, own_line=id(node) in self.own_line, bracket=self.brackets.get(id(node))
                )
        return self.folds[id(node)](edited) if id(node) in self.folds else edited

    def _realigned(self, old: Any, new: Any, column: int) -> Any:
        """A call whose further lines are aligned with its opening bracket, after edits of what is called."""
        before, after = (self.module.code_for_node(call.func).split("\n") for call in (old, new))
        return self._moved(new, column, len(after[-1]) - len(before[-1])) if len(before) == len(after) else new

    def _moved(self, new: Any, column: int, by: int) -> Any:
        if by == 0:
            return new
        lines = _Lines("".join(self.blocks), column, by)
        moved = new.with_changes(
            whitespace_before_args=new.whitespace_before_args.visit(lines), args=[a.visit(lines) for a in new.args]
        )
        return moved if lines.aligned else new

    # -- statements ----------------------------------------------------------------------------------------------

    def _sequence(self, parent: cst.CSTNode, items: Sequence[Any]) -> list[Any]:
        result: list[Any] = []
        gap: list[cst.EmptyLine] = []  # blank lines above a removed statement: the next one has them
        for item in items:
            before = len(result)
            if id(item) not in self.dirty:
                result.append(item)
            elif isinstance(item, cst.SimpleStatementLine):
                result.extend(self._line(item))
            else:
                new = self.node(item)
                result.extend(self._around(item, new) if isinstance(item, cst.BaseStatement) else [new])
            if len(result) == before:
                leading = getattr(item, "leading_lines", ())
                gap = gap or list(itertools.takewhile(lambda line: line.comment is None, leading))
            elif gap:
                leading = result[before].leading_lines
                if not leading or leading[0].comment is not None:
                    result[before] = result[before].with_changes(leading_lines=[*gap, *leading])
                gap = []
        if not result and items and isinstance(items[0], cst.BaseStatement):
            result = [cst.parse_statement("pass", self.config)]
        return self._blocks(result)

    def _line(self, line: cst.SimpleStatementLine) -> list[cst.BaseStatement]:
        """A line of one or more small statements, split where something is put between them."""
        result: list[cst.BaseStatement] = []
        own: list[int] = []  # which of them are pieces of the line itself
        piece: list[cst.BaseSmallStatement] = []

        def flush() -> None:
            if piece:
                own.append(len(result))
                result.append(
                    cst.SimpleStatementLine([*piece[:-1], piece[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
                )
                piece.clear()

        for small in line.body:
            before, after, deleted = self._placed(small)
            if before:
                flush()
                result += before
            if not deleted:
                piece.append(self.node(small))
            if after:
                flush()
                result += after
        flush()
        if own:  # what ends the line stays at its end, the comments above it stay above it
            last = result[own[-1]]
            assert isinstance(last, cst.SimpleStatementLine)
            body = [*last.body[:-1], last.body[-1].with_changes(semicolon=line.body[-1].semicolon)]
            result[own[-1]] = last.with_changes(body=body, trailing_whitespace=line.trailing_whitespace)
        if not own:
            return result
        result = _with_leading(result, own[0], line.leading_lines)
        return self._with_gap(result, own[0], *line.body)

    def _with_gap(
        self, statements: list[cst.BaseStatement], owner: int, *originals: cst.CSTNode
    ) -> list[cst.BaseStatement]:
        """The blank lines that belong between what is put above a statement and the statement."""
        inserted = [e for o in originals for e in self.by_node.get(id(o), []) if isinstance(e, Insert)]
        below = max((e.below for e in inserted), default=0)
        if owner and below:
            anchor: Any = statements[owner]
            gap = [cst.EmptyLine(indent=False)] * below
            statements[owner] = anchor.with_changes(leading_lines=[*gap, *anchor.leading_lines])
        return statements

    def _around(self, original: cst.BaseStatement, node: cst.BaseStatement) -> list[cst.BaseStatement]:
        before, after, deleted = self._placed(original)
        if deleted:
            return [*before, *after]
        result = _with_leading([*before, node, *after], len(before), getattr(node, "leading_lines", ()))
        return self._with_gap(result, len(before), original)

    def _placed(self, node: cst.CSTNode) -> tuple[list[cst.BaseStatement], list[cst.BaseStatement], bool]:
        """The statements put before and after a statement, and whether it goes itself."""
        edits = self.by_node.get(id(node), [])
        headers = [e.header for e in edits if isinstance(e, Within)]
        guards = [f"if {e.test}:" for e in edits if isinstance(e, Guard)]
        before = [s for e in edits if isinstance(e, Insert) and not e.after for s in self._statements(e)]
        before += [_Begin([], header=header) for header in (*headers, *guards)]
        after: list[cst.BaseStatement] = [_End([], header=header) for header in guards]
        after += [s for e in edits if isinstance(e, Insert) and e.after for s in self._statements(e)]
        after += [_End([], header=self.ends[id(node)])] if id(node) in self.ends else []
        return before, after, any(isinstance(e, Delete) for e in edits)

    def _is_moved(self, node: cst.CSTNode) -> bool:
        """Whether something is put beside or around a statement, or it goes."""
        edits = self.by_node.get(id(node), [])
        return id(node) in self.ends or any(isinstance(e, _OF_STATEMENTS) for e in edits)

    def _blocks(self, statements: Sequence[Any]) -> list[Any]:
        """The statements, those between the ends of a header in a block under it."""
        levels: list[list[Any]] = [[]]
        for statement in _merged(statements):
            if isinstance(statement, _Begin):
                levels.append([statement])
            elif isinstance(statement, _End):
                begin, *body = levels.pop()
                levels[-1] += [self._under(begin, body)] if body else []
            else:
                levels[-1].append(statement)
        (result,) = levels
        return result

    def _under(self, begin: _Begin, body: list[Any]) -> cst.BaseStatement:
        """A header and its block; the comments above the first statement stand above that."""
        above = [*begin.leading_lines, *body[0].leading_lines]
        body = [body[0].with_changes(leading_lines=()), *body[1:]]
        block = cst.IndentedBlock([statement.visit(_BlankLines()) for statement in body])
        header: Any = cst.parse_statement(f"{begin.header} pass", self.config).visit(_Quotes(self.source.quote))
        return header.with_changes(body=block, leading_lines=above)  # type: ignore[no-any-return]

    def _statements(self, edit: Insert) -> list[cst.BaseStatement]:
        text = edit.text
        if self.indent != "    " and not edit.own_indent:
            text = "\n".join(_reindent(line, self.indent) for line in text.split("\n"))
        module = cst.parse_module(text, self.config)
        body = list(module.body)
        if module.header and body:  # comments above the first statement
            body[0] = body[0].with_changes(leading_lines=[*module.header, *body[0].leading_lines])
        if edit.blank_lines and body:
            blank = [cst.EmptyLine(indent=False)] * edit.blank_lines
            body[0] = body[0].with_changes(leading_lines=[*blank, *body[0].leading_lines])
        return body  # type: ignore[return-value]

    def _open_suite(self, original: cst.SimpleStatementSuite, edited: Any) -> Any:
        """`for x in y: a(); b()` as an indented block, where a statement is to be inserted or removed."""
        if not any(self._is_moved(s) for s in original.body):
            return edited
        lines = self._line(
            cst.SimpleStatementLine(body=original.body, trailing_whitespace=original.trailing_whitespace)
        )
        return cst.IndentedBlock(body=self._blocks(lines) or [cst.parse_statement("pass", self.config)])

    # -- expressions ---------------------------------------------------------------------------------------------

    def _expression(self, text: str, *near: cst.CSTNode) -> cst.BaseExpression:
        """A new expression, with the quotes of the last string nearby, or else those of the file."""
        new = cst.parse_expression(text, self.config)
        if any(True for _ in _strings(new)):
            quotes = [string.quote for node in near for string in _strings(node)]
            new = new.visit(_Quotes(quotes[-1] if quotes else self.source.quote))  # type: ignore[assignment]
        return new

    def _apply(self, node: Any, edit: Edit, *, own_line: bool, bracket: int | None) -> Any:
        match edit:
            case SetKeyword():
                return add_keyword(node, edit.name, self._expression(edit.value, *node.args), own_line=own_line)
            case NameArgument():
                return name_argument(node, edit.argument, edit.name)
            case DropKeyword():
                return drop_keyword(node, edit.name)
            case Decorate():
                return node.with_changes(decorators=[*node.decorators, cst.Decorator(self._expression(edit.text))])
            case Undecorate():
                return without_decorator(node, edit.number)
            case Rename():
                return node.with_changes(attr=node.attr.with_changes(value=edit.name))
            case Replace():
                new = self._expression(edit.text, node)
                return new.with_changes(lpar=[*node.lpar, *new.lpar], rpar=[*new.rpar, *node.rpar])
            case Chain():
                return chain(node, self._expression(f"x.{edit.call}"))
            case CallAs():
                return self._call_as(node, edit)
            case Prepend():
                return prepend(node, self._expression(f"[{edit.elements}]"))
            case Wrap():
                template = self._expression(edit.template.replace("...", _PLACEHOLDER))
                if bracket is not None:
                    node = self._moved(node, bracket, self.module.code_for_node(template).index(_PLACEHOLDER))
                place = _placeholder(template)
                if place.lpar and not node.lpar:  # "(...) * 2"
                    node = node.with_changes(lpar=place.lpar, rpar=place.rpar)
                return template.deep_replace(place, node)
        raise TypeError(f"not an edit of an expression: {edit}")

    def _call_as(self, node: cst.Call, edit: CallAs) -> cst.Call:
        other: Any = self.calls[edit.other]
        column = self.brackets.get(id(other))
        if column is not None:  # its further lines may be aligned with its bracket, which stands elsewhere now
            names = [n.func.attr for n in (edit.other, edit.node) if isinstance(n.func, ast.Attribute)]
            func = edit.node.func
            assert func.end_lineno is not None and func.end_col_offset is not None
            end = self.source.column(func.end_lineno, func.end_col_offset)
            other = self._moved(other, column, end + len(names[0]) - len(names[1]) + 1 - column)
        assert isinstance(node.func, cst.Attribute) and isinstance(other.func, cst.Attribute)
        return node.with_changes(
            func=node.func.with_changes(attr=other.func.attr),
            whitespace_after_func=other.whitespace_after_func,
            whitespace_before_args=other.whitespace_before_args,
            args=other.args,
        )


def _strings(node: cst.CSTNode) -> Iterator[cst.SimpleString]:
    """The strings in one line, in order."""
    if isinstance(node, cst.SimpleString) and len(node.quote) == 1:
        yield node
    for child in node.children:
        yield from _strings(child)


class _Quotes(cst.CSTTransformer):
    def __init__(self, quote: str) -> None:
        self.quote = quote

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        inside = updated_node.raw_value
        if len(updated_node.quote) > 1 or set(inside) & set("'\"\\"):
            return updated_node
        return updated_node.with_changes(value=f"{updated_node.prefix}{self.quote}{inside}{self.quote}")


class _Lines(cst.CSTTransformer):
    """Moves the lines in brackets that begin at a column or behind it; strings are left alone."""

    def __init__(self, indent: str, column: int, by: int) -> None:
        self.indent, self.column, self.by = indent, column, by
        self.aligned = False

    def _moved(self, indented: bool, space: cst.SimpleWhitespace) -> cst.SimpleWhitespace:
        width = (len(self.indent) if indented else 0) + len(space.value)
        self.aligned |= width == self.column
        end = space.value[self.by :] if self.by < 0 else ""  # what goes, from the end
        if width < self.column or "\\" in space.value or end.strip(" ") or len(space.value) < -self.by:
            return space
        return space.with_changes(value=space.value[: self.by] if self.by < 0 else space.value + " " * self.by)

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        return updated_node.with_changes(last_line=self._moved(updated_node.indent, updated_node.last_line))

    def leave_EmptyLine(self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine) -> cst.EmptyLine:
        if updated_node.comment is None:
            return updated_node
        return updated_node.with_changes(whitespace=self._moved(updated_node.indent, updated_node.whitespace))


@dataclass(frozen=True)
class _Begin(cst.SimpleStatementLine):
    """Stands where a block with a header begins, until it is made."""

    header: str = ""


@dataclass(frozen=True)
class _End(cst.SimpleStatementLine):
    header: str = ""


def _merged(statements: Sequence[Any]) -> list[Any]:
    """Statements and ends of blocks, without those ends where one block would begin as the one before it did."""
    result: list[Any] = []
    above: list[cst.EmptyLine] = []
    for statement in statements:
        last = result[-1] if result else None
        if isinstance(statement, _Begin) and isinstance(last, _End) and last.header == statement.header:
            result.pop()
            above += statement.leading_lines
        else:
            if above:
                statement = statement.with_changes(leading_lines=[*above, *statement.leading_lines])
                above = []
            result.append(statement)
    return result


class _BlankLines(cst.CSTTransformer):
    """Blank lines stay blank in a block that is indented further."""

    def leave_EmptyLine(self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine) -> cst.EmptyLine:
        return updated_node if updated_node.comment else updated_node.with_changes(indent=False)


def _with_leading(
    statements: list[cst.BaseStatement], owner: int, leading: Sequence[cst.EmptyLine]
) -> list[cst.BaseStatement]:
    """What is above a statement: its own comments stay with it, those above a blank line with what now stands first."""
    if not statements:
        return statements
    result: list[Any] = list(statements)
    if owner == 0:
        result[0] = result[0].with_changes(leading_lines=leading)
    else:
        split = max((i + 1 for i, line in enumerate(leading) if line.comment is None), default=0)
        result[0] = result[0].with_changes(leading_lines=[*leading[:split], *result[0].leading_lines])
        result[owner] = result[owner].with_changes(leading_lines=leading[split:])
    return result


def without_decorator(node: cst.FunctionDef, number: int) -> cst.FunctionDef:
    """The function without one of its decorators; the comment lines above that stay."""
    gone, kept = node.decorators[number], [d for i, d in enumerate(node.decorators) if i != number]
    comments = [line for line in gone.leading_lines if line.comment is not None]
    if number < len(kept):
        kept[number] = kept[number].with_changes(leading_lines=[*comments, *kept[number].leading_lines])
        return node.with_changes(decorators=kept)
    return node.with_changes(decorators=kept, lines_after_decorators=[*comments, *node.lines_after_decorators])


def _order(edit: Edit) -> tuple[int, int]:
    """Keywords before wraps; arguments are named from the last to the first, as no positional may follow a keyword."""
    kinds: tuple[type[Edit], ...] = (
        Rename,
        NameArgument,
        SetKeyword,
        DropKeyword,
        CallAs,
        Prepend,
        Replace,
        Chain,
        Wrap,
    )
    last_first = -edit.argument if isinstance(edit, NameArgument) and isinstance(edit.argument, int) else 0
    return next((i for i, kind in enumerate(kinds) if isinstance(edit, kind)), len(kinds)), last_first


def _reindent(line: str, indent: str) -> str:
    stripped = line.lstrip(" ")
    return indent * ((len(line) - len(stripped)) // 4) + stripped


def _placeholder(node: cst.CSTNode) -> cst.Name:
    todo = [node]
    while todo:
        current = todo.pop()
        if isinstance(current, cst.Name) and current.value == _PLACEHOLDER:
            return current
        todo.extend(current.children)
    raise ValueError("the template has no `...`")


def chain(node: cst.BaseExpression, template: cst.BaseExpression) -> cst.Call:
    """`node.method(...)`; a dot that starts a line in the chain is followed by one that does too."""
    assert isinstance(template, cst.Call) and isinstance(template.func, cst.Attribute)
    if isinstance(template.func.value, cst.Call):  # "first().second()"
        node = chain(node, template.func.value)
    lpar, rpar = list(node.lpar), list(node.rpar)
    dot = cst.Dot()
    inner: Any = node
    if isinstance(node, cst.Call | cst.Name | cst.Attribute | cst.Subscript):
        inner = node.with_changes(lpar=[], rpar=[])
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            dot = node.func.dot
            if isinstance(dot.whitespace_before, cst.ParenthesizedWhitespace):
                space = dot.whitespace_before.with_changes(
                    first_line=_plain(dot.whitespace_before.first_line), empty_lines=[]
                )
                if rpar and isinstance(rpar[-1].whitespace_before, cst.ParenthesizedWhitespace):
                    closing = rpar[-1].whitespace_before  # a comment behind the last stage stays behind it
                    space = space.with_changes(first_line=closing.first_line, empty_lines=closing.empty_lines)
                    rpar[-1] = rpar[-1].with_changes(
                        whitespace_before=closing.with_changes(first_line=_plain(closing.first_line), empty_lines=[])
                    )
                dot = dot.with_changes(whitespace_before=space)
    elif not lpar:
        inner = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    else:
        lpar, rpar = [], []
    return template.with_changes(func=template.func.with_changes(value=inner, dot=dot), lpar=lpar, rpar=rpar)


def _comment_stays(old: cst.Attribute, new: Any) -> Any:
    """A comment behind a stage stays behind it where another one is put after it: `.map(f)  # why`, `.cache()`."""
    inner: Any = new.value
    before, after = inner.func.dot.whitespace_before, new.dot.whitespace_before
    if not (isinstance(before, cst.ParenthesizedWhitespace) and isinstance(after, cst.ParenthesizedWhitespace)):
        return new
    if inner.func.value.lpar and not old.value.lpar:  # it was put in brackets
        return new
    dot = inner.func.dot.with_changes(whitespace_before=before.with_changes(first_line=after.first_line))
    plain = new.dot.with_changes(whitespace_before=after.with_changes(first_line=_plain(after.first_line)))
    return new.with_changes(value=inner.with_changes(func=inner.func.with_changes(dot=dot)), dot=plain)


def prepend(node: cst.List, new: Any) -> cst.List:
    """`[new, *node]` as one list, in the layout of the elements that are there."""
    if not node.elements:
        return node.with_changes(elements=new.elements)
    commas = [e.comma.whitespace_after for e in node.elements if isinstance(e.comma, cst.Comma)]
    spaces = [s for s in [node.lbracket.whitespace_after, *commas[:1]] if isinstance(s, cst.ParenthesizedWhitespace)]
    space: Any = cst.SimpleWhitespace(" ")
    if spaces:
        space = spaces[0].with_changes(first_line=_plain(spaces[0].first_line), empty_lines=[])
    elements = [e.with_changes(comma=cst.Comma(whitespace_after=space)) for e in new.elements]
    return node.with_changes(elements=[*elements, *node.elements])


def drop_keyword(call: cst.Call, name: str) -> cst.Call:
    args = list(call.args)
    at = next(i for i, a in enumerate(args) if a.keyword is not None and a.keyword.value == name)
    removed = args.pop(at)
    if args and at == len(args):
        args[-1] = args[-1].with_changes(comma=removed.comma, whitespace_after_arg=removed.whitespace_after_arg)
    return call.with_changes(args=args)


def name_argument(call: cst.Call, argument: int | str, name: str) -> cst.Call:
    args = list(call.args)
    at = (
        argument
        if isinstance(argument, int)
        else next(i for i, a in enumerate(args) if a.keyword is not None and a.keyword.value == argument)
    )
    args[at] = args[at].with_changes(keyword=cst.Name(name), equal=_equal(args))
    return call.with_changes(args=args)


def _equal(args: Sequence[cst.Arg]) -> cst.AssignEqual:
    """`=` with the spaces that the call's other keywords have; none as a rule."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return next((a.equal for a in args if isinstance(a.equal, cst.AssignEqual)), tight)


def add_keyword(call: cst.Call, name: str, value: cst.BaseExpression, *, own_line: bool = False) -> cst.Call:
    """Give a call a keyword argument, in the layout of the arguments that are there, or on a line of its own.

    Existing keywords get the new value. Trailing commas, one argument per line and comments behind arguments stay.
    """
    args = list(call.args)
    for index, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value == name:
            args[index] = arg.with_changes(value=value)
            return call.with_changes(args=args)
    new = cst.Arg(keyword=cst.Name(name), value=value, equal=_equal(args))
    if not args:
        return call.with_changes(args=[new])
    last = args[-1]
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        last = last.with_changes(value=last.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))
    if isinstance(last.comma, cst.Comma):  # a trailing comma: what follows it is the way to the closing bracket
        between = (
            _between(args[:-1], own_line) or _own_line(call) or cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        )
        closing = last.comma
        if isinstance(closing.whitespace_after, cst.ParenthesizedWhitespace) and isinstance(
            between.whitespace_after, cst.ParenthesizedWhitespace
        ):
            between = between.with_changes(
                whitespace_after=between.whitespace_after.with_changes(
                    first_line=closing.whitespace_after.first_line, empty_lines=closing.whitespace_after.empty_lines
                )
            )
            closing = closing.with_changes(
                whitespace_after=closing.whitespace_after.with_changes(
                    first_line=_plain(closing.whitespace_after.first_line), empty_lines=[]
                )
            )
        args[-1] = last.with_changes(comma=between)
        return call.with_changes(args=[*args, new.with_changes(comma=closing)])
    between = _between(args, own_line) or _own_line(call) or cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    closing_space = last.whitespace_after_arg
    if isinstance(closing_space, cst.ParenthesizedWhitespace):
        if isinstance(between.whitespace_after, cst.ParenthesizedWhitespace):
            between = between.with_changes(
                whitespace_after=between.whitespace_after.with_changes(
                    first_line=closing_space.first_line, empty_lines=closing_space.empty_lines
                )
            )
        elif closing_space.first_line.comment is not None:
            between = between.with_changes(
                whitespace_after=closing_space.with_changes(
                    last_line=cst.SimpleWhitespace(closing_space.last_line.value + "    ")
                )
            )
        closing_space = closing_space.with_changes(first_line=_plain(closing_space.first_line), empty_lines=[])
    args[-1] = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new.with_changes(whitespace_after_arg=closing_space)])


def _between(args: Sequence[cst.Arg], own_line: bool) -> cst.Comma | None:
    """The comma that separates the last two arguments (or that ends a line), without the comment that may follow it."""
    commas = [a.comma for a in args if isinstance(a.comma, cst.Comma)]
    if own_line:
        commas = [c for c in commas if isinstance(c.whitespace_after, cst.ParenthesizedWhitespace)]
    if not commas:
        return None
    comma = commas[-1]
    space = comma.whitespace_after
    if isinstance(space, cst.ParenthesizedWhitespace):
        comma = comma.with_changes(
            whitespace_after=space.with_changes(first_line=_plain(space.first_line), empty_lines=[])
        )
    elif isinstance(space, cst.SimpleWhitespace) and "\n" in space.value:
        comma = comma.with_changes(whitespace_after=cst.SimpleWhitespace(" "))
    return comma.with_changes(whitespace_before=cst.SimpleWhitespace(""))


def _own_line(call: cst.Call) -> cst.Comma | None:
    """Arguments begin on a line of their own: so does each further one."""
    space = call.whitespace_before_args
    if isinstance(space, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=space.with_changes(first_line=_plain(space.first_line), empty_lines=[]))
    return None


def _plain(line: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
    return line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
