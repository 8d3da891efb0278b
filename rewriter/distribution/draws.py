"""Random numbers that are drawn while data is prepared, and what they decide.

for draw in draws_of(script, function):
    draw.kind       # "order" (a shuffle), "pick" (which samples, or how one is changed), "noise", or "seed"
    draw.library    # whose numbers: "numpy", "random", "tensorflow", or "own" (a generator that the program makes)
    draw.inside     # it stands in this function itself, not in one that is called
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..data.pipelines import reached, stages
from ..script import Script
from ..values import Value

Kind = Literal["order", "pick", "noise", "seed"]
Library = Literal["numpy", "random", "state", "tensorflow", "own"]

_ORDER = frozenset("shuffle permutation permuted sample".split())
_PICK = frozenset("choice choices randint integers random_integers randrange tomaxint".split())
_SEED = frozenset("seed set_state setstate set_seed set_random_seed".split())
#: What makes a generator of random numbers, or asks for its state.
_MAKES = frozenset(
    "RandomState default_rng Generator Random SystemRandom get_state getstate SeedSequence PCG64".split()
)
#: Functions that draw with what they are given as `random_state`, or with NumPy.
_STATE = ("sklearn.utils.shuffle", "sklearn.utils.resample", "model_selection.train_test_split")
_OWN = frozenset({"numpy.random.RandomState", "numpy.random.default_rng", "random.Random"})


@dataclass(frozen=True, eq=False)
class Draw:
    """One call that draws; `maker` makes the generator of an own one."""

    script: Script
    call: ast.Call
    library: Library
    kind: Kind
    inside: bool
    maker: tuple[Script, ast.Call] | None = None

    @property
    def what(self) -> str:
        return f"`{self.script.text(self.call)}` ({self.script.at(self.call)})"


def draws_of(script: Script, *functions: ast.AST) -> list[Draw]:
    """Every draw of some functions and of the project's functions that they call."""
    found: dict[ast.Call, Draw] = {}
    for owner, call in reached(script, functions):
        if (draw := _draw(owner, call, functions)) is not None:
            found.setdefault(call, draw)
    return sorted(found.values(), key=lambda d: (d.script is not script, d.call.lineno, d.call.col_offset))


def _draw(script: Script, call: ast.Call, functions: tuple[ast.AST, ...]) -> Draw | None:
    name = script.called(call)
    last = name.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    inside = any(f in functions for f in script.enclosing(call, ast.FunctionDef, ast.Lambda))
    if last in _MAKES:
        return None
    if name.startswith("numpy.random."):
        return Draw(script, call, "numpy", _kind(last), inside)
    if name.startswith("random."):
        return Draw(script, call, "random", _kind(last), inside)
    if name.startswith("tensorflow.") and ("random" in name or last in _SEED):
        return Draw(script, call, "tensorflow", _kind(last), inside)
    if name.endswith(_STATE) or _of_a_frame(script, call):
        given = script.argument(call, "random_state")
        return Draw(script, call, "state", "order", inside) if given is None or script.is_none(given) else None
    if isinstance(call.func, ast.Attribute):
        for value in script.values(call.func.value):
            if value.name in _OWN and value.script is not None and isinstance(value.node, ast.Call):
                return Draw(script, call, "own", _kind(last), inside, (value.script, value.node))
    return None


def _kind(last: str) -> Kind:
    if last in _ORDER:
        return "order"
    return "seed" if last in _SEED else "pick" if last in _PICK else "noise"


def _of_a_frame(script: Script, call: ast.Call) -> bool:
    """`frame.sample(frac=1)` of Pandas."""
    sample = isinstance(call.func, ast.Attribute) and call.func.attr == "sample" and not script.called(call)
    return sample and any(k.arg in ("frac", "n") for k in call.keywords)


#: What another number comes from in every process.
_UNLIKE = ("time.", "datetime.", "os.getpid", "os.urandom", "uuid.", "secrets.", "random.", "numpy.random.")


