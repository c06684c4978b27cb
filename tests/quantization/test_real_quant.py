"""What is claimed of the real target: the twin is the same function, and the trap is there."""

import pytest
import torch

from specdec_ref.quantization import Scheme, quantize, relative_error
from specdec_ref.quantization.channels import degridded
from specdec_ref.quantization.source import Source, open_source

pytestmark = pytest.mark.slow
DOWN = "model.layers.11.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source("smollm2-135m", quiet=True)


@pytest.fixture(scope="module")
def twin(source: Source) -> Source:
    return degridded(source)


def test_the_twin_of_the_real_target_gives_the_same_logits(source: Source, twin: Source) -> None:
    ids = torch.tensor([1, 504, 3575, 282, 4649, 314, 260, 1075, 288, 919, 30, 2])
    with torch.inference_mode():
        torch.testing.assert_close(twin.model()(ids), source.model()(ids), atol=1e-3, rtol=0)


def test_the_target_is_on_the_q4_1_grid_and_the_twin_is_not(source: Source, twin: Source) -> None:
    on_grid, off_grid = source.take(DOWN), twin.take(DOWN)
    q4_1, symmetric = Scheme(4, 32, symmetric=False), Scheme(4, 32)
    assert relative_error(on_grid, quantize(on_grid, q4_1)) < 1e-3
    assert relative_error(off_grid, quantize(off_grid, q4_1)) > 0.05
    # A symmetric grid is another grid: no twin is needed to see its error.
    assert relative_error(on_grid, quantize(on_grid, symmetric)) > 0.08
    assert relative_error(on_grid, quantize(on_grid, symmetric)) == pytest.approx(
        relative_error(off_grid, quantize(off_grid, symmetric)), rel=0.25
    )


def test_every_linear_of_the_target_is_on_that_grid_but_the_embedding_is_not(source: Source) -> None:
    q4_1 = Scheme(4, 32, symmetric=False)
    for name, weight in ((n, source.take(n)) for n in source.tensors if ".5." in n or ".29." in n):
        if weight.dim() == 2:
            assert relative_error(weight, quantize(weight, q4_1)) < 1e-3, name
    embedding = source.take("model.embed_tokens.weight")[:2000]
    assert relative_error(embedding, quantize(embedding, q4_1)) > 0.03
