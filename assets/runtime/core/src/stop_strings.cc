#include "specdec/stop_strings.h"

#include <algorithm>

#include "specdec/error.h"

namespace specdec {

StopStrings::StopStrings(const Tokenizer& tokenizer, std::vector<std::string> stops, bool skip_special)
    : stream_(tokenizer, skip_special), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw Error(Status::kInvalidArgument, "a stop string must not be empty");
    longest_ = std::max(longest_, stop.size());
  }
  tail_.reserve(longest_ + 256);
}

bool StopStrings::operator()(std::span<const Token> generated) {
  bool found = false;
  for (; seen_ < generated.size(); ++seen_) {
    stream_.push(generated[seen_], tail_);
    found |=
        std::ranges::any_of(stops_, [&](const std::string& stop) { return tail_.find(stop) != tail_.npos; });
    if (tail_.size() >= longest_) tail_.erase(0, tail_.size() + 1 - std::max<std::size_t>(longest_, 1));
  }
  return found;
}

}  // namespace specdec
