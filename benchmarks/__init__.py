"""Benchmarks: `python benchmarks/NAME.py [--quick] [--json FILE]`."""
