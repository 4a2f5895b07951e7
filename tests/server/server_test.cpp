// Requests and answers as clients see them: gRPC on loopback, the real engine, fake models.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/grpc/response_to_proto.h"
#include "tandem/v1/generation.grpc.pb.h"
#include "tandem/v1/models.grpc.pb.h"
#include "tests/server/server_harness.h"

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(Server, StreamsStartedThenChunksThenFinished) {
  Harness h;
  v1::GenerateRequest request = ask("fake", "hello", 40);
  request.set_request_id("mine");
  const Stream s = stream(*h.client, request);
  ASSERT_TRUE(s.status.ok()) << s.status;
  ASSERT_GE(s.events.size(), 3u);
  EXPECT_TRUE(s.events.front().has_started());
  EXPECT_TRUE(s.events.back().has_finished());
  for (size_t i = 1; i + 1 < s.events.size(); ++i) {
    EXPECT_TRUE(s.events[i].has_chunk());
    const std::string& text = s.events[i].chunk().text();
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
  }
  EXPECT_EQ(s.started.request_id(), "mine");
  EXPECT_EQ(s.started.prompt_tokens(), 5);
  EXPECT_EQ(s.started.method(), v1::METHOD_NGRAM) << "auto";
  EXPECT_EQ(s.started.contract(), v1::CONTRACT_EXACT);
  EXPECT_EQ(s.ids.size(), 40u);
  EXPECT_EQ(s.finished.finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(s.finished.usage().prompt_tokens(), 5);
  EXPECT_EQ(s.finished.usage().completion_tokens(), 40);
  EXPECT_GT(s.finished.stats().large_passes(), 0);
  EXPECT_GT(s.finished.stats().time_to_first_token_seconds(), 0);
}

TEST(Server, StreamsEqualCompletions) {
  Harness h;
  for (int seed = 0; seed < 8; ++seed) {
    v1::GenerateRequest request = ask("fake", "prompt " + std::to_string(seed), 30);
    request.set_temperature(seed % 2);
    request.set_seed(static_cast<uint64_t>(seed));
    const Stream s = stream(*h.client, request);
    const auto whole = h.client->complete(request);
    ASSERT_TRUE(s.status.ok() && whole.ok()) << s.status << whole.status();
    ASSERT_EQ(whole->choices_size(), 1);
    const v1::Choice& choice = whole->choices(0);
    EXPECT_EQ(choice.text(), s.text);
    std::vector<int> ids;
    for (const v1::Token& token : choice.tokens()) ids.push_back(token.id());
    EXPECT_EQ(ids, s.ids);
    EXPECT_EQ(choice.finished().finish_reason(), s.finished.finish_reason());
    EXPECT_EQ(choice.finished().seed(), static_cast<uint64_t>(seed));
    EXPECT_EQ(whole->started().method(), s.started.method());
  }
}

TEST(Server, TokensComeOnlyWhenAskedFor) {
  Harness h;
  v1::GenerateRequest request = ask("fake", "prompt", 40);
  const Stream with = stream(*h.client, request);
  ASSERT_EQ(with.ids.size(), 40U);
  request.clear_return_tokens();
  const Stream without = stream(*h.client, request);
  ASSERT_TRUE(without.status.ok()) << without.status;
  EXPECT_EQ(without.text, with.text);
  EXPECT_TRUE(without.ids.empty());
  EXPECT_EQ(without.finished.usage().completion_tokens(), 40);
  for (const auto& event : without.events) {
    EXPECT_FALSE(event.has_chunk() && event.chunk().text().empty());
  }
  const auto whole = h.client->complete(request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->choices(0).text(), with.text);
  EXPECT_EQ(whole->choices(0).tokens_size(), 0);
  for (const char* implies : {"return_token_texts: true", "logprobs: true", "top_logprobs: 1"}) {
    v1::GenerateRequest more = request;
    ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(implies, &more));
    EXPECT_EQ(stream(*h.client, more).ids, with.ids) << implies;
  }
}

