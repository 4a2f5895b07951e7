#include "server/openai/answer.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status.h"
#include "server/openai/error.h"

namespace tandem::openai {
namespace {

using google::protobuf::TextFormat;
using nlohmann::json;

template <class Message>
Message from(const std::string& text) {
  Message out;
  EXPECT_TRUE(TextFormat::ParseFromString(text, &out)) << text;
  return out;
}

const v1::Started kStartedEvent =
    from<v1::Started>("request_id: 'r' method: METHOD_BILD contract: CONTRACT_LOSSY");
constexpr char kFinished[] = R"(finish_reason: FINISH_REASON_EOS seed: 18446744073709551615
    usage { prompt_tokens: 3 cached_tokens: 1 completion_tokens: 2 } stats { tokens_per_pass: 2 })";
constexpr char kToken[] = R"(id: 5 logprob: -0.5 text: "\357\277\275" bytes: "\303"
    top_logprobs { id: 5 logprob: -0.5 text: "\357\277\275" bytes: "\303" }
    top_logprobs { id: 6 logprob: -1 text: "b" bytes: "b" })";

Head head(Kind kind, bool logprobs = false, int per_prompt = 1) {
  return {kind, "req-1", 1700, "m", logprobs, per_prompt};
}

// The JSON of each event of a stream; null for [DONE].
std::vector<json> answer_events(const std::string& stream) {
  std::vector<json> out;
  for (const absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    absl::string_view text = event;
    EXPECT_TRUE(absl::ConsumePrefix(&text, "data: ")) << event;
    EXPECT_EQ(text.find('\n'), absl::string_view::npos) << event;
    out.push_back(text == "[DONE]" ? json() : json::parse(std::string(text)));
  }
  return out;
}

TEST(OpenAiAnswer, AChatIsWhole) {
  Answer answer(head(Kind::kChat, /*logprobs=*/false, /*per_prompt=*/2), 2);
  answer.started(kStartedEvent);
  for (int i = 0; i < 2; ++i) {
    answer.chunk(i, "", {});
    for (const char* const text : {"a", "\"", "\n"}) answer.chunk(i, text, {});
    auto finished = from<v1::Finished>(kFinished);
    finished.set_index(i);
    if (i == 1) finished.set_finish_reason(v1::FINISH_REASON_MAX_TOKENS);
    answer.finished(finished);
  }
  EXPECT_EQ(json::parse(answer.json()), json::parse(R"({
      "id":"chatcmpl-req-1","object":"chat.completion","created":1700,"model":"m","choices":[
      {"index":0,"message":{"role":"assistant","content":"a\"\n","refusal":null},"logprobs":null,
       "finish_reason":"stop"},
      {"index":1,"message":{"role":"assistant","content":"a\"\n","refusal":null},"logprobs":null,
       "finish_reason":"length"}],
      "usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,
               "prompt_tokens_details":{"cached_tokens":1},
               "completion_tokens_details":{"reasoning_tokens":0,"accepted_prediction_tokens":0,
                                            "rejected_prediction_tokens":0}},
      "tandem":{"method":"bild","contract":"lossy","seed":"18446744073709551615",
                "tokens_per_pass":2.0}})"));
}

TEST(OpenAiAnswer, AnEmptyTextIsOne) {
  Answer answer(head(Kind::kCompletion), 1);
  answer.finished(from<v1::Finished>(kFinished));
  EXPECT_EQ(json::parse(answer.json())["choices"][0]["text"], "");
}

// What a client is sent is bounded, so its size has to be known, and not guessed.
TEST(OpenAiAnswer, KnowsItsSize) {
  for (const Kind kind : {Kind::kChat, Kind::kCompletion}) {
    Answer answer(head(kind, /*logprobs=*/true), 1);
    for (int i = 0; i < 100; ++i) {
      answer.chunk(0, "\x01\"é", {from<v1::Token>(kToken)});
    }
    answer.finished(from<v1::Finished>(kFinished));
    const size_t all = answer.json().size();
    EXPECT_LE(answer.bytes(), all);
    EXPECT_GT(answer.bytes() + 600, all) << "but for the head and the end";
  }
}

constexpr char kDrafted[] = R"(id: 5 text: "\"a" bytes: "\"a" proposed: SOURCE_SMALL
    confirmed: SOURCE_LARGE pass_number: 3)";
