#include "engine/backend/torch/weights/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "tests/engine/backend/torch/weights/files.h"

namespace tandem {
namespace {

using test::TempDir;
using testing::HasSubstr;

std::string text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, MapsMovesAndCloses) {
  const TempDir dir;
  const std::string path = dir.write("a", "some bytes");
  auto opened = MappedFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(text(*opened), "some bytes");
  const std::byte* const where = opened->bytes().data();
  MappedFile moved(std::move(*opened));
  EXPECT_EQ(moved.bytes().data(), where);
  EXPECT_EQ(moved.path(), path);
  MappedFile other;
  other = std::move(moved);
  EXPECT_EQ(text(other), "some bytes");
}

TEST(MappedFile, AdviceKeepsTheBytes) {
  const TempDir dir;
  const std::string content(100'000, 'x');
  const auto file = MappedFile::open(dir.write("a", content));
  ASSERT_TRUE(file.ok());
  file->will_need();
  file->dont_need(file->bytes().subspan(10, 50'000));
  file->dont_need(file->bytes().subspan(10, 20));
  EXPECT_EQ(text(*file), content);
}

TEST(MappedFile, ACopyDoesNotChangeWithTheFile) {
  const TempDir dir;
  const std::string content(100'000, 'x');
  const std::string path = dir.write("a", content);
  auto file = MappedFile::open(path, FileAccess::kCopied);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::truncate(path.c_str(), 10), 0);
  file->will_need();
  file->dont_need(file->bytes().subspan(10, 50'000));
  EXPECT_EQ(text(*file), content);
  const MappedFile moved(std::move(*file));
  moved.dont_need(moved.bytes());
  EXPECT_EQ(text(moved), content);
  EXPECT_TRUE(MappedFile::open(dir.write("b", ""), FileAccess::kCopied)->bytes().empty());
}

TEST(MappedFile, EmptyFile) {
  const TempDir dir;
  const auto file = MappedFile::open(dir.write("a", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  file->will_need();
}

TEST(MappedFile, Errors) {
  const TempDir dir;
  const auto missing = MappedFile::open(dir.path() + "/none");
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/none: cannot open: No such"));
  EXPECT_TRUE(absl::IsNotFound(MappedFile::open(dir.write("f", "") + "/x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MappedFile::open(dir.path()).status()));
  const std::string pipe = dir.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(MappedFile::open(pipe).status().message()), HasSubstr("not a regular"));
}

TEST(ReadSmallFile, ReadsUpToTheLimit) {
  const TempDir dir;
  const std::string path = dir.write("a", "12345");
  EXPECT_EQ(*read_small_file(path, 5), "12345");
  EXPECT_THAT(std::string(read_small_file(path, 4).status().message()),
              HasSubstr("a: size in bytes: 5; allowed: at most 4"));
  EXPECT_TRUE(absl::IsNotFound(read_small_file(dir.path() + "/none", 4).status()));
}

}  // namespace
}  // namespace tandem
