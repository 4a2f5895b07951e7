#include "engine/host/prefixes/prefix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kFileMagic[16] = {'t', 'a', 'n', 'd', 'e', 'm', '-', 'p',
                                 'r', 'e', 'f', 'i', 'x', 'e', 's', '\n'};
constexpr uint32_t kFormatVersion = 1;

struct FileHeader {
  char magic[16];
  uint32_t version;
  uint32_t page_rows;
  uint64_t page_bytes;
  uint64_t pages;
  uint32_t vocab_size;
  uint32_t kind_bytes;
};
static_assert(sizeof(FileHeader) == 48);

// A record begins with the predecessor and the tokens, then has the checksum of both, the page's
// number and its bytes.
size_t record_head_bytes(const PageKind& kind) {
  return sizeof(int32_t) * (1 + static_cast<size_t>(kind.page_rows)) + sizeof(uint64_t);
}

uint64_t record_sum(std::span<const std::byte> head, std::span<const std::byte> page,
                    int64_t number) {
  const auto named = head.first(head.size() - sizeof(uint64_t));
  return checksum(checksum(static_cast<uint64_t>(number), named), page);
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

absl::Status file_error(const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot ", what));
}

absl::Status write_bytes(int file, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_error(path, "write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// A renamed file is found after a power failure only if its folder is on the disk too.
absl::Status sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return file_error(folder, "open");
  const absl::Cleanup closed = [fd] { close(fd); };
  return fsync(fd) == 0 ? absl::OkStatus() : file_error(folder, "write");
}

}  // namespace

int64_t PageKind::record_bytes() const {
  return static_cast<int64_t>(record_head_bytes(*this)) + page_bytes;
}

// Four lanes of words, each step a bijection of its lane.
uint64_t checksum(uint64_t seed, std::span<const std::byte> bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::array<uint64_t, 4> lane = {seed ^ 1, seed ^ 2, seed ^ 3, seed ^ 4};
  const auto step = [](uint64_t& to, uint64_t word) { to = std::rotl(to ^ word, 29) * kOdd; };
  const size_t size = bytes.size();
  for (; bytes.size() >= sizeof(lane); bytes = bytes.subspan(sizeof(lane))) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), bytes.data(), sizeof(words));
    for (size_t i = 0; i < lane.size(); ++i) step(lane[i], words[i]);
  }
  std::array<uint64_t, 4> rest = {};
  if (!bytes.empty()) std::memcpy(rest.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < lane.size(); ++i) step(lane[i], rest[i]);
  uint64_t sum = size;
  for (const uint64_t word : lane) {
    sum = std::rotl(sum ^ word, 32) * kOdd;
    sum ^= sum >> 29;
  }
  return sum;
}

absl::StatusOr<std::unique_ptr<PrefixFileWriter>> PrefixFileWriter::create(const std::string& path,
                                                                           PageKind kind) {
  TANDEM_CHECK(kind.text.size() <= kMostKindBytes);
  std::unique_ptr<PrefixFileWriter> writer(new PrefixFileWriter(path, std::move(kind)));
  std::string temporary = absl::StrCat(path, ".XXXXXX.tmp");
  writer->file_ = mkostemps(temporary.data(), 4, O_CLOEXEC);  // 0600
  if (writer->file_ < 0) return file_error(absl::StrCat(path, ".*.tmp"), "create");
  writer->temporary_ = std::move(temporary);
  TANDEM_RETURN_IF_ERROR(writer->write_header());  // a place for that of finish()
  writer->record_.resize(record_head_bytes(writer->kind_));
  return writer;
}

PrefixFileWriter::~PrefixFileWriter() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status PrefixFileWriter::write_header() {
  FileHeader header = {};
  std::memcpy(header.magic, kFileMagic, sizeof(kFileMagic));
  header.version = kFormatVersion;
  header.page_rows = static_cast<uint32_t>(kind_.page_rows);
  header.page_bytes = static_cast<uint64_t>(kind_.page_bytes);
  header.pages = static_cast<uint64_t>(pages_);
  header.vocab_size = static_cast<uint32_t>(kind_.vocab_size);
  header.kind_bytes = static_cast<uint32_t>(kind_.text.size());
  const uint64_t sum = checksum(checksum(0, bytes_of(header)), bytes_of(kind_.text));
  TANDEM_RETURN_IF_ERROR(write_bytes(file_, bytes_of(header), temporary_));
  TANDEM_RETURN_IF_ERROR(write_bytes(file_, bytes_of(kind_.text), temporary_));
  return write_bytes(file_, bytes_of(sum), temporary_);
}

absl::Status PrefixFileWriter::add(int before, std::span<const Token> tokens,
                                   std::span<const std::byte> page) {
  TANDEM_CHECK(before >= -1 && before < pages_);
  TANDEM_CHECK(std::ssize(tokens) == kind_.page_rows && std::ssize(page) == kind_.page_bytes);
  const int32_t place = before;
  std::byte* at = record_.data();
  std::memcpy(at, &place, sizeof(place));
  std::memcpy(at + sizeof(place), tokens.data(), tokens.size_bytes());
  const uint64_t sum = record_sum(record_, page, pages_);
  std::memcpy(at + record_.size() - sizeof(sum), &sum, sizeof(sum));
  TANDEM_RETURN_IF_ERROR(write_bytes(file_, record_, temporary_));
  TANDEM_RETURN_IF_ERROR(write_bytes(file_, page, temporary_));
  ++pages_;
  return absl::OkStatus();
}

