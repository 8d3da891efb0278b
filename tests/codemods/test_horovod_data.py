"""What becomes of loaders, generators and datasets that are shuffled early under `--distribute horovod`, as text."""

from __future__ import annotations

import textwrap

import pytest

from tests.check import Check

check = Check("horovod")

TOP = """\
import numpy as np
import tensorflow as tf

x, y = np.ones((96, 4)), np.ones((96, 1))
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse")
"""
PART = '''\
class PartOfRank(tf.keras.utils.Sequence):
    """The batches of this rank: each one is on one rank, and every rank has as many."""

    def __init__(self, batches):
        self.batches, self.rank, self.size = batches, hvd.rank(), hvd.size()

    def __len__(self):
        return len(self.batches) // self.size

    def __getitem__(self, index):
        return self.batches[index * self.size + self.rank]

    def on_epoch_end(self):
        self.batches.on_epoch_end()


'''


def converted(text: str, top: str = TOP, **options: object) -> str:
    """The program behind the start of Horovod; a second run leaves it alone."""
    result = check.run(top + textwrap.dedent(text), **options)  # type: ignore[arg-type]
    after = result.after.decode()
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    again = check.run(after, **options)  # type: ignore[arg-type]
    assert again.after == again.before, again.after.decode()
    compile(after, "train.py", "exec")
    return after


def refuses(reason: str, text: str, top: str = TOP) -> None:
    check.refuses(top + textwrap.dedent(text), reason)


