#include "engine/host/prefixes/prefix_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

const PageKind kKind = {.text = "a kind", .page_rows = 2, .page_bytes = 40, .vocab_size = 100};

struct Page {
  int before = -1;
  std::vector<Token> tokens;
  std::vector<std::byte> bytes;
  friend bool operator==(const Page&, const Page&) = default;
};

std::vector<Page> some_pages(int n) {
  std::mt19937_64 rng(1);
  std::vector<Page> pages;
  for (int i = 0; i < n; ++i) {
    Page page;
    page.before = i % 3 - 1 < i ? i % 3 - 1 : -1;
    for (int r = 0; r < kKind.page_rows; ++r)
      page.tokens.push_back(static_cast<Token>(rng() % 100));
    for (int64_t b = 0; b < kKind.page_bytes; ++b) page.bytes.push_back(std::byte(rng() & 255));
    pages.push_back(page);
  }
  return pages;
}

class PrefixFile : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/file"; }
  std::string text() const {
    std::ifstream file(path(), std::ios::binary);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  void write(const std::string& content) const { folder_.write("file", content); }
  void write(const std::vector<Page>& pages, const PageKind& kind = kKind) const {
    const auto writer = PrefixFileWriter::create(path(), kind);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const Page& page : pages) {
      ASSERT_TRUE((*writer)->add(page.before, page.tokens, page.bytes).ok());
    }
    EXPECT_EQ((*writer)->pages(), std::ssize(pages));
    const absl::Status finished = (*writer)->finish();
    ASSERT_TRUE(finished.ok()) << finished;
  }
  absl::StatusOr<std::vector<Page>> read(const PageKind& kind = kKind) const {
    const auto reader = PrefixFileReader::open(path(), kind);
    if (!reader.ok()) return reader.status();
    std::vector<Page> pages;
    while (std::ssize(pages) < (*reader)->pages()) {
      Page page;
      page.bytes.resize(static_cast<size_t>(kind.page_bytes));
      auto one = (*reader)->read(page.bytes.data());
      if (!one.ok()) return one.status();
      page.before = one->before;
      page.tokens = std::move(one->tokens);
      pages.push_back(std::move(page));
    }
    return pages;
  }
  std::string error(const PageKind& kind = kKind) const {
    return std::string(read(kind).status().message());
  }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }

  const test::TempDir folder_;
};

TEST_F(PrefixFile, IsReadAsItWasWritten) {
  for (const int n : {7, 0, 3}) {  // replaces the file
    write(some_pages(n));
    const auto pages = read();
    ASSERT_TRUE(pages.ok()) << pages.status();
    EXPECT_EQ(*pages, some_pages(n));
    EXPECT_EQ(files(), 1U) << "no temporary file is left";
    struct stat info{};
    ASSERT_EQ(stat(path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077U, 0U) << "it has the prompts of clients";
  }
}

TEST_F(PrefixFile, AnUnfinishedFileLeavesTheOldOne) {
  write(some_pages(2));
  {
    const auto writer = PrefixFileWriter::create(path(), kKind);
    ASSERT_TRUE(writer.ok());
    const Page page = some_pages(1)[0];
    ASSERT_TRUE((*writer)->add(page.before, page.tokens, page.bytes).ok());
    EXPECT_EQ(files(), 2U);
  }
  EXPECT_EQ(files(), 1U);
  EXPECT_EQ(*read(), some_pages(2));
}

TEST_F(PrefixFile, AnAbsentFileIsNoDamagedOne) {
  EXPECT_TRUE(absl::IsNotFound(read().status()));
  const auto writer = PrefixFileWriter::create(folder_.path() + "/none/file", kKind);
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr("none/file.*.tmp: cannot create"));
}

TEST_F(PrefixFile, DamageIsFound) {
  write(some_pages(3));
  const std::string good = text();
  for (size_t size = 0; size < good.size(); ++size) {
    write(good.substr(0, size));
    EXPECT_TRUE(absl::IsDataLoss(read().status())) << size << " bytes: " << read().status();
  }
  write(good + "x");
  EXPECT_TRUE(absl::IsDataLoss(read().status()));
  constexpr size_t kVersionAt = 16;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      write(bad);
      if (at >= kVersionAt && at < kVersionAt + 4) {
        EXPECT_TRUE(absl::IsFailedPrecondition(read().status())) << "byte " << at;
      } else {
        EXPECT_TRUE(absl::IsDataLoss(read().status())) << "byte " << at;
      }
    }
  }
}

