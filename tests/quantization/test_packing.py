"""Packing wastes nothing, loses nothing, and has the documented layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.errors import CheckpointError
from specdec_ref.quantization import pack, packed_bytes, unpack
from tests.helpers.properties import examples


@st.composite
def codes_and_bits(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    bits = draw(st.integers(2, 8))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 70))
    values = draw(st.lists(st.integers(0, 2**bits - 1), min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(values, dtype=torch.uint8).view(rows, columns), bits


@examples(200)
@given(codes_and_bits())
def test_a_round_trip_changes_nothing_and_takes_the_exact_bytes(case: tuple[torch.Tensor, int]) -> None:
    codes, bits = case
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (len(codes), packed_bytes(codes.shape[1], bits))
    assert packed_bytes(codes.shape[1], bits) * 8 - codes.shape[1] * bits in range(8)
    assert torch.equal(unpack(packed, bits, codes.shape[1]), codes)


@examples(100)
@given(codes_and_bits())
def test_the_layout_is_one_little_endian_number_per_row(case: tuple[torch.Tensor, int]) -> None:
    codes, bits = case
    for row, packed in zip(codes.tolist(), pack(codes, bits), strict=True):
        number = sum(code << (bits * i) for i, code in enumerate(row))
        assert bytes(packed.tolist()) == number.to_bytes(packed_bytes(len(row), bits), "little")


def test_four_bits_put_the_even_code_into_the_low_half() -> None:
    assert pack(torch.tensor([[1, 2, 3, 15]], dtype=torch.uint8), 4).tolist() == [[0x21, 0xF3]]


def test_a_code_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="8 does not fit 3 bits"):
        pack(torch.tensor([[8]], dtype=torch.uint8), 3)


def test_a_packed_row_of_another_width_is_refused() -> None:
    with pytest.raises(CheckpointError, match="32 codes of 3 bits take 12 bytes, not 11"):
        unpack(torch.zeros(2, 11, dtype=torch.uint8), 3, 32)