class TestSequences:
    """`class Rows(Sequence)` of the program."""

    ROWS = """\
class Rows(tf.keras.utils.Sequence):
    def __init__(self, rows, size):
        self.rows, self.size = rows, size
        {init}

    def __len__(self):
        return len(self.rows) // self.size

    def __getitem__(self, index):
        {get}
        return self.rows[index * self.size:(index + 1) * self.size], self.rows[:self.size]

    def on_epoch_end(self):
        {end}

"""

    def rows(self, init: str = "pass", get: str = "pass", end: str = "pass", fit: str = "rows, epochs=20") -> str:
        methods = self.ROWS.format(init=init, get=get, end=end)
        return f"{methods}rows = Rows(x, 8)\nmodel.fit({fit})\n"

    def test_the_whole(self) -> None:
        after = converted(self.rows())
        assert f"rows = Rows(x, 8)\n\n\n{PART}model.fit(PartOfRank(rows), epochs=20, " in after
        assert "RandomState" not in after and "seed" not in after

    def test_steps(self) -> None:
        after = converted(self.rows(fit="rows, steps_per_epoch=len(rows), epochs=20"))
        assert "model.fit(PartOfRank(rows), steps_per_epoch=len(rows) // hvd.size(), epochs=20" in after

    def test_validation_stays_whole(self) -> None:
        after = converted(self.rows(fit="rows, epochs=20, validation_data=Rows(y, 8)"))
        assert "validation_data=Rows(y, 8)" in after

    def test_two_fits(self) -> None:
        after = converted(self.rows() + "model.fit(rows, epochs=2)\n")
        assert after.count("class PartOfRank(") == 1 and after.count("PartOfRank(rows)") == 2

    def test_in_a_function(self) -> None:
        text = self.rows().replace("rows = Rows(x, 8)\nmodel", "def train():\n    rows = Rows(x, 8)\n    model")
        after = converted(text + "\ntrain()\n")
        assert f"\n\n\n{PART}def train():\n" in after or f"\n\n{PART}def train():\n" in after

    @pytest.mark.parametrize(
        ("before", "after", "made"),
        [
            ("np.random.shuffle(self.rows)", "self.rng.shuffle(self.rows)", "np.random.RandomState(0)"),
            ("self.o = np.random.permutation(9)", "self.o = self.rng.permutation(9)", "np.random.RandomState(0)"),
            ("random.shuffle(self.rows)", "self.python_rng.shuffle(self.rows)", "random.Random(0)"),
            (
                "self.rows = sklearn.utils.shuffle(self.rows)",
                "self.rows = sklearn.utils.shuffle(self.rows, random_state=self.rng)",
                "np.random.RandomState(0)",
            ),
            (
                "self.rows = self.rows.sample(frac=1)",
                "self.rows = self.rows.sample(frac=1, random_state=self.rng)",
                "np.random.RandomState(0)",
            ),
        ],
    )
    def test_an_order_of_its_own(self, before: str, after: str, made: str) -> None:
        found = converted(self.rows(end=before), f"import random\nimport sklearn.utils\n{TOP}")
        name = after.partition("self.")[2] if after.startswith("random") else ""
        rng = "python_rng" if "python_rng" in after else "rng"
        assert f"        {after}\n" in found and name in found
        assert f"(self, rows, size):\n        self.{rng} = {made}  # the same order on every rank\n" in found
        assert "seed(0)" not in found

    def test_behind_the_base_class(self) -> None:
        text = self.rows(end="np.random.shuffle(self.rows)").replace(
            "size):\n        self.rows,", 'size):\n        """Rows."""\n        super().__init__()\n        self.rows,'
        )
        assert "        super().__init__()\n        self.rng = np.random.RandomState(0)" in converted(text)

    def test_a_generator_of_its_own(self) -> None:
        found = converted(self.rows("self.mine = np.random.default_rng()", end="self.mine.shuffle(self.rows)"))
        assert "self.mine = np.random.default_rng(0)\n" in found and "RandomState" not in found

    def test_noise_stays(self) -> None:
        text = self.rows(get="noise = np.random.normal(size=4)", end="np.random.shuffle(self.rows)")
        assert "noise = np.random.normal(size=4)" in converted(text)

    @pytest.mark.parametrize("more", ["workers=4", "workers=4, use_multiprocessing=True", "workers=count()"])
    def test_workers_end_epochs_too(self, more: str) -> None:
        text = "count = int\n" + self.rows(end="np.random.shuffle(self.rows)", fit=f"rows, {more}, epochs=2")
        found = converted(text)
        assert "model.fit(PartOfRankByWorkers(rows), " in found
        assert found.startswith("import threading\nimport numpy as np\n")
        assert "        if threading.get_ident() != self.thread:\n            return  # of the workers" in found

    def test_picks_by_chance(self) -> None:
        text = self.rows().replace(
            "self.rows[index * self.size:(index + 1) * self.size]", "np.random.choice(self.rows)"
        )
        assert "PartOfRank(rows)" in converted(text)
        refuses("would pick the same samples on every rank", "np.random.seed(1)\n" + text)

    @pytest.mark.parametrize(
        ("methods", "reason"),
        [
            ({"get": "self.count = index"}, "counts on being asked for all batches: `self.count` is changed"),
            ({"get": "self.seen.append(index)"}, "`self.seen.append(index)` changes something"),
            ({"get": "next(self.rows)"}, "changes something"),
            ({"get": "global count; count = 1"}, "`count` is changed"),
            ({"get": "np.random.shuffle(self.rows)"}, "makes an order for every batch"),
            ({"end": "np.random.seed(3)"}, "may differ from rank to rank"),
            ({"end": "self.rows = tf.random.shuffle(self.rows)"}, "may differ from rank to rank"),
            ({"end": "mix(self.rows)"}, "may differ from rank to rank"),
            (
                {
                    "init": "self.r = np.random.default_rng(1)",
                    "end": "self.r.shuffle(self.rows)",
                    "get": "self.r.normal()",
                },
                "draws from the generator that orders the data",
            ),
            ({"end": "rng.shuffle(self.rows)"}, "may differ from rank to rank"),
        ],
    )
    def test_not_the_same_on_every_rank(self, methods: dict[str, str], reason: str) -> None:
        top = "def mix(rows):\n    np.random.shuffle(rows)\n\nrng = np.random.default_rng(0)\n"
        refuses(reason, top + self.rows(**methods))

    BASE = """\
class Base(tf.keras.utils.Sequence):
    def __init__(self, rows):
        self.rows = rows
        self.on_epoch_end()

    def on_epoch_end(self):
        np.random.shuffle(self.rows)

    def __len__(self):
        return 3

"""

    def test_an_order_in_a_base_class(self) -> None:
        own = """\
class Rows(Base):
    def __getitem__(self, index):
        return self.rows[index:], y[index:]

model.fit(Rows(x))
"""
        assert "rows):\n        self.rng = np.random.RandomState(0)" in converted(self.BASE + own)
        init = "    def __init__(self):\n        {0}\n        self.other = 1\n        super().__init__(x)\n\n    def __getitem__"
        text = own.replace("    def __getitem__", init.format("pass")).replace("Rows(x)", "Rows()")
        refuses("runs before the order is drawn is not seen", self.BASE + text)
        base = self.BASE.replace("    def on_epoch_end(self):\n        np.random.shuffle(self.rows)\n\n", "")
        text = own.replace(
            "    def __getitem__",
            "    def __init__(self, rows):\n        super().__init__(rows)\n\n    def on_epoch_end(self):\n"
            "        np.random.shuffle(self.rows)\n\n    def __getitem__",
        )
        refuses("may draw an order before", base + text)

    def test_a_method_of_a_base_class_calls_one_of_this_class(self) -> None:
        text = """\
        class Base(tf.keras.utils.Sequence):
            def __init__(self, rows):
                self.rows = rows
                self.rng = np.random.default_rng(1)

            def __len__(self):
                return 12

            def __getitem__(self, index):
                return self.read(self.rows[8 * index:8 * index + 8]), self.rows[:8]

            def read(self, rows):
                return rows

            def on_epoch_end(self):
                self.rng.shuffle(self.rows)

        class Rows(Base):
            def read(self, rows):
                {line}
                return rows

        model.fit(Rows(x), epochs=2)
        """
        refuses("counts on being asked for all batches", text.replace("{line}", "self.seen = rows"))
        refuses("draws from the generator that orders", text.replace("{line}", "rows += self.rng.normal()"))
        assert "PartOfRank(Rows(x))" in converted(text.replace("{line}", "rows = rows + np.random.normal()"))

    SHUFFLED = """\
class Rows(tf.keras.utils.Sequence):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.rows[8 * index:8 * index + 8], self.rows[:8]

    def on_epoch_end(self):
        np.random.shuffle(self.rows)

class Log(tf.keras.callbacks.Callback):
    def __init__(self, data):
        super().__init__()
        self.data = data

    def on_epoch_end(self, epoch, logs=None):
        {line}

rows = Rows(x)
"""

    @pytest.mark.parametrize(
        ("line", "fits"),
        [
            ("pass", "model.fit(rows)\nprint(model.evaluate(rows))\nmodel.fit(rows)\n"),
            ("pass", "for _ in range(3):\n    model.fit(rows)\n    np.save('p.npy', model.predict(rows))\n"),
            ("np.save('p.npy', self.model.predict(self.data))", "model.fit(rows, callbacks=[Log(rows)])\n"),
            ("self.data.on_epoch_end()", "model.fit(rows, callbacks=[Log(rows)])\n"),
        ],
    )
    def test_other_passes_through_it(self, line: str, fits: str) -> None:
        text = self.SHUFFLED.replace("{line}", line)
        refuses("may order the data of training anew", text + fits)
        other = fits.replace("evaluate(rows)", "evaluate(Rows(y))").replace("predict(rows)", "predict(Rows(y))")
        assert "PartOfRank(rows)" in converted(text + other.replace("Log(rows)", "Log(Rows(y))"))

    def test_a_pass_at_the_end(self) -> None:
        text = self.SHUFFLED.replace("{line}", "pass") + "model.fit(rows)\nprint(model.evaluate(rows))\n"
        assert "PartOfRank(rows)" in converted(text)

    @pytest.mark.parametrize(("seed", "picks"), [("", True), ("None", True), ("7", False)])
    def test_picks_of_a_generator_of_its_own(self, seed: str, picks: bool) -> None:
        text = f"""\
        class Rows(tf.keras.utils.Sequence):
            def __init__(self, rows):
                self.rows, self.rng = rows, np.random.default_rng({seed})

            def __len__(self):
                return 12

            def __getitem__(self, index):
                picked = self.rng.choice(len(self.rows), 8)
                return self.rows[picked], self.rows[:8]

        model.fit(Rows(x), epochs=2)
        """
        if picks:
            assert "PartOfRank(Rows(x))" in converted(text)
        else:
            refuses("would pick the same samples on every rank", text)

    def test_made_anew_for_every_epoch(self) -> None:
        text = self.rows(end="np.random.shuffle(self.rows)").replace(
            "rows = Rows(x, 8)\nmodel.fit(rows, epochs=20)", "for _ in range(9):\n    model.fit(Rows(x, 8){0})"
        )
        refuses("made anew for every epoch", text.replace("{0}", ""))
        assert "model.fit(PartOfRank(Rows(x, 8)), epochs=3" in converted(text.replace("{0}", ", epochs=3"))

    def test_without_a_constructor(self) -> None:
        text = """\
        class Rows(tf.keras.utils.Sequence):
            def __len__(self):
                return 3

            def __getitem__(self, index):
                return x[index:index + 8], y[index:index + 8]

            def on_epoch_end(self):
                np.random.shuffle(x)

        model.fit(Rows())
        """
        refuses("no `__init__`", text)

    def test_under_keras_3(self) -> None:
        found = converted(self.rows(), target="tf2.18")
        assert "class PartOfRank(tf.keras.utils.PyDataset):\n" in found
        assert "    def __init__(self, batches):\n        super().__init__()\n        self.batches, " in found
        text = self.rows(end="np.random.shuffle(self.rows)", fit="rows, steps_per_epoch=3, epochs=2")
        check.refuses(TOP + text, "in the middle of a pass", target="tf2.18")


