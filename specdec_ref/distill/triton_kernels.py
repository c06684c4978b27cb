"""Triton kernels of data generation and training. `kernels.py` holds their PyTorch twins and chooses between them.

Imported on a GPU only. Every kernel handles one row (or one sequence and key/value head) a program.
"""

# mypy: ignore-errors
# ruff: noqa: E741
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def lse_kernel(X, LSE, MAX, V, stride, BLOCK: tl.constexpr):
    """Log-sum-exp and maximum of a row."""
    row = tl.program_id(0).to(tl.int64)
    X += row * stride
    m = -float("inf")
    s = 0.0
    offs = tl.arange(0, BLOCK)
    for o in range(0, V, BLOCK):
        x = tl.load(X + o + offs, mask=(o + offs) < V, other=-1e30).to(tl.float32)
        n = tl.maximum(m, tl.max(x, 0))
        s = s * tl.exp(m - n) + tl.sum(tl.exp(x - n), 0)
        m = n
    tl.store(LSE + row, m + tl.log(s))
    tl.store(MAX + row, m)


@triton.jit
def kd_kernel(
    S, T, LSEF, MAXF, W, OUT, V, s_stride, t_stride, kl_weight, tv_weight,
    TV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """KL and total variation of a row, three figures out, and the gradient in place of the student's logits."""
    row = tl.program_id(0).to(tl.int64)
    S += row * s_stride
    T += row * t_stride
    offs = tl.arange(0, BLOCK)
    ms = -float("inf")
    ss = 0.0
    mt = -float("inf")
    st = 0.0
    ti = 0
    for o in range(0, V, BLOCK):
        k = (o + offs) < V
        s = tl.load(S + o + offs, mask=k, other=-1e30).to(tl.float32)
        t = tl.load(T + o + offs, mask=k, other=-1e30).to(tl.float32)
        n = tl.maximum(ms, tl.max(s, 0))
        ss = ss * tl.exp(ms - n) + tl.sum(tl.exp(s - n), 0)
        ms = n
        bt = tl.max(t, 0)
        ti = tl.where(bt > mt, o + tl.argmax(t, 0), ti)
        n2 = tl.maximum(mt, bt)
        st = st * tl.exp(mt - n2) + tl.sum(tl.exp(t - n2), 0)
        mt = n2
    lses = ms + tl.log(ss)
    lset = mt + tl.log(st)
    lsef = tl.load(LSEF + row)
    maxf = tl.load(MAXF + row)
    weight = tl.load(W + row)
    at = tl.load(S + ti).to(tl.float32)
    match = tl.where((at >= ms) & (mt >= maxf), 1.0, 0.0)
    kl = 0.0
    overlap = 0.0
    below = 0.0  # draft mass of the tokens that the draft gives less than the target does
    for o in range(0, V, BLOCK):
        k = (o + offs) < V
        s = tl.load(S + o + offs, mask=k, other=-1e30).to(tl.float32) - lses
        t = tl.load(T + o + offs, mask=k, other=-1e30).to(tl.float32)
        q = tl.exp(s)
        p = tl.exp(t - lsef)
        overlap += tl.sum(tl.minimum(q, p), 0)
        kl += tl.sum(tl.where(k, tl.exp(t - lset) * (t - lset - s), 0.0), 0)
        if TV:
            below += tl.sum(tl.where(q < p, q, 0.0), 0)
    for o in range(0, V, BLOCK):
        k = (o + offs) < V
        s = tl.load(S + o + offs, mask=k, other=-1e30).to(tl.float32) - lses
        t = tl.load(T + o + offs, mask=k, other=-1e30).to(tl.float32)
        q = tl.exp(s)
        g = kl_weight * (q - tl.exp(t - lset))
        if TV:
            g += tv_weight * q * (below - tl.where(q < tl.exp(t - lsef), 1.0, 0.0))
        tl.store(S + o + offs, (g * weight).to(S.dtype.element_ty), mask=k)
    tl.store(OUT + row * 3, kl)
    tl.store(OUT + row * 3 + 1, overlap)
    tl.store(OUT + row * 3 + 2, match)


@triton.jit(do_not_specialize=["seed"])
def sample_kernel(X, TEMP, MINP, OUT, V, stride, seed, BLOCK: tl.constexpr):
    """Gumbel-max sampling of a row after min-p; temperature 0 is the argmax."""
    row = tl.program_id(0).to(tl.int64)
    X += row * stride
    temp = tl.load(TEMP + row)
    offs = tl.arange(0, BLOCK)
    m = -float("inf")
    for o in range(0, V, BLOCK):
        x = tl.load(X + o + offs, mask=(o + offs) < V, other=-1e30).to(tl.float32)
        m = tl.maximum(m, tl.max(x, 0))
    greedy = temp < 1e-3
    it = 1.0 / tl.maximum(temp, 1e-3)
    floor = tl.log(tl.maximum(tl.load(MINP + row), 1e-20))
    best = -float("inf")
    bi = 0
    for o in range(0, V, BLOCK):
        x = tl.load(X + o + offs, mask=(o + offs) < V, other=-1e30).to(tl.float32)
        z = x - m
        u = tl.rand(seed, (row * V + o + offs).to(tl.int32))
        u = tl.minimum(tl.maximum(u, 1e-10), 0.9999999)
        y = tl.where(greedy, z, z * it - tl.log(-tl.log(u)))
        y = tl.where(z < floor, -1e30, y)  # min-p of the distribution before the temperature
        y = tl.where((o + offs) < V, y, -3e30)
        b = tl.max(y, 0)
        a = tl.argmax(y, 0)
        bi = tl.where(b > best, o + a, bi)
        best = tl.maximum(b, best)
    tl.store(OUT + row, bi)


@triton.jit(do_not_specialize=["t"])
def decode_kernel(
    QKV, KC, VC, COS, SIN, O, t, sb, cb, ch, scale,
    H: tl.constexpr, KV: tl.constexpr, G: tl.constexpr, HD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One decode step of one (sequence, key/value head): rotate, append to the cache, attend."""
    b = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1)
    HH: tl.constexpr = HD // 2
    hh = tl.arange(0, 16)
    d = tl.arange(0, HH)
    D = tl.arange(0, HD)
    hm = (hh < G)[:, None]
    c = tl.load(COS + t * HH + d)
    s = tl.load(SIN + t * HH + d)
    base = QKV + b * sb
    qp = base + (kv * G + hh)[:, None] * HD + d[None, :]
    q1 = tl.load(qp, mask=hm, other=0.0).to(tl.float32)
    q2 = tl.load(qp + HH, mask=hm, other=0.0).to(tl.float32)
    qa = (q1 * c[None, :] - q2 * s[None, :]).to(KC.dtype.element_ty)
    qb = (q2 * c[None, :] + q1 * s[None, :]).to(KC.dtype.element_ty)
    kp = base + (H + kv) * HD + d
    k1 = tl.load(kp).to(tl.float32)
    k2 = tl.load(kp + HH).to(tl.float32)
    ka = (k1 * c - k2 * s).to(KC.dtype.element_ty)
    kb = (k2 * c + k1 * s).to(KC.dtype.element_ty)
    v = tl.load(base + (H + KV + kv) * HD + D)
    co = b * cb + kv * ch
    tl.store(KC + co + t * HD + d, ka)
    tl.store(KC + co + t * HD + HH + d, kb)
    tl.store(VC + co + t * HD + D, v)
    own = tl.sum(qa.to(tl.float32) * ka.to(tl.float32)[None, :], 1)
    m = (own + tl.sum(qb.to(tl.float32) * kb.to(tl.float32)[None, :], 1)) * scale
    l = tl.full((16,), 1.0, tl.float32)
    acc = tl.zeros((16, HD), tl.float32) + v.to(tl.float32)[None, :]
    for n in range(0, t, BLOCK):
        idx = n + tl.arange(0, BLOCK)
        km = idx < t
        a1 = tl.load(KC + co + idx[:, None] * HD + d[None, :], mask=km[:, None], other=0.0)
        a2 = tl.load(KC + co + idx[:, None] * HD + HH + d[None, :], mask=km[:, None], other=0.0)
        sc = (tl.dot(qa, tl.trans(a1)) + tl.dot(qb, tl.trans(a2))) * scale
        sc = tl.where(km[None, :], sc, -1e30)
        mn = tl.maximum(m, tl.max(sc, 1))
        p = tl.exp(sc - mn[:, None])
        al = tl.exp(m - mn)
        vb = tl.load(VC + co + idx[:, None] * HD + D[None, :], mask=km[:, None], other=0.0)
        l = l * al + tl.sum(p, 1)
        acc = acc * al[:, None] + tl.dot(p.to(vb.dtype), vb)
        m = mn
    acc = acc / l[:, None]
    tl.store(O + b * (H * HD) + (kv * G + hh)[:, None] * HD + D[None, :], acc.to(O.dtype.element_ty), mask=hm)
