"""The quantized file: it loads to the very values, runs in the loop, streams, and refuses everything that is wrong."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specdec_ref import checkpoints
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.pair import load_pair
from specdec_ref.quantization import Scheme, quantize
from specdec_ref.quantization.convert import quantize_to_file
from specdec_ref.quantization.file import QuantizedFile
from specdec_ref.quantization.recipe import Recipe, recipe
from specdec_ref.quantization.source import Source, open_source
from specdec_ref.quantization.tensors import EMBEDDING, tensor_shapes
from tests.helpers.errors import error_of
from tests.helpers.sources import random_texts, tiny_source, write_folder

MIXED = Recipe("rtn", Scheme(3, 32), Scheme(6, 64), Scheme(8, 0))
VARIANTS: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": False},
    {"model_type": "qwen2"},
    {"model_type": "qwen3"},
    {"attention_bias": True, "mlp_bias": True},
    {"specdec": {"head_rows": 30}},
]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    quantize_to_file(tiny_source(), MIXED, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda c: next(iter(c.items()), "llama"))
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_file_loads_to_the_values_that_rounding_gave(
    tmp_path: Path, changes: dict[str, Any], symmetric: bool
) -> None:
    source = tiny_source(**changes)
    used = Recipe("rtn", Scheme(3, 32, symmetric), Scheme(6, 64, symmetric), Scheme(8, 0, symmetric))
    quantize_to_file(source, used, tmp_path / "q.safetensors")
    file = QuantizedFile(tmp_path / "q.safetensors")
    for name, shape in tensor_shapes(source.config).items():
        scheme = used.scheme_of(name, shape)
        expected = source.tensors[name]
        if scheme is not None:
            expected = quantize(expected, scheme).dequantize()
            assert torch.equal(file.quantized(name).codes, quantize(source.tensors[name], scheme).codes)
        assert torch.equal(file[name], expected), name
    assert file.recipe == used and file.source == "tiny"
    loaded = checkpoints.load(tmp_path / "q.safetensors")
    dequantized = Source("x", source.raw, {name: file[name] for name in file})
    ids = torch.tensor(random_texts(1)[0])
    assert torch.equal(loaded.model(ids), dequantized.model()(ids))


def test_bytes_are_counted_from_the_file_itself(packed: Path) -> None:
    source = tiny_source()
    file = QuantizedFile(packed)
    expected = 0
    for name, shape in tensor_shapes(source.config).items():
        scheme = MIXED.scheme_of(name, shape)
        expected += 4 * shape[0] if scheme is None else scheme.nbytes(*shape)
    assert file.resident_bytes == expected
    assert file.nbytes == packed.stat().st_size
    header = int.from_bytes(packed.read_bytes()[:8], "little")
    assert file.nbytes == 8 + header + expected + 32


def test_other_programs_can_read_it(packed: Path) -> None:
    tensors = load_file(packed)
    assert tensors["model.layers.0.mlp.down_proj.weight.codes"].shape == (64, 96 * 3 // 8)
    assert tensors["model.layers.0.mlp.down_proj.weight.scale"].dtype == torch.bfloat16
    with safe_open(packed, framework="pt") as file:
        assert json.loads(file.metadata()["recipe"])["body"] == {"bits": 3, "group": 32, "symmetric": True}


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        quantize_to_file(tiny_source(), MIXED, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_loop_runs_on_quantized_files_with_the_tokenizer_inside(tmp_path: Path) -> None:
    for name in ("nano-target", "nano-draft"):
        quantize_to_file(open_source(name), recipe("rtn", 8, 8, embedding_bits=8), tmp_path / name)
    for folder in (tmp_path,):
        pair = load_pair(folder / "nano-target", folder / "nano-draft", context=64)
        assert pair.draft is not None
        ids = pair.prompt_ids("Tell me about a cat.")
        assert ids == load_pair("nano-target", "none").prompt_ids("Tell me about a cat.")
        assert pair.eos_ids == load_pair("nano-target", "none").eos_ids
        from specdec_ref.decoding import autoregressive, speculative

        plain = autoregressive(pair.target, ids, max_new_tokens=20)
        assert pair.drafter is not None
        assert speculative(pair.target, pair.drafter, ids, max_new_tokens=20).tokens == plain.tokens


def test_quantizing_streams_layer_by_layer(tmp_path: Path) -> None:
    """No tensor is kept: at any time at most one layer's worth of the source is alive."""
    source = tiny_source(num_hidden_layers=6)
    alive: list[Any] = []
    most = 0

    class Lazy(Mapping[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            nonlocal most
            import weakref

            tensor = source.tensors[name].clone()
            alive.append(weakref.ref(tensor))
            most = max(most, sum(ref() is not None for ref in alive))
            return tensor

        def __iter__(self) -> Any:
            return iter(source.tensors)

        def __len__(self) -> int:
            return len(source.tensors)

    lazy = Source("lazy", source.raw, Lazy())
    for used, texts in ((MIXED, []), (recipe("awq", 4), random_texts(2))):
        alive.clear()
        most = 0
        quantize_to_file(lazy, used, tmp_path / "q", calibration=texts)
        assert most <= 2 * 9  # this layer's nine tensors, and the last one's until they are replaced


def test_a_failure_leaves_the_old_file_and_nothing_else(packed: Path) -> None:
    before = packed.read_bytes()
    broken = tiny_source()
    broken.tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan  # type: ignore[index]
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight: a weight is NaN or infinite"
    ):
        quantize_to_file(broken, MIXED, packed)
    assert packed.read_bytes() == before
    assert os.listdir(packed.parent) == [packed.name]


def test_a_norm_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    broken = tiny_source()
    broken.tensors["model.norm.weight"][3] = torch.inf  # type: ignore[index]
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: holds NaN, infinity"):
        quantize_to_file(broken, MIXED, tmp_path / "q")


def test_a_source_that_lacks_a_tensor_or_has_another_shape_is_refused(tmp_path: Path) -> None:
    source = tiny_source()
    short = {n: t for n, t in source.tensors.items() if n != "model.layers.1.mlp.up_proj.weight"}
    with pytest.raises(CheckpointError, match=r"tensor 'model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        quantize_to_file(Source("short", source.raw, short), MIXED, tmp_path / "q")
    other = dict(source.tensors) | {EMBEDDING: torch.zeros(97, 32)}
    with pytest.raises(CheckpointError, match=r"has shape \(97, 32\), expected \(97, 64\)"):
        quantize_to_file(Source("other", source.raw, other), MIXED, tmp_path / "q")


def test_a_group_that_does_not_divide_names_the_weight(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"mlp\.down_proj\.weight: group 64 does not divide a row of 96 weights"
    ):
        quantize_to_file(tiny_source(), recipe("rtn", 4, 64), tmp_path / "q")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [0, 7, 100, 3000, -1])
def test_a_truncated_file_is_one_clear_error(packed: Path, keep: int) -> None:
    packed.write_bytes(packed.read_bytes()[:keep])
    assert "truncated or damaged" in error_of(lambda: QuantizedFile(packed))
    assert str(packed) in error_of(lambda: checkpoints.load(packed))


@pytest.mark.parametrize("place", ["codes", "settings"])
def test_a_single_changed_bit_is_noticed(packed: Path, place: str) -> None:
    data = bytearray(packed.read_bytes())
    at = len(data) // 2 if place == "codes" else data.index(b'\\"bits\\": 3') + 10
    data[at] ^= 1 if place == "codes" else 6  # 3 -> 5: still JSON
    packed.write_bytes(data)
    assert "do not match its SHA-256" in error_of(lambda: QuantizedFile(packed))


def rewritten(packed: Path, change: Callable[[dict[str, str], dict[str, torch.Tensor]], None]) -> Path:
    """The file with other settings or tensors, as someone with a safetensors library would write it."""
    with safe_open(packed, framework="pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(packed)
    change(metadata, tensors)
    save_file(tensors, packed, metadata)
    return packed


def setting(key: str, value: str) -> Callable[[dict[str, str], dict[str, torch.Tensor]], None]:
    return lambda metadata, tensors: metadata.update({key: value})


def body(**changes: Any) -> Callable[[dict[str, str], dict[str, torch.Tensor]], None]:
    def change(metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> None:
        used = json.loads(metadata["recipe"])
        used["body"].update(changes)
        metadata["recipe"] = json.dumps(used)

    return change


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (setting("format", "gguf"), "not a quantized model of this kit"),
        (setting("version", "99"), "format version '99' is unknown"),
        (lambda m, t: m.pop("recipe"), "'recipe' is missing"),
        (setting("recipe", "{"), "not JSON"),
        (setting("recipe", "[]"), "a recipe has method, body, embedding and head"),
        (setting("config", "{}"), "unsupported architecture None"),
        (body(bits=9), "cannot quantize to 9 bits"),
        (body(bits="4"), "cannot quantize to 4 bits"),
        (body(bits=4), "tensor 'model.layers.0.self_attn.q_proj.weight.codes' is torch.uint8 (64, 24)"),
        (body(group=16), "they call for torch.bfloat16 (64, 4)"),
        (body(group=7), "group 7 is not a positive multiple of 8"),
        (body(symmetric=False), ".minimum' is missing"),
        (body(symmetric=1), "symmetric must be true or false"),
        (body(sparsity=2), "a scheme has bits, group and symmetric"),
        (lambda m, t: t.pop(UP + ".scale"), f"tensor {UP + '.scale'!r} is missing"),
        (lambda m, t: t.update(extra=torch.zeros(1)), "tensor 'extra' is not part of the model"),
        (lambda m, t: t.update({UP + ".scale": t[UP + ".scale"].half()}), "is torch.float16 (96, 2)"),
    ],
)
def test_tampered_settings_are_one_clear_error(packed: Path, change: Any, says: str) -> None:
    rewritten(packed, change)
    message = error_of(lambda: QuantizedFile(packed, seal=False))
    assert says in message and str(packed) in message
    # With the seal none of these gets that far, except those that say what the file is.
    assert "SHA-256" in error_of(lambda: QuantizedFile(packed)) or says.startswith(
        ("not a", "format", "'recipe' is")
    )


def test_an_ordinary_safetensors_file_says_what_to_do(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors")
    assert "make one with `specdec quantize`" in error_of(
        lambda: checkpoints.load(tmp_path / "x.safetensors")
    )


def test_a_quantized_file_is_not_quantized_again(packed: Path) -> None:
    with pytest.raises(UsageError, match="name the full-precision model"):
        open_source(packed)


def test_a_folder_can_be_quantized(tmp_path: Path) -> None:
    source = tiny_source()
    write_folder(source, tmp_path / "model")
    report = quantize_to_file(open_source(tmp_path / "model"), MIXED, tmp_path / "q")
    assert QuantizedFile(tmp_path / "q").source == "model"
    assert report.file_bytes == (tmp_path / "q").stat().st_size
