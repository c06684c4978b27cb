// A Llama decoder in plain C++ for the nano pair: what a model runner has to do, in its simplest form, so
// that whole golden traces can be compared. Float32 numbers, sums in float64; its cache lives in the pool.
#pragma once

#include <string>
#include <vector>

#include "specdec/kv_pool.h"
#include "specdec/model_runner.h"

namespace specdec::test {

struct LlamaShape {
  std::size_t vocab, width, layers, heads, kv_heads, head_dim, inner, positions;
  double rope_theta, norm_eps;
};

// Weights under Hugging Face's names, widened from bfloat16.
struct LlamaWeights {
  explicit LlamaWeights(const std::string& folder);

  struct Layer {
    std::vector<float> attention_norm, q, k, v, out, mlp_norm, gate, up, down;
  };
  LlamaShape shape;
  std::vector<float> embed, norm;  // the head is tied to the embedding
  std::vector<Layer> layers;
  std::vector<Token> head_ids;  // of a reduced head
};

class ReferenceLlama final : public ModelRunner {
 public:
  // `cache` is an arena of this model's shape. Both must outlive this.
  ReferenceLlama(const LlamaWeights& weights, KvCache& cache) : weights_(weights), cache_(cache) {}

  static ArenaSpec arena(const std::string& name, const LlamaWeights& weights, std::int32_t capacity);

  std::int32_t vocab_size() const override;
  std::int32_t capacity() const override { return cache_.capacity(); }
  std::span<const Token> head_ids() const override { return weights_.head_ids; }
  std::span<const float> forward(std::span<const Token> tokens) override;
  void prefill(std::span<const Token> tokens) override { pass(tokens, false); }
  void truncate(std::int32_t length) override { cache_.truncate(length); }
  void reset() override { cache_.reset(); }

 private:
  void pass(std::span<const Token> tokens, bool with_logits);
  void step(Token token, std::size_t position, bool with_logits);
  std::vector<float> attend(const LlamaWeights::Layer& layer, std::int32_t index, const std::vector<float>& x,
                            std::size_t position) const;

  const LlamaWeights& weights_;
  KvCache& cache_;
  std::vector<float> logits_;
};

}  // namespace specdec::test
