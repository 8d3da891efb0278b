"""Runs somebody's training script and records every training step: `python harness.py CONFIG.json`.

This one file runs in the user's interpreter (Python 3.7 and later, TensorFlow 1.15 and later) and imports nothing but
the standard library. Once the script has imported TensorFlow or Keras it puts itself around `fit`, `train_on_batch`,
`GradientTape.gradient`, `tf.function` and `Session.run`; see `record.py` for what it writes.

The configuration:

    script, args    what to run, as `__main__`; relative paths stand for themselves in the working folder
    path            further folders to import from
    records         folder of the event files, one a rank
    mode            "speed": the least that is needed to know samples and time; "parity": every step's loss and data too
    seed            0: Python, NumPy and TensorFlow are seeded the same in every run; n > 0: differently, and the seeds
                    that the script sets are moved too. What no script seeds differs from rank to rank, as it would
    unseeded        true: TensorFlow gets no seed but the script's own
    samples         stop when training has seen so many (on all ranks together); 0: no limit
    steps           stop after so many training steps; 0: no limit
    seconds         stop so many seconds after the first training step, in speed runs with the epoch if one has ended
                    before, and at most twice as late: what epochs begin with counts as often as it happens; 0: no limit
    longest         stop so many seconds after the first training step in any case; 0: no limit
    updates         in parity runs, {"every": N, "rates": [[...], ...]}: N batches make one update, as those of N ranks
                    do, at these learning rates (for each optimizer; none: its own). What was done is recorded
    replicas        so many logical CPUs for a `MirroredStrategy` where there is no GPU
    synthetic       a Python file with `install(name, module)`, called for imported modules whose data sets it replaces
"""

import atexit
import builtins
import functools
import importlib.abc
import importlib.machinery
import inspect
import json
import math
import os
import random
import sys
import threading
import time
import traceback
import types

BEGIN = time.perf_counter()
#: Seconds between two looks at the samples counter, which is a read from the device, when speed is measured.
INTERVAL = 0.02
#: Seconds between two writes to the event file.
FLUSH = 1.0
#: How far apart the seeds of two runs are, and those of two ranks where the script sets none.
SEED_STRIDE = 7919
RANK_STRIDE = 104729


def now():
    return time.perf_counter() - BEGIN


