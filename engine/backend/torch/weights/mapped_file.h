// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Movable, not copyable. The bytes stay valid until the object is destroyed; moving it keeps them
// in place. A file that is truncated by someone else while it is mapped ends the process with
// SIGBUS: replace weight files by renaming, never in place.
class MappedFile {
 public:
  // An empty file is fine. NOT_FOUND: no such file; INVALID_ARGUMENT: not a regular file or not
  // readable.
  static absl::StatusOr<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the kernel that all of it will be read soon.
  void will_need() const;
  // Tells the kernel that these bytes, which lie in bytes(), will not be read again for a while;
  // the pages that they share with others stay.
  void dont_need(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole of a small file. NOT_FOUND as above; INVALID_ARGUMENT: longer than `max_bytes`.
absl::StatusOr<std::string> read_small_file(const std::string& path, size_t max_bytes);

}  // namespace tandem
