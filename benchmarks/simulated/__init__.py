"""Clusters in virtual time: the policies of `chains.policy` under load, the same on every machine for one seed."""