class Recorder:
    """The event file of this rank, and whether the asked amount of training is done."""

    def __init__(self, config):
        self.parity = config["mode"] == "parity"
        self.seed = config.get("seed", 0)
        self.rank, self.size = rank_and_size()
        self.limit = -(-config.get("samples", 0) // self.size)
        self.max_steps = config.get("steps", 0)
        self.seconds = config.get("seconds", 0)
        self.longest = config.get("longest", 0)
        self.steps = 0
        self.loops = 0
        self.samples = 0
        self.first_step = None
        self.epochs = 0  # that have come to their end
        self.late = False  # the seconds are over, and the run ends with its epoch
        self.wait = 0.0
        self.overhead = 0.0
        self.rows = []
        self.flushed = now()
        self.closing = self.done = False
        self.ending = "finished"  # what the end of the process means
        self.forks = 0
        self.replicas = 1  # of a strategy, in all processes
        self.child = self.told = False  # a fork of the process that is recorded; and that it trains was told
        self.lock = threading.RLock()
        path = os.path.join(config["records"], "rank-%d.jsonl" % self.rank)
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self.emit("start", python="%d.%d.%d" % sys.version_info[:3], rank=self.rank, size=self.size)

    def emit(self, event, **fields):
        with self.lock:
            self.write_rows()
            self.write(dict(fields, event=event))

    def write(self, event):
        if not self.child:
            self.file.write(json.dumps(event, default=number) + "\n")
            self.file.flush()

    def trouble(self, where):
        """Something that the harness could not do: told in the report, never in the script's way."""
        self.emit("trouble", where=where, error=traceback.format_exc().strip().split("\n")[-1])

    def step(self, loop, epoch, steps, samples, loss, moment):
        """Steps have ended, the last at `moment`. `loss` may be a tensor: it is read when the row is written."""
        if self.child:
            if not self.told:
                self.told = True
                self.file.write('{"event": "elsewhere"}\n')
                self.file.flush()
            return
        with self.lock:
            if self.first_step is None:
                self.first_step = moment
            self.samples += samples
            self.steps += steps
            self.rows.append((loop, epoch, moment, steps, samples, loss))
            spent = moment - self.first_step
            self.late = bool(self.seconds) and spent >= self.seconds
            full = (
                (self.limit and self.samples >= self.limit)
                or (self.max_steps and self.steps >= self.max_steps)
                or (self.late and (self.parity or not self.epochs or spent >= 2 * self.seconds))
                or (self.longest and spent >= self.longest)
            )
            if full and not self.closing:
                self.finish("budget")
            if moment - self.flushed > FLUSH:
                self.write_rows()

    def write_rows(self):
        rows, self.rows, self.flushed = self.rows, [], now()
        while rows:
            loop, epoch = rows[0][:2]
            count = next((i for i, row in enumerate(rows) if row[:2] != (loop, epoch)), len(rows))
            chunk, rows = rows[:count], rows[count:]
            event = {
                "event": "steps",
                "loop": loop,
                "epoch": epoch,
                "time": [round(row[2], 6) for row in chunk],
                "steps": [row[3] for row in chunk],
                "samples": [row[4] for row in chunk],
                "loss": [number(row[5]) for row in chunk],
            }
            self.write(event)

    def epoch_ended(self):
        with self.lock:
            self.epochs += 1
            if self.late and not self.parity and not self.closing:
                self.finish("budget")

    def forked(self):
        """In a new child process: several could train at a time, each with its own budget, so none is recorded."""
        self.child, self.rows, self.lock = True, [], threading.RLock()

    def finish(self, reason, code=0):
        """Write the end; on "budget" the process ends here, before the script saves or shows anything."""
        with self.lock:
            if not self.done and not self.closing and not self.child:
                self.closing = True
                close_loops()
                for hooks in HOOKS if self.parity and reason in ("finished", "budget") else ():
                    hooks.updates.tell()
                    if self.size > 1:
                        hooks.tell_weights()
                self.done = True
                self.emit(
                    "end",
                    reason=reason,
                    time=now(),
                    memory=peak_memory(),
                    wait=round(self.wait, 6),
                    overhead=round(self.overhead, 6),
                    rates=rates(self),
                    replicas=self.replicas,
                )
            if reason == "budget":
                sys.stdout.flush()
                sys.stderr.flush()
                EXIT(code)


#: Scripts may end by `os._exit` too: there the recorder comes between.
EXIT = os._exit


def rank_and_size():
    for rank, size in (("HOROVOD_RANK", "HOROVOD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ.get(size, 1))
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}")
    workers = cluster.get("cluster", {}).get("worker", [])
    return (int(cluster.get("task", {}).get("index", 0)), len(workers)) if workers else (0, 1)


def peak_memory():
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def number(value):
    """A number of NumPy or TensorFlow (the mean of several) as a float; None for anything else."""
    if value is None:
        return None
    try:
        if hasattr(value, "numpy"):
            value = value.numpy()
        if hasattr(value, "mean") and getattr(value, "size", 1) != 1:
            value = value.mean()
        return float(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None


def timed(method):
    """Counts what a hook costs itself; no timed method calls another."""

    @functools.wraps(method)
    def measured(self, *args, **kwargs):
        begin = time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.recorder.overhead += time.perf_counter() - begin

    return measured


# -- what a batch holds ----------------------------------------------------------------------------------------


def leaves(value):
    """The arrays and tensors in nested tuples, lists and dicts, in a fixed order."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value, key=str) for leaf in leaves(value[key])]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None else [value]


def rows_of(value):
    """The length of the first axis of the first array in `value`, or 0."""
    for leaf in leaves(value):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape or ()):
            first = shape[0]
            first = getattr(first, "value", first)  # TensorFlow 1: a Dimension
            return int(first) if isinstance(first, int) or (first is not None and str(first).isdigit()) else 0
    return 0


def halves(data):
    """Inputs of a batch, and labels with their weights, as Keras takes them apart."""
    if isinstance(data, (tuple, list)) and data:
        return data[0], data[1:3]
    return data, None


def sums_of_arrays(data):
    """[samples, Σs(x), Σs(x)², Σs(y), Σs(y)², Σs(x)s(y)] of a batch of NumPy arrays or eager tensors."""
    import numpy as np

    def fold(part, count, phase):
        total = np.zeros(count)
        for leaf in leaves(part):
            array = leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)
            if array.shape[:1] != (count,):
                continue
            if array.dtype.kind not in "biuf":
                array = np.array([hash_of(item) for item in array.reshape(-1)]).reshape(array.shape)
            flat = array.reshape(count, -1).astype(np.float64)
            total += flat @ np.cos(phase * np.arange(1, flat.shape[1] + 1))
        return total

    x, y = halves(data)
    count = rows_of(x)
    if not count:
        return None
    sx, sy = fold(x, count, 0.7), fold(y, count, 1.3)
    return [float(v) for v in (count, sx.sum(), (sx * sx).sum(), sy.sum(), (sy * sy).sum(), (sx * sy).sum())]


#: A batch counts in the sum that tells their order by the cosine of its number, times this.
ORDER_PHASE = 0.9


def hash_of(item):
    import zlib

    return zlib.crc32(item if isinstance(item, bytes) else str(item).encode()) % 1048576 / 1048576.0


class Tap:
    """Counters that live on the device and are added to from inside a traced step, which Python cannot watch.

    One vector: steps, samples, then in parity runs the sums of the data and the one that tells their order, the
    gradients' zeros and elements, and the loss of the last step, of every replica here: what they apply is the sum.
    """

    STEPS, SAMPLES, SUMS, ORDER, ZEROS, ELEMENTS, LOSS = 0, 1, slice(2, 7), 7, 8, 9, 10
    REPLICAS = 16
    LENGTH = 10 + REPLICAS

    def __init__(self, tf, parity):
        self.tf, self.parity = tf, parity
        self.labels = True  # whether the batches that are counted have them
        # A thread of its own is in no function and in no strategy's scope, which would make a variable a replica.
        thread = threading.Thread(target=self.make)
        thread.start()
        thread.join()

    def make(self):
        self.variable = self.tf.Variable([0.0] * self.LENGTH, trainable=False, dtype=self.tf.float64, name="measured")

    def read(self):
        return [float(v) for v in self.variable.numpy()]

    def reset(self):
        self.variable.assign([0.0] * self.LENGTH)

    def batch(self, data):
        """Count a batch, in graph code."""
        tf = self.tf
        x, y = halves(data)
        first = next((leaf for leaf in leaves(x) if getattr(leaf, "shape", None) is not None), None)
        count = tf.cast(rows(tf, first), tf.float64) if first is not None else tf.constant(0.0, tf.float64)
        steps = first_replica(tf)
        added = [tf.constant(steps, tf.float64), count]
        if self.parity and first is not None:
            sx, sy = self.fold(x, first, 0.7), self.fold(y, first, 1.3)
            added += [tf.reduce_sum(v) for v in (sx, sx * sx, sy, sy * sy, sx * sy)]
            added.append(steps * added[2] * tf.cos(ORDER_PHASE * self.variable[self.STEPS]))
        self.add(added)

    def fold(self, part, first, phase):
        tf = self.tf
        total = tf.zeros([rows(tf, first)], tf.float64)
        for leaf in leaves(part):
            if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (None, 0):
                continue  # ragged and sparse tensors are not looked into
            if not leaf.shape[:1].is_compatible_with(first.shape[:1]):
                continue
            if leaf.dtype == tf.string:
                leaf = tf.strings.to_hash_bucket_fast(leaf, 1048576) / 1048576
            if leaf.dtype.is_complex:
                leaf = tf.math.real(leaf)
            flat = tf.cast(tf.reshape(leaf, [rows(tf, leaf), -1]), tf.float64)
            weights = tf.cos(tf.constant(phase, tf.float64) * tf.cast(tf.range(1, tf.shape(flat)[1] + 1), tf.float64))
            total += tf.linalg.matvec(flat, weights)
        return total

    def gradients(self, gradients):
        self.add([0.0] * self.ZEROS + zeros_of(self.tf, gradients))

    def loss(self, target):
        tf = self.tf
        replica, local, workers = replicas(tf)
        value = workers * tf.reduce_mean(tf.cast(target, tf.float64))
        place = self.LOSS + replica % local % self.REPLICAS
        self.add([tf.constant(0.0, tf.float64)] * place + [value - self.variable[place]])

    def add(self, values):
        tf = self.tf
        values = [tf.cast(v, tf.float64) for v in values]
        values += [tf.constant(0.0, tf.float64)] * (self.LENGTH - len(values))
        self.variable.assign_add(tf.stack(values))


def zeros_of(tf, gradients):
    """How many elements of the gradients are zero, and how many there are."""
    zeros = elements = tf.constant(0.0, tf.float64)
    for gradient in leaves(gradients):
        if isinstance(gradient, tf.Tensor):
            zeros += tf.cast(tf.math.count_nonzero(tf.equal(gradient, 0)), tf.float64)
            elements += tf.cast(tf.size(gradient), tf.float64)
    return [zeros, elements]


def first_replica(tf):
    """1.0 where a step is traced for the first replica here, which alone counts it and tells its loss, else 0.0."""
    replica, local, _ = replicas(tf)
    return 0.0 if replica % local else 1.0


def replicas(tf):
    """The number of the replica that is traced, how many there are in this process, and how many such processes."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync < 2:
        return 0, 1, 1
    for hooks in HOOKS:
        hooks.recorder.replicas = max(hooks.recorder.replicas, context.num_replicas_in_sync)
    local = len(context.strategy.extended.worker_devices)
    replica = tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group))
    return int(replica or 0), local, max(context.num_replicas_in_sync // local, 1)


def rows(tf, tensor):
    static = tensor.shape[0] if tensor.shape.rank else 1
    return tf.shape(tensor)[0] if static is None else static


# -- loops -----------------------------------------------------------------------------------------------------


class Loop:
    """A training loop as the record knows it; its first step announces it."""

    def __init__(self, recorder, kind, losses="batch"):
        self.recorder, self.kind, self.losses = recorder, kind, losses
        self.id = recorder.loops
        recorder.loops += 1
        self.begin = now()
        self.epoch = 0
        self.steps = self.samples = 0  # of this epoch
        self.sums = self.zeros = None
        self.tested = None  # tells the sums over what sessions evaluate on
        self.order, self.batches = 0.0, 0
        self.announced = False
        self.tap = None
        self.seen = [0.0] * Tap.LENGTH
        self.looked = 0.0  # when the tap was last read
        self.moment = 0.0  # when the last step ended
        OPEN.append(self)

    def announce(self, **facts):
        if not self.announced:
            self.announced = True
            self.recorder.emit("loop", loop=self.id, kind=self.kind, losses=self.losses, time=self.begin, **facts)

    def step(self, steps, samples, loss, moment=None):
        self.announce()
        self.steps += steps
        self.samples += samples
        self.recorder.step(self.id, self.epoch, steps, samples, loss, moment or now())

    def stepped(self, loss=None):
        """A step has ended that the tap counts. In speed runs the tap is not read at every step."""
        self.moment = now()
        if self.recorder.parity or not self.looked or self.moment - self.looked >= INTERVAL:
            self.look(loss)

    def look(self, loss=None):
        """One row for the steps that the tap has counted since the last look."""
        self.looked = self.moment
        values = self.tap.read()
        steps, samples = (int(values[i] - self.seen[i]) for i in (Tap.STEPS, Tap.SAMPLES))
        if steps:
            self.seen = values
            if self.kind == "tape" and self.recorder.parity:
                loss = sum(values[Tap.LOSS :])
            self.step(steps, samples, loss, self.moment)

    def add(self, sums):
        if sums:
            self.sums = added(self.sums, sums)
            self.order += sums[1] * math.cos(ORDER_PHASE * self.batches)
            self.batches += 1

    def end_epoch(self, logs=None, complete=True):
        if self.tap and self.announced and not self.recorder.done:
            self.look()
            self.looked = 0.0
        if self.recorder.parity:
            self.tell_data("train", self.tap, self.sums)
            self.tell_data("test", sums=self.tested and self.tested())
        if self.tap:
            self.tap.reset()
            self.seen = [0.0] * Tap.LENGTH
        if complete and self.announced:
            numbers = {k: number(v) for k, v in (logs or {}).items()}
            self.recorder.emit(
                "epoch",
                loop=self.id,
                epoch=self.epoch,
                time=now(),
                steps=self.steps,
                samples=self.samples,
                logs={str(k): v for k, v in numbers.items() if v is not None},
                rates=rates(self.recorder),
            )
        self.epoch += 1
        self.steps = self.samples = 0
        self.sums = self.zeros = None
        self.order, self.batches = 0.0, 0
        if complete and self.announced:
            self.recorder.epoch_ended()

    def tell_data(self, part, tap=None, sums=None):
        """What an epoch has seen: `sums` where Python saw the batches, else what the tap has counted."""
        values = tap.read() if tap else [0.0] * Tap.LENGTH
        order = self.order if sums else values[Tap.ORDER]
        if not sums:
            sums = [values[Tap.SAMPLES]] + values[Tap.SUMS][: 5 if tap is None or tap.labels else 2]
        count, *sums = sums
        zeros, elements = values[Tap.ZEROS], values[Tap.ELEMENTS]
        if self.zeros and part == "train":
            zeros, elements = (number(value) for value in self.zeros)
        if count:
            self.recorder.emit(
                "data",
                loop=self.id,
                part=part,
                epoch=self.epoch,
                samples=int(count),
                sums=sums,
                zeros=zeros / elements if elements else None,
                order=order if part == "train" else None,
            )


def added(sums, more):
    return [a + b for a, b in zip(sums or [0.0] * len(more), more)]


#: Loops that have not ended their last epoch.
OPEN = []


def close_loops():
    for loop in OPEN:
        if loop.announced and (loop.steps or loop.tap):
            loop.end_epoch(complete=False)
    del OPEN[:]


# -- updates ---------------------------------------------------------------------------------------------------


class Applied:
    """What one optimizer was given for the same variables, and how often it has updated them."""

    LENGTH = 1 << 16  # of the updates whose learning rates are kept

    def __init__(self, updates, variables):
        self.tf, self.every, self.place = updates.tf, updates.every, len(updates.applied)
        self.variables = variables  # keeps their ids
        self.replayed = updates.rates[self.place] if self.place < len(updates.rates) else []
        self.schedule = None
        thread = threading.Thread(target=self.make)  # see `Tap`
        thread.start()
        thread.join()

    def make(self):
        tf = self.tf

        def variable(value, kind):
            return tf.Variable(value, trainable=False, dtype=kind, name="measured")

        self.batches, self.updates = variable(0, tf.int64), variable(0, tf.int64)
        self.log = variable(tf.zeros([self.LENGTH]), tf.float32)
        self.rate = variable(0.0, tf.float32)
        self.table = variable(self.replayed, tf.float32) if self.replayed else None
        self.sums = []
        for one in self.variables if self.every > 1 else ():
            self.sums.append(variable(tf.zeros([int(n) for n in one.shape], one.dtype), one.dtype))

    def step(self, optimizer, gradients, proceed):
        """A batch's gradients: `proceed(gradients)` updates, with their mean where several batches make an update."""
        tf = self.tf
        if self.every < 2:
            self.before(optimizer)
            return proceed(gradients)
        for total, gradient in zip(self.sums, gradients):
            if gradient is not None:
                total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype) / self.every)
        batches = self.batches.assign_add(1)

        def update():
            self.before(optimizer)
            means = [None if g is None else tf.convert_to_tensor(s) for s, g in zip(self.sums, gradients)]
            proceed(means)
            for total in self.sums:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        if not tf.executing_eagerly():
            tf.cond(tf.equal(tf.convert_to_tensor(batches) % self.every, 0), update, lambda: tf.constant(False))
        elif int(batches) % self.every == 0:
            update()
        return optimizer.iterations

    def before(self, optimizer):
        """Sets the learning rate of the update that comes, and keeps it."""
        tf = self.tf
        optimizer = unwrapped(optimizer)
        if self.table is not None:
            self.rate.assign(tf.gather(self.table, tf.minimum(self.updates, len(self.replayed) - 1)))
            self.replay(optimizer)
        place = tf.minimum(self.updates, self.LENGTH - 1)
        rate = tf.cast(tf.convert_to_tensor(rate_of(optimizer)), tf.float32)
        self.log.scatter_nd_update([[place]], [tf.reshape(rate, [])])
        self.updates.assign_add(1)

    def replay(self, optimizer):
        """The optimizer takes `rate`: a schedule is replaced, a variable set."""
        hyper = optimizer.__dict__.get("_hyper")
        source = hyper.get("learning_rate") if hyper else getattr(optimizer, "_learning_rate", None)
        if hasattr(source, "assign"):
            source.assign(self.tf.cast(self.rate, source.dtype))
            if hyper:
                optimizer._initial_decay = 0.0
        elif source is not self.schedule or source is None:
            bases = [cls for cls in type(source).__mro__ if cls.__name__ == "LearningRateSchedule"]
            rate = self.rate
            body = {
                "__init__": lambda self: None,
                "__call__": lambda self, step=None: rate.read_value(),
                "get_config": getattr(source, "get_config", lambda self: {}),
            }
            self.schedule = type("Replayed", tuple(bases[:1]), body)()
            if hyper:
                hyper["learning_rate"] = self.schedule
            else:
                optimizer._learning_rate = self.schedule

    def told(self):
        count = int(self.updates.numpy())
        return count, [float(rate) for rate in self.log.numpy()[: min(count, self.LENGTH)]]


