"""What Horovod 0.28 does for Keras 2 only, for Keras 3: a script gets the functions and classes that it needs."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf


def average_gradients(gradients):
    """The mean of the gradients of all ranks."""
    return tf.nest.map_structure(lambda g: g if g is None else hvd.allreduce(g), gradients)


def distribute_optimizer(optimizer):
    """Let an optimizer apply the mean of the gradients of all ranks."""
    apply = optimizer.apply

    def apply_mean(gradients, trainable_variables=None):
        return apply([g if g is None else hvd.allreduce(g) for g in gradients], trainable_variables)

    optimizer.apply = apply_mean


class BroadcastWeights(keras.callbacks.Callback):
    """Let every rank begin with the weights of rank 0, those that are made in the first step too."""

    def on_train_begin(self, logs=None):
        self.is_first = True
        self.broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if self.is_first:
            self.is_first = False
            self.broadcast()

    def broadcast(self):
        parts = [part for part in vars(self.model).values() if isinstance(part, keras.optimizers.Optimizer)]
        variables = self.model.weights + [v for part in parts for v in part.variables]
        hvd.broadcast_variables([v.value for v in variables], root_rank=0)


class AverageMetrics(keras.callbacks.Callback):
    """Give the callbacks behind this one the mean of the metrics of all ranks: they decide the same on each."""

    def on_epoch_end(self, epoch, logs=None):
        for name, value in (logs or {}).items():
            logs[name] = hvd.allreduce(tf.cast(value, tf.float32)).numpy().tolist()


class WarmUpLearningRate(keras.callbacks.Callback):
    """Let the learning rate grow from that of one rank to `rate` over the first epochs (Goyal et al. 2017)."""

    def __init__(self, rate, epochs):
        super().__init__()
        self.rate, self.epochs = rate, epochs

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch < self.epochs:
            progress = (self.epoch + (batch + 1) / self.params["steps"]) / self.epochs
            self.model.optimizer.learning_rate = self.rate * (1 + (hvd.size() - 1) * progress) / hvd.size()
