// A language model made of hashes: its logits depend on the last three tokens it holds, so a wrong rollback
// shows in the text. It checks the loop's side of the contract and can be told to fail.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "specdec/model_runner.h"

namespace specdec::test {

inline std::uint64_t mix(std::uint64_t h, std::uint64_t value) {
  h = (h ^ value) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

struct MockSettings {
  std::int32_t vocab = 24;
  std::int32_t capacity = 96;
  double noise = 0.0;           // how far it strays from the noiseless model of the same vocabulary
  std::vector<Token> head_ids;  // a reduced head; empty: all of `vocab`
};

class MockRunner : public ModelRunner {
 public:
  explicit MockRunner(MockSettings settings) : settings_(std::move(settings)) {
    const auto& ids = settings_.head_ids;
    rows_ = ids.empty() ? settings_.vocab : static_cast<std::int32_t>(ids.size());
    held_.reserve(static_cast<std::size_t>(settings_.capacity));
    logits_.resize(static_cast<std::size_t>(rows_) * 17);
  }

  // The n-th call from now on fails (0: the next), as an error or as NaN; negative: none.
  void fail_at(int call) { fail_in_ = call; }
  void nan_at(int call) { nan_in_ = call; }
  int calls() const { return calls_; }
  std::span<const Token> held() const { return held_; }

  std::int32_t vocab_size() const override { return rows_; }
  std::int32_t capacity() const override { return settings_.capacity; }
  std::span<const Token> head_ids() const override { return settings_.head_ids; }

  std::span<const float> forward(std::span<const Token> tokens) override {
    check(!tokens.empty() && tokens.size() <= 17, "a pass is 1 to 17 tokens wide");
    const bool nan = nan_in_-- == 0;
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      take(tokens.subspan(row, 1));
      score(
          std::span(logits_).subspan(row * static_cast<std::size_t>(rows_), static_cast<std::size_t>(rows_)));
    }
    call();
    if (nan) std::ranges::fill(logits_, std::numeric_limits<float>::quiet_NaN());
    return std::span<const float>(logits_).first(tokens.size() * static_cast<std::size_t>(rows_));
  }

  void prefill(std::span<const Token> tokens) override {
    take(tokens);
    call();
  }

  void truncate(std::int32_t length) override {
    check(!broken_, "only reset after a failure");
    check(length >= 0 && static_cast<std::size_t>(length) <= held_.size(), "a cache cannot roll forward");
    held_.resize(static_cast<std::size_t>(length));
  }

  void reset() override {
    held_.clear();
    broken_ = false;
  }

 private:
  void take(std::span<const Token> tokens) {
    check(!broken_, "only reset after a failure");
    check(held_.size() + tokens.size() <= static_cast<std::size_t>(settings_.capacity),
          "the context is not exceeded");
    held_.insert(held_.end(), tokens.begin(), tokens.end());
  }

  void call() {
    ++calls_;
    if (fail_in_-- != 0) return;
    broken_ = true;
    throw Error(Status::kModelFailed, "the mock was told to fail");
  }

  void score(std::span<float> row) const {
    std::uint64_t context = 1;
    const std::size_t first = held_.size() > 3 ? held_.size() - 3 : 0;
    for (std::size_t i = first; i < held_.size(); ++i)
      context = mix(context, static_cast<std::uint64_t>(held_[i]));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::uint64_t token =
          settings_.head_ids.empty() ? i : static_cast<std::uint64_t>(settings_.head_ids[i]);
      const double clean = unit(mix(context, token)), noise = unit(mix(mix(context, 77), token));
      row[i] = static_cast<float>(5.0 * (clean + settings_.noise * noise));
    }
  }

  static double unit(std::uint64_t h) { return static_cast<double>(h >> 11) / 9007199254740992.0; }

  MockSettings settings_;
  std::int32_t rows_;
  std::vector<Token> held_;
  std::vector<float> logits_;
  bool broken_ = false;
  int fail_in_ = -1, nan_in_ = -1, calls_ = 0;
};

}  // namespace specdec::test
