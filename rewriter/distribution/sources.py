"""Where the training data of a `fit` can be split: every sample on one rank, as many steps on all of them.

    split_of(program, run)     # a `Split`: where, and whether the number of elements is known there; or a `Problem`
    unlike_on_ranks(program)   # draws that give every rank another order of the data

A dataset is split as early as possible: at its source, before shuffle, repeat and batch. It must have the same order
on every rank up to there, and nothing else than training may read what comes behind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..catalog import KERAS_DATASETS
from ..data.pipelines import COMBINING, READERS, inputs, nondeterministic, role, routes, stages
from ..script import Script
from ..training import Count, Run, elements_of, steps_of
from ..values import Value
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
    length: an expression for that number, where one is at hand. below: what is made of the part.
    """

    script: Script
    node: ast.expr
    stage: Value
    sized: bool
    length: str = ""

    @property
    def countable(self) -> bool:
        """Records of files, which are quickly counted when the program starts."""
        made = stages(self.stage)
        read = made[0].name.removeprefix("tensorflow.data.") in READERS.values() or any(
            _reads_files(s) for s in made if s.name in ("interleave", "flat_map")
        )
        return read and all(s.name in ("interleave", "flat_map") for s in made[1:])


@dataclass(eq=False)
class Split:
    """The places at which a dataset is split, one for every way in which it may be made.

    seeds: calls that need a `seed`, to have the same order on every rank. counted: the part knows its size.
    endless: it repeats without end.
    """

    places: list[Place] = field(default_factory=list)
    seeds: list[tuple[Script, ast.Call]] = field(default_factory=list)
    counted: bool = True
    endless: bool = True


#: Stages that count elements or look at neighbours: the part of a rank is taken behind them.
_BEFORE = frozenset("take skip enumerate window scan concatenate take_while shard rebatch".split())
#: Stages that keep the order that they are given.
_ORDERLY = frozenset(
    "map cache prefetch batch padded_batch ragged_batch take skip repeat enumerate filter window unbatch concatenate "
    "with_options scan take_while flat_map bucket_by_sequence_length zip".split()
)
_RAGGED = frozenset("filter flat_map interleave unbatch window group_by_window bucket_by_sequence_length".split())


def split_of(program: Program, run: Run) -> Split | Problem:
    """Where the dataset of a `fit` is split."""
    assert run.source is not None
    return split_at(program, run.site.script, run.source)


def split_at(program: Program, script: Script, source: ast.expr) -> Split | Problem:
    """Where a dataset is split that is trained on at this expression, also by a loop."""
    found = _at_its_stages(program, script, source)
    if isinstance(found, Problem) and (place := _at_an_argument(script, source)) is not None:
        endless = any(s.name == "repeat" and _for_ever(s) for v in script.values(source) for s in stages(v))
        counted = all(elements_of(v).sized is True for v in script.values(source))
        return Split([place[0]], place[1], counted and place[0].sized, endless)
    return found


def _at_its_stages(program: Program, script: Script, source: ast.expr) -> Split | Problem:
    split = Split()
    for value in script.values(source):
        if value.kind == "constant" and value.literal is None:
            continue
        if value.kind not in ("dataset", "tfds"):
            return Problem(script, source, f"what `{script.text(source)}` is is not known{_why(value)}")
        found = _place(program, script, source, value, split)
        if isinstance(found, Problem):
            return found
        split.places.append(found)
        behind = stages(value)[stages(value).index(found.stage) + 1 :] if found.stage in stages(value) else []
        even = not any(s.name in _RAGGED for s in behind)
        split.counted &= (elements_of(value).sized is True and found.sized) or (found.countable and even)
        split.endless &= any(s.name == "repeat" and _for_ever(s) for s in stages(value))
    return split


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


def _reads_files(stage: Value) -> bool:
    """`files.interleave(tf.data.TFRecordDataset)`, also with a function that does that."""
    script, call = stage.script, stage.node
    if script is None or not isinstance(call, ast.Call):
        return False
    for function in script.values(script.bind(call, f"Dataset.{stage.name}").get("map_func")):
        if function.name.removeprefix("tensorflow.data.") in READERS.values():
            continue
        if function.script is None or not isinstance(function.node, ast.Lambda | ast.FunctionDef):
            return False
        body = function.node.body
        results = function.script.returns(function.node) if isinstance(body, list) else [body]
        if not results or not all(_is_reader(v) for r in results for v in function.script.values(r)):
            return False
    return True


