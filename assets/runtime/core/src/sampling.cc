#include "specdec/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "specdec/error.h"

namespace specdec {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The nucleus is nearly always among the most likely tokens, and sorting a whole vocabulary costs
// milliseconds.
constexpr std::size_t kCandidates = 1024;

void refuse(const char* name, const char* range, double value) {
  throw Error(Status::kInvalidArgument,
              std::string(name) + " must be " + range + ", got " + std::to_string(value));
}

// Most likely first, ties by the lowest id.
auto by_descending(std::span<const float> values) {
  return [values](Token a, Token b) {
    const float x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

void one_hot(Token token, std::span<float> probabilities) {
  std::fill(probabilities.begin(), probabilities.end(), 0.0f);
  probabilities[static_cast<std::size_t>(token)] = 1.0f;
}

void softmax(std::span<float> values, float largest) {
  double total = 0.0;
  for (float& value : values) {
    value = std::exp(value - largest);
    total += value;
  }
  for (float& value : values) value = static_cast<float>(value / total);
}

void normalise(std::span<float> probabilities) {
  const double total = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (float& p : probabilities) p = static_cast<float>(p / total);
}

}  // namespace

void Sampling::validate() const {
  if (!(std::isfinite(temperature) && temperature >= 0))
    refuse("temperature", "a finite number >= 0", temperature);
  if (top_k < 0) refuse("top-k", ">= 0", top_k);
  if (!(top_p > 0 && top_p <= 1)) refuse("top-p", "in (0, 1]", top_p);
  if (!(min_p >= 0 && min_p <= 1)) refuse("min-p", "in [0, 1]", min_p);
}

Token argmax(std::span<const float> logits) {
  std::size_t best = 0;
  bool nan = std::isnan(logits[0]);
  for (std::size_t i = 1; i < logits.size(); ++i) {
    nan |= std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  if (nan) throw Error(Status::kModelFailed, "the model returned NaN logits");
  return static_cast<Token>(best);
}

void Distribution::reserve(std::size_t vocab_size) { order_.reserve(vocab_size); }

void Distribution::operator()(std::span<const float> logits, const Sampling& sampling,
                              std::span<float> probabilities) {
  const Token best = argmax(logits);
  if (sampling.greedy()) return one_hot(best, probabilities);
  const auto temperature = static_cast<float>(sampling.temperature);
  const float largest = logits[static_cast<std::size_t>(best)] / temperature;
  if (!std::isfinite(largest))
    return one_hot(best, probabilities);  // so cold that it overflows: the limit is greedy

  std::transform(logits.begin(), logits.end(), probabilities.begin(),
                 [temperature](float logit) { return logit / temperature; });
  if (sampling.top_k > 0) keep_top_k(probabilities, static_cast<std::size_t>(sampling.top_k));
  softmax(probabilities, largest);
  if (sampling.top_p < 1) keep_top_p(probabilities, sampling.top_p);
  if (sampling.min_p > 0) {
    const float floor =
        static_cast<float>(sampling.min_p) * *std::max_element(probabilities.begin(), probabilities.end());
    for (float& p : probabilities) p = p < floor ? 0.0f : p;
  }
  normalise(probabilities);
}

void Distribution::keep_top_k(std::span<float> scaled, std::size_t k) {
  if (k >= scaled.size()) return;
  order_.resize(scaled.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(order_.begin(), end, order_.end(), by_descending(scaled));
  std::for_each(end, order_.end(),
                [&](Token token) { scaled[static_cast<std::size_t>(token)] = kMinusInfinity; });
}

void Distribution::keep_top_p(std::span<float> probabilities, double top_p) {
  const auto before = by_descending(probabilities);
  order_.resize(probabilities.size());
  std::iota(order_.begin(), order_.end(), 0);
  double mass = 0.0;
  auto kept = order_.begin();
  while (kept != order_.end() && mass < top_p) {
    // Sort the next batch of most likely tokens; the first one is nearly always enough.
    const auto left = static_cast<std::size_t>(order_.end() - kept);
    const bool all = kept != order_.begin() || left <= kCandidates;
    const auto batch = all ? order_.end() : kept + kCandidates;
    std::partial_sort(kept, batch, order_.end(), before);
    while (kept != batch && mass < top_p) mass += probabilities[static_cast<std::size_t>(*kept++)];
  }
  std::for_each(kept, order_.end(),
                [&](Token token) { probabilities[static_cast<std::size_t>(token)] = 0.0f; });
}

double top_probability(std::span<const float> logits) {
  const float largest = logits[static_cast<std::size_t>(argmax(logits))];
  double total = 0.0;
  for (const float logit : logits) total += std::exp(logit - largest);
  return static_cast<float>(1.0 / total);
}

Token draw(std::span<const float> weights, double uniform) {
  return draw_by(
      weights.size(), [weights](std::size_t i) { return static_cast<double>(weights[i]); }, uniform);
}

}  // namespace specdec