class TestImages:
    """Iterators of an `ImageDataGenerator`."""

    IMAGES = "images = tf.keras.preprocessing.image.ImageDataGenerator()\n"

    @pytest.mark.parametrize(
        "made",
        [
            "flow_from_directory('a', batch_size=8)",
            "flow_from_directory('a', seed=3)",
            "flow_from_dataframe(frame, shuffle=True)",
            "flow(x, y, subset='training')",
        ],
    )
    def test_shuffled(self, made: str) -> None:
        text = (
            f"frame = None\n{self.IMAGES}data = images.{made}\nmodel.fit(data, epochs=20, steps_per_epoch=len(data))\n"
        )
        found = converted(text)
        assert f"data = images.{made}\n" in found
        assert "model.fit(ShuffledPartOfRank(data), epochs=20, steps_per_epoch=len(data) // hvd.size()" in found
        assert (
            "    order = np.random.RandomState(0)  # the same on every rank\n\n    def __init__(self, batches):"
            in found
        )
        assert "hvd.size()\n        self.on_epoch_end()\n" in found
        assert "            self.batches.index_array = self.order.permutation(self.batches.n)" in found

    def test_in_order(self) -> None:
        found = converted(f"{self.IMAGES}model.fit(images.flow_from_directory('a', shuffle=False), epochs=2)\n")
        assert f"{PART}model.fit(PartOfRank(images.flow_from_directory('a', shuffle=False)), " in found

    def test_steps_from_the_number_of_samples(self) -> None:
        text = (
            "data = images.flow_from_directory('a', batch_size=8)\nmodel.fit(data, steps_per_epoch=data.samples // 8)\n"
        )
        assert "steps_per_epoch=data.samples // 8 // hvd.size()" in converted(self.IMAGES + text)

    def test_numpy_is_imported(self) -> None:
        top = 'from __future__ import annotations\nimport os\nimport tensorflow as tf\nmodel = tf.keras.Sequential([tf.keras.layers.Dense(1)])\nmodel.compile("sgd", "mse")\n'
        text = "model.fit(tf.keras.preprocessing.image.ImageDataGenerator().flow_from_directory('a'))\n"
        assert converted(text, top).startswith("from __future__ import annotations\nimport numpy as np\nimport os\n")


