#include "engine/text/utf8.h"

namespace tandem {

size_t valid_utf8_prefix(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  size_t i = 0;
  while (i < text.size()) {
    const uint8_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    size_t length = 0;
    uint8_t low = 0x80, high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      if (lead == 0xE0) low = 0xA0;   // no overlong forms
      if (lead == 0xED) high = 0x9F;  // no surrogates
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;  // nothing above U+10FFFF
    } else {
      return i;
    }
    if (i + length > text.size() || byte(i + 1) < low || byte(i + 1) > high) return i;
    for (size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    }
    i += length;
  }
  return i;
}

bool Utf8Assembler::push_byte(char byte, std::string& out) {
  const uint8_t value = static_cast<uint8_t>(byte);
  if (size_ == 0) return start(value, out);
  if (value < low_ || value > high_) {
    out.append(kReplacementCharacter);
    size_ = 0;
    start(value, out);
    return false;
  }
  held_[size_++] = byte;
  low_ = 0x80;
  high_ = 0xBF;
  if (--needed_ == 0) {
    out.append(held_, size_);
    size_ = 0;
  }
  return true;
}

bool Utf8Assembler::start(uint8_t byte, std::string& out) {
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return true;
  }
  low_ = 0x80;
  high_ = 0xBF;
  if (byte >= 0xC2 && byte <= 0xDF) {
    needed_ = 1;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    needed_ = 2;
    if (byte == 0xE0) low_ = 0xA0;
    if (byte == 0xED) high_ = 0x9F;
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    needed_ = 3;
    if (byte == 0xF0) low_ = 0x90;
    if (byte == 0xF4) high_ = 0x8F;
  } else {
    out.append(kReplacementCharacter);
    return false;
  }
  held_[0] = static_cast<char>(byte);
  size_ = 1;
  return true;
}

void Utf8Assembler::finish(std::string& out) {
  if (size_ > 0) out.append(kReplacementCharacter);
  size_ = 0;
}

}  // namespace tandem
