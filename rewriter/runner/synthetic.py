"""Made-up data in place of downloads (`--synthetic-data`), so that a training script runs offline.

`harness.py` loads this one file into the user's interpreter (Python 3.7 and later, TensorFlow 1.15 and later) and calls
`install(name, module)` for imported modules. Two functions are replaced:

* `get_file` of every Keras: a stand-in for what is at `origin` is written to a temporary folder and handed to the real
  `get_file` as a `file://` address, so that unpacking and the returned path are those of the user's Keras version.
  `keras.datasets` downloads through `get_file` as well, so its own code reads the stand-ins.
* `tfds.load` (and `tfds.builder`): also where `tensorflow_datasets` is not installed.

Shapes, dtypes, value ranges and, where nothing else is said on standard error, sizes are the real ones. Labels can be
learned: each class has a pattern of its own, under noise. The same call gives the same data in every run; nothing is
drawn from the script's own random generators.
"""

import atexit
import functools
import gzip
import importlib.abc
import importlib.machinery
import io
import itertools
import json
import os
import pickle
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import types
import urllib.parse
import urllib.request
import wave
import zipfile
import zlib

#: The share of wrong labels, which keeps losses away from zero.
WRONG = 0.05
#: More texts than these are not made for one split.
MOST_TEXTS = 120000


def install(name, module):
    """Called once for each module of interest, right after it was executed."""
    if name == "tensorflow":
        if tuple(int(part) for part in module.__version__.split(".")[:2]) < (
            2,
            6,
        ):  # later ones use the package `keras`
            replace_get_file(module.keras.utils.get_file)
    elif name in ("keras", "tf_keras"):
        replace_get_file(module.utils.get_file)
    elif name == "tensorflow_datasets":
        replace_loaders(module)


@functools.lru_cache(None)  # each text once
def say(text):
    sys.stderr.write("--synthetic-data: %s\n" % text)


def missing(what, hint=""):
    return RuntimeError("--synthetic-data has no stand-in for %s%s" % (what, hint and ": " + hint))


def generator(*key):
    """A generator of its own for each data set: `RandomState` draws the same in every NumPy version."""
    import numpy as np

    return np.random.RandomState(zlib.crc32(repr(key).encode()) % 2**32)


# -- labels, pictures, texts and tables ----------------------------------------------------------------------------


def classes_of(rng, count, classes):
    """What each sample shows, equally often, and the label that it has."""
    import numpy as np

    shown = rng.permutation(np.arange(count) % classes)
    return shown, np.where(rng.uniform(size=count) < WRONG, rng.randint(0, classes, count), shown)


def patterns(name, classes, channels, side=4):
    """A coarse picture of each class; `name` and not a split decides about it."""
    return generator(name, "patterns").randint(0, 192, (classes, side, side, channels)).astype("uint8")


