#include "server/hub_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/draft_pairs.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kLarge[] = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF";

// Fetches "ORG/REPO" to "/cache/ORG/REPO".
absl::StatusOr<std::vector<std::string>> to_cache(const std::vector<std::string>& names) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back("/cache/" + name);
  return paths;
}

TEST(HubModels, Names) {
  const test::TempDir dir;
  for (const char* name : {"a/b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", "a/b@refs/pr/3:q8_0"}) {
    EXPECT_TRUE(is_hub_name(name)) << name;
  }
  for (const std::string& name : {std::string("a"), std::string("a/b/c"), std::string("./b"),
                                  std::string("a/b.gguf"), std::string("~/b"), std::string("/a/b"),
                                  std::string("engine/base"), dir.path(), std::string()}) {
    EXPECT_FALSE(is_hub_name(name)) << name;  // engine/base exists
  }
}

TEST(HubModels, BecomePaths) {
  ModelFlags flags;
  flags.models = {"one=a/b:Q8_0", "c/d@v1:Q4_0", "file=engine/base"};
  const auto note = resolve_hub_models(to_cache, &flags);
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_THAT(flags.models,
              ElementsAre("one=/cache/a/b:Q8_0", "c/d=/cache/c/d@v1:Q4_0", "file=engine/base"));
  EXPECT_EQ(*note, "");

  ModelFlags pair;
  pair.models = {"big=engine/base"};
  pair.small = "a/b";
  ASSERT_TRUE(resolve_hub_models(to_cache, &pair).ok());
  EXPECT_EQ(pair.small, "/cache/a/b");

  const std::string repository = std::string(40, 'o') + "/" + std::string(40, 'r');
  ModelFlags longer{{repository}};
  ASSERT_TRUE(resolve_hub_models(to_cache, &longer).ok());
  EXPECT_EQ(longer.models[0], std::string(40, 'r') + "=/cache/" + repository);
}

TEST(HubModels, NothingIsFetchedForPaths) {
  ModelFlags flags{{"m=engine/base", "/nowhere/x.gguf"}};
  const auto fetch = [](const auto&) -> absl::StatusOr<std::vector<std::string>> {
    return absl::InternalError("fetched");
  };
  EXPECT_TRUE(resolve_hub_models(fetch, &flags).ok());
  ModelFlags hub{{"a/b"}};
  EXPECT_EQ(resolve_hub_models(fetch, &hub).status().message(), "fetched");
}

TEST(HubModels, InDeploymentFiles) {
  auto file = ConfigFile::parse(
      "models { name: \"a\" path: \"hf://o/a:Q8_0\" } models { name: \"b\" path: \"b\" }", "f");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(resolve_hub_models(to_cache, &*file).ok());
  EXPECT_EQ(file->resolve("hf://o/a:Q8_0"), "/cache/o/a:Q8_0");
  EXPECT_EQ(file->resolve("b"), "b");
  auto wrong = ConfigFile::parse("\nmodels { name: \"a\" path: \"hf://o\" }", "f");
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_EQ(resolve_hub_models(to_cache, &*wrong).message(),
            "f:2: models[0].path: \"o\"; allowed: hf://ORG/REPO[@REVISION][:QUANT]");
}

TEST(HubModels, DraftModels) {
  ModelFlags flags{{std::string(kLarge) + ":Q4_K_M"}};
  const auto hint = resolve_hub_models(to_cache, &flags);
  ASSERT_TRUE(hint.ok()) << hint.status();
  EXPECT_THAT(*hint, HasSubstr("--small Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF (or --small auto); "
                               "measured 2.2 times as fast"));
  EXPECT_EQ(flags.small, "");

  ModelFlags chosen{{std::string("coder=") + kLarge}};
  chosen.small = "auto";
  const auto note = resolve_hub_models(to_cache, &chosen);
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_THAT(*note, HasSubstr("was chosen"));
  EXPECT_EQ(chosen.small, "/cache/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF");

  for (const char* model : {"a=a/b", "a=engine/base"}) {
    ModelFlags unknown{{model}};
    unknown.small = "auto";
    EXPECT_THAT(resolve_hub_models(to_cache, &unknown).status().message(),
                HasSubstr("--small: \"auto\"; allowed: a path, ORG/REPO[:QUANT], or auto with one "
                          "--model of: qwen2.5-coder-1.5b-instruct"));
  }
  ModelFlags given{{kLarge}};
  given.small = "a/b";
  EXPECT_EQ(*resolve_hub_models(to_cache, &given), "");
}

TEST(DraftPairs, AnyOrganizationAndFormat) {
  const DraftPair* const pair = find_draft_pair("someone/qwen2.5-coder-1.5b-instruct");
  ASSERT_NE(pair, nullptr);
  EXPECT_EQ(find_draft_pair(kLarge), pair);
  EXPECT_EQ(draft_repository(*pair, "someone/qwen2.5-coder-1.5b-instruct"),
            "Qwen/Qwen2.5-Coder-0.5B-Instruct");
  EXPECT_EQ(find_draft_pair("Qwen/Qwen2.5-Coder-7B-Instruct"), nullptr);  // not measured
}

}  // namespace
}  // namespace tandem