class AppliedInGraph:
    """The same for an optimizer of TensorFlow 1: what earlier batches gave is fed, as `Session.run` is hooked."""

    def __init__(self, updates, optimizer, pairs, proceed):
        self.tf, self.every = updates.tf, updates.every
        place = len(updates.applied)
        self.replayed = updates.rates[place] if place < len(updates.rates) else []
        self.batches, self.sums, self.rates = 0, None, []
        self.gradients, self.kept, self.go = [], [], None
        name = next((n for n in ("_lr", "_learning_rate") if getattr(optimizer, n, None) is not None), None)
        self.rate = getattr(optimizer, name) if name else None
        v1 = self.tf.compat.v1
        with v1.name_scope("measured"):
            if self.rate is not None:
                self.rate = self.rate() if callable(self.rate) else self.rate
                self.rate = self.tf.cast(self.tf.convert_to_tensor(self.rate), self.tf.float32)
            if self.replayed and name:
                self.rate = v1.placeholder_with_default(self.rate, [])
                setattr(optimizer, name, self.rate)
            if self.every > 1:
                pairs = self.put_together(v1, pairs)
        self.operation = self.conditional(v1, lambda: proceed(pairs)) if self.every > 1 else proceed(pairs)

    def put_together(self, v1, pairs):
        self.go = v1.placeholder_with_default(self.tf.constant(True), [])
        means = []
        for gradient, variable in pairs:
            if gradient is not None:
                gradient = self.tf.convert_to_tensor(gradient)
                self.gradients.append(gradient)
                self.kept.append(v1.placeholder_with_default(self.tf.zeros_like(gradient), gradient.shape))
                gradient = (gradient + self.kept[-1]) / self.every
            means.append((gradient, variable))
        return means

    def conditional(self, v1, proceed):
        def update():
            with v1.control_dependencies([proceed()]):
                return self.tf.constant(True)

        return self.tf.group(v1.cond(self.go, update, lambda: self.tf.constant(False)))

    def asked(self):
        """What a training step fetches besides what it is asked for, and what it is fed."""
        fetches, feeds = {}, {}
        if self.rate is not None:
            fetches["rate"] = self.rate
        if self.every > 1:
            fetches["gradients"] = self.gradients
            feeds[self.go] = self.goes()
            feeds.update(zip(self.kept, self.sums or ()))
        if self.replayed:
            feeds[self.rate] = self.replayed[min(len(self.rates), len(self.replayed) - 1)]
        return fetches, feeds

    def goes(self):
        return (self.batches + 1) % self.every == 0

    def done(self, fetched):
        if self.every < 2 or self.goes():
            self.rates.append(float(fetched.get("rate", math.nan)))
            self.sums = None
        else:
            given = fetched["gradients"]
            self.sums = [a + b for a, b in zip(self.sums, given)] if self.sums else list(given)
        self.batches += 1

    def told(self):
        return len(self.rates), self.rates


