#include "engine/backend/torch/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status system_error(const std::string& path, const char* action, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", action, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  return absl::InvalidArgumentError(message);
}

// An open descriptor of a regular file, and its size.
struct OpenFile {
  int fd = -1;
  size_t size = 0;
};

absl::StatusOr<OpenFile> open_regular(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not block.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(path, "open", errno);
  struct stat info{};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return system_error(path, "stat", error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  return OpenFile{fd, static_cast<size_t>(info.st_size)};
}

// Reads bytes until `size` or the end of the file. Returns their number.
absl::StatusOr<size_t> read_up_to(int fd, char* to, size_t size, const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd, to + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(path, "read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::open(const std::string& path, FileAccess access) {
  TANDEM_ASSIGN_OR_RETURN(const OpenFile file, open_regular(path));
  const absl::Cleanup close = [&] { ::close(file.fd); };
  MappedFile mapped;
  mapped.path_ = path;
  if (file.size == 0) return mapped;
  mapped.copied_ = access == FileAccess::kCopied;
  void* data = mapped.copied_ ? ::mmap(nullptr, file.size, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                              : ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return system_error(path, "map", errno);
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = file.size;
  if (!mapped.copied_) return mapped;
  TANDEM_ASSIGN_OR_RETURN(const size_t read,
                          read_up_to(file.fd, static_cast<char*>(data), file.size, path));
  if (read == file.size) return mapped;
  return out_of_range(absl::StrCat(path, ": size in bytes"), read,
                      absl::StrCat(file.size, ", as when it was opened"));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      copied_(other.copied_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(copied_, other.copied_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

// Advice affects only speed, so errors are ignored.
void MappedFile::will_need() const {
  if (data_ != nullptr && !copied_) ::madvise(const_cast<std::byte*>(data_), size_, MADV_WILLNEED);
}

void MappedFile::dont_need(std::span<const std::byte> part) const {
  if (copied_) return;  // the file cannot give them back
  // data_ is page-aligned.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<size_t>(part.data() - data_);
  const size_t first = (begin + page - 1) / page * page;
  const size_t last = (begin + part.size()) / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

absl::StatusOr<std::string> read_small_file(const std::string& path, size_t max_bytes) {
  TANDEM_ASSIGN_OR_RETURN(const OpenFile file, open_regular(path));
  const absl::Cleanup close = [&] { ::close(file.fd); };
  if (file.size > max_bytes) {
    return out_of_range(absl::StrCat(path, ": size in bytes"), file.size,
                        absl::StrCat("at most ", max_bytes));
  }
  std::string text(file.size, '\0');
  TANDEM_ASSIGN_OR_RETURN(const size_t read, read_up_to(file.fd, text.data(), text.size(), path));
  text.resize(read);
  return text;
}

}  // namespace tandem
