// A model with its KV cache: all that the decoding loop knows of a model.
#pragma once

#include <cstdint>
#include <span>

#include "specdec/sampling.h"

namespace specdec {

// The contract of a target or draft: score tokens that follow the ones held, and forget the last ones. Any
// method may throw Error; after that only `reset` may be called.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual std::int32_t vocab_size() const = 0;  // V, the width of the logits: the head's rows
  virtual std::int32_t capacity() const = 0;    // most tokens it can hold
  // Row r of a reduced head is the logit of token head_ids()[r], ascending; empty: row r is token r.
  virtual std::span<const Token> head_ids() const { return {}; }

  // Appends T tokens and returns their next-token logits [T, V], valid until the next call. T is 1 to 17
  // (kMaxLookahead + 1).
  virtual std::span<const float> forward(std::span<const Token> tokens) = 0;
  // Appends any number of tokens whose logits nobody needs.
  virtual void prefill(std::span<const Token> tokens) = 0;
  // Forgets everything from position `length` on; O(1).
  virtual void truncate(std::int32_t length) = 0;
  // Forgets everything, also a failed step.
  virtual void reset() = 0;
};

}  // namespace specdec
