// What the Python tests ask the core, to compare it with the reference: JSON in, JSON out.
//
//     core_probe layout            [arena specs] -> pool layout, or {"error": "…"}
//     core_probe encode TOKENIZER  {"texts": […], "parse_special": bool} -> [[ids], …]
#include <iostream>
#include <iterator>

#include "specdec/error.h"
#include "specdec/kv_layout.h"
#include "specdec/tokenizer.h"

namespace specdec::test {
namespace {

Json from_stdin() {
  return Json::parse(std::string{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()});
}

void layout() {
  std::vector<ArenaSpec> specs;
  const Json input = from_stdin();
  for (const Json& spec : input.array()) specs.push_back(ArenaSpec::from_json(spec));
  try {
    std::cout << PoolLayout::of(specs).to_json();
  } catch (const Error& error) {
    std::cout << "{\"error\": " << json_quote(error.what()) << "}";
  }
}

void encode(const std::string& path) {
  const Tokenizer tokenizer = Tokenizer::open(path);
  const Json input = from_stdin();
  const char* separator = "[";
  for (const Json& text : input.at("texts").array()) {
    std::cout << separator << "[";
    separator = ",\n";
    const char* comma = "";
    for (const Token id : tokenizer.encode(text.string(), input.at("parse_special").boolean())) {
      std::cout << comma << id;
      comma = ",";
    }
    std::cout << "]";
  }
  std::cout << "]\n";
}

}  // namespace
}  // namespace specdec::test

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  try {
    if (command == "layout") {
      specdec::test::layout();
    } else if (command == "encode" && argc > 2) {
      specdec::test::encode(argv[2]);
    } else {
      std::cerr << "usage: core_probe layout | encode TOKENIZER\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