constexpr char kMasked[] = R"(id: 6 text: "\357\277\275" bytes: "\303" proposed: SOURCE_MASK
    confirmed: SOURCE_LARGE pass_number: 3 proposed_index: 1 logprob: -0.5)";
constexpr char kCorrected[] = R"(id: 7 proposed: SOURCE_LARGE confirmed: SOURCE_LARGE
    corrected: true pass_number: 3)";
constexpr char kOfPrompt[] = R"(id: 8 proposed: SOURCE_LARGE confirmed: SOURCE_LARGE)";
constexpr char kTraced[] = R"(finish_reason: FINISH_REASON_EOS
    stats { large_passes: 1 small_passes: 0 accept_lengths: [0, 2] draft_tokens: 2 }
    trace { passes { pass_number: 3 start_us: 10 end_us: 5000000000 role: PASS_ROLE_LARGE
                     kind: PASS_KIND_VERIFY rows: 4 batches: 1 batch_rows: 9 batch_requests: 2
                     accepted: 2 rejected: 1 }
            passes { pass_number: 4 role: PASS_ROLE_WORKER kind: PASS_KIND_DRAFT } omitted: 7 })";

json tokens_json() {
  return json::parse(R"([
      {"id":5,"text":"\"a","proposed":"small","confirmed":"large","corrected":false,"pass":3},
      {"id":6,"text":"\ufffd","proposed":"mask","confirmed":"large","corrected":false,"pass":3,
       "index":1,"logprob":-0.5,"bytes":[195]},
      {"id":7,"text":"","proposed":"large","confirmed":"large","corrected":true,"pass":3}])");
}

json trace_json() {
  return json::parse(R"({"passes":[
      {"pass":3,"start_us":10,"end_us":5000000000,"role":"large","kind":"verify","rows":4,
       "batches":1,"batch_rows":9,"batch_requests":2,"accepted":2,"rejected":1},
      {"pass":4,"start_us":0,"end_us":0,"role":"worker","kind":"draft","rows":0,"batches":0,
       "batch_rows":0,"batch_requests":0,"accepted":0,"rejected":0}],"omitted":7})");
}

TEST(OpenAiAnswer, ChoicesHaveTokensAndTraceOnRequest) {
  for (const bool tokens : {false, true}) {
    for (const bool trace : {false, true}) {
      Head of = head(Kind::kCompletion);
      of.tokens = tokens;
      of.trace = trace;
      Answer answer(of, 1);
      answer.echo(0, "p", {from<v1::Token>(kOfPrompt)});
      answer.chunk(0, "x", {from<v1::Token>(kDrafted)});
      answer.chunk(0, "y", {from<v1::Token>(kMasked), from<v1::Token>(kCorrected)});
      const size_t before = answer.bytes();
      answer.finished(from<v1::Finished>(kTraced));
      EXPECT_EQ(answer.bytes() > before, tokens || trace);
      const json choice = json::parse(answer.json())["choices"][0];
      EXPECT_EQ(choice["text"], "pxy");
      EXPECT_EQ(choice["logprobs"], nullptr);
      EXPECT_EQ(choice.contains("tandem"), tokens || trace);
      if (!choice.contains("tandem")) continue;
      const json& more = choice["tandem"];
      EXPECT_EQ(more["stats"]["large_passes"], 1);
      EXPECT_EQ(more["stats"]["small_passes"], 0) << "zeros are written";
      EXPECT_EQ(more["stats"]["accept_lengths"], json::parse("[0,2]"));
      EXPECT_FALSE(more["stats"].contains("rollbacks")) << "of another method";
      EXPECT_EQ(more.contains("tokens"), tokens);
      EXPECT_EQ(more.contains("trace"), trace);
      if (tokens) {
        EXPECT_EQ(more["tokens"], tokens_json());
      }
      if (trace) {
        EXPECT_EQ(more["trace"], trace_json());
      }
    }
  }
}

