"""What a run recorded: the events that the harness wrote, read back as columns.

The harness appends one JSON object a line to a file of its own for every rank:

    {"event": "start", "python": "3.11.7", "rank": 0, "size": 1, "time": 1712345678.9}
    {"event": "tensorflow", "tensorflow": "2.15.1", "keras": "2.15.0", "seconds": 3.1, "devices": ["CPU:0"]}
    {"event": "loop", "loop": 0, "kind": "fit", "losses": "mean", "time": 4.2, ...}         a training loop begins
    {"event": "steps", "loop": 0, "epoch": 0, "time": [...], "steps": [...], "samples": [...], "loss": [...]}
    {"event": "data", "loop": 0, "part": "train", "epoch": 0, "samples": 512, "sums": [...], "order": 0.3}
    {"event": "epoch", "loop": 0, "epoch": 0, "time": 9.9, "steps": 16, "samples": 512, "logs": {...}, "rates": [0.1]}
    {"event": "elsewhere"}                                      a process that the script has forked trains
    {"event": "stopped", "loop": 0}                             a callback ended training before its last epoch
    {"event": "weights", "sums": [8, 0.4, 3.1]}                 at the end, where several ranks train
    {"event": "updates", "count": 40, "every": 2, "rates": [[0.001, 10], [0.002, 30]]}    what an optimizer has done
    {"event": "end", "reason": "budget", "time": 12.0, "memory": 734003200, "wait": 1.3, "rates": [0.1],
     "overhead": 0.01, "replicas": 1}

Times are seconds since the harness started. A line that was cut off by a crash is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

#: How a run ended. "finished" and "budget" are the good ones: the script's end, or the asked number of samples.
Ending = Literal["finished", "budget", "exit", "crashed", "killed", "out-of-memory", "timeout", "interrupted"]


@dataclass(frozen=True)
class Step:
    """One entry of the step log: what one execution (of `steps` training steps) added."""

    loop: int
    epoch: int
    time: float  # seconds since the harness started, at the end of the execution
    steps: int
    samples: int  # 0 where it could not be seen
    loss: float | None  # of the last batch, or the running mean of the epoch: `Loop.loss` tells


@dataclass(frozen=True)
class Loop:
    """A training loop: one `fit`, or one training function, session or bare loop.

    kind: "fit", "fit_generator", "train_on_batch", "tape", "session" or "estimator".
    loss: "mean" where the losses are the running mean since the epoch began, as Keras reports them, else "batch".
    optimizer: its configuration, such as {"name": "Adam", "learning_rate": 0.001}.
    policy: the global policy's name; compute: dtypes that layers with weights compute in; floatx: Keras' default type.
    reacts: a callback moves the learning rate when the loss stops falling, which noise decides.
    """

    id: int
    kind: str
    loss: str
    time: float
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    policy: str = "float32"
    compute: tuple[str, ...] = ()
    jit_compile: bool = False
    steps_per_execution: int = 1
    floatx: str = ""
    reacts: bool = False


@dataclass(frozen=True)
class Epoch:
    """The end of an epoch of a Keras loop. `logs` are its metrics, the `val_` ones included.

    rates: the learning rates that hold then, of all optimizers in use so far, None where one cannot be read.
    """

    loop: int
    epoch: int
    time: float
    steps: int
    samples: int
    logs: Mapping[str, float]
    rates: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Data:
    """Sums over all samples that training ("train") or evaluation ("test") saw in an epoch (in parity runs only).

    sums: Σs(x), Σs(x)², Σs(y), Σs(y)², Σs(x)s(y), where s() folds a sample to one number; the same data in any order
    gives the same sums, and labels that moved against their inputs change the last one alone. The first two alone where
    the labels were not seen.
    zeros: share of the gradients' elements that are exactly zero, None where no gradient was seen.
    order: Σs(x) with each batch weighted by its place, which another order of the same samples changes.
    """

    loop: int
    part: str
    epoch: int
    samples: int
    sums: tuple[float, ...]
    zeros: float | None = None
    order: float | None = None


@dataclass(frozen=True)
class Updates:
    """How often an optimizer has updated its variables, and its learning rates then, None where one cannot be read.

    every: how many batches make an update.
    """

    count: int
    rates: tuple[float | None, ...]
    every: int = 1


@dataclass
class Record:
    """All that one rank of one run recorded."""

    rank: int = 0
    size: int = 1
    versions: dict[str, str] = field(default_factory=dict)  # python, tensorflow, keras, horovod
    devices: tuple[str, ...] = ()
    import_seconds: float = 0.0
    loops: list[Loop] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    data: list[Data] = field(default_factory=list)
    seeded: bool = False  # the script itself has set TensorFlow's seed
    troubles: list[str] = field(default_factory=list)  # what the harness could not do
    reason: str = ""  # of its end; empty when it was cut off
    seconds: float = 0.0
    memory: int = 0  # peak resident bytes
    wait: float = 0.0  # seconds spent waiting for input, where that can be seen
    overhead: float = 0.0  # seconds that recording has cost
    elsewhere: bool = False  # a forked process trains too, which is not recorded
    stopped: bool = False  # a callback has ended a loop before its last epoch
    rates: tuple[float | None, ...] = ()  # the learning rates at the end, as `Epoch.rates`
    weights: list[tuple[float, ...]] = field(
        default_factory=list
    )  # number and sums of the trained ones, as ranks share
    updates: list[Updates] = field(default_factory=list)  # of all optimizers, where that is recorded
    replicas: int = 1  # of a strategy, in all processes

    @property
    def samples(self) -> int:
        return sum(step.samples for step in self.steps)

    @property
    def policies(self) -> tuple[str, ...]:
        """The global policies that were in force when loops began."""
        return tuple(dict.fromkeys(loop.policy for loop in self.loops))

    @classmethod
    def read(cls, path: Path) -> Record:
        """Raises `OSError` where there is no such file."""
        lines = path.read_bytes().split(b"\n")
        events = []
        for line in lines[:-1]:  # what follows the last newline was cut off
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return cls.of(events)

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Record:
        record = cls()
        for event in events:
            kind = event["event"]
            if kind == "start":
                record.rank, record.size = event["rank"], event["size"]
                record.versions["python"] = event["python"]
            elif kind == "tensorflow":
                record.versions.update({k: event[k] for k in ("tensorflow", "keras", "horovod") if event.get(k)})
                record.import_seconds = event["seconds"]
                record.devices = tuple(event["devices"])
            elif kind == "seeded":
                record.seeded = True
            elif kind == "trouble":
                record.troubles.append(f"{event['where']}: {event['error']}")
            elif kind == "loop":
                fields = {k: v for k, v in event.items() if k not in ("event", "loop")}
                compute = tuple(fields.pop("compute", ()))
                record.loops.append(Loop(event["loop"], compute=compute, loss=fields.pop("losses", "batch"), **fields))
            elif kind == "steps":
                columns = zip(event["time"], event["steps"], event["samples"], event["loss"], strict=True)
                record.steps += [Step(event["loop"], event["epoch"], *row) for row in columns]
            elif kind == "epoch":
                fields = {k: v for k, v in event.items() if k not in ("event", "rates")}
                record.epochs.append(Epoch(rates=tuple(event["rates"]), **fields))
            elif kind == "data":
                fields = {k: v for k, v in event.items() if k not in ("event", "sums")}
                record.data.append(Data(sums=tuple(event["sums"]), **fields))
            elif kind == "elsewhere":
                record.elsewhere = True
            elif kind == "stopped":
                record.stopped = True
            elif kind == "weights":
                record.weights.append(tuple(event["sums"]))
            elif kind == "updates":
                rates = tuple(rate for rate, often in event["rates"] for _ in range(often))
                record.updates.append(Updates(event["count"], rates, event["every"]))
            elif kind == "end":
                record.reason, record.seconds = event["reason"], event["time"]
                record.memory, record.wait = event["memory"], event["wait"]
                record.rates, record.overhead = tuple(event["rates"]), event["overhead"]
                record.replicas = event.get("replicas", 1)
        record.steps = _whole(record.steps, stopped=record.reason == "budget")
        return record


def _whole(steps: list[Step], stopped: bool) -> list[Step]:
    """An optimizer that is applied without new data belongs to the step before it: the second one of a GAN.

    stopped: the run was ended at a number of samples, maybe before such a second application.
    """
    visible = {step.loop for step in steps if step.samples}
    found: list[Step] = []
    last: dict[int, int] = {}  # loop → where its last step stands
    joined: dict[int, int] = {}  # loop → where the last step stands that others were added to
    for step in steps:
        place = last.get(step.loop)
        if step.loop in visible and not step.samples and place is not None and found[place].epoch == step.epoch:
            before = found[place]
            found[place] = replace(step, steps=before.steps + step.steps, samples=before.samples)
            joined[step.loop] = place
        else:
            last[step.loop] = len(found)
            found.append(step)
    if stopped and len(found) > 1 and joined.get(found[-1].loop) == len(found) - 2:
        found.pop()
    return found


@dataclass
class Run:
    """One run of a script: how it ended, and what every rank recorded."""

    ending: Ending
    exit_code: int
    seconds: float
    records: list[Record] = field(default_factory=list)
    stderr: str = ""  # its tail
    isolation: str = ""
    seed: int = 0
    gpu: list[tuple[float, float, float, float]] = field(default_factory=list)  # seconds, %, bytes, W: see `gpu.py`

    def stored(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Run:
        """What `stored` gave, after JSON, which knows lists but no tuples."""
        kinds = {"loops": Loop, "steps": Step, "epochs": Epoch, "data": Data, "updates": Updates}

        def fixed(row: Mapping[str, Any]) -> dict[str, Any]:
            return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}

        records = []
        for entry in values["records"]:
            rows = {name: [kind(**fixed(row)) for row in entry.get(name, ())] for name, kind in kinds.items()}
            fields = {name: tuple(entry[name]) for name in ("devices", "rates")}
            weights = [tuple(sums) for sums in entry["weights"]]
            records.append(Record(**{**entry, **rows, **fields, "weights": weights}))
        gpu = [tuple(sample) for sample in values["gpu"]]
        return cls(**{**values, "records": records, "gpu": gpu})
