#include "specdec/kv_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "specdec/error.h"

namespace specdec {
namespace {

// mmap aligns to the system's pages, which may be smaller than ours: map one page more and give the ends
// back.
std::byte* map_aligned(std::size_t bytes) {
  const std::size_t wider = bytes + kPageBytes;
  void* mapped = mmap(nullptr, wider, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(Status::kOutOfMemory,
                "KV pool: " + std::to_string(bytes) + " bytes cannot be had: " + strerror(errno));
  }
  auto* start = static_cast<std::byte*>(mapped);
  const std::size_t head = (kPageBytes - reinterpret_cast<std::uintptr_t>(start) % kPageBytes) % kPageBytes;
  if (head != 0) munmap(start, head);
  if (kPageBytes != head) munmap(start + head + bytes, kPageBytes - head);
  return start + head;
}

}  // namespace

Region::Region(std::size_t bytes) : data_(map_aligned(bytes)), size_(bytes) {}

Region::~Region() {
  if (locked_) munlock(data_, size_);
  munmap(data_, size_);
}

bool Region::lock() { return locked_ = locked_ || mlock(data_, size_) == 0; }

std::int32_t KvCache::begin(std::int32_t tokens) {
  refuse_if_poisoned();
  if (tokens < 0 || tokens > capacity() - length_) {
    throw Error(Status::kPromptTooLong, std::to_string(tokens) +
                                            " more tokens do not fit: " + std::to_string(length_) + " of " +
                                            std::to_string(capacity()) + " positions are taken");
  }
  writing_ = true;
  written_ = std::max(written_, length_ + tokens);
  return length_;
}

void KvCache::commit(std::int32_t tokens) {
  length_ += tokens;
  writing_ = false;
}

void KvCache::truncate(std::int32_t length) {
  refuse_if_poisoned();
  if (length < 0 || length > length_) {
    throw Error(Status::kInvalidArgument, "cannot roll back to " + std::to_string(length) +
                                              ": the cache holds " + std::to_string(length_) + " tokens");
  }
  length_ = length;
}

void KvCache::reset() {
  const std::size_t used = layout_.token_stride * static_cast<std::size_t>(written_);
  for (std::int32_t layer = 0; layer < layout_.spec.layers; ++layer) {
    for (const auto tensor : {keys(layer), values(layer)}) {
      for (std::size_t head = 0; head < tensor.size(); head += layout_.head_stride) {
        std::memset(tensor.data() + head, 0, used);
      }
    }
  }
  length_ = written_ = 0;
  writing_ = false;
}

std::span<std::byte> KvCache::keys(std::int32_t layer) const {
  return pool_.subspan(layout_.keys_offset + layout_.layer_stride * static_cast<std::size_t>(layer),
                       layout_.layer_stride);
}

std::span<std::byte> KvCache::values(std::int32_t layer) const {
  return pool_.subspan(layout_.values_offset + layout_.layer_stride * static_cast<std::size_t>(layer),
                       layout_.layer_stride);
}

void KvCache::refuse_if_poisoned() const {
  if (writing_) throw Error(Status::kPoisoned, "an earlier step failed halfway: reset the cache first");
}

KvPool::KvPool(std::span<const ArenaSpec> specs, bool lock)
    : layout_(PoolLayout::of(specs)), region_(layout_.bytes) {
  if (lock) locked_ = region_.lock();
  if (lock && !locked_) {
    warning_ = "the KV pool of " + std::to_string(layout_.bytes) +
               " bytes is not locked into memory: " + strerror(errno) +
               " (raise the limit of locked memory, `ulimit -l`)";
  }
  for (const ArenaLayout& arena : layout_.arenas) caches_.emplace_back(region_.bytes(), arena);
}

KvCache& KvPool::cache(std::string_view name) {
  for (KvCache& cache : caches_) {
    if (cache.layout().spec.name == name) return cache;
  }
  layout_.arena(name);  // throws
  throw Error(Status::kInternal, "an arena without a cache");
}

std::string KvPool::report() const {
  std::string arenas;
  for (const KvCache& cache : caches_) {
    const ArenaLayout& arena = cache.layout();
    const auto field = [](const char* key, std::size_t value) {
      return std::string(", \"") + key + "\": " + std::to_string(value);
    };
    arenas += std::string(arenas.empty() ? "" : ", ") + "{\"name\": " + json_quote(arena.spec.name) +
              field("bytes", arena.bytes) + field("payload_bytes", arena.payload_bytes()) +
              field("padding_bytes", arena.bytes - arena.payload_bytes()) +
              field("used_bytes", cache.used_bytes()) + "}";
  }
  return "{\"bytes\": " + std::to_string(layout_.bytes) +
         ", \"pages\": " + std::to_string(layout_.bytes / kPageBytes) +
         ", \"locked\": " + (locked_ ? "true" : "false") + ", \"arenas\": [" + arenas + "]}";
}

}  // namespace specdec