TEST(OpenAiAnswer, EventsHaveTokensAndTheLastOneTheTrace) {
  Head of = head(Kind::kChat);
  of.tokens = of.trace = true;
  Events events(of, 1, /*include_usage=*/false);
  std::string stream = events.started(kStartedEvent);
  stream += events.chunk(0, "x", {from<v1::Token>(kDrafted)});
  stream += events.chunk(0, "", {from<v1::Token>(kMasked), from<v1::Token>(kCorrected)});
  stream += events.chunk(0, "held back", {});
  stream += events.finished(from<v1::Finished>(kTraced));
  const std::vector<json> all = answer_events(stream);
  ASSERT_EQ(all.size(), 5U);
  EXPECT_FALSE(all[0]["choices"][0].contains("tandem"));
  json tokens = all[1]["choices"][0]["tandem"]["tokens"];
  for (const json& token : all[2]["choices"][0]["tandem"]["tokens"]) tokens.push_back(token);
  EXPECT_EQ(tokens, tokens_json());
  EXPECT_FALSE(all[3]["choices"][0].contains("tandem"));
  const json& last = all[4]["choices"][0]["tandem"];
  EXPECT_FALSE(last.contains("tokens"));
  EXPECT_EQ(last["trace"], trace_json());
  EXPECT_EQ(last["stats"]["draft_tokens"], 2);
  EXPECT_EQ(all[4]["tandem"]["method"], "bild");
}

TEST(OpenAiAnswer, LogprobsHaveBytes) {
  auto second = from<v1::Token>(R"(text: "a" bytes: "\251a")");
  second.set_logprob(-std::numeric_limits<float>::infinity());
  const auto logprobs = [&](Kind kind) {
    Answer answer(head(kind, /*logprobs=*/true), 1);
    answer.chunk(0, "x", {from<v1::Token>(kToken)});
    answer.chunk(0, "y", {second});
    answer.finished(from<v1::Finished>(kFinished));
    return json::parse(answer.json())["choices"][0]["logprobs"];
  };
  EXPECT_EQ(logprobs(Kind::kChat)["content"], json::parse(R"([
      {"token":"\ufffd","logprob":-0.5,"bytes":[195],"top_logprobs":[
        {"token":"\ufffd","logprob":-0.5,"bytes":[195]},{"token":"b","logprob":-1.0,"bytes":[98]}]},
      {"token":"a","logprob":-9999.0,"bytes":[169,97],"top_logprobs":[]}])"));
  EXPECT_EQ(logprobs(Kind::kCompletion), json::parse(R"({
      "tokens":["bytes:\\xc3","a"],"token_logprobs":[-0.5,-9999.0],
      "top_logprobs":[{"bytes:\\xc3":-0.5,"b":-1.0},{}],"text_offset":[0,1]})"));
}

TEST(OpenAiAnswer, AChatIsStreamed) {
  Events events(head(Kind::kChat, /*logprobs=*/false, /*per_prompt=*/2), 2,
                /*include_usage=*/true);
  std::string stream = events.started(kStartedEvent);
  stream += events.chunk(1, "hi", {});
  for (int i = 0; i < 2; ++i) {
    v1::Finished finished = from<v1::Finished>(kFinished);
    finished.set_index(i);
    stream += events.finished(finished);
  }
  stream += events.end();
  const std::vector<json> all = answer_events(stream);
  ASSERT_EQ(all.size(), 7U);
  EXPECT_EQ(all[0], json::parse(R"({"id":"chatcmpl-req-1","object":"chat.completion.chunk",
      "created":1700,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"",
      "refusal":null},"logprobs":null,"finish_reason":null}],"usage":null})"));
  EXPECT_EQ(all[1]["choices"][0]["index"], 1);
  EXPECT_EQ(all[2]["choices"],
            json::parse(
                R"([{"index":1,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}])"));
  EXPECT_EQ(all[4]["choices"],
            json::parse(R"([{"index":1,"delta":{},"logprobs":null,"finish_reason":"stop"}])"));
  EXPECT_EQ(all[4]["tandem"]["method"], "bild");
  EXPECT_EQ(all[5]["choices"], json::array());
  EXPECT_EQ(all[5]["usage"]["completion_tokens"], 4);
  EXPECT_TRUE(all[6].is_null());
}

