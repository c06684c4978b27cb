"""llama.cpp computes from our GGUF files what this kit computes. Opt-in: `make test-peers` builds llama-cpp-python.

Both sides run in float32 (llama.cpp's cache as well, which is float16 by default) on the same token ids. Measured with
llama-cpp-python 0.3.36 over 133 positions: logits (up to 38) differ by 9e-5 at most for the target and 3e-5 for the drafts,
distributions by 6e-6 in total variation; a draft written in float16 by 0.02 and 0.002. The bounds below are the kit's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specdec_ref.checkpoints import LoadedModel
from specdec_ref.export.gguf import Precision, write_gguf
from specdec_ref.export.source import load_source
from specdec_ref.tokenizer import Tokenizer

pytestmark = pytest.mark.peers

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that reverses a list of 12 numbers.",
    "Say good morning in Greek: καλημέρα, and in  two   spaces.",
)
F32_CACHE = 0  # ggml's number for float32


@dataclass(frozen=True)
class Both:
    """One model on both sides."""

    ours: LoadedModel
    tokenizer: Tokenizer
    theirs: Any

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.chat([{"role": "user", "content": text}])

    def logits(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ours [T, rows of the head] and theirs [T, V]."""
        self.theirs.reset()
        self.theirs.eval(ids)
        scores = torch.from_numpy(np.array(self.theirs.scores[: len(ids)]))
        return self.ours.model(torch.tensor(ids)), scores


@pytest.fixture(scope="module")
def llama_cpp() -> Any:
    try:
        import llama_cpp
    except ImportError:
        pytest.fail(
            "llama-cpp-python is not installed: run `make test-peers`, which builds it in build/peers",
            pytrace=False,
        )
    return llama_cpp


def both(llama_cpp: Any, folder: Path, name: str, precision: Precision) -> Both:
    ours, tokenizer = load_source(name)
    path = write_gguf(folder / f"{name}-{precision}.gguf", ours, tokenizer, precision=precision)
    theirs = llama_cpp.Llama(
        str(path), n_ctx=256, n_batch=256, n_threads=1, n_threads_batch=1, logits_all=True, flash_attn=False,
        type_k=F32_CACHE, type_v=F32_CACHE, verbose=False,
    )  # fmt: skip
    return Both(ours, tokenizer, theirs)


@pytest.fixture(scope="module")
def target(llama_cpp: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    pair = both(llama_cpp, tmp_path_factory.mktemp("target"), "target", "fp32")
    yield pair
    pair.theirs.close()


@pytest.fixture(scope="module", params=["draft-320x4", "draft-256x2"])
def draft(
    llama_cpp: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Both]:
    pair = both(llama_cpp, tmp_path_factory.mktemp("draft"), request.param, "fp32")
    yield pair
    pair.theirs.close()


@pytest.mark.parametrize("text", PROMPTS)
def test_target_logits_are_ours(target: Both, text: str) -> None:
    ours, theirs = target.logits(target.prompt(text))
    assert (ours - theirs).abs().max() < 1e-3
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("text", PROMPTS)
def test_draft_distributions_are_ours(draft: Both, text: str) -> None:
    head = draft.ours.model.head_ids
    ours, theirs = draft.logits(draft.prompt(text))
    assert (ours - theirs[:, head]).abs().max() < 1e-3
    q, wide = ours.softmax(-1), theirs.softmax(-1)
    assert (q - wide[:, head]).abs().sum(-1).max() < 1e-3
    missing = torch.ones(theirs.shape[1], dtype=torch.bool)
    missing[head] = False
    assert theirs[:, missing].max() < -1000 and wide[:, missing].sum() == 0
    assert torch.equal(head[ours.argmax(-1)], theirs.argmax(-1))


def test_float16_keeps_the_distribution_near(llama_cpp: Any, tmp_path: Path) -> None:
    pair = both(llama_cpp, tmp_path, "draft-320x4", "fp16")
    ours, theirs = pair.logits(pair.prompt(PROMPTS[0]))
    head = pair.ours.model.head_ids
    overlap = torch.minimum(ours.softmax(-1), theirs.softmax(-1)[:, head]).sum(-1)
    assert overlap.min() > 0.99
    missing = torch.ones(theirs.shape[1], dtype=torch.bool)
    missing[head] = False
    assert theirs[:, missing].max() < -1000
    pair.theirs.close()


@pytest.mark.parametrize("text", PROMPTS)
def test_tokenizers_agree(target: Both, text: str) -> None:
    theirs = target.theirs.tokenize(text.encode(), add_bos=False, special=False)
    assert theirs == target.tokenizer.encode(text)


def test_settings_and_chat_template_arrive(target: Both, draft: Both) -> None:
    for pair in (target, draft):
        assert pair.theirs.metadata["tokenizer.chat_template"] == pair.tokenizer.chat_template
        assert pair.theirs.token_eos() == pair.ours.eos_ids[0]
        assert pair.theirs.token_bos() == pair.ours.bos_id


def test_greedy_text_is_the_same(target: Both) -> None:
    from specdec_ref.decoding import autoregressive
    from specdec_ref.runner import Runner

    ids = target.prompt(PROMPTS[0])
    expected = autoregressive(
        Runner(target.ours.model), ids, max_new_tokens=24, eos_ids=target.ours.eos_ids
    ).tokens
    target.theirs.reset()
    target.theirs.eval(ids)
    said: list[int] = []
    while len(said) < 24 and (not said or said[-1] not in target.ours.eos_ids):
        said.append(int(np.argmax(target.theirs.scores[target.theirs.n_tokens - 1])))
        target.theirs.eval(said[-1:])
    assert said == expected
