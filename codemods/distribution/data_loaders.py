"""Loaders, of which every rank takes its own batches: `Sequence` classes, the iterators of an `ImageDataGenerator`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from rewriter.data.pipelines import reached
from rewriter.distribution.draws import Draw, draws_of, is_fixed, shuffled_source
from rewriter.distribution.sources import seeded
from rewriter.edits import Insert, Replace, Wrap
from rewriter.script import Script
from rewriter.spelling import outermost
from rewriter.training import Run
from rewriter.values import Value

from . import keras3
from .conversion import Conversion
from .data_generators import runs_again
from .data_names import comes_first, imported, own_draws

#: Classes of Keras whose batches are the same for the same number, and what shuffles them.
_STEADY = ("sequence.TimeseriesGenerator",)
_SEQUENCES = ("utils.Sequence", "utils.PyDataset")
_PASSES = frozenset("evaluate predict evaluate_generator predict_generator".split())
_CHANGES = frozenset("append extend insert pop popleft remove clear update setdefault add discard sort reverse".split())


@dataclass(eq=False)
class _Class:
    """A `Sequence` of the project, and what its methods draw at random: for its order, and for a batch."""

    script: Script
    node: ast.ClassDef
    ordering: list[Draw] = field(default_factory=list)
    batches: list[Draw] = field(default_factory=list)
    acts: bool = False  # whether it does something at the end of an epoch


def take_turns(conversion: Conversion, run: Run, loaders: list[Value]) -> None:
    """`fit(PartOfRank(loader))`: batches `rank`, `rank + size`, ... of what stays as it is, in the same order."""
    site, script = run.site, run.site.script
    assert run.source is not None
    shuffles = acts = False
    for loader in loaders:
        if loader.cls is not None:
            if (found := _class(conversion, run, loader)) is None:
                return
            acts |= found.acts
        elif loader.base is not None and loader.base.kind == "image-generator":
            orders = _orders(loader)
            shuffles |= orders
            acts |= orders
        elif not _is_steady(conversion, run, loader):
            return
    if shuffles and any(v.cls is not None or v.base is None for v in loaders):
        conversion.refuse(script, site.call, f"`{script.text(run.source)}` is one of several kinds of loaders")
        return
    if keras3.is_target(conversion):
        _for_keras3(conversion, run, loaders, acts=acts)
    name = _wrapper(conversion, script, site.call, shuffles=shuffles, threads=acts and _several_workers(run))
    conversion.add(Wrap(run.source, f"{name}(...)"))


def _for_keras3(conversion: Conversion, run: Run, loaders: list[Value], *, acts: bool) -> None:
    """Keras 3 goes on in the middle of a pass where an epoch has fewer steps, and knows workers of a loader."""
    site, script = run.site, run.site.script
    steps = site.arguments.get("steps_per_epoch")
    if acts and steps is not None and not script.is_none(steps):
        reason = "the order of the data changes in the middle of a pass, after other batches on every rank"
        conversion.refuse(script, site.call, reason, "leave out `steps_per_epoch`")
    if any(isinstance(v.node, ast.Call) and any(k.arg == "workers" for k in v.node.keywords) for v in loaders):
        conversion.note("the batches of training are prepared by one worker")


def _orders(loader: Value) -> bool:
    """Whether an iterator over images has another order in every epoch."""
    assert loader.script is not None and isinstance(loader.node, ast.Call)
    names = ("x", "y", "batch_size", "shuffle") if loader.name.endswith(".flow") else ()
    arguments = loader.script.bind(loader.node, names)
    shuffle = arguments.get("shuffle")
    return arguments.open or shuffle is None or loader.script.constant(shuffle) is not False


def _is_steady(conversion: Conversion, run: Run, loader: Value) -> bool:
    """Whether a loader of a library gives the same batch for the same number."""
    script = run.site.script
    if loader.name.endswith(_STEADY) and loader.script is not None and isinstance(loader.node, ast.Call):
        shuffle = loader.script.argument(loader.node, "shuffle")
        if shuffle is None or loader.script.constant(shuffle) is False:
            return True
        reason = f"`{loader.script.text(loader.node.func)}` draws its samples at random, the same ones on every rank"
        conversion.refuse(loader.script, loader.node, reason, "leave out `shuffle`, or shuffle a `tf.data.Dataset`")
        return False
    name = loader.name.rpartition(".")[2] or script.text(run.source)  # type: ignore[arg-type]
    conversion.refuse(
        script,
        run.site.call,
        f"how `{name}` chooses its batches is not known",
        "let it give only every `hvd.size()`-th batch, from `hvd.rank()` on",
    )
    return False


# -- classes of the project ------------------------------------------------------------------------------------


def _class(conversion: Conversion, run: Run, loader: Value) -> _Class | None:
    """A class whose batches are the same on every rank for the same number, or a refusal."""
    script, node = (loader.cls.script, loader.cls.node) if loader.cls else (None, None)
    if script is None or not isinstance(node, ast.ClassDef):
        conversion.refuse(run.site.script, run.site.call, "the class of the loader is not seen")
        return None
    name = node.name
    methods = script.methods(node)
    if not all(base.endswith(_SEQUENCES) for base in script.library_bases(node)):
        conversion.refuse(script, node, f"what `{name}` inherits is not known")
        return None
    if "__getitem__" not in methods or "__len__" not in methods:
        conversion.refuse(script, node, f"how `{name}` gives its batches is not seen")
        return None
    _, getter = methods["__getitem__"]
    if "on_epoch_begin" in methods or "num_batches" in methods:
        conversion.refuse(script, node, f"`{name}` has methods that not every version of Keras calls")
        return None
    giving = _with_own(script, node, "__getitem__")
    problem = next((p for o, m in [*giving, *_with_own(script, node, "__len__")] if (p := _keeps_state(o, m))), None)
    if problem is not None:
        where, what = problem
        reason = f"`{name}` counts on being asked for all batches: {what}"
        conversion.refuse(where[0], where[1], reason, "let `__getitem__` change nothing")
        return None
    setup = _with_own(script, node, "__init__", "on_epoch_end")
    read = next((r for o, m in [*giving, *setup] if (r := shuffled_source(o, m, seeds=False))), None)
    if read is not None:
        reason = f"`{read[0].text(read[1])}`, which `{name}` reads, has another order on every rank"
        conversion.refuse(read[0], read[1], reason, "give it `shuffle=False`, and shuffle in `on_epoch_end`")
        return None
    found = _Class(script, node, _draws(setup), _draws(giving), "on_epoch_end" in methods)
    if not (_same_batches(conversion, found, getter) and _same_order(conversion, found)):
        return None
    if found.ordering and (other := _other_pass(conversion, run, loader)) is not None:
        reason = (
            f"`{other[0].text(other[1])}` ({other[0].at(other[1])}) may order the data of training anew, on one rank"
        )
        conversion.refuse(run.site.script, run.site.call, reason, f"make a `{name}` of its own for it")
        return None
    if found.ordering and _made_for_every_epoch(run, loader):
        reason = f"`{name}` is made anew for every epoch, and would have the same order in all of them"
        conversion.refuse(run.site.script, run.site.call, reason, "make it before the loop")
        return None
    return found


def _with_own(script: Script, cls: ast.ClassDef, *names: str) -> list[tuple[Script, ast.FunctionDef]]:
    """These methods, and those of the class that they call: `self.load()` of a base class may be another one here."""
    methods = script.methods(cls)
    found: list[tuple[Script, ast.FunctionDef]] = []
    todo = [methods[n] for n in names if n in methods]
    while todo:
        owner, method = todo.pop(0)
        if any(method is m for _, m in found):
            continue
        found.append((owner, method))
        for _, call in reached(owner, [method]):
            func = call.func
            of_self = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"
            if of_self and func.attr in methods:  # type: ignore[attr-defined]
                todo.append(methods[func.attr])  # type: ignore[attr-defined]
    return found


def _draws(methods: list[tuple[Script, ast.FunctionDef]]) -> list[Draw]:
    found = [d for script, method in methods for d in draws_of(script, method)]
    return list({d.call: d for d in found}.values())


def _other_pass(conversion: Conversion, run: Run, loader: Value) -> tuple[Script, ast.Call] | None:
    """An `evaluate` of a loader before training goes on with it: that ends an epoch too, and rank 0 may do it alone."""
    owner, made = loader.script, loader.node
    if owner is None or made is None:
        return None
    fits = {r.source for training in conversion.program.trainings for r in training.fits}
    flow = owner.flow(made)
    goes_on = runs_again(run, owner, made) or len([use for _, use in flow if use in fits]) > 1
    for script, use in flow:
        parent = script.parents.get(use)
        if isinstance(parent, ast.keyword):
            parent = script.parents.get(parent)
        if isinstance(parent, ast.Attribute) and parent.attr == "on_epoch_end":
            parent = script.parents.get(parent)
            passes = isinstance(parent, ast.Call)
        else:
            func = parent.func if isinstance(parent, ast.Call) else None
            passes = isinstance(func, ast.Attribute) and func.attr in _PASSES
        if not passes or not isinstance(parent, ast.Call):
            continue
        statement = script.statement(parent)
        by_all = isinstance(statement, ast.Assign | ast.Expr) and statement.value is parent
        if _in_a_callback(script, parent) or (goes_on and not by_all):
            return script, parent
    return None


def _in_a_callback(script: Script, node: ast.AST) -> bool:
    classes = [c for c in script.enclosing(node, ast.ClassDef) if isinstance(c, ast.ClassDef)]
    return any(base.endswith("Callback") for c in classes for base in script.library_bases(c))


def _made_for_every_epoch(run: Run, loader: Value) -> bool:
    """`for epoch in range(n): model.fit(Rows(x))`."""
    epochs = run.site.arguments.get("epochs")
    one = epochs is None or run.site.script.integer(epochs) == 1
    if not one or loader.script is None or loader.node is None:
        return False
    return next(loader.script.enclosing(loader.node, ast.For, ast.While), None) is not None


def _keeps_state(script: Script, method: ast.FunctionDef) -> tuple[tuple[Script, ast.AST], str] | None:
    """Something that a method changes outside of itself."""
    functions: dict[ast.AST, Script] = {method: script}
    for owner, call in reached(script, [method]):
        function = owner.function_of(call)
        if isinstance(function, ast.FunctionDef):
            functions.setdefault(function, owner)
        changes = isinstance(call.func, ast.Attribute) and call.func.attr in _CHANGES
        if owner.called(call) == "builtins.next" or (changes and _is_of_self(call.func)):
            return (owner, call), f"`{owner.text(call)}` changes something ({owner.at(call)})"
    for function, owner in functions.items():
        for node in ast.walk(function):
            stores = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
            if stores and _is_of_self(node):
                return (owner, node), f"`{ast.unparse(node)}` is changed ({owner.at(node)})"
            if isinstance(node, ast.Global | ast.Nonlocal):
                return (owner, node), f"`{', '.join(node.names)}` is changed ({owner.at(node)})"
    return None


def _is_of_self(node: ast.AST) -> bool:
    root = node
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    return isinstance(root, ast.Name) and root.id == "self" and root is not node


def _same_batches(conversion: Conversion, found: _Class, getter: ast.FunctionDef) -> bool:
    """Whether the number of a batch tells its samples; those picked by chance have to differ from rank to rank."""
    parameters = [a.arg for a in getter.args.args[1:]]
    uses_number = any(
        isinstance(n, ast.Name) and n.id in parameters and isinstance(n.ctx, ast.Load) for n in ast.walk(getter)
    )
    seeds = bool(seeded(conversion.program) or conversion.seeds)
    for draw in found.batches:
        repeatable = is_fixed(*draw.maker) if draw.maker is not None else seeds
        shared = any(isinstance(n, ast.Attribute) and _is_of_self(n) for a in draw.call.args for n in ast.walk(a))
        if draw.maker is not None and any(o.maker is not None and o.maker[1] is draw.maker[1] for o in found.ordering):
            reason = f"{draw.what} draws from the generator that orders the data, as often as a rank has batches"
            conversion.refuse(draw.script, draw.call, reason, "use a generator of its own for each")
            return False
        if draw.kind == "seed" or (draw.kind == "order" and shared):
            reason = f"`{found.node.name}` makes an order for every batch: {draw.what}"
            conversion.refuse(draw.script, draw.call, reason, "shuffle in `on_epoch_end`")
            return False
        if draw.kind in ("pick", "order") and not uses_number and repeatable:
            reason = f"a seed is set: {draw.what} would pick the same samples on every rank"
            hint = "add `hvd.rank()` to its seed" if draw.maker else "seed by rank: `np.random.seed(hvd.rank())`"
            conversion.refuse(draw.script, draw.call, reason, hint)
            return False
    return True


def _same_order(conversion: Conversion, found: _Class) -> bool:
    """Let what orders the data draw from a generator of the object's own, which is the same on every rank."""
    script, cls = found.script, found.node
    draws = [d for d in found.ordering if d.library != "own"]
    family = {node for _, node in script.ancestry(cls)}
    for draw in found.ordering:
        places = [(draw.script, draw.call), *([draw.maker] if draw.maker else [])]
        of_class = all(not family.isdisjoint(s.enclosing(node, ast.ClassDef)) for s, node in places)
        if draw.kind == "seed" or draw.library == "tensorflow" or not of_class:
            reason = f"the order of the data may differ from rank to rank: {draw.what}"
            conversion.refuse(draw.script, draw.call, reason, "draw from a `np.random.RandomState(0)` of its own")
            return False
        if any(draw.call is b.call for b in found.batches):
            reason = f"`{cls.name}` makes an order for every batch: {draw.what}"
            conversion.refuse(draw.script, draw.call, reason, "shuffle in `on_epoch_end`")
            return False
    for maker_script, maker in [d.maker for d in found.ordering if d.maker is not None]:
        if not maker.args and not maker.keywords:
            conversion.add(Replace(maker, f"{ast.unparse(maker.func)}(0)"))
        elif not is_fixed(maker_script, maker):
            reason = f"`{maker_script.text(maker)}` gives every rank another order"
            conversion.refuse(maker_script, maker, reason, "give it a number")
            return False
    if not draws:
        return True
    place = _constructor(script, cls, draws)
    if isinstance(place, str):
        conversion.refuse(draws[0].script, draws[0].call, place, "draw from a `np.random.RandomState(0)` of its own")
        return False
    own_draws(conversion, *place, draws)
    return True