def _is_reader(value: Value) -> bool:
    return value.name.removeprefix("tensorflow.data.") in READERS.values()


def _why(value: Value) -> str:
    return f": {value.name}" if value.kind == "unknown" and value.name else ""


def _for_ever(stage: Value) -> bool:
    if stage.script is None or not isinstance(stage.node, ast.Call):
        return False
    count = stage.script.bind(stage.node, "Dataset.repeat").get("count")
    return count is None or stage.script.constant(count) in (None, -1)


def _place(program: Program, script: Script, source: ast.expr, dataset: Value, split: Split) -> Place | Problem:
    chain = stages(dataset)
    first = max((i for i, s in enumerate(chain) if s.name in _BEFORE), default=0)
    reads = max((i for i, s in enumerate(chain) if s.name in ("flat_map", "interleave")), default=0)
    shared: Problem | None = None
    for index in range(max(first, reads), len(chain)):
        steady = _steady(chain[: index + 1], split)
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
        elif route.end.kind == "attribute":
            reason = f"`{route.end.name}` is asked of the training data ({route.end.script.at(route.end.call)})"
            return Problem(made[0], made[1], reason)
        elif purpose == "iteration" and (route.end.name in ("iter", "next") or route.first("take")):
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


def _steady(chain: list[Value], split: Split) -> Problem | None:
    """Why the ranks may see these stages' elements in different orders."""
    for stage in chain:
        if problem := _unsteady(stage, split):
            return problem
        for other in inputs(stage):
            if other is not stage.base and (problem := _steady(stages(other), split)):
                return problem
    return None


def _unsteady(stage: Value, split: Split) -> Problem | None:
    script, call = stage.script, stage.node
    if script is None or not isinstance(call, ast.Call):
        assert script is not None or call is None
        return Problem(script, call, "how the dataset is made is not seen") if script and call else None

    def problem(reason: str, hint: str = "") -> Problem:
        return Problem(script, call, reason, hint)

    name = stage.name
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
    if name in _ORDERLY:
        return None
    return problem(f"whether `{name}` keeps the order is not known")


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
        return draws_in(script, generator)
    if name in COMBINING:
        return None if name.endswith("zip") else Problem(script, call, "it draws from several datasets by chance")
    if name.rpartition(".")[2] in ("from_tensor_slices", "from_tensors", "range") or name == "zip":
        return None
    return Problem(script, call, f"whether `{script.text(call.func)}` gives the same order on every rank is not known")


# -- chance --------------------------------------------------------------------------------------------------

_SHUFFLES = frozenset(
    "numpy.random.shuffle numpy.random.permutation numpy.random.permuted random.shuffle random.sample".split()
)
_SPLITTERS = ("model_selection.train_test_split", "sklearn.utils.shuffle", "ShuffleSplit")
_FOLDS = ("model_selection.KFold", "model_selection.StratifiedKFold", "model_selection.GroupKFold")
_SEEDS = ("numpy.random.seed", "random.seed", "utils.set_random_seed", "tensorflow.keras.utils.set_random_seed")


def draws_in(script: Script, function: ast.expr | None) -> Problem | None:
    """A generator whose samples differ from rank to rank, or may do."""
    if function is None:
        return None
    for value in script.values(function):
        owner, node = value.script, value.node
        if value.base is not None and value.base.kind == "function":
            owner, node = value.base.script, value.base.node  # what it yields: its call was given
        if owner is None or not isinstance(node, ast.FunctionDef | ast.Lambda):
            return Problem(script, function, "what the generator yields is not seen")
        for call in [n for n in ast.walk(node) if isinstance(n, ast.Call)]:
            name = owner.called(call)
            if name.startswith(("numpy.random.", "random.")):
                return Problem(
                    owner, call, "the generator draws at random: every rank would go through the data in another order"
                )
    return None


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
