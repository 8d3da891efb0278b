"""Programs that are distributed already: by what, and what of a complete conversion is missing in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..script import Script
from .lacking import Lack, by_horovod, by_strategy
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


def missing(program: Program) -> Iterator[str]:
    """What of a complete conversion a program that is distributed already surely lacks, with the line of each."""
    found = distributed(program)
    if found is None:
        return
    lacks: Iterator[Lack] = iter(())
    if found[2] == "Horovod":
        lacks = by_horovod(program)
    elif found[2].strip("`").endswith(("Strategy", "StrategyV1")):
        lacks = by_strategy(program)
    yield from dict.fromkeys(f"{lack.what} ({lack.place})" if lack.place else lack.what for lack in lacks)
