// Edits of a valid file, for formats that few random inputs resemble.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tandem::fuzz {

// Every four bytes of `data` are an offset (two), an operation and a value.
inline std::string edited(std::string file, const uint8_t* data, size_t size) {
  for (size_t i = 0; i + 4 <= size && !file.empty(); i += 4) {
    const size_t at = (data[i] | static_cast<size_t>(data[i + 1]) << 8) % file.size();
    const char value = static_cast<char>(data[i + 3]);
    switch (data[i + 2] % 6) {
      case 0:
        file[at] = value;
        break;
      case 1:
        file[at] = static_cast<char>(file[at] ^ (1 << (data[i + 3] % 8)));
        break;
      case 2:
        file.insert(at, 1, value);
        break;
      case 3:
        file.erase(at, data[i + 3] % 16);
        break;
      case 4:  // a long number
        for (size_t k = at; k < std::min(at + 8, file.size()); ++k) file[k] = value;
        break;
      default:
        file.resize(file.size() - std::min<size_t>(data[i + 3], file.size()));
    }
  }
  return file;
}

}  // namespace tandem::fuzz