def _constructor(script: Script, cls: ast.ClassDef, draws: list[Draw]) -> tuple[Script, ast.FunctionDef] | str:
    """The `__init__` of the class in which these draws stand, where it runs before them; or why there is none."""
    holders = {c: d.script for d in draws for c in d.script.enclosing(d.call, ast.ClassDef)}
    (holder, owner), *more = holders.items()
    assert isinstance(holder, ast.ClassDef)
    methods = [s for s in holder.body if isinstance(s, ast.FunctionDef)]
    drawing = [m for m in methods if any(d.call in ast.walk(m) for d in draws)]
    if more or any(m.decorator_list or not m.args.args for m in drawing):
        return "the order of the data is drawn in several classes, or in methods without an object"
    own = next((m for m in methods if m.name == "__init__"), None)
    if own is None or not own.args.args:
        return f"`{holder.name}` has no `__init__`, in which a seed for its order could be set"
    family = [node for _, node in script.ancestry(cls)]
    for node in family[: family.index(holder)]:
        for other in node.body:
            is_init = isinstance(other, ast.FunctionDef) and other.name == "__init__"
            if is_init and not any(comes_first(s, docstring=False) for s in other.body[:2]):  # type: ignore[attr-defined]
                return f"whether `{holder.name}.__init__` runs before the order is drawn is not seen"
    if any(b.kind == "class" for b in owner.bases(holder)):
        return f"`{holder.name}` derives from a class whose `__init__` may draw an order before"
    return owner, own


