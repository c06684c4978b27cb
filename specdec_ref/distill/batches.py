"""Which texts a training step sees: a function of seed and step, so that a resumed run needs no other position."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_ref.distill.config import TrainConfig
from specdec_ref.errors import UsageError


class Batches:
    """Rows of data in a new order each epoch, joined into longer texts in a share of the steps.

    Args:
        tokens: [rows, T] int32.
        roles: [rows, T] uint8.
        config: rows per step, chains, role weights.
        seed: of the order.
        process, processes: this process and how many there are; each gets an equal part of every step's rows.

    Attributes:
        epoch_steps: steps in one pass over the data.
    """

    def __init__(
        self,
        tokens: Tensor,
        roles: Tensor,
        config: TrainConfig,
        seed: int,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        self.tokens, self.roles, self.config, self.seed = tokens, roles, config, seed
        self.process, self.processes = process, processes
        self.epoch_steps = len(tokens) // config.rows
        local = config.rows // processes
        self.micros = -(-local // config.micro_rows)
        longest = max(chain for chain, _ in config.chains)
        if self.epoch_steps < 1:
            raise UsageError(
                f"{len(tokens)} rows of data do not fill a step of {config.rows}", fix="make more data"
            )
        if config.rows % processes or local % self.micros or (local // self.micros) % longest:
            raise UsageError(
                f"{config.rows} rows a step cannot be split over {processes} processes x {self.micros} parts x {longest} rows",
                fix="change train.rows or train.micro_rows",
            )
        self._weights = torch.tensor(config.role_weights, device=tokens.device)
        self._epoch, self._order = -1, torch.empty(0)

    def step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """This process's share of a step, in parts: token ids [B, chain T] (int64) and prediction weights [B chain T]."""
        epoch, place = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = torch.randperm(len(self.tokens), generator=generator).to(self.tokens.device)
            self._epoch = epoch
        local = self.config.rows // self.processes
        start = place * self.config.rows + self.process * local
        rows = self._order[start : start + local]
        chain = _pick(self.config.chains, random.Random(self.seed * 7_919 + step).random())
        return [self.rows(part, chain) for part in rows.chunk(self.micros)]

    def rows(self, rows: Tensor, chain: int = 1) -> tuple[Tensor, Tensor]:
        """The given rows, `chain` of them joined into one text, as in `step`."""
        roles = self.roles[rows].long()
        # Position t predicts token t+1. After a row's last token nothing follows, but the target still says what might.
        predicted = torch.cat([roles[:, 1:], roles[:, -1:]], dim=1)
        return self.tokens[rows].long().view(len(rows) // chain, -1), self._weights[predicted].flatten()


def _pick(table: Sequence[tuple[int, float]], pick: float) -> int:
    for value, share in table:
        pick -= share
        if pick < 0:
            return value
    return table[0][0]
