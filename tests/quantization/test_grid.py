"""Round-to-nearest: nearest it is, the grids are ExecuTorch's and llama.cpp's, bytes are counted exactly."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.quantization import (
    PER_CHANNEL,
    QuantizedLinear,
    QuantizedTensor,
    Scheme,
    quantize,
    relative_error,
)
from specdec_ref.quantization.grid import rounded
from specdec_ref.quiet import silence_libraries
from tests.helpers.properties import examples

SCHEMES = [
    Scheme(bits, group, symmetric)
    for bits, group, symmetric in itertools.product(range(2, 9), (32, 64, 128, PER_CHANNEL), (True, False))
]


def random_weight(rows: int = 24, columns: int = 128, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    outliers = 1 + 9 * (torch.rand(1, columns, generator=generator) > 0.95)
    return torch.randn(rows, columns, generator=generator) * outliers


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_weight_goes_to_the_nearest_grid_point(scheme: Scheme) -> None:
    weight = random_weight()
    quantized = quantize(weight, scheme)
    size = scheme.group_size(128)
    grid = torch.arange(scheme.levels, dtype=torch.float32) - scheme.offset
    points = quantized.scale.float()[..., None] * grid  # [out, groups, levels]
    if quantized.minimum is not None:
        points = points + quantized.minimum.float()[..., None]
    points = points.repeat_interleave(size, 1)
    nearest = (points - weight[..., None]).abs().amin(-1)
    error = (quantized.dequantize() - weight).abs()
    torch.testing.assert_close(error, nearest, atol=1e-5, rtol=1e-4)
    assert torch.equal(rounded(weight, scheme), quantized.dequantize())
    clip = torch.full(quantized.scale.shape, 0.7)
    assert torch.equal(rounded(weight, scheme, clip=clip), quantize(weight, scheme, clip=clip).dequantize())


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_packing_keeps_the_values_and_the_bytes_are_counted_exactly(scheme: Scheme) -> None:
    quantized = quantize(random_weight(), scheme)
    packed = quantized.packed()
    again = QuantizedTensor.from_packed(packed, quantized.scale, quantized.minimum, scheme, 128)
    assert torch.equal(again.dequantize(), quantized.dequantize())
    held = [packed, quantized.scale, *([] if quantized.minimum is None else [quantized.minimum])]
    assert sum(t.nbytes for t in held) == quantized.nbytes == scheme.nbytes(24, 128)


def test_bits_per_weight_are_what_the_table_says() -> None:
    per_weight = {
        s: 8 * Scheme(*s).nbytes(64, 576) / (64 * 576) for s in [(4, 32), (3, 32), (3, 64), (6, 32)]
    }
    assert per_weight == {(4, 32): 4.5, (3, 32): 3.5, (3, 64): 3.25, (6, 32): 6.5}
    assert Scheme(4, 32, False).nbytes(1, 32) == 20  # a Q4_1 block


@pytest.mark.parametrize("symmetric", [True, False])
def test_more_bits_and_smaller_groups_err_less(symmetric: bool) -> None:
    weight = random_weight(64, 256)
    by_bits = [relative_error(weight, quantize(weight, Scheme(b, 32, symmetric))) for b in range(2, 9)]
    assert all(more < 0.7 * fewer for fewer, more in itertools.pairwise(by_bits))
    by_group = [relative_error(weight, quantize(weight, Scheme(4, g, symmetric))) for g in (32, 64, 128, 0)]
    assert by_group == sorted(by_group)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, PER_CHANNEL])
def test_symmetric_integers_and_scales_are_torchao_s(bits: int, group: int) -> None:
    """ExecuTorch's XNNPACK partitioner takes torchao's integers; ours must be the same for the same weights."""
    silence_libraries()
    from torchao.quantization import IntxUnpackedToInt8Tensor
    from torchao.quantization.quant_primitives import MappingType

    weight = random_weight(48, 160)
    ours = quantize(weight, Scheme(bits, group))
    block = (1, ours.scheme.group_size(160))
    dtype = getattr(torch, f"int{bits}")
    theirs = IntxUnpackedToInt8Tensor.from_hp(weight, block, dtype, mapping_type=MappingType.SYMMETRIC)
    # XNNPACK casts group scales to bfloat16 when it loads them: we round first, and choose the integers afterwards.
    torch.testing.assert_close(
        theirs.scale.view_as(ours.scale).to(ours.scale.dtype), ours.scale, atol=0, rtol=0
    )
    given = IntxUnpackedToInt8Tensor.from_hp(
        weight, block, dtype, intx_choose_qparams_algorithm=None,
        custom_scale=ours.scale.float(), custom_zero_point=torch.zeros_like(ours.scale, dtype=torch.int8),
    )  # fmt: skip
    assert torch.equal(given.qdata, ours.signed)
    assert torch.equal(given.dequantize(), ours.dequantize())
    if group == PER_CHANNEL:
        assert torch.equal(theirs.qdata, ours.signed)
    else:  # bfloat16 scales move a few weights to the neighbouring integer
        assert (theirs.qdata - ours.signed).abs().max() <= 1
        assert (theirs.qdata != ours.signed).float().mean() < 0.06


def test_a_weight_on_the_q4_1_grid_is_reproduced_exactly() -> None:
    """The trap: a target that was Q4_1 once shows no 4-bit error at all."""
    from gguf import GGMLQuantizationType, quants

    blocks = quants.quantize(random_weight(16, 256).numpy(), GGMLQuantizationType.Q4_1)
    weight = torch.tensor(quants.dequantize(blocks, GGMLQuantizationType.Q4_1))
    again = quantize(weight, Scheme(4, 32, symmetric=False)).dequantize()
    assert relative_error(weight, quantize(weight, Scheme(4, 32, symmetric=False))) < 5e-4
    assert (again == weight).float().mean() > 0.9
    assert relative_error(weight, quantize(weight, Scheme(4, 32))) > 0.05
    assert relative_error(weight, quantize(weight, Scheme(4, 64, symmetric=False))) > 0.03


@examples(60)
@given(st.integers(2, 8), st.booleans(), st.floats(1e-3, 100.0), st.integers(0, 3))
def test_no_weight_is_further_off_than_its_step(bits: int, symmetric: bool, size: float, seed: int) -> None:
    weight = random_weight(4, 64, seed) * size
    quantized = quantize(weight, Scheme(bits, 32, symmetric))
    step = quantized.scale.float().repeat_interleave(32, 1)
    largest = (
        weight.abs().view(4, 2, 32).amax(-1).repeat_interleave(32, 1)
    )  # whose stored form is rounded too
    limit = 0.51 * step + 2**-8 * largest
    assert bool(((quantized.dequantize() - weight).abs() <= limit + 1e-7).all())


def test_zeros_stay_zero_and_clipping_narrows_the_grid() -> None:
    for symmetric in (True, False):
        assert not quantize(torch.zeros(2, 64), Scheme(3, 32, symmetric)).dequantize().any()
    weight = random_weight(8, 64)
    clipped = quantize(weight, Scheme(3), clip=torch.full((8, 2), 0.5))
    assert torch.all(clipped.scale < 0.51 * quantize(weight, Scheme(3)).scale)


def test_a_packed_linear_computes_what_its_dequantized_weight_does() -> None:
    weight, bias, x = random_weight(), torch.randn(24), torch.randn(5, 128)
    for scheme in (Scheme(3), Scheme(6, 64), Scheme(4, 32, False), Scheme(8, PER_CHANNEL)):
        quantized = quantize(weight, scheme)
        module = QuantizedLinear(quantized, bias)
        expected = torch.nn.functional.linear(x, quantized.dequantize(), bias)
        with torch.inference_mode():
            torch.testing.assert_close(module(x), expected)
        assert module.nbytes == quantized.nbytes + bias.nbytes
        assert torch.equal(QuantizedLinear(quantized).weight, quantized.dequantize())


@pytest.mark.parametrize("bits", [0, 1, 9, 4.0, True])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(UsageError, match=r"bits: cannot quantize to .* bits \(use 2 to 8 bits\)"):
        Scheme(bits)


@pytest.mark.parametrize("group", [-32, 4, 33])
def test_a_group_out_of_range_is_refused(group: int) -> None:
    with pytest.raises(UsageError, match="not a positive multiple of 8"):
        Scheme(4, group)


def test_a_group_that_does_not_divide_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        UsageError, match=r"group 128 does not divide a row of 576 weights \(use --group 32 or 64"
    ):
        quantize(torch.zeros(2, 576), Scheme(4, 128))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    weight = random_weight()
    weight[3, 5] = bad
    with pytest.raises(CheckpointError, match=r"layer 1: a weight is NaN or infinite"):
        quantize(weight, Scheme(4), where="layer 1")


def test_weights_beyond_the_scale_s_type_are_refused() -> None:
    with pytest.raises(CheckpointError, match="too large"):
        quantize(torch.full((1, 32), 1e30), Scheme(4, 32, symmetric=False))
