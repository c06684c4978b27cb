"""Codes of 2 to 8 bits <-> bytes: no bit is wasted but the last few of a row.

Layout, the same for every width b: eight codes fill b bytes. Code i of the eight takes bits b*i … b*i + b - 1 of that
little-endian number, so a 4-bit code with an even index is the low half of its byte. A row begins on a byte of its own;
if its length is no multiple of eight, it ends with the first ceil(n b / 8) bytes of its last eight, unused bits zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_ref.errors import CheckpointError


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that a row of `count` codes takes."""
    return -(-count * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes [rows, n] uint8, each below 2^bits -> bytes [rows, ceil(n bits / 8)] uint8.

    Raises:
        ValueError: a code does not fit.
    """
    if codes.numel() and int(codes.max()) >> bits:
        raise ValueError(f"code {int(codes.max())} does not fit {bits} bits")
    rows, count = codes.shape
    eights = torch.nn.functional.pad(codes, (0, -count % 8)).view(rows, -1, 8)
    words = torch.zeros(eights.shape[:2], dtype=torch.int64)
    for i in range(8):
        words |= eights[..., i].long() << (bits * i)
    as_bytes = words.view(torch.uint8).view(rows, -1, 8)[..., :bits]
    return as_bytes.reshape(rows, -1)[:, : packed_bytes(count, bits)].contiguous()


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack`: bytes [rows, ceil(count bits / 8)] -> codes [rows, count] uint8.

    Raises:
        CheckpointError: `packed` has another width.
    """
    rows, width = packed.shape
    if width != packed_bytes(count, bits):
        raise CheckpointError(
            f"{count} codes of {bits} bits take {packed_bytes(count, bits)} bytes, not {width}"
        )
    eights = -(-count // 8)
    whole = torch.nn.functional.pad(packed, (0, eights * bits - width)).view(rows, eights, bits)
    words = torch.nn.functional.pad(whole, (0, 8 - bits)).contiguous().view(torch.int64).view(rows, eights)
    codes = torch.empty(rows, eights, 8, dtype=torch.uint8)
    for i in range(8):
        codes[..., i] = (words >> (bits * i)) & ((1 << bits) - 1)
    return codes.view(rows, -1)[:, :count]
