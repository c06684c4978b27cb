// `specdec::kv_attention` as an ExecuTorch kernel: rotary embedding, append to the KV pool, causal attention.
//
// Its twin, which says what it computes, is `specdec_ref/export/executorch/op.py`. Attention is computed over
// blocks of keys with a running maximum and sum (Milakov & Gimelshein, 2018), so it needs no memory of its
// own.
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

namespace specdec {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

constexpr std::int64_t kLanes = 16;         // partial sums of an inner product: a cache line of floats
constexpr std::int64_t kKeys = 64;          // keys per block
constexpr std::int64_t kMaxWidth = 256;     // E
constexpr std::int64_t kWorthIt = 1 << 17;  // multiply-adds below which waking other threads costs more

struct Shape {
  std::int64_t tokens, heads, groups, width, capacity, start;
};

float dot(const float* a, const float* b, std::int64_t n) {
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[i % kLanes] += a[i] * b[i];
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// e^x for x <= 0 to about two units in the last place, in operations that compilers turn into vectors:
// 2^n times a polynomial (Taylor, degree 6) of what is left, at most ln(2)/2.
float exp_of_negative(float x) {
  constexpr float kLog2E = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  x = x > -87.0F ? x : -87.0F;  // e^-87 is near the smallest normal float; NaN goes there too
  const float n = std::floor(x * kLog2E + 0.5F);
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

// x [E] turned by the angles whose cosines and sines are given, into `out`.
void rotate(const float* x, const float* cos, const float* sin, std::int64_t width, float* out) {
  const std::int64_t half = width / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
}

// One query against the first `count` keys of its head; `q` is already scaled by 1/sqrt(E).
void attend(const float* q, const float* keys, const float* values, std::int64_t count, std::int64_t width,
            float* out) {
  float sum = 0.0F, largest = -INFINITY;
  float scores[kKeys];
  std::fill_n(out, width, 0.0F);
  for (std::int64_t first = 0; first < count; first += kKeys) {
    const std::int64_t n = std::min(kKeys, count - first);
    float block_largest = largest;
    for (std::int64_t j = 0; j < n; ++j) {
      scores[j] = dot(q, keys + (first + j) * width, width);
      block_largest = std::max(block_largest, scores[j]);
    }
    if (block_largest > largest) {
      const float shrink = first == 0 ? 0.0F : exp_of_negative(largest - block_largest);
      sum *= shrink;
      for (std::int64_t i = 0; i < width; ++i) out[i] *= shrink;
      largest = block_largest;
    }
    for (std::int64_t j = 0; j < n; ++j) scores[j] = exp_of_negative(scores[j] - largest);
    for (std::int64_t j = 0; j < n; ++j) {
      sum += scores[j];
      const float* value = values + (first + j) * width;
      for (std::int64_t i = 0; i < width; ++i) out[i] += scores[j] * value[i];
    }
  }
  const float scale = 1.0F / sum;
  for (std::int64_t i = 0; i < width; ++i) out[i] *= scale;
}

// x [E] divided by its root mean square, times the gain, in place.
void normalise(float* x, const float* gain, float eps, std::int64_t width) {
  const float scale = 1.0F / std::sqrt(dot(x, x, width) / static_cast<float>(width) + eps);
  for (std::int64_t i = 0; i < width; ++i) x[i] *= scale * gain[i];
}

bool is(const Tensor& tensor, ScalarType type, std::int64_t dimensions) {
  return tensor.scalar_type() == type && tensor.dim() == dimensions;
}

bool is_gain(const std::optional<Tensor>& gain, std::int64_t width) {
  return !gain.has_value() || (is(*gain, ScalarType::Float, 1) && gain->size(0) == width);
}

// Arguments as in the operator's schema (op.py), with `out` last.
void kv_attention(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor& qkv = stack[0]->toTensor();
  const auto q_gain = stack[1]->toOptional<Tensor>();
  const auto k_gain = stack[2]->toOptional<Tensor>();
  const auto eps = static_cast<float>(stack[3]->toDouble());
  const Tensor& cos = stack[4]->toTensor();
  const Tensor& sin = stack[5]->toTensor();
  const Tensor& start = stack[6]->toTensor();
  const Tensor& all_keys = stack[7]->toTensor();
  const Tensor& all_values = stack[8]->toTensor();
  const std::int64_t layer = stack[9]->toInt();
  const std::int64_t heads = stack[10]->toInt();
  Tensor& out = stack[11]->toTensor();

  const bool types = is(qkv, ScalarType::Float, 2) && is(cos, ScalarType::Float, 2) &&
                     is(sin, ScalarType::Float, 2) && is(start, ScalarType::Long, 1) && start.numel() == 1 &&
                     is(all_keys, ScalarType::Float, 4) && is(all_values, ScalarType::Float, 4) &&
                     is(out, ScalarType::Float, 2);
  ET_KERNEL_CHECK(context, types, InvalidArgument, );
  const Shape s{.tokens = qkv.size(0),
                .heads = heads,
                .groups = all_keys.size(1),
                .width = all_keys.size(3),
                .capacity = all_keys.size(2),
                .start = *start.const_data_ptr<std::int64_t>()};
  const bool shapes = layer >= 0 && layer < all_keys.size(0) && s.groups > 0 && s.heads > 0 &&
                      s.heads % s.groups == 0 && s.width > 0 && s.width <= kMaxWidth && s.width % 2 == 0 &&
                      qkv.size(1) == (s.heads + 2 * s.groups) * s.width && cos.size(1) == s.width / 2 &&
                      sin.size(1) == s.width / 2 && is_gain(q_gain, s.width) && is_gain(k_gain, s.width);
  const bool room = s.start >= 0 && s.tokens > 0 && s.start <= s.capacity - s.tokens &&
                    s.start <= std::min(cos.size(0), sin.size(0)) - s.tokens;
  ET_KERNEL_CHECK(context, shapes && room, InvalidArgument, );
  const executorch::aten::SizesType sizes[] = {static_cast<executorch::aten::SizesType>(s.tokens),
                                               static_cast<executorch::aten::SizesType>(s.heads * s.width)};
  ET_KERNEL_CHECK(context, executorch::runtime::resize_tensor(out, {sizes, 2}) == Error::Ok,
                  InvalidArgument, );

  const std::int64_t head_stride = s.capacity * s.width;
  float* keys = all_keys.mutable_data_ptr<float>() + layer * s.groups * head_stride;
  float* values = all_values.mutable_data_ptr<float>() + layer * s.groups * head_stride;
  const float* x = qkv.const_data_ptr<float>();
  const float* q_gains = q_gain.has_value() ? q_gain->const_data_ptr<float>() : nullptr;
  const float* k_gains = k_gain.has_value() ? k_gain->const_data_ptr<float>() : nullptr;
  const float* cosines = cos.const_data_ptr<float>() + s.start * s.width / 2;
  const float* sines = sin.const_data_ptr<float>() + s.start * s.width / 2;
  float* result = out.mutable_data_ptr<float>();
  const std::int64_t row = (s.heads + 2 * s.groups) * s.width;

  const auto turned = [&](const float* head, std::int64_t t, const float* gain, float* to) {
    float normal[kMaxWidth];
    std::copy_n(head, s.width, normal);
    if (gain != nullptr) normalise(normal, gain, eps, s.width);
    rotate(normal, cosines + t * s.width / 2, sines + t * s.width / 2, s.width, to);
  };
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const float* k = x + t * row + (s.heads + g) * s.width;
      const std::int64_t place = g * head_stride + (s.start + t) * s.width;
      turned(k, t, k_gains, keys + place);
      std::memcpy(values + place, k + s.groups * s.width, sizeof(float) * static_cast<std::size_t>(s.width));
    }
  }
  // One piece of work is one query. Queries of a key head lie side by side, so its keys are read once from
  // memory.
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    float q[kMaxWidth];
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.width));
    const std::int64_t shared = s.heads / s.groups;
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t g = item / (s.tokens * shared);
      const std::int64_t t = item / shared % s.tokens;
      const std::int64_t head = g * shared + item % shared;
      turned(x + t * row + head * s.width, t, q_gains, q);
      for (std::int64_t i = 0; i < s.width; ++i) q[i] *= scale;
      attend(q, keys + g * head_stride, values + g * head_stride, s.start + t + 1, s.width,
             result + (t * s.heads + head) * s.width);
    }
  };
  const std::int64_t items = s.heads * s.tokens;
  const std::int64_t macs = 2 * items * (s.start + s.tokens) * s.width;
  if (macs < kWorthIt) {
    work(0, items);
  } else {
    ET_KERNEL_CHECK(context, executorch::extension::parallel_for(0, items, 1, work), Internal, );
  }
}

const executorch::runtime::Kernel kKernel("specdec::kv_attention.out", kv_attention);
[[maybe_unused]] const Error kRegistered = executorch::runtime::register_kernel(kKernel);

}  // namespace
}  // namespace specdec
