"""Runtimes: what starts replicas and carries calls to them. The same handle, scopes and streams in each."""
