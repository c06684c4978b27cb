#include "specdec/lookahead.h"

#include <algorithm>
#include <string>

#include "specdec/error.h"

namespace specdec {

FixedLookahead::FixedLookahead(std::int32_t k) : k_(k) {
  if (k < 0 || k > kMaxLookahead) {
    throw Error(Status::kInvalidArgument,
                "lookahead K must be 0 to " + std::to_string(kMaxLookahead) + ", got " + std::to_string(k));
  }
}

ConfidenceStop::ConfidenceStop(std::int32_t k, double threshold) : FixedLookahead(k), threshold_(threshold) {
  if (!(threshold >= 0 && threshold <= 1)) {
    throw Error(Status::kInvalidArgument, "the confidence threshold must be in [0, 1]");
  }
}

Costs::Costs(double c, std::vector<std::pair<std::int32_t, double>> v) : c_(c), v_(std::move(v)) {
  std::sort(v_.begin(), v_.end());
  const bool twice = std::adjacent_find(v_.begin(), v_.end(), [](const auto& a, const auto& b) {
                       return a.first == b.first;
                     }) != v_.end();
  const bool sound =
      c >= 0 && std::all_of(v_.begin(), v_.end(), [](const auto& point) { return point.second > 0; });
  if (v_.size() < 2 || v_.front().first != 0 || twice || !sound) {
    throw Error(Status::kInvalidArgument,
                "costs need c >= 0, and v > 0 for K = 0 and for at least one larger K");
  }
}

double Costs::round_cost(std::int32_t drafted) const {
  const auto at_least = std::lower_bound(v_.begin(), v_.end(), std::pair(drafted, 0.0));
  if (at_least != v_.end() && at_least->first == drafted) return drafted * c_ + at_least->second;
  const auto high = at_least == v_.end() ? v_.end() - 1 : at_least;
  const auto low = high - 1;
  const double slope = (high->second - low->second) / (high->first - low->first);
  return drafted * c_ + low->second + slope * (drafted - low->first);
}

BreakEvenGate::BreakEvenGate(std::unique_ptr<LookaheadPolicy> inner, std::optional<Costs> costs,
                             Settings settings)
    : inner_(std::move(inner)),
      costs_(std::move(costs)),
      settings_(settings),
      decay_(1.0 - 1.0 / settings.window),
      rest_(settings.rest),
      plain_left_(costs_ ? 0 : 2) {
  for (const std::int32_t rounds : {settings.window, settings.probe, settings.rest, settings.longest_rest}) {
    if (rounds < 1 || rounds > 1'000'000) {
      throw Error(Status::kInvalidArgument, "a gate's window, probe and rests must be 1 to 1,000,000 rounds");
    }
  }
}

std::optional<double> BreakEvenGate::gain() const {
  return cost_ != 0.0 ? std::optional(tokens_ / cost_) : std::nullopt;
}

Lookahead BreakEvenGate::next_k() { return plain_left_ > 0 ? Lookahead{0, Reason::kGate} : inner_->next_k(); }

void BreakEvenGate::observe_plain(const Outcome& outcome) {
  // The first plain step also warms caches up, so a minimum tells more than a mean.
  plain_seconds_ =
      std::min(outcome.total_seconds, plain_seconds_ > 0 ? plain_seconds_ : outcome.total_seconds);
  if (outcome.reason == Reason::kGate) --plain_left_;
}

void BreakEvenGate::observe(const Outcome& outcome) {
  inner_->observe(outcome);
  if (outcome.drafted == 0) return observe_plain(outcome);
  const double plain = plain_seconds_ > 0 ? plain_seconds_ : outcome.total_seconds;
  const double cost = costs_ ? costs_->round_cost(outcome.drafted) : outcome.total_seconds / plain;
  tokens_ = tokens_ * decay_ + outcome.emitted;
  cost_ = cost_ * decay_ + cost;
  if (++seen_ < settings_.probe || !gain()) return;
  if (*gain() < 1.0) {
    plain_left_ = rest_;
    rest_ = std::min(2 * rest_, settings_.longest_rest);
    seen_ = 0;
    tokens_ = cost_ = 0.0;
  } else if (seen_ >= 4 * settings_.probe) {
    rest_ = settings_.rest;
  }
}

}  // namespace specdec
