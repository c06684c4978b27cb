// Every golden trace: the engine over a plain C++ model of the nano pair takes the same rounds as the Python
// reference.
#include <algorithm>

#include "golden.h"
#include "reference_llama.h"
#include "specdec/engine.h"
#include "specdec/stop_strings.h"
#include "specdec/tokenizer.h"

namespace specdec::test {
namespace {

struct Drafters {
  std::vector<std::unique_ptr<Drafter>> owned;

  Drafter* make(const Json& spec, ModelRunner& draft, std::int32_t vocab_size) {
    if (spec.is_null()) return nullptr;
    const std::string& type = spec.at("type").string();
    if (type == "model") return keep(std::make_unique<ModelDrafter>(draft, vocab_size));
    if (type == "lookup") {
      return keep(
          std::make_unique<PromptLookup>(spec.at("longest").integer(), spec.at("shortest").integer()));
    }
    std::vector<Drafter*> inner;
    for (const Json& one : spec.at("drafters").array()) inner.push_back(make(one, draft, vocab_size));
    return keep(std::make_unique<FirstMatch>(inner));
  }

  Drafter* keep(std::unique_ptr<Drafter> drafter) { return owned.emplace_back(std::move(drafter)).get(); }
};

void compare(const std::string& name, const Engine& engine, const Generation& done, const Json& expected) {
  check(std::ranges::equal(done.tokens, tokens(expected.at("tokens"))), name + ": tokens");
  check(expected.at("finish_reason").string() == specdec::name(done.finish_reason), name + ": finish reason");
  const auto& wanted = expected.at("rounds").array();
  check(engine.trace().rounds().size() == wanted.size(), name + ": number of rounds");
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Round& round = engine.trace().rounds()[i];
    const Json& want = wanted[i];
    const std::string where = name + ", round " + std::to_string(i);
    check(round.k == want.at("k").integer() && round.accepted == want.at("accepted").integer(), where);
    check(specdec::name(round.reason) == want.at("reason").string(),
          where + ": " + specdec::name(round.reason));
    check(specdec::name(round.kind) == want.at("kind").string(), where + ": kind");
    check(std::ranges::equal(engine.trace().drafted(round), tokens(want.at("drafted"))), where + ": drafted");
    check(want.at("next").is_null() ? round.next == -1 : round.next == want.at("next").integer(),
          where + ": next");
  }
}

void compare(const std::string& name, const Telemetry& found, const Json& wanted) {
  const auto equal = [&](const char* key, std::int64_t value) {
    check(wanted.at(key).integer() == value, name + ": " + key);
  };
  equal("rounds", found.rounds);
  equal("drafted", found.drafted);
  equal("accepted", found.accepted);
  equal("emitted", found.emitted);
  equal("target_passes", found.target_passes);
  equal("draft_passes", found.draft_passes);
  const auto list = [&](const char* key, const Telemetry::PerPosition& values) {
    const auto in_use = std::span(values).first(static_cast<std::size_t>(found.positions));
    check(std::ranges::equal(in_use, tokens(wanted.at(key))), name + ": " + key);
  };
  list("per_position_drafted", found.per_position_drafted);
  list("per_position_judged", found.per_position_judged);
  list("per_position_accepted", found.per_position_accepted);
}

void trace(const Json& item, const LlamaWeights& target_weights, const LlamaWeights& draft_weights,
           const Tokenizer& tokenizer) {
  KvPool pool(std::vector{ReferenceLlama::arena("target", target_weights, item.at("context").integer()),
                          ReferenceLlama::arena("draft", draft_weights, item.at("draft_context").integer())},
              false);
  ReferenceLlama target(target_weights, pool.cache("target")), draft(draft_weights, pool.cache("draft"));
  Drafters drafters;
  const auto prompt = tokens(item.at("prompt_ids")), eos_ids = tokens(item.at("eos_ids"));
  const auto lookahead = item.at("policy").is_null() ? nullptr : policy(item.at("policy"));

  Request request;
  request.prompt = prompt;
  request.sampling = sampling(item.at("sampling"));
  request.max_new_tokens = item.at("max_new_tokens").integer();
  request.eos_ids = eos_ids;
  request.seed = seed(item.at("seed"));
  request.drafter = drafters.make(item.at("drafter"), draft, target.vocab_size());
  request.lookahead = lookahead.get();
  request.verifier = verifier(item.at("verifier"));
  std::int32_t seen = 0;
  if (const Json& after = item.at("cancel_after"); !after.is_null()) {
    request.on_token = [&seen, limit = after.integer()](Token) { return ++seen < limit; };
  }
  std::vector<std::string> stops;
  for (const Json& stop : item.at("stop").array()) stops.push_back(stop.string());
  if (!stops.empty()) request.stop_when = StopStrings(tokenizer, stops, false);

  Engine engine(target);
  const Generation done = engine.generate(request);
  const std::string& name = item.at("name").string();
  compare(name, engine, done, item.at("expected"));
  compare(name, done.telemetry, item.at("expected").at("telemetry"));
  check(tokenizer.decode(done.tokens) == item.at("expected").at("text").string(), name + ": text");
}

}  // namespace
}  // namespace specdec::test

int main(int, char** argv) {
  using namespace specdec;
  using namespace specdec::test;
  return run([assets = std::string(argv[1])] {
    const std::string models = assets + "/models/";
    const LlamaWeights target(models + "nano-target"), draft(models + "nano-draft");
    const Tokenizer tokenizer = Tokenizer::open(models + "nano-target/tokenizer.json");
    const Json file = golden(assets, "traces");
    for (const Json& item : file.at("cases").array()) trace(item, target, draft, tokenizer);
  });
}