absl::Status PrefixFileWriter::finish() {
  if (lseek(file_, 0, SEEK_SET) != 0) return file_error(temporary_, "write");
  TANDEM_RETURN_IF_ERROR(write_header());
  if (fsync(file_) != 0) return file_error(temporary_, "write");
  if (close(std::exchange(file_, -1)) != 0) return file_error(temporary_, "write");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return file_error(path_, "replace");
  temporary_.clear();
  return sync_folder_of(path_);
}

absl::StatusOr<std::unique_ptr<PrefixFileReader>> PrefixFileReader::open(const std::string& path,
                                                                         PageKind kind) {
  std::unique_ptr<PrefixFileReader> reader(new PrefixFileReader(path, std::move(kind)));
  reader->file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (reader->file_ < 0) return file_error(path, "open");
  TANDEM_RETURN_IF_ERROR(reader->read_header());
  reader->record_.resize(record_head_bytes(reader->kind_));
  return reader;
}

int64_t PrefixFileReader::pages_named_in(const std::string& path) {
  PrefixFileReader reader(path, {});
  reader.file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  FileHeader header = {};
  const off_t bytes = reader.file_ < 0 ? 0 : lseek(reader.file_, 0, SEEK_END);
  if (bytes <= 0 || lseek(reader.file_, 0, SEEK_SET) != 0 ||
      !reader.read_all(std::as_writable_bytes(std::span(&header, 1))).ok() ||
      std::memcmp(header.magic, kFileMagic, sizeof(kFileMagic)) != 0 ||
      header.version != kFormatVersion) {
    return 0;
  }
  return static_cast<int64_t>(std::min(header.pages, static_cast<uint64_t>(bytes)));
}

PrefixFileReader::~PrefixFileReader() {
  if (file_ >= 0) close(file_);
}

absl::Status PrefixFileReader::damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(path_, ": ", what));
}

absl::Status PrefixFileReader::read_all(std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = ::read(file_, to.data(), to.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_error(path_, "read");
    if (n == 0) return damaged("truncated");
    to = to.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status PrefixFileReader::read_header() {
  struct stat info{};
  if (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode)) return damaged("not a regular file");
  FileHeader header = {};
  TANDEM_RETURN_IF_ERROR(read_all(std::as_writable_bytes(std::span(&header, 1))));
  if (std::memcmp(header.magic, kFileMagic, sizeof(kFileMagic)) != 0) {
    return damaged("not a file of saved prefixes");
  }
  const auto other = [this](absl::string_view field, auto value, auto allowed) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": ", field, ": ", value, "; allowed: ", allowed));
  };
  if (header.version != kFormatVersion) return other("version", header.version, kFormatVersion);
  if (header.kind_bytes > kMostKindBytes) {
    return damaged(absl::StrCat("kind: ", header.kind_bytes, " bytes; allowed: ", kMostKindBytes));
  }
  std::string kind(header.kind_bytes, '\0');
  TANDEM_RETURN_IF_ERROR(read_all(std::as_writable_bytes(std::span(kind.data(), kind.size()))));
  uint64_t sum = 0;
  TANDEM_RETURN_IF_ERROR(read_all(std::as_writable_bytes(std::span(&sum, 1))));
  if (sum != checksum(checksum(0, bytes_of(header)), bytes_of(kind))) {
    return damaged("the checksum of the header does not match");
  }
  if (kind != kind_.text) return other("kind", quote_value(kind), quote_value(kind_.text));
  if (std::cmp_not_equal(header.page_rows, kind_.page_rows)) {
    return other("page_rows", header.page_rows, kind_.page_rows);
  }
  if (std::cmp_not_equal(header.page_bytes, kind_.page_bytes)) {
    return other("page_bytes", header.page_bytes, kind_.page_bytes);
  }
  if (std::cmp_not_equal(header.vocab_size, kind_.vocab_size)) {
    return other("vocab_size", header.vocab_size, kind_.vocab_size);
  }
  const int64_t bytes =
      info.st_size - static_cast<int64_t>(sizeof(header) + kind.size() + sizeof(sum));
  pages_ = bytes / kind_.record_bytes();
  if (bytes < 0 || bytes % kind_.record_bytes() != 0 || std::cmp_not_equal(pages_, header.pages)) {
    return damaged(absl::StrCat(info.st_size, " bytes, which are not ", header.pages, " pages"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PrefixFileReader::Page> PrefixFileReader::read(std::byte* to) {
  TANDEM_CHECK(read_ < pages_);
  const std::span page(to, static_cast<size_t>(kind_.page_bytes));
  TANDEM_RETURN_IF_ERROR(read_all(record_));
  TANDEM_RETURN_IF_ERROR(read_all(page));
  uint64_t sum = 0;
  std::memcpy(&sum, record_.data() + record_.size() - sizeof(sum), sizeof(sum));
  const auto wrong = [this](absl::string_view what) {
    return damaged(absl::StrCat("page ", read_, ": ", what));
  };
  if (sum != record_sum(record_, page, read_)) return wrong("the checksum does not match");
  Page out;
  int32_t before = 0;
  std::memcpy(&before, record_.data(), sizeof(before));
  if (before < -1 || before >= read_) {
    return wrong(absl::StrCat("predecessor: ", before, "; allowed: -1 to ", read_ - 1));
  }
  out.before = before;
  out.tokens.resize(static_cast<size_t>(kind_.page_rows));
  std::memcpy(out.tokens.data(), record_.data() + sizeof(before),
              out.tokens.size() * sizeof(Token));
  for (const Token token : out.tokens) {
    if (token < 0 || token >= kind_.vocab_size) {
      return wrong(absl::StrCat("token: ", token, "; allowed: 0 to ", kind_.vocab_size - 1));
    }
  }
  ++read_;
  return out;
}

}  // namespace tandem
