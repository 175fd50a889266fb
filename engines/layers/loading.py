"""From a checkpoint's tensors to products: fused, cut to this rank's range, in the wanted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engines.kernels.quant import BLOCK, dequantize_blocks
from engines.layers.linear import (
    Beside,
    BlockFP8Linear,
    Int4Linear,
    Int8Linear,
    Linear,
    PlainLinear,
    RoundedLinear,
    by_inputs,
)
from engines.layers.precision import Numerics
from engines.layers.tensors import Tensors
from engines.parallel import Ranks

WHOLE = slice(None)


@dataclass(frozen=True)
class Part:
    """A stored weight [rows, columns], of which this rank takes a range; `order` shuffles rows, head by head."""

    name: str
    rows: int
    columns: int
    taken_rows: slice | None = None
    taken_columns: slice | None = None
    order: Tensor | None = None
    bias: bool = False

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"

    @property
    def shape(self) -> tuple[int, int]:
        """Of what is taken."""
        return len(range(self.rows)[self.of_rows]), len(range(self.columns)[self.of_columns])

    @property
    def of_rows(self) -> slice:
        return self.taken_rows or WHOLE

    @property
    def of_columns(self) -> slice:
        return self.taken_columns or WHOLE


class Loader:
    """Takes weights of one checkpoint into one kind of numbers."""

    def __init__(self, tensors: Tensors, numerics: Numerics, ranks: Ranks) -> None:
        self.tensors, self.numerics, self.ranks = tensors, numerics, ranks

    def vector(self, name: str, size: int, taken: slice = WHOLE) -> Tensor:
        """A norm's weights, or a bias."""
        return self._placed(self.tensors.take(name, (size,), rows=taken), self.numerics.activations)

    def matrix(self, name: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
        """A weight that is never quantised, in the activations' type unless `dtype` says otherwise."""
        return self._placed(self.tensors.take(name, (rows, columns)), dtype or self.numerics.activations)

    def quantised(self, part: Part) -> bool:
        """Whether the checkpoint has this weight in FP8."""
        return self.tensors.has(f"{part.weight}_scale_inv")

    def expanded(self, part: Part, dtype: torch.dtype | None = None) -> Tensor:
        """The taken range of a weight as plain numbers."""
        kind = dtype or self.numerics.activations
        if self.quantised(part):
            whole = dequantize_blocks(*self.blocks(part), kind)
        else:
            whole = self._placed(self._range(part), kind)
        return whole if part.order is None else _shuffled(whole, part.order)

    def blocks(self, part: Part) -> tuple[Tensor, Tensor]:
        """The taken range of a quantised weight: e4m3 and scales."""
        rows, columns = _blocks_of(part.of_rows, part.rows), _blocks_of(part.of_columns, part.columns)
        shape = (-(-part.rows // BLOCK), -(-part.columns // BLOCK))
        scales = self.tensors.take(f"{part.weight}_scale_inv", shape, rows=rows, columns=columns)
        return self._placed(self._range(part), torch.float8_e4m3fn), self._placed(scales, torch.float32)

    def linear(self, *parts: Part, fill: int | None = None) -> Linear:
        """One product for weights that share their input, as far as they are quantised alike.

        `fill`: where FP8 weights stay in FP8, zeros fill their rows (0) or columns (1) up to whole blocks, so that
        an MLP's ragged inner size can be fused.
        """
        quantised = [self.quantised(part) for part in parts]
        if self.numerics.precision != "fp8" or not any(quantised):
            return self._plain(parts, rounded=False)
        ragged = fill is None and any(part.shape[0] % BLOCK for part in parts[:-1])
        if not all(quantised) or (self.numerics.keeps_fp8 and ragged):
            return Beside([self.linear(part) for part in parts])
        if not self.numerics.keeps_fp8:
            return self._plain(parts, rounded=True)
        blocks = [self.blocks(part) for part in parts]
        weights = [q if fill is None else filled(q, fill) for q, _ in blocks]
        return BlockFP8Linear(_joined(weights), _joined([s for _, s in blocks]), self._bias(parts, padded=fill == 0))

    def product(
        self, weight: Tensor, bias: Tensor | None = None, *, rounded: bool = False, exact: bool = False
    ) -> Linear:
        """A product with plain weights in the wanted numbers. `exact` asks for 8 bits where the others have 4."""
        precision = self.numerics.precision
        if precision == "int4" and not exact and Int4Linear.takes(*weight.shape):
            return Int4Linear(weight, bias)
        if precision in ("int8", "int4"):
            return Int8Linear(weight, bias)
        if not exact:  # the head's weight may be the embedding, which is read row by row
            weight = by_inputs(weight)
        return RoundedLinear(weight, bias) if rounded else PlainLinear(weight, bias)

    def _plain(self, parts: Sequence[Part], *, rounded: bool) -> Linear:
        return self.product(_joined([self.expanded(part) for part in parts]), self._bias(parts), rounded=rounded)

    def _bias(self, parts: Sequence[Part], padded: bool = False) -> Tensor | None:
        divided = parts[0].taken_columns is not None  # the ranks' results are summed: one of them adds the bias
        if not parts[0].bias or (divided and self.ranks.rank):
            return None
        found = []
        for part in parts:
            bias = self.vector(f"{part.name}.bias", part.rows, part.of_rows)
            bias = bias if part.order is None else _shuffled(bias, part.order)
            found.append(functional.pad(bias, (0, -len(bias) % BLOCK)) if padded else bias)
        return _joined(found)

    def _range(self, part: Part) -> Tensor:
        shape = (part.rows, part.columns)
        return self.tensors.take(part.weight, shape, rows=part.of_rows, columns=part.of_columns)

    def _placed(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """On the device, in memory of its own: a view would keep the checkpoint's files in memory."""
        return tensor.to(self.numerics.device, dtype, copy=not tensor.is_cuda).contiguous()


def filled(q: Tensor, dimension: int) -> Tensor:
    """e4m3 weights with zeros up to whole blocks in one dimension; their scales cover those already."""
    missing = -q.shape[dimension] % BLOCK
    if not missing:
        return q
    padding = (0, 0, 0, missing) if dimension == 0 else (0, missing)
    return functional.pad(q.view(torch.uint8), padding).view(torch.float8_e4m3fn)


def _shuffled(rows: Tensor, order: Tensor) -> Tensor:
    heads = rows.reshape(-1, len(order), *rows.shape[1:])
    return heads[:, order.to(rows.device)].reshape(rows.shape)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    if tensors[0].dtype == torch.float8_e4m3fn:
        return torch.cat([tensor.view(torch.uint8) for tensor in tensors]).view(torch.float8_e4m3fn)
    return torch.cat(list(tensors))


def _blocks_of(taken: slice, size: int) -> slice:
    """The blocks of 128 that hold a range. Raises ValueError where the range cuts one."""
    first, end, _ = taken.indices(size)
    if first % BLOCK or (end % BLOCK and end != size):
        raise ValueError(f"rows {first} to {end} of {size} cut FP8 blocks of {BLOCK}; use fewer processes")
    return slice(first // BLOCK, -(-end // BLOCK))
