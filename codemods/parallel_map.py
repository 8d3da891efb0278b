"""`parallel-map`: map on all CPU cores."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.pipelines import in_function_of, nondeterministic, program_seen
from rewriter.data.purity import order_matters, reseeds
from rewriter.edits import SetKeyword
from rewriter.script import Script


@codemod(level=1, phase="input")
def parallel_map(script: Script) -> Iterator[Finding]:
    """Run `Dataset.map` on all CPU cores, in the same order.

    Why: a serial map prepares one element at a time while the accelerator waits for the batch.
    `num_parallel_calls` works on several elements at once and hands them on in their order.

    Not applied: the order of the calls can be noticed. The mapped function draws random numbers and a seed is
    set, runs Python code through `tf.py_function` or `tf.numpy_function`, changes a variable or a table,
    prints, or calls something that cannot be seen. Also where the pipeline's options give up the order.
    A function that only picks and arranges parts of its element (`lambda d: (d["image"], d["label"])`) has no
    work to share out and is left as it is.

    Before:
        import tensorflow as tf
        def decode(path, label):
            return tf.io.decode_jpeg(tf.io.read_file(path)), label
        ds = tf.data.Dataset.from_tensor_slices((paths, labels))
        ds = ds.map(decode).batch(32)

    After:
        import tensorflow as tf
        def decode(path, label):
            return tf.io.decode_jpeg(tf.io.read_file(path)), label
        ds = tf.data.Dataset.from_tensor_slices((paths, labels))
        ds = ds.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(32)
    """
    for call in script.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "map":
            continue
        receiver = script.values(call.func.value)
        if not any(v.kind == "dataset" for v in receiver):
            continue
        arguments = script.bind(call, "Dataset.map")
        function = arguments.get("map_func")
        if function is None or any(arguments.may_have(n) for n in ("num_parallel_calls", "num_threads")):
            continue
        if in_function_of(script, call, "interleave"):
            continue  # several of these already run side by side
        if _only_arranges(script, function):
            continue
        if not script.is_dataset(call.func.value):
            yield Refusal(call, "it is not always called on a dataset")
        else:
            yield in_parallel(script, call, function, "map runs on all CPU cores and keeps the order")


def in_parallel(script: Script, call: ast.Call, function: ast.expr, message: str) -> Finding:
    """`num_parallel_calls` for a stage that keeps its order, or how its order could be noticed."""
    if option := nondeterministic(script):
        return Refusal(call, f"`deterministic` is False (line {option}): the order would change")
    if reason := order_matters(script, function, seen=program_seen(script, call)):
        return Refusal(call, reason)
    edit = SetKeyword(call, "num_parallel_calls", f"{{{script.autotune}}}")
    return Fix(call, message + reseeds(script), [edit])


#: What an expression is made of that takes parts of an element and puts them into another order.
_ARRANGING = (ast.Name, ast.Constant, ast.Subscript, ast.Tuple, ast.List, ast.Dict)


def _only_arranges(script: Script, function: ast.expr) -> bool:
    """Whether a function does nothing but return its arguments, parts of them, or containers of these."""
    results: list[ast.expr] = []
    for value in script.values(function):
        match value.node:
            case ast.Lambda(body=body):
                results.append(body)
            case ast.FunctionDef(body=[*before, ast.Return(value=ast.expr() as body)]) if all(
                isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in before
            ):
                results.append(body)
            case _:
                return False
    return all(_arranges(result) for result in results)


def _arranges(node: ast.expr) -> bool:
    return isinstance(node, _ARRANGING) and all(
        _arranges(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
    )
