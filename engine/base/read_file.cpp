#include "engine/base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

absl::Status cannot_read(const std::string& path, int error) {
  const std::string message =
      absl::StrCat(path, ": cannot read: ", std::generic_category().message(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  return absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::string> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return cannot_read(path, errno);
  const absl::Cleanup close = [fd] { ::close(fd); };
  std::string text;
  std::array<char, 16384> piece;
  for (;;) {
    const ssize_t n = ::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_read(path, errno);
    if (n == 0) return text;
    text.append(piece.data(), static_cast<size_t>(n));
  }
}

}  // namespace tandem
