// Plain and speculative decoding with exported models: ids in, ids out.
//
//     specdec_native TARGET.pte [--draft DRAFT.pte|lookup|none] [--lookahead K] [--gate] [--context N]
//     [--threads N]
//
// Reads one JSON request a line from standard input and answers each with one line of JSON:
//     {"prompt": [ids], "max_new_tokens": 128, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "seed":
//     0,
//      "eos_ids": [], "verifier": "rejection", "draft": true, "lookahead": K, "gate": false}
// Everything but "prompt" may be left out; "draft": false decodes plainly. The last two default to the
// options. A request that fails is answered by
// {"status": CODE, "error": "…"}.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "specdec/engine.h"
#include "specdec/error.h"
#include "specdec/executorch_runner.h"
#include "specdec/json.h"

namespace specdec::tool {
namespace {

struct Options {
  std::string target, draft = "none";
  std::int32_t lookahead = 4, context = 2048, threads = 1;
  bool gate = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--gate") {
      options.gate = true;
    } else if (word.starts_with("--") && i + 1 < argc) {
      const std::string value = argv[++i];
      if (word == "--draft") {
        options.draft = value;
      } else if (word == "--lookahead") {
        options.lookahead = std::stoi(value);
      } else if (word == "--context") {
        options.context = std::stoi(value);
      } else if (word == "--threads") {
        options.threads = std::stoi(value);
      } else {
        throw Error(Status::kInvalidArgument, "unknown option " + word);
      }
    } else {
      options.target = word;
    }
  }
  if (options.target.empty())
    throw Error(Status::kInvalidArgument, "usage: specdec_native TARGET.pte [options]");
  return options;
}

std::vector<Token> tokens_of(const Json& json) {
  std::vector<Token> tokens;
  for (const Json& id : json.array()) tokens.push_back(id.integer());
  return tokens;
}

std::string list(std::span<const Token> tokens) {
  std::string out = "[";
  for (const Token token : tokens) out += (out.size() == 1 ? "" : ", ") + std::to_string(token);
  return out + "]";
}

// Both models with their caches in one pool, and what decodes with them.
class Session {
 public:
  explicit Session(const Options& options) : options_(options), target_model_(options.target) {
    std::vector<ArenaSpec> arenas{target_model_.arena("target", options.context)};
    const bool model_draft = options.draft != "none" && options.draft != "lookup";
    if (model_draft) {
      draft_model_.emplace(options.draft);
      const std::string &ours = target_model_.info().tokenizer_sha256,
                        &theirs = draft_model_->info().tokenizer_sha256;
      if (ours != theirs) {
        throw Error(Status::kInvalidArgument,
                    options.draft + ": made for another tokenizer than " + options.target);
      }
      arenas.push_back(draft_model_->arena("draft", options.context));
    }
    pool_.emplace(arenas);
    target_.emplace(target_model_, pool_->cache("target"));
    if (model_draft) {
      draft_.emplace(*draft_model_, pool_->cache("draft"));
      drafter_ = std::make_unique<ModelDrafter>(*draft_, target_->vocab_size());
    } else if (options.draft == "lookup") {
      drafter_ = std::make_unique<PromptLookup>();
    }
    engine_.emplace(*target_);
  }

  std::string answer(const Json& json) {
    const std::vector<Token> prompt = tokens_of(json.at("prompt"));
    const Json* eos = json.find("eos_ids");
    const std::vector<Token> eos_ids = eos == nullptr ? std::vector<Token>{} : tokens_of(*eos);
    const auto number = [&json](const char* key, double otherwise) {
      const Json* value = json.find(key);
      return value == nullptr ? otherwise : value->number();
    };
    const Json* wanted = json.find("draft");
    const Json* verifier = json.find("verifier");
    Request request;
    request.prompt = prompt;
    request.eos_ids = eos_ids;
    request.max_new_tokens = static_cast<std::int32_t>(number("max_new_tokens", 128));
    request.sampling.temperature = number("temperature", 0);
    request.sampling.top_k = static_cast<std::int32_t>(number("top_k", 0));
    request.sampling.top_p = number("top_p", 1);
    request.sampling.min_p = number("min_p", 0);
    request.seed = static_cast<std::uint64_t>(number("seed", 0));
    if (verifier != nullptr && verifier->string() == "match") request.verifier = Verifier::kMatch;
    const auto k = static_cast<std::int32_t>(number("lookahead", options_.lookahead));
    std::unique_ptr<LookaheadPolicy> policy = std::make_unique<FixedLookahead>(k);
    const Json* gate = json.find("gate");
    if (gate == nullptr ? options_.gate : gate->boolean()) {
      policy = std::make_unique<BreakEvenGate>(std::move(policy), std::nullopt, BreakEvenGate::Settings{});
    }
    if (wanted == nullptr || wanted->boolean()) request.drafter = drafter_.get();
    request.lookahead = policy.get();
    if (engine_->poisoned()) engine_->reset();
    const Generation done = engine_->generate(request);
    const Telemetry& t = done.telemetry;
    return "{\"tokens\": " + list(done.tokens) + ", \"finish_reason\": \"" + name(done.finish_reason) +
           "\", \"prefill_s\": " + std::to_string(done.prefill_seconds) +
           ", \"decode_s\": " + std::to_string(done.decode_seconds) +
           ", \"rounds\": " + std::to_string(t.rounds) + ", \"drafted\": " + std::to_string(t.drafted) +
           ", \"accepted\": " + std::to_string(t.accepted) + ", \"emitted\": " + std::to_string(t.emitted) +
           ", \"draft_passes\": " + std::to_string(t.draft_passes) + ", \"pool\": " + pool_->report() + "}";
  }

 private:
  Options options_;
  ExecuTorchModel target_model_;
  std::optional<ExecuTorchModel> draft_model_;
  std::optional<KvPool> pool_;
  std::optional<ExecuTorchRunner> target_, draft_;
  std::unique_ptr<Drafter> drafter_;
  std::optional<Engine> engine_;
};

std::string describe(const Error& error) {
  return "{\"status\": " + std::to_string(static_cast<int>(error.status())) +
         ", \"error\": " + json_quote(error.what()) + "}";
}

}  // namespace
}  // namespace specdec::tool

int main(int argc, char** argv) {
  using specdec::tool::describe;
  try {
    const auto options = specdec::tool::parse(argc, argv);
    specdec::set_threads(options.threads);
    specdec::tool::Session session(options);
    for (std::string line; std::getline(std::cin, line);) {
      try {
        std::cout << session.answer(specdec::Json::parse(line)) << std::endl;
      } catch (const specdec::Error& error) {
        std::cout << describe(error) << std::endl;
      }
    }
  } catch (const specdec::Error& error) {
    std::cout << describe(error) << std::endl;
    return 1;
  } catch (const std::exception& error) {
    std::cout << describe({specdec::Status::kInternal, error.what()}) << std::endl;
    return 1;
  }
  return 0;
}
