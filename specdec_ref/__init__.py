"""specdec_ref: the shared, readable reference for on-device speculative decoding."""

__version__ = "0.1.0"
