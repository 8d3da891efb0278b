"""Modules written verbatim into the scripts that need them: they import nothing but TensorFlow."""