TEST(Server, BytesOfTokensSpellTheText) {
  Harness h;
  v1::GenerateRequest request = ask("fake", "prompt", 60);
  request.set_temperature(1);
  request.set_seed(3);
  request.set_top_logprobs(2);
  for (const int byte : {0xC3, 0xA9}) (*request.mutable_logit_bias())[byte] = 100;  // é, or halves
  const auto whole = h.client->complete(request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  std::string bytes;
  for (const v1::Token& token : whole->choices(0).tokens()) {
    bytes += token.bytes();
    EXPECT_EQ(token.text(), to_valid_utf8(token.bytes()));
    for (const v1::TopLogprob& top : token.top_logprobs()) {
      EXPECT_EQ(top.text(), to_valid_utf8(top.bytes()));
    }
  }
  EXPECT_EQ(bytes.size(), 60U);
  EXPECT_THAT(whole->choices(0).text(), HasSubstr("é"));
  EXPECT_THAT(whole->choices(0).text(), HasSubstr("\uFFFD"));
  EXPECT_EQ(to_valid_utf8(bytes), whole->choices(0).text());
}

TEST(Server, SeveralChoices) {
  Harness h;
  v1::GenerateRequest request = ask("fake", "several", 30);
  request.set_temperature(1.2);
  request.set_seed(3);
  const Stream one = stream(*h.client, request);
  request.set_n(4);
  std::map<int, Stream> choices;
  int started = 0;
  const absl::Status status = h.client->generate(request, [&](const v1::GenerateResponse& event) {
    started += event.has_started();
    const int index = event.has_finished() ? event.finished().index() : event.chunk().index();
    EXPECT_FALSE(choices[index].finished.has_usage()) << "after its end";
    choices[index].add(event);
    return true;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(started, 1);
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[0].ids, one.ids);
  const auto whole = h.client->complete(request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(whole->choices_size(), 4);
  std::set<std::string> texts;
  for (int i = 0; i < 4; ++i) {
    const v1::Choice& choice = whole->choices(i);
    EXPECT_EQ(choice.index(), i);
    EXPECT_EQ(choice.text(), choices[i].text);
    EXPECT_EQ(choice.finished().index(), i);
    EXPECT_EQ(choice.finished().seed(), 3u);
    EXPECT_EQ(choice.finished().usage().completion_tokens(), 30);
    EXPECT_EQ(choices[i].finished.usage().completion_tokens(), 30);
    texts.insert(choice.text());
  }
  EXPECT_EQ(texts.size(), 4u);
  request.set_temperature(0);
  const auto greedy = h.client->complete(request);
  ASSERT_TRUE(greedy.ok()) << greedy.status();
  for (int i = 1; i < 4; ++i) EXPECT_EQ(greedy->choices(i).text(), greedy->choices(0).text());
}

TEST(Server, ConcurrentStreamsAreEachAsAlone) {
  Harness h;
  constexpr int kStreams = 16;
  std::vector<Stream> alone(kStreams), together(kStreams);
  const auto request = [](int i) { return ask("fake", "stream " + std::to_string(i), 60); };
  for (int i = 0; i < kStreams; ++i) alone[i] = stream(*h.client, request(i));
  std::vector<std::thread> threads;
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] { together[i] = stream(*h.client, request(i)); });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(together[i].status.ok()) << together[i].status;
    EXPECT_EQ(together[i].ids, alone[i].ids);
    EXPECT_EQ(together[i].text, alone[i].text);
  }
}

