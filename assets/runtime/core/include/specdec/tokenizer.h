// Text <-> token ids: byte-level BPE read from `tokenizer.json`, the same ids as the `tokenizers` library
// gives. Golden vectors: assets/golden/tokenizer_nano.json.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "specdec/json.h"
#include "specdec/pretokenizer.h"
#include "specdec/sampling.h"

namespace specdec {

class Tokenizer {
 public:
  // Throws kBadFile if the file is missing, damaged, or of a kind that this class does not reproduce exactly.
  static Tokenizer open(const std::string& path);
  explicit Tokenizer(const Json& json);

  // One more than the highest id.
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(bytes_.size()); }

  // The ids of valid UTF-8 text. Bytes that the vocabulary lacks vanish (SmolLM2 has no token for 21 of the
  // 256), as in every other reader of the same file. Special tokens written out in the text are plain text
  // unless `parse_special`: users type data. Throws kInvalidArgument if the text is not UTF-8.
  std::vector<Token> encode(std::string_view text, bool parse_special = false) const;

  // The text of ids. Invalid UTF-8 shows as U+FFFD; ids without a token are skipped.
  std::string decode(std::span<const Token> ids, bool skip_special = false) const;

  // The bytes one token stands for; empty for an id without a token.
  std::string_view token_bytes(Token id) const;
  bool is_special(Token id) const;

  // Added tokens, as (text, id).
  struct Added {
    std::string text;
    Token id;
    bool special;
  };
  // The added token that begins at this place of the text, the longest if several do; nullptr if none.
  const Added* added_at(std::string_view text, std::size_t at, bool parse_special) const;

 private:
  struct Merge {
    std::int32_t rank;
    Token id;
  };

  void read_model(const Json& model);
  void read_added(const Json& list);
  void store(Token id, const std::string& text);
  void encode_plain(std::string_view text, std::vector<Token>& ids) const;
  void encode_word(std::string_view word, std::vector<Token>& ids) const;
  const Merge* merge_of(Token left, Token right) const;

  PreTokenizer pre_tokenizer_;
  std::vector<std::string> bytes_;                   // by id
  std::vector<bool> special_;                        // by id
  std::array<Token, 256> byte_ids_{};                // -1: no token
  std::unordered_map<std::uint64_t, Merge> merges_;  // (left << 32 | right)
  std::unordered_map<std::string, Token> words_;     // whole words that are taken without merging (Llama 3)
  std::vector<Added> added_;                         // longest first
};

}  // namespace specdec
