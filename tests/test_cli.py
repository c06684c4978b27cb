"""The command line: exit codes, one-line errors, and the JSON that others read. Runs on the nano pair."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specdec_ref.cli import app

NANO = ["--target", "nano-target", "--draft", "nano-draft"]
TELEMETRY = {
    "rounds",
    "drafted",
    "accepted",
    "emitted",
    "target_passes",
    "draft_passes",
    "per_position_drafted",
    "per_position_accepted",
    "k_trace",
}


def specdec(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdec_ref.cli", *args],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **env},
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], code: int, says: str) -> None:
    assert result.returncode == code, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["doctor"],
        ["fetch"],
        ["demo"],
        ["generate"],
        ["bench"],
        ["bench", "reference"],
        ["bench", "quant"],
        ["quantize"],
    ],
)
def test_every_command_explains_itself_with_an_example(command: list[str]) -> None:
    result = specdec(*command, "--help")
    assert result.returncode == 0
    if command not in ([], ["bench"]):
        assert f"Example: specdec {' '.join(command)}" in result.stdout


@pytest.mark.parametrize(
    "command",
    ["bench drafts", "export transformers", "export gguf"]
    + [f"distill {stage}" for stage in ("encode", "data", "train", "eval", "export", "join", "selfcheck")],
)
def test_every_subcommand_explains_itself_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: specdec {command}" in result.output


def test_generate_writes_the_record_that_others_read(tmp_path: Path) -> None:
    out = tmp_path / "sub" / "answer.json"
    result = specdec(
        "generate", *NANO, "--prompt", "Tell me about a cat.", "--max-new-tokens", "20", "--json", str(out)
    )
    assert result.returncode == 0, result.stderr
    record: dict[str, Any] = json.loads(out.read_text())
    assert set(record) >= {
        "prompt_tokens",
        "tokens",
        "text",
        "finish_reason",
        "telemetry",
        "trace",
        "seconds",
        "tokens_per_s",
    }
    assert set(record["telemetry"]) >= TELEMETRY
    assert set(record["trace"][0]) == {"k", "reason", "drafted", "accepted", "next", "kind"}
    assert set(record["seconds"]) == {"prefill", "decode"}
    assert record["telemetry"]["emitted"] == len(record["tokens"]) <= 20
    assert result.stdout.strip() == record["text"].strip()


def test_speculative_and_plain_generate_print_the_same_text() -> None:
    common = [
        "generate",
        "--target",
        "nano-target",
        "--prompt",
        "Tell me about a dog.",
        "--max-new-tokens",
        "24",
    ]
    texts = {
        draft: specdec(*common, "--draft", draft).stdout
        for draft in ("none", "nano-draft", "lookup", "lookup+nano-draft")
    }
    assert len(set(texts.values())) == 1
    assert texts["none"].strip()


def test_a_stop_string_is_never_shown(tmp_path: Path) -> None:
    whole = specdec(
        "generate", *NANO, "--prompt", "Tell me about a dog.", "--max-new-tokens", "24"
    ).stdout.strip()
    stop = whole[8:12]
    out = tmp_path / "a.json"
    cut = specdec(
        "generate",
        *NANO,
        "--prompt",
        "Tell me about a dog.",
        "--max-new-tokens",
        "24",
        "--stop",
        stop,
        "--json",
        str(out),
    )
    assert cut.stdout.strip("\n") == whole[: whole.index(stop)]
    assert json.loads(out.read_text())["finish_reason"] == "stop"


def test_chat_files_and_prompt_files_are_read(tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "Tell me about a dog."}]))
    text = tmp_path / "prompt.txt"
    text.write_text("Tell me about a dog.")
    by_chat = specdec("generate", *NANO, "--chat", str(chat), "--max-new-tokens", "8")
    by_file = specdec("generate", *NANO, "--prompt-file", str(text), "--max-new-tokens", "8")
    assert by_chat.returncode == by_file.returncode == 0
    assert by_chat.stdout == by_file.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-p", "0"], "top-p"),
        (["--top-p", "1.5"], "top-p"),
        (["--top-k", "-3"], "top-k"),
        (["--min-p", "2"], "min-p"),
        (["--lookahead", "-1"], "--lookahead"),
        (["--lookahead", "many"], "--lookahead"),
        (["--verifier", "magic"], "verifier"),
        (["--target-precision", "int1"], "precision"),
        (["--context", "0"], "context"),
        (["--context", "4"], "do not fit"),
        (["--stop", ""], "stop string"),
        (["--max-new-tokens", "-1"], "max-new-tokens"),
        (["--chat", "x.json"], "exactly one"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_bad_use_exits_2_with_a_reason(arguments: list[str], says: str) -> None:
    assert_refused(specdec("generate", *NANO, "--prompt", "Tell me about a dog.", *arguments), 2, says)


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "not JSON"), ('{"role": "user"}', ""), ("[]", ""), ('[{"role": "user"}]', "content")],
)
def test_a_bad_chat_file_is_refused(tmp_path: Path, content: str, says: str) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text(content)
    assert_refused(specdec("generate", *NANO, "--chat", str(chat)), 2, says)


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    assert_refused(specdec("generate", *NANO, "--prompt-file", str(tmp_path / "none.txt")), 2, "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert_refused(specdec("generate", *NANO, "--prompt-file", str(tmp_path / "latin.txt")), 2, "UTF-8")
    (tmp_path / "file").write_text("")
    target = str(tmp_path / "file" / "out.json")
    assert_refused(specdec("generate", *NANO, "--prompt", "a", "--json", target), 2, "out.json")


def test_an_unknown_model_exits_1_in_one_line() -> None:
    result = specdec("generate", "--target", "no_such_model", "--prompt", "a")
    assert_refused(result, 1, "no_such_model")
    assert len(result.stderr.strip().splitlines()) == 1


def test_demo_says_identical() -> None:
    result = specdec("demo", *NANO, "--prompt", "Tell me about a cat.", "--max-new-tokens", "24")
    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip().endswith("identical: yes")


def test_doctor_writes_what_it_found(tmp_path: Path) -> None:
    out = tmp_path / "doctor.json"
    result = specdec("doctor", "--json", str(out))
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(out.read_text())
    assert report["bandwidth_gb_s"] > 0
    assert any("T=1" in key for key in report["linear"])
    assert {"Python", "torch", "cache"} <= {check["name"] for check in report["checks"]}


def test_bench_reference_writes_every_key_others_read(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        '{"prompt": "Tell me about a cat.", "class": "a"}\n{"prompt": "Tell me about a dog.", "class": "b"}\n'
    )
    out = tmp_path / "bench.json"
    result = specdec(
        "bench", "reference", "--target", "nano-target", "--draft", "nano-draft", "--prompts", str(prompts),
        "--max-new-tokens", "16", "--json", str(out),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(out.read_text())
    assert {"machine", "versions", "command", "date", "seed", "sampled", "bfloat16"} <= set(report)
    for section in (report, report["sampled"], report["bfloat16"]):
        assert set(section["classes"]) == {"a", "b"}
        for summary in (section["overall"], *section["classes"].values()):
            assert set(summary["autoregressive"]) == {"tokens_per_s", "roofline_fraction"}
            assert {
                "speculative",
                "speedup",
                "tau",
                "alpha",
                "c",
                "v",
                "predicted_speedup",
                "identical",
            } <= set(summary)
    assert report["overall"]["identical"] is True
    assert report["overall"]["tau"] > 1
    assert {"tokens_per_s", "speedup"} <= set(report["overall"]["peer_transformers"])
