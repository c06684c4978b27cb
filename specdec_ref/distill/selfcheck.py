"""Are the fused kernels right on this GPU, and how fast are data and training? Run it first on a new machine.

On a CPU the kernels are their own twins: it then checks the harness itself, on tiny shapes.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_ref.distill import kernels
from specdec_ref.distill.blocks import Trunk
from specdec_ref.distill.config import DistillConfig
from specdec_ref.distill.generate import Writer
from specdec_ref.distill.losses import HeadLoss, Mix, head_loss_autograd
from specdec_ref.distill.optim import Average, clip_and_guard, optimisers_for
from specdec_ref.distill.progress import Log
from specdec_ref.distill.students import Students, Teacher, new_draft
from specdec_ref.distill.target import RANDOM, load_target, random_decoder
from specdec_ref.distill.unrolled_attention import unrolled_attention
from specdec_ref.errors import SpecdecError
from specdec_ref.model import Decoder, ModelConfig

SMOLLM2_135M = ModelConfig(
    vocab_size=49_152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
    intermediate_size=1536, max_position_embeddings=8192, rope_theta=1e5, tie_word_embeddings=True,
)  # fmt: skip


class _Checks:
    def __init__(self, log: Log) -> None:
        self.log, self.failed = log, list[str]()

    def __call__(self, name: str, value: float, limit: float) -> None:
        good = value <= limit  # a NaN fails
        self.log("check", name=name, value=value, limit=limit, good=good)
        if not good:
            self.failed.append(name)


def selfcheck(config: DistillConfig, out: Path, *, target: str | None = None) -> None:
    """Compare every kernel with PyTorch and time generation and training on one device.

    Args:
        config: the run whose shapes to use.
        out: folder of the log.
        target: the target; "shape" (the default for a GPU run) stands for random weights in SmolLM2-135M's shape.

    Raises:
        SpecdecError: a kernel disagrees.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    log = Log(out / "log_selfcheck.jsonl", main=True)
    check = _Checks(log)
    log("device", torch=torch.__version__, device=str(device), gpus=torch.cuda.device_count())
    torch.manual_seed(0)
    if target is not None and target != "shape":
        model = load_target(target)
    else:
        model = random_decoder(SMOLLM2_135M if device.type == "cuda" else RANDOM, seed=0, scale=1.0)
    model = model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    _check_loss(check, device)
    _check_sampler(check, device)
    _check_decoding(check, model)
    _check_unrolled(check, device)
    if device.type == "cuda":
        _check_fused(check, model, config)
        _time_data(log, model, config)
        _time_training(log, model, config)
    if check.failed:
        raise SpecdecError(f"kernels disagree with PyTorch: {', '.join(check.failed)}", where=str(device))
    log("selfcheck done", good=True)


def _check_loss(check: _Checks, device: torch.device) -> None:
    gpu = device.type == "cuda"
    rows, width, head, vocab = (512, 320, 11_264, 49_152) if gpu else (16, 16, 40, 64)
    dtype = torch.bfloat16 if gpu else torch.float32
    hidden = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(head, width, device=device) * 0.2).requires_grad_()
    noise = torch.randn(rows, vocab, device=device)
    # Half of the rows are near the student, so that both terms of the minimum matter.
    noise[::2, :head] = (hidden[::2].float() @ weight.t()).detach() + 0.5 * noise[::2, :head]
    teacher = noise.to(dtype)
    row_weight = torch.rand(rows, device=device)
    lse, top = kernels.row_lse(teacher)
    plain_lse, plain_top = kernels.row_lse_torch(teacher)
    check("lse", float((lse - plain_lse).abs().max()), 1e-3)
    check("row maximum", float((top - plain_top).abs().max()), 0.0)
    for mix in (Mix(), Mix(0.5, 1.0)):
        figures: list[Tensor] = []
        loss = HeadLoss.apply(hidden, weight, teacher, lse, top, row_weight, mix, figures)
        ours = torch.autograd.grad(loss, (hidden, weight))
        expected = head_loss_autograd(hidden, weight.to(dtype), teacher, lse, row_weight, mix)
        theirs = torch.autograd.grad(expected, (hidden, weight))
        check(f"loss {mix}", float(((loss - expected) / expected).abs().detach()), 5e-3)
        # Total variation's gradient jumps where q crosses p: logits rounded to bfloat16 fall on the other side here and there.
        limit = 0.15 if mix.tv else 0.02
        for name, a, b in zip(("hidden", "weight"), ours, theirs, strict=True):
            check(
                f"gradient of {name} {mix}", float((a.float() - b.float()).norm() / b.float().norm()), limit
            )
        logits = hidden.detach() @ weight.detach().to(dtype).t()
        fused = logits.clone()
        kernels.kd_rows(fused, teacher, lse, top, row_weight, mix.kl, mix.tv)
        rows_torch = kernels.kd_rows_torch(logits, teacher, lse, top, row_weight, mix.kl, mix.tv)
        check(
            f"gradient of logits {mix}",
            float((fused.float() - logits.float()).norm() / logits.float().norm()),
            1e-2,
        )
        check(f"overlap {mix}", float((figures[0][:, 1] - rows_torch[:, 1]).abs().max()), 1e-3)
        check(f"match {mix}", float((figures[0][:, 2] - rows_torch[:, 2]).abs().sum()), 0.5)


