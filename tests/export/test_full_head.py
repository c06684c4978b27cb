"""A reduced head written as a whole one: the same logits for the tokens it has, none of the others ever proposed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdec_ref import checkpoints
from specdec_ref.drafters import ModelDrafter
from specdec_ref.export.full_head import with_full_head
from specdec_ref.model import Decoder
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling, distribution
from tests.helpers.models import tiny_decoder

HEAD = [0, 3, 4, 9, 17, 30]
IDS = torch.tensor([5, 30, 0, 17, 22, 9, 1])


def missing(model: Decoder) -> torch.Tensor:
    mask = torch.ones(model.config.vocab_size, dtype=torch.bool)
    mask[model.head_ids] = False
    return mask


@pytest.mark.parametrize(("multiple", "width"), [(1, 17), (5, 20), (16, 32)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0], ids=["tiny stream", "usual", "huge stream"])
def test_logits_of_the_head_are_unchanged_and_the_others_out_of_reach(
    scale: float, multiple: int, width: int
) -> None:
    model = tiny_decoder(1, head_ids=HEAD)
    model.embed.mul_(scale)  # the norms' epsilon matters in a tiny stream
    whole = with_full_head(model, multiple=multiple)
    assert whole.head_ids is None and whole.config.hidden_size == width
    ours, theirs = model(IDS), whole(IDS)
    torch.testing.assert_close(theirs[:, HEAD], ours, atol=1e-8, rtol=1e-8)
    assert theirs[:, missing(model)].max() < -1000


def test_the_distribution_is_the_same_to_the_last_token() -> None:
    model = tiny_decoder(2, head_ids=HEAD)
    whole = with_full_head(model)
    q, wide = (distribution(m(IDS)[-1].float(), Sampling(temperature=1.3)) for m in (model, whole))
    torch.testing.assert_close(wide[HEAD], q)
    assert wide[missing(model)].abs().sum() == 0


def test_biases_stay_and_a_whole_head_is_left_alone() -> None:
    model = tiny_decoder(3, head_ids=HEAD)
    config = replace(model.config, qkv_bias=True, o_bias=True, mlp_bias=True)
    biased = Decoder(config).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in biased.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    biased.head_ids = torch.tensor(HEAD)
    torch.testing.assert_close(with_full_head(biased)(IDS)[:, HEAD], biased(IDS), atol=1e-8, rtol=1e-8)
    plain = tiny_decoder(4)
    assert with_full_head(plain) is plain


@pytest.mark.parametrize("name", ["draft-320x4", "draft-256x2"])
def test_the_committed_drafts_propose_the_same_tokens(name: str) -> None:
    model = checkpoints.load(name).model
    whole = with_full_head(model)
    ids = torch.randint(0, 49_152, (48,), generator=torch.Generator().manual_seed(7))
    ours, theirs = model(ids), whole(ids)
    torch.testing.assert_close(theirs[:, model.head_ids], ours, atol=5e-4, rtol=0)
    assert theirs[:, missing(model)].max() < -10_000
    assert torch.equal(model.head_ids[ours.argmax(-1)], theirs.argmax(-1))
    assert ModelDrafter(Runner(whole), 49_152).vocab_size == 49_152
