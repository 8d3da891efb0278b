"""What it costs a script to be measured: training steps of about 5 ms, run plainly and under the harness, in turn.

    python benchmarks/overhead.py [--rounds 8] [--env tf215]

Prints, for each way to train, the time of a step, how much longer it takes under the harness (the median over rounds,
and the range of its middle half), and what the harness itself says that it has cost. Needs the environments of
`nox -s envs`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from statistics import median, quantiles

from rewriter.runner.process import HARNESS
from rewriter.runner.record import Record

ROOT = Path(__file__).resolve().parent.parent
STEPS, WARM = 500, 100

START = f"""
import time
import numpy as np
import tensorflow as tf
STEPS, WARM = {STEPS}, {WARM}
x = np.random.RandomState(0).rand(SIZE, 256).astype("float32")
ends = []
def stepped():
    ends.append(time.perf_counter())
"""
END = """
open(OUT, "w").write(str((ends[-1] - ends[WARM]) / (len(ends) - 1 - WARM)))
"""
MODEL = """
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(1)])
"""
SCRIPTS = {
    "fit": MODEL
    + """
class Time(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        stepped()
model.compile("sgd", "mse")
model.fit(np.tile(x, (STEPS, 1)), np.ones(SIZE * STEPS), batch_size=SIZE, verbose=0, callbacks=[Time()])
""",
    "tape": MODEL
    + """
optimizer = tf.keras.optimizers.SGD()
@tf.function
def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
for batch in tf.data.Dataset.from_tensors(x).repeat(STEPS):
    float(step(batch))
    stepped()
""",
    "session": """
tf = tf.compat.v1
tf.disable_eager_execution()
features = tf.placeholder(tf.float32, [None, 256])
def dense(inputs, width):
    kernel = tf.get_variable(f"kernel{width}{inputs.shape[1]}", [inputs.shape[1], width])
    return tf.nn.relu(tf.matmul(inputs, kernel))
loss = tf.reduce_mean(dense(dense(dense(features, 512), 512), 1))
train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(STEPS):
        session.run([train, loss], feed_dict={features: x})
        stepped()
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--env", default="tf215")
    parser.add_argument("--size", type=int, default=768, help="rows of a batch: fewer on a faster machine")
    options = parser.parse_args()
    python = str(ROOT / ".envs" / options.env / "bin" / "python")
    for name, text in SCRIPTS.items():
        plain, more, own = [], [], []
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            out = Path(folder, "seconds")
            script.write_text(textwrap.dedent(f"OUT, SIZE = {str(out)!r}, {options.size}\n{START}{text}{END}"))
            for number in range(options.rounds):
                seconds = {}
                for measured in (False, True) if number % 2 == 0 else (True, False):
                    record = run(python, script, measured)
                    seconds[measured] = float(out.read_text())
                    if record:
                        own.append(record.overhead / STEPS)
                plain.append(seconds[False])
                more.append(seconds[True] / seconds[False] - 1)
        low, _, high = quantiles(more, n=4)
        print(
            f"{name:8} {1e3 * median(plain):5.2f} ms a step, measured {median(more):+.1%} ({low:+.1%} to {high:+.1%}), "
            f"of which counted {1e6 * median(own):.0f} µs ({median(own) / median(plain):.1%})",
            flush=True,
        )


def run(python: str, script: Path, measured: bool) -> Record | None:
    """Once, plainly or under the harness."""
    if not measured:
        subprocess.run([python, script], check=True, capture_output=True)
        return None
    records = script.parent / "records"
    records.mkdir(exist_ok=True)
    (records / "rank-0.jsonl").unlink(missing_ok=True)
    config = script.parent / "config.json"
    config.write_text(json.dumps({"script": str(script), "records": str(records), "mode": "speed"}))
    subprocess.run([python, HARNESS, config], check=True, capture_output=True)
    record = Record.read(records / "rank-0.jsonl")
    if not record.steps or record.troubles:
        sys.exit(f"{script} was not measured: {record.troubles}")
    return record


if __name__ == "__main__":
    main()
