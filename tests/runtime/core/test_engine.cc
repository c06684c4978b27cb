// What the engine promises beyond golden traces: no allocation per round, exact budgets, cancellation, a cap
// on K from outside, and after any failure a poisoned state that only reset leaves.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>

#include "mock_runner.h"
#include "specdec/engine.h"

namespace {
std::atomic<long> allocations{0};
}

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace specdec::test {
namespace {

const std::vector<Token> kPrompt{1, 2, 3, 4, 5, 1, 2, 3};
const Sampling kProcessed{0.9, 12, 0.9, 0.02};

// A pair with all its drafters.
struct Setup {
  explicit Setup(std::int32_t capacity = 96, std::vector<Token> head_ids = {}, double noise = 0.3)
      : target({24, capacity, 0.0, {}}),
        draft({24, capacity, noise, std::move(head_ids)}),
        model(draft, 24),
        engine(target) {}

  Request request(Drafter* drafter = nullptr, Sampling sampling = {}) {
    Request r;
    r.prompt = kPrompt;
    r.sampling = sampling;
    r.max_new_tokens = 40;
    r.seed = 5;
    r.drafter = drafter;
    r.lookahead = &policy;
    return r;
  }

  MockRunner target, draft;
  ModelDrafter model;
  PromptLookup lookup;
  FirstMatch both{{&lookup, &model}};
  FixedLookahead policy{4};
  Engine engine;
};

std::vector<Token> texts(Setup& setup, const Request& request) {
  const auto tokens = setup.engine.generate(request).tokens;
  return {tokens.begin(), tokens.end()};
}

void speculation_changes_nothing_at_temperature_0() {
  Setup setup;
  const auto plain = texts(setup, setup.request());
  check(plain.size() == 40);
  Setup reduced(96, {0, 2, 3, 5, 7, 11, 13, 17, 19, 23});
  for (Setup* s : {&setup, &reduced}) {
    for (Drafter* drafter : {static_cast<Drafter*>(&s->model), static_cast<Drafter*>(&s->lookup),
                             static_cast<Drafter*>(&s->both)}) {
      for (std::int32_t k = 0; k <= kMaxLookahead; ++k) {
        s->policy = FixedLookahead(k);
        check(texts(*s, s->request(drafter)) == plain, "K = " + std::to_string(k));
      }
    }
  }
  check(setup.engine.trace().rounds().size() < 40, "some drafts were accepted");
}

void matching_gives_plain_decodings_text_for_the_same_seed() {
  Setup setup;
  const auto plain = texts(setup, setup.request(nullptr, kProcessed));
  Request request = setup.request(&setup.both, kProcessed);
  request.verifier = Verifier::kMatch;
  check(texts(setup, request) == plain);
}

void the_cache_holds_the_text_after_every_round() {
  Setup setup;
  for (const double temperature : {0.0, 1.0}) {
    Request request = setup.request(&setup.both, {temperature});
    const Generation done = setup.engine.generate(request);
    std::vector<Token> text = kPrompt;
    text.insert(text.end(), done.tokens.begin(), done.tokens.end());
    check(std::ranges::equal(setup.target.held(), std::span(text).first(text.size() - 1)));
  }
}

void rounds_allocate_nothing() {
  for (const Sampling& sampling : {Sampling{}, Sampling{1.0}, kProcessed}) {
    Setup setup(96, {0, 2, 3, 5, 7, 11, 13, 17, 19, 23});
    for (Drafter* drafter : {static_cast<Drafter*>(nullptr), static_cast<Drafter*>(&setup.both)}) {
      Request request = setup.request(drafter, sampling);
      request.max_new_tokens = 80;
      long first = 0, last = 0, seen = 0;
      request.on_token = [&](Token) {
        (seen++ == 0 ? first : last) = allocations.load();
        return true;
      };
      setup.engine.generate(request);
      check(seen == 80 && first == last, std::to_string(last - first) + " allocations after the first token");
    }
  }
}

// Resident memory of this process in bytes.
std::size_t resident() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, pages = 0;
  file >> total >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

void memory_stays_flat_over_ten_thousand_tokens() {
  Setup setup(10'100);
  Request request = setup.request(&setup.both, Sampling{1.0});
  request.max_new_tokens = 10'000;
  long seen = 0, first = 0, last = 0;
  std::size_t early = 0, late = 0;
  request.on_token = [&](Token) {
    last = allocations.load();
    if (++seen == 1000) {
      early = resident();
      first = last = allocations.load();  // reading it allocates
    } else if (seen == 10'000) {
      late = resident();
    }
    return true;
  };
  setup.engine.generate(request);
  check(seen == 10'000 && first == last, "no allocation");
  check(early > 0 && late < early + (1 << 20), "only what was set aside is touched: below 1 MiB");
}

void budgets_are_exact() {
  Setup setup(20);
  for (std::int32_t budget = 0; budget <= 20; ++budget) {
    for (Drafter* drafter : {static_cast<Drafter*>(nullptr), static_cast<Drafter*>(&setup.model)}) {
      Request request = setup.request(drafter);
      request.max_new_tokens = budget;
      const Generation done = setup.engine.generate(request);
      check(done.tokens.size() == static_cast<std::size_t>(std::min(budget, 12)));
      check(done.finish_reason == (budget <= 12 ? FinishReason::kLength : FinishReason::kContext));
      check(done.telemetry.emitted == static_cast<std::int64_t>(done.tokens.size()));
    }
  }
}

void bad_arguments_poison_nothing() {
  Setup setup;
  const auto refused = [&](auto change, Status status = Status::kInvalidArgument) {
    Request request = setup.request(&setup.model);
    change(request);
    refuses(status, [&] { setup.engine.generate(request); });
    check(!setup.engine.poisoned());
  };
  const std::vector<Token> outside{1, 24}, negative{-1}, longer(97, 1);
  refused([](Request& r) { r.prompt = {}; });
  refused([&](Request& r) { r.prompt = outside; });
  refused([&](Request& r) { r.prompt = negative; });
  refused([](Request& r) { r.max_new_tokens = -1; });
  refused([](Request& r) { r.sampling.top_p = 0; });
  refused([](Request& r) { r.lookahead = nullptr; });
  refused([&](Request& r) { r.prompt = longer; }, Status::kPromptTooLong);
  check(texts(setup, setup.request()).size() == 40);
}

void any_failure_poisons_until_reset() {
  for (const double temperature : {0.0, 1.0}) {
    Setup fresh;
    const auto expected = texts(fresh, fresh.request(&fresh.both, {temperature}));
    const int target_calls = fresh.target.calls(), draft_calls = fresh.draft.calls();
    check(target_calls > 5 && draft_calls > 5);
    for (const bool nan : {false, true}) {
      for (int call = 0; call < target_calls + draft_calls; ++call) {
        Setup setup;
        MockRunner& runner = call < target_calls ? setup.target : setup.draft;
        const int at = call < target_calls ? call : call - target_calls;
        // Prefill has no logits that could be NaN: one call less.
        if (nan && at == 0) continue;
        nan ? runner.nan_at(at - 1) : runner.fail_at(at);
        const Request request = setup.request(&setup.both, {temperature});
        refuses(Status::kModelFailed, [&] { setup.engine.generate(request); });
        refuses(Status::kPoisoned, [&] { setup.engine.generate(request); });
        setup.engine.reset();
        check(texts(setup, request) == expected, "after reset as from the start");
      }
    }
  }
}

void cancelling() {
  Setup setup;
  std::atomic<bool> cancel{true};
  Request request = setup.request(&setup.model);
  request.cancel = &cancel;
  Generation done = setup.engine.generate(request);
  check(done.finish_reason == FinishReason::kCancelled && done.tokens.empty() && setup.target.calls() == 0);
  for (int after = 1; after <= 12; ++after) {
    cancel = false;
    int seen = 0;
    request.on_token = [&](Token) {
      cancel = ++seen == after;
      return true;
    };
    done = setup.engine.generate(request);
    check(done.finish_reason == FinishReason::kCancelled &&
          done.tokens.size() == static_cast<std::size_t>(after));
    check(done.telemetry.emitted == after && !setup.engine.poisoned());
  }
}

void a_cap_from_outside_holds_from_the_next_round() {
  Setup setup;
  std::atomic<std::int32_t> cap{2};
  Request request = setup.request(&setup.model);
  request.k_cap = &cap;
  int seen = 0;
  request.on_token = [&](Token) {
    if (++seen == 20) cap = 0;
    return true;
  };
  setup.engine.generate(request);
  bool closed = false;
  for (const Round& round : setup.engine.trace().rounds()) {
    check(round.k <= 2 && (round.reason == Reason::kCap || round.reason == Reason::kBudget));
    check(!closed || round.k == 0);
    closed |= round.k == 0;
  }
  check(closed);
}

void callers_end_the_text() {
  Setup setup;
  const auto plain = texts(setup, setup.request());
  Request request = setup.request(&setup.model);
  const std::vector<Token> eos{plain[6]};
  request.eos_ids = eos;
  Generation done = setup.engine.generate(request);
  check(done.finish_reason == FinishReason::kEos && done.tokens.back() == plain[6]);
  request.eos_ids = {};
  request.stop_when = [](std::span<const Token> generated) { return generated.size() == 9; };
  done = setup.engine.generate(request);
  check(done.finish_reason == FinishReason::kStop && done.tokens.size() == 9);
}

}  // namespace
}  // namespace specdec::test

int main() {
  using namespace specdec::test;
  return run([] {
    speculation_changes_nothing_at_temperature_0();
    matching_gives_plain_decodings_text_for_the_same_seed();
    the_cache_holds_the_text_after_every_round();
    rounds_allocate_nothing();
    memory_stays_flat_over_ten_thousand_tokens();
    budgets_are_exact();
    bad_arguments_poison_nothing();
    any_failure_poisons_until_reset();
    cancelling();
    a_cap_from_outside_holds_from_the_next_round();
    callers_end_the_text();
  });
}
