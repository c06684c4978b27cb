// The C interface over the C++ core. Every function that can fail runs inside `guard`, which turns exceptions
// into a status and a message.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "specdec/chat.h"
#include "specdec/engine.h"
#include "specdec/error.h"
#include "specdec/specdec.h"
#include "specdec/stop_strings.h"
#include "specdec/text_stream.h"
#include "specdec/tokenizer.h"

static_assert(SPECDEC_MAX_LOOKAHEAD == specdec::kMaxLookahead);
static_assert(SPECDEC_INTERNAL == static_cast<int>(specdec::Status::kInternal));

namespace specdec {
namespace {

// A fixed buffer: reporting "out of memory" must not allocate.
thread_local char last_error[512] = "";

specdec_status fail(Status status, const char* what) noexcept {
  std::size_t length = 0;
  while (length + 1 < sizeof last_error && what[length] != '\0') {
    last_error[length] = what[length];
    ++length;
  }
  last_error[length] = '\0';
  return static_cast<specdec_status>(status);
}

template <typename Body>
specdec_status guard(Body body) noexcept {
  try {
    body();
    return SPECDEC_OK;
  } catch (const Error& error) {
    return fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Status::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return fail(Status::kInternal, error.what());
  } catch (...) {
    return fail(Status::kInternal, "unknown failure");
  }
}

void need(bool given, const char* what) {
  if (!given) throw Error(Status::kInvalidArgument, std::string(what) + " is missing");
}

std::string_view text_view(const char* text, std::size_t length, const char* what) {
  need(text != nullptr || length == 0, what);
  return length == 0 ? std::string_view() : std::string_view(text, length);
}

template <typename T>
std::span<const T> span_of(const T* data, std::size_t count, const char* what) {
  need(data != nullptr || count == 0, what);
  return {data, count};
}

void give(const std::vector<Token>& ids, std::int32_t* out, std::size_t capacity, std::size_t* count) {
  *count = ids.size();
  if (ids.size() > capacity) {
    throw Error(Status::kBufferTooSmall, "room for " + std::to_string(ids.size()) + " ids is needed");
  }
  std::copy(ids.begin(), ids.end(), out);
}

// A runner of the host's, seen from inside.
class HostRunner final : public ModelRunner {
 public:
  HostRunner(const specdec_runner& host, const char* name) : host_(host), name_(name) {
    need(host.forward != nullptr && host.truncate != nullptr && host.reset != nullptr,
         "a function of a runner");
    if (host.vocab_size < 1 || host.capacity < 1) {
      throw Error(Status::kInvalidArgument, name_ + ": vocabulary and capacity must be at least 1");
    }
    if (host.head_ids != nullptr) head_ids_.assign(host.head_ids, host.head_ids + host.vocab_size);
    logits_.resize(static_cast<std::size_t>(host.vocab_size) * (kMaxLookahead + 1));
  }

  std::int32_t vocab_size() const override { return host_.vocab_size; }
  std::int32_t capacity() const override { return host_.capacity; }
  std::span<const Token> head_ids() const override { return head_ids_; }

  std::span<const float> forward(std::span<const Token> tokens) override {
    call(host_.forward(host_.self, tokens.data(), static_cast<std::int32_t>(tokens.size()), logits_.data()));
    return std::span(logits_).first(tokens.size() * static_cast<std::size_t>(host_.vocab_size));
  }

  void prefill(std::span<const Token> tokens) override {
    if (tokens.empty()) return;
    call(host_.forward(host_.self, tokens.data(), static_cast<std::int32_t>(tokens.size()), nullptr));
  }

  void truncate(std::int32_t length) override { call(host_.truncate(host_.self, length)); }
  void reset() override { call(host_.reset(host_.self)); }

 private:
  void call(std::int32_t result) const {
    if (result != 0)
      throw Error(Status::kModelFailed, name_ + ": the runner failed with " + std::to_string(result));
  }

