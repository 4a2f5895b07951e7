/* C ABI of the Rust crate in this folder: tokenizers, grammars and chat templates.
 *
 * Ownership. The caller owns each TandemBytes or TandemIds that a function fills, and frees it with
 * its free function; freeing an empty one (all zero) is allowed. Handles have their own free
 * functions. Arguments are borrowed for the call.
 *
 * Errors. A function that returns TandemCode fills `error` with a UTF-8 message unless it returns
 * TANDEM_OK; other results are then unchanged. No panic leaves the library.
 *
 * Threads. Handles are thread-safe, except TandemMatcher, but must not be used while they are
 * freed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): names of C */
typedef struct TandemTokenizer TandemTokenizer;
typedef struct TandemTemplate TandemTemplate;
typedef struct TandemVocabulary TandemVocabulary;
typedef struct TandemMatcher TandemMatcher;

typedef enum TandemCode {
  TANDEM_OK = 0,
  TANDEM_INVALID_ARGUMENT = 1,
  TANDEM_NOT_FOUND = 2,
  TANDEM_INTERNAL = 3,
  TANDEM_EXHAUSTED = 4
} TandemCode;

typedef struct TandemBytes {
  uint8_t* data;
  size_t size;
  size_t capacity;
} TandemBytes;

typedef struct TandemIds {
  uint32_t* data;
  size_t size;
  size_t capacity;
} TandemIds;

void tandem_bytes_free(TandemBytes bytes);
void tandem_ids_free(TandemIds ids);

/* Tokenizers. `directory` is UTF-8, not NUL-terminated. */
TandemCode tandem_tokenizer_load(const char* directory, size_t directory_size,
                                 TandemTokenizer** tokenizer, TandemBytes* error);
/* From the texts of tokenizer.json and tokenizer_config.json. `name` replaces the file names in
 * messages. */
TandemCode tandem_tokenizer_parse(const char* name, size_t name_size, const char* json,
                                  size_t json_size, const char* config, size_t config_size,
                                  TandemTokenizer** tokenizer, TandemBytes* error);
/* Bytes as tokens 0 to 255 and "<|endoftext|>" as 256. */
TandemCode tandem_tokenizer_bytes(TandemTokenizer** tokenizer, TandemBytes* error);
void tandem_tokenizer_free(TandemTokenizer* tokenizer);

/* `special_text`: 0 as the model is configured, 1 parse special tokens, 2 read them as plain text.
 * `text` must be UTF-8. */
TandemCode tandem_tokenizer_encode(const TandemTokenizer* tokenizer, const char* text,
                                   size_t text_size, int add_special_tokens, int special_text,
                                   TandemIds* ids, TandemBytes* error);
TandemCode tandem_tokenizer_decode(const TandemTokenizer* tokenizer, const uint32_t* ids,
                                   size_t count, int skip_special_tokens, TandemBytes* text,
                                   TandemBytes* error);

/* Largest id + 1. */
size_t tandem_tokenizer_vocab_size(const TandemTokenizer* tokenizer);
/* Empty for unused ids. */
TandemBytes tandem_tokenizer_token_text(const TandemTokenizer* tokenizer, uint32_t id);
/* -1: no such token. */
int64_t tandem_tokenizer_token_id(const TandemTokenizer* tokenizer, const char* text,
                                  size_t text_size);

/* Columns of engine/text/piece_table.h, one row per id. `first_end` is empty if first pieces equal
 * the others. */
typedef struct TandemPieces {
  uint32_t kind;       /* 0 opaque, 1 bytes, 2 pieces */
  uint32_t strip_char; /* code point */
  size_t strip_count;
  TandemBytes flags;
  TandemBytes text;
  TandemIds text_end;
  TandemBytes first;
  TandemIds first_end;
} TandemPieces;
TandemCode tandem_tokenizer_pieces(const TandemTokenizer* tokenizer, TandemPieces* pieces,
                                   TandemBytes* error);

