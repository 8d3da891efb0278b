"""A custom training loop for a small CNN, run eagerly, as it was left after debugging."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(4)

prototypes = np.random.rand(10, 28, 28, 1)
y_train = np.random.randint(10, size=9600)
x_train = (0.4 * prototypes[y_train] + 0.6 * np.random.rand(len(y_train), 28, 28, 1)).astype("float32")
wrong = np.random.rand(len(y_train)) < 0.15
y_train = np.where(wrong, np.random.randint(10, size=len(y_train)), y_train)

batch_size = 32
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
train_dataset = train_dataset.shuffle(buffer_size=1024).batch(batch_size).prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.Input(shape=(28, 28, 1)),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
optimizer = keras.optimizers.Adam(learning_rate=1e-3)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc_metric = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss_value = loss_fn(y, logits)
    grads = tape.gradient(loss_value, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    train_acc_metric.update_state(y, logits)
    return loss_value


epochs = 3
for epoch in range(epochs):
    for step, (x_batch_train, y_batch_train) in enumerate(train_dataset):
        loss_value = train_step(x_batch_train, y_batch_train)
        if step % 100 == 0:
            print(f"epoch {epoch} step {step}: loss {float(loss_value):.4f}")
    print(f"accuracy over epoch: {float(train_acc_metric.result()):.4f}")
    train_acc_metric.reset_state()
