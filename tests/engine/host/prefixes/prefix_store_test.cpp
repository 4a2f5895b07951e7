// An engine that starts with the prefixes that another has saved.
#include "engine/host/prefixes/prefix_store.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::request_for;
using testing::run;

// 99 bytes of a prompt: six full pages of 16 rows, and three rows more.
const std::string kSystem = std::string(33, 'a') + std::string(33, 'b') + std::string(33, 'c');
constexpr int64_t kPages = 6;

class PrefixStoreTest : public ::testing::Test {
 protected:
  EngineConfig config() const {
    EngineConfig config = testing::fake_engine_config();
    config.prefix_store = folder();
    config.limits.prefill_chunk_rows = 16;  // the warm-up takes two pages
    return config;
  }
  std::string folder() const { return parent_.path() + "/store"; }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
  }
  // Two requests that begin with kSystem.
  static void ask(Engine& engine, const std::string& client = "") {
    for (const char* question : {"one?", "two?"}) {
      GenerateRequest r = request_for(kSystem + question, 4);
      r.client = client;
      EXPECT_TRUE(run(engine, r)->wait().ok());
    }
  }
  static int64_t cached(Engine& engine, const std::string& prompt = kSystem + "new?") {
    return run(engine, request_for(prompt, 4))->end().usage.cached_tokens;
  }
  SavedPrefixes save(Engine& engine) const {
    const auto saved = engine.save_prefixes();
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.value_or(SavedPrefixes());
  }
  // Writes the files of an engine that has answered ask().
  void fill() const {
    const auto engine = make_engine(config());
    ask(*engine);
    EXPECT_EQ(save(*engine).files, 2) << "of both models of the pair";
  }
  // An engine, and its lines of progress.
  std::unique_ptr<Engine> start(const EngineConfig& config) {
    lines_.clear();
    auto engine = Engine::create(config, [this](absl::string_view line) {
      lines_.append(line.data(), line.size()).append("\n");
    });
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  const test::TempDir parent_;
  std::string lines_;
};

TEST_F(PrefixStoreTest, AnEngineBeginsWithThePrefixesOfAnother) {
  const auto cold = make_engine();
  const auto expected = run(*cold, request_for(kSystem + "new?", 20));
  EXPECT_EQ(expected->end().usage.cached_tokens, 0);

  auto engine = make_engine(config());
  EXPECT_TRUE(engine->prefixes_read().ok()) << "the first start has no files";
  ask(*engine);
  const SavedPrefixes saved = save(*engine);
  EXPECT_EQ(saved.files, 2);
  EXPECT_EQ(saved.pages, 2 * kPages);
  int64_t bytes = 0;
  for (const auto& file : files()) bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  EXPECT_GE(bytes, saved.bytes);
  engine.reset();

  engine = start(config());
  EXPECT_TRUE(engine->prefixes_read().ok());
  EXPECT_THAT(lines_, HasSubstr("big: restored 6 KV pages of saved prefixes"));
  EXPECT_THAT(lines_, HasSubstr("little: restored 6 KV pages of saved prefixes"));
  EXPECT_EQ(engine->metrics().models[0].kv_pages_cached.value(), kPages);
  const auto first = run(*engine, request_for(kSystem + "new?", 20));
  EXPECT_EQ(first->end().usage.cached_tokens, kPages * 16);
  EXPECT_EQ(first->ids(), expected->ids());
}

TEST_F(PrefixStoreTest, OnlyChangesAreSaved) {
  auto engine = make_engine(config());
  EXPECT_EQ(save(*engine).files, 0) << "nothing is shared";
  EXPECT_FALSE(std::filesystem::exists(folder()));
  EXPECT_EQ(cached(*engine), 0);
  EXPECT_EQ(save(*engine).files, 0) << "a single request";
  ask(*engine);
  EXPECT_EQ(save(*engine).files, 2);
  EXPECT_EQ(save(*engine).files, 0);
  engine = make_engine(config());
  EXPECT_EQ(save(*engine).files, 0) << "they are as they were";
  EXPECT_EQ(cached(*engine), kPages * 16);
  EXPECT_EQ(save(*engine).files, 0);
  for (int i = 0; i < 2; ++i) cached(*engine, std::string(40, 'x') + std::to_string(i));
  EXPECT_EQ(save(*engine).pages, 2 * (kPages + 2));
}

