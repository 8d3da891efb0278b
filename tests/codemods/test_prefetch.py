from tests.check import Check

check = Check("prefetch")

HEAD = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


def test_appends_to_the_last_stage() -> None:
    check.fixes(
        HEAD + """ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
model.fit(ds)
""",
        HEAD + """ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).prefetch(tf.data.AUTOTUNE)
model.fit(ds)
""")


def test_leaves_a_prefetched_dataset() -> None:
    check.ignores(HEAD + """ds = tf.data.Dataset.range(3).batch(32).prefetch(1)
model.fit(ds)
""")
