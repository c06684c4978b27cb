"""The drafts in training: their first weights, their shared teacher's view of the data, and one loss for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specdec_ref.distill.blocks import Trunk, layers_of
from specdec_ref.distill.config import DraftConfig, TrainConfig
from specdec_ref.distill.kernels import row_lse
from specdec_ref.distill.losses import HeadLoss, Mix
from specdec_ref.model import Decoder


def frequent_tokens(tokens: Tensor, roles: Tensor, role_weights: Sequence[float], vocab_size: int) -> Tensor:
    """All token ids [V], the most frequent of the data first; occurrences count by the role they have."""
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for role, weight in enumerate(role_weights):
        for part, its_roles in zip(tokens.split(65_536), roles.split(65_536), strict=True):
            counts += weight * torch.bincount(part[its_roles == role], minlength=vocab_size).cpu()
    return counts.argsort(descending=True, stable=True)


def new_draft(config: DraftConfig, target_embedding: Tensor, seed: int) -> Decoder:
    """A draft to train: its embedding is the target's, projected on its first principal directions; the rest random.

    Args:
        config: its shape.
        target_embedding: [V, D] in float32, on the CPU.
        seed: of the random matrices.
    """
    model = Decoder(config.model(target_embedding.shape[0]))
    model.head, model.head_ids = (
        None,
        None,
    )  # in training the head is rows of the embedding; export chooses them
    generator = torch.Generator().manual_seed(seed)
    depth = 2 * config.layers
    with torch.no_grad():
        model.embed.copy_(_principal(target_embedding, config.width, generator))
        for layer in layers_of(model):
            for linear in (layer.qkv, layer.gate_up):
                linear.weight.normal_(0, 0.7 / config.width**0.5, generator=generator)
            for linear in (layer.out, layer.down):
                linear.weight.normal_(0, 0.7 / (linear.weight.shape[1] * depth) ** 0.5, generator=generator)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def _principal(embedding: Tensor, width: int, generator: torch.Generator) -> Tensor:
    embedding = embedding.float()
    vectors = torch.linalg.eigh((embedding.t() @ embedding).double())[1].float()
    signs = vectors.abs().argmax(0)
    vectors = vectors * vectors.gather(0, signs[None]).sign()  # an eigenvector's sign is arbitrary: fix it
    reduced = embedding @ vectors[:, -width:]
    reduced = reduced * (0.03 / reduced.std())
    if reduced.shape[1] == width:
        return reduced
    rest = torch.randn(embedding.shape[0], width - reduced.shape[1], generator=generator) * 0.03
    return torch.cat([reduced, rest], dim=1)


class Teacher:
    """The frozen target: whole batches of logits, head tokens first.

    Args:
        target: on its device, in the dtype to compute with.
        order: [V] token ids in the order of the columns.
        positions: longest sequence.
        fuse: compile.
    """

    def __init__(self, target: Decoder, order: Tensor, positions: int, *, fuse: bool) -> None:
        self.trunk = Trunk(target, positions, target.dtype, fuse=fuse)
        head = target.embed if target.head is None else target.head.weight
        self.head = head.detach()[order.to(head.device)].contiguous()

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids [B, T] -> logits [B T, V], and each row's log-sum-exp and maximum."""
        logits = self.trunk(ids) @ self.head.t()
        return logits, *row_lse(logits)


class Students(nn.Module):
    """All drafts as one module: one forward, one backward, one exchange of gradients.

    Args:
        drafts: the decoders, on their device.
        names: of the drafts.
        order: [V] token ids, most frequent first; a draft's head is its first `head_rows`.
        positions: longest sequence.
        config: dtype and fusing.
    """

    def __init__(
        self,
        drafts: Sequence[Decoder],
        names: Sequence[str],
        order: Tensor,
        positions: int,
        config: TrainConfig,
    ) -> None:
        super().__init__()
        self.drafts = nn.ModuleList(drafts)
        self._rows = [draft.config.head_rows for draft in drafts]
        self.names = list(names)
        device = drafts[0].embed.device
        dtype = torch.bfloat16 if config.bf16 and device.type == "cuda" else torch.float32
        self._order = order.to(device)
        self._trunks = [
            Trunk(d, positions, dtype, fuse=config.compile and device.type == "cuda") for d in drafts
        ]

    def forward(
        self, ids: Tensor, logits: Tensor, lse: Tensor, top: Tensor, row_weight: Tensor, kl: float, tv: float
    ) -> tuple[Tensor, Tensor]:
        """Loss summed over the drafts, and their figures.

        Args:
            ids: [B, T].
            logits, lse, top: what the teacher returned for them.
            row_weight: [B T] weight of each position's prediction.
            kl, tv: weights of the loss terms.

        Returns:
            the loss, and [drafts, 3] means of KL, sum min(p, q) and argmax agreement over positions of weight above 0.
        """
        figures: list[Tensor] = []
        total = torch.zeros((), device=ids.device)
        for trunk, rows in zip(self._trunks, self._rows, strict=True):
            head = trunk.model.embed.index_select(0, self._order[:rows])
            total = total + HeadLoss.apply(
                trunk(ids), head, logits, lse, top, row_weight, Mix(kl, tv), figures
            )
        share = row_weight / row_weight.sum().clamp(min=1e-6)
        return total, torch.stack([(rows * share[:, None]).sum(0) for rows in figures])