def _check_sampler(check: _Checks, device: torch.device) -> None:
    rows, columns = (200_000, 200) if device.type == "cuda" else (20_000, 50)
    logits = torch.randn(1, columns, device=device).repeat(rows, 1).contiguous()
    ones, zeros = torch.ones(rows, device=device), torch.zeros(rows, device=device)
    for temperature in (1.0, 0.7):
        drawn = kernels.sample_rows(logits, ones * temperature, zeros, 5)
        share = torch.bincount(drawn, minlength=columns) / rows
        check(
            f"sampler T={temperature}",
            float((share - (logits[0] / temperature).softmax(-1)).abs().sum() / 2),
            0.03,
        )
    p = logits[0].softmax(-1)
    outside = (p < 0.2 * p.max()).nonzero().flatten()
    check(
        "sampler min-p",
        float(torch.isin(kernels.sample_rows(logits, ones, zeros + 0.2, 6), outside).sum()),
        0.0,
    )
    wide = torch.randn(256, 49_152 if device.type == "cuda" else 500, device=device)
    check(
        "sampler greedy",
        float((kernels.sample_rows(wide, zeros[:256], zeros[:256], 7) != wide.argmax(-1)).sum()),
        0.0,
    )


def _check_unrolled(check: _Checks, device: torch.device) -> None:
    """The fused attention of unrolled steps (0), and its gradients of q (1), keys (2-5) and values (6-9), in float32."""
    dtype, tokens = (torch.bfloat16, 512) if device.type == "cuda" else (torch.float32, 40)

    def some(heads: int) -> Tensor:
        return torch.randn(4, heads, tokens, 64, device=device).to(dtype).requires_grad_()

    q, parts = some(6), [some(1) for _ in range(8)]
    slope = torch.randn(q.shape, device=device)
    results = []
    for flash in (True, False):
        inputs = [x if flash else x.detach().float().requires_grad_() for x in (q, *parts)]
        out = unrolled_attention(inputs[0], inputs[1:5], inputs[5:], flash=flash)
        results.append((out, *torch.autograd.grad((out.float() * slope).sum(), inputs)))
    for number, (ours, exact) in enumerate(zip(*results, strict=True)):
        error = (ours.float() - exact).norm() / exact.norm()
        check(f"unrolled attention {number}", float(error.detach()), 2e-2)


@torch.no_grad()
def _check_decoding(check: _Checks, model: Decoder) -> None:
    """The step-by-step writer against the whole sequence at once, in the same dtype."""
    batch, length = 16, 160 if model.embed.is_cuda else 24
    ids = torch.randint(0, model.config.vocab_size, (batch, length), device=model.embed.device)
    writer = Writer(model, batch, length)
    steps = torch.stack([writer.logits(ids[:, t], t) for t in range(length)], dim=1)
    whole = model.logits(Trunk(model, length, model.dtype)(ids)).unflatten(0, (batch, length))
    exact = _exact_logits(model, ids)
    scale = exact.std()
    ours, base = ((x.float() - exact).pow(2).mean().sqrt() / scale for x in (steps, whole))
    # In bfloat16 the writer rounds the residual stream at every step and kernel, the fused whole sequence less often: on the
    # real weights about 3 times the error (0.12 of the logits' spread). What counts for the data is the KL below.
    check(
        "decoding error / whole-sequence error",
        float(ours / base.clamp(min=1e-6)),
        4.0 if base > 1e-5 else 1e9,
    )
    check("decoding error", float(ours), 0.15)
    kl = (exact.log_softmax(-1).exp() * (exact.log_softmax(-1) - steps.float().log_softmax(-1))).sum(-1)
    check("decoding KL", float(kl.mean()), 5e-3)


