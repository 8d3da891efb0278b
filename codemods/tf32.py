"""`tf32`: take out what switches TensorFloat-32 off."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeAlias

from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.edits import Delete, Edit, Replace
from rewriter.environment import settings
from rewriter.script import Script

_Switch: TypeAlias = ast.Call | ast.Assign | ast.AugAssign

_SWITCH = "tensorflow.config.experimental.enable_tensor_float_32_execution"
_ASKED = "tensorflow.config.experimental.tensor_float_32_execution_enabled"
_VARIABLE = "NVIDIA_TF32_OVERRIDE"
_GAIN = "TF32 stays on: Ampere and newer GPUs multiply matrices on their tensor cores"
#: A comment that says why TF32 is off, and one that only says that it is.
_REASON = re.compile(
    r"precis|accura|reproduc|determin|numeric|exact|parity|match|compar|nan|diverg|stab|bug|wrong|error|need|"
    r"must|require|because|due to|otherwise|important|do not|don't|same result",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"tf[ _-]?32|tensor[ _-]?float", re.IGNORECASE)


@codemod(level=2, phase="precision", hardware="GPU")
def tf32(script: Script) -> Iterator[Finding]:
    """Leave TensorFloat-32 on, as it is by default.

    Why: on Ampere and newer GPUs TensorFlow 2.4 and later multiply float32 matrices on the tensor cores, with
    inputs rounded to 10 bits of mantissa: several times faster, and accurate enough to train. A script loses
    that with `enable_tensor_float_32_execution(False)` or `NVIDIA_TF32_OVERRIDE=0`, which is taken out.
    Not applied: a comment gives a reason for it, the script computes in float64, checks for reproducible or
    close results, switches TF32 on and off, or does so under a condition: then it is reported.

    Before:
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])

    After:
        import tensorflow as tf

        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    """
    found = list(_switches(script))
    if not found:
        return
    general = _asks_for_precision(script)
    for node, value, off in found:
        if off is False:
            continue
        if off is None:
            yield Refusal(node, f"whether TF32 is switched off depends on `{ast.unparse(value)}`")
        elif script.target.before(2, 4):
            yield Refusal(node, f"TF32 is switched off, which {script.target} has in NVIDIA's own builds only")
        elif reason := general or _kept(script, node):
            yield Refusal(node, f"TF32 is switched off, and {reason}", "take it out if float32 may be rounded to TF32")
        else:
            yield Fix(node, _GAIN, [_taken_out(script, node, value)])


def _switches(script: Script) -> Iterator[tuple[_Switch, ast.expr, bool | None]]:
    """What sets TF32: statement or call, the value that it gives, whether that is off (None: not known)."""
    for call in script.calls_to(_SWITCH):
        value = script.bind(call, ("enabled",)).get("enabled")
        if value is not None:
            known = script.constant(value)
            yield call, value, not known if isinstance(known, bool | int) else None
    if _VARIABLE not in script.source.text:
        return
    nodes: list[_Switch] = [*script.all(ast.Assign), *script.all(ast.AugAssign), *script.calls]
    for node in nodes:
        for key, value in _settings(script, node):
            if (key if isinstance(key, str) else script.constant(key)) == _VARIABLE:
                yield node, value, _is_off(script.constant(value))


def _settings(script: Script, node: ast.AST) -> Iterator[tuple[ast.expr | str, ast.expr]]:
    return settings(node, lambda where: script.symbol(where) == "os.environ")


def _is_off(value: object) -> bool | None:
    """The value of the variable: "0" switches TF32 off, any other leaves it as it is."""
    return str(value) == "0" if isinstance(value, str | int) else None


def _kept(script: Script, node: _Switch) -> str:
    """Why one of these is left alone."""
    statement = script.statement(node)
    if isinstance(node, ast.Call) and not (isinstance(statement, ast.Expr) and statement.value is node):
        return "its value is used"
    if isinstance(node, ast.Assign) and len(node.targets) > 1:
        return "something else is set with it"
    around = script.parents[statement]
    if not isinstance(around, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) and not _is_main(around):
        return "that stands under a condition"
    if any(_REASON.search(c) for c in _comments(script, statement)):
        return "a comment gives a reason for it"
    if len({bool(_ABOUT.search(c)) for c in _comments(script, statement)}) > 1:
        return "the comments there are about more than that"
    return ""


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))


def _comments(script: Script, statement: ast.stmt) -> list[str]:
    """The comments directly above a statement and behind it."""
    lines = script.source.text.splitlines()
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    found = [line[line.index("#") :] for line in lines[first : last + 1] if "#" in line]
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
        found.append(lines[first].strip())
    return found


def _taken_out(script: Script, node: _Switch, value: ast.expr) -> Edit:
    """The statement goes; where it or a comment there is about something else too, the value changes instead."""
    statement = script.statement(node)
    if len(list(_settings(script, node))) < 2 and all(
        _ABOUT.search(comment) for comment in _comments(script, statement)
    ):
        return Delete(statement)
    return Replace(value, '"1"' if _VARIABLE in ast.unparse(statement) else "True")


_CHECKS = (
    "tensorflow.config.experimental.enable_op_determinism", "tensorflow.test.compute_gradient",
    "tensorflow.debugging.assert_near", "numpy.testing.assert_allclose", "numpy.testing.assert_almost_equal",
    "numpy.testing.assert_array_almost_equal", "numpy.allclose",
)  # fmt: skip


def _asks_for_precision(script: Script) -> str:
    """What else in the script says that float32 must stay float32."""
    for call in script.calls_to("backend.set_floatx", "config.set_floatx"):
        if call.args and script.constant(call.args[0]) == "float64":
            return "the script computes in float64"
    if any(script.symbol(m) == "tensorflow.float64" for m in script.mentions("float64")):
        return "the script computes in float64"
    for call in script.calls_to(*_CHECKS):
        return f"the script checks its numbers with `{ast.unparse(call.func)}`"
    if "TF_DETERMINISTIC_OPS" in script.source.text:
        return "the script asks for reproducible results"
    states = {off for _, _, off in _switches(script)}
    if len(states) > 1 or next(script.calls_to(_ASKED), None) is not None:
        return "the script switches it on and off"
    return ""
