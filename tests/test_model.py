"""The decoder computes what transformers computes, with and without a cache, whatever the chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref import linear
from specdec_ref.checkpoints import LoadedModel, gguf, load
from specdec_ref.kv_cache import KVCache
from specdec_ref.model import Decoder
from tests.helpers import hf
from tests.helpers.models import tiny_decoder, with_reduced_head
from tests.helpers.properties import examples

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 24}),
    "llama without grouped queries": ("llama", {"num_key_value_heads": 4}),
    "llama with one key head": ("llama", {"num_key_value_heads": 1}),
    "llama, other theta and epsilon": ("llama", {"rope_theta": 123.0, "rms_norm_eps": 1e-2}),
    "llama, linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}},
    ),
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 tied with biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
}
TEXT = "The year 2024 saw 17 launches. Größe: 3,5 m — 日本語 👍\n\n\tdef f(x):\n        return x ** 2\n"


@pytest.fixture(autouse=True)
def every_form_of_product_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use all ways of writing a small product, chosen by the number of tokens instead of by a stopwatch."""
    names = list(linear.FORMS)
    monkeypatch.setattr(
        linear, "fastest_form", lambda _, tokens: names[2] if tokens == 1 else names[tokens % 2]
    )


def random_ids(count: int, vocab: int = 61, seed: int = 5) -> torch.Tensor:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def run(model: Decoder, ids: torch.Tensor) -> torch.Tensor:
    return model(ids)


@pytest.mark.parametrize("case", CASES)
def test_float64_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    ids = random_ids(100)
    with hf.float64():
        oracle = hf.tiny(family, **settings).double()
        oracle.save_pretrained(tmp_path)
        expected = hf.logits(oracle, ids)
    ours = run(load(tmp_path, torch.float64).model, ids)
    assert expected.dtype == ours.dtype == torch.float64
    assert expected.std() > 0.5, "logits this flat would hide mistakes"
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_float32_logits_equal_unchanged_transformers(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    oracle = hf.tiny(family, **settings)
    oracle.save_pretrained(tmp_path)
    ids = random_ids(100)
    torch.testing.assert_close(run(load(tmp_path).model, ids), hf.logits(oracle, ids), rtol=0, atol=1e-4)


def test_bfloat16_weights_load_and_stay_near_float32(tmp_path: Path) -> None:
    oracle = hf.tiny("llama")
    oracle.to(torch.bfloat16).save_pretrained(tmp_path)
    ids = random_ids(30)
    exact, rounded = run(load(tmp_path).model, ids), run(load(tmp_path, torch.bfloat16).model, ids)
    assert rounded.dtype == torch.bfloat16
    assert 0 < (exact - rounded.float()).abs().max() < 0.3


def test_a_batch_scores_each_sequence_as_alone() -> None:
    model = tiny_decoder(3)
    ids = torch.stack([random_ids(20, 31, seed) for seed in (1, 2)])
    alone = torch.stack([run(model, row) for row in ids])
    torch.testing.assert_close(run(model, ids), alone, rtol=0, atol=1e-12)


def test_last_rows_are_the_last_rows() -> None:
    model, ids = tiny_decoder(4), random_ids(9, 31)
    with torch.inference_mode():
        torch.testing.assert_close(model(ids, last=2), model(ids)[-2:], rtol=0, atol=1e-12)


def test_a_reduced_head_scores_its_own_tokens_only() -> None:
    model, ids = tiny_decoder(6), random_ids(9, 31)
    kept = [0, 3, 4, 17, 30]
    torch.testing.assert_close(
        run(with_reduced_head(model, kept), ids), run(model, ids)[:, kept], rtol=0, atol=1e-12
    )


@examples(60)
@given(data=st.data())
def test_any_chunks_and_rollbacks_give_the_logits_of_one_pass(data: st.DataObject) -> None:
    """The cache's state equals a recomputation without cache after every prefix, however it came about."""
    model = MODEL
    cache = KVCache(model.config, 48, torch.float64)
    held: list[int] = []
    for _ in range(data.draw(st.integers(1, 6), label="steps")):
        chunk = data.draw(
            st.lists(st.integers(0, 30), min_size=1, max_size=min(9, 48 - len(held))), label="chunk"
        )
        with torch.inference_mode():
            got = model(torch.tensor(chunk), cache)
        held += chunk
        expected = run(model, torch.tensor(held))[-len(chunk) :]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
        keep = data.draw(st.integers(0, len(held)) | st.just(len(held)), label="truncate to")
        cache.truncate(keep)
        del held[keep:]
        assert cache.length == len(held)
        if len(held) == 48:
            break


MODEL = tiny_decoder(11)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_one_token_at_a_time_equals_one_pass(family: str, tmp_path: Path) -> None:
    hf.tiny(family).double().save_pretrained(tmp_path)
    model = load(tmp_path, torch.float64).model
    ids, cache = random_ids(40), KVCache(model.config, 40, torch.float64)
    with torch.inference_mode():
        steps = torch.cat([model(ids[i : i + 1], cache) for i in range(40)])
    torch.testing.assert_close(steps, run(model, ids), rtol=0, atol=1e-10)


def test_positions_beyond_the_first_rope_table_are_computed(tmp_path: Path) -> None:
    """The table is made for 2048 positions at first and grows; a longer text must not fall back to early positions."""
    with hf.float64():
        oracle = hf.tiny("llama", num_hidden_layers=1, max_position_embeddings=4096).double()
        oracle.save_pretrained(tmp_path)
        ids = random_ids(2100)
        expected = hf.logits(oracle, ids)
    model = load(tmp_path, torch.float64).model
    run(model, ids[:8])
    torch.testing.assert_close(run(model, ids), expected, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_real_logits_equal_transformers_own_reading_of_the_gguf_file(smollm2: LoadedModel) -> None:
    """An oracle that shares no code with our conversion: dequantising and the q/k row order are transformers' own."""
    from transformers import AutoModelForCausalLM

    file = gguf(quiet=True)
    oracle = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    ).eval()
    assert smollm2.tokenizer is not None
    ids = torch.tensor(smollm2.tokenizer.chat([{"role": "user", "content": TEXT}]))
    torch.testing.assert_close(run(smollm2.model, ids), hf.logits(oracle, ids), rtol=0, atol=1e-3)


@pytest.mark.slow
def test_real_logits_equal_transformers_in_float64(smollm2: LoadedModel) -> None:
    from transformers import AutoModelForCausalLM

    assert smollm2.tokenizer is not None
    ids = torch.tensor(smollm2.tokenizer.encode(TEXT))
    with hf.float64():
        oracle = AutoModelForCausalLM.from_pretrained(str(smollm2.folder), dtype=torch.float64).eval()
        expected = hf.logits(oracle, ids)
    del oracle
    ours = run(load("smollm2-135m", torch.float64, quiet=True).model, ids)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_real_model_with_a_cache_in_verify_sized_chunks(smollm2: LoadedModel) -> None:
    """Chunks of 5, as a verify pass has them. Float32 is not bit-stable across shapes; 1.2e-4 was measured."""
    assert smollm2.tokenizer is not None
    ids = torch.tensor(smollm2.tokenizer.encode(TEXT * 2))
    cache = KVCache(smollm2.model.config, len(ids))
    with torch.inference_mode():
        chunks = torch.cat([smollm2.model(chunk, cache) for chunk in ids.split(5)])
    torch.testing.assert_close(chunks, run(smollm2.model, ids), rtol=0, atol=1e-3)
