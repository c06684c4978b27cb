// Cutting text into the words that byte-level BPE works on: the regular expressions of the models' tokenizers
// as hand-written scanners, exact to the character.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "specdec/json.h"

namespace specdec {

// What the patterns ask of a character.
enum class CharClass : std::uint8_t {
  kOther,
  kLetter,     // \p{L}
  kNumber,     // \p{N}
  kSpace,      // \s
  kNewNumber,  // a number for `Digits`, but not for the patterns (their Unicode version is older)
};
CharClass char_class(std::uint32_t code_point);

struct Char {
  std::uint32_t code_point;
  std::uint32_t offset;  // of its first byte in the text
  CharClass kind;
};

// The characters of UTF-8 text, and one more at the end with the text's length as offset. Throws
// kInvalidArgument if it is not valid UTF-8 (Unicode standard, table 3-7).
std::vector<Char> decode_utf8(std::string_view text);

class PreTokenizer {
 public:
  // Reads the `pre_tokenizer` of a tokenizer.json. Known: GPT-2's pattern (SmolLM2 and many more), with or
  // without each digit cut out first, and the pattern of Llama 3 and Qwen 2. Throws kBadFile for any other.
  static PreTokenizer from_json(const Json& json);

  // The words of a text, in order; together they are the text.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  enum class Pattern : std::uint8_t { kGpt2, kLlama3 };

  Pattern pattern_ = Pattern::kGpt2;
  bool digits_apart_ = false;
  std::size_t longest_number_ = 3;  // of Llama 3's pattern: 3 there, 1 in Qwen 2
};

}  // namespace specdec
