#include "specdec/chat.h"

#include "specdec/error.h"

namespace specdec {
namespace {

// Collects text until a special token, then encodes it in one piece.
class Pieces {
 public:
  explicit Pieces(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void message(std::string_view content) { text_ += content; }

  void affix(std::string_view part) {
    for (std::size_t at = 0; at < part.size();) {
      const Tokenizer::Added* token = tokenizer_.added_at(part, at, true);
      if (token == nullptr) {
        text_ += part[at++];
        continue;
      }
      flush();
      ids_.push_back(token->id);
      at += token->text.size();
    }
  }

  std::vector<Token> finish() {
    flush();
    return std::move(ids_);
  }

 private:
  void flush() {
    const auto more = tokenizer_.encode(text_);
    ids_.insert(ids_.end(), more.begin(), more.end());
    text_.clear();
  }

  const Tokenizer& tokenizer_;
  std::string text_;
  std::vector<Token> ids_;
};

ChatFormat::Affix read_affix(const Json& json) {
  const Json::Array& pair = json.array();
  if (pair.size() != 2) throw Error(Status::kBadFile, "chat format: a role needs a prefix and a suffix");
  return {pair[0].string(), pair[1].string()};
}

}  // namespace

ChatFormat ChatFormat::from_json(const Json& json) {
  return {json.at("opening").string(), read_affix(json.at("system")), read_affix(json.at("user")),
          read_affix(json.at("assistant")), json.at("generation").string()};
}

const ChatFormat::Affix& ChatFormat::affix(std::string_view role) const {
  if (role == "system") return system;
  if (role == "user") return user;
  if (role == "assistant") return assistant;
  throw Error(Status::kInvalidArgument,
              "unknown role \"" + std::string(role) + "\": use system, user or assistant");
}

std::vector<Token> ChatFormat::encode(const Tokenizer& tokenizer, std::span<const Message> messages,
                                      bool add_generation_prompt) const {
  if (messages.empty()) throw Error(Status::kInvalidArgument, "the list of chat messages is empty");
  Pieces pieces(tokenizer);
  if (messages[0].role != "system") pieces.affix(opening);
  for (const Message& message : messages) {
    const Affix& around = affix(message.role);
    pieces.affix(around.prefix);
    pieces.message(message.content);
    pieces.affix(around.suffix);
  }
  if (add_generation_prompt) pieces.affix(generation);
  return pieces.finish();
}

}  // namespace specdec
