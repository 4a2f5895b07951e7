// Test files: a temporary folder, and safetensors files built byte by byte.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "tests/temp_dir.h"  // IWYU pragma: export

namespace tandem::test {

inline std::string little_endian(uint64_t value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// A file with this header and data.
inline std::string safetensors_file(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}

struct FileTensor {
  std::string name;
  std::string dtype = "F32";
  std::vector<int64_t> shape;
};

// A valid file with these tensors in order. Every data byte is `fill`.
inline std::string safetensors_of(const std::vector<FileTensor>& tensors, char fill = 0) {
  std::string header = "{";
  size_t begin = 0;
  for (const FileTensor& t : tensors) {
    size_t bytes = t.dtype == "F64" || t.dtype == "I64" ? 8 : t.dtype == "F32" ? 4 : 2;
    for (const int64_t d : t.shape) bytes *= static_cast<size_t>(d);
    header += (begin == 0 && header.size() == 1 ? "\"" : ",\"") + t.name + "\":{\"dtype\":\"" +
              t.dtype + "\",\"shape\":" + shape_text(t.shape) + ",\"data_offsets\":[" +
              std::to_string(begin) + "," + std::to_string(begin + bytes) + "]}";
    begin += bytes;
  }
  return safetensors_file(header + "}", std::string(begin, fill));
}

}  // namespace tandem::test
