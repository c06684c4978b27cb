"""How far may draft and target each be quantized? Bytes, quality and acceptance for every pair of precisions.

Each target precision writes its own texts once, greedily and at temperature 1; every draft is judged on them
(`specdec_ref.quantization.expected`), so the whole grid costs little more than its targets. Nothing here is a timing.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from specdec_ref import checkpoints
from specdec_ref.decoding import speculative
from specdec_ref.drafters import ModelDrafter
from specdec_ref.model import Decoder
from specdec_ref.prompts import Prompt
from specdec_ref.quantization import phone
from specdec_ref.quantization.awq import Inputs
from specdec_ref.quantization.calibration import calibration_ids
from specdec_ref.quantization.channels import degridded
from specdec_ref.quantization.convert import quantize_to_file
from specdec_ref.quantization.expected import Counts, expected_rounds
from specdec_ref.quantization.file import QuantizedFile
from specdec_ref.quantization.kv import PRECISIONS, bytes_per_token, runner_with_kv
from specdec_ref.quantization.recipe import Method, Recipe, recipe, scheme_for
from specdec_ref.quantization.scheme import Scheme
from specdec_ref.quantization.source import Source, open_source
from specdec_ref.quantization.texts import Reference, Written, acceptance_of, held_out_ids, write_texts
from specdec_ref.trace import Telemetry


@dataclass(frozen=True)
class Settings:
    """What to run: see `specdec bench quant --help`.

    Attributes:
        target, draft: model names or folders.
        draft_bits, target_bits: the grid; 16 stands for float16.
        group: weights per scale.
        method: of everything below 8 bits; 8 bits are rounded to nearest, which nothing improves on.
        draft_embedding_bits: of a draft of at most 4 bits: its embedding is most of its bytes.
        per_class: prompts of each class.
        new_tokens: of every text.
        held_out: held-out texts; None takes all.
        k: lookahead.
        studies: also compare schemes, embeddings and cache precisions, and write the phone-scale files.
        seed: of the sampled texts.
    """

    target: str = "smollm2-135m"
    draft: str = "draft"
    draft_bits: tuple[int, ...] = (3, 4, 8, 16)
    target_bits: tuple[int, ...] = (4, 6, 8, 16)
    group: int = 32
    method: Method = "awq-gptq"
    draft_embedding_bits: int = 6
    per_class: int = 2
    new_tokens: int = 96
    held_out: int | None = None
    k: int = 4
    studies: bool = True
    seed: int = 0


@dataclass
class Quantized:
    """A quantized model in memory, and what its file came to."""

    recipe: Recipe
    bits: int
    model: Decoder
    file_bytes: int
    resident_bytes: int


@dataclass
class Texts:
    """What one target wrote: greedily, and at temperature 1."""

    greedy: list[Written] = field(default_factory=list)
    sampled: list[Written] = field(default_factory=list)


class QuantBench:
    """One run of `specdec bench quant`.

    Args:
        prompts: to write from.
        settings: what to run.
        folder: where quantized files are kept while they are needed.
        say: told what is being done.
    """

    def __init__(
        self, prompts: Sequence[Prompt], settings: Settings, folder: Path, say: Callable[[str], None]
    ) -> None:
        self.settings, self.folder, self.say = settings, folder, say
        self.target, self.draft = open_source(settings.target), open_source(settings.draft)
        self.twin = degridded(self.target)
        loaded = checkpoints.load(settings.target)
        checkpoints.check_same_tokenizer(loaded, checkpoints.load(settings.draft))
        assert loaded.tokenizer is not None
        self.eos_ids, self.vocab_size = loaded.eos_ids, loaded.tokenizer.vocab_size
        self.full, self.full_draft = loaded.model, self.draft.model()
        chosen: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            chosen.setdefault(prompt.kind, []).append(prompt)
        kept = [prompt for group in chosen.values() for prompt in group[: settings.per_class]]
        self.prompts = [
            loaded.tokenizer.chat([{"role": "user", "content": prompt.turns[0]}]) for prompt in kept
        ]
        self.held_out = held_out_ids(loaded.tokenizer, settings.held_out)
        texts = calibration_ids(self.target)
        self.calibration = {
            self.target.name: texts,
            self.twin.name: texts,
            self.draft.name: calibration_ids(self.draft),
        }
        self.known: dict[str, dict[int, dict[str, Inputs]]] = {}

    def run(self) -> dict[str, Any]:
        """Run everything and return the JSON of `specdec bench quant` (without its header)."""
        s = self.settings
        self.say("full precision: texts")
        self.full_texts = self.texts(self.full)
        self.reference = Reference(self.full, self.held_out)
        self.own = Reference(self.full, [text.ids for text in self.full_texts.sampled])
        full = {
            "perplexity": self.reference.compare(self.full)[0],
            "perplexity_own": self.own.compare(self.full)[0],
        }
        drafts = [self.quantized(self.draft, self.draft_recipe(bits), bits) for bits in s.draft_bits]
        grid: list[dict[str, Any]] = []
        targets: list[dict[str, Any]] = []
        for bits in s.target_bits:
            used = recipe(s.method if bits < 8 else "rtn", bits, s.group)
            target = self.quantized(self.twin, used, bits)
            self.say(f"target {used}: quality and texts")
            quality = self.quality(target.model)
            texts = self.texts(target.model)
            targets.append(self.described("target", self.twin, target) | quality)
            for draft in drafts:
                grid.append(self.pair(draft, target, texts) | quality)
            if bits == s.target_bits[0]:
                validation = self.validation(drafts[-1], target, texts)
        report = {
            "degridded": True,
            "target": self.target.name,
            "draft": self.draft.name,
            "prompts": len(self.prompts),
            "new_tokens": s.new_tokens,
            "k": s.k,
            "full_precision": full | self.judged(self.full_draft, self.full_texts),
            "grid": grid,
            "targets": targets,
            "drafts": [self.draft_alone(d) for d in drafts],
            "validation": validation,
        }
        if s.studies:
            report["schemes"] = list(self.schemes(targets))
            report["embedding"] = list(self.embeddings())
            report["kv"] = list(self.kv())
            self.say("phone-scale files")
            wanted = [("draft", 3, 6), ("draft", 4, 5), ("target", 4, 8), ("target", 6, 8)]
            report["phone"] = [phone.measure(role, bits, embedding) for role, bits, embedding in wanted]
        return report

    def draft_recipe(
        self, bits: int, method: Method | None = None, embedding_bits: int | None = None
    ) -> Recipe:
        """How a draft of so many bits is quantized."""
        s = self.settings
        if embedding_bits is None:
            embedding_bits = s.draft_embedding_bits if bits <= 4 else 8
        return recipe(
            (method or s.method) if bits < 8 else "rtn", bits, s.group, embedding_bits=embedding_bits
        )

    def quantized(self, source: Source, used: Recipe, bits: int) -> Quantized:
        """Quantize into a real file, load that file, and delete it."""
        self.say(f"{source.name}: {used}")
        path = self.folder / "model.safetensors"
        quantize_to_file(
            source,
            used,
            path,
            calibration=self.calibration[source.name],
            known=self.known.setdefault(source.name, {}),
        )
        file = QuantizedFile(path, seal=False)
        model = checkpoints.load(path).model
        found = Quantized(used, bits, model, file.nbytes, file.resident_bytes)
        path.unlink()
        return found

    def texts(self, target: Decoder) -> Texts:
        """What a target writes from all prompts."""
        s = self.settings

        def write(temperature: float) -> list[Written]:
            return write_texts(
                target, self.prompts, temperature=temperature, new_tokens=s.new_tokens, eos_ids=self.eos_ids,
                seed=s.seed, vocab_size=self.vocab_size,
            )  # fmt: skip

        return Texts(write(0.0), write(1.0))

    def quality(self, model: Decoder) -> dict[str, float]:
        """Perplexity and KL to the full-precision target, on held-out texts and on the target's own."""
        perplexity, kl = self.reference.compare(model)
        own, kl_own = self.own.compare(model)
        return {"perplexity": perplexity, "kl": kl, "perplexity_own": own, "kl_own": kl_own}

    def counts(self, draft: Decoder, texts: Sequence[Written], *, greedy: bool) -> Counts:
        """Expected rounds of a draft over texts."""
        s = self.settings
        rounds = [expected_rounds(acceptance_of(draft, t, greedy=greedy), s.k, s.new_tokens) for t in texts]
        return sum(rounds, Counts())

    def judged(self, draft: Decoder, texts: Texts) -> dict[str, Any]:
        """alpha by slot and tau of a draft on a target's texts."""
        k = f"k{self.settings.k}"
        greedy, sampled = (
            self.counts(draft, texts.greedy, greedy=True),
            self.counts(draft, texts.sampled, greedy=False),
        )
        return {
            "alpha": greedy.alpha,
            "alpha_t1": sampled.alpha,
            f"tau_greedy_{k}": greedy.tau,
            f"tau_t1_{k}": sampled.tau,
        }

    def pair(self, draft: Quantized, target: Quantized, texts: Texts) -> dict[str, Any]:
        """One cell of the grid, without the target's quality."""
        return {
            "draft_bits": draft.bits,
            "target_bits": target.bits,
            "scheme": {"draft": draft.recipe.method, "target": target.recipe.method},
            "group": self.settings.group,
            "file_bytes": draft.file_bytes + target.file_bytes,
            "draft_file_bytes": draft.file_bytes,
            "target_file_bytes": target.file_bytes,
            "resident_bytes": draft.resident_bytes + target.resident_bytes,
            **self.judged(draft.model, texts),
            "predicted_speedup": None,  # filled in where the native runtime has measured c and v(K)
        }

    def described(self, role: str, source: Source, q: Quantized) -> dict[str, Any]:
        """What a quantized model is and how large."""
        return {
            "role": role,
            "degridded": source is self.twin,
            "bits": q.bits,
            "recipe": q.recipe.to_json(),
            "file_bytes": q.file_bytes,
            "resident_bytes": q.resident_bytes,
        }

    def draft_alone(self, q: Quantized) -> dict[str, Any]:
        """A quantized draft against the full-precision draft, on the full-precision target's texts."""
        kl = self._draft_reference.compare(q.model)[1]
        return self.described("draft", self.draft, q) | {"kl": kl} | self.judged(q.model, self.full_texts)

    @functools.cached_property
    def _draft_reference(self) -> Reference:
        return Reference(self.full_draft, [text.ids for text in self.full_texts.sampled])

    def validation(self, draft: Quantized, target: Quantized, texts: Texts) -> dict[str, Any]:
        """The real loop on the first prompts, beside what was computed for them."""
        s, real, computed = self.settings, Telemetry(), Counts()
        same = 0
        for text in texts.greedy[:3]:
            run = speculative(
                runner_with_kv(target.model, 2048, "fp32", vocab_size=self.vocab_size),
                ModelDrafter(runner_with_kv(draft.model, 2048, "fp32"), self.vocab_size),
                text.prompt, lookahead=s.k, max_new_tokens=s.new_tokens, eos_ids=self.eos_ids,
            )  # fmt: skip
            real += run.telemetry
            same += run.tokens == text.tokens
            computed += self.counts(draft.model, [text], greedy=True)
        return {
            "prompts": len(texts.greedy[:3]),
            "texts_identical": same,
            "tau_real": real.tau,
            "tau_computed": computed.tau,
        }

    def schemes(self, measured: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Round-to-nearest, AWQ and AWQ with feedback at equal bits, and the trap of a target that is on a grid already."""
        yield from (row for row in measured if row["recipe"]["method"] != "rtn")
        eight = scheme_for(8)
        q4_1 = Recipe("rtn", Scheme(4, 32, symmetric=False), eight, eight)
        group = self.settings.group
        missing: list[tuple[Method, int]] = [(self.settings.method, 3)]
        missing += [(method, bits) for bits in (3, 4, 6) for method in ("rtn", "awq")]
        cases = [(self.twin, recipe(method, bits, group), bits) for method, bits in missing]
        for source, used, bits in [*cases, (self.target, q4_1, 4), (self.twin, q4_1, 4)]:
            q = self.quantized(source, used, bits)
            perplexity, kl = self.reference.compare(q.model)
            yield self.described("target", source, q) | {"perplexity": perplexity, "kl": kl}
        for bits in (3, 4):
            kinds: list[Method] = ["rtn", "awq", "awq-gptq"]
            for method in kinds:
                q = self.quantized(self.draft, self.draft_recipe(bits, method), bits)
                yield self.draft_alone(q)

    def embeddings(self) -> Iterator[dict[str, Any]]:
        """The draft's embedding, which is also its head, at several widths; the body at 4 bits."""
        for bits in (3, 4, 6, 8):
            yield self.draft_alone(self.quantized(self.draft, self.draft_recipe(4, None, bits), 4))

    def kv(self) -> Iterator[dict[str, Any]]:
        """Cache precision alone: full-precision weights, real speculative runs."""
        s = self.settings
        for precision in PRECISIONS:
            self.say(f"cache {precision}")
            total = Telemetry()
            for prompt in self.prompts[: min(4, len(self.prompts))]:
                total += speculative(
                    runner_with_kv(self.full, 2048, precision, vocab_size=self.vocab_size),
                    ModelDrafter(runner_with_kv(self.full_draft, 2048, precision), self.vocab_size),
                    prompt, lookahead=s.k, max_new_tokens=s.new_tokens, eos_ids=self.eos_ids,
                ).telemetry  # fmt: skip
            yield {
                "precision": precision,
                "target_bytes_per_token": bytes_per_token(self.full.config, precision),
                "draft_bytes_per_token": bytes_per_token(self.full_draft.config, precision),
                "kl": self._kv_divergence(precision),
                f"tau_greedy_k{s.k}": total.tau,
            }

    @torch.inference_mode()
    def _kv_divergence(self, precision: Any) -> float:
        total, count = 0.0, 0
        for text in self.held_out[:4]:
            p, q = (
                F.log_softmax(runner_with_kv(self.full, 2048, kept).forward(text[:512]).float(), -1)
                for kept in ("fp32", precision)
            )
            total += float((p.exp() * (p - q)).sum())
            count += len(p)
        return total / count


@torch.no_grad()
def run_quant(
    prompts: Sequence[Prompt], settings: Settings, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Run the benchmark and return its JSON (without its header), every float rounded to 5 digits."""
    from specdec_ref.distill.progress import rounded

    with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
        report: dict[str, Any] = rounded(QuantBench(prompts, settings, Path(folder), say).run(), 5)
    return report


def print_report(report: dict[str, Any]) -> None:
    """Print the grid as a table."""
    from rich.console import Console
    from rich.table import Table

    k = report["k"]
    title = f"{report['draft']} beside {report['target']} (de-gridded), K = {k}"
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("target", "draft", "MB", "perplexity", "KL", "tau greedy", "tau T=1"):
        table.add_column(heading, justify="right")
    for row in report["grid"]:
        table.add_row(
            str(row["target_bits"]),
            str(row["draft_bits"]),
            f"{row['file_bytes'] / 1e6:.1f}",
            f"{row['perplexity']:.2f}",
            f"{row['kl']:.4f}",
            f"{row[f'tau_greedy_k{k}']:.2f}",
            f"{row[f'tau_t1_k{k}']:.2f}",
        )
    Console().print(table)
