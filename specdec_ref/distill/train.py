"""Stage 2: the drafts learn the target's full next-token distributions, on any number of processes."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_ref.distill.batches import Batches
from specdec_ref.distill.checkpoint import check_same_run, load_checkpoint
from specdec_ref.distill.clock import Clock
from specdec_ref.distill.config import DistillConfig
from specdec_ref.distill.losses import Mix, mix_at
from specdec_ref.distill.optim import Average, clip_and_guard, optimisers_for, peak_rates, rate_factor
from specdec_ref.distill.processes import accelerator_for
from specdec_ref.distill.progress import Log, bar, rounded
from specdec_ref.distill.shards import read_shards
from specdec_ref.distill.students import Students, Teacher, frequent_tokens, new_draft
from specdec_ref.distill.target import load_target
from specdec_ref.errors import SpecdecError
from specdec_ref.files import atomic_file

FIGURES = ("kl", "alpha", "match")
"""What is logged of a draft: KL(p' || q), sum min(p, q), argmax agreement, as weighted means over tokens."""


def train(
    config: DistillConfig, out: Path, *, minutes: float = 0.0, target: str | None = None
) -> dict[str, Any]:
    """Train all drafts of a run, or go on where an earlier command stopped or was killed.

    Args:
        config: the run.
        out: its folder; data is read from `out/data`, the state is kept in `out/checkpoint.pt`.
        minutes: save and stop after so long, start-up included (0: no limit). The schedule is `config.train`'s.
        target: where the target is, if not where the configuration says.

    Returns:
        the summary that is written to `out/train.json`.
    """
    run = _Run(config, out, target or config.target, minutes)
    run.resume()
    run.loop()
    return run.finish()


class _Run:
    """State of one training command."""

    def __init__(self, config: DistillConfig, out: Path, target: str, minutes: float) -> None:
        self.began = time.perf_counter()
        self.config, self.out, self.limit = config, out, 60 * minutes
        self.accelerator = accelerator_for()
        device, main = self.accelerator.device, self.accelerator.is_main_process
        self.log = Log(out / "log_train.jsonl", main)
        torch.manual_seed(config.seed)
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
        tokens, roles = read_shards(out / "data")
        decoder = load_target(target)
        c = config.train
        self.saved = load_checkpoint(out / "checkpoint.pt")
        if self.saved:
            check_same_run(self.saved["config"], config, out / "checkpoint.pt")
        order = self.saved.get("order")
        if order is None:
            order = frequent_tokens(
                tokens.to(device), roles.to(device), c.role_weights, decoder.config.vocab_size
            )
        self.order: Tensor = order
        drafts = [
            new_draft(d, decoder.embed, order, config.seed * 101 + i).to(device)
            for i, d in enumerate(config.drafts)
        ]
        positions = tokens.shape[1] * max(chain for chain, _ in c.chains)
        self.students = Students(drafts, [d.name for d in config.drafts], self.order, positions, c)
        optimisers = [optimisers_for(draft, c) for draft in drafts]
        self.peaks = [peak for _ in drafts for peak in peak_rates(c)]
        self.model, *self.optimisers = self.accelerator.prepare(
            self.students, *(o for pair in optimisers for o in pair)
        )
        self.parameters = [dict(draft.named_parameters()) for draft in drafts]
        self.averages = [Average(p, c.ema) for p in self.parameters]
        on_gpu = device.type == "cuda"
        teacher_dtype = torch.bfloat16 if c.bf16 and on_gpu else torch.float32
        self.teacher = Teacher(
            decoder.to(device, teacher_dtype),
            self.order,
            positions,
            taps=self.students.taps,
            fuse=c.compile and on_gpu,
        )
        held = c.held_out_rows
        tokens, roles = tokens.to(device), roles.to(device)
        place = (self.accelerator.process_index, self.accelerator.num_processes)
        self.batches = Batches(tokens[:-held], roles[:-held], c, config.seed, *place)
        self.held_out = Batches(tokens[-held:], roles[-held:], c, 0, *place)
        self.step, self.elapsed = 0, 0.0
        self.log(
            "train", rows=len(tokens), epoch_steps=self.batches.epoch_steps, processes=place[1], device=str(device),
            bodies={name: draft.config.body_parameters for name, draft in zip(self.students.names, drafts, strict=True)},
        )  # fmt: skip

    def resume(self) -> None:
        """Load the checkpoint, if there is one."""
        if not self.saved:
            return
        for draft, average, mine, averaged in zip(
            self.parameters, self.averages, self.saved["drafts"], self.saved["averages"], strict=True
        ):
            with torch.no_grad():
                for name, parameter in draft.items():
                    parameter.copy_(mine[name])
            average.load_state_dict(averaged)
        for optimiser, state in zip(self.optimisers, self.saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        torch.set_rng_state(self.saved["rng"])
        self.step, self.elapsed = self.saved["step"], self.saved["elapsed"]
        self.log("resumed", step=self.step, elapsed=self.elapsed)
        self.saved = {}

    def save(self) -> None:
        """Write the checkpoint: complete or not at all."""
        if self.accelerator.is_main_process:
            state = {
                "step": self.step,
                "elapsed": self.elapsed,
                "order": self.order,
                "drafts": [{n: p.detach() for n, p in draft.items()} for draft in self.parameters],
                "averages": [a.state_dict() for a in self.averages],
                "optimisers": [o.state_dict() for o in self.optimisers],
                "rng": torch.get_rng_state(),
                "config": json.dumps(self.config.to_json()),
            }
            with atomic_file(self.out / "checkpoint.pt") as part:
                torch.save(state, part)
        self.accelerator.wait_for_everyone()

    def loop(self) -> None:
        """Train until the schedule or this command's time is over."""
        c = self.config.train
        self.clock = clock = Clock(c, self.elapsed, self.limit, self.began)
        progress_bar = bar(c.steps or None, "train", self.accelerator.is_main_process, "step")
        progress_bar.update(self.step)
        window: list[Tensor] = []
        first, kept = self.step, self.step
        while clock.progress(self.step) < 1:
            progress = clock.progress(self.step)
            factor = rate_factor(self.step, progress, c)
            window.append(self._one_step(factor, mix_at(progress, c.tv_from, c.tv_weight, c.kl_end)))
            self.step += 1
            progress_bar.update(1)
            stop, save = clock.tick(self.accelerator)
            self.elapsed = clock.elapsed
            if self.step % c.log_every == 0 or self.step == first + 5:
                self._report(window, clock, factor)
                window = []
            if save:
                self.save()
                kept = self.step
            if stop:
                break
        progress_bar.close()
        if kept != self.step:
            self.save()

    def _one_step(self, factor: float, mix: Mix) -> Tensor:
        """One optimiser step; returns [loss, dropped, norm of each draft, figures of each draft] on the device."""
        parts = self.batches.step(self.step)
        figures, losses = [], []
        for number, (ids, weight) in enumerate(parts):
            teacher = self.teacher(ids)
            last = number == len(parts) - 1
            with _nothing() if last else self.accelerator.no_sync(self.model):
                loss, rows = self.model(ids, *teacher, weight, mix.kl, mix.tv)
                self.accelerator.backward(loss / len(parts))
            losses.append(loss.detach())
            figures.append(rows)
        for optimiser, peak in zip(self.optimisers, self.peaks, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = peak * factor
        guarded = [clip_and_guard(list(p.values()), self.config.train.clip) for p in self.parameters]
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for average, parameters in zip(self.averages, self.parameters, strict=True):
            average.update(parameters, self.step)
        norms, dropped = zip(*guarded, strict=True)
        head = torch.stack([torch.stack(losses).mean(), torch.stack(dropped).amax(), *norms])
        return torch.cat([head, torch.stack(figures).mean(0).flatten()])

    def _report(self, window: list[Tensor], clock: Clock, factor: float) -> None:
        mean = self.accelerator.reduce(torch.stack(window).mean(0), "mean").tolist()
        count = len(self.students.names)
        figures = {
            line: dict(zip(FIGURES, mean[2 + count + 3 * i :][:3], strict=True))
            for i, line in enumerate(self.students.lines)
        }
        per_step = self.config.train.rows * self.batches.tokens.shape[1]
        rate = round(per_step / clock.step_seconds) if clock.step_seconds else 0
        self.log(
            "step", step=self.step, progress=clock.progress(self.step), loss=mean[0], dropped=mean[1] * len(window),
            norm=mean[2 : 2 + count], lr=factor, epoch=self.step / self.batches.epoch_steps, tokens_per_s=rate, **figures,
        )  # fmt: skip
        if (mean[1] >= 1 and len(window) >= 10) or (mean[1] == 0 and not math.isfinite(mean[0])):
            raise SpecdecError(
                "the loss is no longer finite", where=f"step {self.step}", fix="lower the learning rates"
            )

    @torch.no_grad()
    def held_out_figures(self) -> dict[str, dict[str, float]]:
        """Figures of the averaged weights on rows that were never trained on."""
        for average, parameters in zip(self.averages, self.parameters, strict=True):
            average.exchange(parameters)
        figures = []
        for ids, weight in self.held_out.step(0):
            figures.append(self.students(ids, *self.teacher(ids), weight, 1.0, 0.0)[1])
        for average, parameters in zip(self.averages, self.parameters, strict=True):
            average.exchange(parameters)
        mean = self.accelerator.reduce(torch.stack(figures).mean(0), "mean").tolist()
        return {
            n: dict(zip(FIGURES, row, strict=True)) for n, row in zip(self.students.lines, mean, strict=True)
        }

    @torch.no_grad()
    def check_agreement(self) -> None:
        """Every process must hold the same weights; they do unless the exchange of gradients failed.

        Raises:
            SpecdecError: two processes' weights differ.
        """
        sums = [p.detach().double().sum() for draft in self.parameters for p in draft.values()]
        everyones = self.accelerator.gather(torch.stack(sums)[None])  # [processes, parameters]
        if not bool((everyones == everyones[:1]).all()):
            raise SpecdecError(
                "the processes' weights differ",
                where=f"step {self.step}",
                fix="train again from the last checkpoint",
            )

    def finish(self) -> dict[str, Any]:
        """Measure the held-out figures and write the summary."""
        self.check_agreement()
        c = self.config.train
        per_step = c.rows * self.batches.tokens.shape[1]
        summary = {
            "run": self.config.name,
            "finished": self.clock.progress(self.step) >= 1,
            "steps": self.step,
            "seconds": self.elapsed,
            "token_visits": self.step * per_step,
            "unique_tokens": self.batches.tokens.numel(),
            "epochs": self.step / self.batches.epoch_steps,
            "tokens_per_s": per_step / self.clock.step_seconds if self.clock.step_seconds else 0.0,
            "processes": self.accelerator.num_processes,
            "device": _device_name(self.accelerator.device),
            "held_out": self.held_out_figures(),
            "config": self.config.to_json(),
        }
        self.log("train done", **{k: v for k, v in summary.items() if k != "config"})
        if self.accelerator.is_main_process:
            with atomic_file(self.out / "train.json") as part:
                part.write_text(json.dumps(rounded(summary), indent=1) + "\n", encoding="utf-8")
        self.accelerator.wait_for_everyone()
        return summary


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()
