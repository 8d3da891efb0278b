"""A two-layer network from raw variables, its gradient steps written by hand and run eagerly."""

import numpy as np
import tensorflow as tf

np.random.seed(12)
tf.random.set_seed(12)

learning_rate = 0.01
momentum = 0.9
batch_size = 100
num_epochs = 10

train_x = np.random.normal(size=(80000, 32)).astype(np.float32)
teacher = np.random.normal(size=(32, 1)).astype(np.float32)
train_y = np.sin(train_x @ teacher / 3) + 0.05 * np.random.normal(size=(len(train_x), 1)).astype(np.float32)

w1 = tf.Variable(tf.random.normal([32, 64], stddev=0.2))
b1 = tf.Variable(tf.zeros([64]))
w2 = tf.Variable(tf.random.normal([64, 64], stddev=0.2))
b2 = tf.Variable(tf.zeros([64]))
w3 = tf.Variable(tf.random.normal([64, 1], stddev=0.2))
b3 = tf.Variable(tf.zeros([1]))
params = [w1, b1, w2, b2, w3, b3]
velocities = [tf.Variable(tf.zeros_like(p)) for p in params]


def model(x):
    h = tf.nn.tanh(tf.matmul(x, w1) + b1)
    h = tf.nn.tanh(tf.matmul(h, w2) + b2)
    return tf.matmul(h, w3) + b3


def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    grads = tape.gradient(loss, params)
    for p, v, g in zip(params, velocities, grads):
        v.assign(momentum * v + g)
        p.assign_sub(learning_rate * v)
    return loss


dataset = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x)).batch(batch_size)

for epoch in range(num_epochs):
    epoch_loss = 0.0
    for x, y in dataset:
        epoch_loss += float(train_step(x, y))
    print(f"epoch {epoch}: loss {epoch_loss / (len(train_x) // batch_size):.4f}")
