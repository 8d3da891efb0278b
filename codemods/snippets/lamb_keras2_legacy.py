"""LAMB for the Keras of TensorFlow 2.1 to 2.10; `lamb_keras2.py` has it for 2.11 to 2.15."""

import tensorflow as tf


class LAMB(tf.keras.optimizers.Optimizer):
    """Adam whose step is scaled, variable by variable, to the size of the weights: for large batches.

    You et al. 2020, "Large Batch Optimization for Deep Learning" (arXiv 1904.00962). It takes Adam's
    arguments, without `amsgrad`, and does what `keras.optimizers.Lamb` does in Keras 3. `weight_decay=w` is
    decoupled as in AdamW: before each step, weights shrink by `learning_rate * w`. (The paper adds
    `w * weights` to the direction instead, before it is scaled.) It spares the variables named in
    `exclude_from_weight_decay(var_names=["bias"])`.
    """

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-7,
        weight_decay=None,
        name="LAMB",
        **kwargs,
    ):
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        self._set_hyper("decay", self._initial_decay)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.not_decayed = []

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.not_decayed = [v.name for v in var_list or []] + list(var_names or [])

    def _create_slots(self, var_list):
        for slot in "m", "v":
            for variable in var_list:
                self.add_slot(variable, slot)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        learning_rate = self._decayed_lr(var.dtype)
        beta_1 = self._get_hyper("beta_1", var.dtype)
        beta_2 = self._get_hyper("beta_2", var.dtype)
        step = tf.cast(self.iterations + 1, var.dtype)

        weights = tf.identity(var)
        if self.weight_decay and not any(name in var.name for name in self.not_decayed):
            weights -= learning_rate * self.weight_decay * weights
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_m = m.assign_add((grad - m) * (1 - beta_1))
        new_v = v.assign_add((tf.square(grad) - v) * (1 - beta_2))
        update = new_m / (1 - beta_1**step) / (tf.sqrt(new_v / (1 - beta_2**step)) + self.epsilon)
        size, update_size = tf.norm(weights), tf.norm(update)
        trust = tf.where((size > 0) & (update_size > 0), tf.math.divide_no_nan(size, update_size), 1.0)
        return var.assign(weights - learning_rate * trust * update)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        dense = tf.scatter_nd(indices[:, None], grad, tf.shape(var, out_type=indices.dtype))
        return self._resource_apply_dense(dense, var)

    def get_config(self):
        hyper = {n: self._serialize_hyperparameter(n) for n in ("learning_rate", "decay", "beta_1", "beta_2")}
        return dict(super().get_config(), epsilon=self.epsilon, weight_decay=self.weight_decay, **hyper)


tf.keras.utils.get_custom_objects()["LAMB"] = LAMB  # for load_model
