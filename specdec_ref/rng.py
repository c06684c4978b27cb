"""Counter-based uniforms: one seed gives the same numbers in Python, C++, Swift and Kotlin.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) maps a 128-bit counter under a 64-bit
key to 128 random bits. There is no state to carry, copy or roll back: each draw is named by what it is for. Golden
vectors: `assets/golden/philox.json`.
"""

from __future__ import annotations

from enum import IntEnum

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32: four 32-bit words from a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


class Purpose(IntEnum):
    """What a uniform is drawn for: the third counter word, so that no two uses ever share a number."""

    TARGET = 0
    """A token from the target's distribution or from the residual: plain steps, corrections, bonus tokens."""
    DRAFT = 1
    """A token from the draft's distribution."""
    ACCEPT = 2
    """Whether a drafted token is accepted."""


class Uniforms:
    """Uniform numbers in [0, 1) of one generation, each named by (round, slot, purpose).

    A round is one target pass; slot i is its i-th candidate (slot n after n accepted ones). Names are never reused, also not
    for a position that is drafted again after a rejection: a token must not be drawn with a number that already
    decided something.

    Args:
        seed: 64-bit key; the same seed repeats the generation.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._key = (seed & _MASK, (seed >> 32) & _MASK)

    def __call__(self, round_index: int, slot: int, purpose: Purpose) -> float:
        """The uniform of that name, with 53 random bits, as a float64 in [0, 1)."""
        high, low, _, _ = philox4x32((round_index, slot, int(purpose), 0), self._key)
        return ((high >> 5) * 67108864 + (low >> 6)) / 9007199254740992
