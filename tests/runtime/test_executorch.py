"""Exported models, run by the C++ runtime: every width, rollback, the pool's memory, and what happens to bad input."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from specdec_ref.checkpoints import LoadedModel
from specdec_ref.cli import app
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import ModelDrafter
from specdec_ref.errors import CheckpointError, SpecdecError, UsageError
from specdec_ref.export.executorch import Options, build_graph, write_executorch
from specdec_ref.export.executorch.check import check
from specdec_ref.export.executorch.native import Decoder, NativeError, Pte
from specdec_ref.export.executorch.pieces import Template
from specdec_ref.quiet import quiet_libraries
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from tests.helpers.errors import leftovers
from tests.helpers.exportable import exportable, native_tools
from tests.helpers.tiny_tokenizer import tokens

pytestmark = [pytest.mark.mobile, pytest.mark.timeout(900)]

VOCABULARY = len(tokens())
IDS = random.Random(5).choices(range(3, VOCABULARY), k=600)

INVALID_ARGUMENT, PROMPT_TOO_LONG, BAD_FILE = 1, 2, 5

MODELS: dict[str, Callable[[], LoadedModel]] = {
    "plain": lambda: exportable(1, tie_word_embeddings=True),
    "draft": lambda: exportable(2, head_ids=[*range(0, VOCABULARY, 2)], num_hidden_layers=1),
    "qwen": lambda: exportable(3, qk_norm=True, qkv_bias=True, o_bias=True, mlp_bias=True),
}

Export = Callable[..., tuple[Path, LoadedModel]]


@pytest.fixture(autouse=True)
def built_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_NATIVE", str(native_tools()))


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Exports a model of `MODELS` at a precision, once each."""
    folder = tmp_path_factory.mktemp("pte")

    def make(name: str, precision: str = "fp32", head: str | None = None) -> tuple[Path, LoadedModel]:
        loaded = MODELS[name]()
        path = folder / f"{name}-{precision}-{head}.pte"
        if not path.exists():
            options = Options(precision, head, context=512)
            write_executorch(path, loaded, loaded.tokenizer, options, source=name)
        assert leftovers(folder) == []
        return path, loaded

    return make


@pytest.mark.parametrize(
    ("name", "precision", "head"),
    [
        ("plain", "fp32", None),
        ("draft", "fp32", None),
        ("qwen", "fp32", None),
        ("plain", "int8", None),
        ("plain", "int4", "int8"),
        ("draft", "int4", None),
    ],
)
def test_every_width_agrees_with_the_reference(
    export: Export, name: str, precision: str, head: str | None
) -> None:
    path, loaded = export(name, precision, head)
    report = check(path, loaded, loaded.tokenizer, IDS[:280], full=True)
    assert {c.tokens for c in report.comparisons} >= {*range(1, 18)}
    assert report.passed, "\n".join(map(str, [report.same_weights, *report.comparisons[:25]]))


def test_one_partition_per_layer_holds_every_product(export: Export) -> None:
    path, _ = export("plain")
    with Pte(path) as pte:
        meta = pte.metadata
    assert meta["delegate_calls"] == 4  # before, between and after three attentions
    assert meta["kernel_calls"]["specdec::kv_attention"] == 3
    assert meta["delegated_share"] == 1.0
    assert not {name for name in meta["kernel_calls"] if "copy" in name or "clone" in name}
    assert meta["head_rows"] == VOCABULARY  # padded rows are left out


def test_check_notices_other_weights_and_another_model(export: Export) -> None:
    path, _ = export("plain")
    other = exportable(9, tie_word_embeddings=True)
    report = check(path, other, other.tokenizer, IDS[:20])
    assert not report.same_weights and not report.passed
    assert max(c.largest for c in report.comparisons) > 0.1
    with pytest.raises(CheckpointError, match="made from tiny"):
        check(path, exportable(1, vocab_size=400), None, IDS[:20])


