"""Graph mode of TensorFlow 1: optimizers, sessions, and the loops that feed them."""
