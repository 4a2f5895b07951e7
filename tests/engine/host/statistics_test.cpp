#include "engine/host/statistics.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/engine/host/kit.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::run;

class Statistics : public ::testing::Test {
 protected:
  Statistics()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("statistics" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Statistics() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ / "learned"; }
  std::string text() const {
    std::ifstream file(path());
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  std::string error() const { return std::string(read_statistics(path()).status().message()); }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  const std::filesystem::path folder_;
};

TEST_F(Statistics, AreReadAsTheyWereWritten) {
  const SavedStatistics some = {{"drafts pair 01", {0.1, 1.0 / 3, -2.5e-9, 1e12}},
                                {"batches large cpu:0 02", {}}};
  for (int i = 0; i < 2; ++i) {  // replaces its own file
    ASSERT_TRUE(write_statistics(path(), some).ok());
    const auto read = read_statistics(path());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, some);
  }
  EXPECT_EQ(files(), 1U) << "no temporary file is left";
  ASSERT_TRUE(write_statistics(path(), {}).ok());
  EXPECT_EQ(read_statistics(path())->size(), 0U);
}

TEST_F(Statistics, AnAbsentFileIsNoBrokenOne) {
  EXPECT_TRUE(absl::IsNotFound(read_statistics(path()).status()));
}

TEST_F(Statistics, BrokenFilesAreRefused) {
  ASSERT_TRUE(write_statistics(path(), {{"drafts pair 01", {0.5, 2}}}).ok());
  const std::string good = text();
  for (size_t size = 0; size < good.size(); ++size) {
    write(good.substr(0, size));
    EXPECT_TRUE(absl::IsDataLoss(read_statistics(path()).status())) << size << " bytes";
  }
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 1;
    write(bad);
    EXPECT_TRUE(absl::IsDataLoss(read_statistics(path()).status())) << "byte " << at;
  }
  write("tandem-statistics 2\n" + good.substr(good.find('\n') + 1));
  EXPECT_THAT(error(), HasSubstr("allowed: \"tandem-statistics 1\""));
  write(good);
  std::filesystem::resize_file(path(), kMostStatisticsBytes + 1);
  EXPECT_THAT(error(), HasSubstr("allowed: 16777216"));
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_THAT(error(), HasSubstr("not a regular file"));
}

TEST_F(Statistics, AnUnwritableFileStaysAsItWas) {
  const SavedStatistics some = {{"drafts pair 01", {0.5}}};
  ASSERT_TRUE(write_statistics(path(), some).ok());
  const SavedStatistics large = {
      {"drafts pair 01", std::vector<double>(kMostStatisticsBytes / 2, 1.5)}};
  EXPECT_TRUE(absl::IsResourceExhausted(write_statistics(path(), large)));
  EXPECT_EQ(*read_statistics(path()), some);
  const auto status = write_statistics(folder_ / "none" / "learned", some);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot create"));
  EXPECT_EQ(files(), 1U);
}

// Requests of a pair whose batches take time, so that drafting is decided by it.
EngineConfig config_with(const std::string& file) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->pass_seconds = 0.0004;
  config.models[1].fake->pass_seconds = 0.0001;
  config.statistics_file = file;
  return config;
}

SavedStatistics drafts_in(const std::string& path) {
  const auto all = read_statistics(path);
  EXPECT_TRUE(all.ok()) << all.status();
  SavedStatistics drafts;
  for (const auto& [key, numbers] : *all) {
    if (key.starts_with("drafts ")) drafts[key] = numbers;
  }
  EXPECT_EQ(drafts.size(), 1U);
  return drafts;
}

void ask(Engine& engine, int requests) {
  for (int i = 0; i < requests; ++i) {
    EXPECT_TRUE(run(engine, testing::request_for(std::string("abcabc"), 40))->wait().ok());
  }
}

