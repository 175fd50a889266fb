"""Measured sides of the language model engine: on a GPU with random weights, on a CPU with the packaged model."""
