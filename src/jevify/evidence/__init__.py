"""Measurements that anyone can re-run: scenarios, the one benchmark runner, and what its runs say."""
