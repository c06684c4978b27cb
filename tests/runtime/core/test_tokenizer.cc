// The nano tokenizer's golden vectors, what no valid file contains, and UTF-8 that comes in pieces.
#include "golden.h"
#include "specdec/chat.h"
#include "specdec/stop_strings.h"
#include "specdec/text_stream.h"
#include "specdec/tokenizer.h"

namespace specdec::test {
namespace {

void encode_and_decode(const Tokenizer& tokenizer, const Json& file) {
  for (const Json& item : file.at("encode").array()) {
    const std::string& text = item.at("text").string();
    const auto ids = tokenizer.encode(text, item.at("parse_special").boolean());
    check(ids == tokens(item.at("ids")), text);
    check(tokenizer.decode(ids) == item.at("decoded").string(), text);
  }
}

void chat(const Tokenizer& tokenizer, const Json& file) {
  const ChatFormat format = ChatFormat::from_json(file.at("chat_affixes"));
  for (const Json& item : file.at("chat").array()) {
    std::vector<Message> messages;
    for (const Json& message : item.at("messages").array()) {
      messages.push_back({message.at("role").string(), message.at("content").string()});
    }
    check(format.encode(tokenizer, messages, item.at("add_generation_prompt").boolean()) ==
          tokens(item.at("ids")));
  }
  refuses(Status::kInvalidArgument, [&] { format.encode(tokenizer, {}); });
  refuses(Status::kInvalidArgument, [&] { format.encode(tokenizer, std::vector<Message>{{"tool", "x"}}); });
}

void streams(const Tokenizer& tokenizer, const Json& file) {
  for (const Json& item : file.at("stream").array()) {
    TextStream stream(tokenizer, item.at("skip_special").boolean());
    const auto ids = tokens(item.at("ids"));
    const auto& pieces = item.at("pieces").array();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::string piece;
      stream.push(ids[i], piece);
      check(piece == pieces[i].string(), item.at("name").string());
    }
    std::string rest;
    stream.finish(rest);
    check(rest == item.at("rest").string(), item.at("name").string());
  }
}

void words(const PreTokenizer& pre_tokenizer, const std::string& text, std::vector<std::string_view> wanted) {
  check(pre_tokenizer.split(text) == wanted, text);
}

void patterns_cut_words_where_the_models_do() {
  const auto gpt2 = PreTokenizer::from_json(Json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false}]})"));
  words(gpt2, "x  y", {"x", " ", " y"});
  words(gpt2, "end  ", {"end", "  "});
  words(gpt2, "a  12", {"a", "  ", "1", "2"});  // the piece ends before the digit
  words(gpt2, "I'll can'T \n\n?!", {"I", "'ll", " can", "'", "T", " \n", "\n", "?!"});
  const auto llama3 = PreTokenizer::from_json(Json::parse(R"re({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
       "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})re"));
  words(llama3, "x  y", {"x", " ", " y"});
  words(llama3, "1234 ab.cd", {"123", "4", " ab", ".cd"});
  words(llama3, "it'S !\n\n  \n z", {"it", "'S", " !\n\n", "  \n", " z"});
}

void stop_strings_are_found_however_tokens_cut_them(const Tokenizer& tokenizer) {
  const std::string text = "Ada says: caf\u00e9 \U0001F44D, then STOP here.";
  const auto ids = tokenizer.encode(text);
  for (const std::string stop :
       {"A", "caf\u00e9", "\U0001F44D", "TO", "then STOP", ".", "says: caf\u00e9 \U0001F44D, then"}) {
    StopStrings stopped(tokenizer, {"nowhere", stop}, true);
    for (std::size_t count = 1; count <= ids.size(); ++count) {
      const std::string so_far = tokenizer.decode(std::span(ids).first(count));
      const bool wanted = so_far.find(stop) != std::string::npos;
      check(stopped(std::span(ids).first(count)) == wanted, stop);
      if (wanted) break;
      check(count < ids.size(), "never found: " + stop);
    }
  }
  refuses(Status::kInvalidArgument, [&] { StopStrings(tokenizer, {""}, true); });
}

void long_words_take_no_quadratic_time(const Tokenizer& tokenizer) {
  const std::string word(1 << 20, 'a');
  check(tokenizer.decode(tokenizer.encode(word)) == word, "a word of a million letters");
}

void text_that_is_not_utf8_is_refused(const Tokenizer& tokenizer) {
  for (const char* text :
       {"\xFF", "a\x80", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\xAF", "\xE2\x82"}) {
    refuses(Status::kInvalidArgument, [&] { tokenizer.encode(text); });
  }
}

void damaged_files_are_refused(const std::string& path) {
  const std::string whole = read_file(path);
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.rfind('}')}) {
    refuses(Status::kBadFile, [&] { Tokenizer(Json::parse(std::string_view(whole).substr(0, length))); });
  }
  const auto with = [&](const std::string& old, const std::string& other) {
    std::string text = whole;
    const std::size_t at = text.find(old);
    check(at != std::string::npos, old);
    text.replace(at, old.size(), other);
    return refuses(Status::kBadFile, [&] { Tokenizer(Json::parse(text)); });
  };
  check(with(R"("normalizer":null)", R"("normalizer":{"type":"NFC"})").find("NFC") != std::string::npos);
  with(R"("byte_fallback":false)", R"("byte_fallback":true)");
  with(R"("lstrip":false)", R"("lstrip":true)");
  with(R"("type":"Digits")", R"("type":"Metaspace")");
  with(R"("use_regex":true)", R"("use_regex":false)");
  with(R"("!":3)", R"("!":-3)");
  with(R"("!":3)", R"("!":2000000000)");
  with(R"("type":"BPE")", R"("type":"Unigram")");
  with(R"("merges":[)", R"("merges":[["q","nosuchtoken"],)");
  refuses(Status::kBadFile, [] { Tokenizer::open("nowhere/tokenizer.json"); });
}

void json_is_strict() {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "\"\\u12\"", "\"\\ud800x\"", "tru", "01x", "1 2",
                           "\"a\nb\"", "nan", "1e999", "{\"a\":1,}", "\"\\q\""}) {
    refuses(Status::kBadFile, [&] { Json::parse(text); });
  }
  refuses(Status::kBadFile, [] { Json::parse(std::string(100000, '[')); });
  check(Json::parse(R"("\u00e9\ud83d\udc4d\n")").string() == "\u00e9\U0001F44D\n");
  check(Json::parse(json_quote("a\"\\\x01\n")).string() == "a\"\\\x01\n");
  refuses(Status::kBadFile, [] { Json::parse("1.5").integer(); });
  refuses(Status::kBadFile, [] { Json::parse("{}").at("a"); });
}

}  // namespace
}  // namespace specdec::test

int main(int, char** argv) {
  using namespace specdec;
  using namespace specdec::test;
  return run([assets = std::string(argv[1])] {
    const std::string path = assets + "/models/nano-target/tokenizer.json";
    const Tokenizer tokenizer = Tokenizer::open(path);
    const Json file = golden(assets, "tokenizer_nano");
    encode_and_decode(tokenizer, file);
    chat(tokenizer, file);
    streams(tokenizer, file);
    patterns_cut_words_where_the_models_do();
    stop_strings_are_found_however_tokens_cut_them(tokenizer);
    long_words_take_no_quadratic_time(tokenizer);
    text_that_is_not_utf8_is_refused(tokenizer);
    damaged_files_are_refused(path);
    json_is_strict();
  });
}
