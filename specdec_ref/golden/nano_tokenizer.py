"""The nano pair's tokenizer: byte-level BPE of the same kind as SmolLM2's, 512 tokens learnt from its corpus."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from specdec_ref.golden.corpus import SYSTEM, conversations
from specdec_ref.tokenizer import Tokenizer

VOCAB_SIZE = 512
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, IM_START, IM_END)
"""Ids 0, 1 and 2."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMED = {"bos_token": IM_START, "eos_token": IM_END, "unk_token": END_OF_TEXT, "pad_token": IM_END}

_CORPUS_SEED, _CORPUS_SIZE = 1, 1000


def train_tokenizer() -> tokenizers.Tokenizer:
    """Learn the merges. Each digit is cut out first, so no token mixes digits; all 256 bytes have one."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ["\n".join(turn) for turns in conversations(_CORPUS_SEED, _CORPUS_SIZE) for turn in turns]
    frame = [SYSTEM, "system\n", "user\n", "assistant\n"] * _CORPUS_SIZE
    backend.train_from_iterator(texts + frame, trainer)
    return backend


def nano_tokenizer() -> Tokenizer:
    """The same, with its chat template."""
    return Tokenizer(train_tokenizer(), named=NAMED, chat_template=CHAT_TEMPLATE, where="nano tokenizer")


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer's three files, `tokenizer.json` without the white space that doubles its size."""
    tokenizer.save(folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
