"""Generated from proto/chains/v1 by `make proto`; never edited."""