class TestTimeseries:
    TIMES = (
        "data = tf.keras.preprocessing.sequence.TimeseriesGenerator(x, y, length=4{0})\nmodel.fit(data, epochs=20)\n"
    )

    def test_in_order(self) -> None:
        assert "model.fit(PartOfRank(data), epochs=20, " in converted(self.TIMES.format(""))

    def test_drawn(self) -> None:
        refuses("draws its samples at random", self.TIMES.format(", shuffle=True"))


class TestGenerators:
    FIT = "model.fit(batches(x), steps_per_epoch=12, epochs=20)\n"

    def test_shuffles(self) -> None:
        text = """\
        def batches(rows):
            '''Batches of rows.'''
            while True:
                order = np.random.permutation(len(rows))
                for i in range(0, 96, 8):
                    yield rows[order[i:i + 8]] + np.random.normal(), y[i:i + 8]
        """
        found = converted(textwrap.dedent(text) + self.FIT)
        start = "    '''Batches of rows.'''\n    rng = np.random.RandomState(0)  # the same order on every rank\n"
        assert start in found and "order = rng.permutation(len(rows))" in found and "+ rng.normal()" in found
        assert "itertools.islice(batches(x), hvd.rank(), None, hvd.size()), steps_per_epoch=12 // hvd.size()" in found
        assert "seed(0)" not in found

    def test_shuffles_with_python(self) -> None:
        text = """\
        from random import shuffle
        def batches(rows):
            order = list(range(12))
            while True:
                shuffle(order)
                for i in order:
                    yield rows[8 * i:8 * i + 8], y[:8]
        """
        found = converted(textwrap.dedent(text) + self.FIT)
        assert "python_rng = random.Random(0)" in found and "        python_rng.shuffle(order)\n" in found

    def test_random_numbers_of_its_own(self) -> None:
        text = """\
        def batches(rows):
            mine = np.random.default_rng({0})
            while True:
                for i in mine.permutation(12):
                    yield rows[8 * i:8 * i + 8], y[:8]
        """
        text = textwrap.dedent(text) + self.FIT
        assert "mine = np.random.default_rng(0)\n" in converted(text.replace("{0}", ""))
        assert "mine = np.random.default_rng(5)\n" in converted(text.replace("{0}", "5"))
        refuses("another order", "import time\n" + text.replace("{0}", "int(time.time())"))

    def test_picks(self) -> None:
        text = """\
        def batches(rows):
            while True:
                taken = np.random.choice(len(rows), 8)
                yield rows[taken], y[taken]
        """
        text = textwrap.dedent(text) + self.FIT
        assert "model.fit(batches(x), steps_per_epoch=12 // hvd.size()" in converted(text)
        assert "islice(batches(x), " in converted("np.random.seed(3)\n" + text)

    def test_picks_until_there_are_no_more(self) -> None:
        text = """\
        def batches(rows):
            while True:
                left = list(range(12))
                while left:
                    i = np.random.choice(left)
                    left.remove(i)
                    yield rows[8 * i:8 * i + 8], y[:8]
        """
        assert "i = rng.choice(left)" in converted(textwrap.dedent(text) + self.FIT)

    def test_leaves_out_by_chance(self) -> None:
        text = """\
        def batches(rows):
            while True:
                for i in range(12):
                    if np.random.rand() < 0.5:
                        continue
                    yield rows[8 * i:8 * i + 8], y[:8]
        """
        assert "if rng.rand() < 0.5:" in converted(textwrap.dedent(text) + self.FIT)

    def test_noise(self) -> None:
        text = """\
        def noisy(rows):
            return rows + np.random.normal(size=rows.shape)
        def batches(rows):
            while True:
                for i in range(12):
                    taken = rows[8 * i:8 * i + 8]
                    if np.random.rand() < 0.5:
                        taken = taken[:, ::-1]
                    yield noisy(taken), y[:8]
        """
        found = converted(textwrap.dedent(text) + self.FIT)
        assert "islice(batches(x), " in found and "RandomState" not in found

    def test_breaks_out_of_an_inner_loop(self) -> None:
        text = """\
        def batches(rows):
            while True:
                for i in range(12):
                    if i > 9:
                        break
                    yield rows[8 * i:8 * i + 8], y[:8]
        """
        assert "islice(batches(x), " in converted(textwrap.dedent(text) + self.FIT)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("order = mixed(order)", "every rank may go through the data in another order"),
            ("np.random.seed(1)", "every rank may go through the data in another order"),
            ("order = tf.random.shuffle(order)", "every rank may go through the data in another order"),
            ("if left_out(): continue", "decides which samples come"),
        ],
    )
    def test_another_order_on_every_rank(self, line: str, reason: str) -> None:
        text = f"""\
def mixed(order):
    return np.random.permutation(order)
def left_out():
    return np.random.rand() < 0.1
def batches(rows):
    order = np.arange(12)
    while True:
        {line}
        for i in order:
            yield rows[8 * i:8 * i + 8], y[:8]
"""
        refuses(reason, text + self.FIT)

    def test_several_processes(self) -> None:
        text = "def batches(rows):\n    while True:\n        yield rows, y\n"
        refuses("several processes", text + self.FIT.replace("epochs=20", "use_multiprocessing=True"))

    def test_started_anew_in_a_loop(self) -> None:
        text = "def batches(rows):\n    while True:\n        np.random.shuffle(rows)\n        for i in range(12):\n            yield rows, y\n"
        refuses("started anew in a loop", text + "for _ in range(3):\n    " + self.FIT)

    ENDLESS = "def batches(rows):\n    while True:\n        for i in range(12):\n            yield rows[8 * i:8 * i + 8], y[:8]\n"

    @pytest.mark.parametrize(
        "fits",
        [
            "model.fit(made, steps_per_epoch=12)\nmodel.fit(made, steps_per_epoch=12, epochs=3)\n",
            "for _ in range(3):\n    model.fit(made, steps_per_epoch=12)\n",
            "def train(rows):\n    model.fit(rows, steps_per_epoch=12)\ntrain(made)\ntrain(made)\n",
        ],
    )
    def test_several_fits_go_on_with_one(self, fits: str) -> None:
        found = converted(self.ENDLESS + "made = batches(x)\nfirst = next(made)\n" + fits)
        assert "made = itertools.islice(batches(x), hvd.rank(), None, hvd.size())" in found
        assert found.count("islice") == 1

    @pytest.mark.parametrize(
        "line",
        [
            "model.fit(made, steps_per_epoch=12, validation_data=made, validation_steps=2)\n",
            "model.fit(made, steps_per_epoch=12)\nmodel.evaluate(made, steps=3)\n",
            "np.save('first.npy', next(made)[0])\nmodel.fit(made, steps_per_epoch=12)\n",
        ],
    )
    def test_read_by_something_else(self, line: str) -> None:
        refuses("gives batches to something else", self.ENDLESS + "made = batches(x)\n" + line)