TEST(OpenAiAnswer, OffsetsOfACompletionContinueAcrossChunks) {
  Events events(head(Kind::kCompletion, true), 1, /*include_usage=*/false);
  EXPECT_EQ(events.started(kStartedEvent), "");
  const auto token = from<v1::Token>(R"(text: "a\303\251" bytes: "a\303\251")");
  const auto all = answer_events(events.chunk(0, "a\xC3\xA9", {token}) +
                                 events.chunk(0, "a\xC3\xA9", {token}) + events.end());
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0]["object"], "text_completion");
  EXPECT_FALSE(all[0].contains("usage"));
  EXPECT_EQ(all[1]["choices"][0]["text"], "a\xC3\xA9");
  EXPECT_EQ(all[1]["choices"][0]["logprobs"]["text_offset"], json::array({2}));
}

v1::Finished finished(int index, const std::string& more = "") {
  auto out = from<v1::Finished>(std::string(kFinished) + more);
  out.set_index(index);
  return out;
}

TEST(OpenAiAnswer, EachPromptCountsOnce) {
  Answer answer(head(Kind::kCompletion, /*logprobs=*/false, /*per_prompt=*/2), 6);
  for (int i = 0; i < 6; ++i) answer.finished(finished(i));
  const json usage = json::parse(answer.json())["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 9) << "three prompts";
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 3);
  EXPECT_EQ(usage["completion_tokens"], 12) << "six choices";
}

TEST(OpenAiAnswer, AnEchoedPromptIsBeforeTheText) {
  auto first = from<v1::Token>(R"(text: "p" bytes: "p")");  // it has no log-probability
  Answer answer(head(Kind::kCompletion, /*logprobs=*/true), 1);
  answer.echo(0, "pq", {first, from<v1::Token>(R"(logprob: -2 text: "q" bytes: "q")")});
  answer.chunk(0, "x", {from<v1::Token>(R"(logprob: -1 text: "x" bytes: "x")")});
  answer.finished(finished(0));
  const json choice = json::parse(answer.json())["choices"][0];
  EXPECT_EQ(choice["text"], "pqx");
  EXPECT_EQ(choice["logprobs"], json::parse(R"({"tokens":["p","q","x"],
      "token_logprobs":[null,-2.0,-1.0],"top_logprobs":[null,{},{}],"text_offset":[0,1,2]})"));
}

TEST(OpenAiAnswer, TheBestChoicesAreThoseOfTheHighestMeanLogprob) {
  Head best = head(Kind::kCompletion, /*logprobs=*/false, /*per_prompt=*/3);
  best.best = 2;
  Answer answer(best, 6);
  const std::vector<std::vector<float>> logprobs = {{-3}, {-1, -1}, {-2}, {-1}, {-0.5, -9}, {-2}};
  for (int i = 0; i < 6; ++i) {
    for (const float logprob : logprobs[static_cast<size_t>(i)]) {
      v1::Token token;
      token.set_logprob(logprob);
      answer.chunk(i, std::to_string(i), {token});
    }
    answer.finished(finished(i));
  }
  const json all = json::parse(answer.json());
  std::vector<std::string> texts;
  for (const json& choice : all["choices"]) {
    EXPECT_EQ(choice["index"], texts.size());
    EXPECT_TRUE(choice["logprobs"].is_null());
    texts.push_back(choice["text"]);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"11", "2", "3", "5"}));
  EXPECT_EQ(all["usage"]["completion_tokens"], 12) << "all that were generated";
}

TEST(OpenAiAnswer, StatisticsOfDraftsAreVllms) {
  UsageTotal usage;
  usage.add(finished(0, ""), true);
  EXPECT_EQ(usage.metrics_json(), "") << "without drafts";
  auto drafted = finished(0);
  drafted.mutable_stats()->set_draft_tokens(12);
  for (const int times : {2, 1, 0, 1}) drafted.mutable_stats()->add_accept_lengths(times);
  usage.add(drafted, false);
  EXPECT_EQ(json::parse(usage.metrics_json())["speculative_decoding"], json::parse(R"({
      "mean_acceptance_length":2.0,"draft_acceptance_rate":0.3333333333333333,
      "acceptance_histogram":{"0":2,"1":1,"3":1},"num_spec_steps":4,
      "num_accepted_draft_tokens":4,"num_draft_tokens":12})"));
  EXPECT_EQ(json::parse(usage.json())["completion_tokens_details"],
            json::parse(R"({"accepted_prediction_tokens":4,"reasoning_tokens":0,
                            "rejected_prediction_tokens":8})"));
}