TEST_F(PrefixStoreTest, PrefixesOfOneClientAreNotSaved) {
  EngineConfig per_client = config();
  per_client.deployments[0].prefix_cache_per_client = true;
  const auto engine = make_engine(per_client);
  ask(*engine, "ann");
  EXPECT_EQ(save(*engine).files, 0);
  EXPECT_FALSE(std::filesystem::exists(folder()));
}

TEST_F(PrefixStoreTest, ModelsWithoutAPrefixCacheAreLeftOut) {
  EngineConfig without = config();
  without.models[1].prefix_cache = false;
  const auto engine = make_engine(without);
  ask(*engine);
  EXPECT_EQ(save(*engine).files, 1);
}

TEST_F(PrefixStoreTest, FilesOfOtherModelsAreIgnored) {
  fill();
  EngineConfig other = config();
  other.models[0].fake->layers = 3;  // other pages in a file of the same name
  auto engine = start(other);
  EXPECT_TRUE(engine->prefixes_read().ok()) << "no error";
  EXPECT_THAT(lines_, HasSubstr("big: saved prefixes are ignored: "));
  EXPECT_THAT(lines_, HasSubstr("; allowed: "));
  EXPECT_THAT(lines_, HasSubstr("little: restored 6"));
  EXPECT_EQ(cached(*engine), 0);

  other = config();
  other.models[0].fake->seed = 9;  // another format of pages, so another file
  EXPECT_EQ(cached(*start(other)), 0);
  EXPECT_THAT(lines_, ::testing::Not(HasSubstr("big: saved")));
  other = config();
  other.models[0].page_rows = 8;
  EXPECT_EQ(cached(*start(other)), 0);
  EXPECT_THAT(lines_, HasSubstr("page_rows: 16; allowed: 8"));

  other = config();
  other.models[0].fake->layers = 3;
  engine = make_engine(other);
  ask(*engine);
  EXPECT_EQ(save(*engine).files, 1) << "replaces the file, and the other model's has not changed";
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(cached(*make_engine(other)), kPages * 16);
}

TEST_F(PrefixStoreTest, DamagedFilesAreReportedAndReplaced) {
  fill();
  for (const auto& file : files()) {
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  }
  auto engine = start(config());
  EXPECT_TRUE(absl::IsDataLoss(engine->prefixes_read()));
  EXPECT_THAT(std::string(engine->prefixes_read().message()), HasSubstr("big: " + folder()));
  EXPECT_EQ(cached(*engine), 0);
  ask(*engine);
  EXPECT_EQ(save(*engine).files, 2);
  EXPECT_EQ(cached(*start(config())), kPages * 16);
}

// Pages before a damaged one are whole, and they are the predecessors of others.
TEST_F(PrefixStoreTest, PagesBeforeADamagedOneStay) {
  fill();
  for (const auto& file : files()) {
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(size - 1);  // of the last page
    bytes.put('?');
  }
  const auto engine = start(config());
  EXPECT_THAT(std::string(engine->prefixes_read().message()),
              HasSubstr("page 5: the checksum does not match"));
  EXPECT_EQ(cached(*engine), (kPages - 1) * 16);
  EXPECT_EQ(save(*engine).files, 2) << "the files are replaced";
  EXPECT_TRUE(start(config())->prefixes_read().ok());
}

TEST_F(PrefixStoreTest, ASmallPoolTakesTheFirstPages) {
  fill();
  EngineConfig small = config();
  for (ModelConfig& m : small.models) m.kv_pages = 4;
  auto engine = start(small);
  EXPECT_THAT(lines_, HasSubstr("big: restored 4 KV pages"));
  EXPECT_TRUE(engine->prefixes_read().ok());
  // The warm-up took the pages that were to be evicted first: the last of the prompt.
  EXPECT_EQ(cached(*engine, kSystem.substr(0, 40)), 32);
  EXPECT_EQ(save(*engine).files, 0) << "a smaller set does not replace the file";
  EXPECT_EQ(cached(*make_engine(config())), kPages * 16);
}

