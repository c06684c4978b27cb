#include <algorithm>
#include <numeric>

#include "specdec/drafter.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr std::size_t kWidestFeed = 16;  // a longer gap (rounds drafted by others) is filled without logits

std::vector<Token> shared_rows(const ModelRunner& runner, std::int32_t vocab_size) {
  std::vector<Token> rows(runner.head_ids().begin(), runner.head_ids().end());
  if (rows.empty()) {
    rows.resize(static_cast<std::size_t>(runner.vocab_size()));
    std::iota(rows.begin(), rows.end(), 0);
  }
  if (!std::is_sorted(rows.begin(), rows.end()) || (!rows.empty() && rows.front() < 0)) {
    throw Error(Status::kInvalidArgument, "the draft's head ids must be ascending token ids");
  }
  rows.erase(std::lower_bound(rows.begin(), rows.end(), vocab_size), rows.end());
  if (rows.empty()) throw Error(Status::kInvalidArgument, "draft and target share no token");
  return rows;
}

}  // namespace

ModelDrafter::ModelDrafter(ModelRunner& runner, std::int32_t vocab_size)
    : runner_(runner),
      head_ids_(shared_rows(runner, vocab_size)),
      reduced_(head_ids_.size() < static_cast<std::size_t>(vocab_size)),
      narrow_(head_ids_.size()) {
  held_.reserve(static_cast<std::size_t>(runner.capacity()) + 1);
  distribution_.reserve(head_ids_.size());
}

void ModelDrafter::begin(std::span<const Token> prompt, std::int32_t /*longest*/) {
  runner_.reset();
  // The prompt's last token is fed by the first draft.
  const auto taken = prompt.first(std::min(prompt.size() - 1, static_cast<std::size_t>(runner_.capacity())));
  held_.assign(taken.begin(), taken.end());
  agreed_ = held_.size();
  runner_.prefill(held_);
  passes_ = 0;
}

std::optional<Reason> ModelDrafter::propose(const Proposal& proposal, Draft& draft) {
  roll_back(proposal.text);
  const std::int32_t room = runner_.capacity() - static_cast<std::int32_t>(proposal.text.size()) + 1;
  draft.one_hot = proposal.sampling.greedy();
  auto feed = proposal.text.subspan(std::min(held_.size(), proposal.text.size()));
  for (std::int32_t slot = 0; slot < std::min(proposal.k, room); ++slot) {
    const auto logits = next_logits(feed);
    if (proposal.confidence != nullptr && !proposal.confidence->confident(top_probability(logits))) {
      return Reason::kConfidence;
    }
    draft.tokens.push_back(sample(logits, proposal, static_cast<std::size_t>(slot), draft));
    feed = std::span(draft.tokens).last(1);
  }
  return room < proposal.k ? std::optional(Reason::kDraftContext) : std::nullopt;
}

void ModelDrafter::roll_back(std::span<const Token> text) {
  // Compare forwards from the last text that was agreed on. Comparing backwards would stop at a drafted token
  // that happens to equal the text's while one before it was rejected (others may have drafted rounds in
  // between).
  const std::size_t end = std::min(held_.size(), text.size() - 1);  // one token must be left to feed
  std::size_t common = agreed_;
  while (common < end && held_[common] == text[common]) ++common;
  runner_.truncate(static_cast<std::int32_t>(common));
  held_.resize(common);
  agreed_ = common;
}

std::span<const float> ModelDrafter::next_logits(std::span<const Token> feed) {
  const auto last = feed.last(std::min(feed.size(), kWidestFeed));
  const auto gap = feed.first(feed.size() - last.size());
  if (!gap.empty()) runner_.prefill(gap);
  const auto logits = runner_.forward(last);
  held_.insert(held_.end(), feed.begin(), feed.end());
  ++passes_;
  return logits.last(static_cast<std::size_t>(runner_.vocab_size())).first(head_ids_.size());
}

Token ModelDrafter::sample(std::span<const float> logits, const Proposal& proposal, std::size_t slot,
                           Draft& draft) {
  if (draft.one_hot) return head_ids_[static_cast<std::size_t>(argmax(logits))];
  const auto q = reduced_ ? std::span(narrow_) : draft.row(slot);
  distribution_(logits, proposal.sampling, q);
  const double u = proposal.uniforms(proposal.round, static_cast<std::uint32_t>(slot), Purpose::kDraft);
  const auto row = static_cast<std::size_t>(draw(q, u));
  if (reduced_) {
    const auto wide = draft.row(slot);
    std::fill(wide.begin(), wide.end(), 0.0f);
    for (std::size_t i = 0; i < q.size(); ++i) wide[static_cast<std::size_t>(head_ids_[i])] = q[i];
  }
  return head_ids_[row];
}

void FirstMatch::begin(std::span<const Token> prompt, std::int32_t longest) {
  for (Drafter* drafter : drafters_) drafter->begin(prompt, longest);
}

std::optional<Reason> FirstMatch::propose(const Proposal& proposal, Draft& draft) {
  std::optional<Reason> reason;
  for (Drafter* drafter : drafters_) {
    draft.clear();
    reason = drafter->propose(proposal, draft);
    if (!draft.tokens.empty()) break;
  }
  return reason;
}

std::int64_t FirstMatch::passes() const {
  return std::accumulate(drafters_.begin(), drafters_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Drafter* drafter) { return sum + drafter->passes(); });
}

}  // namespace specdec
