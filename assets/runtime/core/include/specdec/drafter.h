// Where candidate tokens come from: a small model, the text itself, or the first of several that has an idea.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "specdec/acceptance.h"
#include "specdec/lookahead.h"
#include "specdec/model_runner.h"
#include "specdec/philox.h"

namespace specdec {

// What the loop wants drafted.
struct Proposal {
  std::span<const Token> text;  // prompt and text so far, all committed; the draft follows the last of these
  std::int32_t k;               // most tokens to propose
  const Sampling& sampling;     // applied to the draft's own distribution, exactly as to the target's
  const Uniforms& uniforms;
  std::uint32_t round;
  const LookaheadPolicy* confidence = nullptr;  // asked before each token, if not null
};

// Proposes up to K tokens a round. A drafter keeps its state in step with the text by comparing: what it
// holds and the text does not is rolled back when it is next asked. The loop never tells it what was
// accepted, so it cannot be told wrongly.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Starts a new text of at most `longest` tokens: forgets the old one and takes in the prompt.
  virtual void begin(std::span<const Token> prompt, std::int32_t longest) = 0;
  // Fills `draft` (which is empty) and returns the reason if it is shorter than asked.
  virtual std::optional<Reason> propose(const Proposal& proposal, Draft& draft) = 0;
  // Forward passes made since `begin`.
  virtual std::int64_t passes() const { return 0; }
};

// Runs the draft model K times, one token each, rolling its cache back to the text first. The draft's
// vocabulary may be a subset of the target's (a reduced head) or padded differently: q is zero outside the
// common part.
class ModelDrafter final : public Drafter {
 public:
  // `vocab_size` is the target's. The runner must outlive this.
  ModelDrafter(ModelRunner& runner, std::int32_t vocab_size);

  void begin(std::span<const Token> prompt, std::int32_t longest) override;
  std::optional<Reason> propose(const Proposal& proposal, Draft& draft) override;
  std::int64_t passes() const override { return passes_; }

 private:
  void roll_back(std::span<const Token> text);
  std::span<const float> next_logits(std::span<const Token> feed);
  Token sample(std::span<const float> logits, const Proposal& proposal, std::size_t slot, Draft& draft);

  ModelRunner& runner_;
  std::vector<Token> head_ids_;  // row -> token, for the rows that the target knows
  bool reduced_;
  std::vector<Token> held_;    // the tokens whose keys and values are in the cache
  std::size_t agreed_ = 0;     // how many of them are known to be the text's
  std::vector<float> narrow_;  // q over the head's rows
  Distribution distribution_;
  std::int64_t passes_ = 0;
};

// Proposes the continuation of the most recent earlier occurrence of the text's last n tokens, longest n
// first (prompt lookup decoding, Saxena, 2023). Golden vectors: assets/golden/lookup.json.
class PromptLookup final : public Drafter {
 public:
  explicit PromptLookup(std::int32_t longest = 3, std::int32_t shortest = 2);

  void begin(std::span<const Token> prompt, std::int32_t longest) override;
  std::optional<Reason> propose(const Proposal& proposal, Draft& draft) override;

 private:
  // Where an n-gram last ended in the text; 0 marks an empty place.
  struct Place {
    std::uint32_t end = 0;
    std::uint32_t n = 0;
  };

  void index(std::span<const Token> text);
  Place& place_of(std::span<const Token> text, std::span<const Token> ngram);

  std::size_t longest_, shortest_;
  std::size_t limit_ = 0;      // tokens that `places_` has room for
  std::vector<Place> places_;  // open addressing; a power of two, at most half full
  std::size_t indexed_ = 0;
};

// Asks each drafter in turn and takes the first draft that is not empty: lookup first, a model where it is
// silent.
class FirstMatch final : public Drafter {
 public:
  // Cheapest first. They must outlive this.
  explicit FirstMatch(std::vector<Drafter*> drafters) : drafters_(std::move(drafters)) {}

  void begin(std::span<const Token> prompt, std::int32_t longest) override;
  std::optional<Reason> propose(const Proposal& proposal, Draft& draft) override;
  std::int64_t passes() const override;

 private:
  std::vector<Drafter*> drafters_;
};

}  // namespace specdec
