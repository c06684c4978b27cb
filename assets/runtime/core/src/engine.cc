#include "specdec/engine.h"

#include <algorithm>
#include <string>

#include "specdec/error.h"

namespace specdec {
namespace {

constexpr std::size_t kPrefillChunk = 256;  // how often a long prompt looks at the cancel flag

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

bool cancelled(const Request& request) {
  return request.cancel != nullptr && request.cancel->load(std::memory_order_relaxed);
}

}  // namespace

void Engine::check(const Request& request) const {
  const auto refuse = [](const std::string& what) { throw Error(Status::kInvalidArgument, what); };
  request.sampling.validate();
  if (request.prompt.empty())
    refuse("the prompt has no tokens: begin with at least the beginning-of-text token");
  if (request.max_new_tokens < 0) refuse("max_new_tokens must be >= 0");
  if (request.drafter != nullptr && request.lookahead == nullptr)
    refuse("a drafter needs a lookahead policy");
  const std::int32_t vocab = target_.vocab_size();
  for (const Token token : request.prompt) {
    if (token < 0 || token >= vocab) {
      refuse("token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab));
    }
  }
  if (request.prompt.size() > static_cast<std::size_t>(target_.capacity())) {
    throw Error(Status::kPromptTooLong, "a prompt of " + std::to_string(request.prompt.size()) +
                                            " tokens does not fit a context of " +
                                            std::to_string(target_.capacity()));
  }
}

Generation Engine::generate(const Request& request) {
  if (poisoned_)
    throw Error(Status::kPoisoned, "an earlier generation failed halfway: reset the engine first");
  check(request);
  poisoned_ = true;  // until this ends well
  begin(request);
  const auto start = Clock::now();
  prefill(request);
  const auto prefilled = Clock::now();
  while (!finished_) {
    if (cancelled(request)) {
      finish(FinishReason::kCancelled);
    } else if (request.drafter == nullptr) {
      plain_round(request);
    } else {
      speculative_round(request);
    }
  }
  poisoned_ = false;
  const std::int64_t draft_passes = request.drafter != nullptr ? request.drafter->passes() : 0;
  return {generated(), finish_reason_, Telemetry::of(trace_, draft_passes), seconds(prefilled - start),
          seconds(Clock::now() - prefilled)};
}

void Engine::begin(const Request& request) {
  const auto vocab = static_cast<std::size_t>(target_.vocab_size());
  const auto space = target_.capacity() - static_cast<std::int32_t>(request.prompt.size());
  room_ = std::min(request.max_new_tokens, space);
  when_full_ = request.max_new_tokens <= space ? FinishReason::kLength : FinishReason::kContext;
  finished_ = false;
  if (room_ == 0) finish(when_full_);

  const bool drafts = request.drafter != nullptr;
  const auto rounds = static_cast<std::size_t>(room_);
  text_.clear();
  text_.reserve(request.prompt.size() + rounds);
  text_.assign(request.prompt.begin(), request.prompt.end());
  prompt_tokens_ = text_.size();
  trace_.clear();
  trace_.reserve(rounds, drafts ? kMaxLookahead : 0);
  draft_.clear();
  draft_.reserve(drafts ? kMaxLookahead : 0, vocab, !request.sampling.greedy());
  feed_.reserve(kMaxLookahead + 1);
  judge_.reserve(vocab);
  uniforms_ = Uniforms(request.seed);
}

void Engine::prefill(const Request& request) {
  target_.reset();
  auto left = request.prompt.first(request.prompt.size() - 1);  // the last one is fed by the first round
  while (!left.empty()) {
    if (cancelled(request)) return finish(FinishReason::kCancelled);
    const auto chunk = left.first(std::min(left.size(), kPrefillChunk));
    target_.prefill(chunk);
    left = left.subspan(chunk.size());
  }
  if (request.drafter != nullptr) {
    request.drafter->begin(request.prompt, static_cast<std::int32_t>(request.prompt.size()) + room_);
  }
}

void Engine::plain_round(const Request& request) {
  const auto logits = target_.forward(std::span<const Token>(text_).last(1));
  const auto index = static_cast<std::uint32_t>(trace_.rounds().size());
  const double u = uniforms_(index, 0, Purpose::kTarget);
  add(request, {0, Reason::kPlain, 0, 0, 0, judge_.choose(logits, request.sampling, u), Kind::kPlain}, {});
}

Lookahead Engine::next_lookahead(const Request& request) const {
  Lookahead next = request.lookahead->next_k();
  next.k = std::min(next.k, kMaxLookahead);
  if (request.k_cap != nullptr) {
    const std::int32_t cap = std::max(request.k_cap->load(std::memory_order_relaxed), 0);
    if (next.k > cap) next = {cap, Reason::kCap};
  }
  // The target adds a token of its own, so one less than what is left is enough.
  if (next.k > room_ - 1) next = {room_ - 1, Reason::kBudget};
  return next;
}

void Engine::speculative_round(const Request& request) {
  const auto index = static_cast<std::uint32_t>(trace_.rounds().size());
  const auto emitted = static_cast<std::uint32_t>(generated().size());
  // 1. How far to look ahead.
  const auto start = Clock::now();
  auto [k, reason] = next_lookahead(request);
  // 2. Draft.
  draft_.clear();
  if (k > 0) {
    const LookaheadPolicy* confidence = request.lookahead->uses_confidence() ? request.lookahead : nullptr;
    const Proposal proposal{text_, k, request.sampling, uniforms_, index, confidence};
    reason = request.drafter->propose(proposal, draft_).value_or(reason);
  }
  const auto drafted = Clock::now();
  // 3. One target pass over the last committed token and all drafted ones.
  feed_.assign(1, text_.back());
  feed_.insert(feed_.end(), draft_.tokens.begin(), draft_.tokens.end());
  const auto logits = target_.forward(feed_);
  // 4. Accept a prefix of the draft, then one token of the target's own.
  const Verdict verdict =
      judge_(logits, draft_, request.verifier, request.sampling, uniforms_, index, emitted);
  // 5. Forget the rejected tokens: the cache holds all of the text but its last token.
  target_.truncate(static_cast<std::int32_t>(text_.size()) + verdict.accepted);
  const auto count = static_cast<std::int32_t>(draft_.tokens.size());
  const Round done{k, reason, 0, count, verdict.accepted, verdict.next, verdict.kind};
  add(request, done, draft_.tokens);
  request.lookahead->observe(
      {count, done.emitted(), reason, seconds(drafted - start), seconds(Clock::now() - start)});
}

void Engine::add(const Request& request, Round round, std::span<const Token> drafted) {
  for (std::int32_t i = 0; i < round.emitted(); ++i) {
    const bool own = i == round.accepted;
    if (emit(request, own ? round.next : drafted[static_cast<std::size_t>(i)]) || own) continue;
    // The text ended among the drafted tokens (or at the last of them): nothing after that was part of it.
    round.drafted = round.accepted = i + 1;
    round.next = -1;
    round.kind = Kind::kStop;
  }
  trace_.add(round, drafted);
}

// Appends one token; returns whether the text goes on after it.
bool Engine::emit(const Request& request, Token token) {
  text_.push_back(token);
  --room_;
  const bool stopped_by_caller = (request.on_token && !request.on_token(token)) || cancelled(request);
  if (std::ranges::find(request.eos_ids, token) != request.eos_ids.end()) {
    finish(FinishReason::kEos);
  } else if (request.stop_when && request.stop_when(generated())) {
    finish(FinishReason::kStop);
  } else if (stopped_by_caller) {
    finish(FinishReason::kCancelled);
  } else if (room_ == 0) {
    finish(when_full_);
  }
  return !finished_;
}

void Engine::finish(FinishReason reason) {
  finished_ = true;
  finish_reason_ = reason;
}

void Engine::reset() {
  target_.reset();
  text_.clear();
  prompt_tokens_ = 0;
  trace_.clear();
  draft_.clear();
  poisoned_ = false;
}

}  // namespace specdec