TEST_F(PrefixFile, RecordsThatChangePlacesAreFound) {
  write(some_pages(2));
  std::string bad = text();
  const auto record = static_cast<size_t>(kKind.record_bytes());
  const size_t first = bad.size() - 2 * record;
  std::swap_ranges(bad.begin() + static_cast<ptrdiff_t>(first),
                   bad.begin() + static_cast<ptrdiff_t>(first + record),
                   bad.begin() + static_cast<ptrdiff_t>(first + record));
  write(bad);
  EXPECT_THAT(error(), HasSubstr("page 0: the checksum does not match"));
}

TEST_F(PrefixFile, FilesOfAnotherKindAreNamed) {
  write(some_pages(2));
  PageKind other = kKind;
  other.text = "another kind";
  EXPECT_TRUE(absl::IsFailedPrecondition(read(other).status()));
  EXPECT_THAT(error(other), HasSubstr("kind: \"a kind\"; allowed: \"another kind\""));
  other = kKind;
  other.page_rows = 4;
  EXPECT_THAT(error(other), HasSubstr("page_rows: 2; allowed: 4"));
  other = kKind;
  other.page_bytes = 48;
  EXPECT_THAT(error(other), HasSubstr("page_bytes: 40; allowed: 48"));
  other = kKind;
  other.vocab_size = 99;
  EXPECT_THAT(error(other), HasSubstr("vocab_size: 100; allowed: 99"));
}

// A file whose checksums match, made by hand or by a program with an error.
TEST_F(PrefixFile, ValuesOutOfRangeAreRefused) {
  std::vector<Page> pages = some_pages(2);
  pages[1].tokens[1] = 100;
  write(pages);
  EXPECT_THAT(error(), HasSubstr("page 1: token: 100; allowed: 0 to 99"));
  pages[1].tokens[1] = -1;
  write(pages);
  EXPECT_THAT(error(), HasSubstr("page 1: token: -1; allowed: 0 to 99"));

  pages = some_pages(2);
  pages[1].before = 0;
  write(pages);
  std::string bad = text();
  const auto record = static_cast<size_t>(kKind.record_bytes());
  std::byte* const at = reinterpret_cast<std::byte*>(bad.data()) + bad.size() - record;
  const size_t head = record - static_cast<size_t>(kKind.page_bytes);
  for (const int32_t before : {1, -2, 1 << 30}) {
    std::memcpy(at, &before, sizeof(before));
    const uint64_t sum = checksum(checksum(1, std::span(at, head - sizeof(uint64_t))),
                                  std::span(at + head, static_cast<size_t>(kKind.page_bytes)));
    std::memcpy(at + head - sizeof(sum), &sum, sizeof(sum));
    write(bad);
    EXPECT_THAT(error(),
                HasSubstr("page 1: predecessor: " + std::to_string(before) + "; allowed: -1 to 0"));
  }
}

TEST_F(PrefixFile, OtherThingsAreRefused) {
  write("a text that is no file of prefixes, and longer than a header of one");
  EXPECT_THAT(error(), HasSubstr("not a file of saved prefixes"));
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_THAT(error(), HasSubstr("not a regular file"));
  std::filesystem::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("not a regular file"));
}

TEST(Checksum, ChangesWithEachBitAndLength) {
  std::vector<std::byte> bytes(100);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7);
  const uint64_t sum = checksum(0, bytes);
  EXPECT_NE(checksum(1, bytes), sum);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= std::byte(1 << bit);
      EXPECT_NE(checksum(0, bytes), sum);
      bytes[i] ^= std::byte(1 << bit);
    }
    EXPECT_NE(checksum(0, std::span(bytes).first(i)), sum);
  }
  bytes.push_back(std::byte{0});
  EXPECT_NE(checksum(0, bytes), sum) << "a zero more";
}

}  // namespace
}  // namespace tandem
