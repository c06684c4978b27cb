"""The pool in Python: aligned, no copies, bytes that add up, and models that run in it as in memory of their own."""

from __future__ import annotations

import resource
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.decoding import speculative
from specdec_ref.drafters import ModelDrafter
from specdec_ref.errors import CacheError
from specdec_ref.kv_pool import PAGE_BYTES, ArenaSpec, KVPool, PoolNotLocked, layout
from specdec_ref.runner import Runner
from tests.helpers.models import tiny_config, tiny_decoder
from tests.helpers.properties import examples

SPECS = [ArenaSpec("target", 3, 2, 100, 16), ArenaSpec("draft", 1, 1, 37, 10, "float16")]


def pool(specs: list[ArenaSpec] = SPECS) -> KVPool:
    return KVPool(specs, lock=False)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(1, 9),
            st.integers(1, 3000),
            st.integers(1, 130),
            st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
        ),
        min_size=1,
        max_size=4,
    )
)
@examples(100)
def test_arenas_are_whole_pages_that_do_not_overlap(shapes):
    made = layout([ArenaSpec(f"a{i}", *shape) for i, shape in enumerate(shapes)])
    end = 0
    for arena in made["arenas"]:
        tensor = arena["payload_bytes"] // 2
        assert arena["offset"] == arena["keys_offset"] == end
        assert arena["keys_offset"] + tensor <= arena["values_offset"] and arena["values_offset"] % 64 == 0
        end = arena["offset"] + arena["bytes"]
        assert end % PAGE_BYTES == 0 and end - PAGE_BYTES < arena["values_offset"] + tensor <= end
        assert tensor == arena["layers"] * arena["layer_stride"]
    assert made["bytes"] == end


def test_tensors_are_views_at_the_addresses_that_the_layout_says():
    made = pool()
    assert made.address % PAGE_BYTES == 0
    for arena in made.layout["arenas"]:
        for which, tensor in zip(("keys", "values"), made.tensors(arena["name"]), strict=True):
            assert tensor.data_ptr() == made.address + arena[f"{which}_offset"]
            strides = [stride * tensor.itemsize for stride in tensor.stride()]
            assert strides[:3] == [arena["layer_stride"], arena["head_stride"], arena["token_stride"]]
            assert not tensor.any()
            tensor[-1, -1, -1, -1] = 1.0
    assert made.tensors("target")[0].sum() == 1, "asking twice gives the same memory"


def test_bytes_are_accounted_for_to_the_last_page():
    made = pool()
    report = made.report({"target": 7})
    target, draft = report["arenas"]
    assert target["payload_bytes"] == 2 * 3 * 2 * 100 * 16 * 4
    assert draft["payload_bytes"] == 2 * 37 * 10 * 2
    assert target["used_bytes"] == 7 * 2 * 3 * 2 * 16 * 4 and draft["used_bytes"] == 0
    for arena in (target, draft):
        assert arena["payload_bytes"] + arena["padding_bytes"] == arena["bytes"]
    assert report["pages"] * PAGE_BYTES == report["bytes"] == target["bytes"] + draft["bytes"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ArenaSpec("x", 1, 1, 8, 8, kind="recurrent"), "recurrent state cannot be rolled back"),
        (ArenaSpec("x", 1, 1, 8, 8, kind="sliding_window", window=7), "past its edge"),
        (ArenaSpec("x", 1, 1, 8, 8, kind="other"), "unknown kind"),
        (ArenaSpec("x", 1, 1, 8, 8, "int3"), "unknown cache type"),
        (ArenaSpec("x", 1, 1, 0, 8), "at least 1"),
        (SPECS[0], "used twice"),
    ],
)
def test_what_it_cannot_hold_or_roll_back_is_refused(spec, message):
    with pytest.raises(CacheError, match=message):
        layout([SPECS[0], spec])
    assert layout([ArenaSpec("x", 1, 1, 8, 8, kind="sliding_window", window=8)])


def test_too_much_memory_and_unknown_arenas_are_clear_errors():
    with pytest.raises(CacheError, match="cannot be had"):
        KVPool([ArenaSpec("x", 1 << 18, 1 << 10, 1 << 20, 256)], lock=False)
    with pytest.raises(CacheError, match=r"no arena 'other'.*target, draft"):
        pool().tensors("other")
    with pytest.raises(CacheError, match=r"needs torch\.float64"):
        Runner(tiny_decoder(0), 8, pool=pool())
    with pytest.raises(CacheError, match=r"cannot hold torch\.int8"):
        ArenaSpec.of("x", tiny_config(), 8, torch.int8)


def test_a_refused_lock_is_one_warning(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: _Refusing())
    with pytest.warns(PoolNotLocked, match="not locked into memory") as warned:
        made = KVPool(SPECS)
    assert len(warned) == 1 and made.locked is False and made.report()["locked"] is False
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == (soft, hard)
    made.tensors("target")[0].fill_(1.0)


class _Refusing:
    @staticmethod
    def mlock(*_: object) -> int:
        return -1


def pooled(seed: int) -> tuple[KVPool, Runner, Runner]:
    models = tiny_decoder(seed), tiny_decoder(seed + 1)
    made = pool(
        [
            ArenaSpec.of(name, model.config, 64, model.dtype)
            for name, model in zip(("target", "draft"), models, strict=True)
        ]
    )
    target, draft = (
        Runner(model, 64, pool=made, arena=name)
        for model, name in zip(models, ("target", "draft"), strict=True)
    )
    return made, target, draft


def test_decoding_in_the_pool_is_decoding():
    made, target, draft = pooled(3)
    own = Runner(tiny_decoder(3), 64), Runner(tiny_decoder(4), 64)
    runs = [
        speculative(t, ModelDrafter(d, t.vocab_size), [1, 2, 3], max_new_tokens=40)
        for t, d in ((target, draft), own)
    ]
    assert runs[0].tokens == runs[1].tokens and runs[0].trace == runs[1].trace
    keys, values = made.tensors("target")
    assert torch.equal(keys, own[0].cache.keys) and torch.equal(values, own[0].cache.values)


def test_passes_and_rollback_move_no_tensor_and_keep_no_memory():
    made, target, _ = pooled(5)
    addresses = [target.cache.keys.data_ptr(), target.cache.values.data_ptr()]
    assert addresses == [
        made.address + made.arena("target")[f"{which}_offset"] for which in ("keys", "values")
    ]
    target.forward([1, 2, 3])

    def rounds(count: int) -> None:
        for _ in range(count):
            target.forward([4, 5, 6, 7, 8])
            target.truncate(4)

    rounds(3)
    tracemalloc.start()
    try:
        rounds(2)
        before = tracemalloc.get_traced_memory()[0]
        rounds(50)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 2000, "bytes kept over 50 rounds"
    assert [target.cache.keys.data_ptr(), target.cache.values.data_ptr()] == addresses
    target.reset()
    assert not made.tensors("target")[0].any()
