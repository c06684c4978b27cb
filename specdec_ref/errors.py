"""The one kind of error this kit shows people: what happened, where, and what to do about it."""

from __future__ import annotations


class SpecdecError(Exception):
    """A failure with a cause the user can act on. The command line prints it as one line and exits 1.

    Args:
        what: what is wrong, in the user's words.
        where: the file, tensor, option or position concerned; empty when there is none.
        fix: the next thing to do; empty when nothing sensible can be said.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message} ({fix})" if fix else message)


class UsageError(SpecdecError, ValueError):
    """An argument outside its allowed range. The command line exits 2 on it."""


class CheckpointError(SpecdecError):
    """A model, tokenizer or download that cannot be used: missing, damaged or unsupported."""


class CacheError(SpecdecError, RuntimeError):
    """A KV cache asked to do what it cannot: overflow, roll forward, or go on after a failed step."""
