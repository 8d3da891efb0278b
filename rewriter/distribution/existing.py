"""Programs that are distributed already: by what, and what of a complete conversion is missing in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..script import Script
from .program import Program


def distributed(program: Program) -> tuple[Script, ast.AST, str] | None:
    """What distributes the program already: where, and what it is called."""
    for script in program.scripts:
        for scope in script.names.scopes.values():
            for binding in [b for found in scope.bindings.values() for b in found]:
                root = binding.symbol.lstrip(".").split(".")[0] if binding.kind in ("import", "star") else ""
                if root in ("horovod", "byteps", "herring", "smdistributed", "bagua"):
                    return script, script.statement(binding.node), root.capitalize()
        for call in script.calls_into("tensorflow.distribute", "tensorflow.keras.distribution", "keras.distribution"):
            last = script.called(call).rpartition(".")[2]
            if last.endswith(("Strategy", "StrategyV1", "Parallel")):
                return script, call, f"`{last}`"
        for call in script.calls:
            if script.called(call).endswith(("multi_gpu_model", "SyncReplicasOptimizer", "train.ClusterSpec")):
                return script, call, f"`{script.text(call.func)}`"
    return None


#: What a program on Horovod calls, and what is wrong where none of it is there.
_PARTS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"init"}), "`hvd.init()` is not called"),
    (
        frozenset({"DistributedOptimizer", "DistributedGradientTape", "allreduce", "grouped_allreduce"}),
        "nothing averages the gradients (`hvd.DistributedOptimizer` or `hvd.DistributedGradientTape`)",
    ),
    (
        frozenset(
            "BroadcastGlobalVariablesCallback BroadcastGlobalVariablesHook broadcast_variables broadcast_object "
            "broadcast_global_variables TensorFlowKerasState TensorFlowState broadcast".split()
        ),
        "nothing gives every rank the same weights at the start (`BroadcastGlobalVariablesCallback`)",
    ),
    (frozenset({"local_rank"}), "no rank is pinned to a GPU of its own (`hvd.local_rank()`)"),
    (frozenset({"size"}), "the data is not split over the ranks (`hvd.size()` is never asked for)"),
    (frozenset({"rank"}), "every rank writes the same files (`hvd.rank()` is never asked for)"),
)


def missing(program: Program) -> Iterator[str]:
    """What of a complete conversion a program on Horovod surely lacks."""
    mentioned = {n.attr for script in program.scripts for n in script.all(ast.Attribute)}
    mentioned |= {n.id for script in program.scripts for n in script.all(ast.Name)}
    for names, what in _PARTS:
        if not names & mentioned:
            yield what
