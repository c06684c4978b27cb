// Where in one region of memory every key and value lives: plain numbers, the same in Python
// (`specdec_ref.kv_pool`) and here, and JSON between the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "specdec/json.h"

namespace specdec {

inline constexpr std::size_t kPageBytes = 16384;     // Apple's pages; a multiple of everyone else's
inline constexpr std::size_t kTensorAlignment = 64;  // one cache line, and what Metal and XNNPACK ask for

enum class Dtype : std::uint8_t { kFloat64, kFloat32, kFloat16, kBfloat16 };
const char* name(Dtype dtype);
std::size_t bytes_of(Dtype dtype);

// How a model forgets. Only a full cache can be rolled back at any point by changing its length.
enum class CacheKind : std::uint8_t { kFull, kSlidingWindow, kRecurrent };

// One model's cache.
struct ArenaSpec {
  std::string name;  // "target", "draft"
  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;  // G
  std::int32_t capacity = 0;  // L, tokens
  std::int32_t head_dim = 0;  // E
  Dtype dtype = Dtype::kFloat32;
  CacheKind kind = CacheKind::kFull;
  std::int32_t window = 0;  // of a sliding window, tokens

  static ArenaSpec from_json(const Json& json);
};

// Keys are [layers, G, L, E], contiguous, and values the same. All numbers are bytes; offsets count from the
// pool's first byte.
struct ArenaLayout {
  ArenaSpec spec;
  std::size_t offset = 0;  // a multiple of kPageBytes
  std::size_t bytes = 0;   // whole pages
  std::size_t keys_offset = 0;
  std::size_t values_offset = 0;
  std::size_t token_stride = 0;  // E elements
  std::size_t head_stride = 0;   // L tokens
  std::size_t layer_stride = 0;  // G heads

  // Bytes of one token's keys and values in all layers.
  std::size_t token_bytes() const;
  // Bytes of all keys and values; the rest of `bytes` is padding.
  std::size_t payload_bytes() const { return token_bytes() * static_cast<std::size_t>(spec.capacity); }
};

struct PoolLayout {
  std::vector<ArenaLayout> arenas;
  std::size_t bytes = 0;

  // Lays the arenas out one after another. Throws kInvalidArgument for a shape that is not positive or too
  // large, a name used twice, and a cache that cannot be rolled back (recurrent state, or a window shorter
  // than the capacity).
  static PoolLayout of(std::span<const ArenaSpec> specs);

  const ArenaLayout& arena(std::string_view name) const;
  std::string to_json() const;
};

}  // namespace specdec