class TestDataBehindData:
    """A generator, loader or dataset that gives what it takes from another one."""

    FLOW = "flow = tf.keras.preprocessing.image.ImageDataGenerator().flow_from_directory('d'{more})\n"
    NEXT = """\
def pairs(batches):
    while True:
        a, b = {read}
        yield [a, a], b

model.fit(pairs({given}), steps_per_epoch=12, epochs=2)
"""
    CLASS = """\
class Pairs(tf.keras.utils.Sequence):
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        a, b = self.batches[index]
        return [a, a], b

model.fit(Pairs(flow), epochs=2)
"""
    ROWS = """\
def batches(rows):
    while True:
        {line}
        for i in range(12):
            yield rows[8 * i:8 * i + 8], y[:8]

"""

    @pytest.mark.parametrize("read", ["next(batches)", "batches.next()", "batches[0]"])
    def test_images_in_a_generator(self, read: str) -> None:
        text = self.NEXT.replace("{read}", read).replace("{given}", "flow")
        refuses("has another order on every rank", self.FLOW.replace("{more}", "") + text)
        for more in (", seed=3", ", shuffle=False"):
            assert "islice(pairs(flow), " in converted(self.FLOW.replace("{more}", more) + text)

    def test_images_in_a_class(self) -> None:
        refuses("has another order on every rank", self.FLOW.replace("{more}", "") + self.CLASS)
        refuses("has another order on every rank", self.FLOW.replace("{more}", ", seed=3") + self.CLASS)
        assert "PartOfRank(Pairs(flow))" in converted(self.FLOW.replace("{more}", ", shuffle=False") + self.CLASS)

    def test_a_generator_in_a_generator(self) -> None:
        text = self.NEXT.replace("{read}", "next(batches)").replace("{given}", "batches(x)")
        refuses("has another order on every rank", self.ROWS.replace("{line}", "np.random.shuffle(rows)") + text)
        assert "islice(pairs(batches(x)), " in converted(self.ROWS.replace("{line}", "rows = rows + 1") + text)

    def test_a_shuffled_dataset_in_a_generator(self) -> None:
        text = self.NEXT.replace("{read}", "next(iter(batches))").replace("{given}", "ds")
        made = "ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96{more}).batch(8)\n"
        refuses("has another order on every rank", made.replace("{more}", "") + text)
        assert "islice(pairs(ds), " in converted(made.replace("{more}", ", seed=1") + text)

    def test_images_in_a_dataset(self) -> None:
        text = """\
def rows():
    for i in range(12):
        yield flow[i]

ds = tf.data.Dataset.from_generator(rows, output_types=(tf.float32, tf.float32))
model.fit(ds, epochs=2)
"""
        refuses("has another order on every rank", self.FLOW.replace("{more}", "") + text)
        assert "apply(part_of_rank)" in converted(self.FLOW.replace("{more}", ", shuffle=False") + text)