class Updates:
    """Stands where optimizers apply gradients."""

    def __init__(self, recorder, asked):
        self.recorder, self.every, self.rates = recorder, asked.get("every", 1), asked.get("rates", [])
        self.active = bool(asked) and recorder.parity
        self.tf = None
        self.applied = []  # in the order of their first use
        self.known = {}
        self.local = threading.local()

    def apply(self, optimizer, name, original, args, kwargs):
        """In place of `apply_gradients` or `apply` of a Keras optimizer."""
        tf = self.tf
        if not self.active or getattr(self.local, "inside", False) or not outside_of_graphs(tf):
            return original(optimizer, *args, **kwargs)
        if self.every > 1 and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return original(optimizer, *args, **kwargs)
        args = [list(args[0]), *args[1:]] if args and name == "apply_gradients" else args  # it may be an iterator
        self.local.inside = True
        try:
            try:
                gradients, variables, proceed = taken_apart(optimizer, name, original, args, kwargs)
                if first_replica(tf) != 1.0:
                    return proceed(gradients)
                one = self.of(optimizer, variables)
            except Exception:
                self.recorder.trouble("joining an optimizer")
                return original(optimizer, *args, **kwargs)
            return one.step(optimizer, gradients, proceed)
        finally:
            self.local.inside = False

    def of(self, optimizer, variables):
        key = (id(optimizer), tuple(map(id, variables)))
        if key not in self.known:
            with self.tf.init_scope():
                if hasattr(optimizer, "_create_all_weights"):
                    optimizer._create_all_weights(variables)
                elif not getattr(optimizer, "built", False):
                    optimizer.build(variables)
            self.known[key] = Applied(self, variables), optimizer
            self.applied.append(self.known[key][0])
        return self.known[key][0]

    def apply_in_graph(self, optimizer, original, args, kwargs):
        """In place of `apply_gradients` of an optimizer of TensorFlow 1."""
        graph = self.tf.compat.v1.get_default_graph()
        if not self.active or getattr(self.local, "inside", False) or type(graph) is not self.tf.Graph:
            return original(optimizer, *args, **kwargs)
        if self.tf.executing_eagerly():
            return original(optimizer, *args, **kwargs)
        if graph._get_control_flow_context() is not None:  # nothing in a loop or a conditional can be fetched
            return original(optimizer, *args, **kwargs)
        self.local.inside = True
        try:
            args = list(args)
            pairs = list(args.pop(0) if args else kwargs.pop("grads_and_vars"))
            one = AppliedInGraph(self, optimizer, pairs, lambda some: original(optimizer, some, *args, **kwargs))
            self.applied.append(one)
            return one.operation
        finally:
            self.local.inside = False

    def tell(self):
        for one in self.applied:
            try:
                count, rates = one.told()
            except Exception:
                self.recorder.trouble("reading the learning rates")
                continue
            runs = []  # [rate, how often]
            for rate in rates:
                rate = None if math.isnan(rate) else rate
                if runs and runs[-1][0] == rate:
                    runs[-1][1] += 1
                else:
                    runs.append([rate, 1])
            self.recorder.emit("updates", count=count, rates=runs, every=self.every)


def outside_of_graphs(tf):
    return tf.executing_eagerly() or tf.compat.v1.executing_eagerly_outside_functions()


def taken_apart(optimizer, name, original, args, kwargs):
    """The gradients and variables that an optimizer is called with, and the call with other gradients."""
    args, kwargs = list(args), dict(kwargs)
    if name == "apply":
        gradients = list(args.pop(0) if args else kwargs.pop("grads"))
        variables = args.pop(0) if args else kwargs.pop("trainable_variables", None)
        variables = list(optimizer._trainable_variables if variables is None else variables)
        return gradients, variables, lambda some: original(optimizer, list(some), variables, *args, **kwargs)
    pairs = list(args.pop(0) if args else kwargs.pop("grads_and_vars"))
    gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
    return gradients, variables, lambda some: original(optimizer, list(zip(some, variables)), *args, **kwargs)


def rate_of(optimizer):
    """The learning rate of the update that comes."""
    if hasattr(optimizer, "_decayed_lr"):
        return optimizer._decayed_lr("float32")
    rate = getattr(optimizer, "_learning_rate", math.nan)
    return rate(optimizer.iterations) if callable(rate) and not hasattr(rate, "assign") else rate


# -- hooks -----------------------------------------------------------------------------------------------------


