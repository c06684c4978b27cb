#include "reference_llama.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "specdec/json.h"

namespace specdec::test {
namespace {

using Row = std::vector<float>;

// Reads tensors out of a safetensors file: 8 bytes of length, a JSON header, then the bytes.
class Safetensors {
 public:
  explicit Safetensors(const std::string& path) : content_(read_file(path)) {
    std::uint64_t length = 0;
    std::memcpy(&length, content_.data(), sizeof length);
    header_ = Json::parse(std::string_view(content_).substr(sizeof length, length));
    data_ = std::string_view(content_).substr(sizeof length + length);
  }

  bool has(const std::string& name) const { return header_.find(name) != nullptr; }

  template <typename Stored>
  std::vector<Stored> raw(const std::string& name) const {
    const auto& range = header_.at(name).at("data_offsets").array();
    const auto begin = static_cast<std::size_t>(range[0].integer()),
               end = static_cast<std::size_t>(range[1].integer());
    std::vector<Stored> values((end - begin) / sizeof(Stored));
    std::memcpy(values.data(), data_.data() + begin, end - begin);
    return values;
  }

  Row bfloat16(const std::string& name) const {
    Row values;
    for (const std::uint16_t bits : raw<std::uint16_t>(name)) {
      values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
    }
    return values;
  }

