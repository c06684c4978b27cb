#include "specdec/pretokenizer.h"

#include <algorithm>
#include <array>
#include <string>

#include "specdec/error.h"
#include "unicode_tables.h"
#include "utf8_lead.h"

namespace specdec {
namespace {

constexpr std::uint32_t kLongS = 0x17F;  // the only other character that folds to a letter of a contraction

using Chars = const std::vector<Char>&;

// The scanners read characters [at, end) of one piece, and see nothing beyond it.
class Scanner {
 public:
  Scanner(Chars chars, std::size_t end) : chars_(chars), end_(end) {}

  bool is(std::size_t at, CharClass kind) const { return at < end_ && chars_[at].kind == kind; }
  bool is(std::size_t at, std::uint32_t code_point) const {
    return at < end_ && chars_[at].code_point == code_point;
  }
  bool is_newline(std::size_t at) const { return is(at, '\r') || is(at, '\n'); }
  // Neither letter, number nor space.
  bool is_mark(std::size_t at) const { return is(at, CharClass::kOther) || is(at, CharClass::kNewNumber); }

  std::size_t skip(std::size_t at, CharClass kind, std::size_t most = SIZE_MAX) const {
    const std::size_t start = at;
    while (at - start < most && is(at, kind)) ++at;
    return at;
  }

  std::size_t skip_marks(std::size_t at) const {
    while (is_mark(at)) ++at;
    return at;
  }

  // 's 't 're 've 'm 'll 'd; `at` if there is none.
  std::size_t contraction(std::size_t at, bool any_case) const {
    if (!is(at, '\'')) return at;
    for (const std::string_view ending : {"s", "t", "re", "ve", "m", "ll", "d"}) {
      std::size_t matched = 0;
      while (matched < ending.size() && same_letter(at + 1 + matched, ending[matched], any_case)) ++matched;
      if (matched == ending.size()) return at + 1 + matched;
    }
    return at;
  }

  // \s+(?!\S)|\s+ : white space, but its last character is left to a word that follows. `at` if there is
  // none.
  std::size_t space(std::size_t at) const {
    const std::size_t next = skip(at, CharClass::kSpace);
    return next < end_ && next - at > 1 ? next - 1 : next;
  }

  // \s*[\r\n]+ : white space up to its last line break; `at` if it has none.
  std::size_t lines(std::size_t at) const {
    std::size_t next = skip(at, CharClass::kSpace);
    while (next > at && !is_newline(next - 1)) --next;
    return next;
  }

 private:
  bool same_letter(std::size_t at, char letter, bool any_case) const {
    const auto lower = static_cast<std::uint32_t>(letter);
    return is(at, lower) || (any_case && (is(at, lower - 'a' + 'A') || (letter == 's' && is(at, kLongS))));
  }

  Chars chars_;
  std::size_t end_;
};

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t gpt2_word(const Scanner& scan, std::size_t at) {
  if (const std::size_t next = scan.contraction(at, false); next != at) return next;
  const std::size_t word = at + (scan.is(at, ' ') ? 1 : 0);
  for (const CharClass kind : {CharClass::kLetter, CharClass::kNumber}) {
    if (scan.is(word, kind)) return scan.skip(word, kind);
  }
  if (scan.is_mark(word)) return scan.skip_marks(word);
  return scan.space(at);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}|
// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
std::size_t llama3_word(const Scanner& scan, std::size_t at, std::size_t longest_number) {
  if (const std::size_t next = scan.contraction(at, true); next != at) return next;
  const bool other_first =
      !scan.is_newline(at) && !scan.is(at, CharClass::kLetter) && !scan.is(at, CharClass::kNumber);
  const std::size_t letters = at + (other_first ? 1 : 0);
  if (scan.is(letters, CharClass::kLetter)) return scan.skip(letters, CharClass::kLetter);
  if (scan.is(at, CharClass::kNumber)) return scan.skip(at, CharClass::kNumber, longest_number);
  const std::size_t marks = at + (scan.is(at, ' ') ? 1 : 0);
  if (scan.is_mark(marks)) {
    std::size_t next = scan.skip_marks(marks);
    while (scan.is_newline(next)) ++next;
    return next;
  }
  if (const std::size_t next = scan.lines(at); next != at) return next;
  return scan.space(at);
}

bool is_number(const Char& c) { return c.kind == CharClass::kNumber || c.kind == CharClass::kNewNumber; }

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Status::kBadFile, "tokenizer.json: the pre-tokenizer is not supported: " + what);
}

}  // namespace

