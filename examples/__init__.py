"""Chains to run and to read. Not part of the installed package: they are run from a checkout."""