TEST_F(PrefixStoreTest, RestoredPagesAreEvictedForOthers) {
  fill();
  EngineConfig small = config();
  for (ModelConfig& m : small.models) m.kv_pages = 20;
  const auto engine = make_engine(small);
  EXPECT_EQ(cached(*engine), kPages * 16);
  const std::string other(300, 'z');  // 19 pages
  const auto answer = run(*engine, request_for(other, 4));
  EXPECT_TRUE(answer->wait().ok());
  EXPECT_EQ(answer->ids(), run(*make_engine(), request_for(other, 4))->ids());
  EXPECT_LT(cached(*engine), kPages * 16);
}

TEST_F(PrefixStoreTest, FilesHaveALimit) {
  EngineConfig limited = config();
  const auto engine = make_engine(limited);
  ask(*engine);
  const int64_t page = save(*engine).bytes / (2 * kPages);
  limited.prefix_store_bytes = 3 * page + page / 2;
  const auto again = make_engine(limited);
  ask(*again);
  for (int i = 0; i < 2; ++i) cached(*again, std::string(40, 'x') + std::to_string(i));
  EXPECT_EQ(save(*again).pages, 2 * 3);
  const auto last = make_engine(limited);
  EXPECT_EQ(cached(*last, std::string(40, 'x') + "?"), 32) << "used last";
  EXPECT_EQ(cached(*last), 16);
}

TEST_F(PrefixStoreTest, AFolderThatCannotBeWrittenIsNamed) {
  EngineConfig bad = config();
  bad.prefix_store = parent_.path() + "/none/store";
  const auto engine = make_engine(bad);
  ask(*engine);
  EXPECT_THAT(std::string(engine->save_prefixes().status().message()),
              HasSubstr("none/store: cannot create"));
  bad.prefix_store = parent_.write("file", "no folder");
  const auto other = make_engine(bad);
  ask(*other);
  EXPECT_THAT(std::string(other->save_prefixes().status().message()),
              HasSubstr(".tmp: cannot create"));
}

TEST_F(PrefixStoreTest, RemovesFilesThatWereNeverFinished) {
  std::filesystem::create_directory(folder());
  const std::string old = parent_.write("store/big-00.prefixes.abcdef.tmp", "old");
  const std::string fresh = parent_.write("store/big-00.prefixes.ghijkl.tmp", "fresh");
  const std::string other = parent_.write("store/notes.tmp", "of somebody");
  for (const std::string& file : {old, other}) {
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
  }
  fill();
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(fresh)) << "another server may be writing it";
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(PrefixStoreTest, EachReplicaHasItsFile) {
  EngineConfig replicas = config();
  replicas.devices = {{.index = 0}, {.index = 1}};
  replicas.models[0].replicas = {"cpu:1"};
  replicas.models.resize(1);
  replicas.deployments[0].small = "";
  const auto engine = make_engine(replicas);
  ask(*engine);
  ask(*engine);
  EXPECT_GE(save(*engine).files, 1);
  EXPECT_EQ(cached(*make_engine(replicas)), kPages * 16);
}

TEST_F(PrefixStoreTest, RequestsAndSavesGoOnTogether) {
  const auto engine = make_engine(config());
  ask(*engine);
  std::atomic<bool> over{false};
  std::thread saver([&] {
    while (!over) EXPECT_TRUE(engine->save_prefixes().ok());
  });
  for (int i = 0; i < 20; ++i) {
    const std::string prompt = kSystem + std::string(static_cast<size_t>(20 + i / 2), 'q');
    EXPECT_TRUE(run(*engine, request_for(prompt, 8))->wait().ok());
  }
  over = true;
  saver.join();
  save(*engine);
  EXPECT_GT(cached(*make_engine(config())), 0);
}