TEST(Server, CancelFreesTheRequest) {
  Harness h;
  const absl::Status status = h.client->generate(
      ask("slow", "x", 3000), [](const v1::GenerateResponse& event) { return !event.has_chunk(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
  EXPECT_TRUE(stream(*h.client, ask("slow", "x", 2)).status.ok());
}

TEST(Server, CancelledCompleteFreesTheRequest) {
  Harness h;
  const auto client = h.connect({.timeout = std::chrono::milliseconds(100)});
  EXPECT_EQ(client->complete(ask("slow", "x", 3000)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
}

TEST(Server, DeadlineEndsTheStream) {
  Harness h;
  const auto client = h.connect({.timeout = std::chrono::milliseconds(100)});
  const Stream s = stream(*client, ask("slow", "x", 3000));
  EXPECT_EQ(s.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(s.ids.size(), 3000u);
  EXPECT_TRUE(eventually([&] { return h.engine->live_requests() == 0; }));
}

TEST(Server, TimeLimitIsNoError) {
  Harness h;
  v1::GenerateRequest request = ask("slow", "x", 3000);
  request.set_time_limit_seconds(0.1);
  const Stream s = stream(*h.client, request);
  ASSERT_TRUE(s.status.ok()) << s.status;
  EXPECT_EQ(s.finished.finish_reason(), v1::FINISH_REASON_TIME_LIMIT);
  EXPECT_LT(s.ids.size(), 3000u);
}

TEST(Server, StopSequences) {
  Harness h;
  const Stream all = stream(*h.client, ask("fake", "stop here", 60));
  ASSERT_TRUE(all.status.ok()) << all.status;
  v1::GenerateRequest request = ask("fake", "stop here", 60);
  // A single byte of ASCII somewhere in the text; the fake's text is arbitrary bytes.
  const auto found = std::find_if(all.text.begin() + 5, all.text.end(),
                                  [](char c) { return c >= ' ' && c < 127; });
  ASSERT_NE(found, all.text.end());
  const std::string stop(1, *found);
  request.add_stop_sequences(stop);
  const Stream cut = stream(*h.client, request);
  EXPECT_EQ(cut.finished.finish_reason(), v1::FINISH_REASON_STOP_SEQUENCE);
  EXPECT_EQ(cut.finished.stop_sequence(), stop);
  EXPECT_EQ(cut.text, all.text.substr(0, all.text.find(stop)));
  request.set_include_stop_sequence(true);
  EXPECT_EQ(stream(*h.client, request).text, cut.text + stop);
}

TEST(Server, LogprobsAgreeWithScore) {
  Harness h;
  v1::GenerateRequest request = ask("fake", "score me", 12);
  request.set_temperature(1);
  request.set_top_logprobs(3);
  const auto whole = h.client->complete(request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  v1::ScoreRequest score;
  score.set_model("fake");
  score.set_text("score me");
  double total = 0;
  for (const v1::Token& token : whole->choices(0).tokens()) {
    score.mutable_continuation_token_ids()->add_ids(token.id());
    ASSERT_TRUE(token.has_logprob());
    EXPECT_TRUE(token.has_text());
    EXPECT_EQ(token.top_logprobs_size(), 3);
    total += token.logprob();
  }
  score.set_top_logprobs(2);
  const auto scored = h.client->score(score);
  ASSERT_TRUE(scored.ok()) << scored.status();
  ASSERT_EQ(scored->continuation_tokens_size(), 12);
  EXPECT_NEAR(scored->total_logprob(), total, 1e-3);
  for (int i = 0; i < 12; ++i) {
    EXPECT_NEAR(scored->continuation_tokens(i).logprob(), whole->choices(0).tokens(i).logprob(),
                1e-4);
    EXPECT_EQ(scored->continuation_tokens(i).top_logprobs_size(), 2);
  }
  EXPECT_EQ(scored->prompt_tokens_size(), 0);
  score.set_score_prompt(true);
  const auto with_prompt = h.client->score(score);
  ASSERT_TRUE(with_prompt.ok()) << with_prompt.status();
  ASSERT_EQ(with_prompt->prompt_tokens_size(), 8);
  EXPECT_FALSE(with_prompt->prompt_tokens(0).has_logprob());
  EXPECT_TRUE(with_prompt->prompt_tokens(1).has_logprob());
}

TEST(Server, TokenizeAndDetokenize) {
  Harness h;
  v1::TokenizeRequest request;
  request.set_model("fake");
  request.set_text("hé");
  request.set_return_token_texts(true);
  const auto tokens = h.client->tokenize(request);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->token_ids(), testing::ElementsAre('h', 0xC3, 0xA9));
  EXPECT_THAT(tokens->token_texts(), testing::ElementsAre("h", "\uFFFD", "\uFFFD"));
  EXPECT_THAT(tokens->token_bytes(), testing::ElementsAre("h", "\xC3", "\xA9"));
  v1::DetokenizeRequest back;
  back.set_model("fake");
  *back.mutable_token_ids() = tokens->token_ids();
  EXPECT_EQ(h.client->detokenize(back)->text(), "hé");
  back.add_token_ids(257);
  EXPECT_EQ(h.client->detokenize(back).status().code(), absl::StatusCode::kInvalidArgument);
  back.set_model("none");
  EXPECT_EQ(h.client->detokenize(back).status().code(), absl::StatusCode::kNotFound);
  request.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(h.client->tokenize(request).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Server, Models) {
  Harness h;
  const auto models = h.client->models();
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->models_size(), 3);
  EXPECT_FALSE(models->server_version().empty());
  const v1::Model& slow = models->models(1);
  EXPECT_EQ(slow.name(), "slow");
  ASSERT_EQ(slow.components_size(), 2);
  EXPECT_EQ(slow.components(0).role(), "large");
  EXPECT_EQ(slow.components(1).role(), "small");
  EXPECT_EQ(slow.components(1).name(), "fake");
  EXPECT_EQ(slow.methods(0).method(), v1::METHOD_SPECULATIVE);
  EXPECT_EQ(slow.limits().vocab_size(), 257);
  EXPECT_EQ(h.client->model("slow")->SerializeAsString(), slow.SerializeAsString());
  EXPECT_EQ(h.client->model("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(h.client->model("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Server, ModelsComeInPages) {
  Harness h;
  const auto stub = v1::Models::NewStub(
      grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  const auto list = [&](int size, const std::string& token, v1::ListModelsResponse* answer) {
    grpc::ClientContext context;
    v1::ListModelsRequest request;
    request.set_page_size(size);
    request.set_page_token(token);
    return stub->ListModels(&context, request, answer);
  };
  std::vector<std::string> names;
  v1::ListModelsResponse page;
  do {
    const std::string token = page.next_page_token();
    ASSERT_TRUE(list(2, token, &page).ok());
    EXPECT_LE(page.models_size(), 2);
    for (const v1::Model& model : page.models()) names.push_back(model.name());
  } while (!page.next_page_token().empty());
  EXPECT_THAT(names, testing::ElementsAre("fake", "slow", "pair"));
  for (const int size : {0, 3, 5000}) {
    ASSERT_TRUE(list(size, "", &page).ok());
    EXPECT_EQ(page.models_size(), 3);
    EXPECT_EQ(page.next_page_token(), "");
  }
  EXPECT_EQ(list(-1, "", &page).error_message(), "page_size: -1; allowed: at least 0");
  EXPECT_EQ(list(1, "gone", &page).error_message(),
            "page_token: \"gone\"; allowed: next_page_token of the previous response");
}

// Errors that need the model arrive at once too, with a reason for programs.
TEST(Server, RefusalsHaveDetails) {
  Harness h;
  const auto stub = v1::Generation::NewStub(
      grpc::CreateChannel(h.server->grpc_address(), grpc::InsecureChannelCredentials()));
  const auto refused = [&](const v1::GenerateRequest& request, google::rpc::Status* details) {
    grpc::ClientContext context;
    v1::CompleteResponse response;
    const grpc::Status status = stub->Complete(&context, request, &response);
    EXPECT_TRUE(details->ParseFromString(status.error_details()));
    return status;
  };
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  v1::GenerateRequest request = ask("fake", "", 5);
  request.set_request_id("mine");
  request.mutable_token_ids()->add_ids(1000);
  request.add_stop_token_ids(-1);
  request.add_bad_token_ids(257);
  EXPECT_EQ(refused(request, &details).error_message(),
            "bad_token_ids: 257; allowed: 0 to 256\n"
            "token_ids[0]: 1000; allowed: 0 to 256\n"
            "stop_token_ids: -1; allowed: 0 to 256");
  ASSERT_EQ(details.details_size(), 2);
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "INVALID_FIELD");
  EXPECT_EQ(info.metadata().at("request_id"), "mine");
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.details(1).UnpackTo(&bad));
  EXPECT_EQ(bad.field_violations_size(), 3);

  const auto reason = [&](const v1::GenerateRequest& r) {
    (void)refused(r, &details);
    EXPECT_TRUE(details.details(0).UnpackTo(&info));
    return info.reason();
  };
  EXPECT_EQ(reason(ask("nope", "x", 5)), "MODEL_NOT_FOUND");
  EXPECT_EQ(reason(ask("slow", std::string(5000, 'x'), 5)), "CONTEXT_LENGTH_EXCEEDED");
  request = ask("fake", "x", 5);
  request.mutable_bild();
  EXPECT_EQ(reason(request), "METHOD_NOT_OFFERED");
  request = ask("fake", "x", 5);
  request.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(reason(request), "NO_CHAT_TEMPLATE");
  request = ask("pair", "x", 5);
  request.mutable_bild()->set_rollback_threshold(5);
  request.set_require_contract(v1::CONTRACT_EXACT);
  EXPECT_EQ(reason(request), "CONTRACT_NOT_SATISFIABLE");
}

TEST(Server, AdaptersOfADeployment) {
  Harness harness("", true, R"(
    deployments { name: "adapted" large: "fake" adapters { name: "sql" } adapters { name: "law" } })");
  const auto model = harness.client->model("adapted:law");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name(), "adapted");
  ASSERT_EQ(model->adapters_size(), 2);
  EXPECT_EQ(model->adapters(0).name(), "sql");
  v1::GenerateRequest request = ask("adapted", "prompt", 12);
  const Stream base = stream(*harness.client, request);
  request.set_adapter("law");
  const Stream law = stream(*harness.client, request);
  ASSERT_TRUE(base.status.ok() && law.status.ok()) << law.status;
  EXPECT_NE(law.ids, base.ids);
  for (const char* name : {"adapted:law", "law"}) {
    EXPECT_EQ(stream(*harness.client, ask(name, "prompt", 12)).ids, law.ids) << name;
  }
  request.set_adapter("lav");
  const absl::Status unknown = stream(*harness.client, request).status;
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()),
              testing::HasSubstr("did you mean \"law\"? known: \"sql\", \"law\""));
}

TEST(Server, UnknownModel) {
  Harness h;
  const Stream s = stream(*h.client, ask("nope", "x", 5));
  EXPECT_EQ(s.status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(s.status.message()), HasSubstr("nope"));
  EXPECT_EQ(h.client->complete(ask("nope", "x", 5)).status().code(), absl::StatusCode::kNotFound);
}

TEST(Server, MethodsThatAreNotOfferedSayWhatIs) {
  Harness h;
  const auto* const oneof = v1::GenerateRequest::descriptor()->FindOneofByName("method");
  for (int i = 0; i < oneof->field_count(); ++i) {
    v1::GenerateRequest request = ask("fake", "x", 5);
    request.GetReflection()->MutableMessage(&request, oneof->field(i));
    const Stream s = stream(*h.client, request);
    const std::string& name = oneof->field(i)->name();
    if (name == "auto" || name == "autoregressive" || name == "ngram") {
      EXPECT_TRUE(s.status.ok()) << s.status;
      continue;
    }
    EXPECT_EQ(s.status.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_THAT(std::string(s.status.message()), HasSubstr(name));
    EXPECT_THAT(std::string(s.status.message()), HasSubstr("autoregressive"));
  }
}

TEST(Server, EveryMethodOfAPairAnswersAndSaysWhatItDid) {
  Harness h;
  v1::GenerateRequest alone = ask("pair", "x", 24);
  alone.mutable_autoregressive();
  const Stream plain = stream(*h.client, alone);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  EXPECT_TRUE(plain.finished.stats().accept_lengths().empty());
  EXPECT_FALSE(plain.finished.stats().has_fallbacks());
  EXPECT_FALSE(plain.finished.stats().has_small_tokens());

  v1::GenerateRequest request = ask("pair", "x", 24);
  request.mutable_bild()->set_rollback_threshold(0.69);
  request.mutable_bild()->set_fallback_threshold(0);
  const Stream bild = stream(*h.client, request);
  ASSERT_TRUE(bild.status.ok()) << bild.status;
  EXPECT_EQ(bild.started.method(), v1::METHOD_BILD);
  EXPECT_EQ(bild.started.contract(), v1::CONTRACT_EXACT);
  EXPECT_EQ(bild.ids, plain.ids);
  const v1::MethodStats& stats = bild.finished.stats();
  EXPECT_EQ(stats.small_tokens() + stats.large_tokens(), 24);
  EXPECT_GT(stats.rollbacks(), 0);
  EXPECT_GE(stats.rolled_back_tokens(), stats.rollbacks());
  EXPECT_TRUE(stats.has_fallbacks());
  EXPECT_EQ(stats.fallbacks(), 0);
  EXPECT_TRUE(stats.has_forced_calls());
  EXPECT_FALSE(stats.has_match_rate());
  int corrected = 0, kept = 0, verified = 0;
  for (const auto& event : bild.events) {
    for (const v1::Token& token : event.chunk().tokens()) {
      corrected += token.corrected() ? 1 : 0;
      kept += token.proposed() == v1::SOURCE_SMALL ? 1 : 0;
      EXPECT_EQ(token.confirmed(), v1::SOURCE_LARGE);
      EXPECT_FALSE(token.has_text());
    }
  }
  EXPECT_EQ(corrected, stats.rollbacks());
  EXPECT_EQ(kept, stats.small_tokens());
  for (const int n : stats.accept_lengths()) verified += n;
  EXPECT_GT(verified, 0);

  request = ask("pair", "x", 24);
  request.mutable_speculative()->set_draft_tokens(3);
  request.set_return_token_texts(true);
  const Stream speculative = stream(*h.client, request);
  ASSERT_TRUE(speculative.status.ok()) << speculative.status;
  EXPECT_EQ(speculative.started.method(), v1::METHOD_SPECULATIVE);
  EXPECT_EQ(speculative.ids, plain.ids);
  EXPECT_LE(speculative.finished.stats().accept_lengths_size(), 4);
  EXPECT_GT(speculative.finished.stats().draft_tokens(), 0);
  EXPECT_FALSE(speculative.finished.stats().has_rollbacks());
  for (const auto& event : speculative.events) {
    for (const v1::Token& token : event.chunk().tokens()) {
      EXPECT_TRUE(token.has_text());
      EXPECT_FALSE(token.has_logprob());
    }
  }
}

// The trace, the statistics and the metrics of one request count the same passes.
TEST(Server, ATraceAgreesWithStatisticsAndMetrics) {
  for (const char* const method : {"speculative", "bild", "autoregressive", "ngram"}) {
    Harness h;
    v1::GenerateRequest request = ask("pair", "x", 40);
    ASSERT_TRUE(
        google::protobuf::TextFormat::MergeFromString(absl::StrCat(method, " {}"), &request));
    request.set_trace(true);
    // Engines run passes when they start, so the differences count.
    httplib::Client http("http://" + h.server->http_address());
    const auto metric = [&http](const std::string& name) {
      const auto answer = http.Get("/metrics");
      const size_t at = answer ? answer->body.find("\n" + name + " ") : std::string::npos;
      return at == std::string::npos ? 0 : std::atoi(answer->body.c_str() + at + name.size() + 2);
    };
    int large = 0, small = 0, accepted = 0, drafts = 0;
    const std::string of = absl::StrCat("{model=\"pair\",method=\"", method, "\"}");
    const std::map<std::string, const int*> of_metrics = {
        {"tandem_passes_total{model=\"fake\",role=\"large\"}", &large},
        {"tandem_passes_total{model=\"little\",role=\"small\"}", &small},
        {"tandem_spec_decode_num_accepted_tokens_total" + of, &accepted},
        {"tandem_spec_decode_num_draft_tokens_total" + of, &drafts}};
    std::map<std::string, int> before;
    for (const auto& [name, value] : of_metrics) before[name] = metric(name);
    const Stream s = stream(*h.client, request);
    ASSERT_TRUE(s.status.ok()) << s.status;
    const v1::MethodStats& stats = s.finished.stats();
    std::set<int> numbers;
    for (const v1::PassRecord& p : s.finished.trace().passes()) {
      large += p.role() == v1::PASS_ROLE_LARGE ? 1 : 0;
      small += p.role() == v1::PASS_ROLE_SMALL ? 1 : 0;
      accepted += p.accepted();
      drafts += p.accepted() + p.rejected();
      EXPECT_TRUE(numbers.insert(p.pass_number()).second);
      EXPECT_LE(p.start_us(), p.end_us());
      EXPECT_EQ(p.batch_requests(), 1);
    }
    EXPECT_EQ(s.finished.trace().omitted(), 0);
    EXPECT_EQ(large, stats.large_passes()) << method;
    EXPECT_EQ(small, stats.small_passes()) << method;
    EXPECT_EQ(drafts, stats.draft_tokens()) << method;
    int of_stats = 0;
    for (int i = 0; i < stats.accept_lengths_size(); ++i) of_stats += i * stats.accept_lengths(i);
    EXPECT_EQ(accepted, of_stats) << method;
    for (const auto& event : s.events) {
      for (const v1::Token& token : event.chunk().tokens()) {
        EXPECT_TRUE(numbers.contains(token.pass_number())) << method;
      }
    }
    for (const auto& [name, value] : of_metrics) {
      EXPECT_TRUE(eventually([&] { return metric(name) == before[name] + *value; }))
          << name << " " << before[name] << " " << *value;
    }
  }
}

TEST(Server, ATraceIsMadeOnRequestForEachChoice) {
  Harness h;
  v1::GenerateRequest request = ask("pair", "x", 12);
  const auto plain = h.client->complete(request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->choices(0).finished().has_trace());
  request.set_trace(true);
  request.set_n(3);
  request.set_temperature(1);
  const auto whole = h.client->complete(request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const v1::Choice& choice : whole->choices()) {
    int large = 0;
    for (const v1::PassRecord& p : choice.finished().trace().passes()) {
      large += p.role() == v1::PASS_ROLE_LARGE ? 1 : 0;
    }
    EXPECT_EQ(large, choice.finished().stats().large_passes()) << choice.index();
  }
}

// The records are part of the answer: they count for its limit and for the memory of clients.
TEST(Server, ATraceCountsForTheSizeOfAnAnswer) {
  Harness h("max_send_bytes: 2048");
  v1::GenerateRequest request = ask("fake", "x", 200);
  request.clear_return_tokens();
  request.mutable_autoregressive();
  const auto plain = h.client->complete(request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  request.set_trace(true);
  const auto traced = h.client->complete(request);
  EXPECT_EQ(traced.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(traced.status().message()), HasSubstr("max_send_bytes"));
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(Server, ModelsSayWhatTheirMethodsDefaultTo) {
  Harness h;
  const auto pair = h.client->model("pair");
  ASSERT_TRUE(pair.ok()) << pair.status();
  ASSERT_EQ(pair->methods_size(), 4);
  EXPECT_EQ(pair->default_method(), v1::METHOD_SPECULATIVE);
  EXPECT_EQ(pair->methods(0).speculative().draft_tokens(), 4);
  EXPECT_EQ(pair->methods(1).defaults_case(), v1::OfferedMethod::DEFAULTS_NOT_SET);
  EXPECT_EQ(pair->methods(2).method(), v1::METHOD_NGRAM);
  EXPECT_EQ(pair->methods(2).ngram().max_ngram(), 64);
  EXPECT_EQ(pair->methods(3).method(), v1::METHOD_BILD);
  EXPECT_EQ(pair->methods(3).greedy_contract(), v1::CONTRACT_LOSSY);
  EXPECT_EQ(pair->methods(3).bild().rollback_threshold(), 5);
  EXPECT_TRUE(pair->methods(3).bild().verify_eos());
  EXPECT_FALSE(pair->methods(3).bild().has_window());
  EXPECT_TRUE(pair->components(0).batch_invariant());
  ASSERT_GT(pair->sampling_parameters_size(), 0);
  for (const v1::Parameter& p : pair->sampling_parameters()) {
    EXPECT_NE(p.default_value(), "") << p.name();
    EXPECT_TRUE(p.has_min() && p.has_max()) << p.name();
  }
}

TEST(Server, BadRequestsAreRefusedAndServingContinues) {
  Harness h;
  const auto refused = [&](const std::function<void(v1::GenerateRequest*)>& change,
                           const std::string& part) {
    v1::GenerateRequest request = ask("fake", "x", 5);
    change(&request);
    for (const absl::Status& status :
         {stream(*h.client, request).status, h.client->complete(request).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  };
  refused([](auto* r) { r->set_temperature(std::nan("")); }, "temperature: nan");
  refused([](auto* r) { r->set_top_p(2); }, "top_p: 2; allowed: (0, 1]");
  refused([](auto* r) { r->set_text(""); }, "text: empty");
  refused([](auto* r) { r->clear_text(); }, "prompt: none");
  refused([](auto* r) { r->mutable_token_ids()->add_ids(257); }, "257");
  refused([](auto* r) { r->mutable_token_ids()->add_ids(-1); }, "-1");
  refused([](auto* r) { r->add_stop_token_ids(257); }, "257");
  refused([](auto* r) { r->set_max_new_tokens(16385); }, "max_new_tokens: 16385");
  refused([](auto* r) { r->set_text(std::string(20000, 'x')); }, "prompt: 20000 tokens");
  refused([](auto* r) { r->set_n(1000000); }, "n: 1000000");
  EXPECT_TRUE(stream(*h.client, ask("fake", "x", 5)).status.ok());
}

TEST(Server, MetricsCountWhatHappened) {
  Harness h;
  ASSERT_TRUE(stream(*h.client, ask("fake", "abc", 7)).status.ok());
  v1::GenerateRequest bad = ask("fake", "abc", 7);
  bad.set_top_p(2);
  EXPECT_FALSE(stream(*h.client, bad).status.ok());
  httplib::Client http("http://" + h.server->http_address());
  const auto has = [&](const std::string& line) {
    const auto answer = http.Get("/metrics");
    return answer && answer->body.find("\n" + line + "\n") != std::string::npos;
  };
  const std::string labels = "{model=\"fake\",method=\"ngram\"";
  EXPECT_TRUE(eventually(
      [&] { return has("tandem_requests_total" + labels + ",finish_reason=\"MAX_TOKENS\"} 1"); }));
  EXPECT_TRUE(has("tandem_prompt_tokens_total" + labels + "} 3"));
  EXPECT_TRUE(has("tandem_generated_tokens_total" + labels + "} 7"));
  EXPECT_TRUE(has("tandem_requests_running" + labels + "} 0"));
  EXPECT_TRUE(has("tandem_time_to_first_token_seconds_count" + labels + "} 1"));
  EXPECT_TRUE(has("tandem_requests_rejected_total{reason=\"invalid\"} 1"));
  EXPECT_TRUE(
      has("tandem_requests_failed_total{model=\"\",method=\"\",status=\"INVALID_ARGUMENT\"} 1"));
}

}  // namespace
}  // namespace tandem
