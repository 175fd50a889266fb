"""Decisions without I/O: where a call goes, and (later) how many replicas there should be."""