TEST_F(PrefixStoreTest, ALostDeviceIsNotSaved) {
  const auto lost = std::make_shared<std::atomic<bool>>(false);
  EngineConfig failing = config();
  for (ModelConfig& m : failing.models) {
    m.fake->lost = [lost](const std::string&) { return lost->load(); };
  }
  const auto engine = make_engine(failing);
  ask(*engine);
  *lost = true;
  EXPECT_TRUE(absl::IsUnavailable(engine->save_prefixes().status()));
  EXPECT_EQ(files().size(), 0U);
}

// A model of a deployment that is loaded at run time. Its pages are saved when it is freed.
TEST_F(PrefixStoreTest, AModelThatIsLoadedLaterBeginsWithThePrefixesOfAnEarlierOne) {
  const auto engine = start(config());
  ModelConfig model = config().models[0];
  model.name = "m";
  model.fake->seed = 7;
  const auto load = [&] {
    lines_.clear();
    return engine->load_deployment(
        {.models = {model},
         .deployment = {"late", "m", ""},
         .progress = [this](absl::string_view line) { absl::StrAppend(&lines_, line, "\n"); }});
  };
  const auto answer = [&](const char* question) {
    GenerateRequest r = request_for(kSystem + question, 20);
    r.model = "late";
    return run(*engine, r);
  };
  ASSERT_TRUE(load().ok());
  const auto fresh = answer("one?");
  EXPECT_EQ(fresh->end().usage.cached_tokens, 0);
  answer("two?");
  ASSERT_TRUE(engine->unload_deployment("late", {}).ok());
  EXPECT_EQ(files().size(), 1U);
  EXPECT_EQ(engine->metrics().prefixes_saved.pages.value(), kPages);
  EXPECT_GT(engine->metrics().prefixes_saved.bytes.value(), 0);
  EXPECT_EQ(engine->metrics().prefixes_restored.pages.value(), 0);

  ASSERT_TRUE(load().ok());
  EXPECT_THAT(lines_, HasSubstr("m: restored 6 KV pages of saved prefixes"));
  const auto warm = answer("one?");
  EXPECT_EQ(warm->end().usage.cached_tokens, kPages * 16);
  EXPECT_EQ(warm->ids(), fresh->ids());
  EXPECT_EQ(engine->metrics().prefixes_restored.pages.value(), kPages);
  EXPECT_EQ(engine->metrics().prefixes_restored.bytes.value(),
            engine->metrics().prefixes_saved.bytes.value());
  ASSERT_TRUE(engine->unload_deployment("late", {}).ok());
  EXPECT_EQ(engine->metrics().prefixes_saved.pages.value(), kPages) << "they are in the file";

  // The checks are those of the start: another model's file is refused.
  model.fake->layers = 3;
  ASSERT_TRUE(load().ok());
  EXPECT_THAT(lines_, HasSubstr("m: saved prefixes are ignored: "));
  EXPECT_EQ(answer("one?")->end().usage.cached_tokens, 0);
  EXPECT_EQ(engine->metrics().prefixes_refused.pages.value(), kPages);
  EXPECT_EQ(engine->metrics().prefixes_refused.bytes.value(),
            static_cast<int64_t>(std::filesystem::file_size(files()[0])));
  ASSERT_TRUE(engine->unload_deployment("late", {}).ok());

  // A damaged one does not fail the load.
  model.fake->layers = 4;
  const auto file = files()[0];
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(size - 1);  // of the last page
  bytes.put('?');
  bytes.close();
  ASSERT_TRUE(load().ok());
  EXPECT_THAT(lines_, HasSubstr("page 5: the checksum does not match"));
  EXPECT_EQ(answer("one?")->end().usage.cached_tokens, (kPages - 1) * 16);
  EXPECT_EQ(engine->metrics().prefixes_refused.pages.value(), kPages + 1);
}

