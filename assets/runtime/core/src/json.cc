#include "specdec/json.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kDeepest = 64;  // files are a few levels deep; more is an attack on the stack

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json document() {
    Json value = this->value(0);
    skip_space();
    if (at_ != text_.size()) fail("text after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(Status::kBadFile, std::string("not JSON: ") + what + " at byte " + std::to_string(at_));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') ++at_;
  }

  bool take(char wanted) {
    if (peek() != wanted || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  void expect(char wanted, const char* what) {
    skip_space();
    if (!take(wanted)) fail(what);
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json value(int depth) {
    if (depth > kDeepest) fail("nested too deeply");
    skip_space();
    if (peek() == '{') return Json(object(depth));
    if (peek() == '[') return Json(array(depth));
    if (peek() == '"') return Json(string());
    if (take_word("true")) return Json(true);
    if (take_word("false")) return Json(false);
    if (take_word("null")) return Json();
    return Json(number());
  }

  Json::Object object(int depth) {
    Json::Object object;
    ++at_;
    skip_space();
    if (take('}')) return object;
    do {
      skip_space();
      if (peek() != '"') fail("expected a key");
      object.keys.push_back(string());
      expect(':', "expected ':'");
      object.values.push_back(value(depth + 1));
      skip_space();
    } while (take(','));
    expect('}', "expected ',' or '}'");
    return object;
  }

  Json::Array array(int depth) {
    Json::Array array;
    ++at_;
    skip_space();
    if (take(']')) return array;
    do {
      array.push_back(value(depth + 1));
      skip_space();
    } while (take(','));
    expect(']', "expected ',' or ']'");
    return array;
  }

  double number() {
    const std::size_t start = at_;
    while (peek() != '\0' && std::string_view("+-0123456789.eE").find(peek()) != std::string_view::npos)
      ++at_;
    const std::string digits(text_.substr(start, at_ - start));
    char* end = nullptr;
    const double value = std::strtod(digits.c_str(), &end);
    if (digits.empty() || end != digits.c_str() + digits.size() || !std::isfinite(value)) {
      at_ = start;
      fail("expected a value");
    }
    return value;
  }

  std::string string() {
    std::string out;
    ++at_;
    while (!take('"')) {
      if (at_ >= text_.size()) fail("the string does not end");
      const char c = text_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      if (c == '\\') {
        escape(out);
      } else {
        out += c;
      }
    }
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    const char c = peek();
    ++at_;
    if (const auto index = kNames.find(c); index != std::string_view::npos && c != '\0') {
      out += kValues[index];
    } else if (c == 'u') {
      append_utf8(code_point(), out);
    } else {
      fail("an unknown escape");
    }
  }

  std::uint32_t code_point() {
    const std::uint32_t first = hex4();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF || !take_word("\\u")) fail("half of a surrogate pair");
    const std::uint32_t second = hex4();
    if (second < 0xDC00 || second > 0xDFFF) fail("half of a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  std::uint32_t hex4() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'F', lower = c >= 'a' && c <= 'f';
      if (!digit && !upper && !lower) fail("expected four hexadecimal digits");
      value = value * 16 + static_cast<std::uint32_t>(digit ? c - '0' : (upper ? c - 'A' : c - 'a') + 10);
    }
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

template <typename T, typename Variant>
const T& get(const Variant& value, const char* expected) {
  if (const T* found = std::get_if<T>(&value)) return *found;
  throw Error(Status::kBadFile, std::string("JSON: expected ") + expected);
}

}  // namespace

Json Json::parse(std::string_view text) { return Parser(text).document(); }

Json Json::read(const std::string& path) {
  try {
    return parse(read_file(path));
  } catch (const Error& error) {
    const std::string what = error.what();
    throw Error(error.status(), what.starts_with(path) ? what : path + ": " + what);
  }
}

bool Json::boolean() const { return get<bool>(value_, "true or false"); }
double Json::number() const { return get<double>(value_, "a number"); }
const std::string& Json::string() const { return get<std::string>(value_, "a string"); }
const Json::Array& Json::array() const { return get<Array>(value_, "a list"); }
const Json::Object& Json::object() const { return get<Object>(value_, "an object"); }

std::int32_t Json::integer() const {
  const double value = number();
  if (value != std::floor(value) || std::fabs(value) > 2147483647.0) {
    throw Error(Status::kBadFile, "JSON: expected a whole number of 32 bits");
  }
  return static_cast<std::int32_t>(value);
}

const Json* Json::find(std::string_view key) const {
  const Object& fields = object();
  for (std::size_t i = 0; i < fields.keys.size(); ++i) {
    if (fields.keys[i] == key) return &fields.values[i];
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* found = find(key)) return *found;
  throw Error(Status::kBadFile, "JSON: the key \"" + std::string(key) + "\" is missing");
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw Error(Status::kBadFile, path + ": the file cannot be read");
  return content;
}

std::string json_quote(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

void append_utf8(std::uint32_t code_point, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | (code_point >> 12));
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | (code_point >> 18));
    tail(12), tail(6), tail(0);
  }
}

}  // namespace specdec