class TestDatasets:
    COUNT = "records.reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1)"

    def test_a_function_for_all_data(self) -> None:
        text = """\
        def prepare(rows, shuffle=True):
            ds = tf.data.Dataset.from_tensor_slices((rows, rows))
            if shuffle:
                ds = ds.shuffle(96)
            return ds.batch(8)
        train = prepare(x)
        model.fit(train, epochs=20, validation_data=prepare(y, shuffle=False))
        """
        found = converted(text)
        assert "ds = ds.shuffle(96, seed=0)\n" in found
        assert "model.fit(train.apply(lambda part: part.shard(hvd.size(), hvd.rank())" in found

    def test_shuffled_data_that_rank_0_would_read(self) -> None:
        text = """\
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
        print(list(ds.take(1)))
        model.fit(ds, epochs=20, validation_data=ds)
        """
        refuses("the training data is read by something else too", text)

    def test_left_out(self) -> None:
        text = "model.fit(tf.data.TFRecordDataset('a').filter(lambda r: r != '').shuffle(9).batch(8), epochs=20)\n"
        found = converted(text)
        assert "TFRecordDataset('a').filter(lambda r: r != '').apply(part_of_rank).shuffle(9).batch(8)" in found
        assert f"    count = {self.COUNT} // hvd.size()\n" in found

    def test_left_out_by_chance(self) -> None:
        text = """\
        ds = tf.data.TFRecordDataset('a').filter(lambda r: tf.random.uniform([]) < 0.5).batch(8)
        model.fit(ds, epochs=20)
        """
        refuses("different numbers of steps", text)

    ROWS = """\
        def rows():
            for row in x:
                yield row, row
        ds = tf.data.Dataset.from_generator(rows, output_types=(tf.float32, tf.float32)){more}
        model.fit(ds.repeat(), steps_per_epoch=12, epochs=2)
        model.fit(ds, epochs=2)
        """

    def test_two_fits_of_which_one_repeats_the_data(self) -> None:
        found = converted(self.ROWS.replace("{more}", ".batch(8)"))
        assert (
            "float32)).apply(part_of_rank).batch(8)" in found
            and ".shard(" not in found.split("def rows")[1].split("ds = ")[1]
        )

    def test_two_fits_that_would_split_it_twice(self) -> None:
        refuses(
            "split for another training already", self.ROWS.replace("{more}", ".filter(lambda a, b: a[0] > 0).batch(8)")
        )

    def test_other_passes_on_every_rank_before_the_next_fit(self) -> None:
        text = """\
        def rows():
            for row in x:
                yield row, row
        ds = tf.data.Dataset.from_generator(rows, output_types=(tf.float32, tf.float32))
        ds = ds.shuffle(96, seed=1{more}).take(90).batch(8)
        model.fit(ds.repeat(), steps_per_epoch=11, epochs=2)
        model.fit(ds.repeat(), steps_per_epoch=11, epochs=2)
        """
        refuses("begun other passes", text.replace("{more}", ""))
        converted(text.replace("{more}", ", reshuffle_each_iteration=False"))
        one = text.rstrip().rpartition("\n")[0] + "\n"
        converted(one.replace("{more}", ""))
        refuses("begun other passes", one.replace("{more}", "").replace("model.fit", "for _ in range(2): model.fit"))

    def test_windows(self) -> None:
        text = """\
        ds = tf.data.Dataset.from_tensor_slices(x).window(9, shift=1, drop_remainder=True)
        ds = ds.flat_map(lambda w: w.batch(9)).shuffle(100).map(lambda w: (w[:-1], w[-1:])).batch(8).prefetch(1)
        model.fit(ds, epochs=20)
        """
        found = converted(text)
        assert "ds = ds.flat_map(lambda w: w.batch(9)).apply(part_of_rank).shuffle(100)" in found

    def test_tfds(self) -> None:
        text = """\
        import tensorflow_datasets as tfds
        train = tfds.load("mnist", split="train", as_supervised=True)
        model.fit(train.shuffle(1000).batch(8), epochs=20)
        """
        found = converted(text)
        assert (
            "model.fit(train.apply(part_of_rank).shuffle(1000).batch(8), " in found or ".apply(part_of_rank)" in found
        )
        assert f"    if count < 0:  # it is not known\n        count = {self.COUNT}\n" in found

    def test_from_a_generator(self) -> None:
        text = """\
        def rows():
            for i in range(96):
                yield x[i] + np.random.normal(), y[i]
        ds = tf.data.Dataset.from_generator(rows, (tf.float32, tf.float32), ((4,), (1,)))
        model.fit(ds.shuffle(96).batch(8), epochs=20)
        """
        assert ".apply(part_of_rank)" in converted(text)

    FROM = "ds = tf.data.Dataset.from_generator({0}, (tf.float32, tf.float32), ((4,), (1,))){1}\nmodel.fit(ds.batch(8), epochs=20)\n"

    def test_from_a_generator_that_shuffles(self) -> None:
        text = """\
def rows():
    for i in np.random.permutation(96):
        yield x[i] + np.random.normal(), y[i]

"""
        found = converted(text + self.FROM.format("rows", ""))
        assert "rng = np.random.RandomState(0)  # the same order on every rank\ndef rows():" in found
        assert "    for i in rng.permutation(96):\n        yield x[i] + np.random.normal(), y[i]\n" in found
        again = "val = tf.data.Dataset.from_generator(rows, tf.float32)\n"
        refuses("another one on every rank", text + self.FROM.format("rows", "") + again)

    def test_two_generators_that_shuffle(self) -> None:
        text = """\
def rows():
    for i in np.random.permutation(96):
        yield x[i]

def targets():
    for i in np.random.permutation(96):
        yield y[i]

a, b = (tf.data.Dataset.from_generator(f, tf.float32) for f in (rows, targets))
a = tf.data.Dataset.from_generator(rows, tf.float32)
b = tf.data.Dataset.from_generator(targets, tf.float32)
ds = tf.data.Dataset.zip((a, b)).batch(8)
model.fit(ds, epochs=20)
model.fit(ds, epochs=20)
"""
        text = text.replace("a, b = (tf.data.Dataset.from_generator(f, tf.float32) for f in (rows, targets))\n", "")
        found = converted(text)
        assert "rng = np.random.RandomState(0)  # the same order on every rank\ndef rows():" in found
        assert "rng_ = np.random.RandomState(0)  # the same order on every rank\n\ndef targets():" in found
        assert "rng.permutation" in found and "rng_.permutation" in found

    def test_from_an_object(self) -> None:
        text = """\
class Rows:
    def __init__(self, rows):
        self.rows = rows

    def __call__(self):
        order = list(range(len(self.rows)))
        random.shuffle(order)
        for i in order:
            yield self.rows[i], y[i]

"""
        found = converted(text + self.FROM.format("Rows(x)", ""), f"import random\n{TOP}")
        assert "(self, rows):\n        self.python_rng = random.Random(0)  # the same order on every rank\n" in found
        assert "        self.python_rng.shuffle(order)\n" in found and ".apply(part_of_rank)" in found

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("for i in mixed(96):", "another one on every rank"),
            ("for i in range(9):\n        np.random.shuffle(x)", "another one on every rank"),
            ("for i in lines:", "different numbers of steps"),
            ("while len(left) > np.random.randint(9):", "decides which samples come"),
        ],
    )
    def test_generators_that_differ(self, line: str, reason: str) -> None:
        text = f"""\
left, lines = [0], open("a")
def mixed(number):
    return np.random.permutation(number)
def rows():
    {line}
        yield x[0], y[0]
ds = tf.data.Dataset.from_generator(rows, (tf.float32, tf.float32), ((4,), (1,)))
model.fit(ds.batch(8), epochs=20)
"""
        refuses(reason, text)

    def test_a_dataset_of_which_only_the_end_is_seen(self) -> None:
        text = "from other import read\nds = read('a')[0].shuffle(9).prefetch(1)\nmodel.fit(ds, epochs=20)\n"
        refuses("is called on is not known", text)

    def test_a_layer_that_keeps_its_state(self) -> None:
        text = "rnn = tf.keras.layers.LSTM(4, stateful=True)\nmodel.fit(x, y, epochs=20)\n"
        refuses("goes on with the state of the batch before", text)

    def test_looking_at_a_batch(self) -> None:
        text = """\
        ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        for a, b in ds.take(1):
            print(model(a).shape)
        print(ds.element_spec)
        model.fit(ds, epochs=20)
        """
        assert "from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank())" in converted(text)


