"""What a name stands for, the hub behind it, and whether two models are a pair."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors

from specdec_ref.checkpoints import DEFAULT_DRAFT, LoadedModel, check_same_tokenizer, fetch, load, names
from specdec_ref.checkpoints.feature import is_feature_draft, load_feature_draft
from specdec_ref.kv_cache import KVCache
from tests.helpers import hf
from tests.helpers.errors import error_of
from tests.helpers.tiny_tokenizer import MERGES, tiny_tokenizer, tokens

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Give me tips to sleep well.",
]


@pytest.mark.parametrize("name", ["nope", "./nope", "/no/such/folder", "a/b/c", "", "a b/c", "../x"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    message = error_of(lambda: load(name))
    assert message.startswith(
        f"{name or '(empty name)'}: no such model: neither a known name, nor a folder, nor a hub id"
    )
    assert "known names: smollm2-135m, draft, " in message and DEFAULT_DRAFT in message


def test_every_committed_model_loads_by_its_name() -> None:
    assert names()[:2] == ["smollm2-135m", "draft"]
    for name in names()[2:]:
        found = load_feature_draft(name) if is_feature_draft(name) else load(name)
        assert found.folder == ROOT / "assets" / "models" / name


def test_a_feature_level_draft_is_no_model_of_its_own() -> None:
    assert "give it as the draft of the target" in error_of(lambda: load("feature-256x1"))


class TestHub:
    @pytest.fixture
    def cached(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A hub cache that holds org/tiny as a download leaves it; the network is off."""
        repo = tmp_path / "hub" / "models--org--tiny"
        snapshot = repo / "snapshots" / ("0" * 40)
        hf.tiny("qwen3").save_pretrained(snapshot)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text("0" * 40)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        return snapshot

    def test_a_cached_model_loads_without_network(self, cached: Path) -> None:
        loaded = load("org/tiny")
        assert (loaded.name, loaded.folder) == ("org/tiny", cached)
        assert loaded.model.config.qk_norm

    def test_fetch_keeps_the_cached_one_when_the_hub_is_away(self, cached: Path) -> None:
        assert fetch("org/tiny") == cached

    def test_a_half_downloaded_model_is_one_clear_error(self, cached: Path) -> None:
        (cached / "model.safetensors").unlink()
        assert "there is no model.safetensors" in error_of(lambda: load("org/tiny"))

    def test_nothing_cached_and_no_network(self, cached: Path) -> None:
        message = error_of(lambda: load("org/other"))
        assert message.startswith(
            "org/other: not in the cache, and the hub cannot be reached (connect to the network once"
        )

    @pytest.mark.parametrize(
        ("failure", "complaint"),
        [
            ("RepositoryNotFoundError", "the hub has no such public model, and there is no such folder here"),
            ("GatedRepoError", "the hub wants its licence accepted first"),
            ("HfHubHTTPError", "the hub refused: 503 try later"),
            ("OSError", "the hub refused: [Errno 5] Input/output error"),
            ("ENOSPC", "disk full"),
        ],
    )
    def test_what_the_hub_may_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, complaint: str
    ) -> None:
        def answer(repo: str, *, local_files_only: bool, **options: Any) -> str:
            assert options["allow_patterns"] == ["*.safetensors", "*.json", "*.jinja"], (
                "nothing that could run code"
            )
            if local_files_only:
                raise errors.LocalEntryNotFoundError("not cached")
            if failure == "ENOSPC":
                raise OSError(28, "No space left on device")
            if failure == "OSError":
                raise OSError(5, "Input/output error")
            kind = getattr(errors, failure)
            error = kind.__new__(kind)
            Exception.__init__(error, "503\ntry later")
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
        assert complaint in error_of(lambda: load("org/model"))

    def test_failing_sockets_are_the_same_as_no_network(self, tmp_path: Path) -> None:
        """In a process of its own: the hub library keeps its connections and its offline switch."""
        script = (
            "import socket\n"
            "def off(*a, **k): raise OSError('network is unreachable')\n"
            "socket.socket.connect = socket.create_connection = socket.getaddrinfo = off\n"
            "from specdec_ref.checkpoints import load\n"
            "from specdec_ref.errors import CheckpointError\n"
            "try: load('org/model')\n"
            "except CheckpointError as error: print(error)\n"
        )
        environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.startswith("org/model: not in the cache, and the hub cannot be reached"), (
            done.stderr
        )


def model_with(tmp_path: Path, name: str, *, vocab_size: int | None = None, **changes: Any) -> LoadedModel:
    """A tiny model with a tiny tokenizer, changed as told; `tokenizer=None` for none."""
    folder = tmp_path / name
    tokenizer = changes.get("tokenizer", tiny_tokenizer())
    hf.tiny("llama", vocab_size=vocab_size or len(tokens())).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save(folder)
    if "sha" in changes:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps({**config, "specdec": {"tokenizer_sha256": changes["sha"]}})
        )
    return load(folder)


