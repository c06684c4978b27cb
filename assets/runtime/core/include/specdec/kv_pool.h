// The KV caches of target and draft in one region: page-aligned, locked into memory where the system allows
// it, allocated once. Rejecting drafted tokens costs nothing here: rolling back is changing a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "specdec/kv_layout.h"

namespace specdec {

// Zeroed memory from `mmap`, aligned to kPageBytes, given back at the end.
class Region {
 public:
  explicit Region(std::size_t bytes);  // throws kOutOfMemory
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }
  // Asks the system never to swap this memory. False, with `errno` set, if it refuses (RLIMIT_MEMLOCK).
  bool lock();

 private:
  std::byte* data_;
  std::size_t size_;
  bool locked_ = false;
};

// Keys and values of one sequence, for every layer of one model: a view into the pool.
//
// A forward pass is `begin`, one write per layer, `commit`. If the pass fails in between, the contents are
// half a step, and every further use throws kPoisoned until `reset`.
class KvCache {
 public:
  KvCache(std::span<std::byte> pool, ArenaLayout layout) : pool_(pool), layout_(std::move(layout)) {}

  // Announces a pass over so many new tokens; returns the position of the first. Throws kPromptTooLong
  // without changing anything if they do not fit.
  std::int32_t begin(std::int32_t tokens);
  // Counts the tokens that every layer has now written.
  void commit(std::int32_t tokens);
  // Forgets every token from position `length` on; O(1). What lies beyond is never read and overwritten next.
  void truncate(std::int32_t length);
  // Returns to the state just after construction, byte for byte; touches only what was written.
  void reset();

  // Keys and values [G, L, E] of one layer.
  std::span<std::byte> keys(std::int32_t layer) const;
  std::span<std::byte> values(std::int32_t layer) const;

  const ArenaLayout& layout() const { return layout_; }
  std::int32_t capacity() const { return layout_.spec.capacity; }
  std::int32_t length() const { return length_; }
  std::size_t used_bytes() const { return layout_.token_bytes() * static_cast<std::size_t>(length_); }

 private:
  void refuse_if_poisoned() const;

  std::span<std::byte> pool_;
  ArenaLayout layout_;
  std::int32_t length_ = 0;
  std::int32_t written_ = 0;  // positions that may hold anything but zeros
  bool writing_ = false;
};

class KvPool {
 public:
  // `lock` asks for non-swappable memory. If the system refuses, the pool works all the same; `locked()` and
  // `warning()` say so.
  explicit KvPool(std::span<const ArenaSpec> specs, bool lock = true);

  KvCache& cache(std::string_view name);
  std::span<std::byte> bytes() const { return region_.bytes(); }
  const PoolLayout& layout() const { return layout_; }
  bool locked() const { return locked_; }
  // One line about why the memory is not locked; empty if it is, or was not to be.
  const std::string& warning() const { return warning_; }
  // Byte accounting as JSON: the whole, and per arena bytes, payload, padding and what is in use.
  std::string report() const;

 private:
  PoolLayout layout_;
  Region region_;
  bool locked_ = false;
  std::string warning_;
  std::vector<KvCache> caches_;
};

}  // namespace specdec
