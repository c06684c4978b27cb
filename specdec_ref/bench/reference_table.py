"""The result of `specdec bench reference` for people."""

from __future__ import annotations

import sys
from typing import Any


def print_report(report: dict[str, Any]) -> None:
    """Print the result as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)  # a log file has no width
    for title, section in (
        ("float32, greedy", report),
        ("float32, temperature 1", report["sampled"]),
        ("bfloat16, greedy", report["bfloat16"]),
    ):
        table = Table(title=title, title_justify="left", box=None)
        for heading in (
            "class",
            "plain t/s",
            "roofline",
            "spec t/s",
            "K",
            "tau",
            "speed-up",
            "predicted",
            "identical",
            "peer t/s",
        ):
            table.add_column(heading, justify="left" if heading == "class" else "right")
        for name, s in [*section["classes"].items(), ("overall", section["overall"])]:
            peer = s.get("peer_transformers")
            table.add_row(
                name,
                f"{s['autoregressive']['tokens_per_s']:.1f}",
                f"{s['autoregressive']['roofline_fraction']:.0%}",
                f"{s['speculative']['tokens_per_s']:.1f}",
                str(s["k"]),
                f"{s['tau']:.2f}",
                f"{s['speedup']:.2f}x",
                f"{s['predicted_speedup']:.2f}x",
                "yes" if s["identical"] else ("–" if title.endswith("1") else "no"),
                f"{peer['tokens_per_s']:.1f}" if peer else "–",
            )
        console.print(table)
        o = section["overall"]
        console.print(
            f"c = {o['c']:.3f}, v(K) = {', '.join(f'{k}: {v:.2f}' for k, v in o['v'].items() if k != '0')}\n"
        )
    if report["better_dtype"]:
        b = report["better_dtype"]
        console.print(
            f"each side at its better dtype: ours {b['ours']['tokens_per_s']:.1f} ({b['ours']['dtype']}, {b['ours']['loop']}), "
            f"transformers assisted {b['peer']['tokens_per_s']:.1f} ({b['peer']['dtype']}): {b['ratio']:.2f}x"
        )
    if report["prompts_skipped_by_time_limit"]:
        console.print(f"{report['prompts_skipped_by_time_limit']} prompts left out by the time limit")
    if report["runs_repeated_after_a_stall"]:
        console.print(f"{report['runs_repeated_after_a_stall']} runs were interrupted and repeated")
