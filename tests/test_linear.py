"""All ways of writing the small matrix product are the same product."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from specdec_ref import linear
from specdec_ref.linear import FORMS, SMALL_T, Linear, fastest_form, small_linear

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2e-1}
ONE_TOKEN_ONLY = "(W @ [x x].T).T, first column"


@pytest.fixture
def chosen(monkeypatch):
    """No form chosen yet; what a test chooses is forgotten after it."""
    choice: dict = {}
    monkeypatch.setattr(linear, "_chosen", choice)
    return choice


def _operands(tokens: int, out: int = 40, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(tokens + out)
    x, weight, bias = (
        torch.randn(*shape, generator=generator) for shape in ((tokens, 24), (out, 24), (out,))
    )
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("out", [1, 7, 16, 40, 96])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_library_s_product(form, dtype, out):
    for tokens in range(1, SMALL_T + 1):
        if form == ONE_TOKEN_ONLY and tokens > 1:
            continue
        x, weight, _ = _operands(tokens, out, dtype)
        y = FORMS[form](x, weight)
        assert y.shape == (tokens, out) and y.dtype == dtype
        torch.testing.assert_close(y, F.linear(x, weight), atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize(
    ("form", "tokens"), [(f, t) for f in FORMS for t in (1, 3, SMALL_T) if t == 1 or f != ONE_TOKEN_ONLY]
)
def test_the_chosen_form_is_used_with_and_without_bias(chosen, monkeypatch, form, tokens):
    used = []
    inner = FORMS[form]
    monkeypatch.setitem(FORMS, form, lambda x, weight: used.append(form) or inner(x, weight))
    chosen[torch.float64, tokens] = form
    x, weight, bias = _operands(tokens)
    with torch.inference_mode():
        torch.testing.assert_close(small_linear(x, weight), F.linear(x, weight))
        torch.testing.assert_close(small_linear(x, weight, bias), F.linear(x, weight, bias))
    assert used == [form, form]


@pytest.mark.parametrize("case", ["gradients", "a batch", "many tokens"])
def test_everything_else_goes_to_the_library_untimed(chosen, monkeypatch, case):
    def never(*arguments):
        raise AssertionError("a form was chosen")

    monkeypatch.setattr(linear, "fastest_form", never)
    x, weight, bias = _operands(SMALL_T + 1 if case == "many tokens" else 2)
    if case == "a batch":
        x = x[None]
    with torch.set_grad_enabled(case == "gradients"):
        assert torch.equal(small_linear(x, weight, bias), F.linear(x, weight, bias))
    if case != "gradients":
        return
    weight.requires_grad_(True)
    small_linear(x, weight).sum().backward()
    assert weight.grad is not None


def test_the_fastest_form_wins_and_is_timed_once(chosen, monkeypatch):
    timed = []

    def time_forms(dtype, tokens):
        timed.append((dtype, tokens))
        return {name: float(name != "(W @ x.T).T") for name in FORMS}

    monkeypatch.setattr(linear, "_time_forms", time_forms)
    for _ in range(2):
        assert fastest_form(torch.float32, 5) == "(W @ x.T).T"
        assert fastest_form(torch.float64, 5) == "(W @ x.T).T"
    assert timed == [(torch.float32, 5), (torch.float64, 5)]
    assert linear.report() == {"float32 T=5": "(W @ x.T).T", "float64 T=5": "(W @ x.T).T"}


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_form_for_one_token_is_a_candidate_only_there(monkeypatch, tokens):
    monkeypatch.setattr(linear, "PROBE_MATRICES", 1)
    monkeypatch.setattr(linear, "_probe", {})
    seconds = linear._time_forms(torch.float32, tokens)
    assert set(FORMS) - set(seconds) == (set() if tokens == 1 else {ONE_TOKEN_ONLY})
    assert all(value > 0 for value in seconds.values())


@pytest.mark.parametrize("bias", [False, True])
def test_the_module_adds_its_bias_and_takes_batches(bias):
    module = Linear(24, 40, bias=bias)
    x, weight, offset = _operands(3, dtype=torch.float32)
    module.weight.data = weight
    if bias:
        module.bias.data = offset
    expected = F.linear(x, weight, offset if bias else None)
    with torch.inference_mode():
        torch.testing.assert_close(module(x), expected)
        torch.testing.assert_close(module(x[None]), expected[None])
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert (module.bias is not None) == bias
