// What a generation did, round by round: the record that tests, benchmarks and every language share.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "specdec/acceptance.h"

namespace specdec {

// Most tokens drafted in one round. A pass is then at most kMaxLookahead + 1 tokens wide, which bounds every
// buffer.
inline constexpr std::int32_t kMaxLookahead = 16;

// Who decided on k, or why fewer were drafted.
enum class Reason : std::uint8_t {
  kPlain,
  kFixed,
  kBudget,
  kConfidence,
  kNoMatch,
  kGate,
  kDraftContext,
  kCap
};
const char* name(Reason reason);

enum class FinishReason : std::uint8_t { kEos, kStop, kLength, kContext, kCancelled };
const char* name(FinishReason reason);

// One target pass.
struct Round {
  std::int32_t k;  // lookahead asked for, after clipping to the room that was left
  Reason reason;
  std::uint32_t first;    // where its drafted tokens begin in the trace's list of them
  std::int32_t drafted;   // proposed tokens; when the text ends inside them, only those up to the end
  std::int32_t accepted;  // how many of them stand (n)
  Token next;             // the target's own token after them; -1 when the text ended inside the drafted ones
  Kind kind;

  std::int32_t emitted() const { return accepted + (next >= 0 ? 1 : 0); }
};

class Trace {
 public:
  void clear();
  // Sets memory aside for so many rounds of at most `k` drafted tokens.
  void reserve(std::size_t rounds, std::size_t k);
  // Records a round; `drafted` may hold more tokens than the round counts.
  void add(Round round, std::span<const Token> drafted);

  std::span<const Round> rounds() const { return rounds_; }
  std::span<const Token> drafted(const Round& round) const;

 private:
  std::vector<Round> rounds_;
  std::vector<Token> drafted_;
};

// Counters of one generation. Only tokens that were verified and belong to the text's course are counted.
struct Telemetry {
  using PerPosition = std::array<std::int64_t, kMaxLookahead>;

  std::int64_t rounds = 0;              // target passes after the prompt, plain ones too
  std::int64_t drafted = 0;             // tokens proposed
  std::int64_t accepted = 0;            // proposed tokens that stand
  std::int64_t emitted = 0;             // tokens of the text
  std::int64_t target_passes = 0;       // equal to `rounds`; the prompt's own passes are not among them
  std::int64_t draft_passes = 0;        // forward passes of the draft model after the prompt
  std::int32_t positions = 0;           // entries of the lists below that are in use
  PerPosition per_position_drafted{};   // [i] rounds that proposed a token in slot i
  PerPosition per_position_judged{};    // [i] rounds in which slot i was decided
  PerPosition per_position_accepted{};  // [i] rounds in which slot i was accepted

  static Telemetry of(const Trace& trace, std::int64_t draft_passes);
  // Tokens per target pass; 0 before the first pass.
  double tau() const {
    return target_passes == 0 ? 0.0 : static_cast<double>(emitted) / static_cast<double>(target_passes);
  }
};

}  // namespace specdec
