"""TensorFlow 1 style: every batch is cut and standardized in Python and fed through `feed_dict`."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

BATCH_SIZE = 128
NUM_EPOCHS = 20
NUM_CLASSES = 10

np.random.seed(5)
tf.set_random_seed(5)

prototypes = np.random.randint(256, size=(NUM_CLASSES, 784))
labels = np.random.randint(NUM_CLASSES, size=38400)
images = (0.3 * prototypes[labels] + 0.7 * np.random.randint(256, size=(len(labels), 784))).astype(np.uint8)
wrong = np.random.rand(len(labels)) < 0.15
labels[wrong] = np.random.randint(NUM_CLASSES, size=wrong.sum())


def standardize(image):
    image = image.astype(np.float32) / 255.0
    return (image - image.mean()) / image.std()


x = tf.placeholder(tf.float32, [None, 784], name="x")
y = tf.placeholder(tf.float32, [None, NUM_CLASSES], name="y")


def dense(inputs, units, name, activation=None):
    with tf.variable_scope(name):
        shape = [int(inputs.shape[1]), units]
        w = tf.get_variable("w", shape, initializer=tf.truncated_normal_initializer(stddev=0.05, seed=len(name)))
        b = tf.get_variable("b", [units], initializer=tf.zeros_initializer())
        outputs = tf.matmul(inputs, w) + b
        return activation(outputs) if activation else outputs


hidden = dense(x, 128, "hidden1", tf.nn.relu)
hidden = dense(hidden, 64, "hidden2_", tf.nn.relu)
logits = dense(hidden, NUM_CLASSES, "logits")
loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits))
correct = tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1))
accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
train_op = tf.train.GradientDescentOptimizer(0.05).minimize(loss)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(NUM_EPOCHS):
        order = np.random.permutation(len(images))
        total = 0.0
        for start in range(0, len(images), BATCH_SIZE):
            picked = order[start : start + BATCH_SIZE]
            batch_x = np.array([standardize(images[i]) for i in picked])
            batch_y = np.eye(NUM_CLASSES)[labels[picked]]
            _, batch_loss, batch_accuracy = sess.run([train_op, loss, accuracy], feed_dict={x: batch_x, y: batch_y})
            total += batch_accuracy
        print("epoch", epoch, "loss", batch_loss, "accuracy", total / (len(images) // BATCH_SIZE))
