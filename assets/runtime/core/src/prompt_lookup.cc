#include <algorithm>
#include <bit>

#include "specdec/drafter.h"
#include "specdec/error.h"

namespace specdec {
namespace {

std::size_t hash(std::span<const Token> ngram) {
  std::uint64_t h = 0xCBF29CE484222325ull ^ ngram.size();
  for (const Token token : ngram) h = (h ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15ull;
  return static_cast<std::size_t>(h ^ (h >> 32));
}

}  // namespace

PromptLookup::PromptLookup(std::int32_t longest, std::int32_t shortest)
    : longest_(static_cast<std::size_t>(longest)), shortest_(static_cast<std::size_t>(shortest)) {
  if (!(1 <= shortest && shortest <= longest && longest <= 64)) {
    throw Error(Status::kInvalidArgument, "n-gram sizes need 1 <= shortest <= longest <= 64");
  }
}

void PromptLookup::begin(std::span<const Token> prompt, std::int32_t longest) {
  const std::size_t tokens = std::max(prompt.size(), static_cast<std::size_t>(std::max(longest, 1)));
  places_.assign(std::bit_ceil(2 * tokens * (longest_ - shortest_ + 1)), Place{});
  limit_ = tokens;
  indexed_ = 0;
}

std::optional<Reason> PromptLookup::propose(const Proposal& proposal, Draft& draft) {
  const auto text = proposal.text;
  if (text.size() > limit_)
    throw Error(Status::kInvalidArgument, "the text grew longer than `begin` was told");
  index(text);
  for (std::size_t n = std::min(longest_, text.size() - 1); n >= shortest_; --n) {
    const Place place = place_of(text, text.last(n));
    if (place.end == 0) continue;
    const auto rest = text.subspan(place.end);
    const auto copied = rest.first(std::min(rest.size(), static_cast<std::size_t>(proposal.k)));
    draft.tokens.assign(copied.begin(), copied.end());
    if (copied.size() == static_cast<std::size_t>(proposal.k)) return std::nullopt;
    break;
  }
  return Reason::kNoMatch;
}

void PromptLookup::index(std::span<const Token> text) {
  // Everything but the last token: an n-gram that ends at the end of the text would match itself.
  for (std::size_t end = indexed_ + 1; end < text.size(); ++end) {
    for (std::size_t n = shortest_; n <= std::min(longest_, end); ++n) {
      place_of(text, text.subspan(end - n, n)) = {static_cast<std::uint32_t>(end),
                                                  static_cast<std::uint32_t>(n)};
    }
  }
  indexed_ = std::max(indexed_, text.size() - 1);
}

PromptLookup::Place& PromptLookup::place_of(std::span<const Token> text, std::span<const Token> ngram) {
  for (std::size_t at = hash(ngram);; ++at) {
    Place& place = places_[at & (places_.size() - 1)];
    if (place.end == 0) return place;
    if (place.n == ngram.size() && std::ranges::equal(text.subspan(place.end - place.n, place.n), ngram))
      return place;
  }
}

}  // namespace specdec
