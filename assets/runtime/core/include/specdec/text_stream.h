// Text from tokens one at a time. A token may end in the middle of a character; half a character is never
// shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "specdec/sampling.h"

namespace specdec {

class Tokenizer;

// Bytes to valid UTF-8, piece by piece. Invalid input becomes U+FFFD, one for each maximal part of a
// character (Unicode standard, 3.9), as in Python's and Rust's lossy decoders.
class Utf8Stream {
 public:
  // Takes bytes and appends the characters that are now complete.
  void push(std::string_view bytes, std::string& out);
  // Appends what was kept back; a character that never got its last byte becomes U+FFFD.
  void finish(std::string& out);

 private:
  void push(unsigned char byte, std::string& out);

  char pending_[4] = {};
  std::size_t held_ = 0;                    // bytes in `pending_`
  std::size_t wanted_ = 0;                  // bytes of the whole character
  unsigned char low_ = 0x80, high_ = 0xBF;  // range of the next byte
};

// What `push` appended so far plus `finish` is exactly `Tokenizer::decode` of all ids.
class TextStream {
 public:
  // The tokenizer must outlive this.
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  void push(Token id, std::string& out);
  void finish(std::string& out) { utf8_.finish(out); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream utf8_;
};

}  // namespace specdec
