"""The expansion computes what the small model does, and its real files have the sizes that are claimed."""

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from specdec_ref import checkpoints
from specdec_ref.decoding import autoregressive
from specdec_ref.errors import UsageError
from specdec_ref.quantization.convert import quantize_to_file
from specdec_ref.quantization.expand import DRAFT_250M, TARGET_1_7B, Shape, expanded
from specdec_ref.quantization.file import QuantizedFile
from specdec_ref.quantization.recipe import layout_bytes, recipe
from specdec_ref.quantization.source import Source, open_source
from specdec_ref.quantization.tensors import tensor_shapes
from specdec_ref.runner import Runner
from tests.helpers.sources import random_texts, tiny_source

LARGER = Shape(96, 4, 12, 3, 160)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"model_type": "qwen2"},
    {"attention_bias": True, "mlp_bias": True},
    {"tie_word_embeddings": False},
    {"specdec": {"head_rows": 30}},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", [LARGER, Shape(64, 2, 6, 2, 96), Shape(64, 3, 8, 4, 96)], ids=str)
def test_the_larger_model_is_the_same_function(shape: Shape, changes: dict[str, Any]) -> None:
    source = tiny_source(**changes)
    large = expanded(source, shape)
    assert set(large.tensors) == set(tensor_shapes(large.config))
    ids = torch.tensor(random_texts(1)[0])
    before, after = source.model(torch.float64)(ids), large.model(torch.float64)(ids)
    # A norm's gain is rounded to float32 once; nothing else differs.
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)


def test_it_generates_the_same_tokens_with_its_cache() -> None:
    source = tiny_source()
    texts = [
        autoregressive(Runner(s.model(torch.float64), 64), [1, 2, 3], max_new_tokens=30).tokens
        for s in (source, expanded(source, LARGER))
    ]
    assert texts[0] == texts[1] and len(set(texts[0])) > 3


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (Shape(32, 2, 4, 2, 96), "hidden_size 32 is smaller than the model's 64"),
        (Shape(64, 1, 4, 2, 96), "num_hidden_layers 1 is smaller"),
        (Shape(64, 2, 4, 4, 96), "fewer query heads per key/value head"),
        (Shape(64, 2, 7, 2, 96), "share key/value heads evenly"),
    ],
)
def test_a_shape_that_does_not_hold_the_model_is_refused(shape: Shape, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        expanded(tiny_source(), shape)
    with pytest.raises(UsageError, match="query and key norms"):
        expanded(tiny_source(model_type="qwen3"), LARGER)


def parameters(source: Source) -> int:
    return sum(torch.Size(shape).numel() for shape in tensor_shapes(source.config).values())


@pytest.mark.parametrize(("bits", "embedding_bits"), [(3, 6), (4, 5)])
def test_a_250m_draft_is_a_file_of_at_most_150_mb(tmp_path: Path, bits: int, embedding_bits: int) -> None:
    large = expanded(open_source("draft"), DRAFT_250M)
    assert 240e6 < parameters(large) < 260e6
    used = recipe("rtn", bits, embedding_bits=embedding_bits)
    if bits == 4:  # the whole file once; at 3 bits the layout, which the writer is held to, is enough
        report = quantize_to_file(large, used, tmp_path / "q")
        assert (tmp_path / "q").stat().st_size == report.file_bytes <= 150e6
        assert report.weight_bytes == layout_bytes(used.layout(large.config))
        assert QuantizedFile(tmp_path / "q").resident_bytes == report.weight_bytes
    assert layout_bytes(used.layout(large.config)) < 150e6 - 1e6


@pytest.mark.slow
def test_the_real_models_expand_without_a_change(tmp_path: Path) -> None:
    ids = torch.tensor([1, 504, 3575, 282, 4649, 314, 260, 1075])
    for name, shape in (
        ("smollm2-135m", Shape(704, 31, 12, 4, 1600)),
        ("draft", Shape(512, 5, 8, 1, 1024)),
    ):
        source = open_source(name)
        with torch.inference_mode():
            before = source.model()(ids)
            after = expanded(source, shape).model()(ids)
        torch.testing.assert_close(after, before, atol=1e-3, rtol=0)


@pytest.mark.slow
def test_a_layer_of_the_1_7b_target_is_all_that_quantizing_holds(tmp_path: Path) -> None:
    """The whole file takes minutes (`specdec bench quant` writes it); its first layers show the memory."""
    large = expanded(open_source("smollm2-135m"), TARGET_1_7B)
    assert 1.6e9 < parameters(large) < 1.8e9
    process = psutil.Process()
    held: list[int] = []

    class Enough(Exception):
        pass

    def progress(done: int, total: int) -> None:
        held.append(process.memory_info().rss)
        if done == 4:
            raise Enough

    with pytest.raises(Enough):
        quantize_to_file(large, recipe("rtn", 4), tmp_path / "q", progress=progress)
    assert held[-1] - held[1] < 0.15e9  # two more layers of 0.19 GB each have come and gone
    assert not list(tmp_path.iterdir())


def test_the_quantized_expansion_loads(tmp_path: Path) -> None:
    large = expanded(tiny_source(), LARGER)
    quantize_to_file(large, recipe("rtn", 8), tmp_path / "q")
    loaded = checkpoints.load(tmp_path / "q").model
    ids = torch.tensor(random_texts(1)[0])
    small = tiny_source().model()(ids).log_softmax(-1)
    assert float((small.exp() * (small - loaded(ids).log_softmax(-1))).sum(-1).mean()) < 0.02
