/* C ABI of the Rust crate in this folder: tokenizers and chat templates.
 *
 * Ownership. A TandemBytes or TandemIds that a function fills belongs to the caller, who returns it
 * with its free function; freeing an empty one (all zero) is allowed. Handles are returned with
 * their own free function. Everything passed in is borrowed for the call only. Errors. A function
 * that returns TandemCode fills `error` with a UTF-8 message unless it returns TANDEM_OK; its other
 * results are then untouched. No panic crosses this border. Threads. A handle may be used from any
 * number of threads at once, but not while it is freed.
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

typedef enum TandemCode {
  TANDEM_OK = 0,
  TANDEM_INVALID_ARGUMENT = 1,
  TANDEM_NOT_FOUND = 2,
  TANDEM_INTERNAL = 3
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

/* Tokenizers. `directory` is UTF-8, not terminated. */
TandemCode tandem_tokenizer_load(const char* directory, size_t directory_size,
                                 TandemTokenizer** tokenizer, TandemBytes* error);
/* From the texts of tokenizer.json and tokenizer_config.json; `name` stands for them in messages.
 */
TandemCode tandem_tokenizer_parse(const char* name, size_t name_size, const char* json,
                                  size_t json_size, const char* config, size_t config_size,
                                  TandemTokenizer** tokenizer, TandemBytes* error);
/* Bytes as tokens 0 to 255 and "<|endoftext|>" as 256. */
TandemCode tandem_tokenizer_bytes(TandemTokenizer** tokenizer, TandemBytes* error);
void tandem_tokenizer_free(TandemTokenizer* tokenizer);

/* `special_text`: 0 as the model is configured, 1 parse special tokens, 2 treat them as plain text.
 * `text` must be UTF-8. */
TandemCode tandem_tokenizer_encode(const TandemTokenizer* tokenizer, const char* text,
                                   size_t text_size, int add_special_tokens, int special_text,
                                   TandemIds* ids, TandemBytes* error);
TandemCode tandem_tokenizer_decode(const TandemTokenizer* tokenizer, const uint32_t* ids,
                                   size_t count, int skip_special_tokens, TandemBytes* text,
                                   TandemBytes* error);

/* Largest id + 1. */
size_t tandem_tokenizer_vocab_size(const TandemTokenizer* tokenizer);
/* Empty where the id names no token. */
TandemBytes tandem_tokenizer_token_text(const TandemTokenizer* tokenizer, uint32_t id);
/* -1 where there is no such token. */
int64_t tandem_tokenizer_token_id(const TandemTokenizer* tokenizer, const char* text,
                                  size_t text_size);

/* Columns of engine/text/piece_table.h, one row per id; `first_end` is empty where first pieces are
 * the same as the others. */
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

/* Chat templates. */

/* Writes the current time in `format` (strftime) to `out` and returns its size; 0 where it does not
 * fit into `capacity` or is empty. Called on another thread than the one that renders, while that
 * waits. */
typedef size_t (*TandemStrftime)(void* context, const char* format, size_t format_size, char* out,
                                 size_t capacity);

typedef struct TandemTemplateLimits {
  uint64_t fuel;           /* instructions */
  size_t max_output_bytes; /* of the rendered text */
} TandemTemplateLimits;

/* Sets `*chat_template` to NULL where the directory has no template. */
TandemCode tandem_template_load(const char* directory, size_t directory_size,
                                TandemTemplateLimits limits, TandemStrftime strftime_now,
                                void* strftime_context, TandemTemplate** chat_template,
                                TandemBytes* error);
/* The same of the text of a tokenizer_config.json; `name` stands for it in messages. */
TandemCode tandem_template_parse(const char* name, size_t name_size, const char* config,
                                 size_t config_size, TandemTemplateLimits limits,
                                 TandemStrftime strftime_now, void* strftime_context,
                                 TandemTemplate** chat_template, TandemBytes* error);
void tandem_template_free(TandemTemplate* chat_template);

/* The JSON texts must be UTF-8; empty means "none given". */
TandemCode tandem_template_render(const TandemTemplate* chat_template, const char* messages,
                                  size_t messages_size, const char* tools, size_t tools_size,
                                  const char* extra, size_t extra_size, int add_generation_prompt,
                                  TandemBytes* text, TandemBytes* error);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
}
#endif