/* Grammars. A vocabulary has the bytes of a tokenizer's tokens. `ends` are the tokens that are
 * legal where a text may end. It holds the tokenizer. */
TandemCode tandem_vocabulary_new(const TandemTokenizer* tokenizer, const uint32_t* ends,
                                 size_t count, TandemVocabulary** vocabulary, TandemBytes* error);
void tandem_vocabulary_free(TandemVocabulary* vocabulary);
/* `kind`: 0 JSON schema, 1 any JSON object, 2 regular expression, 3 JSON array of texts, 4 grammar,
 * 5 structural tag. `whitespace`: between JSON tokens; empty: the default. */
TandemCode tandem_vocabulary_compile(const TandemVocabulary* vocabulary, int kind, const char* text,
                                     size_t text_size, const char* whitespace,
                                     size_t whitespace_size, TandemMatcher** matcher,
                                     TandemBytes* error);

/* A position in a grammar. It may outlive its vocabulary. After an error it stays in error. Errors
 * are TANDEM_EXHAUSTED: a step exceeded the limits. */
void tandem_matcher_free(TandemMatcher* matcher);
TandemCode tandem_matcher_copy(const TandemMatcher* matcher, TandemMatcher** copy,
                               TandemBytes* error);
/* Consumes leading tokens as far as they are legal; `*legal` is their number. */
TandemCode tandem_matcher_advance(TandemMatcher* matcher, const uint32_t* tokens, size_t count,
                                  size_t* legal, TandemBytes* error);
/* Takes back the last `count` tokens. */
TandemCode tandem_matcher_rollback(TandemMatcher* matcher, size_t count, TandemBytes* error);
/* The number of leading tokens that are legal here. */
TandemCode tandem_matcher_validate(TandemMatcher* matcher, const uint32_t* tokens, size_t count,
                                   size_t* legal, TandemBytes* error);
/* Sets bit i % 32 of word i / 32 if token i is legal here. `*accepting`: the text may end here. */
TandemCode tandem_matcher_mask(TandemMatcher* matcher, uint32_t* bits, size_t words, int* accepting,
                               TandemBytes* error);
/* Tokens that must come next; may be empty. */
TandemIds tandem_matcher_forced(TandemMatcher* matcher);

/* Chat templates. */

/* Writes the current time in `format` (strftime) to `out` and returns its size; 0 if it is empty or
 * does not fit into `capacity`. Called on another thread while the rendering thread waits. */
typedef size_t (*TandemStrftime)(void* context, const char* format, size_t format_size, char* out,
                                 size_t capacity);

typedef struct TandemTemplateLimits {
  uint64_t fuel;           /* instructions */
  size_t max_output_bytes; /* of the rendered text */
} TandemTemplateLimits;

/* Sets `*chat_template` to NULL if the directory has no template. */
TandemCode tandem_template_load(const char* directory, size_t directory_size,
                                TandemTemplateLimits limits, TandemStrftime strftime_now,
                                void* strftime_context, TandemTemplate** chat_template,
                                TandemBytes* error);
/* From the text of a tokenizer_config.json. `name` replaces the file name in messages. */
TandemCode tandem_template_parse(const char* name, size_t name_size, const char* config,
                                 size_t config_size, TandemTemplateLimits limits,
                                 TandemStrftime strftime_now, void* strftime_context,
                                 TandemTemplate** chat_template, TandemBytes* error);
void tandem_template_free(TandemTemplate* chat_template);

/* The texts of all templates of the model, joined by newlines. */
TandemCode tandem_template_source(const TandemTemplate* chat_template, TandemBytes* text,
                                  TandemBytes* error);

/* The JSON texts must be UTF-8; empty: not given. */
TandemCode tandem_template_render(const TandemTemplate* chat_template, const char* messages,
                                  size_t messages_size, const char* tools, size_t tools_size,
                                  const char* extra, size_t extra_size, int add_generation_prompt,
                                  TandemBytes* text, TandemBytes* error);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
}
#endif
