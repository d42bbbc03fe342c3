"""Typed questions about a context, answered from next-token probabilities."""
