// Reading JSON: `tokenizer.json`, `config.json`, layouts and golden vectors. Some 200 lines of our own, since
// the core ships to phones with no dependency but the standard library and only ever reads a few files of
// known shape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace specdec {

// A JSON value (RFC 8259). Every accessor throws kBadFile when the value is of another type, naming what it
// expected.
class Json {
 public:
  struct Object {
    std::vector<std::string> keys;  // in the file's order
    std::vector<Json> values;
  };
  using Array = std::vector<Json>;

  Json() = default;
  template <typename T>
  explicit Json(T value) : value_(std::move(value)) {}

  // Throws kBadFile with the byte position of the first mistake.
  static Json parse(std::string_view text);
  static Json read(const std::string& path);

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool boolean() const;
  double number() const;
  std::int32_t integer() const;  // a whole number of 32 bits
  const std::string& string() const;
  const Array& array() const;
  const Object& object() const;

  // The value of a key; `at` throws kBadFile if it is missing, `find` returns nullptr.
  const Json& at(std::string_view key) const;
  const Json* find(std::string_view key) const;

 private:
  std::variant<std::nullptr_t, bool, double, std::string, Array, Object> value_;
};

// The whole content of a file. Throws kBadFile if it cannot be read.
std::string read_file(const std::string& path);

// A string as a JSON literal, quotes included.
std::string json_quote(std::string_view text);

// Appends the UTF-8 form of a code point.
void append_utf8(std::uint32_t code_point, std::string& out);

}  // namespace specdec
