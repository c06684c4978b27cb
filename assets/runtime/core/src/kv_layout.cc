#include "specdec/kv_layout.h"

#include <limits>

#include "specdec/error.h"

namespace specdec {
namespace {

[[noreturn]] void refuse(const std::string& arena, const std::string& what) {
  throw Error(Status::kInvalidArgument, "KV pool, arena \"" + arena + "\": " + what);
}

std::size_t multiply(const ArenaSpec& spec, std::size_t a, std::size_t b) {
  // Half of the address space: sums of a few such products cannot overflow either.
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 16;
  if (b != 0 && a > kMost / b) refuse(spec.name, "it is too large for the address space");
  return a * b;
}

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void check(const ArenaSpec& spec) {
  if (spec.layers < 1 || spec.kv_heads < 1 || spec.capacity < 1 || spec.head_dim < 1) {
    refuse(spec.name, "layers, heads, capacity and head width must be at least 1");
  }
  if (spec.kind == CacheKind::kRecurrent) refuse(spec.name, "a recurrent state cannot be rolled back");
  if (spec.kind == CacheKind::kSlidingWindow && spec.window < spec.capacity) {
    refuse(spec.name,
           "a sliding window of " + std::to_string(spec.window) +
               " tokens cannot be rolled back past its edge: give it a capacity within the window");
  }
}

ArenaLayout lay_out(const ArenaSpec& spec, std::size_t offset) {
  check(spec);
  const auto size = [](std::int32_t value) { return static_cast<std::size_t>(value); };
  ArenaLayout arena{spec};
  arena.token_stride = multiply(spec, size(spec.head_dim), bytes_of(spec.dtype));
  arena.head_stride = multiply(spec, arena.token_stride, size(spec.capacity));
  arena.layer_stride = multiply(spec, arena.head_stride, size(spec.kv_heads));
  const std::size_t tensor = multiply(spec, arena.layer_stride, size(spec.layers));
  arena.offset = arena.keys_offset = offset;
  arena.values_offset = round_up(offset + tensor, kTensorAlignment);
  arena.bytes = round_up(arena.values_offset + tensor - offset, kPageBytes);
  return arena;
}

Dtype dtype_named(const std::string& wanted) {
  for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16}) {
    if (wanted == name(dtype)) return dtype;
  }
  throw Error(Status::kBadFile, "unknown cache type \"" + wanted + "\"");
}

CacheKind kind_named(const std::string& wanted) {
  if (wanted == "full") return CacheKind::kFull;
  if (wanted == "sliding_window") return CacheKind::kSlidingWindow;
  if (wanted == "recurrent") return CacheKind::kRecurrent;
  throw Error(Status::kBadFile, "unknown kind of cache \"" + wanted + "\"");
}

std::string to_json(const ArenaLayout& arena) {
  const ArenaSpec& spec = arena.spec;
  const auto field = [](const char* key, std::size_t value) {
    return std::string(", \"") + key + "\": " + std::to_string(value);
  };
  const auto count = [&](const char* key, std::int32_t value) {
    return field(key, static_cast<std::size_t>(value));
  };
  return "{\"name\": " + json_quote(spec.name) + ", \"dtype\": " + json_quote(name(spec.dtype)) +
         count("layers", spec.layers) + count("kv_heads", spec.kv_heads) + count("capacity", spec.capacity) +
         count("head_dim", spec.head_dim) + field("offset", arena.offset) + field("bytes", arena.bytes) +
         field("payload_bytes", arena.payload_bytes()) + field("keys_offset", arena.keys_offset) +
         field("values_offset", arena.values_offset) + field("layer_stride", arena.layer_stride) +
         field("head_stride", arena.head_stride) + field("token_stride", arena.token_stride) + "}";
}

}  // namespace

const char* name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return "float64";
    case Dtype::kFloat32: return "float32";
    case Dtype::kFloat16: return "float16";
    case Dtype::kBfloat16: return "bfloat16";
  }
  return "";
}

std::size_t bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return 8;
    case Dtype::kFloat32: return 4;
    case Dtype::kFloat16:
    case Dtype::kBfloat16: return 2;
  }
  return 0;
}

ArenaSpec ArenaSpec::from_json(const Json& json) {
  ArenaSpec spec{json.at("name").string(),      json.at("layers").integer(),
                 json.at("kv_heads").integer(), json.at("capacity").integer(),
                 json.at("head_dim").integer(), dtype_named(json.at("dtype").string())};
  if (const Json* kind = json.find("kind")) spec.kind = kind_named(kind->string());
  if (const Json* window = json.find("window")) spec.window = window->integer();
  return spec;
}

std::size_t ArenaLayout::token_bytes() const {
  return 2 * token_stride * static_cast<std::size_t>(spec.kv_heads) * static_cast<std::size_t>(spec.layers);
}

PoolLayout PoolLayout::of(std::span<const ArenaSpec> specs) {
  if (specs.empty()) throw Error(Status::kInvalidArgument, "KV pool: it needs at least one arena");
  PoolLayout layout;
  for (const ArenaSpec& spec : specs) {
    for (const ArenaLayout& other : layout.arenas) {
      if (other.spec.name == spec.name) refuse(spec.name, "the name is used twice");
    }
    layout.arenas.push_back(lay_out(spec, layout.bytes));
    layout.bytes += layout.arenas.back().bytes;
  }
  return layout;
}

const ArenaLayout& PoolLayout::arena(std::string_view name) const {
  for (const ArenaLayout& arena : arenas) {
    if (arena.spec.name == name) return arena;
  }
  throw Error(Status::kInvalidArgument, "KV pool: there is no arena \"" + std::string(name) + "\"");
}

std::string PoolLayout::to_json() const {
  std::string list;
  for (const ArenaLayout& arena : arenas) list += (list.empty() ? "" : ", ") + specdec::to_json(arena);
  return "{\"version\": 1, \"page_bytes\": " + std::to_string(kPageBytes) +
         ", \"bytes\": " + std::to_string(bytes) + ", \"arenas\": [" + list + "]}";
}

}  // namespace specdec