class Hooks:
    """Puts the recorder around what trains. One instance; every method stands for one module that was imported."""

    def __init__(self, recorder, config):
        self.recorder, self.config = recorder, config
        self.local = threading.local()
        self.hooked = set()
        self.tf = None
        self.waiting = []
        self.calls = []  # of functions that are under way in the thread that has called one last
        self.spare = None  # a tap that is there before a function is traced, where variables cannot be made
        self.tensorflow_seconds = 0.0
        self.told = False
        self.element = None  # what the last dataset iterator has handed out
        self.fresh = False  # a new iterator was made since the last training step
        self.bare = None  # the loop of steps that no function surrounds
        self.optimizers = []  # in the order in which they were first used
        self.trained = []  # models and variables
        self.sessions_open = {}  # those that have trained: how to read their weights
        self.evaluated = {}  # by graph: sums over what its session runs read without training
        self.updates = Updates(recorder, config.get("updates") or {})

    # Hooks are quiet inside what is already measured from outside.
    @property
    def muted(self):
        return getattr(self.local, "muted", 0)

    def quiet(self):
        hooks = self

        class Quiet:
            def __enter__(self):
                hooks.local.muted = hooks.muted + 1

            def __exit__(self, *_):
                hooks.local.muted -= 1

        return Quiet()

    def imported(self, name, module, seconds):
        """Called once for each module of interest, right after it was executed."""
        try:
            if name == "tensorflow":
                self.tensorflow_seconds += seconds
                self.tensorflow(module)
                for keras in self.waiting:
                    self.keras(keras)
            elif name in ("keras", "tf_keras"):
                backend = getattr(getattr(module, "backend", None), "backend", lambda: "tensorflow")()
                if backend != "tensorflow":
                    self.recorder.emit("trouble", where="Keras on " + backend, error="only TensorFlow is watched")
                elif self.tf is None:  # while TensorFlow is being imported
                    self.waiting.append(module)
                else:
                    self.keras(module)
            elif name == "numpy":
                seed_numpy(module, self.recorder)
            if self.config.get("synthetic"):
                synthetic(self.config["synthetic"]).install(name, module)
        except Exception:
            self.recorder.trouble("hooking " + name)

    # -- TensorFlow ----------------------------------------------------------------------------------------------

    def tensorflow(self, tf):
        self.tf = self.updates.tf = tf
        self.version = tuple(int(part) for part in tf.__version__.split(".")[:2])
        self.v1 = tf.compat.v1
        seed_tensorflow(tf, self.version, self.recorder, not self.config.get("unseeded"))
        if self.config.get("replicas", 1) > 1:
            divide_cpu(tf, self.config["replicas"])
        self.sessions()
        if self.version >= (2, 0):
            self.tapes()
            self.functions()
            self.iterators()
        if self.version < (2, 6):
            self.keras(tf.keras)

    def use(self, optimizer, *trained):
        """Remember what is trained, to tell its learning rate and weights later."""
        for thing, known in [(optimizer, self.optimizers)] + [(t, self.trained) for t in trained]:
            if thing is not None and not any(thing is other for other in known):
                known.append(thing)

    def tell_weights(self):
        """A checksum of what was trained: ranks that train together have the same."""
        try:
            with self.quiet():
                for read in list(self.sessions_open.values()):
                    self.weights(read())
                values = []
                for thing in self.trained:
                    values += leaves(getattr(thing, "trainable_variables", thing))
                self.weights([value.numpy() for value in values])
        except Exception:
            self.recorder.trouble("reading the weights")

    def weights(self, arrays):
        import numpy as np

        if arrays:
            flat = np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays])
            turned = flat @ np.cos(0.7 * np.arange(1, len(flat) + 1))
            self.recorder.emit("weights", sums=[len(flat), float(turned), float(flat @ flat)])

    def tell(self):
        """Versions and devices, when training begins: asking for devices earlier would initialise them too early."""
        if self.told:
            return
        self.told = True
        names = ("tensorflow", "keras", "tf_keras", "horovod")
        versions = {n: getattr(sys.modules[n], "__version__", "") for n in names if n in sys.modules}
        versions["keras"] = (
            versions.get("keras")
            or versions.get("tf_keras")
            or getattr(getattr(self.tf, "keras", None), "__version__", "")
        )
        try:
            devices = [d.name for d in self.tf.config.list_logical_devices()] if self.version >= (2, 1) else []
        except (AttributeError, RuntimeError):
            devices = []
        self.recorder.emit("tensorflow", seconds=round(self.tensorflow_seconds, 4), devices=devices, **versions)

    def sessions(self):
        """TensorFlow 1: `Session.run`, which monitored sessions and estimators end in as well."""
        tf, v1, recorder, hooks = self.tf, self.v1, self.recorder, self
        session_class = v1.Session.__mro__[1]  # BaseSession, which InteractiveSession shares
        run = session_class.run
        losses = {}  # by graph: operations that give gradients, the loss they are of, the optimizer's facts
        sizes = {}  # by graph: of every get_next, its operation, its leading dimension, its components
        last = {}  # by graph: sums over the batch that it was trained on last
        plans = {}

        optimizer_class = v1.train.Optimizer
        compute_gradients = optimizer_class.compute_gradients

        @functools.wraps(compute_gradients)
        def compute(self, loss, *args, **kwargs):
            pairs = compute_gradients(self, loss, *args, **kwargs)
            if isinstance(loss, tf.Tensor) and not hooks.eager():
                derived(loss, [gradient for gradient, _ in pairs], optimizer_v1(self))
            return pairs

        optimizer_class.compute_gradients = compute
        apply_gradients = optimizer_class.apply_gradients

        @functools.wraps(apply_gradients)
        def apply(self, *args, **kwargs):
            return hooks.updates.apply_in_graph(self, apply_gradients, args, kwargs)

        optimizer_class.apply_gradients = apply

        def derived(loss, gradients, optimizer):
            """The latest comes first: a penalty on gradients is derived before the loss that it is part of."""
            operations = {getattr(gradient, "op", None) for gradient in gradients} - {None}
            losses.setdefault(loss.graph, []).insert(0, (operations, loss, optimizer))

        def deriving(real):
            @functools.wraps(real)
            def gradients(ys, *args, **kwargs):
                result = real(ys, *args, **kwargs)
                loss = next(iter(leaves(ys)), None)
                if isinstance(loss, tf.Tensor) and type(getattr(loss, "graph", None)) is v1.Graph:
                    derived(loss, leaves(result), {})
                return result

            return gradients

        from tensorflow.python.ops import gradients_impl

        exchange(gradients_impl.gradients, deriving)

        from tensorflow.python.data.ops import iterator_ops

        get_next = iterator_ops.Iterator.get_next

        @functools.wraps(get_next)
        def next_element(self, *args, **kwargs):
            element = get_next(self, *args, **kwargs)
            tensors = [t for t in leaves(element) if isinstance(t, tf.Tensor) and not hooks.eager()]
            if tensors and tensors[0].shape.rank != 0:
                graph = tensors[0].graph
                with tf.name_scope("measured"):
                    size = v1.shape(tensors[0])[0]
                sizes.setdefault(graph, []).append((tensors[0].op, size, tensors))
            return element

        iterator_ops.Iterator.get_next = next_element

        def plan(graph, fetches):
            """Whether a fetch trains; its loss, its optimizer; size and components of its batch; what it applies."""
            operations = [f if isinstance(f, tf.Operation) else f.op for f in fetched(tf, graph, fetches)]
            seen, todo, trains = set(), list(operations), False
            while todo:
                operation = todo.pop()
                if operation in seen:
                    continue
                seen.add(operation)
                kind = operation.type
                trains = trains or kind.startswith(("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply"))
                todo += [tensor.op for tensor in operation.inputs]
                todo += operation.control_inputs
            made = [one for one in hooks.updates.applied if getattr(one, "operation", None) in seen]
            trains = trains or bool(made)  # which a conditional may hide
            source = next((s for s in sizes.get(graph, ()) if s[0] in seen), (None, None, None))
            known = (entry[1:] for entry in losses.get(graph, ()) if trains and entry[0] & seen)
            return (trains, *next(known, (None, {})), source[1], source[2], made)

        @functools.wraps(run)
        def measured(self, fetches, feed_dict=None, options=None, run_metadata=None):
            if hooks.muted or recorder.done:
                return run(self, fetches, feed_dict, options, run_metadata)
            begin = time.perf_counter()
            key = (id(self.graph), names_of(tf, fetches))
            if key not in plans:
                try:
                    plans[key] = plan(self.graph, fetches)
                except Exception:
                    plans[key] = None
                    recorder.trouble("looking at what a session runs")
            wanted = plans[key]
            if wanted is None:
                return run(self, fetches, feed_dict, options, run_metadata)
            trains, loss, optimizer, size, components, made = wanted
            fed = [v for v in (feed_dict or {}).values() if len(getattr(v, "shape", ()) or ()) or isinstance(v, list)]
            if not trains and not (recorder.parity and (fed or size is not None)):
                return run(self, fetches, feed_dict, options, run_metadata)
            further = {}
            if recorder.parity and loss is not None:
                further["loss"] = loss
            if size is not None and not fed:
                further["size"] = size
                if recorder.parity:
                    further["data"] = components
            for place, one in enumerate(made):
                further["update-%d" % place], feeds = one.asked()
                feed_dict = {**(feed_dict or {}), **feeds} if feeds else feed_dict
            loop = hooks.session_loop(self.graph, optimizer) if trains else None
            recorder.overhead += time.perf_counter() - begin
            with hooks.quiet():
                if further:
                    result, more = run(self, [fetches, further], feed_dict, options, run_metadata)
                else:
                    result, more = run(self, fetches, feed_dict, options, run_metadata), {}
            begin = time.perf_counter()
            for place, one in enumerate(made):
                one.done(more["update-%d" % place])
            data = tuple(fed) or more.get("data")
            samples = int(more["size"]) if "size" in more else rows_of(fed) or (len(fed[0]) if fed else 0)
            sums = None
            if recorder.parity and data:
                import numpy as np

                sums = sums_of_arrays([np.asarray(d) for d in data])
            if trains:
                loop.add(sums)
                if recorder.parity and recorder.size > 1:
                    hooks.sessions_open[self] = lambda: run(self, self.graph.get_collection("trainable_variables"))
                last[self.graph] = sums
            elif sums and sums != last.get(self.graph):  # another look at the batch just trained on is no evaluation
                hooks.evaluated[self.graph] = added(hooks.evaluated.get(self.graph), sums)
            if trains:
                loop.step(1, samples, more.get("loss"))
            recorder.overhead += time.perf_counter() - begin
            return result

        session_class.run = measured
        close = session_class.close

        @functools.wraps(close)
        def closing(self):
            read = hooks.sessions_open.pop(self, None)
            if read and not recorder.done:
                with hooks.quiet():
                    hooks.weights(read())
            return close(self)

        session_class.close = closing

    def session_loop(self, graph, optimizer):
        loops = self.__dict__.setdefault("session_loops", {})
        if graph not in loops:
            self.tell()
            loops[graph] = Loop(self.recorder, "session")
            loops[graph].tested = lambda: self.evaluated.get(graph)
            loops[graph].announce(optimizer=optimizer, **self.global_facts())
        return loops[graph]

    def eager(self):
        return self.version >= (2, 0) and self.tf.executing_eagerly()

    def tapes(self):
        """GradientTape loops: every `gradient` that no other tape watches is a training step."""
        tf, recorder, hooks = self.tf, self.recorder, self
        tape_class = tf.GradientTape
        gradient = tape_class.gradient

        @functools.wraps(gradient)
        def measured(self, target, *args, **kwargs):
            result = gradient(self, target, *args, **kwargs)
            try:
                if recorder.parity and recorder.size > 1 and not hooks.muted:
                    sources = leaves(args[0] if args else kwargs.get("sources"))
                    hooks.use(None, *(v for v in sources if hasattr(v, "assign") and getattr(v, "trainable", True)))
                hooks.stepped(target, result)
            except Exception:
                if not isinstance(sys.exc_info()[1], SystemExit):
                    recorder.trouble("recording a gradient")
            return result

        tape_class.gradient = measured

    @timed
    def stepped(self, target, gradients):
        if watched() or self.recorder.done:
            return
        tap = getattr(self.local, "fit_tap", None)
        if tap is not None:  # inside fit, whose callback counts the steps
            if self.recorder.parity and not self.tf.executing_eagerly():
                tap.gradients(gradients)
            return
        if self.muted:
            return
        batch, self.local.batch = getattr(self.local, "batch", None), None
        target = next(iter(leaves(target)), None)
        if self.tf.executing_eagerly():
            if self.bare is None:
                self.tell()
                self.bare = Loop(self.recorder, "tape")
                self.bare.announce(**self.global_facts())
            self.turn(self.bare)
            element = self.take_element()
            if self.recorder.parity:
                self.bare.add(sums_of_arrays((batch, None) if element is None else element))
                more = zeros_of(self.tf, gradients)
                self.bare.zeros = added(self.bare.zeros, more) if self.bare.zeros else more
            loss = self.tf.identity(target) if self.recorder.parity else None
            self.bare.step(1, rows_of(batch) or rows_of(element), loss)
            return
        calls = getattr(self.local, "calls", None) or self.calls  # a replica is traced in a thread of its own
        if not calls:
            return
        loop = calls[0].loop()
        tap = loop.tap
        if isinstance(batch, self.tf.Tensor) and batch.graph is self.tf.compat.v1.get_default_graph():
            tap.labels = False
            tap.batch((batch, None))
            calls[0].state.counted = True
        else:
            tap.add([first_replica(self.tf)])
        if self.recorder.parity:
            tap.loss(target)
            tap.gradients(gradients)

    def turn(self, loop):
        """A new iterator since the last training step is a new epoch."""
        if self.fresh and loop.steps:
            loop.end_epoch()
        self.fresh = False

    def take_element(self):
        element, self.element = self.element, None
        return element

    def functions(self):
        """Calls of functions whose trace holds a gradient: one call may run many steps, which its tap counts."""
        tf, recorder, hooks = self.tf, self.recorder, self
        function_class = type(tf.function(lambda: None))
        call = function_class.__call__
        states = {}

        class State:  # of a tf.function
            def __init__(self, function):
                self.function = function  # keeps its id
                self.loop = None
                self.counted = False

        class Call:
            def __init__(self, function):
                self.state = states.get(id(function))
                if self.state is None:
                    self.state = states[id(function)] = State(function)

            def loop(self):
                if self.state.loop is None:
                    hooks.tell()
                    self.state.loop = Loop(recorder, "tape")
                    self.state.loop.tap, hooks.spare = hooks.spare, None
                return self.state.loop

        @functools.wraps(call)
        def measured(self, *args, **kwargs):
            if hooks.muted or recorder.done or not tf.executing_eagerly():
                return call(self, *args, **kwargs)
            begin = time.perf_counter()
            if hooks.spare is None:
                hooks.spare = Tap(tf, recorder.parity)
            current = Call(self)
            if current.state.loop is not None:
                hooks.turn(current.state.loop)
            calls = hooks.calls = hooks.local.__dict__.setdefault("calls", [])
            calls.append(current)
            recorder.overhead += time.perf_counter() - begin
            try:
                result = call(self, *args, **kwargs)
            finally:
                calls.pop()
            loop = current.state.loop
            if loop is not None:
                hooks.function_stepped(loop, current.state, args, kwargs)
            return result

        function_class.__call__ = measured

    @timed
    def function_stepped(self, loop, state, args, kwargs):
        loop.announce(**self.global_facts())
        element = self.take_element()
        self.fresh = False
        arrays = [leaf for leaf in leaves([args, kwargs]) if len(getattr(leaf, "shape", None) or ())]
        if self.recorder.parity:
            data = arrays if element is None and not state.counted else element
            if data is not None:
                loop.add(sums_of_arrays(data))
        if not state.counted:  # no model was called: the batch is what the function was called with
            batch = rows_of(arrays)
            if batch:
                loop.tap.variable.assign_add([0.0, float(batch)] + [0.0] * (Tap.LENGTH - 2))
        loop.stepped()

    def iterators(self):
        """Elements that Python code takes from a dataset, and how long it waits for them."""
        from tensorflow.python.data.ops import dataset_ops, iterator_ops

        recorder, hooks = self.recorder, self
        iterator_class = iterator_ops.OwnedIterator
        following = iterator_class.__next__

        @functools.wraps(following)
        def measured(self):
            if hooks.muted or recorder.done or not hooks.tf.executing_eagerly():
                return following(self)
            begin = time.perf_counter()
            element = following(self)
            recorder.wait += time.perf_counter() - begin
            hooks.element = element
            return element

        iterator_class.__next__ = measured
        dataset_class = getattr(dataset_ops, "DatasetV2")
        begin_iteration = dataset_class.__iter__

        @functools.wraps(begin_iteration)
        def fresh(self):
            if not hooks.muted:
                hooks.fresh = True
            return begin_iteration(self)

        dataset_class.__iter__ = fresh

    def global_facts(self):
        """The policy and the default type that hold now, where Keras is loaded."""
        facts = {}
        modules = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
        for module in modules or ([self.tf.keras] if self.version < (2, 6) else []):
            floatx = getattr(getattr(module, "backend", None), "floatx", None)
            if floatx is not None:
                facts.setdefault("floatx", floatx())
            policy = getattr(getattr(module, "mixed_precision", None), "global_policy", None)
            if policy is None:
                policy = getattr(getattr(module, "mixed_precision", None), "dtype_policy", None)
            if policy is not None and "policy" not in facts:
                facts["policy"] = getattr(policy(), "name", "float32")
        return facts

    # -- Keras ---------------------------------------------------------------------------------------------------

    def keras(self, keras):
        model_class = keras.Model
        if model_class in self.hooked:
            return
        self.hooked.add(model_class)
        move_keras_seeds(keras, self.recorder.seed)
        for owner in [model_class] + subclasses(model_class):
            for name in ("fit", "fit_generator"):
                if name in vars(owner) or (owner is model_class and hasattr(owner, name)):
                    setattr(owner, name, self.fit(keras, name, getattr(owner, name)))
            if "train_on_batch" in vars(owner) or owner is model_class:
                owner.train_on_batch = self.train_on_batch(owner.train_on_batch)
        for name, part in (("make_train_function", "train"), ("make_test_function", "test")):
            if hasattr(model_class, name) and hasattr(model_class, part + "_step"):
                setattr(model_class, name, self.make_function(getattr(model_class, name), part))
        if hasattr(model_class, "make_train_function"):
            model_class.__call__ = self.model_call(model_class.__call__)
        if self.recorder.parity:
            legacy = getattr(keras.optimizers, "legacy", None)
            for owner in (getattr(module, "Optimizer", None) for module in (keras.optimizers, legacy)):
                for name in ("apply_gradients", "apply"):
                    if hasattr(owner, name):
                        setattr(owner, name, self.apply(name, getattr(owner, name)))

    def apply(self, name, original):
        """Remembers the optimizers of training steps that are written by hand."""
        hooks = self

        @functools.wraps(original)
        def measured(self, *args, **kwargs):
            if not hooks.muted:
                hooks.use(self)
            return hooks.updates.apply(self, name, original, args, kwargs)

        return measured

    def model_call(self, call):
        """Remembers the batch that a model was called with under a tape."""
        hooks = self

        @functools.wraps(call)
        def measured(self, *args, **kwargs):
            if not hooks.muted and getattr(hooks.local, "fit_tap", None) is None and watched():
                inputs = args[0] if args else next(iter(kwargs.values()), None)
                hooks.local.batch = next(iter(leaves(inputs)), None)
            return call(self, *args, **kwargs)

        return measured

    def make_function(self, make, part):
        """Counts batches inside the traced step."""
        hooks = self

        @functools.wraps(make)
        def measured(self, *args, **kwargs):
            tap = hooks.taps(self).get(part)
            if tap is not None and part + "_step" not in self.__dict__:
                step = getattr(self, part + "_step")

                @functools.wraps(step)
                def tapped(data, *more):
                    hooks.local.fit_tap = tap if part == "train" else None
                    try:
                        tap.batch(data)
                        return step(data, *more)
                    finally:
                        hooks.local.fit_tap = None

                self.__dict__[part + "_step"] = tapped
            return make(self, *args, **kwargs)

        return measured

    def taps(self, model):
        """The counters of a model; empty under a strategy that is not known and where it does not run on TensorFlow."""
        store = self.__dict__.setdefault("model_taps", {})
        if id(model) not in store:
            strategy = getattr(model, "distribute_strategy", None)
            several = getattr(strategy, "num_replicas_in_sync", 1) > 1
            known = ("MirroredStrategy", "MultiWorkerMirroredStrategy")
            kinds = tuple(getattr(self.tf.distribute, name) for name in known if hasattr(self.tf.distribute, name))
            together = several and isinstance(strategy, kinds)
            parts = ("train", "test") if self.recorder.parity else ("train",)
            usable = (
                self.tf
                and (together or not several)
                and self.version >= (2, 2)
                and self.tf.compat.v1.executing_eagerly_outside_functions()
            )
            store[id(model)] = {part: Tap(self.tf, self.recorder.parity) for part in parts} if usable else {}
            store[id(model), "kept"] = model  # so that no other model gets its id
        return store[id(model)]

    def fit(self, keras, name, original):
        hooks, recorder = self, self.recorder
        signature = inspect.signature(original)
        callback_class = self.callback_class(keras)

        @functools.wraps(original)
        def measured(self, *args, **kwargs):
            if hooks.muted or recorder.done:
                return original(self, *args, **kwargs)
            callback = None
            try:
                hooks.tell()
                bound = signature.bind(self, *args, **kwargs)
                given = bound.arguments.get("callbacks")
                tap = hooks.taps(self).get("train")
                callback = callback_class(self, name, tap, hooks.batch_size(bound.arguments))
                callback.reacts = any(
                    cls.__name__ == "ReduceLROnPlateau" for one in callbacks_of(given) for cls in type(one).__mro__
                )
                if hasattr(given, "append") and not isinstance(given, list):  # a CallbackList
                    given.append(callback)
                else:
                    bound.arguments["callbacks"] = (list(leaves(given)) if given else []) + [callback]
                args, kwargs = bound.args[1:], bound.kwargs
            except Exception:
                recorder.trouble("joining " + name)
            with hooks.quiet():
                return original(self, *args, **kwargs)

        return measured

    @staticmethod
    def batch_size(arguments):
        """Of arrays that `fit` cuts into batches, or of the batches that it is given."""
        x = arguments.get("x", arguments.get("generator"))
        if getattr(x, "element_spec", None) is not None:
            return rows_of(x.element_spec)
        return int(arguments.get("batch_size") or 32)

    def callback_class(self, keras):
        hooks, recorder = self, self.recorder

        class Measure(keras.callbacks.Callback):
            _supports_tf_logs = True  # Keras 2: logs may stay tensors
            async_safe = not recorder.parity  # Keras 3: may be called from another thread

            def __init__(self, model, kind, tap, batch_size):
                super(Measure, self).__init__()
                self.measured, self.tap, self.batch_size = model, tap, batch_size
                self.loop = Loop(recorder, kind, "mean")
                self.loop.tap = tap
                self.last = -1
                self.reacts = False

            def on_epoch_begin(self, epoch, logs=None):
                self.last = -1
                for tap in hooks.taps(self.measured).values():
                    tap.reset()
                self.loop.seen = [0.0] * Tap.LENGTH

            def on_train_batch_end(self, batch, logs=None):
                begin = time.perf_counter()
                loop = self.loop
                if not loop.announced:
                    if logs and "size" in logs:  # graph mode: the batch's own loss, no running mean
                        loop.losses = "batch"
                    loop.announce(reacts=self.reacts, **facts_of(self.measured))
                    hooks.use(getattr(self.measured, "optimizer", None), self.measured)
                loss = (logs or {}).get("loss") if recorder.parity else None
                if loss is not None and summed_over_workers(self.measured):
                    loss = loss / recorder.size
                if self.tap is not None:
                    loop.stepped(loss)
                else:
                    steps, self.last = batch - self.last, batch
                    samples = int(logs["size"]) if logs and "size" in logs else steps * self.batch_size
                    loop.step(steps, samples, loss)
                recorder.overhead += time.perf_counter() - begin

            if hooks.version < (2, 0):
                on_batch_end = on_train_batch_end

            def on_epoch_end(self, epoch, logs=None):
                test = hooks.taps(self.measured).get("test")
                if test is not None:
                    self.loop.tell_data("test", test)
                self.loop.end_epoch(logs)

            def on_train_end(self, logs=None):
                if getattr(self.measured, "stop_training", False):
                    recorder.emit("stopped", loop=self.loop.id)
                if self.loop in OPEN:
                    OPEN.remove(self.loop)

        return Measure

    def train_on_batch(self, original):
        hooks, recorder = self, self.recorder
        loops = {}

        @functools.wraps(original)
        def measured(self, x, *args, **kwargs):
            if hooks.muted or recorder.done:
                return original(self, x, *args, **kwargs)
            if id(self) not in loops:
                hooks.tell()
                loops[id(self)] = Loop(recorder, "train_on_batch")
            loop = loops[id(self)]
            with hooks.quiet():
                result = original(self, x, *args, **kwargs)
            begin = time.perf_counter()
            loop.announce(**facts_of(self))
            hooks.use(getattr(self, "optimizer", None), self)
            if recorder.parity:
                loop.add(sums_of_arrays((x, (args[:2], kwargs.get("y"), kwargs.get("sample_weight")))))
            losses = list(result.values()) if isinstance(result, dict) else leaves(result)
            loop.step(1, rows_of(x), losses[0] if losses else None)
            recorder.overhead += time.perf_counter() - begin
            return result

        return measured