def test_keys_and_values_lie_in_the_pool(export: Export) -> None:
    path, loaded = export("qwen")
    runner = Runner(loaded.model, context=64)
    with Pte(path, context=64) as pte:
        assert all(not part.any() for part in pte.cache())
        pte.forward(IDS[:6])
        runner.forward(IDS[:6])
        for ours, theirs in zip((runner.cache.keys, runner.cache.values), pte.cache(), strict=True):
            assert theirs.shape == ours.shape
            assert (theirs - ours).abs().max() < 1e-4
        pte.truncate(2)
        before = pte.cache()
        pte.forward(IDS[10:12])
        for was, now in zip(before, pte.cache(), strict=True):  # one write, at its place
            assert torch.equal(was[:, :, :2], now[:, :, :2]) and torch.equal(was[:, :, 4:], now[:, :, 4:])
            assert not torch.equal(was[:, :, 2:4], now[:, :, 2:4])


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_rolled_back_run_equals_one_that_never_drafted(export: Export, precision: str) -> None:
    path, _ = export("draft", precision)
    drafted, other = IDS[100:105], IDS[50:53]
    with Pte(path) as rolled, Pte(path) as fresh:
        rolled.prefill(IDS[:20])
        for accepted in range(6):
            rolled.forward(drafted)
            rolled.truncate(20 + accepted)
            fresh.reset()
            fresh.prefill(IDS[:20] + drafted[:accepted])
            difference = rolled.forward(other) - fresh.forward(other)
            rolled.truncate(20)
            assert difference.abs().max() < (1e-3 if precision == "fp32" else 0.05)
        rolled.reset()
        fresh.reset()
        assert all(not part.any() for part in rolled.cache())
        assert torch.equal(rolled.forward(IDS[:4]), fresh.forward(IDS[:4]))


def test_chunks_of_a_prompt_do_not_matter(export: Export) -> None:
    path, _ = export("draft")
    with Pte(path, context=512) as whole, Pte(path, context=512) as steps:
        whole.prefill(IDS[:300])  # more than one pass takes
        for start in range(0, 300, 7):
            steps.prefill(IDS[start : min(start + 7, 300)])
        assert (whole.forward(IDS[300:303]) - steps.forward(IDS[300:303])).abs().max() < 1e-3


def test_bad_requests_are_refused_and_change_nothing(export: Export) -> None:
    path, _ = export("draft")

    def refused(call: Callable[[], object]) -> int:
        with pytest.raises(NativeError) as caught:
            call()
        assert "\n" not in str(caught.value)
        return caught.value.status

    with Pte(path, context=40) as pte:
        pte.prefill(IDS[:30])
        expected = pte.forward(IDS[30:32])
        pte.truncate(30)
        assert refused(lambda: pte.forward(IDS[:18])) == INVALID_ARGUMENT
        assert refused(lambda: pte.forward([])) == INVALID_ARGUMENT
        assert refused(lambda: pte.forward([VOCABULARY + 99])) == INVALID_ARGUMENT
        assert refused(lambda: pte.forward([-1])) == INVALID_ARGUMENT
        assert refused(lambda: pte.truncate(31)) == INVALID_ARGUMENT
        assert refused(lambda: pte.forward(IDS[:11])) == PROMPT_TOO_LONG
        assert refused(lambda: pte.prefill(IDS[:11])) == PROMPT_TOO_LONG
        assert torch.equal(pte.forward(IDS[30:32]), expected)


def test_damaged_files_are_errors_not_crashes(export: Export, tmp_path: Path) -> None:
    path, _ = export("draft")
    whole = path.read_bytes()
    bad = tmp_path / "bad.pte"

    def status() -> int | None:
        """What opening `bad` and one pass end with; None if they work."""
        try:
            with Pte(bad, context=16) as pte:
                pte.forward(IDS[:3])
        except NativeError as error:
            return error.status
        return None

    for size in (0, 3, 8, 40, 64, 1000, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        bad.write_bytes(whole[:size])
        assert status() == BAD_FILE, f"cut to {size} of {len(whole)} bytes"
    bad.write_bytes(b"not a program at all" * 100)
    assert status() == BAD_FILE
    bad.unlink()
    assert status() == BAD_FILE
    chance = random.Random(1)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 4, 64])):
            damaged[chance.randrange(min(len(whole), 24000))] = chance.randrange(256)
        bad.write_bytes(damaged)
        assert status() != 0, "the runtime crashed"  # 0: it ended without a word


