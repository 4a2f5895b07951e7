// Files for tests: a folder that goes away again, and safetensors files byte by byte.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/backend/torch/weights/safetensors.h"

namespace tandem::test {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& content) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::string path_;
};

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

// A well-formed file of these tensors, one after the other, all zeros but for `fill` in every byte.
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