def _exact_logits(model: Decoder, ids: Tensor) -> Tensor:
    """float32 logits of the very weights that `model` holds in bfloat16."""
    wide = copy.deepcopy(model).float()
    return wide(ids)


def _check_fused(check: _Checks, model: Decoder, config: DistillConfig) -> None:
    """Compiled against eager, for the teacher's logits and a student's loss and gradients."""
    ids = torch.randint(0, model.config.vocab_size, (4, 512), device=model.embed.device)
    with torch.no_grad():
        eager, fused = (Trunk(model, 512, model.dtype, fuse=fuse)(ids).float() for fuse in (False, True))
    check("compiled teacher", float((eager - fused).norm() / eager.norm()), 3e-2)
    order = torch.arange(model.config.vocab_size)
    norms, losses = [], []
    for fuse in (False, True):
        draft = new_draft(config.drafts[0], model.embed.float().cpu(), order, 1).to(model.embed.device)
        students = Students([draft], ["x"], order, 512, dataclasses.replace(config.train, compile=fuse))
        teacher = Teacher(model, order, 512, taps=students.taps, fuse=False)
        weight = torch.ones(ids.numel(), device=ids.device)
        loss, _ = students(ids, *teacher(ids), weight, 1.0, 0.5)
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(torch.cat([p.grad.flatten() for p in draft.parameters() if p.grad is not None]))
    check("compiled student loss", abs(losses[0] - losses[1]) / losses[0], 5e-3)
    check("compiled student gradient", float((norms[0] - norms[1]).norm() / norms[0].norm()), 5e-2)


def _seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def _time_data(log: Log, model: Decoder, config: DistillConfig) -> None:
    rows, length = config.data.rows, config.data.tokens
    writer = Writer(model, rows, length)
    token = torch.randint(0, model.config.vocab_size, (rows,), device=model.embed.device)
    ones = torch.ones(rows, device=model.embed.device)
    steps = [8, length // 2, length - 8]

    def one_step(step: int) -> Callable[[], Any]:
        return lambda: kernels.sample_rows(writer.logits(token, step), ones, 0 * ones, 1)

    times = [_seconds(one_step(step)) for step in steps]
    log(
        "generation", rows=rows, ms_at=dict(zip(map(str, steps), [1e3 * t for t in times], strict=True)),
        tokens_per_s=round(rows / times[1]), peak_gb=torch.cuda.max_memory_allocated() / 1e9,
    )  # fmt: skip
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def _time_training(log: Log, model: Decoder, config: DistillConfig) -> None:
    c, device = config.train, model.embed.device
    order, length = torch.arange(model.config.vocab_size), config.data.tokens
    positions = 4 * length
    taps = {0, *(tap for draft_config in config.drafts for tap in draft_config.taps)}
    teacher = Teacher(model, order, positions, taps=sorted(taps), fuse=c.compile)
    began = time.perf_counter()
    for draft_config in config.drafts:
        draft = new_draft(draft_config, model.embed.float().cpu(), order, 1).to(device)
        students = Students([draft], [draft_config.name], order, positions, c)
        optimisers = optimisers_for(draft, c)
        parameters = dict(draft.named_parameters())
        average = Average(parameters, c.ema)
        for chain in (1, 4):
            ids = torch.randint(
                0, model.config.vocab_size, (c.micro_rows // chain, chain * length), device=device
            )
            weight = torch.ones(ids.numel(), device=device)
            seen = teacher(ids)

            def student(
                ids: Tensor = ids, seen: Any = seen, weight: Tensor = weight, students: Students = students
            ) -> None:
                loss, _ = students(ids, *seen, weight, 0.5, 1.0)
                loss.backward()

            def update(
                parameters: Any = parameters, average: Any = average, optimisers: Any = optimisers
            ) -> None:
                clip_and_guard(list(parameters.values()), c.clip)
                for optimiser in optimisers:
                    optimiser.step()
                average.update(parameters, 10)

            times = {"student_ms": 1e3 * _seconds(student), "update_ms": 1e3 * _seconds(update)}
            if draft_config is config.drafts[0]:
                times["teacher_ms"] = 1e3 * _seconds(lambda ids=ids: teacher(ids))  # type: ignore[misc]
            log("training", draft=draft_config.name, tokens=ids.numel(), length=ids.shape[1], **times)
            del seen
    log("training done", seconds=time.perf_counter() - began, peak_gb=torch.cuda.max_memory_allocated() / 1e9)
