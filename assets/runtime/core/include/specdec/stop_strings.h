// Ends a text when its decoded form contains one of the given strings, however tokens cut it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "specdec/text_stream.h"
#include "specdec/tokenizer.h"

namespace specdec {

// A `Request::stop_when` of one generation: it remembers what it has seen.
class StopStrings {
 public:
  // The tokenizer must outlive this. Throws kInvalidArgument if a string is empty.
  StopStrings(const Tokenizer& tokenizer, std::vector<std::string> stops, bool skip_special);

  // Whether the text of all generated tokens holds a stop string; called after each token.
  bool operator()(std::span<const Token> generated);

 private:
  TextStream stream_;
  std::vector<std::string> stops_;
  std::size_t longest_ = 0;
  std::size_t seen_ = 0;  // tokens taken in
  std::string tail_;      // end of the text, as much as a stop string may still begin in
};

}  // namespace specdec
