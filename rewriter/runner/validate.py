"""Which runs a verdict needs, and the verdict: same training? how much faster?"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from . import parity, process, speed
from .parity import Batches
from .record import Run
from .sandbox import Isolation

#: Folders below a script's folder that hold no modules of its own.
FOREIGN = frozenset({".git", ".venv", "venv", "node_modules", "site-packages", "__pycache__"})
SYNTHETIC = Path(__file__).with_name("synthetic.py")
WORKERS = Path(__file__).with_name("workers.py")

#: Loss curves that could be off by more than this share of the loss, unnoticed, get more seeds, up to so many.
BLIND = 0.5
MOST_SEEDS = 5

#: Told what runs next: a text, and how many of how many runs are done.
Progress = Callable[[str, int, int], None]

Mode = Literal["parity", "speed"]
#: Ranks are processes of horovodrun, workers on localhost that know each other by `TF_CONFIG`, or devices of a process.
Start = Literal["horovod", "workers", "replicas"]


@dataclass(frozen=True)
class Script:
    """What is run: `path` with `args`, and `files` that it sees in place of what is there."""

    path: Path
    args: tuple[str, ...] = ()
    files: Mapping[Path, bytes] = field(default_factory=dict, hash=False)


def start_of(script: Script) -> Start:
    """What the ranks of a script are, by the names that it and its own modules mention."""
    names = _mentioned(script.path, script.files, set())
    if "horovod" in names or not names & {"MultiWorkerMirroredStrategy", "MirroredStrategy"}:
        return "horovod"
    return "workers" if "MultiWorkerMirroredStrategy" in names else "replicas"


def _mentioned(path: Path, files: Mapping[Path, bytes], seen: set[Path]) -> set[str]:
    """Modules and attributes in a file, and in the modules beside it that it imports."""
    seen.add(path)
    try:
        tree = ast.parse(files[path] if path in files else path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {node.module or alias.name for alias in node.names}
    found = {part for module in modules for part in module.split(".")}
    found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
    for module in modules:
        place = path.parent.joinpath(*module.split("."))
        for own in (place.with_suffix(".py"), place / "__init__.py"):
            if own not in seen and (own in files or own.is_file()):
                found |= _mentioned(own, files, seen)
    return found


@dataclass(frozen=True)
class Conditions:
    """How scripts are run. budget: seconds of training that a run lasts about; steps: exactly so many instead."""

    python: str
    budget: float = 15.0
    steps: int = 0
    timeout: float = 900.0
    isolation: Isolation = "auto"
    keep: bool = False
    synthetic: bool = False
    ranks: int = 1  # of the rewritten script
    start: Start = "horovod"  # what the ranks are

    def run(self, script: Script, mode: Mode, *, ranks: int = 1, seed: int = 0, samples: int = 0,
            steps: int = 0, longest: float = 0, unseeded: bool = False,
            updates: Mapping[str, Any] | None = None) -> Run:  # fmt: skip
        """One run, to `samples` seen or `steps` made where given, else for the budget.

        longest, updates: for the harness.
        """
        config: dict[str, Any] = {
            "mode": mode, "samples": samples, "steps": steps, "longest": longest, "unseeded": unseeded
        }  # fmt: skip
        if not samples and not steps:
            config["seconds"] = self.budget
        if self.synthetic:
            config["synthetic"] = str(SYNTHETIC)
        if updates is not None:
            config["updates"] = updates
        launcher: tuple[str, ...] = ()
        if ranks > 1 and self.start == "horovod":
            launcher = (str(Path(self.python).with_name("horovodrun")), "-np", str(ranks), "--gloo")
        elif ranks > 1 and self.start == "workers":
            launcher = (self.python, str(WORKERS), str(ranks))
        elif ranks > 1:
            config["replicas"] = ranks
        return process.run(
            self.python,
            script.path,
            script.args,
            cwd=script.path.parent,
            config=config,
            timeout=self.timeout,
            isolation=self.isolation,
            overlay_files=script.files,
            keep=self.keep,
            seed=seed,
            launcher=launcher,
            env=environment(),
        )


@dataclass
class Validation:
    """The verdict on a pair of scripts, with the runs that it rests on."""

    original: Path
    rewritten: Path
    level: int
    parity: parity.Parity | None = None
    speed: speed.SpeedUp | None = None
    trained: tuple[list[Run], list[Run]] = field(default_factory=lambda: ([], []))  # losses and data recorded
    timed: tuple[list[Run], list[Run]] = field(default_factory=lambda: ([], []))
    unseeded: tuple[list[Run], list[Run]] = field(default_factory=lambda: ([], []))  # does the data vary?
    as_is: list[Run] = field(default_factory=list)  # of the original, where `trained` has the batches of several ranks
    batches: Batches = field(default_factory=Batches)
    failure: str = ""  # why there is no verdict

    @property
    def verdict(self) -> Literal["pass", "regression", "not run"]:
        if self.failure:
            return "not run"
        slower = self.speed is not None and self.speed.answer == "slower"
        return "pass" if self.parity and self.parity.same and not slower else "regression"

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "regression": 1, "not run": 2}[self.verdict]

    @property
    def runs(self) -> list[Run]:
        pairs = (self.trained, self.unseeded, self.timed)
        return [*self.as_is, *(run for pair in pairs for side in pair for run in side)]


def validate(
    original: Script,
    rewritten: Script,
    conditions: Conditions,
    level: int = 2,
    *,
    seeds: int = 3,
    pairs: int = 5,
    progress: Progress = lambda text, done, total: None,
    run: Callable[..., Run] | None = None,
) -> Validation:
    """Train both, each run in a fresh process, in turn. pairs=0 leaves the speed out.

    run: in place of `conditions.run`.
    """
    run = run or conditions.run
    result = Validation(original.path, rewritten.path, level)
    several = conditions.ranks > 1 or conditions.start == "replicas"
    seeds = 1 if level == 1 and not several else max(2, seeds)
    total = 2 * (seeds + 1 + pairs) + several

    def tell(text: str) -> None:
        progress(text, len(result.runs), max(total, len(result.runs) + 1))

    def train(which: Script, into: list[Run], seed: int, **further: Any) -> Run:
        how = "no seed" if "unseeded" in further else f"seed {seed}"
        tell(f"{'original' if which is original else 'rewritten'}: losses, {how}")
        ranks = conditions.ranks if which is rewritten else 1
        far = {unit: -(-count // ranks) if unit == "steps" else count for unit, count in amount.items()}
        into.append(run(which, "parity", ranks=ranks, seed=seed, **far, **further))
        return into[-1]

    def train_both(seed: int) -> None:
        if not several:
            train(original, trained, seed)
            train(rewritten, changed, seed)
            return
        again = train(rewritten, changed, seed, **told)
        train(original, trained, seed, **(_alike(first, again) if result.as_is else told))

    def compare() -> parity.Parity:
        return parity.compare(trained, changed, level, result.unseeded, result.as_is, result.batches)

    trained, changed = result.trained
    told: dict[str, Any] = {"updates": {"every": 1}} if several else {}
    tell("original: how far it trains")
    first = run(original, "parity", steps=conditions.steps, **told)
    trained.append(first)
    if reason := why_not_trained(first):
        result.failure = f"{original.path.name} {reason}"
        return result
    amount = reach(first, beyond=True)

    train(rewritten, changed, 0, **told)
    if several and not why_not_trained(changed[0]):
        result.batches = parity.batches(first, changed[0])
        if not result.batches.same and not result.batches.reason:
            again = train(original, result.as_is, 0, **_alike(first, changed[0]))
            if parity.put_together(again, result.batches):
                trained[:], result.as_is[:] = [again], [first]
            else:
                result.as_is.clear()
                reason = "the optimizers could not be made to update after several batches"
                result.batches = replace(result.batches, reason=reason)
    settled = bool(why_not_trained(changed[0])) or compare().settled
    if settled or (several and compare().exact):
        total -= 2 * (seeds - 1)
        seeds = 1
    for seed in range(1, seeds):
        train_both(seed)
    if not any(record.seeded for record in first.records) and epochs(first) > 1 and not settled:
        train(original, result.unseeded[0], 0, unseeded=True)
        train(rewritten, result.unseeded[1], 0, unseeded=True)
    else:
        total -= 2
    result.parity = compare()
    if not result.parity.same and seeds == 1 and not settled and not several:
        # do both repeat themselves, and how far apart are the original's own seeds?
        total += 6
        for seed in (0, 1, 2):
            train_both(seed)
            result.parity = compare()
            if result.parity.settled:
                break
        total = len(result.runs) + 2 * pairs
    while level > 1 and result.parity.same and result.parity.blind > BLIND and seeds < MOST_SEEDS:
        total += 2
        train_both(seeds)
        seeds += 1
        result.parity = compare()
    if why_not_trained(changed[0]):
        return result
    time_both(original, rewritten, conditions, pairs, tell, result.timed)
    if pairs:
        result.speed = speed.compare(*result.timed)
    return result


def _alike(original: Run, rewritten: Run) -> dict[str, Any]:
    """How the original is run to have the batches and the learning rates of a run on several ranks."""
    return {"updates": parity.batches(original, rewritten).config()}


def time_both(
    original: Script,
    rewritten: Script,
    conditions: Conditions,
    pairs: int,
    tell: Callable[[str], None],
    into: tuple[list[Run], list[Run]],
) -> None:
    """Runs for speed, interleaved A B B A, all over the same samples."""
    amount: dict[str, Any] = {"steps": conditions.steps} if conditions.steps else {}
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            script = (original, rewritten)[side]
            tell(f"{('original', 'rewritten')[side]}: speed, run {pair + 1} of {pairs}")
            ranks = conditions.ranks if side else 1
            into[side].append(conditions.run(script, "speed", ranks=ranks, **amount))
            amount = reach(into[0][0])


def reach(run: Run, beyond: bool = False) -> dict[str, Any]:
    """How far a run came: what others are stopped at. beyond: a quarter later where the script itself ended there."""
    steps = [step for record in run.records for step in record.steps]
    if all(step.samples for step in steps):
        amount = {"samples": sum(step.samples for step in steps)}
    else:
        amount = {"steps": sum(step.steps for step in steps) // max(len(run.records), 1)}
    if beyond and run.ending == "finished":
        amount = {unit: count + count // 4 + 1 for unit, count in amount.items()}
    return amount


def epochs(run: Run) -> int:
    """How many epochs of its longest loop a run has come to the end of."""
    ended = Counter(epoch.loop for record in run.records[:1] for epoch in record.epochs)
    return max(ended.values(), default=0)


def why_not_trained(run: Run) -> str:
    """What stood in the way of training, as the end of a sentence about the script; empty where it trained."""
    trouble = next((t for record in run.records for t in record.troubles), "")
    last = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "")
    if missing := process.missing_data(run):
        return f"needs data that is not there: {missing}"
    if run.ending == "timeout":
        return f"did not come to its end within {run.seconds:.0f} s"
    if run.ending in ("crashed", "killed", "interrupted", "out-of-memory", "exit"):
        how = {
            "crashed": "crashed",
            "killed": f"was killed by signal {-run.exit_code}",
            "interrupted": "was interrupted",
            "out-of-memory": "ran out of memory",
            "exit": f"ended with exit code {run.exit_code}",
        }[run.ending]
        return f"{how}: {last}" if last else how
    if any(record.elsewhere for record in run.records):
        return "trains in processes that it forks, which are not watched"
    if not any(record.steps for record in run.records):
        watched = "watched is what TensorFlow trains in the script's own process"
        return f"never trained a step that could be seen ({trouble or watched})"
    return ""


def environment() -> dict[str, str]:
    """The user's, with deterministic hashing and without buffering."""
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def absolute(path: Path) -> Path:
    """Without `..`; links are not followed: a script may look for its data beside the link."""
    return Path(os.path.abspath(path))


def pair(original: Path, rewritten: Path, args: Sequence[str]) -> tuple[Script, Script]:
    """Both scripts as they are to be run: a rewrite that stands elsewhere is laid over the original's folder.

    So both find the same modules and data. Modules beside the rewrite that the original has too are laid over as well.
    """
    original, rewritten = absolute(original), absolute(rewritten)
    before = Script(original, tuple(args))
    home, other = original.parent, rewritten.parent
    if home == other:
        return before, replace(before, path=rewritten)
    files = {}
    for folder, names, entries in os.walk(other):
        names[:] = [n for n in names if n not in FOREIGN and not n.startswith(".")]
        if Path(folder) == home:
            names[:] = []
            continue
        for name in entries:
            place = home / Path(folder, name).relative_to(other)
            if name.endswith(".py") and place.exists():
                files[place] = Path(folder, name).read_bytes()
    place = home / rewritten.name
    files[place] = rewritten.read_bytes()
    return before, Script(place, tuple(args), files)