  specdec_runner host_;
  std::string name_;
  std::vector<Token> head_ids_;
  std::vector<float> logits_;
};

// Marks the engine as in use for a scope.
class Use {
 public:
  explicit Use(std::atomic_flag& busy) : busy_(busy) {
    if (busy_.test_and_set(std::memory_order_acquire)) throw Error(Status::kBusy, "the engine is in use");
  }
  ~Use() { busy_.clear(std::memory_order_release); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic_flag& busy_;
};

std::unique_ptr<LookaheadPolicy> make_policy(const specdec_options& options) {
  std::unique_ptr<LookaheadPolicy> policy;
  if (options.confidence != 0) {
    policy = std::make_unique<ConfidenceStop>(options.lookahead, options.confidence);
  } else {
    policy = std::make_unique<FixedLookahead>(options.lookahead);
  }
  if (options.gate == 0) return policy;
  return std::make_unique<BreakEvenGate>(std::move(policy), std::nullopt, BreakEvenGate::Settings{});
}

Verifier make_verifier(std::int32_t verifier) {
  switch (verifier) {
    case SPECDEC_VERIFIER_REJECTION: return Verifier::kRejection;
    case SPECDEC_VERIFIER_MATCH: return Verifier::kMatch;
    default: throw Error(Status::kInvalidArgument, "unknown verifier");
  }
}

// Empty if there is nothing to stop at.
std::function<bool(std::span<const Token>)> make_stop(const Tokenizer* tokenizer,
                                                      const specdec_options& options) {
  std::vector<std::string> stops;
  for (const char* stop : span_of(options.stops, options.stop_count, "the stop strings")) {
    need(stop != nullptr, "a stop string");
    stops.emplace_back(stop);
  }
  if (stops.empty()) return nullptr;
  need(tokenizer != nullptr, "the tokenizer for the stop strings");
  return StopStrings(*tokenizer, std::move(stops), true);
}

}  // namespace
}  // namespace specdec

using namespace specdec;

struct specdec_tokenizer {
  Tokenizer tokenizer;
};

struct specdec_stream {
  TextStream stream;
  std::string text;
};

struct specdec_cancel_token {
  std::atomic<bool> cancelled{false};
};

struct specdec_engine {
  specdec_engine(const specdec_runner& target_runner, const specdec_runner* draft_runner)
      : target(target_runner, "target"), engine(target) {
    if (draft_runner == nullptr) return;
    draft = std::make_unique<HostRunner>(*draft_runner, "draft");
    model = std::make_unique<ModelDrafter>(*draft, target.vocab_size());
    both = std::make_unique<FirstMatch>(std::vector<Drafter*>{&lookup, model.get()});
  }

  Drafter* drafter(std::int32_t kind) {
    switch (kind) {
      case SPECDEC_DRAFTER_NONE: return nullptr;
      case SPECDEC_DRAFTER_LOOKUP: return &lookup;
      case SPECDEC_DRAFTER_MODEL: return loaded(model.get());
      case SPECDEC_DRAFTER_LOOKUP_THEN_MODEL: return loaded(both.get());
      default: throw Error(Status::kInvalidArgument, "unknown drafter");
    }
  }

  static Drafter* loaded(Drafter* drafter) {
    need(drafter != nullptr, "the draft model");
    return drafter;
  }

