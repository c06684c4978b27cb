#include "specdec/tokenizer.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "specdec/error.h"
#include "specdec/text_stream.h"

namespace specdec {
namespace {

constexpr Token kHighestId = 1 << 24;  // a damaged file must not make us allocate gigabytes

// GPT-2's alphabet: printable bytes are themselves, the others are characters from 256 on.
std::array<std::int16_t, 324> make_alphabet() {
  std::array<std::int16_t, 324> bytes;
  bytes.fill(-1);
  std::size_t next = 256;
  for (std::int16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
    bytes[printable ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return bytes;
}

// The bytes of a token written in GPT-2's alphabet, or its UTF-8 if it is not (an added token in plain
// characters).
std::string bytes_of(const std::string& text) {
  static const auto alphabet = make_alphabet();
  std::string bytes;
  for (const Char& c : decode_utf8(text)) {
    if (c.offset == text.size()) break;
    if (c.code_point >= alphabet.size() || alphabet[c.code_point] < 0) return text;
    bytes += static_cast<char>(alphabet[c.code_point]);
  }
  return bytes;
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Status::kBadFile, "tokenizer.json: " + what);
}

void refuse_unless_plain(const Json& json, const Json& model) {
  if (model.at("type").string() != "BPE") refuse("only BPE models are supported");
  if (const Json* normalizer = json.find("normalizer"); normalizer != nullptr && !normalizer->is_null()) {
    refuse("a normalizer is not supported: " + normalizer->at("type").string());
  }
  if (json.at("decoder").is_null() || json.at("decoder").at("type").string() != "ByteLevel") {
    refuse("only byte-level decoding is supported");
  }
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = model.find(key);
    const bool set =
        value != nullptr && !value->is_null() && !(value->is_string() && value->string().empty());
    if (set) refuse(std::string(key) + " is not supported");
  }
  if (const Json* fallback = model.find("byte_fallback"); fallback != nullptr && fallback->boolean()) {
    refuse("byte_fallback is not supported");
  }
}

std::uint64_t pair_key(Token left, Token right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

// "a b" or ["a", "b"]
std::pair<std::string, std::string> merge_pair(const Json& json) {
  if (json.is_array() && json.array().size() == 2)
    return {json.array()[0].string(), json.array()[1].string()};
  const std::string& both = json.string();
  const std::size_t space = both.find(' ');
  if (space == std::string::npos) refuse("a merge is not a pair: " + both);
  return {both.substr(0, space), both.substr(space + 1)};
}

}  // namespace

Tokenizer Tokenizer::open(const std::string& path) { return Tokenizer(Json::read(path)); }

Tokenizer::Tokenizer(const Json& json) {
  const Json& model = json.at("model");
  refuse_unless_plain(json, model);
  pre_tokenizer_ = PreTokenizer::from_json(json.at("pre_tokenizer"));
  try {
    read_model(model);
    if (const Json* added = json.find("added_tokens")) read_added(*added);
  } catch (const Error& error) {
    if (error.status() == Status::kInvalidArgument) refuse(error.what());  // a token that is not UTF-8
    throw;
  }
}

void Tokenizer::store(Token id, const std::string& text) {
  if (id < 0 || id > kHighestId) refuse("token id " + std::to_string(id) + " is out of range");
  const auto index = static_cast<std::size_t>(id);
  if (index >= bytes_.size()) {
    bytes_.resize(index + 1);
    special_.resize(index + 1);
  }
  bytes_[index] = bytes_of(text);
}

void Tokenizer::read_model(const Json& model) {
  const Json::Object& vocab = model.at("vocab").object();
  std::unordered_map<std::string_view, Token> ids(vocab.keys.size());
  byte_ids_.fill(-1);
  const Json* ignore_merges = model.find("ignore_merges");
  const bool whole_words = ignore_merges != nullptr && ignore_merges->boolean();
  for (std::size_t i = 0; i < vocab.keys.size(); ++i) {
    const Token id = vocab.values[i].integer();
    store(id, vocab.keys[i]);
    ids.emplace(vocab.keys[i], id);
    const std::string& bytes = bytes_[static_cast<std::size_t>(id)];
    // Only a single character of the alphabet stands for a byte: "\u0100" does for 0, a character beyond it
    // for none.
    if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
    if (whole_words) words_.emplace(bytes, id);
  }
  const auto id_of = [&](const std::string& text) {
    const auto found = ids.find(text);
    if (found == ids.end()) refuse("a merge names an unknown token: " + text);
    return found->second;
  };
  std::int32_t rank = 0;
  for (const Json& pair : model.at("merges").array()) {
    const auto [left, right] = merge_pair(pair);
    merges_.emplace(pair_key(id_of(left), id_of(right)), Merge{rank++, id_of(left + right)});
  }
}

void Tokenizer::read_added(const Json& list) {
  for (const Json& entry : list.array()) {
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
      // Without a normalizer, `normalized` changes nothing.
      if (key != std::string_view("normalized") && entry.at(key).boolean()) {
        refuse(std::string("an added token with ") + key + " is not supported");
      }
    }
    added_.push_back({entry.at("content").string(), entry.at("id").integer(), entry.at("special").boolean()});
    const Added& token = added_.back();
    if (token.text.empty()) refuse("an added token is empty");
    store(token.id, token.text);
    special_[static_cast<std::size_t>(token.id)] = token.special;
  }
  std::ranges::stable_sort(added_, std::greater(), [](const Added& token) { return token.text.size(); });
}

const Tokenizer::Added* Tokenizer::added_at(std::string_view text, std::size_t at, bool parse_special) const {
  for (const Added& token : added_) {
    if ((parse_special || !token.special) && text.substr(at).starts_with(token.text)) return &token;
  }
  return nullptr;
}

std::vector<Token> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<Token> ids;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Added* token = added_at(text, at, parse_special);
    if (token == nullptr) {
      ++at;
      continue;
    }
    encode_plain(text.substr(start, at - start), ids);
    ids.push_back(token->id);
    start = at += token->text.size();
  }
  encode_plain(text.substr(start), ids);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, std::vector<Token>& ids) const {
  for (const std::string_view word : pre_tokenizer_.split(text)) encode_word(word, ids);
}

