"""The environment variables that a script sets for itself, in each of the ways that Python has for it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator


def is_environ(node: ast.expr) -> bool:
    """`os.environ` as it is commonly written; whoever knows what names mean can tell better."""
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def settings(
    node: ast.AST, environ: Callable[[ast.expr], bool] = is_environ
) -> Iterator[tuple[ast.expr | str, ast.expr]]:
    """Names and values of the variables that one statement or call sets.

    A name is text where it is a keyword, and empty where the value holds several that are not written out here.
    """
    match node:
        case ast.Assign():
            for target in node.targets:
                if isinstance(target, ast.Subscript) and environ(target.value):
                    yield target.slice, node.value
        case ast.AugAssign(target=where, op=ast.BitOr()) if environ(where):
            yield from _pairs(node.value)
        case ast.Call(func=ast.Attribute(attr="setdefault" | "__setitem__", value=where), args=[key, value]) if environ(
            where
        ):
            yield key, value
        case ast.Call(func=ast.Attribute(attr="putenv") | ast.Name(id="putenv"), args=[key, value]):
            yield key, value
        case ast.Call(func=ast.Attribute(attr="update", value=where)) if environ(where):
            yield from _given(node)


def _pairs(node: ast.expr) -> Iterator[tuple[ast.expr | str, ast.expr]]:
    match node:
        case ast.Dict():
            for key, value in zip(node.keys, node.values, strict=True):
                yield key or "", value
        case ast.Call(func=ast.Name(id="dict")):
            yield from _given(node)
        case _:
            yield "", node


def _given(call: ast.Call) -> Iterator[tuple[ast.expr | str, ast.expr]]:
    for argument in call.args:
        yield from _pairs(argument)
    for keyword in call.keywords:
        yield keyword.arg or "", keyword.value
