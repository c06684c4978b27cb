// A bounded random driver of the C interface: any arguments, any order, a model that fails now and then.
// Nothing may crash (the sanitizers watch), every answer must be true, and an engine must be as new after a
// reset.
//
//     fuzz_c_api ASSETS [SEED] [ITERATIONS]
#include <cmath>
#include <random>
#include <thread>

#include "mock_runner.h"
#include "specdec/json.h"
#include "specdec/specdec.h"
#include "specdec/tokenizer.h"

namespace specdec::test {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  int upto(int most) { return static_cast<int>(engine_() % (static_cast<std::uint64_t>(most) + 1)); }
  bool one_in(int n) { return upto(n - 1) == 0; }
  template <typename T>
  T any(std::initializer_list<T> values) {
    return values.begin()[upto(static_cast<int>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// A mock behind the C table of functions.
struct HostMock {
  explicit HostMock(MockSettings settings) : mock(settings), ids(settings.head_ids) {}

  template <typename Act>
  static std::int32_t attempt(Act act) {
    try {
      act();
      return 0;
    } catch (const Error&) {
      return 42;
    }
  }

  specdec_runner table() {
    specdec_runner runner{};
    runner.self = &mock;
    runner.vocab_size = mock.vocab_size();
    runner.capacity = mock.capacity();
    runner.head_ids = ids.empty() ? nullptr : ids.data();
    runner.forward = [](void* self, const int32_t* tokens, int32_t count, float* logits) {
      return attempt([&] {
        auto& model = *static_cast<MockRunner*>(self);
        const std::span<const Token> fed(tokens, static_cast<std::size_t>(count));
        if (logits == nullptr) return model.prefill(fed);
        std::ranges::copy(model.forward(fed), logits);
      });
    };
    runner.truncate = [](void* self, int32_t length) {
      return attempt([&] { static_cast<MockRunner*>(self)->truncate(length); });
    };
    runner.reset = [](void* self) { return attempt([&] { static_cast<MockRunner*>(self)->reset(); }); };
    return runner;
  }

  MockRunner mock;
  std::vector<Token> ids;
};

struct Pair {
  explicit Pair(bool with_draft) {
    const specdec_runner t = target.table(), d = draft.table();
    check(specdec_engine_create(&t, with_draft ? &d : nullptr, &engine) == SPECDEC_OK);
  }
  ~Pair() { specdec_engine_destroy(engine); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  HostMock target{{24, 64, 0.0, {}}}, draft{{24, 48, 0.3, {0, 1, 2, 3, 5, 8, 13, 21}}};
  specdec_engine* engine = nullptr;
};

specdec_options random_options(Dice& dice) {
  specdec_options options = specdec_options_default();
  options.temperature = dice.any({0.0, 0.0, 0.7, 1.0, 1e-30, 1e30, -1.0, static_cast<double>(NAN)});
  options.top_k = dice.any({0, 0, 1, 5, 1000, -1});
  options.top_p = dice.any({1.0, 1.0, 0.9, 1e-9, 0.0, 1.5});
  options.min_p = dice.any({0.0, 0.0, 0.1, 1.0, -0.1});
  options.seed = static_cast<std::uint64_t>(dice.upto(1 << 30));
  options.max_new_tokens = dice.any({0, 1, 7, 30, 30, 1 << 30, INT32_MAX, -1});
  options.drafter = dice.any({0, 1, 1, 2, 3, 3, 4, -1});
  options.verifier = dice.any({0, 0, 1, 1, 2});
  options.lookahead = dice.any({0, 1, 4, 8, 16, 17, -1});
  options.confidence = dice.any({0.0, 0.0, 0.3, 1.0, 1.1});
  options.gate = dice.upto(1);
  return options;
}

struct Heard {
  std::vector<Token> tokens;
  int cancel_after;
  specdec_engine* engine;
};

std::int32_t on_token(void* user, std::int32_t token) {
  auto& heard = *static_cast<Heard*>(user);
  heard.tokens.push_back(token);
  if (heard.tokens.size() == 1) {  // the engine must refuse to be used from its own callback
    const specdec_options options = specdec_options_default();
    check(specdec_generate(heard.engine, &token, 1, &options, nullptr, nullptr) == SPECDEC_BUSY);
    check(specdec_engine_reset(heard.engine) == SPECDEC_BUSY);
  }
  return static_cast<int>(heard.tokens.size()) != heard.cancel_after;
}

void check_result(const Pair& pair, const Heard& heard, const specdec_options& options, std::size_t prompt) {
  const std::int32_t* tokens = nullptr;
  std::size_t count = 0;
  specdec_telemetry t{};
  check(specdec_engine_tokens(pair.engine, &tokens, &count) == SPECDEC_OK);
  check(specdec_engine_telemetry(pair.engine, &t) == SPECDEC_OK);
  check(std::ranges::equal(std::span(tokens, count), heard.tokens), "the callback heard every token");
  check(count <= static_cast<std::size_t>(options.max_new_tokens) && prompt + count <= 64);
  check(t.emitted == static_cast<std::int64_t>(count) && t.rounds == t.target_passes &&
        t.accepted <= t.drafted);
  std::int64_t emitted = 0, drafted = 0;
  specdec_round round{};
  for (std::int64_t i = 0; i < t.rounds; ++i) {
    check(specdec_engine_round(pair.engine, static_cast<std::size_t>(i), &round) == SPECDEC_OK);
    check(round.drafted_count <= round.k && round.accepted <= round.drafted_count &&
          round.k <= options.lookahead);
    emitted += round.accepted + (round.next >= 0 ? 1 : 0);
    drafted += round.drafted_count;
  }
  check(emitted == t.emitted && drafted == t.drafted);
  check(specdec_engine_round(pair.engine, static_cast<std::size_t>(t.rounds), &round) ==
        SPECDEC_INVALID_ARGUMENT);
}

struct Cancel {
  Cancel() { check(specdec_cancel_token_create(&token) == SPECDEC_OK); }
  ~Cancel() { specdec_cancel_token_destroy(token); }
  Cancel(const Cancel&) = delete;
  Cancel& operator=(const Cancel&) = delete;
  specdec_cancel_token* token = nullptr;
};

void drive_engine(Dice& dice, const specdec_tokenizer* tokenizer) {
  const bool with_draft = !dice.one_in(4);
  Pair pair(with_draft);
  bool poisoned = false;
  for (int step = 0; step < 8; ++step) {
    if (dice.one_in(3)) {
      check(specdec_engine_reset(pair.engine) == SPECDEC_OK);
      poisoned = false;
    }
    specdec_options options = random_options(dice);
    std::vector<Token> prompt(static_cast<std::size_t>(dice.any({1, 5, 20, 63, 64, 65, 0})));
    for (Token& token : prompt) token = dice.one_in(200) ? dice.any({-1, 24, INT32_MIN}) : dice.upto(23);
    const Cancel cancel;
    if (dice.one_in(3)) options.cancel = cancel.token;
    if (dice.one_in(6)) specdec_cancel(cancel.token);
    const char* const stops[] = {"\"", dice.any<const char*>({"#", "", "nowhere"})};
    if (dice.one_in(3)) options.stops = stops, options.stop_count = 2;
    if (!dice.one_in(4)) options.tokenizer = tokenizer;
    check(specdec_engine_set_lookahead_cap(pair.engine, dice.any({0, 2, 16, 100})) == SPECDEC_OK);
    HostMock& fails = dice.one_in(2) ? pair.target : pair.draft;
    if (dice.one_in(3)) fails.mock.fail_at(dice.upto(6));
    if (dice.one_in(6)) fails.mock.nan_at(dice.upto(6));

    Heard heard{{}, dice.any({-1, -1, 1, 5}), pair.engine};
    const specdec_status status =
        specdec_generate(pair.engine, prompt.data(), prompt.size(), &options, on_token, &heard);
    pair.target.mock.fail_at(-1), pair.draft.mock.fail_at(-1);
    pair.target.mock.nan_at(-1), pair.draft.mock.nan_at(-1);
    check(!poisoned || status != SPECDEC_OK, "a poisoned engine does not generate");
    check(status <= SPECDEC_POISONED, specdec_last_error());
    if (status == SPECDEC_OK) check_result(pair, heard, options, prompt.size());
    if (status != SPECDEC_OK) check(specdec_last_error()[0] != '\0', "a failure says why");
    poisoned |= status == SPECDEC_MODEL_FAILED;
  }
  // However it was treated: after a reset it answers like a new one.
  specdec_options options = specdec_options_default();
  options.drafter = with_draft ? SPECDEC_DRAFTER_LOOKUP_THEN_MODEL : SPECDEC_DRAFTER_LOOKUP;
  options.temperature = 1.0;
  options.max_new_tokens = 20;
  const std::vector<Token> prompt{3, 1, 4, 1, 5, 3, 1};
  Pair fresh(with_draft);
  check(specdec_engine_reset(pair.engine) == SPECDEC_OK &&
        specdec_engine_set_lookahead_cap(pair.engine, 16) == SPECDEC_OK);
  Heard first{{}, -1, pair.engine}, second{{}, -1, fresh.engine};
  check(specdec_generate(pair.engine, prompt.data(), prompt.size(), &options, on_token, &first) ==
        SPECDEC_OK);
  check(specdec_generate(fresh.engine, prompt.data(), prompt.size(), &options, on_token, &second) ==
        SPECDEC_OK);
  check(first.tokens == second.tokens && first.tokens.size() == 20, "as new after a reset");
}

void drive_tokenizer(Dice& dice, const specdec_tokenizer* tokenizer) {
  std::string text;
  for (int i = dice.upto(40); i > 0; --i) {
    text += dice.any<const char*>(
        {"a", " ", "the ", "\n", "7", "<|im_end|>", "\xC3\xA9", "\xF0\x9F\x91\x8D", "'s", "\r\n"});
    if (dice.one_in(50)) text += static_cast<char>(dice.upto(255));
  }
  std::vector<Token> ids(static_cast<std::size_t>(dice.any({0, 1, 1000})));
  std::size_t count = 0;
  const int special = dice.upto(1);
  const specdec_status status =
      specdec_encode(tokenizer, text.data(), text.size(), special, ids.data(), ids.size(), &count);
  check(status == SPECDEC_OK || status == SPECDEC_BUFFER_TOO_SMALL || status == SPECDEC_INVALID_ARGUMENT);
  check(status != SPECDEC_BUFFER_TOO_SMALL || count > ids.size());
  check(count <= text.size(), "no more ids than bytes");
  if (status != SPECDEC_OK) return;
  ids.resize(count);
  specdec_stream* stream = nullptr;
  check(specdec_stream_create(tokenizer, 0, &stream) == SPECDEC_OK);
  std::string again;
  const char* piece = nullptr;
  std::size_t length = 0;
  for (const Token id : ids) {
    check(specdec_stream_push(stream, id, &piece, &length) == SPECDEC_OK);
    again.append(piece, length);
  }
  check(specdec_stream_finish(stream, &piece, &length) == SPECDEC_OK && length == 0);
  check(again == text, "text survives");
  check(specdec_stream_push(stream, dice.any({-1, 1 << 30, 5}), &piece, &length) == SPECDEC_OK);
  specdec_stream_destroy(stream);
}

// Mutated files and formats must be refused or read, never crash.
void drive_json(Dice& dice, const specdec_tokenizer* tokenizer, const std::string& whole) {
  std::string format =
      R"({"opening": "", "system": ["s", ""], "user": ["<|im_start|>", "\n"], "assistant": ["", "\u00e9"], "generation": ":"})";
  for (int i = dice.upto(3); i > 0; --i) {
    format[static_cast<std::size_t>(dice.upto(static_cast<int>(format.size()) - 1))] =
        static_cast<char>(dice.upto(255));
  }
  const specdec_message message{"user", "x", 1};
  std::size_t count = 0;
  const specdec_status status =
      specdec_encode_chat(tokenizer, format.data(), format.size(), &message, 1, 1, nullptr, 0, &count);
  check(status == SPECDEC_BUFFER_TOO_SMALL || status == SPECDEC_BAD_FILE ||
        status == SPECDEC_INVALID_ARGUMENT);
  if (!dice.one_in(20)) return;
  std::string file = whole;
  for (int i = 1 + dice.upto(3); i > 0; --i) {
    file[static_cast<std::size_t>(dice.upto(static_cast<int>(file.size()) - 1))] =
        static_cast<char>(dice.upto(255));
  }
  try {
    const Tokenizer read(Json::parse(file));
    read.decode(read.encode("The cat sat."));
  } catch (const Error& error) {
    check(error.status() == Status::kBadFile, error.what());
  }
}

void nulls_are_refused() {
  const specdec_options options = specdec_options_default();
  specdec_telemetry telemetry;
  specdec_runner empty{};
  specdec_engine* engine = nullptr;
  check(specdec_abi_version() == SPECDEC_ABI_VERSION);
  for (const specdec_status status :
       {specdec_tokenizer_open(nullptr, nullptr), specdec_encode(nullptr, "", 0, 0, nullptr, 0, nullptr),
        specdec_stream_create(nullptr, 0, nullptr), specdec_stream_push(nullptr, 0, nullptr, nullptr),
        specdec_stream_finish(nullptr, nullptr, nullptr), specdec_engine_create(nullptr, nullptr, &engine),
        specdec_engine_create(&empty, nullptr, &engine), specdec_engine_reset(nullptr),
        specdec_engine_set_lookahead_cap(nullptr, 1), specdec_cancel_token_create(nullptr),
        specdec_generate(nullptr, nullptr, 0, &options, nullptr, nullptr),
        specdec_engine_tokens(nullptr, nullptr, nullptr), specdec_engine_telemetry(nullptr, &telemetry),
        specdec_engine_round(nullptr, 0, nullptr)}) {
    check(status == SPECDEC_INVALID_ARGUMENT && specdec_last_error()[0] != '\0');
  }
  specdec_tokenizer_destroy(nullptr), specdec_stream_destroy(nullptr), specdec_engine_destroy(nullptr);
  specdec_cancel_token_destroy(nullptr), specdec_cancel(nullptr);
  check(specdec_tokenizer_vocab_size(nullptr) == 0);
  specdec_tokenizer* tokenizer = nullptr;
  check(specdec_tokenizer_open("nowhere.json", &tokenizer) == SPECDEC_BAD_FILE && tokenizer == nullptr);
}

// Another thread cancels in the middle and moves the cap all the while.
void cancel_from_another_thread() {
  Pair pair(true);
  const Cancel cancel;
  specdec_options options = specdec_options_default();
  options.max_new_tokens = 40;
  options.cancel = cancel.token;
  const Token prompt = 1;
  std::atomic<bool> begun{false}, cancelled{false};
  struct Wait {
    std::atomic<bool>&begun, &cancelled;
  } wait{begun, cancelled};
  std::thread other([&] {
    while (!begun) std::this_thread::yield();
    for (int cap = 0; cap < 100; ++cap) specdec_engine_set_lookahead_cap(pair.engine, cap % 5);
    specdec_cancel(cancel.token);
    cancelled = true;
  });
  const auto waiting = [](void* user, std::int32_t) -> std::int32_t {
    auto& shared = *static_cast<Wait*>(user);
    shared.begun = true;
    while (!shared.cancelled) std::this_thread::yield();
    return 1;
  };
  check(specdec_generate(pair.engine, &prompt, 1, &options, waiting, &wait) == SPECDEC_OK);
  other.join();
  specdec_telemetry t{};
  check(specdec_engine_telemetry(pair.engine, &t) == SPECDEC_OK);
  check(t.finish == SPECDEC_FINISH_CANCELLED && t.emitted == 1);
}

}  // namespace
}  // namespace specdec::test

int main(int argc, char** argv) {
  using namespace specdec::test;
  return run([&] {
    const std::string path = std::string(argv[1]) + "/models/nano-target/tokenizer.json";
    const std::uint64_t seed = argc > 2 ? std::stoull(argv[2]) : 1;
    const int iterations = argc > 3 ? std::stoi(argv[3]) : 400;
    nulls_are_refused();
    cancel_from_another_thread();
    specdec_tokenizer* tokenizer = nullptr;
    check(specdec_tokenizer_open(path.c_str(), &tokenizer) == SPECDEC_OK, specdec_last_error());
    const std::string json = specdec::read_file(path);
    for (int i = 0; i < iterations; ++i) {
      Dice dice(seed * 1000003 + static_cast<std::uint64_t>(i));
      drive_engine(dice, tokenizer);
      drive_tokenizer(dice, tokenizer);
      drive_json(dice, tokenizer, json);
    }
    specdec_tokenizer_destroy(tokenizer);
  });
}