CharClass char_class(std::uint32_t code_point) {
  const auto* range = std::upper_bound(std::begin(kCharRanges), std::end(kCharRanges), code_point,
                                       [](std::uint32_t code, const CharRange& r) { return code < r.first; });
  if (range == std::begin(kCharRanges) || code_point > (--range)->last) return CharClass::kOther;
  return range->kind;
}

std::vector<Char> decode_utf8(std::string_view text) {
  std::vector<Char> chars;
  chars.reserve(text.size() + 1);
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
    const Utf8Lead first = utf8_lead(byte(0));
    bool valid = first.length != 0 && first.length <= text.size() - at;
    std::uint32_t code = first.length <= 1 ? byte(0) : byte(0) & (0x7Fu >> first.length);
    for (std::size_t i = 1; valid && i < first.length; ++i) {
      valid = i == 1 ? byte(1) >= first.low && byte(1) <= first.high : (byte(i) & 0xC0) == 0x80;
      code = code << 6 | (byte(i) & 0x3Fu);
    }
    if (!valid) throw Error(Status::kInvalidArgument, "the text is not UTF-8 at byte " + std::to_string(at));
    chars.push_back({code, static_cast<std::uint32_t>(at), char_class(code)});
    at += first.length;
  }
  chars.push_back({0, static_cast<std::uint32_t>(text.size()), CharClass::kOther});
  return chars;
}

PreTokenizer PreTokenizer::from_json(const Json& json) {
  const std::string contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|";
  const std::string rest = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  PreTokenizer made;
  bool has_pattern = false;
  if (json.is_null()) refuse("there is none");
  const bool several = json.at("type").string() == "Sequence";
  for (const Json& step : several ? json.at("pretokenizers").array() : Json::Array{json}) {
    const std::string& type = step.at("type").string();
    if (type == "Digits" && step.at("individual_digits").boolean() && !has_pattern) {
      made.digits_apart_ = true;
    } else if (type == "Split" && !has_pattern) {
      const std::string& pattern = step.at("pattern").at("Regex").string();
      if (pattern != contraction + "\\p{N}{1,3}" + rest && pattern != contraction + "\\p{N}" + rest)
        refuse(pattern);
      if (step.at("behavior").string() != "Isolated" || step.at("invert").boolean())
        refuse("Split that drops text");
      made.pattern_ = Pattern::kLlama3;
      made.longest_number_ = pattern.find("{1,3}") != std::string::npos ? 3 : 1;
      has_pattern = true;
    } else if (type == "ByteLevel" && !step.at("add_prefix_space").boolean()) {
      const Json* use_regex = step.find("use_regex");
      const bool splits = use_regex == nullptr || use_regex->boolean();
      if (splits == has_pattern) refuse("ByteLevel and Split must not both, nor neither, cut the text");
      has_pattern = true;
    } else {
      refuse(type);
    }
  }
  if (!has_pattern) refuse("it has no pattern");
  return made;
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  const std::vector<Char> chars = decode_utf8(text);
  const std::size_t count = chars.size() - 1;
  std::vector<std::string_view> words;
  for (std::size_t start = 0; start < count;) {
    std::size_t end = count;
    if (digits_apart_) {
      const auto from = chars.begin() + static_cast<std::ptrdiff_t>(start);
      const auto number = std::find_if(from, chars.end() - 1, is_number);
      end = std::max(static_cast<std::size_t>(number - chars.begin()), start + 1);
    }
    const Scanner scan(chars, end);
    while (start < end) {
      const std::size_t next =
          pattern_ == Pattern::kGpt2 ? gpt2_word(scan, start) : llama3_word(scan, start, longest_number_);
      words.push_back(text.substr(chars[start].offset, chars[next].offset - chars[start].offset));
      start = next;
    }
  }
  return words;
}

}  // namespace specdec
