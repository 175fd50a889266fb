"""How values and calls cross a process boundary."""

import os

# Read once, when grpc loads; without it grpc writes to stderr as it likes.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
