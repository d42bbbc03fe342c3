"""Which way a product of few rows runs, by measurements of scripts/tune_linear.py on the device at hand."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from jevify.accel.ops.linear import LinearTile, linear, linear_kernel

# By device name, dtype and "NxK": [rows, way] pairs, ascending; a way holds up to that many rows and is "library", "lt"
# (the library's path for products with a bias), "swapped" or the numbers of a LinearTile. Beyond the last pair: the
# library.
Table = Mapping[str, Mapping[str, Mapping[str, list[list[Any]]]]]
Way = str | LinearTile
Product = tuple[int, int]  # outputs, inner


@cache
def shipped_table() -> Table:
    """The measurements that come with the package."""
    text = files("jevify.accel.ops").joinpath("linear_tiles.json").read_text(encoding="utf-8")
    table: Table = json.loads(text)
    return table


def choices(
    products: Iterable[Product], *, device: str, dtype: torch.dtype, table: Table | None = None
) -> dict[Product, list[tuple[int, Way]]]:
    """The measured ways of those `products` that were measured on `device` (its name) in `dtype`."""
    known = (shipped_table() if table is None else table).get(device, {}).get(str(dtype).removeprefix("torch."), {})
    return {
        product: [(rows, way if isinstance(way, str) else LinearTile(*way)) for rows, way in known[f"{n}x{k}"]]
        for product in products
        for n, k in [product]
        if f"{n}x{k}" in known
    }


def swapped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` as the library's weight @ x.T, copied to rows: other sizes, so another of its kernels."""
    product = weight @ x.T if bias is None else torch.addmm(bias[:, None], weight, x.T)
    return product.T.contiguous()


def chosen_linear(
    measured: Mapping[Product, list[tuple[int, Way]]], launched: Callable[[], None]
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """`linear` by the fastest way measured for its shape; `launched` is called when the kernel ran."""
    zeros: dict[tuple[int, torch.device], Tensor] = {}

    def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ways = measured.get((weight.shape[0], weight.shape[1]), [])
        way = next((way for rows, way in ways if x.shape[0] <= rows), "library")
        if isinstance(way, LinearTile):
            out = linear_kernel(x, weight, bias, way)
            if x.shape[0]:
                launched()
            return out
        if way == "swapped":
            return swapped(x, weight, bias)
        if way == "lt" and bias is None:
            place = (weight.shape[0], weight.device)
            if place not in zeros:
                zeros[place] = weight.new_zeros(weight.shape[0])
            return functional.linear(x, weight, zeros[place])
        return linear(x, weight, bias)

    return run
