// The pool is one aligned region with the layout it says, rolls back by a number, refuses what it cannot do,
// and survives a system that will not lock memory.
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "check.h"
#include "specdec/kv_pool.h"

namespace specdec::test {
namespace {

const std::vector<ArenaSpec> kSpecs{{"target", 3, 2, 100, 16}, {"draft", 1, 1, 37, 10, Dtype::kFloat16}};

bool all_zero(std::span<std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

void layout_adds_up() {
  const PoolLayout layout = PoolLayout::of(kSpecs);
  const ArenaLayout &target = layout.arena("target"), &draft = layout.arena("draft");
  check(target.token_stride == 16 * 4 && target.head_stride == 100 * 64 && target.layer_stride == 2 * 6400);
  check(target.payload_bytes() == std::size_t{2} * 3 * 2 * 100 * 16 * 4);
  check(draft.payload_bytes() == std::size_t{2} * 37 * 10 * 2);
  std::size_t expected = 0;
  for (const ArenaLayout& arena : layout.arenas) {
    check(arena.offset == expected && arena.offset % kPageBytes == 0 && arena.bytes % kPageBytes == 0);
    check(arena.keys_offset % kTensorAlignment == 0 && arena.values_offset % kTensorAlignment == 0);
    check(arena.bytes >= arena.payload_bytes() &&
          arena.bytes - arena.payload_bytes() < kPageBytes + kTensorAlignment);
    expected += arena.bytes;
  }
  check(layout.bytes == expected);
  refuses(Status::kInvalidArgument, [&] { layout.arena("other"); });
}

void pool_is_one_aligned_region() {
  KvPool pool(kSpecs);
  const auto base = reinterpret_cast<std::uintptr_t>(pool.bytes().data());
  check(base % kPageBytes == 0 && pool.bytes().size() == pool.layout().bytes && all_zero(pool.bytes()));
  for (const ArenaLayout& arena : pool.layout().arenas) {
    const KvCache& cache = pool.cache(arena.spec.name);
    for (std::int32_t layer = 0; layer < arena.spec.layers; ++layer) {
      const auto keys = cache.keys(layer), values = cache.values(layer);
      check(keys.data() ==
            pool.bytes().data() + arena.keys_offset + arena.layer_stride * static_cast<std::size_t>(layer));
      check(values.data() + values.size() <= pool.bytes().data() + arena.offset + arena.bytes);
      std::memset(keys.data(), 1, keys.size());
      std::memset(values.data(), 1, values.size());
    }
  }
  const auto ones = static_cast<std::size_t>(std::ranges::count(pool.bytes(), std::byte{1}));
  check(ones == pool.cache("target").layout().payload_bytes() + pool.cache("draft").layout().payload_bytes(),
        "tensors do not overlap");
}

void rollback_moves_nothing_and_refuses_the_impossible() {
  KvPool pool(kSpecs);
  KvCache& cache = pool.cache("target");
  check(cache.begin(60) == 0);
  std::memset(cache.keys(2).data(), 7, 64);
  cache.commit(60);
  check(cache.used_bytes() == cache.layout().token_bytes() * 60);
  cache.truncate(55);
  check(cache.length() == 55 && cache.keys(2)[0] == std::byte{7});
  for (const std::int32_t length : {-1, 56})
    refuses(Status::kInvalidArgument, [&] { cache.truncate(length); });
  refuses(Status::kPromptTooLong, [&] { cache.begin(46); });
  check(cache.begin(45) == 55, "a refusal leaves the cache usable");
  refuses(Status::kPoisoned, [&] { cache.begin(1); });
  refuses(Status::kPoisoned, [&] { cache.truncate(0); });
  cache.reset();
  check(cache.length() == 0 && all_zero(pool.bytes()), "reset is byte for byte");
  check(cache.begin(1) == 0);
}

void reset_clears_every_position_that_was_written() {
  KvPool pool(kSpecs);
  KvCache& cache = pool.cache("draft");
  cache.begin(9);
  const auto& layout = cache.layout();
  std::memset(cache.values(0).data() + 8 * layout.token_stride, 5, layout.token_stride);
  cache.commit(9);
  cache.truncate(2);
  cache.reset();
  check(all_zero(pool.bytes()));
}

void caches_without_rollback_are_refused() {
  const auto refused = [](ArenaSpec spec) {
    return refuses(Status::kInvalidArgument, [&] { PoolLayout::of(std::vector{spec}); });
  };
  ArenaSpec spec = kSpecs[0];
  spec.kind = CacheKind::kRecurrent;
  check(refused(spec).find("rolled back") != std::string::npos);
  spec.kind = CacheKind::kSlidingWindow;
  spec.window = spec.capacity - 1;
  check(refused(spec).find("past its edge") != std::string::npos);
  spec.window = spec.capacity;
  check(PoolLayout::of(std::vector{spec}).bytes > 0, "a window that is never left is a full cache");
  spec = kSpecs[0];
  spec.capacity = 0;
  refused(spec);
  spec = {"huge", 2147483647, 2147483647, 2147483647, 2147483647};
  check(refused(spec).find("too large") != std::string::npos);
  refuses(Status::kInvalidArgument, [] { PoolLayout::of(std::vector{kSpecs[0], kSpecs[0]}); });
  refuses(Status::kInvalidArgument, [] { PoolLayout::of({}); });
  refuses(Status::kOutOfMemory,
          [] { KvPool pool(std::vector<ArenaSpec>{{"wide", 1 << 18, 1 << 10, 1 << 20, 256}}); });
}

void a_refused_lock_is_a_warning() {
  check(KvPool(kSpecs, false).warning().empty() && !KvPool(kSpecs, false).locked());
  const rlimit none{0, 0};
  setrlimit(RLIMIT_MEMLOCK, &none);
  KvPool pool(kSpecs);
  // Root may lock whatever the limit says, and sanitizers pretend to.
  check(pool.locked() == pool.warning().empty());
  check(pool.report().find(pool.locked() ? "\"locked\": true" : "\"locked\": false") != std::string::npos);
  pool.cache("target").begin(1);
}

}  // namespace
}  // namespace specdec::test

int main() {
  using namespace specdec::test;
  return run([] {
    layout_adds_up();
    pool_is_one_aligned_region();
    rollback_moves_nothing_and_refuses_the_impossible();
    reset_clears_every_position_that_was_written();
    caches_without_rollback_are_refused();
    a_refused_lock_is_a_warning();
  });
}
