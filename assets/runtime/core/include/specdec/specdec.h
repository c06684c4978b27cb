/* The C interface of the runtime core: what Swift, Kotlin (through JNI) and any other host program call.
 *
 * Rules that hold everywhere:
 *  - No exception crosses this interface. Functions that can fail return a specdec_status;
 * specdec_last_error() then gives one line in the calling thread.
 *  - Text is UTF-8 with a length in bytes; it need not end in a zero byte, and may hold some.
 *  - Handles are opaque. NULL where a handle or pointer is needed is SPECDEC_INVALID_ARGUMENT, not a crash;
 * *_destroy(NULL) does nothing.
 *  - An engine serves one thread at a time (a second generation or reset gets SPECDEC_BUSY). What the last
 * generation left (tokens, rounds, telemetry) is to be read when it has ended, not beside it. Tokenizers may
 * be shared by threads, streams may not. Cancel tokens are for any thread.
 */
#ifndef SPECDEC_H
#define SPECDEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECDEC_ABI_VERSION 1
#define SPECDEC_MAX_LOOKAHEAD 16

/* SPECDEC_ABI_VERSION of the library; a caller compiled against another one must not go on. */
int32_t specdec_abi_version(void);

typedef enum specdec_status {
  SPECDEC_OK = 0,
  SPECDEC_INVALID_ARGUMENT = 1, /* the caller's arguments; nothing was changed */
  SPECDEC_PROMPT_TOO_LONG = 2,  /* the prompt does not fit the context; nothing was changed */
  SPECDEC_MODEL_FAILED = 3,     /* a model pass failed or gave NaN; reset before going on */
  SPECDEC_POISONED = 4,         /* an earlier pass failed; reset before going on */
  SPECDEC_BAD_FILE = 5,         /* a file is missing, damaged or of an unsupported kind */
  SPECDEC_OUT_OF_MEMORY = 6,
  SPECDEC_BUFFER_TOO_SMALL = 7, /* the needed size was written; call again with that much room */
  SPECDEC_BUSY = 8,             /* the engine is in use by another thread, or by its own callback */
  SPECDEC_INTERNAL = 9
} specdec_status;

/* The last error of the calling thread in one line; "" before the first. Valid until the thread's next
 * failing call. */
const char* specdec_last_error(void);

/* ---- tokenizer ---- */

typedef struct specdec_tokenizer specdec_tokenizer;

/* Reads a tokenizer.json. */
specdec_status specdec_tokenizer_open(const char* path, specdec_tokenizer** out);
void specdec_tokenizer_destroy(specdec_tokenizer* tokenizer);
int32_t specdec_tokenizer_vocab_size(const specdec_tokenizer* tokenizer); /* 0 for NULL */

/* Ids of a text. Special tokens written out in it are plain text unless parse_special is not 0. `ids` has
 * room for `capacity`; *count becomes the number of ids, also with SPECDEC_BUFFER_TOO_SMALL (then nothing is
 * written). A text of n bytes never has more than n ids. */
specdec_status specdec_encode(const specdec_tokenizer* tokenizer, const char* text, size_t length,
                              int32_t parse_special, int32_t* ids, size_t capacity, size_t* count);

typedef struct specdec_message {
  const char* role; /* "system", "user" or "assistant", ending in a zero byte */
  const char* content;
  size_t content_length;
} specdec_message;

/* Ids of a conversation. `format` is the chat template as JSON: {"opening": "…", "system": ["prefix",
 * "suffix"], "user": […], "assistant": […], "generation": "…"}. Special tokens come from it only, never from
 * a message. */
specdec_status specdec_encode_chat(const specdec_tokenizer* tokenizer, const char* format,
                                   size_t format_length, const specdec_message* messages,
                                   size_t message_count, int32_t add_generation_prompt, int32_t* ids,
                                   size_t capacity, size_t* count);

/* Text from tokens that arrive one at a time; never half a character. */
typedef struct specdec_stream specdec_stream;

/* The tokenizer must outlive the stream. */
specdec_status specdec_stream_create(const specdec_tokenizer* tokenizer, int32_t skip_special,
                                     specdec_stream** out);
void specdec_stream_destroy(specdec_stream* stream);
/* The text that is certain after one more id, possibly none; valid until the next call on this stream. */
specdec_status specdec_stream_push(specdec_stream* stream, int32_t id, const char** text, size_t* length);
/* What was kept back. The stream is then as new. */
specdec_status specdec_stream_finish(specdec_stream* stream, const char** text, size_t* length);

/* ---- models ---- */

/* A model with its KV cache, provided by the host. Functions return 0, or anything else for a failure, after
 * which only `reset` is called. They run on the thread that generates. */
typedef struct specdec_runner {
  void* self;         /* handed to every function */
  int32_t vocab_size; /* V, the width of the logits */
  int32_t capacity;   /* most tokens it can hold */
  const int32_t*
      head_ids; /* [V] ascending token ids of a reduced head's rows; NULL: row r is token r. Copied. */
  /* Appends `count` tokens, at most SPECDEC_MAX_LOOKAHEAD + 1, and writes their next-token logits [count, V].
   * With `logits` NULL nobody needs them, and `count` may be anything up to the capacity. */
  int32_t (*forward)(void* self, const int32_t* tokens, int32_t count, float* logits);
  int32_t (*truncate)(void* self, int32_t length); /* forgets everything from position `length` on */
  int32_t (*reset)(void* self);                    /* forgets everything, also a failed step */
} specdec_runner;

