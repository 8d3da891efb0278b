"""Where the training data of a `fit` can be split: every sample on one rank, as many steps on all of them.

    split_of(program, run)     # a `Split`: where, and whether the number of elements is known there; or a `Problem`
    unlike_on_ranks(program)   # draws that give every rank another order of the data

A dataset is split as early as possible: at its source, before shuffle, repeat and batch. It must have the same order
on every rank up to there, and nothing else than training may read what comes behind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ..catalog import KERAS_DATASETS
from ..data.pipelines import COMBINING, READERS, inputs, nondeterministic, role, routes, stages
from ..script import Script
from ..training import Count, Run, elements_of, steps_of
from ..values import Value
from .draws import Draw, decided, draws_of, shuffled_source, uses_up
from .program import Program


@dataclass(frozen=True, eq=False)
class Problem:
    """Why data cannot be split, where, and what to do by hand."""

    script: Script
    node: ast.AST
    reason: str
    hint: str = ""


@dataclass(frozen=True, eq=False)
class Place:
    """An expression that is a dataset: what follows it sees the part of one rank.

    stage: the dataset that it is. sized: its number of elements can be asked for when the program runs.
    length: an expression for that number, where one is at hand.
    """

    script: Script
    node: ast.expr
    stage: Value
    sized: bool
    length: str = ""

    @property
    def countable(self) -> bool:
        """Whether its elements can be counted when the program starts: they come to an end, and can be read again."""
        made = stages(self.stage)
        return not _repeats(made) and not any(_used_up(s) for s in made)

    @property
    def tells(self) -> bool:
        """Whether it may know its size when the program runs, also if that is not certain."""
        return any(s.kind == "tfds" or s.name == "tensorflow_datasets.load" for s in stages(self.stage))


@dataclass(frozen=True, eq=False)
class Own:
    """Draws of an order, and the function before which, or the `__init__` in which, their random numbers are made."""

    script: Script
    function: ast.FunctionDef
    draws: tuple[Draw, ...]


@dataclass(eq=False)
class Split:
    """The places at which a dataset is split, one for every way in which it may be made.

    seeds: calls that need a `seed`, to have the same order on every rank. own: draws that need random numbers of
    their own for that (None: not allowed). counted: the part knows its size. endless: it repeats without end.
    """

    places: list[Place] = field(default_factory=list)
    seeds: list[tuple[Script, ast.Call]] = field(default_factory=list)
    counted: bool = True
    endless: bool = True
    own: list[Own] | None = None


#: Stages that count elements or look at neighbours: the part of a rank is taken behind them.
_BEFORE = frozenset("take skip enumerate window scan concatenate take_while shard rebatch".split())
#: Stages that keep the order that they are given.
_ORDERLY = frozenset(
    "map cache prefetch batch padded_batch ragged_batch take skip repeat enumerate filter window unbatch concatenate "
    "with_options scan take_while flat_map bucket_by_sequence_length zip".split()
)
#: What can be asked of a part as well: it says what the elements are.
_OF_ELEMENTS = frozenset("element_spec output_shapes output_types output_classes".split())
_RAGGED = frozenset("filter flat_map interleave unbatch window group_by_window bucket_by_sequence_length".split())


#: What gives its elements once.
_ITERATORS = frozenset(f"builtins.{n}" for n in "open iter zip map filter enumerate reversed".split())


def split_of(program: Program, run: Run, *, own: bool = False) -> Split | Problem:
    """Where the dataset of a `fit` is split; `own`: it may need random numbers of its own."""
    assert run.source is not None
    return split_at(program, run.site.script, run.source, own=own)


def split_at(program: Program, script: Script, source: ast.expr, *, own: bool = False) -> Split | Problem:
    """Where a dataset is split that is trained on at this expression, also by a loop."""
    found = _at_its_stages(program, script, source, Split(own=[] if own else None))
    shuffles = isinstance(found, Split) and any(_is_method(call, "shuffle") for _, call in found.seeds)
    if (isinstance(found, Problem) or shuffles) and (place := _at_an_argument(script, source)) is not None:
        endless = any(_repeats(stages(v)) for v in script.values(source))
        counted = all(elements_of(v).sized is True for v in script.values(source))
        return Split([place[0]], place[1], counted and place[0].sized, endless)
    return found


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _at_its_stages(program: Program, script: Script, source: ast.expr, split: Split) -> Split | Problem:
    for value in script.values(source):
        if value.kind == "constant" and value.literal is None:
            continue
        if value.kind not in ("dataset", "tfds"):
            return Problem(script, source, f"what `{script.text(source)}` is is not known{_why(value)}")
        found = _place(program, script, source, value, split)
        if isinstance(found, Problem):
            return found
        if not _repeats(stages(value)) and not _is_counted(value, found):
            split, found = _behind_uneven(program, script, source, value, split, found)
        split.places.append(found)
        split.counted &= _is_counted(value, found)
        split.endless &= _repeats(stages(value))
    return split


def _is_counted(dataset: Value, place: Place) -> bool:
    """Whether every rank has as many elements of a dataset where its part is taken at this place."""
    if elements_of(dataset).sized is True and place.sized:
        return True
    made = stages(dataset)
    behind = made[made.index(place.stage) + 1 :] if place.stage in made else []
    return place.countable and not any(s.name in _RAGGED for s in behind)


def _behind_uneven(
    program: Program, script: Script, source: ast.expr, dataset: Value, split: Split, found: Place
) -> tuple[Split, Place]:
    """The place behind what gives more or fewer elements than it is given, where there the part can be counted."""
    attempt = replace(split, seeds=[*split.seeds], own=None if split.own is None else [*split.own])
    other = _place(program, script, source, dataset, attempt, behind=_RAGGED)
    if isinstance(other, Place) and _is_counted(dataset, other):
        return attempt, other
    return split, found


def _repeats(made: Sequence[Value]) -> bool:
    return any(s.name == "repeat" and _for_ever(s) for s in made)


def _used_up(stage: Value) -> bool:
    """A generator function that reads from something which is there once: an open file, an iterator."""
    script, call = stage.script, stage.node
    if not stage.name.endswith("Dataset.from_generator") or script is None or not isinstance(call, ast.Call):
        return False
    for value in script.values(script.bind(call, "Dataset.from_generator").get("generator")):
        owner, function = _generates(value)
        if owner is None or not isinstance(function, ast.FunctionDef | ast.Lambda):
            return True
        inside = set(ast.walk(function))
        for name in [n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]:
            outside = [b for b in owner.names.reaching(name) if b.node not in inside and b.kind == "assign"]
            if outside and any(_is_iterator(v) for v in owner.values(name)):
                return True
    return False


def _is_iterator(value: Value) -> bool:
    name = value.name
    return value.kind in ("generator", "iterator") or name in _ITERATORS or name.endswith((".reader", ".DictReader"))


def _at_an_argument(script: Script, source: ast.expr) -> tuple[Place, list[tuple[Script, ast.Call]]] | None:
    """`prepare(train)` of a function that prepares other data as well: the argument of this one call."""
    call = source
    if isinstance(source, ast.Name):
        bindings = script.names.reaching(source)
        call = bindings[0].value if len(bindings) == 1 and not bindings[0].path and bindings[0].value else source
    if not isinstance(call, ast.Call) or _other_use(script, (script, call)) is not None:
        return None
    functions = script.values(call.func)
    given = [a for a in [*call.args, *(k.value for k in call.keywords)] if script.is_dataset(a)]
    if len(given) != 1 or len(functions) != 1 or not isinstance(functions[0].node, ast.FunctionDef):
        return None
    values = script.values(given[0])
    inside = {n for n in ast.walk(functions[0].node)}
    for result in script.values(source):
        made = [s for s in stages(result) if s.node in inside] if result.kind == "dataset" else []
        if not made or made[0].base is None or any(s.name in _BEFORE for s in made):
            return None  # it does not simply go on with what it is given
    seeds = Split()
    if len(values) != 1 or _steady(stages(values[0]), seeds) is not None:
        return None
    return Place(script, given[0], values[0], elements_of(values[0]).sized is True), seeds.seeds


def _why(value: Value) -> str:
    return f": {value.name}" if value.kind == "unknown" and value.name else ""


def _for_ever(stage: Value) -> bool:
    if stage.script is None or not isinstance(stage.node, ast.Call):
        return False
    count = stage.script.bind(stage.node, "Dataset.repeat").get("count")
    return count is None or stage.script.constant(count) in (None, -1)


def _place(
    program: Program,
    script: Script,
    source: ast.expr,
    dataset: Value,
    split: Split,
    behind: frozenset[str] = frozenset({"flat_map", "interleave"}),
) -> Place | Problem:
    chain = stages(dataset)
    first = max((i for i, s in enumerate(chain) if s.name in _BEFORE), default=0)
    reads = max((i for i, s in enumerate(chain) if s.name in behind), default=0)
    shared: Problem | None = None
    for index in range(max(first, reads), len(chain)):
        steady = _steady(chain[: index + 1], split, divided=first)
        if isinstance(steady, Problem):
            return shared or steady
        stage = chain[index]
        following = chain[index + 1] if index + 1 < len(chain) else None
        for owner, node, made in _candidates(script, source, stage, following):
            if made is None or (why := _other_use(owner, made)) is None:
                return Place(owner, node, stage, elements_of(stage).sized is True, _length(owner, node, stage))
            shared = shared or why
    return shared or Problem(script, source, f"how `{script.text(source)}` is made is not seen")


def _candidates(
    script: Script, source: ast.expr, stage: Value, following: Value | None
) -> Iterator[tuple[Script, ast.expr, tuple[Script, ast.AST] | None]]:
    """Expressions that are this stage, with the dataset whose uses all see a change there (None: this `fit` only)."""
    if stage.script is not None and isinstance(stage.node, ast.Call) and stage.script.is_dataset(stage.node):
        yield stage.script, stage.node, (stage.script, stage.node)
    if following is None:
        yield script, source, None
    elif (
        following.script is not None
        and isinstance(following.node, ast.Call)
        and isinstance(following.node.func, ast.Attribute)
        and following.base is stage
    ):
        yield following.script, following.node.func.value, (following.script, following.node)


def _other_use(script: Script, made: tuple[Script, ast.AST]) -> Problem | None:
    """Something other than training that reads what is made of a dataset."""
    found = False
    for route in routes(*made):
        purpose = role(route.end)
        if purpose == "training":
            found = True
        elif route.end.kind == "attribute" and route.end.name not in _OF_ELEMENTS:
            reason = f"`{route.end.name}` is asked of the training data ({route.end.script.at(route.end.call)})"
            return Problem(made[0], made[1], reason)
        elif route.end.kind in ("loop", "iterator") and (route.end.name in ("iter", "next") or route.first("take")):
            continue  # some elements are looked at
        elif purpose is not None:
            reason = (
                f"the training data is read by something else too: {route.end.name} "
                f"({route.end.script.at(route.end.call)})"
            )
            return Problem(made[0], made[1], reason, "split it by hand: `ds.shard(hvd.size(), hvd.rank())`")
    return None if found else Problem(made[0], made[1], "whether only training reads this dataset is not seen")


def _length(owner: Script, node: ast.expr, stage: Value) -> str:
    """The number of elements of a dataset of arrays, as `len(x_train)`."""
    if stage.name == "tensorflow.data.Dataset.range" and stage.base is None:
        number = elements_of(stage).number
        return str(number) if isinstance(number, int) else ""
    if stage.name != "tensorflow.data.Dataset.from_tensor_slices" or not isinstance(stage.node, ast.Call):
        return ""
    if node is not stage.node:
        return ""
    argument = owner.bind(stage.node, "Dataset.from_tensor_slices").get("tensors")
    if isinstance(argument, ast.Tuple) and argument.elts:
        argument = argument.elts[0]
    if isinstance(argument, ast.Name | ast.Attribute) and all(
        v.kind in ("array", "splits") for v in owner.values(argument)
    ):
        return f"len({ast.unparse(argument)})"
    return ""


# -- the same order on every rank ----------------------------------------------------------------------------


def _steady(chain: list[Value], split: Split, divided: int | None = None) -> Problem | None:
    """Why the ranks may see these stages' elements in different orders.

    divided: the last stage that counts elements. What shuffles behind it can be given a seed; before it, a shuffle
    without one may move samples between the parts of what is divided there.
    """
    for number, stage in enumerate(chain):
        if divided is not None and number > divided and _is_shuffle(stage):
            if problem := _seeded_shuffle(stage, split):
                return problem
        elif problem := unsteady(stage, split):
            return problem
        for other in inputs(stage):
            if other is not stage.base and (problem := _steady(stages(other), split)):
                return problem
    return None


def _is_shuffle(stage: Value) -> bool:
    return stage.name == "shuffle" and stage.script is not None and isinstance(stage.node, ast.Call)


def _seeded_shuffle(stage: Value, split: Split) -> Problem | None:
    """A shuffle that is given a seed, where it has none: it gives the same order on every rank, in every epoch."""
    script, call = stage.script, stage.node
    assert script is not None and isinstance(call, ast.Call)
    arguments = script.bind(call, "Dataset.shuffle")
    seed = arguments.get("seed")
    if script.integer(seed) is not None:
        return None
    if arguments.open or (seed is not None and not script.is_none(seed)):
        return Problem(script, call, f"whether `{script.text(call)}` has the same order on every rank is not seen")
    if place := _read_by_one(script, call):
        reason = f"rank 0 alone would read the shuffled data ({place}), and have another order afterwards"
        return Problem(script, call, reason, "take what is shown before it")
    split.seeds.append((script, call))
    return None


def _read_by_one(script: Script, call: ast.Call) -> str:
    """Where elements are read in a statement that only rank 0 will run: `print(list(ds.take(1)))`."""
    from .writes import writes

    for route in routes(script, call):
        owner, end = route.end.script, route.end.call
        if route.end.kind not in ("loop", "iterator"):
            continue
        statement = owner.statement(end)
        shown = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        if shown and writes(owner, statement.value):  # type: ignore[attr-defined]
            return owner.at(end)
    return ""


def unsteady(stage: Value, split: Split) -> Problem | None:
    """Why a stage in front of the split may give each rank other elements; what can be seeded is added to the split."""
    script, call = stage.script, stage.node
    if script is None or not isinstance(call, ast.Call):
        assert script is not None or call is None
        return Problem(script, call, "how the dataset is made is not seen") if script and call else None

    def problem(reason: str, hint: str = "") -> Problem:
        return Problem(script, call, reason, hint)

    name = stage.name
    if stage.base is not None and stage.base.kind not in ("dataset", "tfds"):
        return problem(f"what `{script.text(call.func)}` is called on is not known{_why(stage.base)}")
    if (option := nondeterministic(script)) and stage.base is not None and name in ("map", "interleave"):
        return problem(f"`deterministic` is False (line {option}): the ranks see different orders")
    deterministic = script.argument(call, "deterministic")
    if deterministic is not None and script.constant(deterministic) is not True:
        return problem("`deterministic` is given: the ranks may see different orders before the data is split")
    if stage.base is None:
        return _unsteady_source(stage, script, call, split)
    if name == "shuffle":
        if script.integer(script.bind(call, "Dataset.shuffle").get("seed")) is None:
            return problem(
                "the data is shuffled differently on every rank before it can be split",
                "give this `shuffle` a seed, or split before it: `ds.shard(hvd.size(), hvd.rank())`",
            )
        return None
    if name == "interleave":
        arguments = script.bind(call, "Dataset.interleave")
        if script.integer(arguments.get("cycle_length")) in (None, -1) and "num_parallel_calls" in arguments:
            return problem(
                "how many files `interleave` reads at a time depends on the machine, and so does the order",
                "give it a `cycle_length`",
            )
        return None
    if name in ("filter", "take_while") and (drawn := _drawn_by(stage)) is not None:
        return problem(f"which elements stay is drawn at random: {drawn.what}")
    if name in _ORDERLY:
        return None
    return problem(f"whether `{name}` keeps the order is not known")


def _drawn_by(stage: Value) -> Draw | None:
    """What the function of a stage draws at random."""
    script, call = stage.script, stage.node
    assert script is not None and isinstance(call, ast.Call)
    functions = [
        (v.script, v.node)
        for expr in [*call.args, *(k.value for k in call.keywords)]
        for v in script.values(expr)
        if v.script is not None and isinstance(v.node, ast.FunctionDef | ast.Lambda)
    ]
    return next((d for owner, function in functions for d in draws_of(owner, function)), None)


def _unsteady_source(stage: Value, script: Script, call: ast.Call, split: Split) -> Problem | None:
    name = stage.name
    if name == "tensorflow.data.Dataset.list_files":
        arguments = script.bind(call, "Dataset.list_files")
        shuffled = arguments.get("shuffle")
        if "seed" in arguments or (shuffled is not None and script.constant(shuffled) is False):
            return None
        if arguments.open or shuffled is not None:
            return Problem(script, call, "whether `list_files` shuffles in the same way on every rank is not seen")
        split.seeds.append((script, call))
        return None
    if stage.keras in KERAS_DATASETS:
        arguments = script.bind(call, stage.keras.rpartition(".")[2])
        shuffled = arguments.get("shuffle")
        if "seed" in arguments or (shuffled is not None and script.constant(shuffled) is False):
            return None
        if arguments.open:
            return Problem(script, call, "arguments are given through `*` or `**`, which may hold a seed")
        split.seeds.append((script, call))
        return None
    if name.removeprefix("tensorflow.data.") in READERS.values():
        reads = script.bind(call, name.rpartition(".")[2]).get("num_parallel_reads")
        if reads is not None and script.integer(reads) in (None, -1):
            return Problem(
                script,
                call,
                "how many files are read at a time depends on the machine, and so does the order",
                "give `num_parallel_reads` a number",
            )
        return None
    if name == "tensorflow_datasets.load":
        shuffled = script.argument(call, "shuffle_files")
        if shuffled is None or script.constant(shuffled) is False:
            return None
        return Problem(script, call, "`shuffle_files` gives every rank another order", "leave it out")
    if name.endswith("Dataset.from_generator"):
        generator = script.bind(call, "Dataset.from_generator").get("generator")
        return draws_in(script, generator, split.own)
    if name in COMBINING:
        return None if name.endswith("zip") else Problem(script, call, "it draws from several datasets by chance")
    if name.rpartition(".")[2] in ("from_tensor_slices", "from_tensors", "range", "CsvDataset") or name == "zip":
        return None
    return Problem(script, call, f"whether `{script.text(call.func)}` gives the same order on every rank is not known")


# -- chance --------------------------------------------------------------------------------------------------

_SHUFFLES = frozenset(
    "numpy.random.shuffle numpy.random.permutation numpy.random.permuted random.shuffle random.sample".split()
)
_SPLITTERS = ("model_selection.train_test_split", "sklearn.utils.shuffle", "ShuffleSplit")
_FOLDS = ("model_selection.KFold", "model_selection.StratifiedKFold", "model_selection.GroupKFold")
_SEEDS = ("numpy.random.seed", "random.seed", "utils.set_random_seed", "tensorflow.keras.utils.set_random_seed")


def draws_in(script: Script, function: ast.expr | None, own: list[Own] | None = None) -> Problem | None:
    """A generator whose samples come in another order on every rank, or may do.

    own: gets what may draw its order from a generator of random numbers of its own; None: nothing may.
    """
    if function is None:
        return None
    for value in script.values(function):
        owner, node = _generates(value)
        if owner is None or not isinstance(node, ast.FunctionDef | ast.Lambda):
            return Problem(script, function, "what the generator yields is not seen")
        if (read := shuffled_source(owner, node)) is not None:
            reason = f"`{read[0].text(read[1])}`, which the generator reads, has another order on every rank"
            return Problem(read[0], read[1], reason, "give it a `seed`, or `shuffle=False`")
        draws = draws_of(owner, node)
        orders = tuple(d for d in draws if d.kind in ("order", "seed"))
        place = _own_place(value, owner, node, orders) if own is not None else None
        if orders and place is None:
            reason = f"the generator draws an order at random, another one on every rank: {orders[0].what}"
            hint = "draw it from a `np.random.RandomState(0)` of its own"
            return Problem(orders[0].script, orders[0].call, reason, hint)
        if orders and own is not None and place is not None:
            own.append(Own(owner, place, orders))
        test = decided(owner, node, draws) or uses_up(node, draws)
        if test is not None:
            reason = f"what is drawn decides which samples come, and may differ from rank to rank ({owner.at(test)})"
            return Problem(owner, test, reason, "draw it from a `np.random.RandomState(0)` of its own")
    return None


def _generates(value: Value) -> tuple[Script | None, ast.AST | None]:
    """The function whose body a generator runs: itself, what it was called with, or `__call__` of an object."""
    if value.base is not None and value.base.kind == "function":
        return value.base.script, value.base.node
    cls = value.cls
    if cls is not None and cls.script is not None and isinstance(cls.node, ast.ClassDef):
        return cls.script.method(cls.node, "__call__") or (None, None)
    return value.script, value.node


def _is_repeated(draw: Draw, function: ast.AST) -> bool:
    """Whether it stands in a loop of the function, not in what that goes through."""
    inside = set(ast.walk(function))
    loops = [n for n in draw.script.enclosing(draw.call, ast.For, ast.While, ast.comprehension) if n in inside]
    return any(not hasattr(n, "iter") or draw.call not in ast.walk(n.iter) for n in loops)


def _own_place(value: Value, script: Script, function: ast.AST, draws: tuple[Draw, ...]) -> ast.FunctionDef | None:
    """Where a generator of random numbers can be made that only these draws use, once in a pass; None: nowhere."""
    for draw in draws:
        known = draw.library in ("numpy", "random", "state")
        if draw.kind != "order" or not known or not draw.inside or _is_repeated(draw, function):
            return None
    if value.cls is not None and isinstance(value.cls.node, ast.ClassDef):
        init = script.method(value.cls.node, "__init__")
        return init[1] if init is not None and init[0] is script and init[1].args.args else None
    if not isinstance(function, ast.FunctionDef) or isinstance(script.parents.get(function), ast.ClassDef):
        return None
    mentions = [m for other in script.project.scripts.values() for m in other.mentions(function.name)]
    return function if len(mentions) == 1 else None


def seeds_of(program: Program) -> Iterator[tuple[Script, ast.Call]]:
    """Where random numbers of Python or NumPy are made repeatable."""
    for script in program.scripts:
        yield from ((script, call) for call in script.calls_to(*_SEEDS))


def seeded(program: Program) -> bool:
    """Whether random numbers are repeatable, and with that the same on every rank."""
    return any(True for _ in seeds_of(program))


def unlike_on_ranks(program: Program) -> Iterator[tuple[Script, ast.Call, SeedKind]]:
    """Draws that order or split the data, unseeded, and what can be given a seed: see `SeedKind`."""
    seeds = {c for name in _SEEDS for s in program.scripts if any(s.calls_to(name)) for c in (name,)}
    everything = any(name.endswith("set_random_seed") for name in seeds)
    for script, call in program.calls():
        name = script.called(call)
        shuffles = script.argument(call, "shuffle")
        folds = name.endswith(_FOLDS) and shuffles is not None and script.constant(shuffles) is not False
        part = isinstance(call.func, ast.Attribute) and call.func.attr == "sample" and script.argument(call, "frac")
        if name.endswith(_SPLITTERS) or folds or part:  # part: of a frame of Pandas
            state = script.argument(call, "random_state")
            open_ = any(k.arg is None for k in call.keywords)
            given = state is not None and not (isinstance(state, ast.Constant) and state.value is None)
            if not given and not open_ and not everything and "numpy.random.seed" not in seeds:
                yield script, call, "random_state"
        elif name in _SHUFFLES:
            library: SeedKind = "numpy" if name.startswith("numpy.") else "random"
            if not everything and f"{'numpy.' if library == 'numpy' else ''}random.seed" not in seeds:
                yield script, call, library
        else:
            for made in _own_generators(script, call):
                yield made[0], made[1], "generator"


#: What is given a seed: the call itself (`random_state`), NumPy, Python's `random`, or the call that makes a generator.
SeedKind: TypeAlias = Literal["random_state", "numpy", "random", "generator"]


def _own_generators(script: Script, call: ast.Call) -> Iterator[tuple[Script, ast.Call]]:
    """The `np.random.default_rng()`, without a seed, whose `rng.permutation(n)` is called."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("shuffle", "permutation", "permuted"):
        for v in script.values(call.func.value):
            own = v.name in ("numpy.random.RandomState", "numpy.random.default_rng")
            if own and v.script is not None and isinstance(v.node, ast.Call) and not (v.node.args or v.node.keywords):
                yield v.script, v.node


def steps_known(run: Run) -> Count:
    """The number of steps of one epoch, as far as it is seen."""
    return run.steps if run.steps.given else steps_of(run.site.script, run.source)
