"""Decisions over HTTP: the System One API, continuous batching, admission, metrics."""
