"""What every test relies on: one thread per library, no downloads, no OTEL_ settings of the machine."""

from __future__ import annotations

import os

from hypothesis import settings

# Before numpy, torch or onnxruntime load: two libraries that take all cores each slow one another down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Models come from packages or the model cache; a test that would download one fails at once instead.
os.environ["HF_HUB_OFFLINE"] = "1"

# Exporting spans is asked for by the tests that look at it, never by the machine's environment.
for name in [name for name in os.environ if name.startswith("OTEL_")]:
    del os.environ[name]

# No deadline an example: the machine may be busy. The tests' own timeout ends what hangs.
settings.register_profile("chains", deadline=None, max_examples=50, print_blob=True)
settings.load_profile("chains")
