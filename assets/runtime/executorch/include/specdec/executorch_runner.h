// A model run by ExecuTorch on the KV pool's memory, for the engine.
#pragma once

#include <memory>

#include "specdec/executorch_model.h"
#include "specdec/kv_pool.h"
#include "specdec/model_runner.h"

namespace specdec {

// Decoding, verifying and prefill are the same program at different widths T; keys and values are written
// where they stay. A pass allocates nothing here; a failed one poisons the cache until `reset`.
class ExecuTorchRunner final : public ModelRunner {
 public:
  // Loads the program's weights. Model and cache must outlive the runner; the cache's arena is
  // `model.arena(…)`. Throws kBadFile if the file is damaged, kInvalidArgument if the cache is another
  // model's.
  ExecuTorchRunner(ExecuTorchModel& model, KvCache& cache);
  ~ExecuTorchRunner() override;

  std::int32_t vocab_size() const override { return model_.info().head_rows; }
  std::int32_t capacity() const override { return cache_.capacity(); }
  std::span<const Token> head_ids() const override { return model_.info().head_ids; }

  std::span<const float> forward(std::span<const Token> tokens) override;
  void prefill(std::span<const Token> tokens) override;
  void truncate(std::int32_t length) override { cache_.truncate(length); }
  void reset() override { cache_.reset(); }

  // Bytes that activations take, beside weights and the pool.
  std::size_t activation_bytes() const;

 private:
  struct Program;

  void check(std::span<const Token> tokens) const;
  // Runs the program and returns the logits of the last `rows` of its tokens.
  std::span<const float> run(std::span<const Token> tokens, std::size_t rows);

  ExecuTorchModel& model_;
  KvCache& cache_;
  std::unique_ptr<Program> program_;
};

}  // namespace specdec
