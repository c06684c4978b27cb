// From logits to ONE float32 distribution, the same way for target and draft.
//
// Losslessness needs the q that a draft token is drawn from and the q in the acceptance ratio to be the same
// numbers, and p to have been processed exactly like q. So there is one function, called once per model and
// position. Golden vectors: assets/golden/processors.json and draw.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specdec {

using Token = std::int32_t;

// How tokens are chosen. The processors apply in field order; the defaults mean greedy decoding.
struct Sampling {
  double temperature = 0.0;  // logits are divided by it; 0 puts all mass on the largest logit
  std::int32_t top_k = 0;    // keep the k most likely tokens; 0 keeps all
  double top_p = 1.0;        // keep the smallest set of most likely tokens whose mass reaches it; 1 keeps all
  double min_p = 0.0;  // drop tokens less likely than this fraction of the most likely one; 0 drops none

  bool greedy() const { return temperature == 0.0; }
  // Throws kInvalidArgument if a field is outside its range.
  void validate() const;
};

// The lowest index of the largest logit. Throws kModelFailed if a logit is NaN.
Token argmax(std::span<const float> logits);

// Turns rows of logits into distributions. It keeps scratch memory, so that rows after the first allocate
// nothing.
class Distribution {
 public:
  // Sets aside what rows of this width need.
  void reserve(std::size_t vocab_size);

  // Writes the probabilities [V] that tokens are drawn from: temperature, top-k, top-p, min-p, normalised;
  // ties at a cut keep the lowest ids. `logits` [V] may hold -inf. Throws kModelFailed if a logit is NaN.
  void operator()(std::span<const float> logits, const Sampling& sampling, std::span<float> probabilities);

 private:
  void keep_top_k(std::span<float> scaled, std::size_t k);
  void keep_top_p(std::span<float> probabilities, double top_p);

  std::vector<Token> order_;
};

// The draft's largest probability at temperature 1 without processors: what a confidence stop asks for.
double top_probability(std::span<const float> logits);

// The token that `uniform` in [0, 1) picks: inverse CDF over ascending ids, sums in float64. `weight(i)` is
// the non-negative float64 weight of token i of `size`; they need not sum to one but must not all be zero.
template <typename Weight>
Token draw_by(std::size_t size, Weight weight, double uniform) {
  double total = 0.0;
  for (std::size_t i = 0; i < size; ++i) total += weight(i);
  const double wanted = uniform * total;
  double mass = 0.0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const double w = weight(i);
    mass += w;
    if (mass > wanted) return static_cast<Token>(i);
    if (w > 0.0) last = i;
  }
  return static_cast<Token>(last);  // uniform * total rounded up to total
}

// `draw_by` over a row of float32 weights [V].
Token draw(std::span<const float> weights, double uniform);

}  // namespace specdec