def divide_cpu(tf, count):
    """Where there is no GPU, the CPU becomes several, which a `MirroredStrategy` then uses."""
    if tf.config.list_physical_devices("GPU"):
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)])
    make = tf.distribute.MirroredStrategy.__init__

    @functools.wraps(make)
    def made(self, devices=None, *args, **kwargs):
        make(self, devices or ["CPU:%d" % place for place in range(count)], *args, **kwargs)

    tf.distribute.MirroredStrategy.__init__ = made


def summed_over_workers(model):
    """Whether Keras 2 adds up what the workers of a strategy tell of a batch, where they tell the same."""
    if getattr(model, "distribute_reduction_method", None) not in ("auto", "sum"):
        return False
    extended = getattr(getattr(model, "distribute_strategy", None), "extended", None)
    several = getattr(extended, "_in_multi_worker_mode", None)
    return several is not None and type(extended).__name__.startswith("Collective") and several()


def callbacks_of(given):
    return leaves(getattr(given, "callbacks", given))


def subclasses(cls):
    """Those that Keras itself has: its graph mode overrides `fit`."""
    return [found for sub in cls.__subclasses__() for found in [sub, *subclasses(sub)]]


def watched():
    """Whether a gradient tape is recording in this thread."""
    tape = sys.modules.get("tensorflow.python._pywrap_tfe") or sys.modules.get("tensorflow.python.pywrap_tfe")
    empty = getattr(tape, "TFE_Py_TapeSetIsEmpty", None)
    return empty is not None and not empty()


