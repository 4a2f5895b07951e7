// A file of saved KV pages with the tokens of their rows.
//
//   header    a fixed part, the text of PageKind, their checksum
//   record    for each page: place of its predecessor, tokens, checksum, bytes
//
// Each page follows its predecessor. Numbers are little-endian. Checksums detect damage, not
// forgery. A process that can write the file can change answers, as with the file of the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"

namespace tandem {

// What all pages of a file have in common.
struct PageKind {
  std::string text;  // all that their bytes depend on besides tokens; at most kMostKindBytes
  int page_rows = 0;
  int64_t page_bytes = 0;
  int vocab_size = 0;  // of the tokens

  // Bytes of a page in the file.
  int64_t record_bytes() const;
};
inline constexpr size_t kMostKindBytes = 4096;

// 64 bits. A change within one 8-byte word always changes it.
uint64_t checksum(uint64_t seed, std::span<const std::byte> bytes);

class PrefixFileWriter {
 public:
  // Writes a temporary file beside `path`, which finish() makes `path`. Only the user can read it.
  static absl::StatusOr<std::unique_ptr<PrefixFileWriter>> create(const std::string& path,
                                                                  PageKind kind);
  ~PrefixFileWriter();  // removes an unfinished file
  PrefixFileWriter(const PrefixFileWriter&) = delete;
  PrefixFileWriter& operator=(const PrefixFileWriter&) = delete;

  // before: the number of the predecessor among the added pages; -1: none. REQUIRES: sizes of
  // PageKind
  absl::Status add(int before, std::span<const Token> tokens, std::span<const std::byte> page);
  // Replaces the file at once: readers see the old one or the new one, also after a power failure.
  absl::Status finish();
  int64_t pages() const { return pages_; }

 private:
  PrefixFileWriter(std::string path, PageKind kind)
      : path_(std::move(path)), kind_(std::move(kind)) {}
  absl::Status write_header();

  const std::string path_;
  const PageKind kind_;
  std::string temporary_;  // empty: renamed
  int file_ = -1;
  int64_t pages_ = 0;
  std::vector<std::byte> record_;  // without the page's bytes
};

class PrefixFileReader {
 public:
  // NOT_FOUND: there is no such file. FAILED_PRECONDITION: it is of another version or kind.
  // DATA_LOSS: it is damaged.
  static absl::StatusOr<std::unique_ptr<PrefixFileReader>> open(const std::string& path,
                                                                PageKind kind);
  // The pages that a file's header names, also one of another kind; 0: it has no such header.
  static int64_t pages_named_in(const std::string& path);
  ~PrefixFileReader();
  PrefixFileReader(const PrefixFileReader&) = delete;
  PrefixFileReader& operator=(const PrefixFileReader&) = delete;

  int64_t pages() const { return pages_; }
  struct Page {
    int before = -1;  // an earlier page; -1: none
    std::vector<Token> tokens;
  };
  // The next page; its bytes go to `to` [PageKind::page_bytes]. DATA_LOSS: it is damaged. REQUIRES:
  // fewer than pages() were read
  absl::StatusOr<Page> read(std::byte* to);

 private:
  PrefixFileReader(std::string path, PageKind kind)
      : path_(std::move(path)), kind_(std::move(kind)) {}
  absl::Status read_header();
  absl::Status read_all(std::span<std::byte> to);
  absl::Status damaged(absl::string_view what) const;

  const std::string path_;
  const PageKind kind_;
  int file_ = -1;
  int64_t pages_ = 0;
  int64_t read_ = 0;
  std::vector<std::byte> record_;
};

}  // namespace tandem
