"""Keras 3 (TensorFlow 2.16 to 2.18): what Horovod's own optimizer, tape and callbacks do not do, small helpers do.

Horovod 0.28 wraps optimizers of Keras 3 without averaging a gradient, and does not know the variables of Keras 3. A
script gets the parts of `codemods/snippets/horovod_keras3.py` that it needs, below its imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import takewhile

from rewriter.distribution.optimizers import Optimizer
from rewriter.edits import Insert, Replace, SetKeyword, Wrap
from rewriter.script import Script, Site, import_bindings, own_nodes
from rewriter.spelling import outermost, tensorflow_imports
from rewriter.training import Training

from .conversion import Conversion
from .optimizers import LEFT_OUT, leave_out


def is_target(conversion: Conversion) -> bool:
    return conversion.target.keras == 3


def family(script: Script) -> str:
    """`keras`, where a file imports that package; else `tensorflow.keras`, which is the same."""
    roots = {b.symbol.split(".")[0] for b in import_bindings(script)}
    return "keras" if "keras" in roots else "tensorflow.keras"


def another_keras(script: Script) -> str:
    """What makes the script run on Keras 2 where Keras 3 is there too."""
    for other in script.project.scripts.values():
        if "TF_USE_LEGACY_KERAS" in other.source.text:
            return "`TF_USE_LEGACY_KERAS` is mentioned"
        if any(b.symbol.split(".")[0] == "tf_keras" for b in import_bindings(other)):
            return "`tf_keras` is imported"
    return ""


# -- helpers ---------------------------------------------------------------------------------------------------


@cache
def _parts() -> dict[str, str]:
    """The source of each function and class of the snippet."""
    text = files("codemods.snippets").joinpath("horovod_keras3.py").read_text(encoding="utf-8")
    return {
        node.name: ast.get_source_segment(text, node) or ""
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def helper(conversion: Conversion, script: Script, node: ast.AST, part: str) -> str:
    """The name that a part of the snippet has in a file, where it is used."""
    conversion.hvd(script, node)
    conversion.helpers.setdefault(script, {}).setdefault(part, []).append(node)
    return script.free_name(part)


def define(conversion: Conversion) -> None:
    """Write the parts that are used into their files."""
    for script, used in conversion.helpers.items():
        nodes = [node for where in used.values() for node in where]
        hvd, keras = conversion.hvd(script, nodes[0]), family(script)
        texts = []
        for part, source in _parts().items():
            if part in used:
                for name in _locals(source) & _imported(script):  # it would hide what the file calls so
                    source = re.sub(rf"(?<!\.)\b{name}\b", script.free_name(name), source)
                source = re.sub(rf"\b{part}\b", script.free_name(part), source)
                source = re.sub(r"\bhvd\.", f"{hvd}.", source)
                source = re.sub(r"\bkeras((?:\.\w+)+)", rf"{{{keras}\1}}", source)
                texts.append(re.sub(r"\btf((?:\.\w+)+)", r"{tensorflow\1}", source))
        place, blank = _below_imports(script, nodes)
        conversion.add(Insert(place, "\n\n\n".join(texts), after=False, blank_lines=max(2 - blank, 0), below=2))


def _locals(source: str) -> set[str]:
    """The names that functions in some code give values to."""
    nodes = list(ast.walk(ast.parse(source)))
    named = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return named | {n.arg for n in nodes if isinstance(n, ast.arg)}


def _imported(script: Script) -> set[str]:
    """The names under which a file has TensorFlow and Keras, or parts of them."""
    return {b.name for b in import_bindings(script) if b.symbol.split(".")[0] in ("tensorflow", "keras")}


def _below_imports(script: Script, nodes: Sequence[ast.AST]) -> tuple[ast.stmt, int]:
    """The statement below the imports that stand above everything that uses the helpers, and blank lines between."""
    body = script.tree.body
    first = min((outermost(script, node, script.tree) for node in nodes), key=lambda s: s.lineno)
    imports: set[ast.stmt] = {s for s in body if isinstance(s, ast.Import | ast.ImportFrom)}
    for statement in tensorflow_imports(script):
        if script.function_of(statement) is None:
            imports.add(outermost(script, statement, script.tree))
    above = [i for i, s in enumerate(body) if s in imports and s.lineno < first.lineno]
    if not above:
        return first, 0
    lines = script.source.text.splitlines()[body[above[-1]].end_lineno :]
    return body[above[-1] + 1], len(list(takewhile(lambda line: not line.strip(), lines)))


def callbacks(conversion: Conversion, site: Site, warm_up: str) -> list[str]:
    """What a `fit` is given, first of all; `warm_up` are the arguments of the warm-up, if any."""
    parts = {"BroadcastWeights": "", "AverageMetrics": "", **({"WarmUpLearningRate": warm_up} if warm_up else {})}
    return [f"{helper(conversion, site.script, site.call, p)}({given})" for p, given in parts.items()]


def average(conversion: Conversion, script: Script, gradient: ast.Call) -> None:
    """`average_gradients(tape.gradient(...))`"""
    if not (isinstance(gradient.func, ast.Attribute) and gradient.func.attr == "gradient"):
        text = script.text(gradient.func)
        conversion.refuse(script, gradient, f"what `{text}` gives is not averaged: only `gradient` of a tape is")
        return
    conversion.add(Wrap(gradient, f"{helper(conversion, script, gradient, 'average_gradients')}(...)"))


def applies(call: ast.Call) -> bool:
    """`self.optimizer.apply(gradients, variables)`, as Keras 3 has it."""
    match call.func:
        case ast.Attribute(value=ast.Attribute(attr=owner) | ast.Name(id=owner), attr="apply"):
            return owner.endswith("optimizer") and bool(call.args)
    return False


def values_of(variables: str) -> str:
    """Horovod takes the variables of TensorFlow that stand behind those of Keras 3."""
    return f"[v.value for v in {variables}]"


# -- compile ---------------------------------------------------------------------------------------------------


def check_optimizers(conversion: Conversion) -> None:
    """One that takes the place of the compiled one averages nothing, nor one that applies gradients past `apply`."""
    for script in conversion.program.scripts:
        for cls in script.all(ast.ClassDef):
            if script.kind_of_class(cls) == "optimizer" and (own := script.method(cls, "apply_gradients")):
                reason = f"`{cls.name}` applies gradients in a way of its own, which is not averaged"
                conversion.refuse(*own, reason, "override `update_step` instead")
        for node in script.all(ast.Attribute):
            if node.attr != "optimizer" or not isinstance(node.ctx, ast.Store):
                continue
            function = script.function_of(node)
            if isinstance(function, ast.FunctionDef) and function.name in ("__init__", "compile"):
                continue
            if any(v.kind == "model" for v in script.values(node.value)):
                reason = f"`{script.text(node)}` is set after `compile`, where the gradients are averaged"
                conversion.refuse(script, node, reason, "give it to `compile`")


def give_rate(conversion: Conversion, optimizer: Optimizer, rate: str) -> None:
    """An optimizer that is given by its name gets this learning rate."""
    base = optimizer.base
    if rate:
        name = f"{family(base.script)}.optimizers.{base.name}"
        conversion.add(Replace(base.expr, f"{{{name}}}(learning_rate={rate})"))


def distribute(conversion: Conversion, training: Training) -> None:
    """Let the optimizer of a compiled model average the gradients, whatever that is: it is at hand after `compile`."""
    site = training.compile
    _without_xla(conversion, training)
    leave_out(conversion, training, "steps_per_execution")
    if all(_has_own_step(m.cls.script, m.cls.node) if m.cls else False for m in training.models):
        return  # gradients are averaged where that takes them
    statement, func = site.script.statement(site.call), site.call.func
    model = func.value if isinstance(func, ast.Attribute) else None
    if not (isinstance(statement, ast.Expr) and statement.value is site.call):
        conversion.refuse(site.script, site.call, "the model is compiled in a statement that does more")
    elif not isinstance(model, ast.Name | ast.Attribute):
        conversion.refuse(site.script, site.call, "the model has no name here", "give it one before `compile`")
    else:
        name = helper(conversion, site.script, statement, "distribute_optimizer")
        conversion.add(Insert(statement, f"{name}({ast.unparse(model)}.optimizer)"))


def _has_own_step(script: Script | None, cls: ast.AST | None) -> bool:
    """Whether models of a class train by a `train_step` that does not call that of Keras."""
    if script is None or not isinstance(cls, ast.ClassDef):
        return False
    method = script.method(cls, "train_step")
    return method is not None and not any(is_step_of_keras(n) for n in own_nodes(method[1]))


def is_step_of_keras(node: ast.AST) -> bool:
    """`super().train_step(data)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="train_step")):
            return True
    return False


def _without_xla(conversion: Conversion, training: Training) -> None:
    """`jit_compile=False`: Keras 3 compiles with XLA on a GPU by itself, and Horovod's operations may not be."""
    site = training.compile
    eager = site.arguments.get("run_eagerly")
    if own := training.method("compile"):
        _check_own_compile(conversion, *own)
    if eager is not None and site.script.constant(eager) is True:
        return
    given = site.arguments.get("jit_compile")
    place = training.place("jit_compile")
    if given is not None:
        if site.script.constant(given) is not False:
            conversion.add(SetKeyword(site.call, "jit_compile", "False"))
            conversion.note("`jit_compile` is False: XLA cannot compile Horovod's operations everywhere")
    elif isinstance(place, str):
        conversion.refuse(site.script, site.call, f"`jit_compile=False` is needed, and cannot be given: {place}")
    elif place is not None:
        conversion.add(SetKeyword(place, "jit_compile", "False"))


def _check_own_compile(conversion: Conversion, script: Script, method: ast.FunctionDef) -> None:
    """What a `compile` of the project gives to that of Keras."""
    for keyword in (k for n in own_nodes(method) if isinstance(n, ast.Call) for k in n.keywords):
        for name, (harmless, why) in LEFT_OUT.items():
            if keyword.arg == name and script.constant(keyword.value) not in harmless:
                conversion.refuse(script, keyword.value, f"`{name}` does not go together with Horovod: {why}")
