#include "server/openai/adapters.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/status.h"

namespace tandem::openai {
namespace {

TEST(OpenAiAdapters, FieldsOfVllm) {
  const auto load = load_adapter_from(
      R"({"lora_name":"sql","lora_path":"/a/sql","base_model_name":"m","load_inplace":true,
          "is_3d_lora_weight":false})");
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->adapter(), "sql");
  EXPECT_EQ(load->path(), "/a/sql");
  EXPECT_EQ(load->model(), "m");
  EXPECT_TRUE(load->replace());
  EXPECT_FALSE(load_adapter_from(R"({"lora_name":"a","lora_path":"b"})")->replace());
  const auto unload = unload_adapter_from(R"({"lora_name":"sql","lora_int_id":3})");
  ASSERT_TRUE(unload.ok()) << unload.status();
  EXPECT_EQ(unload->adapter(), "sql");
  EXPECT_EQ(unload->model(), "");
}

TEST(OpenAiAdapters, WrongBodiesAreRefusedByField) {
  const auto message = [](const std::string& body) {
    return std::string(load_adapter_from(body).status().message());
  };
  EXPECT_EQ(message(R"({"lora_path":"b"})"), "lora_name: none; allowed: a text");
  EXPECT_EQ(message(R"({"lora_name":"a","lora_path":""})"), "lora_path: none; allowed: a text");
  for (const char* body : {"", "[]", R"({"lora_name":1,"lora_path":"b"})",
                           R"({"lora_name":"a","lora_path":"b","x":1})",
                           R"({"lora_name":"a","lora_path":"b","is_3d_lora_weight":true})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(load_adapter_from(body).status())) << body;
    EXPECT_TRUE(absl::IsInvalidArgument(unload_adapter_from(body).status())) << body;
  }
}

TEST(OpenAiAdapters, ErrorsHaveTheNamesOfVllm) {
  EXPECT_EQ(with_lora_names(out_of_range("adapter", "x", "y")).message(),
            "lora_name: x; allowed: y");
  const absl::Status denied =
      with_reason(absl::PermissionDeniedError("path: \"/x\"; allowed: z"), "ADMIN_DENIED");
  EXPECT_EQ(
      with_lora_names(denied),
      with_reason(absl::PermissionDeniedError("lora_path: \"/x\"; allowed: z"), "ADMIN_DENIED"));
  EXPECT_EQ(with_lora_names(absl::NotFoundError("model: \"m\"")).message(),
            "base_model_name: \"m\"");
  EXPECT_EQ(with_lora_names(absl::NotFoundError("other: m")).message(), "other: m");
  EXPECT_EQ(adapter_loaded("a b"), "Success: LoRA adapter 'a b' added successfully.");
  EXPECT_EQ(adapter_unloaded("a"), "Success: LoRA adapter 'a' removed successfully.");
}

}  // namespace
}  // namespace tandem::openai
