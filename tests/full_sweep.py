"""The long form of `test_real_losslessness.py`: every prompt, every K, both drafters, 128 tokens, in float32.

Takes two hours on two cores, minutes on many. One line per prompt, one verdict at the end, and a JSON file:

    python -m tests.full_sweep --processes 2 --json assets/results/losslessness.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specdec_ref.checkpoints import load
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import ModelDrafter, PromptLookup
from specdec_ref.files import atomic_file
from specdec_ref.prompts import load_prompts
from specdec_ref.runner import Runner
from tests.helpers.greedy_agreement import COMBINATIONS, LARGEST_ROUNDING, Agreement, Recorded


@cache
def _pair() -> tuple[Any, Any, dict[str, Any]]:
    """One process's models."""
    torch.set_num_threads(1)
    big = load("smollm2-135m", quiet=True)
    vocabulary = min(big.model.config.vocab_size, big.tokenizer.vocab_size)
    target = Recorded(Runner(big.model, 1024, vocab_size=vocabulary))
    small = ModelDrafter(Runner(load("draft").model, 1024), vocabulary)
    return big, target, {"draft": small, "lookup": PromptLookup()}


def compare_prompt(job: tuple[int, int]) -> tuple[str, Agreement]:
    """All combinations on one prompt: (its number, new tokens) -> (its id, what came of it)."""
    index, tokens = job
    big, target, drafters = _pair()
    prompt = load_prompts()[index]
    ids = big.tokenizer.chat([{"role": "user", "content": prompt.turns[0]}])
    options: dict[str, Any] = {"eos_ids": big.eos_ids, "max_new_tokens": tokens}
    plain = autoregressive(target, ids, **options)
    alone, agreement = target.rows, Agreement()
    for k, name in COMBINATIONS:
        fast = speculative(target, drafters[name], ids, lookahead=k, **options)
        title = f"{prompt.id}, K={k}, {name}"
        agreement.compare(title, len(ids), (plain.tokens, alone), (fast.tokens, target.rows))
    return prompt.id, agreement


def main() -> int:
    """Exit code 0: every first difference lies within rounding."""
    parser = argparse.ArgumentParser(prog="python -m tests.full_sweep", description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="each holds the model: about 1.5 GB")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per text")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    load("smollm2-135m")  # fetch once, before the processes start
    jobs = [(index, options.tokens) for index in range(len(load_prompts()))]
    total = Agreement()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for name, found in tqdm(pool.imap_unordered(compare_prompt, jobs), total=len(jobs), disable=None):
            print(f"{name}: {found}", flush=True)
            total += found
    illegal = total.illegal(LARGEST_ROUNDING)
    report = {
        "command": "python -m tests.full_sweep",
        "date": date.today().isoformat(),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "simd": torch.backends.cpu.get_cpu_capability(),
        "prompts": len(jobs),
        "combinations": [f"K={k}, {name}" for k, name in COMBINATIONS],
        "new_tokens": options.tokens,
        "texts": total.texts,
        "tokens_compared": total.tokens,
        "batch_shape_error": total.batch_shape_error,
        "smallest_gap": total.smallest_gap,
        "first_differences": [vars(d) for d in total.differences or []],
        "beyond_rounding": [vars(d) for d in illegal],
    }
    with atomic_file(options.json) as part:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{total}\nbeyond rounding: {len(illegal)}")
    return 1 if illegal or total.batch_shape_error >= LARGEST_ROUNDING else 0


if __name__ == "__main__":
    sys.exit(main())
