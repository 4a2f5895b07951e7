// UTF-8: checking, and assembling characters from bytes that arrive in pieces.
//
// Ill-formed input is replaced as the WHATWG and Unicode recommend and as Rust's `from_utf8_lossy`
// does: one U+FFFD for each maximal prefix of a character that cannot be continued.
//
// Threading: functions are pure; a Utf8Assembler belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Length in bytes of the longest prefix of `text` that is valid UTF-8; text.size() if all of it is.
size_t valid_utf8_prefix(std::string_view text);

class Utf8Assembler {
 public:
  // Whether no character is in progress.
  bool at_boundary() const { return size_ == 0; }

  // Appends to `out` every character that `bytes` completes, U+FFFD for what is ill-formed.
  void push(std::string_view bytes, std::string& out) {
    for (const char byte : bytes) push_byte(byte, out);
  }

  // As push(), for one byte. False where something ill-formed was replaced.
  bool push_byte(char byte, std::string& out);

  // Appends U+FFFD if a character is in progress, and forgets it.
  void finish(std::string& out);

  void clear() { size_ = 0; }

 private:
  bool start(uint8_t byte, std::string& out);

  char held_[4] = {};  // bytes of the character in progress
  uint8_t size_ = 0;
  uint8_t needed_ = 0;                // bytes still missing
  uint8_t low_ = 0x80, high_ = 0xBF;  // range of the next one
};

}  // namespace tandem
