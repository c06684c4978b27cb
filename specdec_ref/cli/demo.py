"""`specdec demo`: the main job. One prompt, decoded plainly and speculatively; same tokens, measured speed."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from specdec_ref.cli.options import DraftName, Target

HELP = """Answer one prompt plainly and speculatively, compare the tokens and the speed.

Example: specdec demo --max-new-tokens 96"""

PROMPT = "Explain in simple words how a bicycle pump works."
"""Chosen so that every greedy choice has a top-2 logit gap of at least 0.01 (tested): rounding cannot change the answer."""


def run(
    prompt: Annotated[str, typer.Option(help="What to ask.")] = PROMPT,
    target: Target = "smollm2-135m",
    draft: DraftName = "draft",
    lookahead: Annotated[int, typer.Option(min=0, help="K.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 96,
) -> None:
    """Run both loops; exit 1 if their greedy tokens differ."""
    from dataclasses import replace

    from rich.console import Console
    from rich.table import Table

    from specdec_ref.cli.generate import stream
    from specdec_ref.pair import load_pair

    pair = load_pair(target, draft, context=1024)
    ids = pair.prompt_ids(prompt)
    print(f"{pair.name}, float32, greedy, K = {lookahead}\n\nprompt: {prompt}")
    options: dict[str, Any] = {"lookahead": lookahead, "max_new_tokens": max_new_tokens, "stops": []}
    plain_pair = replace(pair, drafter=None)
    # One short run of each first: it times the forms of small products and warms the caches up.
    for warm in (plain_pair, pair):
        stream(warm, ids, quiet=True, **{**options, "max_new_tokens": 2 * (lookahead + 2)})
    print("\n--- plain: one token per target pass")
    plain, _ = stream(plain_pair, ids, **options)
    print("\n--- speculative: several tokens per target pass")
    fast, _ = stream(pair, ids, **options)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "tokens", "passes", "tokens/pass", "acceptance", "tokens/s", "speed-up"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, result in (("plain", plain), ("speculative", fast)):
        t = result.telemetry
        table.add_row(
            name,
            str(len(result.tokens)),
            str(t.target_passes),
            f"{t.tau:.2f}",
            f"{t.acceptance_rate:.0%}" if t.drafted else "–",
            f"{result.tokens_per_s:.1f}",
            f"{result.tokens_per_s / plain.tokens_per_s:.2f}x",
        )
    print()
    Console(file=sys.stdout).print(table)
    same = plain.tokens == fast.tokens
    print(f"identical: {'yes' if same else 'no'}")
    if not same:
        first = next(i for i, (a, b) in enumerate(zip(plain.tokens, fast.tokens, strict=False)) if a != b)
        print(f"specdec: greedy tokens differ from token {first} on (a near-tie, or a bug)", file=sys.stderr)
        sys.exit(1)
