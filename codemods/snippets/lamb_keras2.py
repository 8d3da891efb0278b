"""LAMB for the Keras 2 of TensorFlow 2.11 to 2.15; `lamb_keras2_legacy.py` has it for the older ones."""

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
        super().__init__(name=name, weight_decay=weight_decay, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def build(self, var_list):
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._built = True
        self._momentums = [self.add_variable_from_reference(v, "m") for v in var_list]
        self._velocities = [self.add_variable_from_reference(v, "v") for v in var_list]

    def update_step(self, gradient, variable):
        gradient = tf.convert_to_tensor(gradient)  # an Embedding's is sparse, but the norms need all of it
        step = tf.cast(self.iterations + 1, variable.dtype)
        index = self._index_dict[self._var_key(variable)]
        m, v = self._momentums[index], self._velocities[index]

        m.assign_add((gradient - m) * (1 - self.beta_1))
        v.assign_add((tf.square(gradient) - v) * (1 - self.beta_2))
        update = m / (1 - self.beta_1**step) / (tf.sqrt(v / (1 - self.beta_2**step)) + self.epsilon)
        size, update_size = tf.norm(variable), tf.norm(update)
        trust = tf.where((size > 0) & (update_size > 0), tf.math.divide_no_nan(size, update_size), 1.0)
        variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * trust * update)

    def get_config(self):
        return {
            **super().get_config(),
            "learning_rate": self._serialize_hyperparameter(self._learning_rate),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }


tf.keras.utils.get_custom_objects()["LAMB"] = LAMB  # for load_model
