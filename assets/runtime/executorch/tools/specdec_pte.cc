// Runs a .pte pass by pass, for checks and timings.
//
//     specdec_pte FILE [--context N] [--threads N] [--logits OUT]
//
// Commands come on standard input, one a line; each is answered by one line of JSON on standard output:
//     info                what the file says about itself
//     forward ID …        a pass; its logits [T, rows] are appended to OUT as 32-bit floats
//     prefill ID …        tokens whose logits nobody needs
//     cache               keys, then values, of the whole pool [layers, G, L, E] are appended to OUT
//     truncate LENGTH     roll the cache back
//     reset
//     time T AT N         N passes of T tokens at position AT: the milliseconds of each
// A command that fails is answered by {"status": CODE, "error": "…"}, and the next one is read. If the file
// cannot be opened, that line is the only one and the exit status is 1.
#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "specdec/executorch_runner.h"
#include "specdec/json.h"

namespace specdec::tool {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Options {
  std::string file, logits;
  std::int32_t context = 2048, threads = 1;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--") && i + 1 < argc) {
      const std::string value = argv[++i];
      if (word == "--context") options.context = std::stoi(value);
      if (word == "--threads") options.threads = std::stoi(value);
      if (word == "--logits") options.logits = value;
    } else {
      options.file = word;
    }
  }
  if (options.file.empty()) throw Error(Status::kInvalidArgument, "usage: specdec_pte FILE [options]");
  return options;
}

std::vector<Token> tokens_of(std::istringstream& line) {
  std::vector<Token> tokens;
  for (Token token; line >> token;) tokens.push_back(token);
  return tokens;
}

std::string time(ExecuTorchRunner& runner, const KvCache& cache, std::istringstream& line) {
  std::int32_t width = 0, at = 0, passes = 0;
  line >> width >> at >> passes;
  if (width < 1 || passes < 1 || at < 0) throw Error(Status::kInvalidArgument, "time T AT N");
  const std::vector<Token> filler(static_cast<std::size_t>(std::max(at, 1)), 1),
      tokens(static_cast<std::size_t>(width), 2);
  if (cache.length() < at) runner.prefill({filler.data(), static_cast<std::size_t>(at - cache.length())});
  std::string out = "{\"ms\": [";
  for (std::int32_t pass = 0; pass < passes; ++pass) {
    runner.truncate(at);
    const auto start = Clock::now();
    runner.forward(tokens);
    out += (pass == 0 ? "" : ", ") + std::to_string(milliseconds_since(start));
  }
  return out + "]}";
}

std::string answer(const std::string& text, ExecuTorchModel& model, ExecuTorchRunner& runner, KvPool& pool,
                   std::ofstream& logits, double load_ms) {
  std::istringstream line(text);
  std::string command;
  line >> command;
  KvCache& cache = pool.cache("target");
  if (command == "info") {
    return "{\"load_ms\": " + std::to_string(load_ms) +
           ", \"activation_bytes\": " + std::to_string(runner.activation_bytes()) +
           ", \"pool\": " + pool.report() + ", \"metadata\": " + model.metadata() + "}";
  }
  if (command == "forward") {
    const auto rows = runner.forward(tokens_of(line));
    if (logits.is_open()) {
      logits.write(reinterpret_cast<const char*>(rows.data()),
                   static_cast<std::streamsize>(rows.size_bytes()));
      logits.flush();
    }
  } else if (command == "prefill") {
    runner.prefill(tokens_of(line));
  } else if (command == "cache") {
    for (const std::byte* tensor : {cache.keys(0).data(), cache.values(0).data()}) {
      logits.write(reinterpret_cast<const char*>(tensor),
                   static_cast<std::streamsize>(cache.layout().payload_bytes() / 2));
    }
    logits.flush();
  } else if (command == "truncate") {
    std::int32_t length = -1;
    line >> length;
    runner.truncate(length);
  } else if (command == "reset") {
    runner.reset();
  } else if (command == "time") {
    return time(runner, cache, line);
  } else {
    throw Error(Status::kInvalidArgument, "unknown command: " + command);
  }
  return "{\"length\": " + std::to_string(cache.length()) + "}";
}

std::string describe(const Error& error) {
  return "{\"status\": " + std::to_string(static_cast<int>(error.status())) +
         ", \"error\": " + json_quote(error.what()) + "}";
}

void run(const Options& options) {
  set_threads(options.threads);
  const auto start = Clock::now();
  ExecuTorchModel model(options.file);
  const ArenaSpec arena = model.arena("target", options.context);
  KvPool pool({&arena, 1});
  ExecuTorchRunner runner(model, pool.cache("target"));
  const double load_ms = milliseconds_since(start);
  std::ofstream logits;
  if (!options.logits.empty()) logits.open(options.logits, std::ios::binary | std::ios::trunc);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << answer(line, model, runner, pool, logits, load_ms) << std::endl;
    } catch (const Error& error) {
      std::cout << describe(error) << std::endl;
    }
  }
}

}  // namespace
}  // namespace specdec::tool

int main(int argc, char** argv) {
  try {
    specdec::tool::run(specdec::tool::parse(argc, argv));
  } catch (const specdec::Error& error) {
    std::cout << specdec::tool::describe(error) << std::endl;
    return 1;
  } catch (const std::exception& error) {
    std::cout << specdec::tool::describe({specdec::Status::kInternal, error.what()}) << std::endl;
    return 1;
  }
  return 0;
}
