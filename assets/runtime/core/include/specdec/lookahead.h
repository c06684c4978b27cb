// How far to look ahead: policies that choose K for each round. Golden vectors: assets/golden/policies.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "specdec/trace.h"

namespace specdec {

struct Lookahead {
  std::int32_t k;
  Reason reason;
};

// What came of a round, and the seconds that it took: drafting alone, and all of it.
struct Outcome {
  std::int32_t drafted;
  std::int32_t emitted;
  Reason reason;
  double draft_seconds;
  double total_seconds;
};

class LookaheadPolicy {
 public:
  virtual ~LookaheadPolicy() = default;
  virtual Lookahead next_k() = 0;
  // Whether `confident` is to be asked before each drafted token (it costs a softmax over the draft's
  // vocabulary).
  virtual bool uses_confidence() const { return false; }
  // Whether to draft one more token, given the draft's largest probability for it.
  virtual bool confident(double /*top_probability*/) const { return true; }
  virtual void observe(const Outcome& /*outcome*/) {}
};

// The same K every round; 0 is plain decoding.
class FixedLookahead : public LookaheadPolicy {
 public:
  explicit FixedLookahead(std::int32_t k);
  Lookahead next_k() override { return {k_, Reason::kFixed}; }

 private:
  std::int32_t k_;
};

// Up to K tokens, but none that the draft itself is unsure of. The decision uses the draft's distribution,
// never the token drawn from it: dropping tokens by their value would bias the output.
class ConfidenceStop final : public FixedLookahead {
 public:
  ConfidenceStop(std::int32_t k, double threshold);
  bool uses_confidence() const override { return true; }
  bool confident(double top_probability) const override { return top_probability >= threshold_; }

 private:
  double threshold_;
};

// Costs of drafting and verifying, in target steps: one draft step c, and v(K) of one target pass over K
// drafted tokens, for K = 0 and at least one more.
class Costs {
 public:
  Costs(double c, std::vector<std::pair<std::int32_t, double>> v);
  // Cost of a round with so many drafted tokens; between and beyond the measured K along a straight line.
  double round_cost(std::int32_t drafted) const;

 private:
  double c_;
  std::vector<std::pair<std::int32_t, double>> v_;  // by ascending K
};

// Turns speculation off while it does not pay, and looks again later. The gain is tokens per target pass over
// the cost of a round in plain steps. Without given costs it times the rounds, running a few plainly first.
// Averages decay over `window` rounds. After `probe` rounds with a gain below 1 it closes for `rest` plain
// rounds; each probe that fails doubles the rest, up to `longest_rest`.
class BreakEvenGate final : public LookaheadPolicy {
 public:
  struct Settings {
    std::int32_t window = 16;
    std::int32_t probe = 8;
    std::int32_t rest = 32;
    std::int32_t longest_rest = 512;
  };

  BreakEvenGate(std::unique_ptr<LookaheadPolicy> inner, std::optional<Costs> costs, Settings settings);

  Lookahead next_k() override;
  bool uses_confidence() const override { return inner_->uses_confidence(); }
  bool confident(double top_probability) const override { return inner_->confident(top_probability); }
  void observe(const Outcome& outcome) override;
  // Measured speed relative to plain decoding; nothing before anything was measured.
  std::optional<double> gain() const;

 private:
  void observe_plain(const Outcome& outcome);

  std::unique_ptr<LookaheadPolicy> inner_;
  std::optional<Costs> costs_;
  Settings settings_;
  double decay_;
  std::int32_t rest_, plain_left_, seen_ = 0;
  double tokens_ = 0.0, cost_ = 0.0;
  double plain_seconds_ = 0.0;  // 0: no plain round was timed yet
};

}  // namespace specdec
