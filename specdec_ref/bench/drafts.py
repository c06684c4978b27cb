"""The drafts of one target side by side: what each costs, and how many of its tokens the target accepts.

Model drafts are run by the batched engine of `distill.batched`, which takes the decoding loop's own rounds. Prompt lookup needs
no run of its own. Its proposals are one-hot, so rejection sampling accepts a token with probability p(token), which is how
often the target's own sample equals it: on a text that the target wrote, the rounds follow by comparing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from specdec_ref import paths
from specdec_ref.bench.loop_costs import draft_cost
from specdec_ref.distill.config import EvalConfig
from specdec_ref.distill.evaluate import QUOTED, Job, choose_prompts, measure, summarise
from specdec_ref.distill.progress import rounded
from specdec_ref.distill.texts import Prompt
from specdec_ref.drafters import Drafter, FeatureDrafter, ModelDrafter, PromptLookup
from specdec_ref.drafters.base import Request
from specdec_ref.errors import UsageError
from specdec_ref.feature_draft import FeatureDraft
from specdec_ref.files import read_json
from specdec_ref.model import Decoder
from specdec_ref.pair import Pair, load_pair
from specdec_ref.prompts import Prompt as PromptText
from specdec_ref.speedup import c_params
from specdec_ref.trace import Round

BATCH = 16
"""Texts decoded side by side: enough to be bound by arithmetic on a CPU, few enough to be of similar length."""

MODES = {"greedy": 0.0, "t1": 1.0}


@dataclass(frozen=True)
class Settings:
    """What to run: see `specdec bench drafts --help`."""

    target: str = "smollm2-135m"
    drafts: tuple[str, ...] = ()
    max_new_tokens: int = 128
    per_class: int = 0
    repeats: int = 1
    resamples: int = 2000
    seed: int = 0


def drafts_of(target: str) -> list[str]:
    """Names of the committed drafts that were made for a target, the largest first."""
    models = [file.parent for file in (paths.assets() / "models").glob("*/config.json")]
    made_for = [folder for folder in models if _notes(folder / "config.json").get("target") == target]
    return [f.name for f in sorted(made_for, key=lambda f: -(f / "model.safetensors").stat().st_size)]


def _notes(config: Any) -> dict[str, Any]:
    return dict(read_json(config).get("specdec") or {})


def run_drafts(prompts: Sequence[PromptText], settings: Settings) -> dict[str, Any]:
    """Run the benchmark and return the JSON of `specdec bench drafts` (without its header).

    Args:
        prompts: none of them seen in training.
        settings: what to run.

    Raises:
        UsageError: there is no draft for this target.
    """
    names = list(settings.drafts) or drafts_of(settings.target)
    if not names:
        raise UsageError(
            f"no committed draft was made for {settings.target}", fix="name one or more with --draft"
        )
    config = EvalConfig(
        lookaheads=(QUOTED,),
        new_tokens=settings.max_new_tokens,
        repeats=settings.repeats,
        batch=BATCH,
        resamples=settings.resamples,
    )
    reports: list[dict[str, Any]] = []
    rounds: dict[str, list[list[Round]]] = {}
    with tqdm(total=len(names) * len(MODES), unit="run", disable=None) as bar:
        for name in names:
            pair = load_pair(settings.target, name, context=1024)
            model = _model_of(pair)
            texts = choose_prompts(
                [Prompt(p.id, p.kind, pair.prompt_ids(p.turns[0])) for p in prompts], settings.per_class
            )
            assert pair.drafter is not None
            c_measured = draft_cost(pair.target, pair.drafter, texts[0].tokens)
            rounds = {}
            for mode, temperature in MODES.items():
                job = Job(name, QUOTED, temperature)
                rounds[mode] = measure(
                    pair.target.model, model, texts, job, config, pair.eos_ids, settings.seed
                )
                bar.update()
            shape = model.config
            about = {
                "name": name,
                "kind": "feature" if isinstance(model, FeatureDraft) else "model",
                "params_body": shape.body_parameters,
                "head_rows": shape.head_rows or shape.vocab_size,
                "c_params": c_params(model, pair.target.model),
                "c_measured": c_measured,
            }
            reports.append(about | _figures(texts, rounds, settings))
    # The last model's texts are the target's own (speculation is lossless), so lookup can be judged by them.
    repetitive = next((t for t in texts if t.kind in ("extraction", "rewriting")), texts[0])
    c_lookup = draft_cost(pair.target, PromptLookup(), repetitive.tokens)
    reports.append(_lookup_report(texts, rounds, c_lookup, settings))
    return {
        "target": settings.target,
        "lookahead": QUOTED,
        "prompts": len(texts),
        "max_new_tokens": settings.max_new_tokens,
        "repeats_t1": settings.repeats,
        "bootstrap_resamples": settings.resamples,
        "drafts": rounded(reports, 4),
    }


def _figures(
    texts: Sequence[Prompt], rounds: dict[str, list[list[Round]]], settings: Settings
) -> dict[str, Any]:
    sums = {
        mode: summarise(list(texts) * (len(traces) // len(texts)), traces, settings.resamples, settings.seed)
        for mode, traces in rounds.items()
    }
    # Resampling the one prompt of a class gives the same prompt: an interval of width 0 that would say nothing.
    resampled = all(count > 1 for count in Counter(prompt.kind for prompt in texts).values())
    return {
        "tau_greedy_k4": sums["greedy"]["tau"],
        "tau_t1_k4": sums["t1"]["tau"],
        "alpha": sums["greedy"]["alpha"],
        "alpha_t1": sums["t1"]["alpha"],
        "ci": {mode: figures["ci"] if resampled else None for mode, figures in sums.items()},
        "classes": {mode: figures["classes"] for mode, figures in sums.items()},
    }


def _model_of(pair: Pair) -> Decoder | FeatureDraft:
    if pair.draft is not None and isinstance(pair.drafter, ModelDrafter):
        return pair.draft.model
    if isinstance(pair.drafter, FeatureDrafter):
        return pair.drafter.model
    raise UsageError(f"{pair.name}: this draft is not a model", where="--draft", fix="name a model")


def _lookup_report(
    texts: Sequence[Prompt], rounds: dict[str, list[list[Round]]], c_measured: float, settings: Settings
) -> dict[str, Any]:
    replayed = {}
    for mode, traces in rounds.items():
        repeated = list(texts) * (len(traces) // len(texts))
        replayed[mode] = [
            replay(PromptLookup(), prompt.tokens, emitted(trace), QUOTED, settings.max_new_tokens)
            for prompt, trace in zip(repeated, traces, strict=True)
        ]
    about = {
        "name": "lookup",
        "kind": "lookup",
        "params_body": 0,
        "head_rows": 0,
        "c_params": 0.0,
        "c_measured": c_measured,
    }
    return about | _figures(texts, replayed, settings)


def emitted(trace: Iterable[Round]) -> list[int]:
    """The text that a trace produced."""
    return [token for done in trace for token in done.emitted]


def replay(
    drafter: Drafter, prompt: Sequence[int], text: Sequence[int], k: int, max_new_tokens: int
) -> list[Round]:
    """The rounds that decoding takes when the target writes `text`, for a drafter whose proposals are one-hot.

    Args:
        drafter: proposes without sampling.
        prompt: token ids.
        text: what the target says after them; shorter than `max_new_tokens` only where an end-of-text token ended it.
        k: lookahead.
        max_new_tokens: the budget that K is clipped to near the end.
    """
    drafter.begin(prompt)
    tokens, place, rounds = list(prompt), 0, list[Round]()
    while place < len(text):
        asked = min(k, max_new_tokens - place - 1)
        draft, _ = drafter.propose(Request(tokens, asked, round_index=len(rounds)))
        left = text[place:]
        pairs = zip(draft.tokens, left, strict=False)
        accepted = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(draft.tokens), len(left)))
        if accepted == len(left):
            done = Round(asked, "fixed", list(left), accepted, None, "stop")
        else:
            kind = "plain" if not draft.tokens else "bonus" if accepted == len(draft.tokens) else "correction"
            done = Round(asked, "fixed", draft.tokens, accepted, left[accepted], kind)  # type: ignore[arg-type]
        rounds.append(done)
        tokens += done.emitted
        place += len(done.emitted)
    return rounds


def print_report(report: dict[str, Any]) -> None:
    """Print the result as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{report['target']}, K = {report['lookahead']}, {report['prompts']} prompts"
    costs = Table(title=title, title_justify="left", box=None)
    for heading in ("draft", "c (parameters)", "c (measured)", "tau greedy", "tau T = 1"):
        costs.add_column(heading, justify="left" if heading == "draft" else "right", no_wrap=True)
    kinds = sorted(report["drafts"][0]["classes"]["greedy"])
    classes = Table(title="tau greedy by class", title_justify="left", box=None)
    for heading in ("draft", *kinds):
        classes.add_column(heading, justify="left" if heading == "draft" else "right")
    for draft in report["drafts"]:
        costs.add_row(
            draft["name"],
            f"{draft['c_params']:.3f}",
            f"{draft['c_measured']:.3f}",
            _with_interval(draft["tau_greedy_k4"], draft["ci"]["greedy"]),
            _with_interval(draft["tau_t1_k4"], draft["ci"]["t1"]),
        )
        classes.add_row(draft["name"], *(f"{draft['classes']['greedy'][kind]:.2f}" for kind in kinds))
    console.print(costs)
    console.print(classes)


def _with_interval(tau: float, ci: Sequence[float] | None) -> str:
    return f"{tau:.2f}" if ci is None else f"{tau:.2f} ({ci[0]:.2f} to {ci[1]:.2f})"
