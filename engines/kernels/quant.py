"""Block FP8: e4m3 values with one float32 scale a group; the scale multiplies on the way back.

Activations have a scale for each token and 128 channels, taken as they come; weights one for each 128 x 128 block,
stored with them. Ragged edges belong to a last, smaller group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FP8_MAX = 448.0
BLOCK = 128
AMAX_FLOOR = 1e-4  # of a group of activations: without it a group of zeros would be 0 / 0
_WEIGHT_FLOOR = 1e-30


def blocks(size: int) -> int:
    """How many groups of 128 a dimension has, the ragged one included."""
    return -(-size // BLOCK)


def quantize_activations(x: Tensor, *, ue8m0: bool = False) -> tuple[Tensor, Tensor]:
    """(e4m3 [M, K], float32 scales [M, ceil(K / 128)]) of x [M, K]; `ue8m0` rounds scales up to powers of two."""
    if x.is_cuda:
        from engines.kernels.hopper import quant

        return quant.quantize_activations(x, ue8m0=ue8m0)
    return quantize_activations_reference(x, ue8m0=ue8m0)


def quantize_activations_reference(x: Tensor, *, ue8m0: bool = False) -> tuple[Tensor, Tensor]:
    """The twin: in float32, whatever x is."""
    rows, columns = x.shape
    groups = _padded(x.float(), columns=True).view(rows, blocks(columns), BLOCK)
    # A tensor, not a number: by a number CUDA multiplies with the rounded reciprocal.
    scales = groups.abs().amax(-1).clamp(min=AMAX_FLOOR) / torch.tensor(FP8_MAX, device=x.device)
    if ue8m0:
        scales = power_of_two_above(scales)
    q = (groups / scales.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return q.flatten(1)[:, :columns].contiguous(), scales


def power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two >= x, for normal positive float32: by the bits, since log2 rounds."""
    mantissa = 0x7FFFFF
    return ((x.contiguous().view(torch.int32) + mantissa) & ~mantissa).view(torch.float32)


def dequantize_activations(q: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """x [M, K] from what quantize_activations gave, multiplied in float32 (float64 for float64)."""
    wide = _wide(dtype)
    spread = scales.to(wide).repeat_interleave(BLOCK, -1)[:, : q.shape[1]]
    return (q.to(wide) * spread).to(dtype)


def round_activations(x: Tensor, *, ue8m0: bool = False) -> Tensor:
    """x [M, K] as a block-FP8 product sees it: quantised and brought back, in x's type.

    For products on CPU with weights that were expanded at load: round, then multiply.
    """
    return dequantize_activations(*quantize_activations(x, ue8m0=ue8m0), x.dtype)


def quantize_blocks(w: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 [..., N, K], float32 scales [..., ceil(N / 128), ceil(K / 128)]) of weights; zeros stay zeros."""
    tiles = _tiles(w.float())
    scales = tiles.abs().amax((-3, -1)).clamp(min=_WEIGHT_FLOOR) / FP8_MAX
    q = (tiles / scales[..., :, None, :, None]).clamp(-FP8_MAX, FP8_MAX)
    return _cropped(q, w.shape).to(torch.float8_e4m3fn), scales


def dequantize_blocks(q: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights [..., N, K] in `dtype`, multiplied in float32 (float64 for float64)."""
    wide = _wide(dtype)
    tiles = _tiles(q.to(wide)) * scales.to(wide)[..., :, None, :, None]
    return _cropped(tiles, q.shape).to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _padded(x: Tensor, *, columns: bool = False) -> Tensor:
    """x with its last dimension (and the one before, unless `columns`) filled up with zeros to whole groups."""
    rows = 0 if columns else -x.shape[-2] % BLOCK
    rest = -x.shape[-1] % BLOCK
    return F.pad(x, (0, rest, 0, rows) if rows else (0, rest)) if rows or rest else x


def _tiles(w: Tensor) -> Tensor:
    """[..., N, K] as [..., N / 128, 128, K / 128, 128]."""
    padded = _padded(w).contiguous()
    return padded.view(*w.shape[:-2], blocks(w.shape[-2]), BLOCK, blocks(w.shape[-1]), BLOCK)


def _cropped(tiles: Tensor, shape: torch.Size) -> Tensor:
    whole = tiles.flatten(-4, -3).flatten(-2, -1)
    return whole[..., : shape[-2], : shape[-1]].contiguous()