def facts_of(model):
    """What is compiled into a Keras model."""
    facts = {"optimizer": optimizer_facts(getattr(model, "optimizer", None))}
    flatten = getattr(model, "_flatten_layers", None)
    layers = list(flatten(include_self=False, recursive=True)) if flatten else getattr(model, "layers", [])
    weighted = [layer for layer in layers if getattr(layer, "weights", None)]
    compute = {getattr(layer, "compute_dtype", getattr(layer, "_compute_dtype", None)) for layer in weighted}
    facts["compute"] = sorted(dtype for dtype in compute if isinstance(dtype, str))
    jit = getattr(model, "jit_compile", None)
    facts["jit_compile"] = bool(jit if jit is not None else getattr(model, "_jit_compile", False))
    steps = getattr(model, "_steps_per_execution", None) or getattr(model, "steps_per_execution", None)
    facts["steps_per_execution"] = int(number(steps) or 1)
    facts.update(HOOKS[0].global_facts())
    return facts


def unwrapped(optimizer):
    """Without the wrapper that scales the loss."""
    for _ in range(3):
        optimizer = getattr(optimizer, "inner_optimizer", None) or getattr(optimizer, "_optimizer", None) or optimizer
    return optimizer


def rates(recorder):
    """The learning rates that hold now, where they can be read: callbacks and steps change them."""
    found = []
    for hooks in HOOKS if recorder.parity else ():
        for optimizer in map(unwrapped, hooks.optimizers):
            rate = getattr(optimizer, "learning_rate", None)
            try:
                if callable(rate) and not hasattr(rate, "numpy") and hooks.eager():
                    rate = rate(optimizer.iterations)
                found.append(number(rate))
            except Exception:
                found.append(None)
    return found