TEST_F(Statistics, ARestartedEngineBeginsWithThem) {
  auto engine = make_engine(config_with(path()));
  EXPECT_TRUE(engine->statistics_read().ok()) << "the first start has no file";
  ask(*engine, 4);
  ASSERT_TRUE(engine->save_statistics().ok());
  engine.reset();
  const SavedStatistics first = drafts_in(path());

  engine = make_engine(config_with(path()));
  EXPECT_TRUE(engine->statistics_read().ok());
  ASSERT_TRUE(engine->save_statistics().ok());
  EXPECT_EQ(drafts_in(path()), first) << "no request since";

  engine = make_engine(config_with(path()));
  ask(*engine, 1);
  ASSERT_TRUE(engine->save_statistics().ok());
  EXPECT_NE(drafts_in(path()), first);
}

TEST_F(Statistics, OtherModelsBeginAnew) {
  auto engine = make_engine(config_with(""));
  ASSERT_TRUE(engine->save_statistics().ok());
  EXPECT_EQ(files(), 0U) << "off by default";

  engine = make_engine(config_with(path()));
  ASSERT_TRUE(engine->save_statistics().ok());
  const SavedStatistics none = drafts_in(path());
  engine = make_engine(config_with(path()));
  ask(*engine, 4);
  ASSERT_TRUE(engine->save_statistics().ok());
  EXPECT_NE(drafts_in(path()).begin()->second, none.begin()->second);

  EngineConfig other = config_with(path());
  other.models[1].fake->layers = 3;
  engine = make_engine(other);
  EXPECT_TRUE(engine->statistics_read().ok()) << "these are no errors";
  ASSERT_TRUE(engine->save_statistics().ok());
  const SavedStatistics anew = drafts_in(path());
  EXPECT_NE(anew.begin()->first, none.begin()->first);
  EXPECT_EQ(anew.begin()->second, none.begin()->second);
}

TEST_F(Statistics, ABrokenFileIsIgnoredAndReplaced) {
  write("tandem-statistics 1\nno numbers");
  auto engine = make_engine(config_with(path()));
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(absl::IsDataLoss(engine->statistics_read()));
  EXPECT_THAT(std::string(engine->statistics_read().message()), HasSubstr(path()));
  ask(*engine, 1);
  ASSERT_TRUE(engine->save_statistics().ok());
  drafts_in(path());
}

// Before matches of more than 4 tokens, and those in the history, had classes of their own.
TEST_F(Statistics, DraftsOfAnOlderVersionAreTaken) {
  auto engine = make_engine(config_with(path()));
  ASSERT_TRUE(engine->save_statistics().ok());
  SavedStatistics all = *read_statistics(path());
  const std::string key = drafts_in(path()).begin()->first;
  all[key] = std::vector<double>(190, 2);
  ASSERT_TRUE(write_statistics(path(), all).ok());
  engine = make_engine(config_with(path()));
  EXPECT_TRUE(engine->statistics_read().ok());
  ASSERT_TRUE(engine->save_statistics().ok());
  const std::vector<double> taken = drafts_in(path())[key];
  EXPECT_GT(taken.size(), 190U);
  EXPECT_EQ(std::ranges::count(taken, 2), 190);
}

// Entries with the right key and the wrong numbers, as of another version of a class.
TEST_F(Statistics, EntriesOfAnotherFormAreIgnored) {
  auto engine = make_engine(config_with(path()));
  ASSERT_TRUE(engine->save_statistics().ok());
  SavedStatistics all = *read_statistics(path());
  const SavedStatistics before = drafts_in(path());
  for (auto& [_, numbers] : all) numbers.push_back(1);
  ASSERT_TRUE(write_statistics(path(), all).ok());
  engine = make_engine(config_with(path()));
  EXPECT_TRUE(engine->statistics_read().ok());
  ask(*engine, 1);
  ASSERT_TRUE(engine->save_statistics().ok());
  EXPECT_EQ(drafts_in(path()).begin()->second.size(), before.begin()->second.size());
}

}  // namespace
}  // namespace tandem