class TestPairs:
    def test_the_same_tokenizer_passes_whatever_the_padding(self, tmp_path: Path) -> None:
        target = model_with(tmp_path, "target", vocab_size=len(tokens()) + 20)
        for size in (len(tokens()), len(tokens()) + 60):
            check_same_tokenizer(target, model_with(tmp_path, "draft", vocab_size=size))

    def test_a_draft_may_name_the_tokenizer_instead(self, tmp_path: Path) -> None:
        target = model_with(tmp_path, "target")
        check_same_tokenizer(
            target, model_with(tmp_path, "a", tokenizer=None, sha=tiny_tokenizer().fingerprint)
        )
        for sha in ("f" * 64, None):
            other = model_with(tmp_path, "b", tokenizer=None, sha=sha)
            short = "unknown" if sha is None else "ffffffffffff"
            expected = f"the draft was made for tokenizer {short}, the target has {tiny_tokenizer().fingerprint[:12]}"
            assert expected in error_of(lambda other=other: check_same_tokenizer(target, other))

    def test_the_first_differing_token_is_named(self, tmp_path: Path) -> None:
        target = model_with(tmp_path, "target")
        changed = [*tokens()]
        at = changed.index("in")
        changed[at] = "zz"
        other = tiny_tokenizer(vocabulary=changed, merges=[pair for pair in MERGES if pair != ("i", "n")])
        message = error_of(
            lambda: check_same_tokenizer(target, model_with(tmp_path, "draft", tokenizer=other))
        )
        assert message == (
            f"target target, draft draft: the tokenizers differ: "
            f"token {at} is 'in' for the target and 'zz' for the draft "
            "(choose a draft made for this target's tokenizer)"
        )

    def test_swapped_tokens_missing_tokens_and_other_merges(self, tmp_path: Path) -> None:
        target = model_with(tmp_path, "target")
        swapped = [*tokens()]
        swapped[5], swapped[9] = swapped[9], swapped[5]
        expected = [
            (
                tiny_tokenizer(vocabulary=swapped),
                f"token 5 is {tokens()[5]!r} for the target and {tokens()[9]!r} for the draft",
            ),
            (
                tiny_tokenizer(vocabulary=tokens()[:-1], merges=MERGES[:-1]),
                f"token {len(tokens()) - 1} is 'user' for the target and absent for the draft",
            ),
            (
                tiny_tokenizer(merges=[MERGES[3], *MERGES[:3], *MERGES[4:]]),
                "merge 0 is ['t', 'h'] for the target",
            ),
        ]
        for number, (tokenizer, complaint) in enumerate(expected):
            draft = model_with(tmp_path, f"draft{number}", tokenizer=tokenizer)
            assert complaint in error_of(lambda draft=draft: check_same_tokenizer(target, draft))

    def test_models_without_any_tokenizer_are_a_pair_if_their_sizes_agree(self, tmp_path: Path) -> None:
        target = model_with(tmp_path, "target", tokenizer=None)
        check_same_tokenizer(target, model_with(tmp_path, "same", tokenizer=None))
        small = model_with(tmp_path, "small", tokenizer=None, vocab_size=50)
        assert "small has rows for only 50" in error_of(lambda: check_same_tokenizer(target, small))


class TestCommittedDraft:
    def test_its_shape_and_size(self, draft: LoadedModel) -> None:
        c = draft.model.config
        assert (c.hidden_size, c.num_hidden_layers, c.head_rows, c.vocab_size) == (320, 4, 11264, 49152)
        assert c.body_parameters == 4_426_560
        assert sum(file.stat().st_size for file in draft.folder.iterdir()) <= 25_000_000
        assert (
            draft.name == DEFAULT_DRAFT and draft.source == f"this repository, assets/models/{DEFAULT_DRAFT}"
        )
        assert draft.specdec["target"] == "smollm2-135m"

    def test_its_head_rows_are_its_embedding_rows(self, draft: LoadedModel) -> None:
        ids, head = draft.model.head_ids, draft.model.head
        assert ids is not None and head is not None
        assert bool((ids.diff() > 0).all())
        assert torch.equal(head.weight, draft.model.embed[ids])

    def test_its_card_leaks_no_path(self, draft: LoadedModel) -> None:
        text = (draft.folder / "README.md").read_text(encoding="utf-8")
        assert "Apache-2.0" in text and "tau" in text
        assert not any(word in text for word in ("/work", "/tmp", "/home", "/root"))

    def test_a_copy_of_its_folder_is_the_same_model(self, draft: LoadedModel, tmp_path: Path) -> None:
        shutil.copytree(draft.folder, tmp_path / "copy")
        ids = torch.arange(100, 120)
        with torch.inference_mode():
            assert torch.equal(load(tmp_path / "copy").model(ids), draft.model(ids))

    @pytest.mark.slow
    def test_it_guesses_the_targets_answers(self, smollm2: LoadedModel, draft: LoadedModel) -> None:
        """About 0.56 of the target's greedy tokens, by its training run's evaluation; chance is 1 in 16384."""
        check_same_tokenizer(smollm2, draft)
        assert smollm2.tokenizer is not None and draft.model.head_ids is not None
        right = total = 0
        for prompt in PROMPTS:
            ids = smollm2.tokenizer.chat([{"role": "user", "content": prompt}])
            answer: list[int] = []
            cache = KVCache(smollm2.model.config, len(ids) + 64)
            new = ids
            with torch.inference_mode():
                while len(answer) < 64 and not set(answer) & set(smollm2.eos_ids):
                    new = [int(smollm2.model(torch.tensor(new), cache, last=1).argmax())]
                    answer += new
                rows = draft.model(torch.tensor(ids + answer), last=len(answer) + 1)[:-1].argmax(-1)
            right += int((draft.model.head_ids[rows] == torch.tensor(answer)).sum())
            total += len(answer)
        assert total > 100
        assert 0.40 < right / total < 0.85