def optimizer_facts(optimizer):
    """An optimizer's name and the numbers in its configuration, without the wrapper that scales the loss."""
    optimizer = unwrapped(optimizer)
    if optimizer is None:
        return {}
    if not hasattr(optimizer, "get_config"):
        return {"name": type(optimizer).__name__}
    try:
        config = optimizer.get_config()
    except NotImplementedError:
        config = {}
    facts = {}
    for key, value in config.items():
        if isinstance(value, dict):
            facts[key] = json.dumps(value, default=number, sort_keys=True)
        elif isinstance(value, (bool, str)) or value is None:
            facts[key] = value
        else:
            facts[key] = number(value)
    facts["name"] = type(optimizer).__name__
    return facts


def optimizer_v1(optimizer):
    """The numbers of a TensorFlow 1 optimizer, which keeps them in attributes."""
    facts = {"name": type(optimizer).__name__}
    for key, name in (
        ("learning_rate", "_lr"),
        ("learning_rate", "_learning_rate"),
        ("beta_1", "_beta1"),
        ("beta_2", "_beta2"),
        ("epsilon", "_epsilon"),
        ("momentum", "_momentum"),
    ):
        value = getattr(optimizer, name, None)
        if isinstance(value, (int, float)):
            facts[key] = value
    return facts


def fetched(tf, graph, fetches):
    """The operations and tensors that are fetched; other things, such as variables, do not train."""
    elements = []
    for leaf in leaves(list(fetches) if isinstance(fetches, tuple) else fetches):
        if isinstance(leaf, str):
            leaf = graph.as_graph_element(leaf)
        if isinstance(leaf, (tf.Tensor, tf.Operation)):
            elements.append(leaf)
    return elements


def names_of(tf, fetches):
    """A key for what is fetched."""
    return tuple(leaf if isinstance(leaf, str) else getattr(leaf, "name", repr(leaf)) for leaf in leaves(fetches))


# -- seeds -----------------------------------------------------------------------------------------------------


def moved(function, offset):
    """A seeding function whose seed is moved."""

    @functools.wraps(function)
    def seeding(seed=None, *args, **kwargs):
        if "seed" in kwargs:
            seed = kwargs.pop("seed")
        return function(seed + offset if isinstance(seed, int) else seed, *args, **kwargs)

    return seeding


def exchange(function, make):
    """Give a function another code, which other modules have imported by name or will. make: of the real function."""
    real = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    real.__kwdefaults__ = function.__kwdefaults__

    def forward(*args, replacement, **kwargs):
        return replacement(*args, **kwargs)

    function.__defaults__ = None
    function.__kwdefaults__ = {"replacement": make(real)}
    function.__code__ = forward.__code__


def own_seed(recorder):
    """Where the script sets none, its ranks have different ones: what they must have in common is not by chance."""
    return 1234 + recorder.seed * SEED_STRIDE + recorder.rank * RANK_STRIDE


def seed_python(recorder):
    random.seed(own_seed(recorder))
    if hasattr(os, "register_at_fork"):  # Python seeds its generator anew in forks, which may prepare the data
        seed = random.seed

        def before():
            recorder.forks += 1

        os.register_at_fork(before=before, after_in_child=lambda: seed(own_seed(recorder) + recorder.forks))
    if recorder.seed:
        random.seed = moved(random.seed, recorder.seed * SEED_STRIDE)


def seed_numpy(numpy, recorder):
    numpy.random.seed(own_seed(recorder))
    if recorder.seed:
        numpy.random.seed = moved(numpy.random.seed, recorder.seed * SEED_STRIDE)


def seed_tensorflow(tf, version, recorder, seeded):
    """Without a seed (`seeded` false), random operations in a dataset differ from epoch to epoch."""
    offset = recorder.seed * SEED_STRIDE

    def told(setter):
        @functools.wraps(setter)
        def measured(*args, **kwargs):
            recorder.emit("seeded")
            return setter(*args, **kwargs)

        return measured

    setters = [tf.compat.v1.set_random_seed] + ([tf.random.set_seed] if version >= (2, 0) else [])
    for setter in setters if seeded else ():
        setter(own_seed(recorder))
    for setter in setters:  # one of them may call the other
        exchange(setter, lambda real: told(moved(real, offset)))
    if version < (2, 0) and seeded:
        seeds_by_order(tf, own_seed(recorder))


def seeds_by_order(tf, seed):
    """TensorFlow 1 numbers unseeded random operations by the size of the graph: any added operation moves them.

    Here they are numbered by their own order, so that a rewrite of the input pipeline starts from the same weights. A
    new graph has no seed of its own: it gets one.
    """
    from tensorflow.python.framework import random_seed

    get_seed = random_seed.get_seed
    counts = {}

    @functools.wraps(get_seed)
    def by_order(op_seed):
        graph = tf.compat.v1.get_default_graph()
        if op_seed is None and not tf.executing_eagerly():
            counts[graph] = counts.get(graph, 0) + 1
            op_seed = counts[graph]
            if graph.seed is None:
                graph.seed = seed
        return get_seed(op_seed)

    random_seed.get_seed = by_order


def move_keras_seeds(keras, seed):
    """Keras draws from Python's and TensorFlow's generators, which are seeded already."""
    setter = getattr(getattr(keras, "utils", None), "set_random_seed", None)
    if setter is not None and seed:
        exchange(setter, lambda real: moved(real, seed * SEED_STRIDE))


# -- importing and running ---------------------------------------------------------------------------------------

HOOKS = []
INTERESTING = {"numpy", "tensorflow", "keras", "tf_keras", "tensorflow_datasets"}


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules as always, and tells the hooks when one of interest has been executed."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in INTERESTING or fullname in sys.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute, hooks = spec.loader.exec_module, self.hooks

        def measured(module):
            begin = time.perf_counter()
            execute(module)
            hooks.imported(fullname, sys.modules.get(fullname, module), time.perf_counter() - begin)

        spec.loader.exec_module = measured
        return spec


def synthetic(path):
    name = "tfboost_synthetic"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__file__ = path
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
        sys.modules[name] = module
    return sys.modules[name]


def ending(recorder):
    """In place of `os._exit`."""

    @functools.wraps(EXIT)
    def exiting(status):
        recorder.finish("exit" if status else "finished")
        EXIT(status)

    return exiting


def leave(recorder, reason):
    """The script's last line has run: training is over, unless other threads go on with it until the process ends."""
    recorder.ending = reason
    if not any(thread is not threading.current_thread() and not thread.daemon for thread in threading.enumerate()):
        recorder.finish(reason)


def run(config):
    script = config["script"]
    recorder = Recorder(config)
    hooks = Hooks(recorder, config)
    HOOKS.append(hooks)
    sys.meta_path.insert(0, Finder(hooks))
    if config.get("synthetic"):
        synthetic(config["synthetic"])  # finds a stand-in for `tensorflow_datasets` where it is not installed
    seed_python(recorder)
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    sys.path[1:1] = config.get("path", [])
    sys.argv = [script] + list(config.get("args", []))
    atexit.register(lambda: recorder.finish(recorder.ending))
    os._exit = ending(recorder)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=recorder.forked)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        leave(recorder, "exit" if end.code else "finished")
        raise
    except KeyboardInterrupt:
        recorder.finish("interrupted")
        raise
    except BaseException as error:
        recorder.finish("crashed")
        trace = error.__traceback__.tb_next  # the script's own frames
        sys.stdout.flush()
        traceback.print_exception(type(error), error, trace)
        sys.stderr.flush()
        EXIT(1)
    leave(recorder, "finished")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as _file:
        _config = json.load(_file)
    run(_config)
