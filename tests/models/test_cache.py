"""Forked caches: what is shared is never written."""

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import tiny
from jevify.models.lm.cache import cache_argument, can_share, fork

pytestmark = pytest.mark.cpu


def prefix(model, length=6):
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model.base_model(torch.arange(length)[None], use_cache=True, **{cache_argument(model): cache})
    return cache


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("branches", [1, 3])
def test_a_fork_never_changes_its_prefix(share, branches):
    model = tiny.model("qwen2")
    cache = prefix(model)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    for _ in range(2):
        forked = fork(cache, branches, share=share)
        assert forked.get_seq_length() == 6
        with torch.no_grad():
            model.base_model(torch.full((branches, 4), 9), use_cache=True, **{cache_argument(model): forked})
        assert forked.get_seq_length() == 10
        assert cache.get_seq_length() == 6
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)


def test_sharing_copies_no_tensor_for_one_branch_and_deep_copy_does():
    cache = prefix(tiny.model("llama"))
    shared, copied = fork(cache, 1, share=True), fork(cache, 1, share=False)
    assert shared.layers[0].keys is cache.layers[0].keys
    assert copied.layers[0].keys.data_ptr() != cache.layers[0].keys.data_ptr()
    assert shared.layers[0] is not cache.layers[0]


def test_unknown_layouts_cannot_be_shared():
    class PagedLayer(DynamicLayer):
        pass

    cache = prefix(tiny.model("llama"))
    assert can_share(cache)
    cache.layers[1].__class__ = PagedLayer
    assert not can_share(cache)

    class PagedCache(DynamicCache):
        pass

    assert not can_share(PagedCache())
