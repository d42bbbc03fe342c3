"""Forking a transformers key/value cache: one prefix, many branches that cannot see each other's tokens."""

import copy
import inspect
from typing import Any

from transformers.cache_utils import DynamicCache, DynamicLayer


def cache_argument(model: Any) -> str:
    """The keyword by which `model`'s backbone takes a cache: `cache` in newer releases, else `past_key_values`."""
    return "cache" if "cache" in inspect.signature(model.base_model.forward).parameters else "past_key_values"


def new_cache(model: Any) -> DynamicCache:
    """An empty cache for `model`."""
    return DynamicCache(config=model.config)


def can_share(cache: Any) -> bool:
    """Whether copies of `cache` may share its tensors: dense dynamic layers replace tensors, never write into them."""
    return type(cache) is DynamicCache and all(type(layer) is DynamicLayer for layer in cache.layers)


def fork(cache: Any, branches: int, *, share: bool) -> Any:
    """A cache of `branches` rows that starts as copies of the one row of `cache`, which is left as it was.

    share=True copies the layer metadata and lets one row keep reading the prefix tensors themselves; it needs
    `can_share(cache)`. share=False copies everything first. More than one row always allocates its own tensors.
    """
    if share:
        forked = copy.copy(cache)
        forked.layers = [copy.copy(layer) for layer in cache.layers]
    else:
        forked = copy.deepcopy(cache)
    if branches > 1:
        forked.batch_repeat_interleave(branches)
    return forked
