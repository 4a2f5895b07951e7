#include "server/grpc/rerank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Token kYesToken = 1, kNoToken = 2, kOther = 3;

// Answers Score requests when told to. The documents are numbers: the probability of "yes" in
// percent; "no" has the rest of 80 %.
struct FakeEngine {
  struct Asked {
    RequestId id;
    ScoreRequest request;
    std::function<void(absl::StatusOr<ScoreResult>)> done;
  };
  std::deque<Asked> waiting;
  std::set<RequestId> cancelled;
  RequestId last = 0;
  size_t most = 0;        // waiting at a time
  bool no_in_top = true;  // among the alternatives of "yes"
  size_t yes_tokens = 1;

  RerankScorer scorer() {
    return {.score =
                [this](ScoreRequest request, auto done) {
                  waiting.push_back({++last, std::move(request), std::move(done)});
                  most = std::max(most, waiting.size());
                  return last;
                },
            .cancel = [this](RequestId id) { cancelled.insert(id); },
            .token_bytes =
                [](Token id) {
                  return std::string(id == kYesToken ? "yes" : id == kNoToken ? "no" : "x");
                }};
  }

  static double percent(const ScoreRequest& request) {
    const auto& prompt = std::get<std::string>(request.prompt);
    return std::stod(prompt.substr(prompt.find("<Document>: ") + 12));
  }

  void answer() {
    const Asked asked = std::move(waiting.front());
    waiting.pop_front();
    const bool yes = std::get<std::string>(asked.request.continuation) == "yes";
    const double p = percent(asked.request) / 100;
    ScoreResult result;
    result.continuation.resize(yes ? yes_tokens : 1);
    result.continuation[0].id = yes ? kYesToken : kNoToken;
    result.total_logprob = std::log(yes ? p : 0.8 - p);
    result.usage.prompt_tokens = 10;
    if (asked.request.top_logprobs > 0) {
      result.continuation[0].top.emplace_back(kOther, std::log(0.2));
      if (no_in_top) result.continuation[0].top.emplace_back(kNoToken, std::log(0.8 - p));
    }
    asked.done(result);
  }
};

struct Answer {
  std::shared_ptr<int> open = std::make_shared<int>();  // the call holds it too
  std::optional<absl::StatusOr<v1::RerankResponse>> response;
  std::shared_ptr<Rerank> rerank;
};

v1::RerankRequest request_of(const std::vector<std::string>& documents) {
  v1::RerankRequest request;
  request.set_model("m");
  request.set_query("q");
  for (const std::string& d : documents) request.add_documents(d);
  return request;
}

std::shared_ptr<Answer> start(const v1::RerankRequest& request, FakeEngine* engine) {
  auto answer = std::make_shared<Answer>();
  CallInfo info;
  info.client = "c";
  info.request_id = "id";
  answer->rerank =
      Rerank::start(request, info, engine->scorer(),
                    std::shared_ptr<OpenCall>(answer->open, static_cast<OpenCall*>(nullptr)),
                    [answer](absl::StatusOr<v1::RerankResponse> response) {
                      EXPECT_FALSE(answer->response.has_value());
                      EXPECT_EQ(answer->open.use_count(), 1) << "the call is not open any more";
                      answer->response = std::move(response);
                    });
  if (!answer->response.has_value()) EXPECT_EQ(answer->open.use_count(), 2);
  return answer;
}

std::vector<int> order_of(const v1::RerankResponse& response) {
  std::vector<int> order;
  for (const auto& result : response.results()) order.push_back(result.index());
  return order;
}