 private:
  std::string content_;
  std::string_view data_;
  Json header_;
};

double dot(const float* a, const float* b, std::size_t size) {
  double sum = 0.0;
  for (std::size_t i = 0; i < size; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// weight [rows, x.size()] times x.
Row multiply(const Row& weight, const Row& x) {
  Row y(weight.size() / x.size());
  for (std::size_t r = 0; r < y.size(); ++r)
    y[r] = static_cast<float>(dot(&weight[r * x.size()], x.data(), x.size()));
  return y;
}

Row rms_norm(const Row& x, const Row& gain, double eps) {
  const double mean = dot(x.data(), x.data(), x.size()) / static_cast<double>(x.size());
  const double scale = 1.0 / std::sqrt(mean + eps);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i] * scale * gain[i]);
  return y;
}

void add(Row& x, const Row& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// Rotates one head in place; the halves of a head are the rotated pair.
void rotate(float* head, std::size_t width, std::size_t position, double theta) {
  const std::size_t half = width / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(width);
    const double angle = static_cast<double>(position) * std::pow(theta, exponent);
    const double a = head[i], b = head[i + half];
    head[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
    head[i + half] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
  }
}

float* floats(std::span<std::byte> bytes) { return reinterpret_cast<float*>(bytes.data()); }

}  // namespace

LlamaWeights::LlamaWeights(const std::string& folder) {
  const Json config = Json::read(folder + "/config.json");
  const auto size = [&](const char* key) { return static_cast<std::size_t>(config.at(key).integer()); };
  shape = {size("vocab_size"),
           size("hidden_size"),
           size("num_hidden_layers"),
           size("num_attention_heads"),
           size("num_key_value_heads"),
           size("head_dim"),
           size("intermediate_size"),
           size("max_position_embeddings"),
           config.at("rope_theta").number(),
           config.at("rms_norm_eps").number()};
  const Safetensors file(folder + "/model.safetensors");
  embed = file.bfloat16("model.embed_tokens.weight");
  norm = file.bfloat16("model.norm.weight");
  for (std::size_t i = 0; i < shape.layers; ++i) {
    const auto take = [&](const char* part) {
      return file.bfloat16("model.layers." + std::to_string(i) + "." + part + ".weight");
    };
    layers.push_back({take("input_layernorm"), take("self_attn.q_proj"), take("self_attn.k_proj"),
                      take("self_attn.v_proj"), take("self_attn.o_proj"), take("post_attention_layernorm"),
                      take("mlp.gate_proj"), take("mlp.up_proj"), take("mlp.down_proj")});
  }
  if (file.has("specdec.head_ids")) head_ids = file.raw<Token>("specdec.head_ids");
}

ArenaSpec ReferenceLlama::arena(const std::string& name, const LlamaWeights& weights, std::int32_t capacity) {
  const LlamaShape& s = weights.shape;
  return {name, static_cast<std::int32_t>(s.layers), static_cast<std::int32_t>(s.kv_heads),
          std::min(capacity, static_cast<std::int32_t>(s.positions)), static_cast<std::int32_t>(s.head_dim)};
}

std::int32_t ReferenceLlama::vocab_size() const {
  return static_cast<std::int32_t>(weights_.head_ids.empty() ? weights_.shape.vocab
                                                             : weights_.head_ids.size());
}

std::span<const float> ReferenceLlama::forward(std::span<const Token> tokens) {
  logits_.clear();
  pass(tokens, true);
  return logits_;
}

void ReferenceLlama::pass(std::span<const Token> tokens, bool with_logits) {
  const auto count = static_cast<std::int32_t>(tokens.size());
  auto position = static_cast<std::size_t>(cache_.begin(count));
  for (const Token token : tokens) step(token, position++, with_logits);
  cache_.commit(count);
}

void ReferenceLlama::step(Token token, std::size_t position, bool with_logits) {
  const LlamaShape& s = weights_.shape;
  const float* embedding = &weights_.embed[static_cast<std::size_t>(token) * s.width];
  Row x(embedding, embedding + s.width);
  for (std::size_t i = 0; i < s.layers; ++i) {
    const auto& layer = weights_.layers[i];
    add(x,
        attend(layer, static_cast<std::int32_t>(i), rms_norm(x, layer.attention_norm, s.norm_eps), position));
    const Row h = rms_norm(x, layer.mlp_norm, s.norm_eps);
    Row gate = multiply(layer.gate, h);
    const Row up = multiply(layer.up, h);
    for (std::size_t j = 0; j < gate.size(); ++j) gate[j] = gate[j] / (1.0f + std::exp(-gate[j])) * up[j];
    add(x, multiply(layer.down, gate));
  }
  if (!with_logits) return;
  const Row h = rms_norm(x, weights_.norm, s.norm_eps);
  const auto rows = static_cast<std::size_t>(vocab_size());
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t id = weights_.head_ids.empty() ? r : static_cast<std::size_t>(weights_.head_ids[r]);
    logits_.push_back(static_cast<float>(dot(&weights_.embed[id * s.width], h.data(), s.width)));
  }
}

Row ReferenceLlama::attend(const LlamaWeights::Layer& layer, std::int32_t index, const Row& x,
                           std::size_t position) const {
  const LlamaShape& s = weights_.shape;
  const std::size_t e = s.head_dim, row = cache_.layout().head_stride / sizeof(float);
  float *keys = floats(cache_.keys(index)), *values = floats(cache_.values(index));
  Row q = multiply(layer.q, x), k = multiply(layer.k, x);
  const Row v = multiply(layer.v, x);
  for (std::size_t g = 0; g < s.kv_heads; ++g) {
    rotate(&k[g * e], e, position, s.rope_theta);
    std::copy_n(&k[g * e], e, keys + g * row + position * e);
    std::copy_n(&v[g * e], e, values + g * row + position * e);
  }
  Row out(s.heads * e);
  std::vector<double> weights(position + 1);
  for (std::size_t h = 0; h < s.heads; ++h) {
    rotate(&q[h * e], e, position, s.rope_theta);
    const std::size_t g = h / (s.heads / s.kv_heads);
    double largest = -1e300, total = 0.0;
    for (std::size_t t = 0; t <= position; ++t) {
      weights[t] = dot(&q[h * e], keys + g * row + t * e, e) / std::sqrt(static_cast<double>(e));
      largest = std::max(largest, weights[t]);
    }
    for (double& w : weights) total += w = std::exp(w - largest);
    for (std::size_t i = 0; i < e; ++i) {
      double sum = 0.0;
      for (std::size_t t = 0; t <= position; ++t) sum += weights[t] * values[g * row + t * e + i];
      out[h * e + i] = static_cast<float>(sum / total);
    }
  }
  return multiply(layer.out, out);
}

}  // namespace specdec::test
