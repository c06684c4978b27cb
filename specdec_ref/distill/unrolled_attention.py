"""Attention of a feature-level draft in training, where each step sees the target's features and its own (EAGLE-3, Fig. 6).

Unrolled step s works on the same T rows as step 0, each s tokens further on. What row t may look at is what it will find in
the cache when drafting: keys made from the target's features up to its own row (step 0), and one key of each step since, its
own. So the scores are a causal [T, T] block and s diagonals.

B sequences, H query heads (keys and values of G heads are shared out before), E head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def unrolled_attention(
    q: Tensor, keys: list[Tensor], values: list[Tensor], *, flash: bool | None = None
) -> Tensor:
    """Attend to the causal past of step 0 and to one's own row of the steps since.

    Args:
        q: [B, H, T, E] of the step.
        keys, values: of every step up to this one, [B, G, T, E] each; at least two.
        flash: use the fused causal kernel for the block; default: where there is one for the device and dtype.

    Returns:
        [B, H, T, E]
    """
    share = q.shape[1] // keys[0].shape[1]
    keys, values = ([x.repeat_interleave(share, 1) for x in part] for part in (keys, values))
    own_keys, own_values = torch.stack(keys[1:], 3), torch.stack(values[1:], 3)  # [B, H, T, s, E]
    if flash is None:
        flash = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
    if flash:
        return _Flash.apply(q, keys[0], values[0], own_keys, own_values)
    return _plain(q, keys[0], values[0], own_keys, own_values)


def _plain(q: Tensor, k: Tensor, v: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
    """One softmax over the block and the diagonals, written out: it says what `_Flash` computes."""
    tokens, scale = q.shape[-2], q.shape[-1] ** -0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    block = (q @ k.transpose(-1, -2)).masked_fill(future, -torch.inf)
    own = (q[..., None, :] * own_keys).sum(-1)
    weights = (torch.cat([block, own], -1).float() * scale).softmax(-1).to(q.dtype)
    return weights[..., :tokens] @ v + (weights[..., tokens:, None] * own_values).sum(-2)


class _Flash(torch.autograd.Function):
    """The same through the fused kernel, which knows nothing of diagonals.

    Forward: the kernel returns its log-sum-exp with its output, so the diagonals' share is mixed in afterwards. Backward:
    the kernel works out probabilities as exp(score - log-sum-exp) and needs the output only for sum(output x gradient), so
    given the *mixed* output and log-sum-exp it returns the right gradients of the block (the rule of ring attention: Liu et
    al., 2023); those of the diagonals are a few products a row.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
        """q, k, v [B, H, T, E], own_keys and own_values [B, H, T, s, E] -> [B, H, T, E]."""
        scale = q.shape[-1] ** -0.5
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        kernel = (
            aten._scaled_dot_product_flash_attention
            if q.is_cuda
            else aten._scaled_dot_product_flash_attention_for_cpu
        )
        out, lse, *rest = kernel(q, k, v, 0.0, True, scale=scale)
        own = (q[..., None, :].float() * own_keys).sum(-1) * scale  # [B, H, T, s]
        total = torch.logaddexp(lse.float(), own.logsumexp(-1))
        out = (lse - total).exp()[..., None] * out.float()
        out = (out + ((own - total[..., None]).exp()[..., None] * own_values).sum(-2)).to(q.dtype)
        ctx.rest, ctx.scale = rest, scale
        ctx.save_for_backward(q, k, v, own_keys, own_values, out, total, own)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, ...]:
        """Gradients of all five inputs."""
        q, k, v, own_keys, own_values, out, total, own = ctx.saved_tensors
        (gradient,) = gradients
        gradient = gradient.contiguous()
        total = total.contiguous()
        if q.is_cuda:
            cum_q, cum_k, max_q, max_k, seed, offset, *_ = ctx.rest
            dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
                gradient,
                q,
                k,
                v,
                out,
                total,
                cum_q,
                cum_k,
                max_q,
                max_k,
                0.0,
                True,
                seed,
                offset,
                scale=ctx.scale,
            )
        else:
            dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradient, q, k, v, out, total, 0.0, True, scale=ctx.scale
            )
        mean = (gradient.float() * out.float()).sum(-1, keepdim=True)
        p = (own - total[..., None]).exp()
        slope = p * ((gradient[..., None, :].float() * own_values).sum(-1) - mean) * ctx.scale
        slope, p = slope.to(q.dtype)[..., None], p.to(q.dtype)[..., None]
        dq = dq + (slope * own_keys).sum(-2)
        return dq, dk, dv, slope * q[..., None, :], p * gradient[..., None, :]
