"""How a public name is written in a file: with the user's own imports, or with one that is added."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from . import catalog
from .edits import Edit, Insert
from .scopes import FUNCTIONS, Binding, Scope, holds
from .script import Script

_NAME = re.compile(r"\{((?:tensorflow|keras|tf_keras|horovod)(?:\.\w+)*)\}")


def spell_out(script: Script, edit: Edit) -> tuple[Edit, list[Edit]]:
    """The edit with its `{dotted.name}`s replaced, and the imports that this needs."""
    imports: list[Edit] = []

    def name(match: re.Match[str]) -> str:
        text, added = spell(script, match[1], edit)
        imports.extend(added)
        return text

    changed = {
        f: _NAME.sub(name, getattr(edit, f))
        for f in ("value", "call", "template", "text", "elements", "header")
        if hasattr(edit, f) and _NAME.search(getattr(edit, f))
    }
    return (replace(edit, **changed) if changed else edit), imports  # type: ignore[arg-type]


def once(spelled: list[tuple[Script, Edit]]) -> list[tuple[Script, Edit]]:
    """Edits without the imports that another one of them puts further up in the file."""
    first: dict[tuple[Script, str], int] = {}
    for script, edit in spelled:
        if isinstance(edit, Insert) and edit.text.startswith("import ") and edit.node in script.tree.body:
            line = first.setdefault((script, edit.text), edit.node.lineno)
            first[script, edit.text] = min(line, edit.node.lineno)
    return [
        (script, edit)
        for script, edit in spelled
        if not (isinstance(edit, Insert) and edit.node.lineno > first.get((script, edit.text), edit.node.lineno))
    ]


def spell(script: Script, dotted: str, edit: Edit) -> tuple[str, list[Edit]]:
    """The shortest spelling that the file has for a public name where an edit is; imports where it has none."""
    node = edit.node
    candidates = []
    taken: set[str] = set()
    scope: Scope | None = script.names.scope_of(node)
    own = scope
    while scope:
        if scope is own or not isinstance(scope.node, ast.ClassDef):
            for name, bindings in scope.bindings.items():
                if (
                    name not in taken
                    and (known := _stands_for(script, name, bindings, dotted))
                    and (scope is not own or _is_bound(script, bindings, edit))
                ):
                    full = dotted if catalog.in_module(dotted, known) else catalog.canonical(dotted)
                    candidates.append(name + full[len(known) :])
            taken.update(scope.bindings)
        scope = scope.parent
    if candidates:
        return min(candidates, key=lambda text: (len(text), text)), []
    if script.from_star(dotted.rpartition(".")[2]) == dotted:
        return dotted.rpartition(".")[2], []
    return _added(script, dotted, edit)


def _stands_for(script: Script, name: str, bindings: list[Binding], dotted: str) -> str:
    """The dotted prefix of the wanted name that this name is, in every binding; "" if it is something else."""
    if any(b.kind not in ("import", "assign") for b in bindings):
        return ""
    if any(b.kind == "assign" and not isinstance(b.part, ast.Attribute | ast.Name | ast.Constant) for b in bindings):
        return ""
    dotted = catalog.canonical(dotted)
    found = set()
    for binding in bindings:
        for value in script._evaluate.binding(binding):
            if value.kind == "constant" and value.literal is None:
                continue
            found.add(value.name if value.kind == "symbol" else "")
    symbol = found.pop() if len(found) == 1 else ""
    return symbol if symbol and catalog.in_module(dotted, symbol) else ""


def _is_bound(script: Script, bindings: list[Binding], edit: Edit) -> bool:
    """Whether one of the imports of a name, or else all that binds it, is executed before the place of the edit."""
    imports = any(b.kind == "import" and _before(script, b, edit) for b in bindings)
    return imports or all(_before(script, b, edit) for b in bindings)


def _before(script: Script, binding: Binding, edit: Edit) -> bool:
    """Executed before the place of the edit, as far as the order of lines and the blocks around tell."""
    node = edit.node
    if not isinstance(edit, Insert) and any(
        isinstance(m, ast.Name) and script.statement(m) is script.statement(node) for m in script.mentions(binding.name)
    ):
        return True  # the statement has the name already
    statement = script.statement(binding.node)
    line = getattr(node, "end_lineno" if isinstance(edit, Insert) and edit.after else "lineno", 0)
    if statement.lineno > line or (statement is node and isinstance(edit, Insert) and not edit.after):
        return False
    around = set(script.enclosing(node, ast.AST))
    return all(
        block in around or isinstance(block, ast.Try | ast.With) or (isinstance(block, ast.If) and holds(block.test))
        for block in script.enclosing(statement, ast.If, ast.For, ast.While, ast.Try, ast.With)
    )


def _added(script: Script, dotted: str, edit: Edit) -> tuple[str, list[Edit]]:
    root, _, rest = dotted.partition(".")
    wanted = {
        "tensorflow": ("import tensorflow as {}", "tf"),
        "keras": ("import keras", "keras"),
        "tf_keras": ("import tf_keras", "tf_keras"),
    }
    if root == "horovod":
        module, _, rest = dotted.rpartition(".")
        statement, alias = f"import {module} as {{}}", "hvd"
    else:
        statement, alias = wanted[root]
    name = alias
    while not _is_free(script, name, root):
        name = f"_{name}" if name == alias else f"{name}_"
    if name != alias and "{}" not in statement:
        statement += " as {}"
    anchor = import_anchor(script, edit.node)
    return f"{name}.{rest}" if rest else name, [Insert(anchor, statement.format(name))]


def _is_free(script: Script, name: str, root: str) -> bool:
    """Whether a name may stand for this module: it is imported under it further down, or nothing has it."""
    bound = [s.bindings[name] for s in script.names.scopes.values() if name in s.bindings]
    if not bound:
        return not script.mentions(name)
    return all(b.kind == "import" and b.symbol == root for bindings in bound for b in bindings)


def import_anchor(script: Script, node: ast.AST) -> ast.stmt:
    """The statement after which an import that `node` needs belongs: directly below the TensorFlow import there is."""
    function = next((f for f in script.enclosing(node, *FUNCTIONS) if not isinstance(f, ast.Lambda)), None)
    for block in ([function] if function else []) + [script.tree]:
        found = [s for s in tensorflow_imports(script) if _block_of(script, s) is block and s.lineno <= node.lineno]  # type: ignore
        if found:
            return outermost(script, found[-1], block)
    body = script.tree.body
    imports = [s for s in body if isinstance(s, ast.Import | ast.ImportFrom) and s.lineno <= node.lineno]  # type: ignore
    if imports:
        return imports[-1]
    return body[0]


def tensorflow_imports(script: Script) -> list[ast.stmt]:
    """Import statements of TensorFlow or Keras in source order, those for type checkers left out."""
    found = []
    for scope in script.names.scopes.values():
        for bindings in scope.bindings.values():
            for b in bindings:
                if b.kind in ("import", "star") and b.symbol.split(".")[0] in ("tensorflow", "keras", "tf_keras"):
                    found.append(script.statement(b.node))
    return sorted(dict.fromkeys(found), key=lambda s: s.lineno)


def _block_of(script: Script, statement: ast.stmt) -> ast.AST:
    return script.names.scope_of(statement).node


def outermost(script: Script, node: ast.AST, block: ast.AST) -> ast.stmt:
    """The statement directly in the body of `block` that holds `node`."""
    while script.parents[node] is not block:
        node = script.parents[node]
    assert isinstance(node, ast.stmt)
    return node
