// A file mapped or copied into memory, read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// How a file is read. Truncating a mapped file ends the process with SIGBUS: replace weight files
// by renaming. A copy takes memory, but other processes cannot change it.
enum class FileAccess : uint8_t { kMapped, kCopied };

// Movable, not copyable. The bytes stay valid and in place until the object is destroyed, also
// after a move.
class MappedFile {
 public:
  // Empty files are allowed. NOT_FOUND: no such file. INVALID_ARGUMENT: not a regular file or not
  // readable, or it is cut off while it is copied.
  static absl::StatusOr<MappedFile> open(const std::string& path,
                                         FileAccess access = FileAccess::kMapped);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // madvise: all of the file will be read soon.
  void will_need() const;
  // madvise: these bytes of bytes() will not be read again for a while. Pages shared with other
  // data are kept.
  void dont_need(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool copied_ = false;  // data_ is memory, not the file
};

// Reads a whole small file. NOT_FOUND: no such file. INVALID_ARGUMENT: unreadable or longer than
// `max_bytes`.
absl::StatusOr<std::string> read_small_file(const std::string& path, size_t max_bytes);

}  // namespace tandem