TEST(OpenAiAnswer, EventsCountTheTokensSoFar) {
  Events events(head(Kind::kCompletion), 1, /*include_usage=*/true, /*usage_so_far=*/true);
  v1::Started started = kStartedEvent;
  started.set_prompt_tokens(3);
  EXPECT_EQ(events.started(started), "");
  const auto all = answer_events(events.chunk(0, "a", {}, 2) + events.chunk(0, "b", {}, 1) +
                                 events.finished(finished(0)) + events.end());
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0]["usage"],
            json::parse(R"({"prompt_tokens":3,"completion_tokens":2,"total_tokens":5})"));
  EXPECT_EQ(all[1]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(all[2]["usage"]["completion_tokens"], 2) << "the engine's count";
  EXPECT_EQ(all[3]["usage"]["total_tokens"], 5);
}

TEST(OpenAiAnswer, ModelsSayWhatTheyOffer) {
  const auto model =
      from<v1::Model>("name: 'a/b' default_method: METHOD_NGRAM limits { context_length: 9 }");
  const json one = json::parse(model_json(model, 7));
  EXPECT_EQ(one["id"], "a/b");
  EXPECT_EQ(one["object"], "model");
  EXPECT_EQ(one["created"], 7);
  EXPECT_EQ(one["tandem"]["limits"]["context_length"], 9);
  const json all = json::parse(models_json({model, model}, 7));
  EXPECT_EQ(all["object"], "list");
  EXPECT_EQ(all["data"], json::array({one, one}));
}

TEST(OpenAiAnswer, AdaptersAreListedBehindTheirParents) {
  const auto a = from<v1::Model>(
      "name: 'a' default_method: METHOD_PPD adapters { name: 'sql' rank: 8 } "
      "adapters { name: 'law' } methods { method: METHOD_AUTOREGRESSIVE } "
      "methods { method: METHOD_PPD refuses_adapters: true }");
  const auto b = from<v1::Model>("name: 'b' adapters { name: 'law' }");
  const json all = json::parse(models_json({a, b}, 7))["data"];
  std::vector<std::string> listed;
  for (const json& m : all) listed.push_back(json::array({m["id"], m["root"], m["parent"]}).dump());
  EXPECT_EQ(listed, (std::vector<std::string>{R"(["a","a",null])", R"(["sql","a:sql","a"])",
                                              R"(["a:law","a:law","a"])", R"(["b","b",null])",
                                              R"(["b:law","b:law","b"])"}));
  EXPECT_EQ(all[1]["tandem"]["name"], "sql");
  EXPECT_EQ(all[1]["tandem"]["adapters"].size(), 1U);
  EXPECT_EQ(all[1]["tandem"]["adapters"][0]["rank"], 8);
  EXPECT_EQ(all[0]["tandem"]["methods"].size(), 2U);
  EXPECT_EQ(all[0]["tandem"]["default_method"], "METHOD_PPD");
  EXPECT_EQ(all[1]["tandem"]["methods"].size(), 1U);
  EXPECT_EQ(all[1]["tandem"]["methods"][0]["method"], "METHOD_AUTOREGRESSIVE");
  EXPECT_EQ(all[1]["tandem"]["default_method"], "METHOD_AUTOREGRESSIVE");
  EXPECT_EQ(json::parse(adapter_json("sql", a, a.adapters(0), 7)), all[1]);
}

