"""Taking tensors by name and shape: what is missing, misshapen, of a wrong type or left over is named."""

from __future__ import annotations

import pytest
import torch

from engines.weights import MemoryTensors, WeightsInvalid


def tensors() -> MemoryTensors:
    return MemoryTensors(
        {
            "model.norm.weight": torch.arange(6.0),
            "model.up.weight": torch.arange(24.0).view(4, 6),
            "model.up.ids": torch.arange(4),
        }
    )


def test_rows_and_columns_are_views() -> None:
    source = torch.arange(24.0).view(4, 6)
    found = MemoryTensors({"w": source}).take("w", (4, 6), rows=slice(1, 3), columns=slice(2, 5))
    assert torch.equal(found, source[1:3, 2:5])
    assert found.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


def test_one_that_is_missing_is_named_with_what_lies_beside_it() -> None:
    with pytest.raises(WeightsInvalid, match=r"model\.up\.bias is missing \(beside it: model\.up\.weight"):
        tensors().take("model.up.bias", (4,))


def test_one_that_is_misshapen_is_named_with_both_shapes() -> None:
    with pytest.raises(WeightsInvalid, match=r"model\.up\.weight has the shape \[4, 6\], wanted is \[6, 4\]"):
        tensors().take("model.up.weight", (6, 4))


def test_whole_numbers_are_no_weights() -> None:
    with pytest.raises(WeightsInvalid, match=r"model\.up\.ids is of type torch\.int64"):
        tensors().take("model.up.ids", (4,))


def test_what_is_left_over_is_named_unless_it_is_allowed() -> None:
    found = tensors()
    found.take("model.norm.weight", (6,))
    with pytest.raises(WeightsInvalid, match=r"no place for 2 of the tensors: model\.up\.weight, model\.up\.ids"):
        found.finish()
    with pytest.raises(WeightsInvalid, match=r"1 of the tensors: model\.up\.weight"):
        found.finish(["*.ids"])
    found.take("model.up.weight", (4, 6))
    found.finish(["*.ids"])


def test_many_left_over_are_counted() -> None:
    many = MemoryTensors({f"w{number}": torch.zeros(1) for number in range(9)})
    with pytest.raises(WeightsInvalid, match="w4 and 4 more"):
        many.finish()