const Tokenizer::Merge* Tokenizer::merge_of(Token left, Token right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Merges the pair of lowest rank, leftmost first, until none applies. A queue of candidates over a linked
// list: a word of n bytes takes O(n log n).
void Tokenizer::encode_word(std::string_view word, std::vector<Token>& ids) const {
  if (const auto whole = words_.find(std::string(word)); whole != words_.end())
    return ids.push_back(whole->second);

  struct Symbol {
    Token id;
    int previous, next;  // -1: none
  };
  std::vector<Symbol> symbols;
  for (const char byte : word) {
    const Token id = byte_ids_[static_cast<unsigned char>(byte)];
    const int at = static_cast<int>(symbols.size());
    if (id >= 0) symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  // (rank, position, left id, right id, merged id); stale once a neighbour has changed.
  using Candidate = std::tuple<std::int32_t, int, Token, Token, Token>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int left) {
    if (left < 0 || symbols[static_cast<std::size_t>(left)].next < 0) return;
    const Symbol& symbol = symbols[static_cast<std::size_t>(left)];
    const Token right = symbols[static_cast<std::size_t>(symbol.next)].id;
    if (const Merge* merge = merge_of(symbol.id, right))
      queue.emplace(merge->rank, left, symbol.id, right, merge->id);
  };
  for (int at = 0; at + 1 < static_cast<int>(symbols.size()); ++at) offer(at);
  while (!queue.empty()) {
    const auto [rank, at, left_id, right_id, merged] = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(at)];
    if (left.id != left_id || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (right.id != right_id) continue;
    left.id = merged;
    left.next = right.next;
    right.id = -1;  // gone: no candidate matches it any more
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = at;
    offer(left.previous);
    offer(at);
  }
  for (int at = 0; at >= 0; at = symbols[static_cast<std::size_t>(at)].next) {
    ids.push_back(symbols[static_cast<std::size_t>(at)].id);
  }
}

std::string_view Tokenizer::token_bytes(Token id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(bytes_[static_cast<std::size_t>(id)])
                                      : std::string_view();
}

bool Tokenizer::is_special(Token id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<std::size_t>(id)];
}

std::string Tokenizer::decode(std::span<const Token> ids, bool skip_special) const {
  TextStream stream(*this, skip_special);
  std::string text;
  for (const Token id : ids) stream.push(id, text);
  stream.finish(text);
  return text;
}

}  // namespace specdec