class TestOrders:
    """Orders that differ from process to process, or from host to host."""

    @pytest.mark.parametrize("seed", ["int(time.time())", "None", "os.getpid()", "now"])
    def test_a_seed_that_differs(self, seed: str) -> None:
        imports = "import os\nimport time\nnow = int(time.time())\n"
        text = f"np.random.seed({seed})\nmodel.fit(x, y, epochs=20)\n"
        check.refuses(imports + TOP + text, "gives every rank another order of the data")
        assert "np.random.seed(7)\n" in converted(text.replace(seed, "7"), imports + TOP)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("words = list(set(text))", "words = sorted(set(text))"),
            (
                "index = {w: i for i, w in enumerate(set(text))}",
                "index = {w: i for i, w in enumerate(sorted(set(text)))}",
            ),
            ("words = set(text)\nindex = [w for w in words]", "words = set(text)\nindex = [w for w in sorted(words)]"),
            ("words = np.array(set(text) - set('ab'))", "words = np.array(sorted(set(text) - set('ab')))"),
            ("files = glob.glob('*.png')", "files = sorted(glob.glob('*.png'))"),
            ("rows = [np.load(f) for f in os.listdir('a')]", "rows = [np.load(f) for f in sorted(os.listdir('a'))]"),
            ("for p in pathlib.Path('a').glob('*'):\n    p", "for p in sorted(pathlib.Path('a').glob('*')):\n    p"),
            ("files = list(pathlib.Path('a').iterdir())", "files = sorted(pathlib.Path('a').iterdir())"),
        ],
    )
    def test_sorted(self, before: str, after: str) -> None:
        imports = "import glob\nimport os\nimport pathlib\n"
        text = "text = 'some text'\n{0}\nmodel.fit(x, y, epochs=20)\n"
        assert f"text = 'some text'\n{after}\nmodel.fit(" in converted(text.format(before), imports + TOP)

    @pytest.mark.parametrize(
        "line",
        [
            "words = sorted(set(text))",
            "words = sorted(list(set(text)))",
            "number = len(set(text)) + len(list(set(text)))",
            "rest = list(set(range(9)) - set(range(4)))",
            "is_there = 'a' in set(text)",
            "files = sorted(glob.glob('*.png'))",
            "number = len(os.listdir('a'))",
            "files = os.listdir('a')\nfiles.sort()",
            "number = len(list(pathlib.Path('a').glob('*')))",
            "if os.listdir('a'):\n    pass",
        ],
    )
    def test_as_it_is(self, line: str) -> None:
        imports = "import glob\nimport os\nimport pathlib\n"
        text = f"text = 'some text'\n{line}\nmodel.fit(x, y, epochs=20)\n"
        assert f"text = 'some text'\n{line}\nmodel.fit(" in converted(text, imports + TOP)

    @pytest.mark.parametrize(
        "line",
        [
            "numbers = [hash(w) % 9 for w in text]",
            "numbers = tf.keras.preprocessing.text.one_hot(text, 9)",
            "numbers = tf.keras.preprocessing.text.hashing_trick(text, 9)",
        ],
    )
    def test_hashes(self, line: str) -> None:
        refuses("other numbers in every process", f"text = 'some text'\n{line}\nmodel.fit(x, y, epochs=20)\n")

    def test_hashes_that_stay_the_same(self) -> None:
        line = "numbers = tf.keras.preprocessing.text.hashing_trick(text, 9, hash_function='md5')\n"
        assert line in converted(f"text = 'some text'\n{line}model.fit(x, y, epochs=20)\n")
