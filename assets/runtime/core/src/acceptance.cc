#include "specdec/acceptance.h"

#include <algorithm>

namespace specdec {
namespace {

Verdict verdict(std::size_t accepted, Token next, std::size_t drafted) {
  const Kind kind = drafted == 0 ? Kind::kPlain : accepted == drafted ? Kind::kBonus : Kind::kCorrection;
  return {static_cast<std::int32_t>(accepted), next, kind};
}

}  // namespace

Judgement accept_or_resample(std::span<const float> p, std::span<const float> q, Token token, double u_accept,
                             double u_resample) {
  const auto drafted = static_cast<std::size_t>(token);
  const auto q_of = [&](std::size_t i) {
    return q.empty() ? (i == drafted ? 1.0 : 0.0) : static_cast<double>(q[i]);
  };
  if (u_accept * q_of(drafted) < static_cast<double>(p[drafted])) return {true, token};

  const auto residual = [&](std::size_t i) { return std::max(static_cast<double>(p[i]) - q_of(i), 0.0); };
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (residual(i) > 0.0) return {false, draw_by(p.size(), residual, u_resample)};
  }
  return {false, draw(p, u_resample)};
}

void Draft::reserve(std::size_t slots, std::size_t vocab, bool with_q) {
  vocab_size = vocab;
  tokens.reserve(slots);
  if (with_q && q.size() < slots * vocab) q.resize(slots * vocab);
}

void Draft::clear() {
  tokens.clear();
  one_hot = true;
}

std::span<const float> Draft::row(std::size_t slot) const {
  return one_hot ? std::span<const float>() : std::span(q).subspan(slot * vocab_size, vocab_size);
}

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kCorrection: return "correction";
    case Kind::kBonus: return "bonus";
    case Kind::kPlain: return "plain";
    case Kind::kStop: return "stop";
  }
  return "";
}

void Judge::reserve(std::size_t vocab_size) {
  distribution_.reserve(vocab_size);
  p_.reserve(vocab_size);
}

std::span<const float> Judge::distribution(std::span<const float> logits, const Sampling& sampling) {
  p_.resize(logits.size());
  distribution_(logits, sampling, p_);
  return p_;
}

Token Judge::choose(std::span<const float> logits, const Sampling& sampling, double uniform) {
  return sampling.greedy() ? argmax(logits) : draw(distribution(logits, sampling), uniform);
}

Verdict Judge::operator()(std::span<const float> logits, const Draft& draft, Verifier verifier,
                          const Sampling& sampling, const Uniforms& uniforms, std::uint32_t round,
                          std::uint32_t emitted) {
  if (!sampling.greedy() && verifier == Verifier::kRejection) {
    return reject(logits, draft, sampling, uniforms, round);
  }
  const std::size_t drafted = draft.tokens.size(), vocab = logits.size() / (drafted + 1);
  for (std::size_t slot = 0;; ++slot) {
    const double u = uniforms(emitted + static_cast<std::uint32_t>(slot), 0, Purpose::kTarget);
    const Token token = choose(logits.subspan(slot * vocab, vocab), sampling, u);
    if (slot == drafted || token != draft.tokens[slot]) return verdict(slot, token, drafted);
  }
}

Verdict Judge::reject(std::span<const float> logits, const Draft& draft, const Sampling& sampling,
                      const Uniforms& uniforms, std::uint32_t round) {
  const std::size_t drafted = draft.tokens.size(), vocab = logits.size() / (drafted + 1);
  for (std::size_t slot = 0;; ++slot) {
    const auto p = distribution(logits.subspan(slot * vocab, vocab), sampling);
    const auto index = static_cast<std::uint32_t>(slot);
    const double u = uniforms(round, index, Purpose::kTarget);
    if (slot == drafted) return verdict(slot, draw(p, u), drafted);
    const double u_accept = uniforms(round, index, Purpose::kAccept);
    const Judgement judged = accept_or_resample(p, draft.row(slot), draft.tokens[slot], u_accept, u);
    if (!judged.accepted) return verdict(slot, judged.token, drafted);
  }
}

}  // namespace specdec
