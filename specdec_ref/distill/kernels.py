"""The four inner operations of distillation, each as plain PyTorch and, on a GPU, as one fused Triton kernel.

The PyTorch twins say what is computed; `selfcheck` compares the two on a GPU. N rows (tokens), V' columns of a draft's
head, V columns of the target's, B sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

SAMPLER_BLOCK = 4096


def row_lse(x: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and maximum [N] (float32) of each row of x [N, V]."""
    if not x.is_cuda:
        return row_lse_torch(x)
    from specdec_ref.distill import triton_kernels as tk

    lse = torch.empty(x.shape[0], device=x.device, dtype=torch.float32)
    top = torch.empty_like(lse)
    tk.lse_kernel[(x.shape[0],)](x, lse, top, x.shape[1], x.stride(0), BLOCK=4096, num_warps=8)
    return lse, top


def row_lse_torch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of `row_lse`."""
    x = x.float()
    return x.logsumexp(-1), x.amax(-1)


def kd_rows(
    student: Tensor,
    teacher: Tensor,
    lse: Tensor,
    top: Tensor,
    weight: Tensor,
    kl_weight: float,
    tv_weight: float,
) -> Tensor:
    """Distillation figures of each row; the student's logits are overwritten by the gradient of the loss.

    With q the student's softmax, p the target's over all V tokens, and p' the target's over the V' columns alone, the
    loss of a row is `weight * (kl_weight * KL(p' || q) + tv_weight * (1 - sum min(p, q)))`. The sum is the probability
    that a token drawn from q is accepted at temperature 1; tokens outside the head count as never proposed.

    Args:
        student: [N, V'] logits, overwritten.
        teacher: [N, V] logits; the first V' columns are the head's tokens, in the student's order.
        lse, top: `row_lse(teacher)`.
        weight: [N] float32.
        kl_weight, tv_weight: of the two terms.

    Returns:
        [N, 3] float32: KL(p' || q), sum min(p, q), and whether the argmax of q is the argmax of p.
    """
    if not student.is_cuda:
        return kd_rows_torch(student, teacher, lse, top, weight, kl_weight, tv_weight)
    from specdec_ref.distill import triton_kernels as tk

    rows, columns = student.shape
    out = torch.empty(rows, 3, device=student.device, dtype=torch.float32)
    tk.kd_kernel[(rows,)](
        student, teacher, lse, top, weight, out, columns, student.stride(0), teacher.stride(0),
        float(kl_weight), float(tv_weight), TV=tv_weight != 0, BLOCK=4096 if columns >= 4096 else 256, num_warps=8,
    )  # fmt: skip
    return out


def kd_rows_torch(
    student: Tensor,
    teacher: Tensor,
    lse: Tensor,
    top: Tensor,
    weight: Tensor,
    kl_weight: float,
    tv_weight: float,
) -> Tensor:
    """Twin of `kd_rows`."""
    head = teacher[:, : student.shape[1]].float()
    log_q, log_head = student.float().log_softmax(-1), head.log_softmax(-1)
    q, p = log_q.exp(), (head - lse[:, None]).exp()
    kl = (log_head.exp() * (log_head - log_q)).sum(-1)
    overlap = torch.minimum(p, q).sum(-1)
    best, at = head.max(-1)
    chosen = student.gather(-1, at[:, None])[:, 0].float()
    match = (chosen >= student.float().amax(-1)) & (best >= top)
    under = (q < p).float()
    gradient = kl_weight * (q - log_head.exp())
    if tv_weight != 0:
        gradient += tv_weight * q * ((under * q).sum(-1, keepdim=True) - under)
    student.copy_(gradient * weight[:, None])
    return torch.stack([kl, overlap, match.float()], dim=-1)


def sample_rows(logits: Tensor, temperature: Tensor, min_p: Tensor, seed: int) -> Tensor:
    """Draw one token a row: min-p (before the temperature), then temperature; below 0.001 the argmax.

    Args:
        logits: [B, V].
        temperature, min_p: [B] float32.
        seed: the draw is a function of it alone (the two implementations draw different numbers).

    Returns:
        token ids [B], int64.
    """
    if not logits.is_cuda:
        return sample_rows_torch(logits, temperature, min_p, seed)
    from specdec_ref.distill import triton_kernels as tk

    out = torch.empty(logits.shape[0], device=logits.device, dtype=torch.int64)
    grid = (logits.shape[0],)
    tk.sample_kernel[grid](
        logits,
        temperature,
        min_p,
        out,
        logits.shape[1],
        logits.stride(0),
        seed,
        BLOCK=SAMPLER_BLOCK,
        num_warps=8,
    )
    return out


def sample_rows_torch(logits: Tensor, temperature: Tensor, min_p: Tensor, seed: int) -> Tensor:
    """Twin of `sample_rows`."""
    generator = torch.Generator(device=logits.device).manual_seed(seed)
    z = logits.float() - logits.float().amax(-1, keepdim=True)
    u = torch.rand(z.shape, generator=generator, device=z.device).clamp(1e-10, 0.9999999)
    noisy = z / temperature.clamp(min=1e-3)[:, None] - (-u.log()).log()
    y = torch.where((temperature < 1e-3)[:, None], z, noisy)
    return y.masked_fill(z < min_p.clamp(min=1e-20).log()[:, None], -torch.inf).argmax(-1)


def decode_attention(
    qkv: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor, step: int
) -> Tensor:
    """One decoding step of attention for B sequences of equal length: rotate, append to the caches, attend.

    Args:
        qkv: [B, (H + 2G) E] of the token at position `step`.
        keys, values: [B, G, L, E] caches, written at `step` and read up to it.
        cos, sin: [L, E / 2] float32 rotation of each position.
        step: the position, the same for all.

    Returns:
        [B, H E]
    """
    if not qkv.is_cuda:
        return decode_attention_torch(qkv, keys, values, cos, sin, step)
    from specdec_ref.distill import triton_kernels as tk

    batch, groups, _, width = keys.shape
    heads = qkv.shape[1] // width - 2 * groups
    out = torch.empty(batch, heads * width, device=qkv.device, dtype=qkv.dtype)
    tk.decode_kernel[(batch, groups)](
        qkv, keys, values, cos, sin, out, step, qkv.stride(0), keys.stride(0), keys.stride(1), width**-0.5,
        H=heads, KV=groups, G=heads // groups, HD=width, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return out


def decode_attention_torch(
    qkv: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor, step: int
) -> Tensor:
    """Twin of `decode_attention`."""
    batch, groups, _, width = keys.shape
    heads = qkv.shape[1] // width - 2 * groups
    q, k, v = qkv.view(batch, heads + 2 * groups, width).split([heads, groups, groups], dim=1)

    def rotate(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos[step] - b * sin[step], b * cos[step] + a * sin[step]], -1).to(keys.dtype)

    keys[:, :, step], values[:, :, step] = rotate(k), v
    out = torch.nn.functional.scaled_dot_product_attention(
        rotate(q).view(batch, groups, heads // groups, width),
        keys[:, :, : step + 1],
        values[:, :, : step + 1],
    )
    return out.reshape(batch, heads * width).to(qkv.dtype)
