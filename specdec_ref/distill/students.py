"""The drafts in training: their first weights, their shared teacher's view of the data, and one loss for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specdec_ref.distill.blocks import Trunk, layers_of
from specdec_ref.distill.config import DraftConfig, TrainConfig
from specdec_ref.distill.feature_trunk import FeatureTrunk
from specdec_ref.distill.kernels import row_lse
from specdec_ref.distill.losses import HeadLoss, Mix
from specdec_ref.feature_draft import FeatureConfig, FeatureDraft
from specdec_ref.model import Decoder, Stack


def frequent_tokens(tokens: Tensor, roles: Tensor, role_weights: Sequence[float], vocab_size: int) -> Tensor:
    """All token ids [V], the most frequent of the data first; occurrences count by the role they have."""
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for role, weight in enumerate(role_weights):
        for part, its_roles in zip(tokens.split(65_536), roles.split(65_536), strict=True):
            counts += weight * torch.bincount(part[its_roles == role], minlength=vocab_size).cpu()
    return counts.argsort(descending=True, stable=True)


def new_draft(config: DraftConfig, target_embedding: Tensor, order: Tensor, seed: int) -> Stack:
    """A draft to train: its embedding and head are the target's embedding, projected on its first principal directions;
    the rest is random.

    Args:
        config: its shape.
        target_embedding: [V, W] in float32, on the CPU.
        order: [V] token ids, most frequent first.
        seed: of the random matrices.
    """
    shape = config.model(*target_embedding.shape)
    generator = torch.Generator().manual_seed(seed)
    model: Decoder | FeatureDraft
    with torch.no_grad():
        if isinstance(shape, FeatureConfig):
            model = FeatureDraft(shape)
            reduced = _principal(target_embedding, config.width, generator)
            model.head.weight.copy_(reduced[order[: shape.head_rows].cpu()])
            for linear in (model.fuse, model.combine):
                linear.weight.normal_(0, linear.weight.shape[1] ** -0.5, generator=generator)
        else:
            model = Decoder(shape)
            # In training the head is rows of the embedding; export chooses them.
            model.head, model.head_ids = None, None
            model.embed.copy_(_principal(target_embedding, config.width, generator))
        depth = 2 * config.layers
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


Lesson = tuple[Tensor, Tensor, Tensor, dict[int, Tensor]]
"""Logits [N, V] in the order of the columns, their log-sum-exp and maximum [N], and the streams [N, W] that were asked for."""


class Teacher:
    """The frozen target: whole batches of logits, head tokens first.

    Args:
        target: on its device, in the dtype to compute with.
        order: [V] token ids in the order of the columns.
        positions: longest sequence.
        taps: streams to return besides: after so many blocks.
        fuse: compile.
    """

    def __init__(
        self, target: Decoder, order: Tensor, positions: int, *, taps: Sequence[int] = (), fuse: bool
    ) -> None:
        self.trunk = Trunk(target, positions, target.dtype, fuse=fuse)
        self.taps = sorted(taps)
        head = target.embed if target.head is None else target.head.weight
        self.head = head.detach()[order.to(head.device)].contiguous()

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> Lesson:
        """ids [B, T] -> what students learn from, N = B T."""
        taps = {index: torch.empty(0) for index in self.taps}
        logits = self.trunk(ids, taps) @ self.head.t()
        return logits, *row_lse(logits), taps


class Students(nn.Module):
    """All drafts as one module: one forward, one backward, one exchange of gradients.

    Args:
        drafts: the models, on their device.
        names: of the drafts.
        order: [V] token ids, most frequent first; a draft's head is its first `head_rows`.
        positions: longest sequence.
        config: dtype and fusing; how far feature-level drafts are unrolled.

    Attributes:
        taps: streams of the target that they need from the teacher; 0 is the embedding.
        lines: names of the rows of figures: one a draft, and one a step after the first that a feature-level draft takes.
    """

    def __init__(
        self,
        drafts: Sequence[Stack],
        names: Sequence[str],
        order: Tensor,
        positions: int,
        config: TrainConfig,
    ) -> None:
        super().__init__()
        self.drafts = nn.ModuleList(drafts)
        self._rows = [draft.config.head_rows for draft in drafts]
        self.names = list(names)
        self._config = config
        device = next(drafts[0].parameters()).device
        on_gpu = device.type == "cuda"
        dtype = torch.bfloat16 if config.bf16 and on_gpu else torch.float32
        self._order = order.to(device)
        self._trunks = [
            _trunk(draft, positions, dtype, config, fuse=config.compile and on_gpu) for draft in drafts
        ]
        wanted = [{0, *d.config.taps} for d in drafts if isinstance(d, FeatureDraft)]
        self.taps: list[int] = sorted(set().union(*wanted))
        self.lines: list[str] = []
        for name, draft in zip(names, drafts, strict=True):
            unrolled = range(2, config.unroll + 1) if isinstance(draft, FeatureDraft) else ()
            self.lines += [name, *(f"{name} step {step}" for step in unrolled)]

    def forward(
        self,
        ids: Tensor,
        logits: Tensor,
        lse: Tensor,
        top: Tensor,
        taps: dict[int, Tensor],
        row_weight: Tensor,
        kl: float,
        tv: float,
    ) -> tuple[Tensor, Tensor]:
        """Loss summed over the drafts, and their figures.

        Args:
            ids: [B, T].
            logits, lse, top, taps: what the teacher returned for them.
            row_weight: [B T] weight of each position's prediction.
            kl, tv: weights of the loss terms.

        Returns:
            the loss, and [lines, 3] means of KL, sum min(p, q) and argmax agreement over positions of weight above 0.
        """
        lines: list[Tensor] = []
        total = torch.zeros((), device=ids.device)

        def learn(hidden: Tensor, head: Tensor, ahead: int, weight: Tensor) -> Tensor:
            # Row r of `hidden` predicts what the teacher does `ahead` rows later.
            n = len(hidden) - ahead
            figures: list[Tensor] = []
            loss = HeadLoss.apply(
                hidden[:n], head, logits[ahead:], lse[ahead:], top[ahead:], weight[:n], Mix(kl, tv), figures
            )
            share = weight[:n] / weight[:n].sum().clamp(min=1e-6)
            lines.append((figures[0] * share[:, None]).sum(0))
            return loss

        for trunk, rows in zip(self._trunks, self._rows, strict=True):
            if isinstance(trunk, FeatureTrunk):
                steps = self._config.unroll
                decay = torch.tensor([self._config.unroll_decay**step for step in range(steps)])
                hiddens = trunk.unroll(taps, len(ids), steps)
                for ahead, (hidden, share) in enumerate(zip(hiddens, decay / decay.sum(), strict=True), 1):
                    weight = _ahead(row_weight, ids.shape, ahead)
                    total = total + float(share) * learn(hidden, trunk.head, ahead, weight)
            else:
                assert isinstance(trunk.model, Decoder)
                head = trunk.model.embed.index_select(0, self._order[:rows])
                total = total + learn(trunk(ids), head, 0, row_weight)
        return total, torch.stack(lines)


def _trunk(draft: Stack, positions: int, dtype: torch.dtype, config: TrainConfig, *, fuse: bool) -> Trunk:
    if not isinstance(draft, FeatureDraft):
        return Trunk(draft, positions, dtype, fuse=fuse)
    flash = None if config.flash else False
    return FeatureTrunk(draft, positions + config.unroll, dtype, fuse=fuse, flash=flash)


def _ahead(row_weight: Tensor, shape: torch.Size, ahead: int) -> Tensor:
    """[B T] weights of the predictions `ahead` rows later in the same text; 0 where the text ends before."""
    weight = row_weight.view(shape)
    return torch.cat([weight[:, ahead:], torch.zeros_like(weight[:, :ahead])], 1).flatten()
