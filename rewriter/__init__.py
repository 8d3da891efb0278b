"""tfboost: hand back a faster version of a TensorFlow/Keras training script, with every change explained."""

__version__ = "0.1.0"
