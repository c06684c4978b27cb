// Accepting or rejecting drafted tokens without changing what the target would have said.
//
// Lossless rejection sampling is from Leviathan et al., "Fast inference from transformers via speculative
// decoding" (2022), and Chen et al., "Accelerating large language model decoding with speculative sampling"
// (2023). p is the target's distribution, q the draft's. Golden vectors: assets/golden/acceptance.json and
// verifiers.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "specdec/philox.h"
#include "specdec/sampling.h"

namespace specdec {

struct Judgement {
  bool accepted;
  Token token;  // the drafted one or its replacement
};

// Judges one drafted token; the token returned is distributed exactly as p [V], whatever q was. Accepts with
// probability min(1, p[token] / q[token]); on rejection draws from the residual max(p - q, 0), which holds
// just the mass that acceptance left out. If rounding leaves no residual, p stands in. An empty `q` is
// one-hot on `token`.
Judgement accept_or_resample(std::span<const float> p, std::span<const float> q, Token token, double u_accept,
                             double u_resample);

// What a drafter proposes in one round: K tokens and, unless they are argmaxes or copies, the q each was
// drawn from.
struct Draft {
  std::vector<Token> tokens;
  std::vector<float> q;        // [slots, V] row by row; the first `tokens.size()` rows count
  std::size_t vocab_size = 0;  // V
  bool one_hot = true;         // q is one-hot on each token, and the rows above are not used

  // Sets memory aside: `slots` tokens and, if `with_q`, as many rows of q.
  void reserve(std::size_t slots, std::size_t vocab, bool with_q);
  void clear();
  // Row [V] of one slot to be written by the drafter.
  std::span<float> row(std::size_t slot) { return std::span(q).subspan(slot * vocab_size, vocab_size); }
  // The same to read; empty stands for one-hot.
  std::span<const float> row(std::size_t slot) const;
};

enum class Kind : std::uint8_t { kCorrection, kBonus, kPlain, kStop };
const char* name(Kind kind);

// How many drafted tokens stand, and the one token of the target's own that follows them.
struct Verdict {
  std::int32_t accepted;
  Token next;
  Kind kind;
};

enum class Verifier : std::uint8_t {
  kRejection,  // speculative sampling
  kMatch,      // the target draws its own token at each slot: same seed, same text, whatever the draft
};

// Turns one target pass over K drafted tokens into n accepted tokens and one more.
class Judge {
 public:
  void reserve(std::size_t vocab_size);

  // `logits` [K+1, V]: row i scores the token after the first i drafted ones. `round` counts target passes
  // from 0, `emitted` the tokens before this round. At temperature 0 both verifiers are plain comparison with
  // the argmax.
  Verdict operator()(std::span<const float> logits, const Draft& draft, Verifier verifier,
                     const Sampling& sampling, const Uniforms& uniforms, std::uint32_t round,
                     std::uint32_t emitted);

  // One token from one row [V]: plain decoding's step.
  Token choose(std::span<const float> logits, const Sampling& sampling, double uniform);

 private:
  Verdict reject(std::span<const float> logits, const Draft& draft, const Sampling& sampling,
                 const Uniforms& uniforms, std::uint32_t round);
  std::span<const float> distribution(std::span<const float> logits, const Sampling& sampling);

  Distribution distribution_;
  std::vector<float> p_;
};

}  // namespace specdec
