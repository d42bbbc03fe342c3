"""Faults planted on purpose, to see that the gate rejects them."""
