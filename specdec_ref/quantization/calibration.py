"""The text that AWQ looks at: written by the target itself, from a fixed seed, and never from an evaluation prompt.

Made once by `python -m specdec_ref.quantization.calibration` and committed, so that quantizing gives the same file
everywhere. The recipe of the texts is that of the draft's training data (`specdec_ref.distill`): user turns begin with the
openers there, which share no beginning with the evaluation prompts (tested), and the seed is another one.
"""

from __future__ import annotations

import json
from pathlib import Path

from specdec_ref import paths
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.files import atomic_file, read_json
from specdec_ref.quantization.source import Source

TARGET = "smollm2-135m"
SEED = 40_961
TEXTS, TOKENS = 32, 256


def calibration_file() -> Path:
    """Where the committed texts are."""
    return paths.assets() / "text" / "calibration.json"


def calibration_ids(source: Source, texts: Path | None = None) -> list[list[int]]:
    """Token ids of the calibration texts for a model.

    Args:
        source: the model. If its tokenizer is that of the default target, the committed ids are used as they are;
            otherwise the texts are encoded with the model's own tokenizer.
        texts: another file: a JSON-lines file with `text`, one object a line.

    Raises:
        UsageError: the file holds no texts.
        CheckpointError: the model has no tokenizer and names none.
    """
    tokenizer = source.tokenizer
    if texts is None:
        committed = read_json(calibration_file())
        if source.tokenizer_sha256 == committed["tokenizer_sha256"]:
            return [text["ids"] for text in committed["texts"]]
        written = [text["text"] for text in committed["texts"]]
    else:
        written = _read(texts)
    if tokenizer is None:
        committed = read_json(calibration_file())
        if source.tokenizer_sha256 == committed["tokenizer_sha256"]:
            from specdec_ref.quantization.source import open_source

            tokenizer = open_source(committed["target"]).tokenizer
    if tokenizer is None:
        raise CheckpointError(
            "there is no tokenizer to encode the calibration texts with",
            where=source.name,
            fix="put tokenizer.json beside the weights, or use --scheme rtn",
        )
    found = [tokenizer.encode(text, parse_special=True)[:TOKENS] for text in written]
    return [ids for ids in found if ids]


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        written = [json.loads(line)["text"] for line in lines if line.strip()]
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=str(path)) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError("not JSON lines with `text`", where=str(path)) from None
    if not all(isinstance(text, str) for text in written) or not any(written):
        raise UsageError(
            "the calibration set is empty", where=str(path), fix="one JSON object with `text` a line"
        )
    return written


def make(out: Path) -> None:
    """Let the default target write the texts anew (about a minute) and store them with their ids."""
    from dataclasses import replace

    from specdec_ref import checkpoints
    from specdec_ref.distill.config import DataConfig
    from specdec_ref.distill.generate import Writer, plan_batch
    from specdec_ref.distill.target import target_texts

    loaded = checkpoints.load(TARGET)
    assert loaded.tokenizer is not None
    pieces = target_texts(TARGET)
    config = replace(DataConfig(), rows=TEXTS, tokens=TOKENS)
    batch = plan_batch(config, pieces, SEED)
    ids, _ = Writer(loaded.model, TEXTS, TOKENS).write(batch, pieces.end_of_turn, SEED)
    texts = [{"ids": row, "text": loaded.tokenizer.decode(row)} for row in ids.tolist()]
    record = {
        "made_by": "python -m specdec_ref.quantization.calibration",
        "target": TARGET,
        "tokenizer_sha256": loaded.tokenizer.fingerprint,
        "seed": SEED,
        "texts": texts,
    }
    with atomic_file(out) as part:
        part.write_text(
            json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    make(calibration_file())
