// The decoding loop. It knows only ids: tokens in, tokens out; what a token means is the tokenizer's
// business.
//
// At temperature 0 speculative decoding gives the tokens of plain decoding; otherwise tokens of the same
// distribution (Leviathan et al., 2022; Chen et al., 2023). Golden vectors: assets/golden/traces.json.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "specdec/acceptance.h"
#include "specdec/drafter.h"
#include "specdec/lookahead.h"
#include "specdec/model_runner.h"
#include "specdec/trace.h"

namespace specdec {

// What one generation is to do. What it points to must live until `generate` returns.
struct Request {
  std::span<const Token> prompt;         // at least one token
  Sampling sampling;                     // default: greedy
  std::int32_t max_new_tokens = 128;     // exactly so many, unless the text ends sooner
  std::span<const Token> eos_ids;        // tokens that end the text (they are part of it)
  std::uint64_t seed = 0;                // randomness is a function of it alone
  Drafter* drafter = nullptr;            // null: plain decoding, one target pass per token
  LookaheadPolicy* lookahead = nullptr;  // chooses K each round; needed if there is a drafter
  Verifier verifier = Verifier::kRejection;

  // Called with each token as it is decided; false cancels.
  std::function<bool(Token)> on_token;
  // Asked after each token with all generated ones; true ends the text.
  std::function<bool(std::span<const Token>)> stop_when;
  // Set by any thread to cancel: looked at between prefill chunks, rounds and tokens.
  const std::atomic<bool>* cancel = nullptr;
  // Upper limit of K from outside (the thermal governor), read before each round.
  const std::atomic<std::int32_t>* k_cap = nullptr;
};

// The result of one generation.
struct Generation {
  std::span<const Token>
      tokens;  // generated ids, an end-of-text id included; valid until the next generation
  FinishReason finish_reason = FinishReason::kLength;
  Telemetry telemetry;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;  // everything after the prompt
};

// Runs generations on one target. Everything a generation needs is set aside before its first round: rounds
// allocate nothing.
//
// After an error in the middle of a generation the engine is poisoned, since the model's cache may hold half
// a step: every call but `reset` throws kPoisoned. Bad arguments are found before anything is touched and do
// not poison.
class Engine {
 public:
  // The runner must outlive the engine.
  explicit Engine(ModelRunner& target) : target_(target) {}

  Generation generate(const Request& request);

  // The rounds of the last generation.
  const Trace& trace() const { return trace_; }
  bool poisoned() const { return poisoned_; }
  // Returns to the state just after construction, whatever happened before.
  void reset();

 private:
  using Clock = std::chrono::steady_clock;

  void check(const Request& request) const;
  void begin(const Request& request);
  void prefill(const Request& request);
  void plain_round(const Request& request);
  void speculative_round(const Request& request);
  Lookahead next_lookahead(const Request& request) const;
  void add(const Request& request, Round round, std::span<const Token> drafted);
  bool emit(const Request& request, Token token);
  void finish(FinishReason reason);

  std::span<const Token> generated() const { return std::span<const Token>(text_).subspan(prompt_tokens_); }

  ModelRunner& target_;
  bool poisoned_ = false;

  // Of the running generation.
  Uniforms uniforms_{0};
  std::vector<Token> text_;  // prompt and generated tokens
  std::size_t prompt_tokens_ = 0;
  std::int32_t room_ = 0;                           // tokens that may still be generated
  FinishReason when_full_ = FinishReason::kLength;  // why the text ends when there is no room left
  FinishReason finish_reason_ = FinishReason::kLength;
  bool finished_ = false;
  Trace trace_;
  Draft draft_;
  Judge judge_;
  std::vector<Token> feed_;  // the last committed token and the drafted ones
};

}  // namespace specdec