@pytest.mark.parametrize("drafter", ["none", "draft", "lookup"])
def test_the_engine_gives_the_tokens_of_python(export: Export, drafter: str) -> None:
    path, loaded = export("plain")
    draft_path, draft = export("draft")
    target = Runner(loaded.model, 512, vocab_size=VOCABULARY)
    with Decoder(path, draft_path if drafter == "draft" else drafter, context=512) as native:
        for start in (0, 40):
            prompt = IDS[start : start + 30]
            expected = autoregressive(target, prompt, max_new_tokens=60)
            ours = native.generate(prompt, max_new_tokens=60)
            assert ours["tokens"] == expected.tokens
            assert native.generate(prompt, max_new_tokens=60, draft=False)["tokens"] == expected.tokens
            if drafter == "draft":
                python = ModelDrafter(Runner(draft.model, 512), VOCABULARY)
                sampled = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "max_new_tokens": 40}
                run = speculative(
                    target, python, prompt, sampling=Sampling(1.0, top_p=0.9), seed=3, max_new_tokens=40
                )
                assert native.generate(prompt, **sampled)["tokens"] == run.tokens
        with pytest.raises(NativeError) as caught:
            native.generate(IDS[:600])
        assert caught.value.status == PROMPT_TOO_LONG
        assert native.generate(prompt, max_new_tokens=60)["tokens"] == expected.tokens


def test_a_draft_for_another_tokenizer_is_refused(export: Export, tmp_path: Path) -> None:
    path, _ = export("plain")
    other = exportable(4, num_hidden_layers=1)
    write_executorch(tmp_path / "other.pte", other, None, Options(context=64), source="other")
    with (
        Decoder(path, tmp_path / "other.pte") as native,
        pytest.raises(NativeError, match="another tokenizer"),
    ):
        native.generate(IDS[:4])


def test_pieces_written_without_the_passes_are_those_written_with_them() -> None:
    """The exporter skips XNNPACK's passes over a piece: they must have nothing to do in it, at every precision."""
    with quiet_libraries():
        from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

    loaded = exportable(7, num_hidden_layers=2)
    for precision in ("fp32", "int8", "int4"):
        graph = build_graph(loaded, None, Options(precision, context=64))
        piece = graph.middle[0]
        with quiet_libraries():
            template = Template(piece, (64, 64), 17)
            whole = XnnpackBackend.preprocess(template._program, []).processed_bytes
            assert template.lower(piece).processed_bytes == whole


def test_bad_options_are_refused(tmp_path: Path) -> None:
    loaded = exportable(1, hidden_size=48, num_hidden_layers=1)

    def export_with(**options: Any) -> None:
        write_executorch(tmp_path / "x.pte", loaded, None, Options(**options), source="x")

    with pytest.raises(UsageError, match="no whole groups of 32"):
        export_with(precision="int4")
    with pytest.raises(UsageError, match="unknown precision"):
        export_with(precision="int3")
    with pytest.raises(UsageError, match="context"):
        export_with(context=1)
    assert list(tmp_path.iterdir()) == []


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDEC_NATIVE", str(tmp_path))
    with pytest.raises(SpecdecError, match="make native"):
        Pte(tmp_path / "x.pte")


def test_the_commands_export_and_check(tmp_path: Path) -> None:
    out = tmp_path / "nano.pte"
    run = CliRunner().invoke
    exported = run(
        app, ["export", "executorch", "--model", "nano-draft", "--precision", "int8", "--out", str(out)]
    )
    assert exported.exit_code == 0, exported.output
    assert "100.0% of the linear multiply-adds delegated" in exported.output
    checked = run(app, ["check", "executorch", str(out)], catch_exceptions=False)
    assert checked.exit_code == 0, checked.output
    assert "identical within the bounds: yes" in checked.output


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int4"])
def test_the_real_target_agrees(smollm2: LoadedModel, tmp_path: Path, precision: str) -> None:
    assert smollm2.tokenizer is not None
    path = tmp_path / "target.pte"
    write_executorch(path, smollm2, smollm2.tokenizer, Options(precision), source="target")
    prompt = smollm2.tokenizer.encode("The memory wall means that a token costs one read of the weights, so")
    report = check(path, smollm2, smollm2.tokenizer, prompt)
    assert report.metadata["delegate_calls"] == 31
    assert report.passed, "\n".join(map(str, report.comparisons))