TEST_F(PrefixStoreTest, AnIdleDeploymentKeepsItsPrefixesWhileItIsUnloaded) {
  EngineConfig idle = config();
  idle.deployments[0].unload_after_idle_seconds = 10;
  VirtualClock clock;
  auto engine = *Engine::create(idle, {}, nullptr, nullptr, &clock);
  const auto fresh = run(*engine, request_for(kSystem + "new?", 20));
  ask(*engine);
  while (engine->deployment_states()[0].open_requests > 0) std::this_thread::yield();
  clock.advance(std::chrono::seconds(10));
  EXPECT_EQ(engine->unload_idle().names.size(), 1U);
  const auto warm = run(*engine, request_for(kSystem + "new?", 20));
  EXPECT_EQ(warm->end().usage.cached_tokens, kPages * 16);
  EXPECT_EQ(warm->ids(), fresh->ids());
  EXPECT_EQ(engine->metrics().prefixes_saved.pages.value(), 2 * kPages);
  EXPECT_EQ(engine->metrics().prefixes_restored.pages.value(), 2 * kPages);
}

TEST_F(PrefixStoreTest, WithoutAFolderNothingIsSaved) {
  const auto engine = make_engine();
  ask(*engine);
  EXPECT_EQ(save(*engine).files, 0);
}

#ifdef TANDEM_WITH_TORCH
// With weights: restored rows are bit-identical to computed ones.
TEST_F(PrefixStoreTest, RestoredRowsAreBitIdentical) {
  std::vector<Token> prompt;
  for (int i = 0; i < 104; ++i) prompt.push_back((i * 37 + 11) % 4096);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EngineConfig with = testing::real_engine_config(
        "model", std::string(TANDEM_SOURCE_DIR) + "/models/code-small", dtype);
    EngineConfig without = with;
    with.prefix_store = folder();
    without.models[0].prefix_cache = false;
    GenerateRequest r = request_for(prompt, 20);
    r.model = "model";
    r.top_logprobs = 3;
    auto engine = make_engine(with);
    for (int i = 0; i < 2; ++i) run(*engine, r);
    EXPECT_EQ(save(*engine).files, 1);
    engine = start(with);
    EXPECT_TRUE(engine->prefixes_read().ok()) << engine->prefixes_read();
    const auto expected = run(*make_engine(without), r);
    const auto got = run(*engine, r);
    EXPECT_EQ(got->end().usage.cached_tokens, 103) << lines_;
    ASSERT_EQ(got->ids(), expected->ids());
    for (size_t t = 0; t < got->tokens().size(); ++t) {
      EXPECT_EQ(got->tokens()[t].logprob, expected->tokens()[t].logprob);
      EXPECT_EQ(got->tokens()[t].top, expected->tokens()[t].top);
    }
  }
}

TEST_F(PrefixStoreTest, RowsRestoredAtRunTimeAreBitIdentical) {
  EngineConfig idle = testing::real_engine_config(
      "model", std::string(TANDEM_SOURCE_DIR) + "/models/code-small", DType::kFloat32);
  EngineConfig without = idle;
  without.models[0].prefix_cache = false;
  idle.prefix_store = folder();
  idle.deployments[0].unload_after_idle_seconds = 10;
  std::vector<Token> prompt;
  for (int i = 0; i < 104; ++i) prompt.push_back((i * 37 + 11) % 4096);
  GenerateRequest r = request_for(prompt, 20);
  r.model = "model";
  r.top_logprobs = 3;
  VirtualClock clock;
  auto engine = *Engine::create(idle, {}, nullptr, nullptr, &clock);
  for (int i = 0; i < 2; ++i) run(*engine, r);
  while (engine->deployment_states()[0].open_requests > 0) std::this_thread::yield();
  clock.advance(std::chrono::seconds(10));
  EXPECT_EQ(engine->unload_idle().names.size(), 1U);
  const auto expected = run(*make_engine(without), r);
  const auto got = run(*engine, r);
  EXPECT_EQ(engine->deployment_states()[0].loads, 2);
  EXPECT_EQ(got->end().usage.cached_tokens, 103);
  ASSERT_EQ(got->ids(), expected->ids());
  for (size_t t = 0; t < got->tokens().size(); ++t) {
    EXPECT_EQ(got->tokens()[t].logprob, expected->tokens()[t].logprob);
    EXPECT_EQ(got->tokens()[t].top, expected->tokens()[t].top);
  }
}
#endif

}  // namespace
}  // namespace tandem
