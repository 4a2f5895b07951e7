#include "server/grpc/embed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <variant>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Answers Embed requests when told to. The embedding of a text is its length.
struct FakeEngine {
  struct Asked {
    EmbedRequest request;
    std::function<void(absl::StatusOr<EmbedResult>)> done;
  };
  std::deque<Asked> waiting;
  std::set<RequestId> cancelled;
  RequestId last = 0;
  size_t most = 0;  // waiting at a time

  Embedder embedder() {
    return {.embed =
                [this](EmbedRequest request, auto done) {
                  waiting.push_back({std::move(request), std::move(done)});
                  most = std::max(most, waiting.size());
                  return ++last;
                },
            .cancel = [this](RequestId id) { cancelled.insert(id); }};
  }
  void answer(size_t i) {
    const Asked asked = std::move(waiting[i]);
    waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
    EmbedResult result;
    const auto* const text = std::get_if<std::string>(&asked.request.prompt);
    result.values = {text != nullptr ? static_cast<float>(text->size()) : -1};
    result.usage.prompt_tokens = 10;
    asked.done(result);
  }
};

struct Answer {
  std::shared_ptr<int> open = std::make_shared<int>();  // the call holds it too
  std::optional<absl::StatusOr<v1::EmbedResponse>> response;
  std::shared_ptr<Embed> embed;
};

v1::EmbedRequest request_of(int n) {
  v1::EmbedRequest request;
  request.set_model("m");
  for (int i = 0; i < n; ++i) {
    request.add_inputs()->set_text(std::string(static_cast<size_t>(i) + 1, 'x'));
  }
  return request;
}

std::shared_ptr<Answer> start(const v1::EmbedRequest& request, FakeEngine* engine) {
  auto answer = std::make_shared<Answer>();
  CallInfo info;
  info.client = "c";
  info.request_id = "id";
  answer->embed =
      Embed::start(request, info, engine->embedder(),
                   std::shared_ptr<OpenCall>(answer->open, static_cast<OpenCall*>(nullptr)),
                   [answer](absl::StatusOr<v1::EmbedResponse> response) {
                     EXPECT_FALSE(answer->response.has_value());
                     EXPECT_EQ(answer->open.use_count(), 1) << "the call is not open any more";
                     answer->response = std::move(response);
                   });
  if (!answer->response.has_value()) EXPECT_EQ(answer->open.use_count(), 2);
  return answer;
}

TEST(Embed, AnswersInTheOrderOfTheInputs) {
  FakeEngine engine;
  const auto answer = start(request_of(100), &engine);
  while (!engine.waiting.empty()) engine.answer(engine.waiting.size() - 1);
  EXPECT_EQ(engine.most, 32U);
  ASSERT_TRUE(answer->response.has_value() && answer->response->ok());
  const v1::EmbedResponse& response = **answer->response;
  ASSERT_EQ(response.embeddings_size(), 100);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(response.embeddings(i).values(0), static_cast<float>(i + 1));
  }
  EXPECT_EQ(response.request_id(), "id");
  EXPECT_EQ(response.usage().prompt_tokens(), 1000);
}

TEST(Embed, FieldsReachTheEngine) {
  FakeEngine engine;
  v1::EmbedRequest request = request_of(1);
  request.add_inputs()->mutable_token_ids()->add_ids(7);
  start(request, &engine);
  const EmbedRequest& plain = engine.waiting[0].request;
  EXPECT_EQ(plain.client, "c");
  EXPECT_TRUE(plain.part_of_call);
  EXPECT_EQ(plain.dimensions, 0);
  EXPECT_TRUE(plain.add_special_tokens);
  EXPECT_FALSE(plain.prefix.has_value() || plain.normalize.has_value());
  EXPECT_THAT(std::get<std::vector<Token>>(engine.waiting[1].request.prompt), ElementsAre(7));
  request.set_prefix("p");
  request.set_prompt_name("n");
  request.set_add_special_tokens(false);
  request.set_dimensions(3);
  request.set_normalize(false);
  request.set_priority(5);
  start(request, &engine);
  const EmbedRequest& full = engine.waiting[2].request;
  EXPECT_EQ(full.prefix, "p");
  EXPECT_EQ(full.prompt_name, "n");
  EXPECT_FALSE(full.add_special_tokens || *full.normalize);
  EXPECT_EQ(full.dimensions, 3);
  EXPECT_EQ(full.priority, 5);
}

TEST(Embed, TheFirstErrorEndsIt) {
  FakeEngine engine;
  const auto answer = start(request_of(40), &engine);
  engine.answer(0);
  engine.waiting[2].done(absl::ResourceExhaustedError("full"));
  ASSERT_TRUE(answer->response.has_value());
  EXPECT_EQ(answer->response->status(), absl::ResourceExhaustedError("inputs[3]: full"));
  EXPECT_GE(engine.cancelled.size(), 31U);
  const RequestId last = engine.last;
  engine.answer(0);  // late: nothing more is asked
  EXPECT_EQ(engine.last, last);
}

TEST(Embed, CancelledByTheClient) {
  FakeEngine engine;
  const auto answer = start(request_of(2), &engine);
  answer->embed->cancel();
  EXPECT_TRUE(absl::IsCancelled(answer->response->status()));
  EXPECT_THAT(engine.cancelled, ElementsAre(1, 2));
}

TEST(Embed, AllViolationsAtOnce) {
  EXPECT_TRUE(check_embed(request_of(1)).ok());
  v1::EmbedRequest wrong;
  wrong.set_dimensions(0);
  wrong.set_priority(101);
  const std::string message(check_embed(wrong).message());
  for (const char* field : {"model", "inputs", "dimensions", "priority"}) {
    EXPECT_THAT(message, HasSubstr(field));
  }
  v1::EmbedRequest empty = request_of(2);
  empty.mutable_inputs(1)->clear_text();
  EXPECT_THAT(std::string(check_embed(empty, "input").message()), HasSubstr("input[1]: empty"));
  EXPECT_FALSE(check_embed(request_of(2049)).ok());
}

}  // namespace
}  // namespace tandem