def pictures(name, rng, shown, shape, classes, drawing=False):
    """Pictures as one array. A drawing is bright lines on black."""
    coarse = patterns(name, classes, shape[2])
    if drawing:
        coarse = (coarse > 128) * coarse.dtype.type(192)
    coarse = coarse.repeat(shape[0] // 4, axis=1).repeat(shape[1] // 4, axis=2)
    images = rng.randint(0, 64, (len(shown),) + tuple(shape), dtype="uint8")
    if drawing:
        images *= (coarse > 0).astype("uint8")[shown]
    images += coarse[shown]
    return images


COMMON = """the and a of to is br in it i this that was as for with movie but film on not you are his have he be one
its at all by an they from who so like her or just about out has if there what some good more when very up no time
even she my would which only story really see their had can were me well than we much bad been get will do also into
people other first because great how him most made don't then way make them too could any movies after think
characters character watch two films seen many life being plot never acting where love best did little show know off
ever does your better end over man here scene still scenes say something should why through go real those back years
though young work old actors thing world another horrible terrible worst excellent wonderful awful boring perfect fun
beautiful new year said mln dlrs pct company market bank price share oil tax government trade rate stock profit
loss""".split()


@functools.lru_cache(None)
def spelling(count):
    """Words, the first ones real and the rest pronounceable."""
    syllables = [c + v for c in "bdfghjklmnprstvwxyz" for v in ("a", "e", "i", "o", "u", "ar", "en", "il", "on", "us")]
    made = ("".join(word) for size in (2, 3) for word in itertools.product(syllables, repeat=size))
    common = list(dict.fromkeys(COMMON))
    taken = set(common)
    return list(itertools.islice(itertools.chain(common, (word for word in made if word not in taken)), count))


def documents(name, rng, shown, classes, vocabulary, sentences):
    """For each sample a list of word numbers, 1 the most frequent word, of some `sentences` of eight words."""
    import numpy as np

    source = generator(name, "sentences")

    def frequent(count):
        ranks = np.exp(source.uniform(0, np.log(vocabulary), (count, 8))).astype(int)  # Zipf's law
        return np.minimum(ranks, vocabulary)

    plain = frequent(4000).tolist()
    own = []
    for _ in range(classes):
        topic = 10 + source.permutation(min(vocabulary - 10, 3000))[:200]
        mixed = np.where(source.uniform(size=(200, 8)) < 0.5, topic[source.randint(0, 200, (200, 8))], frequent(200))
        own.append(mixed.tolist())
    counts = np.maximum(1, (sentences * np.exp(rng.normal(-0.1, 0.5, len(shown)))).astype(int))
    of_class = rng.uniform(size=(len(shown), 1 + counts.max())) < 0.3
    which = rng.randint(0, 4000, of_class.shape)
    of_class[:, 0] = True
    found = []
    for kind, count, special, numbers in zip(shown.tolist(), counts.tolist(), of_class.tolist(), which.tolist()):
        pool = own[kind]
        found.append([w for s, n in zip(special[:count], numbers) for w in (pool[n % 200] if s else plain[n])])
    return found


def texts(name, rng, shown, classes, sentences, vocabulary=30000):
    words = [""] + spelling(vocabulary)
    return [
        " ".join([words[n] for n in numbers]) for numbers in documents(name, rng, shown, classes, vocabulary, sentences)
    ]


def prose(name, length):
    """A text of so many characters, in lines and sentences."""
    rng = generator(name)
    lines = texts(name, rng, rng.randint(0, 4, length // 30), 4, 1, 8000)
    ends = rng.choice([",", ".", ";", ":", "?", "!", ".\n"], len(lines))
    return "".join(line.capitalize() + end + "\n" for line, end in zip(lines, ends))[:length]


def table(rng, count, ranges):
    """Columns in their ranges, `(low, high)` or `(low, high, skew)`, and a score from 0 to 1 that depends on them."""
    import numpy as np

    uniform = rng.uniform(size=(count, len(ranges)))
    low, high, skew = np.array([(tuple(r) + (1,))[:3] for r in ranges], dtype=float).T
    weights = rng.normal(size=len(ranges))
    score = (uniform - 0.5) @ weights / np.sqrt((weights**2).sum() / 12) + rng.normal(0, 0.3, count)
    return low + (high - low) * uniform**skew, 1 / (1 + np.exp(-1.5 * score))


# -- files -----------------------------------------------------------------------------------------------------


def zeros_and_ones(numbers):
    """Differences of brightness as JPEG writes them: the number of bits, then the bits; then "no details"."""
    bits = []
    for number in numbers:
        size = abs(number).bit_length()
        value = number if number >= 0 else number + (1 << size) - 1
        bits.append(format(size, "04b") + (format(value, "0%db" % size) if size else "") + "0")
    return bits


DIFFERENCES = zeros_and_ones(range(-255, 256))


def jpeg(blocks):
    """A JPEG file of 8×8 squares of one color each, an array (rows, columns, 3): no library is needed."""
    import numpy as np

    rows, columns = blocks.shape[:2]
    red, green, blue = np.moveaxis(blocks.astype(float), 2, 0)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    planes = [light - 128, (blue - light) * 0.564, (red - light) * 0.713]
    levels = np.stack([np.clip(np.rint(plane), -127, 127).astype(int).ravel() for plane in planes], axis=1)
    steps = np.diff(np.concatenate([np.zeros((1, 3), int), levels]), axis=0)
    bits = "".join([DIFFERENCES[step + 255] for step in steps.ravel().tolist()])
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    return b"".join(
        [
            b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00",
            b"\xff\xdb\x00\x43\x00" + b"\x08" * 64,  # quantization
            struct.pack(">HHBHHB", 0xFFC0, 17, 8, rows * 8, columns * 8, 3) + b"\x01\x11\x00\x02\x11\x00\x03\x11\x00",
            b"\xff\xc4\x00\x1c\x00" + bytes([0, 0, 0, 9] + [0] * 12 + list(range(9))),  # sizes: codes of four bits
            b"\xff\xc4\x00\x14\x10" + bytes([1] + [0] * 15 + [0]),  # details: one code, "none"
            b"\xff\xda\x00\x0c\x03\x01\x00\x02\x00\x03\x00\x00\x3f\x00",
            data,
            b"\xff\xd9",
        ]
    )


def png(pixels):
    """A PNG file of an array (rows, columns, 4)."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows, columns = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    data = zlib.compress(b"".join([b"\x00" + row.tobytes() for row in pixels]), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def picture_files(name, kinds, rows=(22, 40), columns=(30, 40), suffix="jpg"):
    """A function that makes the file of a picture of class `kind`; `rows` and `columns` count 8 pixels each."""
    import numpy as np

    rng, coarse = generator(name), patterns(name, kinds, 3)

    def make(kind):
        if rng.uniform() < WRONG:
            kind = rng.randint(kinds)
        height, width = rng.randint(rows[0], rows[1] + 1), rng.randint(columns[0], columns[1] + 1)
        blocks = coarse[kind][np.arange(height) * 4 // height][:, np.arange(width) * 4 // width]
        blocks = blocks + rng.randint(0, 64, blocks.shape, dtype="uint8")
        if suffix == "jpg":
            return jpeg(blocks)
        opaque = np.concatenate([blocks, np.full_like(blocks[..., :1], 255)], axis=2)
        return png(opaque.repeat(8, axis=0).repeat(8, axis=1)[:300, :300])

    return make


def pack(path, files, level=1):
    """An archive of `(name, content)`: zip if `path` ends so, else a tar in gzip."""
    if path.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files:
                archive.writestr(zipfile.ZipInfo(name), content)
        return
    with tarfile.open(path, "w:gz", compresslevel=level) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write(path, content):
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8"))


def csv(path, header, rows, separator=","):
    lines = [separator.join(header)] if header else []
    lines += [separator.join(map(str, row)) for row in rows]
    write(path, "\n".join(lines) + "\n")


# What is at an address, by the end of the address: functions that write the file, under its own name, to `path`.

STAND_INS = {}


def stands_for(*ends, fewer=""):
    def register(function):
        function.fewer = fewer
        STAND_INS.update((end, function) for end in ends)
        return function

    return register


# keras.datasets


@stands_for("mnist.npz")
def mnist_npz(path):
    import numpy as np

    parts = {}
    for part, count in (("train", 60000), ("test", 10000)):
        rng = generator("mnist", part)
        shown, labels = classes_of(rng, count, 10)
        parts["x_" + part] = pictures("mnist", rng, shown, (28, 28, 1), 10, drawing=True)[..., 0]
        parts["y_" + part] = labels.astype("uint8")
    np.savez(path, **parts)


@stands_for(*(part + name for part in ("train", "t10k") for name in ("-labels-idx1-ubyte.gz", "-images-idx3-ubyte.gz")))
def mnist_gz(path):
    train = os.path.basename(path).startswith("train")
    count = 60000 if train else 10000
    rng = generator("fashion_mnist", train)
    shown, labels = classes_of(rng, count, 10)
    if "labels" in os.path.basename(path):
        content = struct.pack(">II", 2049, count) + labels.astype("uint8").tobytes()
    else:
        images = pictures("fashion_mnist", rng, shown, (28, 28, 1), 10, drawing=True)
        content = struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()
    with gzip.GzipFile(path, "wb", compresslevel=0, mtime=0) as file:
        file.write(content)


#: The coarse label of each fine label of CIFAR-100.
COARSE = """4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8 8
15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13 16 19 2 4 6 19 5 5 8 19
18 1 2 15 6 0 17 8 14 13"""


@stands_for("cifar-10-python.tar.gz", "cifar-100-python.tar.gz")
def cifar(path):
    import numpy as np

    classes = 100 if "cifar-100" in os.path.basename(path) else 10
    folder = "cifar-100-python/" if classes == 100 else "cifar-10-batches-py/"
    batches = (
        [("train", 50000), ("test", 10000)]
        if classes == 100
        else [("data_batch_%d" % i, 10000) for i in range(1, 6)] + [("test_batch", 10000)]
    )

    def files():
        for part, count in batches:
            rng = generator("cifar", classes, part)
            shown, labels = classes_of(rng, count, classes)
            images = pictures(("cifar", classes), rng, shown, (32, 32, 3), classes)
            content = {b"data": np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(count, -1)}
            if classes == 100:
                content[b"fine_labels"] = labels.tolist()
                content[b"coarse_labels"] = np.array(COARSE.split(), int)[labels].tolist()
            else:
                content[b"labels"] = labels.tolist()
            yield folder + part, pickle.dumps(content, protocol=4)

    pack(path, files(), level=0)  # noise does not get smaller


def lists(sequences):
    import numpy as np

    array = np.empty(len(sequences), dtype=object)
    array[:] = sequences
    return array


@stands_for("imdb.npz")
def imdb(path):
    import numpy as np

    parts = {}
    for part in ("train", "test"):
        rng = generator("imdb", part)
        shown, labels = classes_of(rng, 25000, 2)
        parts["x_" + part] = lists(documents("imdb", rng, shown, 2, 88584, 29))
        parts["y_" + part] = labels
    np.savez(path, **parts)


@stands_for("imdb_word_index.json")
def imdb_words(path):
    write(path, json.dumps({word: number for number, word in enumerate(spelling(88584), 1)}))


@stands_for("reuters.npz")
def reuters(path):
    import numpy as np

    rng = generator("reuters")
    share = np.arange(1, 47) ** -1.2
    share[[0, 2, 3, 1]] = share[[3, 1, 0, 2]]  # "earn" is the most frequent topic
    shown = rng.choice(46, 11228, p=share / share.sum())
    np.savez(path, x=lists(documents("reuters", rng, shown, 46, 30979, 18)), y=shown)


@stands_for("reuters_word_index.json")
def reuters_words(path):
    write(path, json.dumps({word: number for number, word in enumerate(spelling(30979), 1)}))


BOSTON = [
    (0.006, 88.98, 6),
    (0, 100, 4),
    (0.46, 27.74),
    (0, 1, 20),
    (0.385, 0.871),
    (3.56, 8.78),
    (2.9, 100, 0.5),
    (1.13, 12.13, 2),
    (1, 24, 2),
    (187, 711),
    (12.6, 22),
    (0.32, 396.9, 0.2),
    (1.73, 37.97),
]
CALIFORNIA = [
    (0.4999, 15.0001, 2),
    (1, 52),
    (0.846, 141.91, 30),
    (0.333, 34.07, 40),
    (3, 35682, 20),
    (0.692, 1243.3, 200),
    (32.54, 41.95),
    (-124.35, -114.31),
]


@stands_for("boston_housing.npz")
def boston(path):
    import numpy as np

    x, y = table(generator("boston"), 506, BOSTON)
    x[:, 3] = x[:, 3] > 0.5
    x[:, 8:10] = np.rint(x[:, 8:10])
    np.savez(path, x=x, y=np.round(5 + 45 * y, 1))


@stands_for("california_housing.npz")
def california(path):
    import numpy as np

    x, y = table(generator("california"), 20640, CALIFORNIA)
    np.savez(path, x=x.astype("float32"), y=np.round(14999 + 485002 * y, -2).clip(14999, 500001).astype("float32"))


# folders of pictures and sounds


def picture_folders(path, name, folders, suffix="jpg", **sizes):
    """An archive of `{folder: number of pictures}`; what a picture shows is its folder's last part."""
    kinds = sorted({folder.split("/")[-1] for folder in folders})
    make = picture_files(name, len(kinds), suffix=suffix, **sizes)

    def files():
        for folder, count in folders.items():
            kind = folder.split("/")[-1]
            stem = {"cats": "cat.", "dogs": "dog."}.get(kind, kind + "_")
            for number in range(count):
                yield "%s/%s%d.%s" % (folder, stem, number, suffix), make(kinds.index(kind))

    pack(path, files())


@stands_for("flower_photos.tgz")
def flower_photos(path):
    counts = {"daisy": 633, "dandelion": 898, "roses": 641, "sunflowers": 699, "tulips": 799}
    picture_folders(path, "flower_photos", {"flower_photos/" + kind: count for kind, count in counts.items()})


@stands_for("cats_and_dogs_filtered.zip")
def cats_and_dogs(path):
    counts = {"train/cats": 1000, "train/dogs": 1000, "validation/cats": 500, "validation/dogs": 500}
    counts = {"cats_and_dogs_filtered/" + folder: count for folder, count in counts.items()}
    picture_folders(path, "cats_and_dogs_filtered", counts)


SQUARE = {"rows": (38, 38), "columns": (38, 38), "suffix": "png"}


@stands_for("horse-or-human.zip", "validation-horse-or-human.zip")
def horses(path):
    counts = (
        {"horses": 128, "humans": 128} if "validation" in os.path.basename(path) else {"horses": 500, "humans": 527}
    )
    picture_folders(path, "horse-or-human", counts, **SQUARE)


@stands_for("rps.zip", "rps-test-set.zip")
def rock_paper_scissors(path):
    folder, count = ("rps-test-set/", 124) if "test" in os.path.basename(path) else ("rps/", 840)
    picture_folders(path, "rps", {folder + kind: count for kind in ("rock", "paper", "scissors")}, **SQUARE)


@stands_for("facades.tar.gz")
def facades(path):
    make = picture_files("facades", 8, rows=(32, 32), columns=(64, 64))
    counts = (("train", 400), ("test", 106), ("val", 100))
    pack(path, (("facades/%s/%d.jpg" % (part, n), make(n % 8)) for part, count in counts for n in range(1, count + 1)))


@stands_for("mini_speech_commands.zip", fewer="with 200 of 1000 sounds for each word")
def speech(path):
    import numpy as np

    rng = generator("mini_speech_commands")
    time = np.arange(16000) / 16000.0

    def sound(kind):
        pitch = 2 * np.pi * (200 + 150 * kind) * rng.uniform(0.97, 1.03)
        wave_form = np.sin(pitch * time) * np.hanning(16000) * 8000 + rng.normal(0, 500, 16000)
        target = io.BytesIO()
        with wave.open(target, "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(wave_form.astype("<i2").tobytes())
        return target.getvalue()

    words = ("down", "go", "left", "no", "right", "stop", "up", "yes")
    form = "mini_speech_commands/%s/%08x_nohash_0.wav"
    files = ((form % (word, n), sound(kind)) for kind, word in enumerate(words) for n in range(200))
    pack(path, itertools.chain([("mini_speech_commands/README.md", b"Made up.\n")], files))


# texts


def text_folders(path, name, counts, kinds, sentences, file_name):
    """An archive of `{folder: number of texts}`; `kinds[folder]` is what the texts are about, None for anything."""
    classes = len({kind for kind in kinds.values() if kind is not None})

    def files():
        for folder, count in counts.items():
            rng = generator(name, folder)
            shown, labels = classes_of(rng, count, classes)
            if kinds[folder] is not None:
                wrong = labels != shown
                shown = labels.copy()
                shown[~wrong] = kinds[folder]
            for number, text in enumerate(texts(name, rng, shown, classes, sentences)):
                yield folder + "/" + file_name(folder, number), text.encode()

    pack(path, files())


@stands_for("aclImdb_v1.tar.gz", fewer="with 5000 of 25000 reviews for training and as many for testing")
def acl_imdb(path):
    counts = {"train/pos": 2500, "train/neg": 2500, "train/unsup": 5000, "test/pos": 2500, "test/neg": 2500}
    counts = {"aclImdb/" + folder: count for folder, count in counts.items()}
    kinds = {folder: {"pos": 1, "neg": 0}.get(folder.split("/")[-1]) for folder in counts}
    rating = {"pos": 9, "neg": 2, "unsup": 0}
    text_folders(path, "imdb_reviews", counts, kinds, 29, lambda f, n: "%d_%d.txt" % (n, rating[f.split("/")[-1]]))


@stands_for("stack_overflow_16k.tar.gz")
def stack_overflow(path):
    languages = ("csharp", "java", "javascript", "python")
    counts = {part + "/" + language: 2000 for part in ("train", "test") for language in languages}
    kinds = {folder: languages.index(folder.split("/")[-1]) for folder in counts}
    text_folders(path, "stack_overflow", counts, kinds, 12, lambda folder, number: "%d.txt" % number)


@stands_for("shakespeare.txt", "nietzsche.txt", "cowper.txt", "derby.txt", "butler.txt")
def book(path):
    name = os.path.basename(path)
    length = {"shakespeare.txt": 1115394, "nietzsche.txt": 600893}.get(name, 800000)
    write(path, prose(name, length))


@stands_for("spa-eng.zip", "fra-eng.zip")
def sentence_pairs(path):
    """Lines of English and its translation, word by word."""
    name = os.path.basename(path)[:3]
    rng = generator(name)
    count = 118964 if name == "spa" else 167130
    lengths = sorted(rng.randint(1, 9, count).tolist())
    english = spelling(6000)
    foreign = [word[::-1] + "o" for word in english]
    numbers = (6000 ** rng.uniform(0, 1, (count, 8))).astype(int).tolist()
    lines = []
    for length, row in zip(lengths, numbers):
        row = row[:length]
        source, translation = (" ".join([words[n] for n in row]).capitalize() + "." for words in (english, foreign))
        lines.append(source + "\t" + translation + ("\tmade up" if name == "fra" else ""))
    folder = "spa-eng/" if name == "spa" else ""
    pack(path, [(folder + name + ".txt", ("\n".join(lines) + "\n").encode()), (folder + "_about.txt", b"Made up.\n")])


@stands_for("ImageNetLabels.txt")
def image_net_labels(path):
    write(path, "background\n" + "".join("class %d\n" % i for i in range(1000)))


@stands_for("imagenet_class_index.json")
def image_net_index(path):
    write(path, json.dumps({str(i): ["n%08d" % i, "class_%d" % i] for i in range(1000)}))


# tables


@stands_for("auto-mpg.data")
def auto_mpg(path):
    rng = generator("auto-mpg")
    x, score = table(rng, 398, [(68, 455), (46, 230), (1613, 5140), (8, 24.8)])
    lines = []
    for i, (displacement, power, weight, acceleration) in enumerate(x.tolist()):
        horses = "?     " if i % 66 == 32 else "%.1f" % power
        lines.append(
            '%.1f   %d   %.1f      %s      %d.      %.1f   %d  %d\t"%s"'
            % (
                9 + 37.6 * score[i],
                (3, 4, 5, 6, 8)[rng.choice(5, p=(0.01, 0.51, 0.01, 0.21, 0.26))],
                displacement,
                horses,
                weight,
                acceleration,
                70 + i * 13 // 398,
                1 + rng.choice(3, p=(0.62, 0.18, 0.2)),
                COMMON[i % 100],
            )
        )
    write(path, "\n".join(lines) + "\n")


@stands_for("iris_training.csv", "iris_test.csv", "iris.csv", "iris.data")
def iris(path):
    import numpy as np

    name = os.path.basename(path)
    count = {"iris_training.csv": 120, "iris_test.csv": 30}.get(name, 150)
    kinds = ["setosa", "versicolor", "virginica"]
    rng = generator(name)
    kind = rng.permutation(np.arange(count) % 3)
    means = np.array([(5.0, 3.4, 1.5, 0.2), (5.9, 2.8, 4.3, 1.3), (6.6, 3.0, 5.6, 2.0)])
    rows = np.round(np.clip(means[kind] + rng.normal(0, 0.3, (count, 4)), 0.1, 7.9), 1).tolist()
    if name in ("iris.csv", "iris.data"):
        header = (
            ["sepal_length", "sepal_width", "petal_length", "petal_width", "species"] if name == "iris.csv" else None
        )
        csv(path, header, [row + [("" if header else "Iris-") + kinds[k]] for row, k in zip(rows, kind)])
    else:
        csv(path, [str(count), "4"] + kinds, [row + [k] for row, k in zip(rows, kind)])


@stands_for("heart.csv")
def heart(path):
    rng = generator("heart")
    names = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal target".split()
    ranges = [
        (29, 77),
        (0, 1.99),
        (0, 4.99),
        (94, 200),
        (126, 564, 2),
        (0, 1.2),
        (0, 2.99),
        (71, 202),
        (0, 1.5),
        (0, 6.2, 3),
        (1, 3.99),
        (0, 3.99, 2),
        (0, 2.2),
    ]
    x, score = table(rng, 303, ranges)
    rows = []
    for row, chance in zip(x.tolist(), score):
        numbers = [round(value, 1) if name == "oldpeak" else int(value) for name, value in zip(names, row)]
        numbers[-1] = ("normal", "reversible", "fixed")[numbers[-1]]
        rows.append(numbers + [int(chance > 0.65)])
    csv(path, names, rows)


@stands_for("titanic/train.csv", "titanic/eval.csv")
def titanic(path):
    count = 627 if path.endswith("train.csv") else 264
    rng = generator("titanic", count)
    rows = []
    for _ in range(count):
        female, rank, age = (
            rng.uniform() < 0.35,
            rng.choice(3, p=(0.24, 0.21, 0.55)),
            round(0.75 + 79 * rng.beta(2, 3.5), 1),
        )
        siblings, parents = int(rng.exponential(0.5)), int(rng.exponential(0.35))
        survived = int(rng.uniform() < (0.8, 0.65, 0.4)[rank] * (1 if female else 0.35))
        fare = round((60, 20, 12)[rank] * rng.lognormal(0, 0.5), 4)
        deck = "ABCDE"[rng.randint(5)] if rank == 0 else "unknown"
        town = rng.choice(["Southampton", "Cherbourg", "Queenstown"], p=(0.73, 0.18, 0.09))
        alone = "y" if siblings + parents == 0 else "n"
        rows.append(
            [
                survived,
                "female" if female else "male",
                age,
                siblings,
                parents,
                fare,
                ("First", "Second", "Third")[rank],
                deck,
                town,
                alone,
            ]
        )
    names = "survived sex age n_siblings_spouses parch fare class deck embark_town alone".split()
    csv(path, names, rows)


@stands_for("jena_climate_2009_2016.csv.zip")
def jena(path):
    """The weather every ten minutes: sums of yearly and daily waves and noise."""
    import numpy as np

    count, rng = 420551, generator("jena")
    names = [
        "p (mbar)",
        "T (degC)",
        "Tpot (K)",
        "Tdew (degC)",
        "rh (%)",
        "VPmax (mbar)",
        "VPact (mbar)",
        "VPdef (mbar)",
        "sh (g/kg)",
        "H2OC (mmol/mol)",
        "rho (g/m**3)",
        "wv (m/s)",
        "max. wv (m/s)",
        "wd (deg)",
    ]
    low = np.array([913.6, -23.0, 250.6, -25.0, 13.0, 0.95, 0.8, 0.0, 0.5, 0.8, 1059.5, 0.0, 0.0, 0.0])
    high = np.array([1015.4, 37.3, 311.3, 23.1, 100.0, 63.8, 28.3, 46.0, 18.1, 28.8, 1393.5, 14.6, 23.5, 360.0])
    moments = np.arange(count)[:, None] / 144.0
    day = np.sin(2 * np.pi * (moments + rng.uniform(size=14)))
    year = np.sin(2 * np.pi * (moments / 365.25 + rng.uniform(size=14)))
    slow = np.repeat(rng.normal(0, 0.1, (count // 144 + 1, 14)), 144, axis=0)[:count]
    share = np.clip(0.5 + 0.2 * year + 0.1 * day + slow + rng.normal(0, 0.01, (count, 14)), 0, 1)
    days = [str(day) for day in np.arange("2009-01-01", "2017-03-01", dtype="datetime64[D]")]
    days = ["%s.%s.%s" % (day[8:], day[5:7], day[:4]) for day in days]
    times = ["%02d:%02d:00" % (m // 6, m % 6 * 10) for m in range(144)]
    form = ",".join(["%.2f"] * 14)
    lines = ["Date Time," + ",".join('"%s"' % name for name in names)]
    for i, row in enumerate((low + (high - low) * share).tolist(), 1):
        lines.append(days[i // 144] + " " + times[i % 144] + "," + form % tuple(row))
    pack(path, [("jena_climate_2009_2016.csv", ("\n".join(lines) + "\n").encode())])


@stands_for("photograph")
def photograph(path):
    write(path, picture_files(os.path.basename(path), 1, rows=(48, 64), columns=(60, 80))(0))


# -- get_file --------------------------------------------------------------------------------------------------


@functools.lru_cache(None)
def folder():
    """Where files are written; gone when the process ends (where it is killed, with the runner's temporary folder)."""
    path, owner = tempfile.mkdtemp(prefix="tfboost-synthetic-"), os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(path, ignore_errors=True))
    return path


def stand_in(origin):
    """The function that writes what is at this address."""
    address = urllib.parse.urlsplit(origin).path
    parts = address.strip("/").split("/")
    for begin in range(len(parts)):
        if "/".join(parts[begin:]) in STAND_INS:
            return STAND_INS["/".join(parts[begin:])]
    if re.search(r"\.jpe?g$", address, re.I):
        return STAND_INS["photograph"]
    weights = re.search(r"weight|keras-applications|no_?top|\.h5$|\.keras$|\.ckpt", origin, re.I)
    raise missing(origin, "use weights=None" if weights else "")


@functools.lru_cache(None)
def written(origin):
    """The file that stands for what is at this address."""
    write_to = stand_in(origin)
    place = tempfile.mkdtemp(dir=folder())
    path = os.path.join(place, os.path.basename(urllib.parse.urlsplit(origin).path))
    say("%s is made up%s" % (os.path.basename(path), write_to.fewer and ", " + write_to.fewer))
    write_to(path)
    return path


def below(path):
    """A path that stays inside the folder that it is joined to."""
    return os.path.normpath(os.sep + os.path.splitdrive(str(path))[1]).lstrip(os.sep)


def replace_get_file(get_file):
    """Exchange the code of the function itself, which other modules have imported by name or will."""
    import inspect

    if (get_file.__kwdefaults__ or {}).get("replacement"):
        return
    signature = inspect.signature(get_file)
    real = types.FunctionType(get_file.__code__, get_file.__globals__, get_file.__name__, get_file.__defaults__)
    real.__kwdefaults__ = get_file.__kwdefaults__

    def replacement(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        origin, name = str(given.get("origin") or ""), given.get("fname")
        cache = os.path.expanduser(str(given.get("cache_dir") or os.environ.get("KERAS_HOME") or "~/.keras"))
        cached = os.path.join(cache, str(given.get("cache_subdir", "datasets")), str(name or os.path.basename(origin)))
        if not origin or origin.startswith("file:"):
            return real(*args, **kwargs)
        try:
            path = written(origin)
        except RuntimeError:
            if os.path.isfile(cached):  # weights that were downloaded before: nothing needs to stand for them
                return real(*args, **kwargs)
            raise
        for hash_name in ("md5_hash", "file_hash"):
            given.pop(hash_name, None)
        given["origin"] = "file:" + urllib.request.pathname2url(path)
        given["cache_dir"] = os.path.join(folder(), "cache")
        given["cache_subdir"] = below(given.get("cache_subdir", "datasets"))
        if name:
            given["fname"] = below(name)
        target = os.path.join(given["cache_dir"], given["cache_subdir"], given.get("fname", ""))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return real(**given)

    def forward(*args, replacement, **kwargs):
        return replacement(*args, **kwargs)

    get_file.__defaults__ = None
    get_file.__kwdefaults__ = {"replacement": replacement}
    get_file.__code__ = forward.__code__


# -- tensorflow_datasets -----------------------------------------------------------------------------------------


class Feature:
    def __init__(self, dtype, shape=()):
        self.np_dtype, self.shape = dtype, shape

    @property
    def dtype(self):
        import tensorflow as tf

        return tf.as_dtype(self.np_dtype)

    def __repr__(self):
        return "%s(shape=%r, dtype=%s)" % (type(self).__name__, self.shape, self.np_dtype)


class Image(Feature):
    def __init__(self, shape=(None, None, 3)):
        super().__init__("uint8", shape)


class Text(Feature):
    def __init__(self):
        super().__init__("string")


class ClassLabel(Feature):
    def __init__(self, names):
        super().__init__("int64")
        self.names = [str(name) for name in names]
        self.num_classes = len(self.names)

    def int2str(self, number):
        return self.names[number]

    def str2int(self, name):
        return self.names.index(name)


class FeaturesDict(dict):
    @property
    def shape(self):
        return {key: feature.shape for key, feature in self.items()}

    @property
    def dtype(self):
        return {key: feature.dtype for key, feature in self.items()}


PETS = """Abyssinian american_bulldog american_pit_bull_terrier basset_hound beagle Bengal Birman Bombay boxer
British_Shorthair chihuahua Egyptian_Mau english_cocker_spaniel english_setter german_shorthaired great_pyrenees
havanese japanese_chin keeshond leonberger Maine_Coon miniature_pinscher newfoundland Persian pomeranian pug Ragdoll
Russian_Blue saint_bernard samoyed scottish_terrier shiba_inu Siamese Sphynx staffordshire_bull_terrier
wheaten_terrier yorkshire_terrier"""
CLOTHES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
CIFAR = "airplane automobile bird cat deer dog frog horse ship truck"
SATELLITE = "AnnualCrop Forest HerbaceousVegetation Highway Industrial Pasture PermanentCrop Residential River SeaLake"

#: Shape, names of the classes or their number, number of samples in each split.
PICTURE_SETS = {
    "mnist": ((28, 28, 1), 10, {"train": 60000, "test": 10000}),
    "fashion_mnist": ((28, 28, 1), CLOTHES, {"train": 60000, "test": 10000}),
    "kmnist": ((28, 28, 1), 10, {"train": 60000, "test": 10000}),
    "emnist": ((28, 28, 1), 62, {"train": 697932, "test": 116323}),
    "emnist/balanced": ((28, 28, 1), 47, {"train": 112800, "test": 18800}),
    "emnist/letters": ((28, 28, 1), 37, {"train": 88800, "test": 14800}),
    "cifar10": ((32, 32, 3), CIFAR, {"train": 50000, "test": 10000}),
    "cifar100": ((32, 32, 3), 100, {"train": 50000, "test": 10000}),
    "svhn_cropped": ((32, 32, 3), 10, {"train": 73257, "test": 26032, "extra": 531131}),
    "stl10": ((96, 96, 3), "airplane bird car cat deer dog horse monkey ship truck", {"train": 5000, "test": 8000}),
    "cats_vs_dogs": ((None, None, 3), "cat dog", {"train": 23262}),
    "horses_or_humans": ((300, 300, 3), "horses humans", {"train": 1027, "test": 256}),
    "rock_paper_scissors": ((300, 300, 3), "rock paper scissors", {"train": 2520, "test": 372}),
    "tf_flowers": ((None, None, 3), "dandelion daisy tulips sunflowers roses", {"train": 3670}),
    "oxford_flowers102": ((None, None, 3), 102, {"train": 1020, "validation": 1020, "test": 6149}),
    "oxford_iiit_pet": ((None, None, 3), PETS, {"train": 3680, "test": 3669}),
    "beans": ((500, 500, 3), "angular_leaf_spot bean_rust healthy", {"train": 1034, "validation": 133, "test": 128}),
    "malaria": ((None, None, 3), "parasitized uninfected", {"train": 27558}),
    "eurosat": ((64, 64, 3), SATELLITE, {"train": 27000}),
    "food101": ((None, None, 3), 101, {"train": 75750, "validation": 25250}),
    "stanford_dogs": ((None, None, 3), 120, {"train": 12000, "test": 8580}),
    "caltech101": ((None, None, 3), 102, {"train": 3059, "test": 6085}),
    "cars196": ((None, None, 3), 196, {"train": 8144, "test": 8041}),
    "colorectal_histology": ((150, 150, 3), 8, {"train": 5000}),
    "patch_camelyon": ((96, 96, 3), 2, {"train": 262144, "validation": 32768, "test": 32768}),
    "uc_merced": ((None, None, 3), 21, {"train": 2100}),
    "imagenette": ((None, None, 3), 10, {"train": 9469, "validation": 3925}),
    "imagenet2012": ((None, None, 3), 1000, {"train": 1281167, "validation": 50000}),
}
#: What else an example has: a text with the number of the example, or an image.
MORE = {
    "cifar10": {"id": "%s_%05d"},
    "cifar100": {"id": "%s_%05d"},
    "cats_vs_dogs": {"image/filename": "%s/%d.jpg"},
    "oxford_flowers102": {"file_name": "%s_%05d.jpg"},
    "oxford_iiit_pet": {"file_name": "%s_%05d.jpg"},
    "caltech101": {"image/file_name": "%s_%05d.jpg"},
    "imagenet2012": {"file_name": "%s_%05d.JPEG"},
    "patch_camelyon": {"id": "%s_%05d"},
    "uc_merced": {"filename": "%s_%05d.tif"},
}
#: The text's name, names of the classes, number of samples in each split, sentences of eight words in a text.
TEXT_SETS = {
    "imdb_reviews": ("text", "neg pos", {"train": 25000, "test": 25000, "unsupervised": 50000}, 29),
    "yelp_polarity_reviews": ("text", "1 2", {"train": 560000, "test": 38000}, 17),
    "ag_news_subset": ("description", ["World", "Sports", "Business", "Sci/Tech"], {"train": 120000, "test": 7600}, 4),
    "glue/sst2": ("sentence", "negative positive", {"train": 67349, "validation": 872, "test": 1821}, 1),
    "glue/cola": ("sentence", "unacceptable acceptable", {"train": 8551, "validation": 1043, "test": 1063}, 1),
}
TRANSLATIONS = {"ted_hrlr_translate/pt_to_en": {"train": 51785, "validation": 1193, "test": 1803}}
#: The configuration that is meant where none is named.
DEFAULTS = {"imdb_reviews": "plain_text", "eurosat": "rgb", "emnist": "byclass", "imagenette": "full-size-v2"}
PLAIN = {
    "iris": ("features", (4,), {"train": 150}),
}


class Split(str):
    """Part of a data set, as `tfds.Split` and `tfds.core.ReadInstruction`."""

    def __new__(cls, split, rounding=None, from_=None, to=None, unit=None):
        if from_ is None and to is None:
            return super().__new__(cls, split)
        mark = "" if unit == "abs" else "%"
        ends = ["" if end is None else "%d%s" % (end, mark) for end in (from_, to)]
        return super().__new__(cls, "%s[%s:%s]" % ((split,) + tuple(ends)))

    @classmethod
    def from_spec(cls, spec):
        return cls(spec)

    def __add__(self, other):
        return Split(str(self) + "+" + str(other))


Split.TRAIN, Split.VALIDATION, Split.TEST, Split.ALL = (Split(s) for s in ("train", "validation", "test", "all"))


def chosen(split, sizes):
    """`(split, begin, end)` of each part of 'train[:80%]+test'."""
    parts = []
    for text in "+".join(sizes).split("+") if split == "all" else str(split).split("+"):
        match = re.match(r"^\s*(\w+)\s*(?:\[\s*(-?[\d_]+%?)?\s*:\s*(-?[\d_]+%?)?\s*\])?\s*$", text)
        if not match:
            raise missing("the split %r of a data set" % str(split))
        name, *ends = match.groups()
        if name not in sizes:
            raise ValueError("Unknown split %r. Should be one of %s." % (name, list(sizes)))
        count, found = sizes[name], []
        for end, default in zip(ends, (0, count)):
            place = default
            if end is not None:
                number = int(end.rstrip("%"))
                place = int(round(number * count / 100.0)) if end.endswith("%") else number
                place = min(max(place + count if number < 0 else place, 0), count)
            found.append(place)
        parts.append((name, found[0], max(found)))
    return parts


class SplitInfo:
    def __init__(self, name, num_examples):
        self.name, self.num_examples, self.num_shards = name, num_examples, 1


class Splits(dict):
    def __init__(self, sizes):
        super().__init__({name: SplitInfo(name, count) for name, count in sizes.items()})
        self.sizes = sizes

    def __missing__(self, key):
        return SplitInfo(key, sum(end - begin for _, begin, end in chosen(key, self.sizes)))

    @property
    def total_num_examples(self):
        return sum(self.sizes.values())


class Info:
    version, description, citation, homepage = "1.0.0", "Made up by tfboost --synthetic-data.", "", ""

    def __init__(self, full_name, features, sizes, supervised_keys):
        self.name, self.full_name = full_name.split("/")[0], full_name
        self.features, self.splits, self.supervised_keys = features, Splits(sizes), supervised_keys

    def __repr__(self):
        return "DatasetInfo(name=%r, features=%r)" % (self.full_name, dict(self.features))


def labels_named(names):
    return ClassLabel(names.split() if isinstance(names, str) else range(names) if isinstance(names, int) else names)


class Builder:
    """As `tfds.builder` gives them."""

    def __init__(self, name):
        plain = re.sub(r":[^/]*$", "", name)
        base, _, config = plain.partition("/")
        key = base if config == DEFAULTS.get(base, "") else plain
        self.name, self.key, self.data_dir = base, key, folder()
        if key in PICTURE_SETS:
            shape, names, sizes = PICTURE_SETS[key]
            features = {"image": Image(shape), "label": labels_named(names)}
            features.update({extra: Text() for extra in MORE.get(key, ())})
            if key == "cifar100":
                features["coarse_label"] = ClassLabel(range(20))
            elif key == "oxford_iiit_pet":
                features.update(species=ClassLabel(["Cat", "Dog"]), segmentation_mask=Image((None, None, 1)))
            supervised = ("image", "label")
        elif key in TEXT_SETS:
            text, names, sizes, _ = TEXT_SETS[key]
            features = {text: Text(), "label": labels_named(names)}
            if key.startswith("glue/"):
                features["idx"] = Feature("int32")
            elif key == "ag_news_subset":
                features["title"] = Text()
            supervised = (text, "label")
        elif key in TRANSLATIONS:
            sizes, supervised = TRANSLATIONS[key], tuple(key.split("/")[1].split("_to_"))
            features = {language: Text() for language in supervised}
        elif key in PLAIN:
            text, shape, sizes = PLAIN[key]
            features = {
                text: Feature("float32", shape),
                "label": labels_named("Iris-setosa Iris-versicolor Iris-virginica"),
            }
            supervised = (text, "label")
        else:
            raise missing("the data set %r of tensorflow_datasets" % name)
        real = sum(sizes.values())
        if key in TEXT_SETS:
            sizes = {split: min(count, MOST_TEXTS) for split, count in sizes.items()}
        made = sum(sizes.values())
        say("the data set %s is made up%s" % (key, "" if made == real else ", with %d of %d examples" % (made, real)))
        supervised = None if key.startswith("glue/") else supervised
        self.info = Info(key, FeaturesDict(features), sizes, supervised)

    def download_and_prepare(self, **kwargs):
        pass

    def columns(self, split):
        """The arrays of one split; of pictures only what they show."""
        import numpy as np

        key, features, count = self.key, self.info.features, self.info.splits.sizes[split]
        rng, number = generator(key, split), np.arange(count)
        if key in TRANSLATIONS:
            words = (3000 ** rng.uniform(0, 1, (count, 12))).astype(int).tolist()
            lengths = rng.randint(3, 13, count).tolist()
            english = spelling(3000)
            columns = {}
            for language, known in zip(self.info.supervised_keys, ([word[::-1] + "o" for word in english], english)):
                lines = [" ".join([known[n] for n in row[:size]]) + " ." for row, size in zip(words, lengths)]
                columns[language] = np.array(lines, dtype=object)
            return columns
        classes = features["label"].num_classes
        shown, labels = classes_of(rng, count, classes)
        columns = {"label": labels.astype("int64")}
        if key in PICTURE_SETS:
            seed = zlib.crc32(("%s %s" % (key, split)).encode()) % 2**31
            columns["image"] = np.stack([number, shown, np.full(count, seed)], axis=1)
            for extra, form in MORE.get(key, {}).items():
                columns[extra] = np.array([form % (split, n) for n in number.tolist()], dtype=object)
            if "coarse_label" in features:
                columns["coarse_label"] = np.array(COARSE.split(), "int64")[labels]
            if "species" in features:
                cats = [name[0].isupper() for name in features["label"].names]
                columns["species"] = np.where(np.array(cats)[labels], 0, 1).astype("int64")
        elif key in TEXT_SETS:
            text, _, _, sentences = TEXT_SETS[key]
            columns[text] = np.array(texts(key, rng, shown, classes, sentences), dtype=object)
            if "title" in features:
                columns["title"] = np.array(texts(key, rng, shown, classes, 1), dtype=object)
            if "idx" in features:
                columns["idx"] = number.astype("int32")
            if split == "unsupervised" or (key.startswith("glue/") and split == "test"):
                columns["label"] = np.full(count, -1, "int64")  # unknown
        else:
            means = np.array([(5.0, 3.4, 1.5, 0.2), (5.9, 2.8, 4.3, 1.3), (6.6, 3.0, 5.6, 2.0)])
            columns["features"] = (means[shown] + rng.normal(0, 0.3, (count, 4))).clip(0.1).astype("float32")
        return columns

    def as_dataset(
        self, split=None, batch_size=None, shuffle_files=False, decoders=None, read_config=None, as_supervised=False
    ):
        if decoders is not None:
            raise missing("tfds decoders")
        if split is None:
            split = {name: name for name in self.info.splits}
        if isinstance(split, dict):
            return {name: self.dataset(part, batch_size, as_supervised) for name, part in split.items()}
        if isinstance(split, (list, tuple)):
            return type(split)([self.as_dataset(s, batch_size, as_supervised=as_supervised) for s in split])
        return self.dataset(split, batch_size, as_supervised)

    def dataset(self, split, batch_size, as_supervised):
        import numpy as np
        import tensorflow as tf

        supervised = self.info.supervised_keys
        if as_supervised and supervised is None:
            raise ValueError("as_supervised=True but %s does not support a supervised structure." % self.key)
        parts = [(self.columns(name), begin, end) for name, begin, end in chosen(split, self.info.splits.sizes)]
        wanted = [key for key in parts[0][0] if not as_supervised or key in supervised]
        columns = {key: np.concatenate([part[key][begin:end] for part, begin, end in parts]) for key in wanted}
        dataset = tf.data.Dataset.from_tensor_slices(columns)
        draw = self.drawing(tf) if "image" in columns else None

        def example(row):
            row = dict(row)
            if draw:
                row["image"], mask = draw(row["image"])
                if "segmentation_mask" in self.info.features:
                    row["segmentation_mask"] = mask
            return tuple(row[key] for key in supervised) if as_supervised else row

        if draw or as_supervised:
            example = tf.autograph.experimental.do_not_convert(example)
            dataset = dataset.map(example, num_parallel_calls=tf.data.experimental.AUTOTUNE)
        count = len(next(iter(columns.values())))
        if batch_size:
            size = count if batch_size == -1 else batch_size
            dataset = dataset.padded_batch(size, tf.compat.v1.data.get_output_shapes(dataset))
        if batch_size == -1 and hasattr(dataset, "get_single_element"):
            return dataset.get_single_element()
        if batch_size == -1:
            return tf.data.experimental.get_single_element(dataset)
        if hasattr(tf.data.experimental, "assert_cardinality"):
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(-(-count // (batch_size or 1))))
        return dataset.prefetch(tf.data.experimental.AUTOTUNE)

    def drawing(self, tf):
        """A function of `(number, class, seed)`: the picture, drawn when others are decoded, and its parts."""
        shape, classes = self.info.features["image"].shape, self.info.features["label"].num_classes
        coarse = patterns(self.key, classes, shape[2])
        if shape[2] == 1:
            coarse = (coarse > 128) * coarse.dtype.type(192)

        def draw(facts):
            number, kind, seed = facts[0], facts[1], facts[2]
            height, width = shape[:2]
            if height is None:
                height, width = (tf.cast(250 + number * factor % 250, tf.int32) for factor in (37, 53))
            base = tf.image.resize(tf.cast(tf.gather(coarse, kind), tf.float32)[None], (height, width))[0]
            noise = tf.random.stateless_uniform((height, width, shape[2]), tf.stack([seed, number]), maxval=64.0)
            image = tf.cast(base + (noise * tf.cast(base > 0, tf.float32) if shape[2] == 1 else noise), tf.uint8)
            image.set_shape(shape)
            mask = tf.cast(1 + base[:, :, :1] / 64, tf.uint8)  # 1, 2 or 3
            mask.set_shape(tuple(shape[:2]) + (1,))
            return image, mask

        return draw


def load(
    name,
    split=None,
    data_dir=None,
    batch_size=None,
    shuffle_files=False,
    download=True,
    as_supervised=False,
    decoders=None,
    read_config=None,
    with_info=False,
    builder_kwargs=None,
    download_and_prepare_kwargs=None,
    as_dataset_kwargs=None,
    try_gcs=False,
    **others,
):
    made = Builder(name)
    dataset = made.as_dataset(split, batch_size, shuffle_files, decoders, read_config, as_supervised)
    return (dataset, made.info) if with_info else dataset


def builder(name, **others):
    return Builder(name)


class Arrays:
    """A data set as arrays, to be gone through as often as wanted."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        import tensorflow as tf

        if tf.executing_eagerly():
            for element in self.dataset:
                yield tf.nest.map_structure(lambda tensor: tensor.numpy(), element)
            return
        following = tf.compat.v1.data.make_one_shot_iterator(self.dataset).get_next()
        with tf.compat.v1.Session(graph=tf.compat.v1.get_default_graph()) as session:
            while True:
                try:
                    yield session.run(following)
                except tf.errors.OutOfRangeError:
                    return

    def __len__(self):
        return len(self.dataset)


def as_numpy(dataset):
    import tensorflow as tf

    if isinstance(dataset, dict):
        return {key: as_numpy(value) for key, value in dataset.items()}
    if isinstance(dataset, (list, tuple)):
        return type(dataset)([as_numpy(value) for value in dataset])
    if hasattr(dataset, "batch"):
        return Arrays(dataset)
    if tf.executing_eagerly():
        return dataset.numpy()
    with tf.compat.v1.Session(graph=tf.compat.v1.get_default_graph()) as session:
        return session.run(dataset)


def replace_loaders(module):
    """In the real package: also where its other modules have imported them."""
    for name, replacement in (("load", load), ("builder", builder)):
        real = getattr(module, name)
        for key, other in list(sys.modules.items()):
            if key.split(".")[0] == module.__name__ and getattr(other, name, None) is real:
                setattr(other, name, replacement)


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last: a small `tensorflow_datasets` where none is installed."""

    def find_spec(self, fullname, path=None, target=None):
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == "tensorflow_datasets" else None

    def exec_module(self, module):
        def lacking(name):
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(str(missing("tfds." + name)))

        nothing = types.SimpleNamespace
        module.__dict__.update(
            __version__="0.0.0+synthetic",
            __getattr__=lacking,
            load=load,
            builder=builder,
            as_numpy=as_numpy,
            list_builders=lambda **_: sorted([*PICTURE_SETS, *TEXT_SETS, *TRANSLATIONS, *PLAIN]),
            disable_progress_bar=lambda: None,
            enable_progress_bar=lambda: None,
            show_examples=lambda *_, **__: None,
            Split=Split,
            ReadConfig=nothing,
            core=nothing(ReadInstruction=Split, DatasetInfo=Info, DatasetBuilder=Builder),
            features=nothing(ClassLabel=ClassLabel, Image=Image, Text=Text, FeaturesDict=FeaturesDict),
            download=nothing(DownloadConfig=nothing, GenerateMode=nothing(REUSE_DATASET_IF_EXISTS="reuse")),
            logging=nothing(set_verbosity=lambda *_: None),
            testing=nothing(),
        )


sys.meta_path.append(StandInFinder())
