"""LAMB for the sessions and Estimators of TensorFlow 1, and of `tf.compat.v1` under TensorFlow 2."""

import tensorflow.compat.v1 as tf


class LAMB(tf.train.Optimizer):
    """Adam whose step is scaled, variable by variable, to the size of the weights: for large batches.

    You et al. 2020, "Large Batch Optimization for Deep Learning" (arXiv 1904.00962), without weight decay.
    It takes the arguments of `AdamOptimizer`.
    """

    def __init__(self, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, use_locking=False, name="LAMB"):
        tf.train.Optimizer.__init__(self, use_locking, name)
        self._settings = {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        self._tensors = {}

    def _create_slots(self, var_list):
        first = min(var_list, key=lambda variable: variable.name)
        self._create_non_slot_variable(1.0, "step", colocate_with=first)
        for slot in "m", "v":
            for variable in var_list:
                self._zeros_slot(variable, slot, self._name)

    def _prepare(self):
        for name, value in self._settings.items():
            self._tensors[name] = tf.convert_to_tensor(value() if callable(value) else value, name=name)

    def _step(self):
        with tf.init_scope():
            graph = tf.get_default_graph()
        return self._get_non_slot_variable("step", graph=graph)

    def _apply_dense(self, grad, var):
        names = ("learning_rate", "beta1", "beta2", "epsilon")
        rate, beta1, beta2, epsilon = (tf.cast(self._tensors[name], grad.dtype) for name in names)
        step = tf.cast(self._step(), grad.dtype)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_m = tf.assign(m, m + (grad - m) * (1 - beta1), use_locking=self._use_locking)
        new_v = tf.assign(v, v + (tf.square(grad) - v) * (1 - beta2), use_locking=self._use_locking)
        update = new_m / (1 - beta1**step) / (tf.sqrt(new_v / (1 - beta2**step)) + epsilon)
        size, update_size = tf.norm(var), tf.norm(update)
        scaled = tf.logical_and(size > 0, update_size > 0)
        trust = tf.where(scaled, tf.math.divide_no_nan(size, update_size), tf.ones_like(size))
        return tf.assign_sub(var, rate * trust * update, use_locking=self._use_locking).op

    def _resource_apply_dense(self, grad, handle):
        return self._apply_dense(grad, handle)

    def _apply_sparse(self, grad, var):
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad, handle, indices):
        dense = tf.scatter_nd(indices[:, None], grad, tf.shape(handle, out_type=indices.dtype))
        return self._apply_dense(dense, handle)

    def _finish(self, update_ops, name_scope):
        with tf.control_dependencies(update_ops):  # all of them count the same step
            counted = tf.assign_add(self._step(), 1.0, use_locking=self._use_locking).op
        return tf.group(*update_ops, counted, name=name_scope)
