#include "specdec/trace.h"

#include <algorithm>

namespace specdec {

const char* name(Reason reason) {
  switch (reason) {
    case Reason::kPlain: return "plain";
    case Reason::kFixed: return "fixed";
    case Reason::kBudget: return "budget";
    case Reason::kConfidence: return "confidence";
    case Reason::kNoMatch: return "no match";
    case Reason::kGate: return "gate";
    case Reason::kDraftContext: return "draft context";
    case Reason::kCap: return "cap";
  }
  return "";
}

const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos: return "eos";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "";
}

void Trace::clear() {
  rounds_.clear();
  drafted_.clear();
}

void Trace::reserve(std::size_t rounds, std::size_t k) {
  rounds_.reserve(rounds);
  drafted_.reserve(rounds * k);
}

void Trace::add(Round round, std::span<const Token> drafted) {
  round.first = static_cast<std::uint32_t>(drafted_.size());
  const auto kept = drafted.first(static_cast<std::size_t>(round.drafted));
  drafted_.insert(drafted_.end(), kept.begin(), kept.end());
  rounds_.push_back(round);
}

std::span<const Token> Trace::drafted(const Round& round) const {
  return std::span(drafted_).subspan(round.first, static_cast<std::size_t>(round.drafted));
}

Telemetry Telemetry::of(const Trace& trace, std::int64_t draft_passes) {
  Telemetry t;
  const auto count = [](PerPosition& slots, std::int32_t n) {
    for (std::int32_t slot = 0; slot < n; ++slot) ++slots[static_cast<std::size_t>(slot)];
  };
  for (const Round& round : trace.rounds()) {
    ++t.rounds;
    t.drafted += round.drafted;
    t.accepted += round.accepted;
    t.emitted += round.emitted();
    t.positions = std::max(t.positions, round.drafted);
    count(t.per_position_drafted, round.drafted);
    count(t.per_position_judged, std::min(round.accepted + 1, round.drafted));
    count(t.per_position_accepted, round.accepted);
  }
  t.target_passes = t.rounds;
  t.draft_passes = draft_passes;
  return t;
}

}  // namespace specdec