# -- the wrapper -----------------------------------------------------------------------------------------------


def _several_workers(run: Run) -> bool:
    """Whether threads or processes of their own ask for the batches, which also end epochs."""
    site = run.site
    workers, processes = site.arguments.get("workers"), site.arguments.get("use_multiprocessing")
    one = workers is None or site.script.integer(workers) in (0, 1)
    return not one or (processes is not None and site.script.constant(processes) is not False)


def _wrapper(conversion: Conversion, script: Script, node: ast.expr, *, shuffles: bool, threads: bool) -> str:
    """The name of a class, put above its use, that gives the batches of one rank."""
    first = outermost(script, node, script.tree)
    hvd = conversion.hvd(script, first)
    kind = f"{'Shuffled' if shuffles else ''}PartOfRank{'ByWorkers' if threads else ''}"
    name = conversion.free_name(script, kind)
    of_keras3 = keras3.is_target(conversion)
    base = f"{keras3.family(script)}.utils.PyDataset" if of_keras3 else "tensorflow.keras.utils.Sequence"
    lines = [
        f"class {name}({{{base}}}):",
        '    """The batches of this rank: each one is on one rank, and every rank has as many."""',
        "",
        "    def __init__(self, batches):",
        *(["        super().__init__()"] if of_keras3 else []),
        f"        self.batches, self.rank, self.size = batches, {hvd}.rank(), {hvd}.size()",
    ]
    if threads:
        lines.append(f"        self.thread = {imported(conversion, script, node, 'threading')}.get_ident()")
    if shuffles:
        numpy = imported(conversion, script, node, "numpy")
        lines.insert(2, "")
        lines.insert(3, f"    order = {numpy}.random.RandomState(0)  # the same on every rank")
        lines.append("        self.on_epoch_end()")
    lines += [
        "",
        "    def __len__(self):",
        "        return len(self.batches) // self.size",
        "",
        "    def __getitem__(self, index):",
        "        return self.batches[index * self.size + self.rank]",
        "",
        "    def on_epoch_end(self):",
    ]
    if threads:
        threading = imported(conversion, script, node, "threading")
        lines += [
            f"        if {threading}.get_ident() != self.thread:",
            "            return  # of the workers, at another time on every rank",
        ]
    lines.append("        self.batches.on_epoch_end()")
    if shuffles:
        lines += [
            "        if self.batches.shuffle:",
            "            self.batches.index_array = self.order.permutation(self.batches.n)",
        ]
    above(conversion, script, first, "\n".join(lines))
    return name


def above(conversion: Conversion, script: Script, first: ast.stmt, text: str) -> None:
    """Put a definition above its first use, once, with two blank lines around it."""
    edit = Insert(first, text, after=False, blank_lines=max(2 - script.blank_lines_above(first), 0), below=2)
    done = next((e for e in conversion.edits if isinstance(e, Insert) and e.text == text), None)
    if done is None:
        conversion.add(edit)
    elif first.lineno < getattr(done.node, "lineno", 0):
        conversion.edits.remove(done)
        conversion.add(edit)