def is_fixed(script: Script, call: ast.Call) -> bool:
    """Whether `np.random.seed(...)`, `RandomState(...)` and the like are given the same number in every process."""
    given = [*call.args, *(k.value for k in call.keywords)]
    if not given or script.is_none(given[0]):
        return False
    return not any(
        isinstance(node, ast.Call) and script.called(node).startswith(_UNLIKE)
        for expr in given
        for node in script.behind(expr)
    )


# -- what depends on draws -------------------------------------------------------------------------------------


def decided(script: Script, function: ast.AST, draws: list[Draw]) -> ast.If | ast.While | None:
    """A condition on these draws of which it depends how far a function goes, or what it gives."""
    calls = {d.call for d in draws if d.kind != "seed"}
    drawn = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and not calls.isdisjoint(ast.walk(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function) if calls else ():
        if not isinstance(node, ast.If | ast.While) or not any(_leads(n) for n in below(node)):
            continue
        names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        if names & drawn or any(call in calls for _, call in reached(script, [node.test])):
            return node
    return None


def uses_up(function: ast.AST, draws: list[Draw]) -> ast.AST | None:
    """Where a function that picks at random takes something out of what it picks from."""
    if not any(d.kind == "pick" for d in draws):
        return None
    for node in ast.walk(function):
        if isinstance(node, ast.Delete) or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("remove", "pop", "discard", "popleft", "popitem", "delete", "setdiff1d")
        ):
            return node
    return None


def below(node: ast.If | ast.While) -> Iterator[ast.AST]:
    """What a condition decides about."""
    for statement in [*node.body, *node.orelse]:
        yield from ast.walk(statement)


def _leads(node: ast.AST) -> bool:
    if isinstance(node, ast.Continue | ast.Break | ast.Return | ast.Raise | ast.Yield | ast.YieldFrom):
        return True
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "extend", "insert", "pop", "remove")
    )


# -- what is read ----------------------------------------------------------------------------------------------


def shuffled_source(script: Script, *functions: ast.AST, seeds: bool = True) -> tuple[Script, ast.expr] | None:
    """Where functions read from other data whose order may differ from rank to rank: `next(train_flow)`.

    seeds: the seed of an iterator over images makes its order the same, as it does where all batches are taken in turn.
    """
    bodies: dict[ast.AST, Script] = dict.fromkeys(functions, script)
    for owner, call in reached(script, functions):
        if (function := owner.function_of(call)) is not None:
            bodies.setdefault(function, owner)
    for function, owner in bodies.items():
        for node in ast.walk(function):
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            if any(_is_shuffled(value, seeds) for value in owner.values(node)):
                return owner, node
    return None


def _is_shuffled(value: Value, seeds: bool) -> bool:
    """Whether a generator, loader or dataset has an order that chance makes, and that no seed makes the same."""
    script, call = value.script, value.node
    if script is None or not isinstance(call, ast.Call):
        return False
    if value.kind == "generator":
        base = value.base
        if base is None or base.script is None or not isinstance(base.node, ast.FunctionDef):
            return True
        return _orders(base.script, base.node) or shuffled_source(base.script, base.node, seeds=seeds) is not None
    if value.kind == "loader" and value.cls is not None:
        node = value.cls.node
        methods = value.cls.script.methods(node) if value.cls.script and isinstance(node, ast.ClassDef) else {}
        return any(_orders(owner, method) for owner, method in methods.values())
    if value.kind == "loader" and value.base is not None and value.base.kind == "image-generator":
        shuffle, seed = script.argument(call, "shuffle"), script.argument(call, "seed")
        in_order = shuffle is not None and script.constant(shuffle) is False
        return not in_order and (not seeds or seed is None or script.is_none(seed))
    if value.kind == "dataset":
        shuffles = [s for s in stages(value) if s.name == "shuffle" and s.script and isinstance(s.node, ast.Call)]
        return any(s.script.argument(s.node, "seed") is None for s in shuffles)  # type: ignore[union-attr, arg-type]
    return False


def _orders(script: Script, function: ast.AST) -> bool:
    """Whether a function makes an order by chance, with random numbers that differ from rank to rank."""
    return any(
        draw.kind in ("order", "pick") and not (draw.maker is not None and is_fixed(*draw.maker))
        for draw in draws_of(script, function)
    )