TEST(Rerank, OrdersByTheProbabilityOfYes) {
  for (const bool no_in_top : {true, false}) {
    FakeEngine engine;
    engine.no_in_top = no_in_top;
    v1::RerankRequest request = request_of({"20", "60", "40", "60"});
    request.set_return_documents(true);
    const auto answer = start(request, &engine);
    while (!engine.waiting.empty()) engine.answer();
    ASSERT_TRUE(answer->response.has_value() && answer->response->ok());
    const v1::RerankResponse& response = **answer->response;
    EXPECT_THAT(order_of(response), ElementsAre(1, 3, 2, 0));
    EXPECT_NEAR(response.results(0).relevance_score(), 0.75, 1e-6);
    EXPECT_NEAR(response.results(3).relevance_score(), 0.25, 1e-6);
    EXPECT_EQ(response.results(3).document(), "20");
    EXPECT_EQ(response.request_id(), "id");
    EXPECT_EQ(response.usage().prompt_tokens(), 40);
    EXPECT_EQ(engine.last, no_in_top ? 4 : 8) << "a second request only if necessary";
  }
}

TEST(Rerank, AFewDocumentsAtATime) {
  FakeEngine engine;
  v1::RerankRequest request = request_of(std::vector<std::string>(100, "50"));
  request.set_top_n(3);
  const auto answer = start(request, &engine);
  while (!engine.waiting.empty()) engine.answer();
  EXPECT_EQ(engine.most, 16);
  EXPECT_EQ(engine.last, 100);
  EXPECT_THAT(order_of(**answer->response), ElementsAre(0, 1, 2));
  EXPECT_EQ((*answer->response)->results(0).document(), "");
}

TEST(Rerank, TheFirstErrorEndsIt) {
  FakeEngine engine;
  const auto answer = start(request_of(std::vector<std::string>(20, "50")), &engine);
  engine.answer();
  engine.waiting[2].done(absl::ResourceExhaustedError("full"));
  ASSERT_TRUE(answer->response.has_value());
  EXPECT_EQ(answer->response->status(), absl::ResourceExhaustedError("documents[3]: full"));
  EXPECT_GE(engine.cancelled.size(), 15u);
  const RequestId last = engine.last;
  engine.answer();  // late: nothing more is asked
  EXPECT_EQ(engine.last, last);
}

TEST(Rerank, CancelledByTheClient) {
  FakeEngine engine;
  const auto answer = start(request_of({"50", "50"}), &engine);
  answer->rerank->cancel();
  EXPECT_TRUE(absl::IsCancelled(answer->response->status()));
  EXPECT_THAT(engine.cancelled, ElementsAre(1, 2));
}

TEST(Rerank, ModelsThatAreNoRerankers) {
  FakeEngine engine;
  engine.yes_tokens = 3;
  const auto answer = start(request_of({"50"}), &engine);
  engine.answer();
  EXPECT_TRUE(absl::IsFailedPrecondition(answer->response->status()));
  EXPECT_THAT(answer->response->status().message(), HasSubstr("\"yes\" is 3 tokens"));
}

TEST(Rerank, Prompt) {
  FakeEngine engine;
  v1::RerankRequest request = request_of({"1"});
  start(request, &engine);
  const ScoreRequest& asked = engine.waiting[0].request;
  EXPECT_EQ(std::get<std::string>(asked.prompt),
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
            "Query and the Instruct provided. Note that the answer can only be \"yes\" or "
            "\"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve "
            "relevant passages that answer the query\n<Query>: q\n<Document>: 1<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_FALSE(asked.add_special_tokens);
  EXPECT_EQ(asked.client, "c");
  EXPECT_TRUE(asked.part_of_call);
  request.set_instruction("be strict");
  start(request, &engine);
  EXPECT_THAT(std::get<std::string>(engine.waiting[1].request.prompt),
              HasSubstr("<Instruct>: be strict\n"));
}

TEST(Rerank, AllViolationsAtOnce) {
  EXPECT_TRUE(check_rerank(request_of({"d"})).ok());
  v1::RerankRequest wrong;
  wrong.set_top_n(0);
  wrong.set_priority(101);
  const std::string message(check_rerank(wrong).message());
  for (const char* field : {"model", "query", "documents", "top_n", "priority"}) {
    EXPECT_THAT(message, HasSubstr(field));
  }
  EXPECT_FALSE(check_rerank(request_of(std::vector<std::string>(1025, "d"))).ok());
}

}  // namespace
}  // namespace tandem
