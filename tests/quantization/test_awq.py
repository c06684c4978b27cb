"""AWQ: its rescaling changes no function, its choices are an independent implementation's, and it pays."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from specdec_ref import checkpoints
from specdec_ref.errors import UsageError
from specdec_ref.quantization import Scheme, quantize, relative_error
from specdec_ref.quantization.awq import (
    ALPHAS,
    Inputs,
    adjusted_layers,
    candidate_scale,
    output_error,
    run_layer,
    search_clip,
    search_scale,
)
from specdec_ref.quantization.calibration import calibration_file, calibration_ids
from specdec_ref.quantization.channels import PLACES, degridded, rescale, scale_width
from specdec_ref.quantization.convert import quantize_to_file
from specdec_ref.quantization.feedback import quantize_with_feedback
from specdec_ref.quantization.recipe import recipe
from specdec_ref.quantization.source import Source
from specdec_ref.quiet import silence_libraries
from tests.helpers.sources import random_texts, tiny_source

VARIANTS: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": 4},
    {"model_type": "qwen2"},
    {"model_type": "qwen3"},
    {"attention_bias": True, "mlp_bias": True},
]


def layer_and_inputs(tokens: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [48, 128] and activations [tokens, 128] of which a few channels are 20 times the rest."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(tokens, 128, generator=generator)
    x[:, ::17] *= 20
    return torch.randn(48, 128, generator=generator), x


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.name)
def test_rescaling_a_place_leaves_the_function_as_it_was(place: Any, changes: dict[str, Any]) -> None:
    source = tiny_source(**changes)
    ids = torch.tensor(random_texts(1)[0])
    before = source.model(torch.float64)(ids)
    tensors = {name: tensor.double() for name, tensor in source.tensors.items()}
    layer = {
        n.removeprefix("model.layers.0."): t for n, t in tensors.items() if n.startswith("model.layers.0.")
    }
    kept = dict(layer)
    noise = torch.randn(scale_width(place, source.config), generator=torch.Generator().manual_seed(0))
    rescale(layer, place, noise.double().exp(), source.config)
    assert all(not torch.equal(layer[name], kept[name]) for name in place.readers)
    tensors |= {f"model.layers.0.{name}": tensor for name, tensor in layer.items()}
    after = Source("rescaled", source.raw, tensors).model(torch.float64)(ids)
    torch.testing.assert_close(after, before, atol=1e-9, rtol=0)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_degridded_twin_is_the_same_function_with_other_weights(changes: dict[str, Any]) -> None:
    source = tiny_source(**changes)
    twin = degridded(source)
    ids = torch.tensor(random_texts(1)[0])
    torch.testing.assert_close(twin.model()(ids), source.model()(ids), atol=1e-3, rtol=0)
    for name in source.tensors:
        if name.startswith("model.layers.") and name.endswith("proj.weight"):
            assert relative_error(source.tensors[name], quantize(twin.tensors[name], Scheme(8, 0))) > 0.05
    assert torch.equal(degridded(source).tensors["model.norm.weight"], twin.tensors["model.norm.weight"])


def test_the_gram_matrix_gives_the_error_of_the_output() -> None:
    weight, x = layer_and_inputs()
    rounded = quantize(weight, Scheme(3)).dequantize()
    direct = (F.linear(x, rounded) - F.linear(x, weight)).pow(2).mean(0)
    torch.testing.assert_close(
        output_error(rounded - weight, Inputs.of(x).gram), direct, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("bits", [3, 4])
def test_the_scale_is_the_one_torchao_s_awq_finds(bits: int) -> None:
    silence_libraries()
    from torchao.prototype.awq.core import AWQObserver
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    weight, x = layer_and_inputs()
    base = IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=PerGroup(32))
    observer = AWQObserver(weight, None, base, scale_search_space_size=len(ALPHAS))
    observer(x, F.linear(x, weight))
    theirs = observer.calculate_qparams()
    ours, alpha = search_scale([weight], Inputs.of(x), Scheme(bits), None, None)
    assert 0.2 < alpha < 0.95
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)


def test_alpha_zero_is_plain_rounding() -> None:
    assert torch.equal(candidate_scale(torch.rand(64) + 0.1, 0.0), torch.ones(64))


@pytest.mark.parametrize("bits", [3, 4, 6])
@pytest.mark.parametrize("symmetric", [True, False])
def test_scaling_and_clipping_each_lower_the_output_s_error(bits: int, symmetric: bool) -> None:
    weight, x = layer_and_inputs()
    weight[::5, ::29] *= 6  # a few large weights, for clipping to cut
    inputs, scheme = Inputs.of(x), Scheme(bits, 32, symmetric)

    def error(given: torch.Tensor, divided: Inputs, clip: torch.Tensor | None = None) -> float:
        return float(
            output_error(quantize(given, scheme, clip=clip).dequantize() - given, divided.gram).sum()
        )

    plain = error(weight, inputs)
    scale, _ = search_scale([weight], inputs, scheme, None, None)
    scaled = error(weight * scale, inputs.divided(scale))
    clip = search_clip(weight * scale, inputs.divided(scale), scheme)
    clipped = error(weight * scale, inputs.divided(scale), clip)
    assert scaled < 0.8 * plain
    assert clipped <= scaled
    if bits == 3:
        assert clipped < 0.97 * scaled and bool((clip < 1).any())


def test_clipping_never_makes_a_row_worse() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=generator)
    x = torch.randn(200, 64, generator=generator) @ torch.randn(
        64, 64, generator=generator
    )  # correlated channels
    inputs, scheme = Inputs.of(x), Scheme(3)
    plain = output_error(quantize(weight, scheme).dequantize() - weight, inputs.gram)
    clip = search_clip(weight, inputs, scheme)
    clipped = output_error(quantize(weight, scheme, clip=clip).dequantize() - weight, inputs.gram)
    assert bool((clipped <= plain * 1.0001).all()) and bool((clipped < 0.99 * plain).any())


def test_layers_are_run_as_the_model_runs_them() -> None:
    source = tiny_source()
    ids = random_texts(3, 17)
    hidden = [F.embedding(torch.tensor(text), source.tensors["model.embed_tokens.weight"]) for text in ids]
    for index in range(2):
        hidden, inputs = run_layer(source.layer(index), source.config, hidden)
        assert {name: len(i.magnitude) for name, i in inputs.items()} == {
            "qkv": 64, "out": 64, "gate_up": 64, "down": 96,
        }  # fmt: skip
    model = source.model()
    for text, last in zip(ids, hidden, strict=True):
        torch.testing.assert_close(
            model.norm(last), model.hidden_states(torch.tensor(text)), atol=1e-4, rtol=0
        )


def kl_of(source: Source, quantized: torch.nn.Module, texts: list[list[int]]) -> float:
    model, total = source.model(), 0.0
    for text in texts:
        p, q = (m(torch.tensor(text)).log_softmax(-1) for m in (model, quantized))
        total += float((p.exp() * (p - q)).sum(-1).mean())
    return total / len(texts)


@pytest.mark.parametrize("changes", [{}, {"model_type": "qwen2"}, {"specdec": {"head_rows": 30}}], ids=str)
def test_awq_is_closer_to_the_model_than_rounding_at_equal_bits(
    tmp_path: Any, changes: dict[str, Any]
) -> None:
    source = tiny_source(**changes)
    held_out = random_texts(seed=9)
    for bits in (3, 4):
        kl = {}
        for method in ("rtn", "awq"):
            quantize_to_file(source, recipe(method, bits), tmp_path / method, calibration=random_texts())
            kl[method] = kl_of(source, checkpoints.load(tmp_path / method).model, held_out)
        assert kl["awq"] < 0.8 * kl["rtn"]
    assert (tmp_path / "awq").stat().st_size == (
        tmp_path / "rtn"
    ).stat().st_size  # scales cost nothing: they are folded


@pytest.mark.parametrize("texts", [[], [[]]])
def test_an_empty_calibration_set_is_refused(texts: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="the calibration set is empty"):
        next(adjusted_layers(tiny_source(), recipe("awq", 4), texts))


def test_calibration_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="outside the vocabulary"):
        next(adjusted_layers(tiny_source(), recipe("awq", 4), [[1, 97]]))


def test_calibration_text_is_the_same_for_target_and_draft_and_shares_nothing_with_evaluation(
    tmp_path: Any,
) -> None:
    import json

    from specdec_ref.paths import assets
    from specdec_ref.prompts import load_prompts
    from specdec_ref.quantization.source import open_source

    written = json.loads(calibration_file().read_text(encoding="utf-8"))
    assert len(written["texts"]) >= 32 and all(len(text["ids"]) == 256 for text in written["texts"])
    texts = [text["text"] for text in written["texts"]]
    for prompt in load_prompts():
        assert not any(prompt.turns[0][:40] in text for text in texts)
    for line in (assets() / "text" / "held_out.jsonl").read_text(encoding="utf-8").splitlines():
        assert not any(json.loads(line)["text"][:40] in text for text in texts)
    assert calibration_ids(open_source("draft")) == [text["ids"] for text in written["texts"]]
    nano = calibration_ids(open_source("nano-target"))  # another tokenizer: the texts, encoded anew
    assert len(nano) == 32 and max(map(max, nano)) < open_source("nano-target").config.vocab_size
    own = tmp_path / "own.jsonl"
    own.write_text('{"text": "Tell me about a cat."}\n')
    assert len(calibration_ids(open_source("nano-target"), own)) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ('{"prompt": "x"}', "not JSON lines with `text`"),
        ("{", "not JSON lines"),
        ('{"text": ""}', "empty"),
    ],
)
def test_a_bad_calibration_file_is_one_clear_error(tmp_path: Any, content: str, says: str) -> None:
    from specdec_ref.quantization.source import open_source

    path = tmp_path / "texts.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=says):
        calibration_ids(open_source("nano-target"), path)


@pytest.mark.parametrize("scheme", [Scheme(3), Scheme(4), Scheme(4, 32, False), Scheme(3, 0)], ids=str)
def test_error_feedback_halves_the_error_on_the_same_grid(scheme: Scheme) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 96, generator=generator)
    x = torch.randn(600, 96, generator=generator) @ torch.randn(96, 96, generator=generator)
    gram = Inputs.of(x).gram
    plain, better = quantize(weight, scheme), quantize_with_feedback(weight, gram, scheme)
    assert torch.equal(plain.scale, better.scale) and better.codes.dtype == torch.uint8
    assert int(better.codes.max()) < scheme.levels
    errors = [float(output_error(q.dequantize() - weight, gram).sum()) for q in (plain, better)]
    assert errors[1] < 0.65 * errors[0]


def test_error_feedback_is_plain_rounding_where_inputs_do_not_correlate() -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    feedback = quantize_with_feedback(weight, torch.eye(64), Scheme(4))
    assert (feedback.codes != quantize(weight, Scheme(4)).codes).float().mean() < 1e-3


def test_error_feedback_survives_inputs_that_are_never_there() -> None:
    gram = torch.zeros(64, 64)
    gram[:8, :8] = torch.eye(8)
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(quantize_with_feedback(weight, gram, Scheme(3)).dequantize()).all()
    assert torch.isfinite(quantize_with_feedback(weight, torch.zeros(64, 64), Scheme(3)).dequantize()).all()


def test_awq_with_feedback_is_closer_still(tmp_path: Any) -> None:
    source, held_out, kl = tiny_source(), random_texts(seed=9), {}
    for method in ("awq", "awq-gptq"):
        quantize_to_file(source, recipe(method, 3), tmp_path / method, calibration=random_texts(20))  # type: ignore[arg-type]
        kl[method] = kl_of(source, checkpoints.load(tmp_path / method).model, held_out)
    assert kl["awq-gptq"] < 0.9 * kl["awq"]


def test_statistics_are_gathered_once_and_give_the_same_file(tmp_path: Any) -> None:
    source = tiny_source()
    known: dict[int, dict[str, Inputs]] = {}
    quantize_to_file(source, recipe("awq", 6), tmp_path / "six", calibration=random_texts(), known=known)
    assert sorted(known) == [0, 1]
    quantize_to_file(source, recipe("awq", 3), tmp_path / "again", calibration=random_texts(), known=known)
    quantize_to_file(source, recipe("awq", 3), tmp_path / "fresh", calibration=random_texts())
    assert (tmp_path / "again").read_bytes() == (tmp_path / "fresh").read_bytes()