/* ---- engine ---- */

typedef struct specdec_engine specdec_engine;
typedef struct specdec_cancel_token specdec_cancel_token;

/* `draft` may be NULL. The target's head must not be reduced. What the runners point to must outlive the
 * engine. */
specdec_status specdec_engine_create(const specdec_runner* target, const specdec_runner* draft,
                                     specdec_engine** out);
void specdec_engine_destroy(specdec_engine* engine);
/* The engine is as new, whatever happened before; the lookahead cap stays. The draft starts over with the
 * next generation. */
specdec_status specdec_engine_reset(specdec_engine* engine);
/* Upper limit of K for rounds to come, from a thermal governor. From any thread, also while the engine
 * generates. */
specdec_status specdec_engine_set_lookahead_cap(specdec_engine* engine, int32_t cap);

/* Asks one generation to end. A token that was cancelled stays so: take a new one for the next generation. */
specdec_status specdec_cancel_token_create(specdec_cancel_token** out);
void specdec_cancel_token_destroy(specdec_cancel_token* token);
void specdec_cancel(specdec_cancel_token* token);

typedef enum specdec_drafter {
  SPECDEC_DRAFTER_NONE = 0, /* plain decoding */
  SPECDEC_DRAFTER_MODEL = 1,
  SPECDEC_DRAFTER_LOOKUP = 2,
  SPECDEC_DRAFTER_LOOKUP_THEN_MODEL = 3
} specdec_drafter;

typedef enum specdec_verifier { SPECDEC_VERIFIER_REJECTION = 0, SPECDEC_VERIFIER_MATCH = 1 } specdec_verifier;

typedef struct specdec_options {
  double temperature; /* 0: greedy */
  int32_t top_k;      /* 0: off */
  double top_p;       /* 1: off */
  double min_p;       /* 0: off */
  uint64_t seed;
  int32_t max_new_tokens;
  const int32_t* eos_ids; /* tokens that end the text */
  size_t eos_count;
  int32_t drafter;   /* a specdec_drafter */
  int32_t verifier;  /* a specdec_verifier */
  int32_t lookahead; /* K, 0 to SPECDEC_MAX_LOOKAHEAD */
  double confidence; /* stop drafting below this probability of the draft's best token; 0: never */
  int32_t gate;      /* not 0: turn speculation off while it does not pay, timing the rounds */
  /* Strings that end the text when its decoded form, special tokens left out, contains one (UTF-8, ending in
   * a zero byte). They need the tokenizer, which is otherwise not used. The token that completes one is the
   * last of the text. */
  const char* const* stops;
  size_t stop_count;
  const specdec_tokenizer* tokenizer;
  specdec_cancel_token* cancel; /* may be NULL */
} specdec_options;

/* Greedy, 128 tokens, K = 4, the model drafter, no gate. */
specdec_options specdec_options_default(void);

/* Called with each token as it is decided; 0 cancels. It must not call the engine. */
typedef int32_t (*specdec_on_token)(void* user, int32_t token);

/* Generates after `prompt`. The engine is SPECDEC_POISONED after a failure other than a bad argument or a too
 * long prompt, until it is reset. */
specdec_status specdec_generate(specdec_engine* engine, const int32_t* prompt, size_t prompt_count,
                                const specdec_options* options, specdec_on_token on_token, void* user);

/* ---- what the last generation did (nothing before the first, after a failure and after a reset) ---- */

typedef enum specdec_finish {
  SPECDEC_FINISH_EOS = 0,
  SPECDEC_FINISH_STOP = 1,
  SPECDEC_FINISH_LENGTH = 2,
  SPECDEC_FINISH_CONTEXT = 3,
  SPECDEC_FINISH_CANCELLED = 4
} specdec_finish;

typedef struct specdec_telemetry {
  int32_t finish; /* a specdec_finish */
  double prefill_seconds;
  double decode_seconds;
  int64_t rounds;        /* target passes after the prompt */
  int64_t drafted;       /* tokens proposed */
  int64_t accepted;      /* proposed tokens that stand */
  int64_t emitted;       /* tokens of the text */
  int64_t target_passes; /* equal to rounds */
  int64_t draft_passes;
  int32_t positions; /* entries of these lists that are in use */
  int64_t per_position_drafted[SPECDEC_MAX_LOOKAHEAD];
  int64_t per_position_judged[SPECDEC_MAX_LOOKAHEAD];
  int64_t per_position_accepted[SPECDEC_MAX_LOOKAHEAD];
} specdec_telemetry;

typedef struct specdec_round {
  int32_t k;
  const char*
      reason; /* "plain", "fixed", "budget", "confidence", "no match", "gate", "draft context", "cap" */
  const int32_t* drafted;
  int32_t drafted_count;
  int32_t accepted;
  int32_t next;     /* -1: the text ended among the drafted tokens */
  const char* kind; /* "correction", "bonus", "plain", "stop" */
} specdec_round;

/* Pointers are valid until the engine's next generation, reset or end. */
specdec_status specdec_engine_tokens(const specdec_engine* engine, const int32_t** tokens, size_t* count);
specdec_status specdec_engine_telemetry(const specdec_engine* engine, specdec_telemetry* out);
specdec_status specdec_engine_round(const specdec_engine* engine, size_t index, specdec_round* out);

#ifdef __cplusplus
}
#endif

#endif