TEST(OpenAiError, HasOpenAisShapeAndOurMessage) {
  EXPECT_EQ(json::parse(error_json(out_of_range("n", 50, "[1, 16]"), "n: 50; allowed: [1, 16]")),
            json::parse(R"({"error":{"message":"n: 50; allowed: [1, 16]",
                "type":"invalid_request_error","param":"n","code":"invalid_field"}})"));
  const auto error = [](const absl::Status& status) {
    return json::parse(error_json(status, "m"))["error"];
  };
  const absl::Status no_model = with_reason(absl::NotFoundError("x"), "MODEL_NOT_FOUND");
  EXPECT_EQ(error(no_model)["code"], "model_not_found");
  EXPECT_EQ(error(no_model)["param"], "model");
  const absl::Status no_adapter = with_reason(absl::NotFoundError("x"), "ADAPTER_NOT_FOUND");
  EXPECT_EQ(error(no_adapter)["code"], "adapter_not_found");
  EXPECT_EQ(error(no_adapter)["param"], "tandem.adapter");
  const absl::Status token = with_reason(absl::PermissionDeniedError("x"), "CREDENTIALS_UNKNOWN");
  EXPECT_EQ(error(token)["code"], "invalid_api_key");
  EXPECT_EQ(http_status(token), 401);
  EXPECT_EQ(http_status(absl::PermissionDeniedError("x")), 403);
  EXPECT_EQ(http_status(absl::ResourceExhaustedError("x")), 429);
  EXPECT_EQ(http_status(with_reason(absl::ResourceExhaustedError("x"), "ANSWER_TOO_LARGE")), 400);
  EXPECT_EQ(http_status(absl::UnavailableError("x")), 503);
  EXPECT_EQ(http_status(absl::UnknownError("x")), 500);
  EXPECT_EQ(error(absl::UnavailableError("x"))["type"], "server_error");
  for (const int status : {400, 408, 413, 429, 431, 501, 505}) {
    EXPECT_FALSE(json::parse(error_json(status))["error"]["message"].get<std::string>().empty());
  }
}

v1::ToolCall call(const std::string& fields) { return from<v1::ToolCall>(fields); }

TEST(OpenAiAnswer, AMessageHasReasoningAndCalls) {
  Answer answer(head(Kind::kChat), 1);
  AnswerDelta begin, middle, last;
  begin.reasoning = "Hm";
  begin.add(call("id: 'x' name: 'bad' arguments: '{'"));
  begin.add(call("broken: true"));
  middle.reasoning = ".";
  middle.add(call("index: 1 id: 'abc' name: 'now' arguments: '{\\\"a\\\"'"));
  last.add(call("index: 1 arguments: ':1}'"));
  for (const AnswerDelta& delta : {begin, middle, last}) answer.chunk(0, "", {}, delta);
  v1::Finished finished = from<v1::Finished>(kFinished);
  finished.set_tool_calls(1);
  finished.mutable_usage()->set_reasoning_tokens(1);
  answer.finished(finished);
  const json all = json::parse(answer.json());
  EXPECT_EQ(all["choices"][0]["message"], json::parse(R"({"role":"assistant","content":null,
      "reasoning_content":"Hm.","tool_calls":[{"id":"abc","type":"function",
      "function":{"name":"now","arguments":"{\"a\":1}"}}],"refusal":null})"))
      << "a broken call is none";
  EXPECT_EQ(all["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(all["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  EXPECT_GT(answer.bytes(), 20U);
}

TEST(OpenAiAnswer, CallsAreStreamedAsDeltas) {
  Events events(head(Kind::kChat), 1, /*include_usage=*/false);
  events.started(kStartedEvent);
  AnswerDelta delta;
  delta.reasoning = "Hm";
  delta.add(call("index: 2 id: 'abc' name: 'now' arguments: '{'"));
  delta.add(call("index: 2 arguments: '}'"));
  delta.add(call("index: 3 id: 'd' name: 'now'"));
  const auto delta_of = [](const std::string& event) {
    return answer_events(event).at(0)["choices"][0]["delta"];
  };
  EXPECT_EQ(delta_of(events.chunk(0, "", {}, 1, delta)), json::parse(R"({"reasoning_content":"Hm",
      "tool_calls":[{"index":2,"id":"abc","type":"function",
                     "function":{"name":"now","arguments":"{}"}},
                    {"index":3,"id":"d","type":"function",
                     "function":{"name":"now","arguments":""}}]})"))
      << "parts of a call are joined";
  AnswerDelta more;
  more.add(call("index: 3 arguments: '{\\\"a'"));
  EXPECT_EQ(delta_of(events.chunk(0, "x", {}, 1, more)), json::parse(R"({"content":"x",
      "tool_calls":[{"index":3,"function":{"arguments":"{\"a"}}]})"));
  v1::Finished finished = from<v1::Finished>(kFinished);
  finished.set_tool_calls(2);
  EXPECT_EQ(answer_events(events.finished(finished)).at(0)["choices"][0]["finish_reason"],
            "tool_calls");
  finished.set_finish_reason(v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(answer_events(events.finished(finished)).at(0)["choices"][0]["finish_reason"],
            "length");
}

}  // namespace
}  // namespace tandem::openai
