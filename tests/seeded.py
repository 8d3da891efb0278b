"""Run a script that seeds nothing, as `python seeded.py SCRIPT`, so that every run begins with the same weights."""

import random
import runpy
import sys
from pathlib import Path

import numpy
import tensorflow

random.seed(0)  # the initializers of Keras draw their seeds here
numpy.random.seed(0)
tensorflow.compat.v1.set_random_seed(0)

del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
