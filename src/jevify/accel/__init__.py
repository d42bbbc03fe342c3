"""Optimizations shared by every workload: operations, token trees, stage timers.

Knows no workload and no model's name.
"""
