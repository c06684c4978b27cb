// Chat messages -> token ids, with a model's template as plain prefixes and suffixes (no Jinja on the phone).
// Golden vectors: assets/golden/tokenizer_nano.json, `chat` and `chat_affixes`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "specdec/json.h"
#include "specdec/tokenizer.h"

namespace specdec {

struct Message {
  std::string_view role;  // "system", "user" or "assistant"
  std::string_view content;
};

// A conversation is prefix + content + suffix of every message, then `generation`. One that does not begin
// with a system message begins with `opening` instead (many templates put a default system message there).
struct ChatFormat {
  struct Affix {
    std::string prefix, suffix;
  };
  std::string opening;
  Affix system, user, assistant;
  std::string generation;

  // `{"opening": "…", "system": ["…", "…"], "user": […], "assistant": […], "generation": "…"}`
  static ChatFormat from_json(const Json& json);

  // The ids of a conversation. Special tokens come from the affixes only: the same strings inside a message
  // stay text. Everything between two special tokens is encoded in one piece, since a merge may span the
  // border of affix and message. Throws kInvalidArgument for no message, an unknown role, or text that is not
  // UTF-8.
  std::vector<Token> encode(const Tokenizer& tokenizer, std::span<const Message> messages,
                            bool add_generation_prompt = true) const;

 private:
  const Affix& affix(std::string_view role) const;
};

}  // namespace specdec
