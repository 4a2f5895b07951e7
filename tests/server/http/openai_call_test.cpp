#include "server/http/openai_call.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// A joined item counts the bytes of its parts: else a stream's unread bytes would never be freed.
TEST(OpenAiItem, BytesOfJoinedItemsAreTheirSum) {
  OpenAiItem all;
  all.text = "a";
  int64_t bytes = all.bytes();
  for (int i = 0; i < 300; ++i) {
    OpenAiItem later;
    later.text = "bc";
    later.token_bytes = i % 3;
    bytes += later.bytes();
    all.append(later);
  }
  EXPECT_EQ(all.bytes(), bytes);
}

}  // namespace
}  // namespace tandem
