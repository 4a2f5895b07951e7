// UTF-8: validation, and assembling characters from streamed bytes.
//
// Ill-formed input is replaced as WHATWG and Unicode recommend and as Rust's `from_utf8_lossy`
// does: one U+FFFD per maximal prefix of a character that cannot be continued.
//
// Threading: functions are pure; a Utf8Assembler belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the longest prefix of `text` that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);

class Utf8Assembler {
 public:
  // No character is incomplete.
  bool at_boundary() const { return size_ == 0; }

  // Appends each character that `bytes` completes, and U+FFFD for ill-formed input, to `out`.
  void push(std::string_view bytes, std::string& out) {
    for (const char byte : bytes) push_byte(byte, out);
  }

  // As push(), for one byte. False if ill-formed input was replaced.
  bool push_byte(char byte, std::string& out);

  // Appends U+FFFD for an incomplete character and drops it.
  void finish(std::string& out);

  void clear() { size_ = 0; }

 private:
  bool start(uint8_t byte, std::string& out);

  char held_[4] = {};  // bytes of the incomplete character
  uint8_t size_ = 0;
  uint8_t needed_ = 0;                // bytes still missing
  uint8_t low_ = 0x80, high_ = 0xBF;  // range of the next byte
};

}  // namespace tandem
