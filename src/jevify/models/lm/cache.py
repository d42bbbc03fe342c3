"""Forking a transformers key/value cache: one prefix, many branches that cannot see each other's tokens."""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor
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


def stacked(cache: Any) -> Tensor:
    """Keys and values of a one-row dense cache in one new tensor [layers, 2, Hkv, P, D]."""
    return torch.stack([torch.stack((layer.keys[0], layer.values[0])) for layer in cache.layers])


def unstacked(model: Any, rows: Tensor, branches: int) -> DynamicCache:
    """A cache of `branches` rows that each start with `rows`, as `stacked` gives them; `rows` is left as it was."""
    cache = new_cache(model)
    for index, (keys, values) in enumerate(rows):
        cache.update(keys.expand(branches, *keys.shape), values.expand(branches, *values.shape), index)
    return cache


def key_value_bytes(model: Any, tokens: int) -> int:
    """Bytes of the keys and values of `tokens` tokens in all layers of `model`."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * tokens * int(model.dtype.itemsize)
