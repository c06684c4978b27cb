"""A byte-level tokenizer of about 300 tokens, with SmolLM2's rules and a ChatML template."""

from __future__ import annotations

from specdec_ref.text_stream import byte_alphabet
from specdec_ref.tokenizer import Tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("Ġ", "Ġ"),
    ("e", "r"),
    ("Ã", "©"),
    ("u", "s"),
    ("us", "er"),
]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMED = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def tokens() -> list[str]:
    """Specials, the 256 bytes, and what the merges make."""
    return [*SPECIALS, *byte_alphabet(), *(left + right for left, right in MERGES)]


def tiny_tokenizer(
    template: str | None = CHATML,
    *,
    vocabulary: list[str] | None = None,
    merges: list[tuple[str, str]] | None = None,
) -> Tokenizer:
    """The tokenizer; `vocabulary` and `merges` replace parts of it."""
    return Tokenizer.from_bpe(
        tokens() if vocabulary is None else vocabulary,
        MERGES if merges is None else merges,
        range(len(SPECIALS)),
        digits_apart=True,
        named=NAMED,
        chat_template=template,
        where="tiny tokenizer",
    )
