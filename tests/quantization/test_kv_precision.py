"""A rounded cache: as close as its precision allows, as small as claimed, and still lossless."""

import pytest
import torch

from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import ModelDrafter
from specdec_ref.errors import CacheError, UsageError
from specdec_ref.quantization.kv import PRECISIONS, Precision, RoundedKVCache, bytes_per_token, runner_with_kv
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from tests.helpers.models import perturbed, tiny_decoder

PROMPT = [1, 5, 9, 3]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bytes_are_those_that_are_held(precision: Precision) -> None:
    model = tiny_decoder(0, dtype=torch.float32)
    cache = runner_with_kv(model, 40, precision).cache
    assert cache.nbytes == 40 * bytes_per_token(model.config, precision)


def test_a_real_head_needs_about_half_of_float16() -> None:
    from dataclasses import replace

    config = replace(tiny_decoder(0).config, head_dim=64)
    sizes = [bytes_per_token(config, precision) for precision in PRECISIONS]
    assert sizes[0] == 2 * sizes[1] and sizes[2] / sizes[1] == 66 / 128


@pytest.mark.parametrize(("precision", "largest"), [("fp16", 2e-2), ("int8", 0.4)])
def test_logits_are_off_by_the_rounding_and_no_more(precision: Precision, largest: float) -> None:
    model = tiny_decoder(0, dtype=torch.float32)
    ids = list(range(25))
    exact = Runner(model, 40).forward(ids)
    rounded = runner_with_kv(model, 40, precision).forward(ids)
    error = float((exact - rounded).abs().max())
    assert 0 < error < largest
    if precision == "int8":
        assert error > float((exact - runner_with_kv(model, 40, "fp16").forward(ids)).abs().max())


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_entries_are_the_same_written_one_by_one_or_together(precision: Precision) -> None:
    model = tiny_decoder(0)
    ids = list(range(20))
    together, single = (runner_with_kv(model, 40, precision) for _ in range(2))
    logits = together.forward(ids)
    rows = torch.cat([single.forward([token]) for token in ids])
    assert torch.equal(together.cache.keys, single.cache.keys)
    assert torch.equal(together.cache.values, single.cache.values)
    torch.testing.assert_close(rows, logits, atol=1e-9, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_speculative_decoding_stays_lossless_on_a_rounded_cache(
    precision: Precision, temperature: float
) -> None:
    target = tiny_decoder(3)
    drafter = ModelDrafter(runner_with_kv(perturbed(target, 4), 64, precision), 31)
    plain, fast = (
        run(
            runner_with_kv(target, 64, precision),
            *more,
            PROMPT,
            max_new_tokens=40,
            sampling=Sampling(temperature),
        )
        for run, more in ((autoregressive, ()), (speculative, (drafter,)))
    )  # type: ignore[operator]
    assert fast.telemetry.accepted > 0
    if temperature == 0:
        assert fast.tokens == plain.tokens


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_rollback_and_reset_are_those_of_the_plain_cache(precision: Precision) -> None:
    runner = runner_with_kv(tiny_decoder(0), 10, precision)
    first = runner.forward([1, 2, 3])
    runner.forward([4, 5])
    runner.truncate(3)
    assert torch.equal(runner.forward([4, 5]), runner_with_again(runner, first))
    runner.reset()
    cache = runner.cache
    assert isinstance(cache, RoundedKVCache)
    held = [cache.keys, cache.values] + [s for s in (cache.key_scale, cache.value_scale) if s is not None]
    assert cache.length == 0 and not any(tensor.any() for tensor in held)
    with pytest.raises(CacheError, match="do not fit"):
        runner.forward(list(range(11)))


def runner_with_again(runner: Runner, first: torch.Tensor) -> torch.Tensor:
    """The last logits of the same tokens from an empty cache."""
    runner.reset()
    assert torch.equal(runner.forward([1, 2, 3]), first)
    return runner.forward([4, 5])


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown cache precision 'int4'"):
        runner_with_kv(tiny_decoder(0), 10, "int4")  # type: ignore[arg-type]
