"""`specdec generate`: answer a prompt, speculatively by default."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_ref.cli.options import (
    Context,
    DraftName,
    Json,
    Target,
    check_writable,
    model_and_dtype,
    write_json,
)
from specdec_ref.errors import UsageError

if TYPE_CHECKING:
    from specdec_ref.lookahead import LookaheadPolicy
    from specdec_ref.pair import Pair
    from specdec_ref.trace import Generation

HELP = """Generate text. A prompt is taken as one chat turn unless --raw is given.

Example: specdec generate --prompt "Why is the sky blue?" --lookahead 4 --json answer.json"""


def run(
    prompt: Annotated[str | None, typer.Option(help="The prompt.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file (UTF-8).")] = None,
    chat: Annotated[Path | None, typer.Option(help="A JSON list of {role, content} messages.")] = None,
    target: Target = "smollm2-135m",
    draft: DraftName = "draft",
    target_precision: Annotated[str, typer.Option(help="fp32, bf16, fp64, or a quantized file.")] = "fp32",
    draft_precision: Annotated[str | None, typer.Option(help="Default: the target's.")] = None,
    context: Context = 2048,
    lookahead: Annotated[str, typer.Option(help="K, or auto: off where it does not pay.")] = "4",
    verifier: Annotated[str, typer.Option(help="rejection or match (when sampling).")] = "rejection",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 drops none.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Repeats a sampled text.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=0)] = 128,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template: continue the prompt as it stands.")
    ] = False,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="With --raw: read <|…|> as special tokens.")
    ] = False,
    json: Json = None,
) -> None:
    """Load the pair, stream the text to stdout and write the record."""
    check_writable(json)
    if sum(source is not None for source in (prompt, prompt_file, chat)) != 1:
        raise UsageError("give exactly one of --prompt, --prompt-file and --chat")
    text, messages = prompt, None
    if prompt_file is not None:
        text = _read(prompt_file)
    if chat is not None:
        messages = _messages(chat)
    from specdec_ref.acceptance import VERIFIERS
    from specdec_ref.pair import load_pair
    from specdec_ref.sampling import Sampling

    if verifier not in VERIFIERS:
        raise UsageError(f"unknown verifier {verifier!r}", fix=f"use one of: {', '.join(VERIFIERS)}")
    sampling = Sampling(temperature, top_k, top_p, min_p)
    policy = parse_lookahead(lookahead)
    big, dtype = model_and_dtype(target, target_precision)
    small, draft_dtype = model_and_dtype(draft, draft_precision) if draft_precision else (draft, None)
    pair = load_pair(
        big,
        small,
        dtype=dtype,
        draft_dtype=draft_dtype,
        context=context,
    )
    ids = (
        pair.tokenizer.chat(messages)
        if messages is not None
        else pair.prompt_ids(text or "", raw=raw, parse_special=parse_special)
    )
    result, shown = stream(
        pair,
        ids,
        lookahead=policy,
        verifier=VERIFIERS[verifier],
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        stops=stop or [],
        seed=seed,
    )
    t = result.telemetry
    print(
        f"\n[{len(result.tokens)} tokens, {result.finish_reason}, {result.tokens_per_s:.1f} tokens/s, "
        f"tau {t.tau:.2f}, acceptance {t.acceptance_rate:.0%}]",
        file=sys.stderr,
    )
    if json is not None:
        write_json(json, record(len(ids), result, shown))


def stream(
    pair: Pair,
    ids: list[int],
    *,
    lookahead: LookaheadPolicy | int,
    stops: list[str],
    quiet: bool = False,
    **options: Any,
) -> tuple[Generation, str]:
    """Generate and print the text as it comes, up to a stop string; return the record and that text.

    Args:
        pair: what to generate with; without a drafter decoding is plain.
        ids: prompt tokens.
        lookahead: K or a policy.
        stops: strings that end the text and are not part of it.
        quiet: print nothing.
        options: further arguments of the decoding loops.
    """
    from specdec_ref.decoding import autoregressive, speculative
    from specdec_ref.pair import StopStrings

    condition = StopStrings(pair.tokenizer, stops) if stops else None
    decoder = pair.tokenizer.stream(skip_special=True)
    text, printed = "", 0
    held = max((len(s) for s in stops), default=1) - 1  # the beginning of a stop string must not be shown

    def show(final: bool = False) -> None:
        nonlocal printed
        end = len(text) if final else max(printed, len(text) - held)
        if not quiet:
            print(text[printed:end], end="", flush=True)
        printed = end

    def on_token(token: int) -> None:
        nonlocal text
        text += decoder.push(token)
        cut = condition.cut(text) if condition is not None else None
        if cut is None:
            show()

    common = {"eos_ids": pair.eos_ids, "stop_when": condition, "on_token": on_token, **options}
    verifier = common.pop("verifier", None)
    if pair.drafter is None:
        result = autoregressive(pair.target, ids, **common)
    else:
        if verifier is not None:
            common["verifier"] = verifier
        result = speculative(pair.target, pair.drafter, ids, lookahead=lookahead, **common)
    text += decoder.finish()
    cut = condition.cut(text) if condition is not None else None
    text = text if cut is None else cut
    show(final=True)
    if not quiet:
        print()
    return result, text


def record(prompt_tokens: int, result: Generation, text: str) -> dict[str, Any]:
    """The JSON form of a generation (`specdec generate --json`)."""
    return {
        "prompt_tokens": prompt_tokens,
        "tokens": result.tokens,
        "text": text,
        "finish_reason": result.finish_reason,
        "telemetry": asdict(result.telemetry),
        "trace": [asdict(round_) for round_ in result.trace],
        "seconds": result.seconds,
        "tokens_per_s": result.tokens_per_s,
    }


def parse_lookahead(text: str) -> LookaheadPolicy:
    """ "4" is a fixed K; "auto" is K = 5 with confidence stop behind a break-even gate."""
    from specdec_ref.lookahead import BreakEvenGate, ConfidenceStop, FixedLookahead

    if text == "auto":
        return BreakEvenGate(ConfidenceStop(5))
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--lookahead takes a whole number >= 0 or auto, got {text!r}")
    return FixedLookahead(int(text))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"is not UTF-8 (byte {error.start})", where=str(path), fix="save it as UTF-8"
        ) from None


def _messages(path: Path) -> Any:
    try:
        return json_module.loads(_read(path))
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"not JSON ({error})", where=str(path), fix='a list of {"role": …, "content": …}'
        ) from None