  HostRunner target;
  std::unique_ptr<HostRunner> draft;
  PromptLookup lookup;
  std::unique_ptr<ModelDrafter> model;
  std::unique_ptr<FirstMatch> both;
  Engine engine;
  Generation last;
  std::size_t rounds = 0;  // of the last generation that ended well
  std::atomic<std::int32_t> cap{kMaxLookahead};
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

extern "C" {

int32_t specdec_abi_version(void) { return SPECDEC_ABI_VERSION; }

const char* specdec_last_error(void) { return last_error; }

specdec_status specdec_tokenizer_open(const char* path, specdec_tokenizer** out) {
  return guard([&] {
    need(path != nullptr && out != nullptr, "the path or the place for the tokenizer");
    *out = new specdec_tokenizer{Tokenizer::open(path)};
  });
}

void specdec_tokenizer_destroy(specdec_tokenizer* tokenizer) { delete tokenizer; }

int32_t specdec_tokenizer_vocab_size(const specdec_tokenizer* tokenizer) {
  return tokenizer == nullptr ? 0 : tokenizer->tokenizer.vocab_size();
}

specdec_status specdec_encode(const specdec_tokenizer* tokenizer, const char* text, size_t length,
                              int32_t parse_special, int32_t* ids, size_t capacity, size_t* count) {
  return guard([&] {
    need(tokenizer != nullptr && count != nullptr && (ids != nullptr || capacity == 0),
         "the tokenizer or the room for ids");
    give(tokenizer->tokenizer.encode(text_view(text, length, "the text"), parse_special != 0), ids, capacity,
         count);
  });
}

specdec_status specdec_encode_chat(const specdec_tokenizer* tokenizer, const char* format,
                                   size_t format_length, const specdec_message* messages,
                                   size_t message_count, int32_t add_generation_prompt, int32_t* ids,
                                   size_t capacity, size_t* count) {
  return guard([&] {
    need(tokenizer != nullptr && count != nullptr && (ids != nullptr || capacity == 0),
         "the tokenizer or the room for ids");
    const ChatFormat chat =
        ChatFormat::from_json(Json::parse(text_view(format, format_length, "the chat format")));
    std::vector<Message> list;
    for (const specdec_message& message : span_of(messages, message_count, "the messages")) {
      need(message.role != nullptr, "a message's role");
      list.push_back(
          {message.role, text_view(message.content, message.content_length, "a message's content")});
    }
    give(chat.encode(tokenizer->tokenizer, list, add_generation_prompt != 0), ids, capacity, count);
  });
}

specdec_status specdec_stream_create(const specdec_tokenizer* tokenizer, int32_t skip_special,
                                     specdec_stream** out) {
  return guard([&] {
    need(tokenizer != nullptr && out != nullptr, "the tokenizer or the place for the stream");
    *out = new specdec_stream{TextStream(tokenizer->tokenizer, skip_special != 0), {}};
  });
}

void specdec_stream_destroy(specdec_stream* stream) { delete stream; }

specdec_status specdec_stream_push(specdec_stream* stream, int32_t id, const char** text, size_t* length) {
  return guard([&] {
    need(stream != nullptr && text != nullptr && length != nullptr, "the stream or the place for its text");
    stream->text.clear();
    stream->stream.push(id, stream->text);
    *text = stream->text.data();
    *length = stream->text.size();
  });
}

specdec_status specdec_stream_finish(specdec_stream* stream, const char** text, size_t* length) {
  return guard([&] {
    need(stream != nullptr && text != nullptr && length != nullptr, "the stream or the place for its text");
    stream->text.clear();
    stream->stream.finish(stream->text);
    *text = stream->text.data();
    *length = stream->text.size();
  });
}

specdec_status specdec_engine_create(const specdec_runner* target, const specdec_runner* draft,
                                     specdec_engine** out) {
  return guard([&] {
    need(target != nullptr && out != nullptr, "the target or the place for the engine");
    if (target->head_ids != nullptr)
      throw Error(Status::kInvalidArgument, "the target's head must not be reduced");
    *out = new specdec_engine(*target, draft);
  });
}

void specdec_engine_destroy(specdec_engine* engine) { delete engine; }

specdec_status specdec_engine_reset(specdec_engine* engine) {
  return guard([&] {
    need(engine != nullptr, "the engine");
    const Use use(engine->busy);
    engine->last = {};
    engine->rounds = 0;
    engine->engine.reset();
  });
}

specdec_status specdec_engine_set_lookahead_cap(specdec_engine* engine, int32_t cap) {
  return guard([&] {
    need(engine != nullptr && cap >= 0, "the engine or a cap of at least 0");
    engine->cap.store(cap, std::memory_order_relaxed);
  });
}

specdec_status specdec_cancel_token_create(specdec_cancel_token** out) {
  return guard([&] {
    need(out != nullptr, "the place for the cancel token");
    *out = new specdec_cancel_token;
  });
}

void specdec_cancel_token_destroy(specdec_cancel_token* token) { delete token; }

void specdec_cancel(specdec_cancel_token* token) {
  if (token != nullptr) token->cancelled.store(true, std::memory_order_relaxed);
}

specdec_options specdec_options_default(void) {
  specdec_options options{};
  options.top_p = 1.0;
  options.max_new_tokens = 128;
  options.drafter = SPECDEC_DRAFTER_MODEL;
  options.lookahead = 4;
  return options;
}

specdec_status specdec_generate(specdec_engine* engine, const int32_t* prompt, size_t prompt_count,
                                const specdec_options* options, specdec_on_token on_token, void* user) {
  return guard([&] {
    need(engine != nullptr && options != nullptr, "the engine or the options");
    const Use use(engine->busy);
    engine->last = {};
    engine->rounds = 0;
    const auto policy = make_policy(*options);
    Request request;
    request.prompt = span_of(prompt, prompt_count, "the prompt");
    request.sampling = {options->temperature, options->top_k, options->top_p, options->min_p};
    request.max_new_tokens = options->max_new_tokens;
    request.eos_ids = span_of(options->eos_ids, options->eos_count, "the eos ids");
    request.seed = options->seed;
    request.drafter = engine->drafter(options->drafter);
    request.lookahead = policy.get();
    request.verifier = make_verifier(options->verifier);
    request.k_cap = &engine->cap;
    if (options->cancel != nullptr) request.cancel = &options->cancel->cancelled;
    request.stop_when =
        make_stop(options->tokenizer == nullptr ? nullptr : &options->tokenizer->tokenizer, *options);
    if (on_token != nullptr) request.on_token = [=](Token token) { return on_token(user, token) != 0; };
    engine->last = engine->engine.generate(request);
    engine->rounds = engine->engine.trace().rounds().size();
  });
}

specdec_status specdec_engine_tokens(const specdec_engine* engine, const int32_t** tokens, size_t* count) {
  return guard([&] {
    need(engine != nullptr && tokens != nullptr && count != nullptr,
         "the engine or the place for its tokens");
    *tokens = engine->last.tokens.data();
    *count = engine->last.tokens.size();
  });
}

specdec_status specdec_engine_telemetry(const specdec_engine* engine, specdec_telemetry* out) {
  return guard([&] {
    need(engine != nullptr && out != nullptr, "the engine or the place for its telemetry");
    const Telemetry& t = engine->last.telemetry;
    *out = {static_cast<std::int32_t>(engine->last.finish_reason),
            engine->last.prefill_seconds,
            engine->last.decode_seconds,
            t.rounds,
            t.drafted,
            t.accepted,
            t.emitted,
            t.target_passes,
            t.draft_passes,
            t.positions,
            {},
            {},
            {}};
    std::copy(t.per_position_drafted.begin(), t.per_position_drafted.end(), out->per_position_drafted);
    std::copy(t.per_position_judged.begin(), t.per_position_judged.end(), out->per_position_judged);
    std::copy(t.per_position_accepted.begin(), t.per_position_accepted.end(), out->per_position_accepted);
  });
}

specdec_status specdec_engine_round(const specdec_engine* engine, size_t index, specdec_round* out) {
  return guard([&] {
    need(engine != nullptr && out != nullptr, "the engine or the place for the round");
    if (index >= engine->rounds) throw Error(Status::kInvalidArgument, "there is no such round");
    const Trace& trace = engine->engine.trace();
    const Round& round = trace.rounds()[index];
    *out = {round.k,    name(round.reason), trace.drafted(round).data(), round.drafted, round.accepted,
            round.next, name(round.kind)};
  });
}

}  // extern "C"
