"""Modules that a file needs, and generators of random numbers that are the same on every rank."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from rewriter.distribution.draws import Draw
from rewriter.distribution.feeds import random_origins
from rewriter.distribution.sources import seeds_of
from rewriter.edits import Insert, Replace, SetKeyword
from rewriter.script import Script

from .conversion import Conversion

_ALIASES = {"numpy": "np"}
_OF_TENSORS = ("tensorflow.random.set_seed", "tensorflow.set_random_seed")
_MAKERS = {"numpy": "{}.random.RandomState(0)", "random": "{}.Random(0)"}


def name_of_module(script: Script, module: str) -> str:
    """The name of an imported module of Python or NumPy in a file."""
    return name_of_symbol(script, module)


def name_of_symbol(script: Script, symbol: str) -> str:
    """The name under which a file imports something at its top level."""
    for name, bindings in script.names.module.bindings.items():
        if all(b.kind == "import" and b.symbol == symbol for b in bindings):
            return name
    return ""


def imported(conversion: Conversion, script: Script, node: ast.AST, module: str) -> str:
    """The name of a module in a file, imported at its top where it is not."""
    if name := name_of_module(script, module):
        return name
    name = _ALIASES.get(module, module)
    statement = f"import {module} as {name}" if name != module else f"import {module}"
    imports = [s for s in script.tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
    late = [s for s in imports if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    first = next((s for s in imports if s not in late), None)
    if any(name in s.bindings for s in script.names.scopes.values()):
        conversion.refuse(script, node, f"the name `{name}` is something else here")
    elif first is not None:
        conversion.add(Insert(first, statement, after=False))
    else:
        reason = f"there is no import beside which `{module}` could be imported"
        conversion.refuse(script, node, reason, "import it first")
    return name


def same_data(
    conversion: Conversion, script: Script, nodes: Sequence[ast.AST], *, noise: bool = False, eager: bool = False
) -> None:
    """Every rank makes the same data before it takes its part of it.

    noise: training draws numbers too, which have to differ. eager: data may be drawn by TensorFlow.
    """
    seeds = {owner.called(call) for owner, call in seeds_of(conversion.program)}
    everything = any(s.endswith("set_random_seed") for s in seeds)
    for owner, call in random_origins(script, nodes, eager=eager):
        name = owner.called(call)
        library = "random" if name.startswith("random.") else "numpy"
        own = name.endswith(("RandomState", "default_rng"))
        if name.startswith("tensorflow."):
            if not everything and not any(any(s.calls_to(*_OF_TENSORS)) for s in conversion.program.scripts):
                conversion.add(SetKeyword(call, "seed", "0"))
        elif not own and (everything or ("random.seed" if library == "random" else "numpy.random.seed") in seeds):
            continue
        elif noise:
            reason = f"`{owner.text(call)}` gives every rank other data, of which it would take a part"
            conversion.refuse(owner, call, reason, "set a seed first: `np.random.seed(0)`")
        elif own:
            conversion.add(Replace(call, f"{ast.unparse(call.func)}(0)"))
        else:
            module = imported(conversion, conversion.script, conversion.script.tree.body[0], library)
            conversion.seeds.add(f"{module}.seed(0)" if library == "random" else f"{module}.random.seed(0)")
        conversion.note("a seed is set, for the data to be the same on every rank before it is split")


def own_draws(
    conversion: Conversion, script: Script, function: ast.FunctionDef, draws: list[Draw], *, once: bool = False
) -> None:
    """Let draws come from generators of random numbers that a function makes first; those of a class are its object's.

    Draws from anywhere else do not change their numbers then, also those that another thread makes.
    once: they go on where the function, which is no method, is called again.
    """
    edited = {e.node for e in conversion.edits}
    if any(d.call in edited or d.call.func in edited or getattr(d.call.func, "value", None) in edited for d in draws):
        return  # another `fit` trains on the same data
    method = isinstance(script.parents.get(function), ast.ClassDef)
    for library in dict.fromkeys("random" if d.library == "random" else "numpy" for d in draws):
        name = _free_name(conversion, script, "rng" if library == "numpy" else "python_rng", shared=once and not method)
        mine = [d for d in draws if (d.library == "random") == (library == "random")]
        made = _MAKERS[library].format(imported(conversion, script, function, library))
        owner = f"{_self(script, function)}." if method else ""
        text = f"{owner}{name} = {made}  # the same order on every rank"
        if once and not method:
            conversion.add(Insert(function, text, after=False, below=script.blank_lines_above(function)))
        else:
            conversion.add(_first(function, text))
        for draw in mine:
            owner = f"{_self(draw.script, draw.call)}." if method else ""
            _draw_from(conversion, draw, f"{owner}{name}")


def _free_name(conversion: Conversion, script: Script, wanted: str, *, shared: bool) -> str:
    """A name that the file does not have; where several functions share names, that no other one gets."""
    name = conversion.free_name(script, wanted, f"rank_{wanted}")
    taken = {e.text.partition(" = ")[0] for e in conversion.edits if isinstance(e, Insert)} if shared else set()
    while name in taken:
        name = f"{name}_"
    return name


def _first(function: ast.FunctionDef, text: str) -> Insert:
    """A statement at the start of a function, below its docstring and the call of the base class."""
    first, *more = function.body
    after = comes_first(first)
    if after and more and comes_first(more[0]):
        first = more[0]
    return Insert(first, text, after=after)


def comes_first(statement: ast.stmt, *, docstring: bool = True) -> bool:
    """A docstring, or `super().__init__(...)`."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return docstring
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))))):
            return True
    return False


def _self(script: Script, node: ast.AST) -> str:
    """What the object is called in the method around a node."""
    functions = [node, *script.enclosing(node, ast.FunctionDef)]
    method = next(f for f in functions if isinstance(script.parents.get(f), ast.ClassDef))
    assert isinstance(method, ast.FunctionDef)
    return method.args.args[0].arg if method.args.args else "self"


def _draw_from(conversion: Conversion, draw: Draw, generator: str) -> None:
    call = draw.call
    if draw.library == "state":
        conversion.add(SetKeyword(call, "random_state", generator))
    elif isinstance(call.func, ast.Attribute):
        conversion.add(Replace(call.func.value, generator))
    else:
        conversion.add(Replace(call.func, f"{generator}.{draw.script.called(call).rpartition('.')[2]}"))
