"""Checks of one engine: against transformers on tiny models, against the fp32 oracle on a real one."""
