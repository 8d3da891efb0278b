"""What codemods do for TensorFlow 1's graphs and sessions, each in a module of its codemod's name."""
