// Every golden case of the parts that need no model: uniforms, drawing, distributions, judging, lookup,
// policies.
#include <algorithm>
#include <cmath>
#include <limits>

#include "golden.h"
#include "specdec/acceptance.h"
#include "specdec/philox.h"

namespace specdec::test {
namespace {

std::uint32_t word(const Json& value) { return static_cast<std::uint32_t>(value.number()); }

void philox(const Json& file) {
  for (const Json& block : file.at("blocks").array()) {
    const auto &c = block.at("counter").array(), &k = block.at("key").array(), &w = block.at("words").array();
    const PhiloxCounter words =
        philox4x32({word(c[0]), word(c[1]), word(c[2]), word(c[3])}, {word(k[0]), word(k[1])});
    check(words == PhiloxCounter{word(w[0]), word(w[1]), word(w[2]), word(w[3])}, "words of a block");
  }
  for (const Json& item : file.at("uniforms").array()) {
    const std::string& name = item.at("purpose").string();
    const Purpose purpose = name == "target"  ? Purpose::kTarget
                            : name == "draft" ? Purpose::kDraft
                                              : Purpose::kAccept;
    const Uniforms uniforms(seed(item.at("seed")));
    check(uniforms(word(item.at("round")), word(item.at("slot")), purpose) == item.at("uniform").number(),
          "uniform");
  }
}

void drawing(const Json& file) {
  for (const Json& item : file.at("cases").array()) {
    const Token token = draw(floats(item.at("weights")), item.at("uniform").number());
    check(token == item.at("token").integer(), item.at("name").string());
  }
}

void processors(const Json& file) {
  const double tolerance = file.at("tolerances").at("probabilities").number();
  Distribution distribution;
  for (const Json& item : file.at("cases").array()) {
    const auto logits = floats(item.at("logits")), wanted = floats(item.at("probabilities"));
    std::vector<float> found(logits.size());
    distribution(logits, sampling(item.at("sampling")), found);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      check(std::fabs(found[i] - wanted[i]) <= tolerance && (found[i] == 0) == (wanted[i] == 0),
            item.at("name").string() + ", token " + std::to_string(i));
    }
  }
}

void acceptance(const Json& file) {
  for (const Json& item : file.at("cases").array()) {
    const Judgement judged =
        accept_or_resample(floats(item.at("p")), floats(item.at("q")), item.at("token").integer(),
                           item.at("u_accept").number(), item.at("u_resample").number());
    check(judged.accepted == item.at("accepted").boolean() && judged.token == item.at("result").integer(),
          "judgement");
  }
}

void verifiers(const Json& file) {
  Judge judge;
  for (const Json& item : file.at("cases").array()) {
    const auto logits = rows(item.at("logits"));
    Draft draft;
    draft.tokens = tokens(item.at("drafted"));
    draft.vocab_size = logits.size() / (draft.tokens.size() + 1);
    draft.one_hot = item.at("q").is_null();
    if (!draft.one_hot) draft.q = rows(item.at("q"));
    const Verdict found =
        judge(logits, draft, verifier(item.at("verifier")), sampling(item.at("sampling")),
              Uniforms(seed(item.at("seed"))), word(item.at("round")), word(item.at("emitted")));
    const Json& wanted = item.at("verdict");
    check(found.accepted == wanted.at("accepted").integer() && found.next == wanted.at("next").integer() &&
              name(found.kind) == wanted.at("kind").string(),
          item.at("name").string());
  }
}

void lookup(const Json& file) {
  for (const Json& item : file.at("cases").array()) {
    PromptLookup drafter(item.at("longest").integer(), item.at("shortest").integer());
    const auto& calls = item.at("calls").array();
    drafter.begin(tokens(calls[0].at("tokens")), 1000);
    for (const Json& call : calls) {
      const auto text = tokens(call.at("tokens"));
      Draft draft;
      const auto reason = drafter.propose({text, call.at("k").integer(), {}, Uniforms(0), 0}, draft);
      check(draft.tokens == tokens(call.at("drafted")), item.at("name").string());
      check(reason ? call.at("reason").string() == name(*reason) : call.at("reason").is_null(), "reason");
    }
  }
}

void policies(const Json& file) {
  for (const Json& item : file.at("cases").array()) {
    const auto tested = policy(item.at("policy"));
    const auto* gate = dynamic_cast<BreakEvenGate*>(tested.get());
    for (const Json& step : item.at("steps").array()) {
      const Lookahead next = tested->next_k();
      check(next.k == step.at("k").integer() && name(next.reason) == step.at("reason").string(),
            item.at("name").string());
      tested->observe({step.at("drafted").integer(), step.at("emitted").integer(), next.reason,
                       step.at("seconds").at("draft").number(), step.at("seconds").at("total").number()});
      if (gate == nullptr) continue;
      const Json& gain = step.at("gain");
      check(gate->gain() ? *gate->gain() == gain.number() : gain.is_null(),
            item.at("name").string() + ": gain");
    }
  }
  for (const Json& item : file.at("confident").array()) {
    check(policy(item.at("policy"))->confident(item.at("probability").number()) ==
          item.at("confident").boolean());
  }
  for (const Json& item : file.at("round_costs").array()) {
    check(costs(item.at("costs")).round_cost(item.at("drafted").integer()) == item.at("cost").number(),
          "round cost");
  }
}

void what_no_golden_case_says() {
  Distribution distribution;
  std::vector<float> p(3);
  distribution(std::vector<float>{3e38f, 1.0f, 3e38f}, Sampling{1e-3}, p);
  check(p == std::vector<float>{1, 0, 0}, "logits that overflow when divided by the temperature: greedy");
  const std::vector<float> nan{0.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f};
  for (const double temperature : {0.0, 1.0}) {
    refuses(Status::kModelFailed, [&] { distribution(nan, Sampling{temperature}, p); });
  }
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Sampling& bad :
       {Sampling{-1}, Sampling{infinity}, Sampling{0, -1}, Sampling{0, 0, 0}, Sampling{0, 0, 1.1},
        Sampling{0, 0, 1, -0.1}, Sampling{std::nan("")}, Sampling{0, 0, std::nan("")}}) {
    refuses(Status::kInvalidArgument, [&] { bad.validate(); });
  }
  refuses(Status::kInvalidArgument, [] { FixedLookahead(kMaxLookahead + 1); });
  refuses(Status::kInvalidArgument, [] { ConfidenceStop(4, 1.5); });
  refuses(Status::kInvalidArgument, [] { Costs(0.1, {{0, 1.0}}); });
  refuses(Status::kInvalidArgument, [] { PromptLookup(2, 3); });
}

}  // namespace
}  // namespace specdec::test

int main(int, char** argv) {
  using namespace specdec::test;
  return run([assets = std::string(argv[1])] {
    philox(golden(assets, "philox"));
    drawing(golden(assets, "draw"));
    processors(golden(assets, "processors"));
    acceptance(golden(assets, "acceptance"));
    verifiers(golden(assets, "verifiers"));
    lookup(golden(assets, "lookup"));
    policies(golden(assets, "policies"));
    what_no_golden_case_says();
  });
}
