"""Weights: reading checkpoints, tensors in memory or made at random, and writing checkpoints."""

from engines.weights.checkpoint import Share, open_checkpoint
from engines.weights.errors import WeightsInvalid
from engines.weights.random import random_tensors
from engines.weights.reading import Progress
from engines.weights.tensors import MemoryTensors, NamedTensors

__all__ = ["MemoryTensors", "NamedTensors", "Progress", "Share", "WeightsInvalid", "open_checkpoint", "random_tensors"]
