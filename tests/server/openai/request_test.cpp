#include "server/openai/request.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace tandem::openai {
namespace {

using google::protobuf::TextFormat;
using google::protobuf::util::MessageDifferencer;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kMessages[] = R"("messages":[{"role":"user","content":"SECRET"}])";

Request good(Kind kind, const std::string& members) {
  auto out = request_from(kind, "{" + members + "}");
  EXPECT_TRUE(out.ok()) << members << ": " << out.status();
  return out.ok() ? *std::move(out) : Request{};
}
Request completion(const std::string& members) {
  return good(Kind::kCompletion, R"("model":"m","prompt":"p",)" + members);
}
Request chat(const std::string& members) {
  return good(Kind::kChat, absl::StrCat(R"("model":"m",)", members));
}

// The wrong fields, as "name: description".
std::string wrong(Kind kind, const std::string& members) {
  const auto out = request_from(kind, "{" + members + "}");
  EXPECT_TRUE(absl::IsInvalidArgument(out.status())) << members << ": " << out.status();
  EXPECT_THAT(std::string(out.status().message()), Not(HasSubstr("SECRET")));
  return std::string(out.status().message());
}
std::string wrong_completion(const std::string& members) {
  return wrong(Kind::kCompletion, R"("model":"m","prompt":"SECRET",)" + members);
}
std::string wrong_chat(const std::string& members) {
  return wrong(Kind::kChat, absl::StrCat(R"("model":"m",)", kMessages, ",", members));
}

void expect(const v1::GenerateRequest& is, const std::string& text) {
  v1::GenerateRequest should;
  ASSERT_TRUE(TextFormat::ParseFromString(text, &should)) << text;
  EXPECT_TRUE(MessageDifferencer::Equals(is, should)) << is.DebugString();
}

TEST(OpenAiRequest, EveryFieldOfACompletionBecomesOurs) {
  const Request r = completion(R"("max_tokens":7,"temperature":0,"top_p":0.5,"n":2,"seed":9,
      "presence_penalty":1,"frequency_penalty":-1.5,"logit_bias":{"5":-100,"7":2.5},
      "stop":["a","b\n"],"logprobs":3,"user":"u","stream":true,"best_of":2,"echo":false,
      "stream_options":{"include_usage":true},"suffix":null)");
  expect(r.message, R"(model: "m" text: "p" max_new_tokens: 7 temperature: 0 top_p: 0.5 n: 2 seed: 9
      presence_penalty: 1 frequency_penalty: -1.5 logit_bias { key: 5 value: -100 }
      logit_bias { key: 7 value: 2.5 } stop_sequences: "a" stop_sequences: "b\n"
      logprobs: true top_logprobs: 3)");
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
}

TEST(OpenAiRequest, WhatIsUnsetStaysUnset) {
  const Request r = good(Kind::kCompletion, R"("model":"m","prompt":"p","temperature":null)");
  expect(r.message, R"(model: "m" text: "p")");
  EXPECT_FALSE(r.stream);
}

TEST(OpenAiRequest, PromptsAreTextsOrTokens) {
  const auto prompt = [](const std::string& value) {
    return good(Kind::kCompletion, R"("model":"m","prompt":)" + value).message;
  };
  EXPECT_EQ(prompt(R"("a\u00e9")").text(), "a\xC3\xA9");
  EXPECT_EQ(prompt(R"(["a"])").text(), "a");
  EXPECT_EQ(absl::StrJoin(prompt("[1, 2,3]").token_ids().ids(), ","), "1,2,3");
  EXPECT_EQ(absl::StrJoin(prompt("[[4,5]]").token_ids().ids(), ","), "4,5");
  EXPECT_TRUE(prompt("[]").has_token_ids()) << "empty, which is refused for all";
  const Request list = good(Kind::kCompletion, R"("model":"m","prompt":["a",[7,8],"c"])");
  EXPECT_EQ(list.message.text(), "a");
  ASSERT_EQ(list.more_prompts.size(), 2U);
  expect(list.more_prompts[0], "token_ids { ids: 7 ids: 8 }");
  expect(list.more_prompts[1], R"(text: "c")");
  const auto bad = [](const std::string& value) {
    return wrong(Kind::kCompletion, R"("model":"m","prompt":)" + value);
  };
  EXPECT_THAT(bad(R"(["a",{}])"), HasSubstr("prompt[1]: an object; allowed: a string"));
  const std::string many = absl::StrJoin(std::vector<std::string>(257, "\"SECRET\""), ",");
  EXPECT_THAT(bad(absl::StrCat("[", many, "]")),
              HasSubstr("prompt: a list of 257; allowed: at most 256 prompts"));
  EXPECT_THAT(bad("[1,\"SECRET\"]"), HasSubstr("prompt[1]: a string; allowed: a token id"));
  EXPECT_THAT(bad("[1.5]"), HasSubstr("prompt[0]: 1.5; allowed: a token id"));
  EXPECT_THAT(bad("{}"), HasSubstr("prompt: an object"));
  EXPECT_THAT(bad("null"), HasSubstr("prompt: none"));
}

TEST(OpenAiRequest, NamesOfOtherServersAreAliases) {
  const std::string members = R"("top_k":40.0,"min_p":0.1,"typical_p":0.9,"repetition_penalty":1.1,
      "min_tokens":3,"ignore_eos":true,"stop_token_ids":[5,6],"skip_special_tokens":false,
      "include_stop_str_in_output":true,"truncate_prompt_tokens":9,"request_id":"mine")";
  const std::string fields = R"(top_k: 40 min_p: 0.1 typical_p: 0.9 repetition_penalty: 1.1
      min_new_tokens: 3 ignore_eos: true stop_token_ids: 5 stop_token_ids: 6
      skip_special_tokens: false include_stop_sequence: true truncate_prompt_tokens: 9
      request_id: "mine")";
  expect(completion(members).message, R"(model: "m" text: "p" )" + fields);
  expect(completion(absl::StrCat(R"("extra_body":{)", members, "}")).message,
         R"(model: "m" text: "p" )" + fields);
  expect(chat(absl::StrCat(kMessages, ",", members)).message,
         R"(model: "m" chat { messages { role: "user" content: "SECRET" } } )" + fields);
  // llama.cpp's.
  expect(completion(R"("top_k":-1,"repeat_penalty":1.2,"repeat_last_n":-1,"n_predict":7,"seed":-1,
      "cache_prompt":true,"mirostat":0,"mirostat_tau":5.0,"dry_multiplier":0.0,"n_probs":0,
      "xtc_probability":0,"grammar":"","samplers":null,"timings_per_token":true)")
             .message,
         R"(model: "m" text: "p" top_k: 0 repetition_penalty: 1.2 max_new_tokens: 7)");
  EXPECT_EQ(completion(R"("n_probs":2)").message.top_logprobs(), 2);
  EXPECT_THAT(wrong_completion(R"("repeat_penalty":1.2,"repeat_last_n":64)"),
              HasSubstr("repeat_last_n: 64; allowed: -1 with a repeat_penalty"));
  EXPECT_THAT(wrong_completion(R"("repeat_penalty":1.2,"repetition_penalty":1.1)"),
              HasSubstr("repeat_penalty: set; allowed: unset; repetition_penalty sets the same"));
  EXPECT_THAT(wrong_completion(R"("top_k":1,"tandem":{"top_k":2})"),
              HasSubstr("top_k: set; allowed: unset; tandem.top_k sets the same"));
  EXPECT_THAT(wrong_completion(R"("top_k":1,"extra_body":{"top_k":1})"),
              HasSubstr("top_k: given twice"));
  EXPECT_THAT(wrong_completion(R"("stop_token_ids":["SECRET"])"), HasSubstr("stop_token_ids: "));
  const absl::Status of_engine =
      renamed(wrong_field("top_k", "d"), Kind::kCompletion, completion(R"("top_k":4)").names);
  EXPECT_EQ(violations_of(of_engine)[0].field, "top_k");
}

TEST(OpenAiRequest, TheLimitOfTokensHasSeveralNames) {
  EXPECT_TRUE(completion(R"("n":1)").fill_context);
  EXPECT_TRUE(completion(R"("max_tokens":-1)").fill_context);
  EXPECT_FALSE(completion(R"("max_tokens":-1)").message.has_max_new_tokens());
  EXPECT_FALSE(completion(R"("n_predict":4)").fill_context);
  EXPECT_EQ(completion(R"("n_predict":4,"max_tokens":4)").message.max_new_tokens(), 4);
  EXPECT_THAT(wrong_completion(R"("n_predict":4,"max_tokens":5)"),
              HasSubstr("n_predict: 4; allowed: max_tokens alone, or equal"));
}

TEST(OpenAiRequest, LogitBiasHasTwoForms) {
  for (const char* const form : {R"({"5":-1.5,"7":false})", R"([[5,-1.5],[7,false]])"}) {
    expect(completion(absl::StrCat(R"("logit_bias":)", form)).message,
           R"(model: "m" text: "p" logit_bias { key: 5 value: -1.5 } bad_token_ids: 7)");
  }
  for (const char* const form : {R"({"5":true})", R"([[5]])", R"([5,1])", R"([["SECRET",1]])"}) {
    EXPECT_THAT(wrong_completion(absl::StrCat(R"("logit_bias":)", form)),
                HasSubstr("logit_bias: an invalid entry"));
  }
}

TEST(OpenAiRequest, EchoScoresOrPrecedesTheText) {
  const Request scored = completion(R"("echo":true,"logprobs":1,"max_tokens":0)");
  EXPECT_TRUE(scored.echo && scored.score_only && scored.logprobs);
  expect(scored.message, R"(model: "m" text: "p" logprobs: true top_logprobs: 1)");
  const Request continued = completion(R"("echo":true,"max_tokens":3)");
  EXPECT_TRUE(continued.echo);
  EXPECT_FALSE(continued.score_only || continued.logprobs);
  EXPECT_THAT(wrong_completion(R"("echo":true,"truncate_prompt_tokens":4)"),
              HasSubstr("truncate_prompt_tokens: 4; allowed: unset with echo"));
  EXPECT_EQ(completion(R"("max_tokens":0)").message.max_new_tokens(), 0) << "refused for all";
}

TEST(OpenAiRequest, TheBestOfSeveralChoicesNeedLogprobs) {
  const Request best = completion(R"("n":2,"best_of":5)");
  expect(best.message, R"(model: "m" text: "p" n: 5 logprobs: true)");
  EXPECT_EQ(best.best, 2);
  EXPECT_FALSE(best.logprobs) << "of the answer";
  EXPECT_EQ(completion(R"("n":2,"best_of":2)").best, 0);
}

// Every row of the table has its effect: no known field is unknown, and refused ones are named.
TEST(OpenAiRequest, EveryRowOfTheTableIsRead) {
  for (const FieldRow& row : field_rows()) {
    for (const Kind kind : {Kind::kChat, Kind::kCompletion}) {
      const bool chat = kind == Kind::kChat;
      if ((row.apis & (chat ? kChat : kText)) == 0) continue;
      const std::string member = absl::StrCat("\"", row.name, "\":{\"strange\":[]}");
      const std::string least = chat && row.name != "messages"  ? std::string(kMessages) + ","
                                : !chat && row.name != "prompt" ? R"("prompt":"p",)"
                                                                : "";
      const auto out = request_from(kind, absl::StrCat("{", least, member, "}"));
      const std::string message(out.status().message());
      EXPECT_THAT(message, Not(HasSubstr(absl::StrCat(row.name, ": unknown field"))));
      if (row.effect == Effect::kIgnore) {
        EXPECT_TRUE(out.ok()) << message;
      } else if (row.effect != Effect::kCode) {
        EXPECT_THAT(message, HasSubstr(std::string(row.name) + ": ")) << row.name;
      }
    }
  }
}

TEST(OpenAiRequest, MessagesBecomeOurs) {
  const Request r = chat(R"("messages":[
      {"role":"developer","content":"d"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"n"},
      {"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,"tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1.0}"}}]},
      {"role":"tool","content":"t","tool_call_id":"1"},
      {"role":"assistant","content":"c","reasoning_content":"r"}],
      "tools":[{"type": "function", "function":{"z":1,"a":1.0}}],"tool_choice":"auto",
      "chat_template_kwargs":{"enable_thinking":false},"max_completion_tokens":5,"logprobs":true,
      "top_logprobs":0,"parallel_tool_calls":true,"response_format":{"type":"text"},"store":false,
      "metadata":{"a":"b"},"modalities":["text"],"service_tier":"auto")");
  expect(r.message, R"(model: "m" max_new_tokens: 5 logprobs: true top_logprobs: 0 chat {
      messages { role: "system" content: "d" }
      messages { role: "user" content: "a\nb" name: "n" }
      messages { role: "assistant"
        tool_calls: "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\": 1.0}}}" }
      messages { role: "tool" content: "t" tool_call_id: "1" }
      messages { role: "assistant" content: "c" extra: "{\"reasoning_content\":\"r\"}" }
      tools: "{\"type\": \"function\", \"function\":{\"z\":1,\"a\":1.0}}"
      template_args: "{\"enable_thinking\":false}"
      tool_choice: TOOL_CHOICE_AUTO parallel_tool_calls: true })");
  EXPECT_EQ(r.names.at("max_new_tokens"), "max_completion_tokens");
  const Request none = chat(absl::StrCat(kMessages, R"(,"tools":[{}],"tool_choice":"none")"));
  EXPECT_EQ(none.message.chat().tool_choice(), v1::TOOL_CHOICE_NONE);
}

TEST(OpenAiRequest, ToolChoices) {
  const auto tools = [](const std::string& members) {
    v1::Chat out = chat(absl::StrCat(kMessages, R"(,"tools":[{}],)", members)).message.chat();
    out.clear_messages();
    out.clear_tools();
    return out.ShortDebugString();
  };
  EXPECT_EQ(tools(R"("tool_choice":"auto")"), "tool_choice: TOOL_CHOICE_AUTO");
  EXPECT_EQ(tools(R"("tool_choice":"required","parallel_tool_calls":false)"),
            "tool_choice: TOOL_CHOICE_REQUIRED parallel_tool_calls: false");
  EXPECT_EQ(tools(R"("tool_choice":{"type":"function","function":{"name":"f"}})"),
            R"(tool_choice: TOOL_CHOICE_REQUIRED allowed_tools: "f")");
  EXPECT_EQ(tools(R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[
                {"type":"function","function":{"name":"f"}},
                {"type":"function","function":{"name":"g"}}]}})"),
            R"(tool_choice: TOOL_CHOICE_AUTO allowed_tools: "f" allowed_tools: "g")");
  const auto bad = [](const std::string& choice) {
    return wrong_chat(R"("tool_choice":)" + choice);
  };
  EXPECT_THAT(bad("\"SECRET\""), HasSubstr("tool_choice: another value; allowed: \"none\""));
  EXPECT_THAT(bad("7"), HasSubstr("tool_choice: a number"));
  EXPECT_THAT(bad(R"({"type":"SECRET"})"), HasSubstr("tool_choice.type: another type"));
  EXPECT_THAT(bad(R"({"allowed_tools":{"mode":"none","tools":[]}})"),
              AllOf(HasSubstr("tool_choice.allowed_tools.mode: another value"),
                    HasSubstr("tool_choice.allowed_tools.tools: 0 of them")));
  EXPECT_THAT(bad(R"({"allowed_tools":{"tools":[7]}})"),
              HasSubstr("tool_choice.allowed_tools.tools[0]: a number"));
}

TEST(OpenAiRequest, TheExtensionChoosesTheMethod) {
  expect(completion(R"("tandem":{"method":"bild","contract":"Lossy","top_k":4,"priority":-1})")
             .message,
         R"(model: "m" text: "p" bild {} require_contract: CONTRACT_LOSSY top_k: 4 priority: -1)");
  expect(completion(R"("tandem":{"speculative":{"draft_tokens":3},"method":"speculative",
                       "requireContract":"CONTRACT_EXACT","ignore_eos":true})")
             .message,
         R"(model: "m" text: "p" speculative { draft_tokens: 3 } require_contract: CONTRACT_EXACT
            ignore_eos: true)");
  EXPECT_THAT(
      wrong_completion(R"("tandem":{"method":"bold"})"),
      HasSubstr("tandem.method: another method; allowed: auto, autoregressive, speculative, bild"));
  EXPECT_THAT(wrong_completion(R"("tandem":{"method":"bild","ngram":{}})"),
              HasSubstr("tandem.method: bild; allowed: ngram"));
  expect(completion(R"("tandem":{"contract":"exact_up_to_rounding"})").message,
         R"(model: "m" text: "p" require_contract: CONTRACT_EXACT_UP_TO_ROUNDING)");
  EXPECT_THAT(wrong_completion(R"("tandem":{"contract":"best"})"), HasSubstr("tandem.contract"));
  EXPECT_THAT(wrong_completion(R"("tandem":{"max_new_tokens":3})"),
              HasSubstr("tandem.max_new_tokens: set; allowed: unset; use max_tokens"));
  EXPECT_THAT(wrong_completion(R"("tandem":{"return_tokens":true})"),
              HasSubstr("tandem.return_tokens: set; allowed: unset; use \"tokens\": true"));
  EXPECT_THAT(wrong_completion(R"("tandem":{"tokens":1})"),
              HasSubstr("tandem.tokens: a number; allowed: "));
  EXPECT_THAT(wrong_completion(R"("tandem":{"trace":"yes"})"),
              HasSubstr("tandem.trace: a string; allowed: "));
  const auto plain = completion(R"("tandem":{"tokens":false})").message;
  EXPECT_FALSE(plain.return_token_texts() || plain.trace());
  const auto traced = completion(R"("tandem":{"tokens":true,"trace":true})").message;
  EXPECT_TRUE(traced.return_token_texts() && traced.trace());
  EXPECT_FALSE(traced.logprobs());
  EXPECT_THAT(wrong_completion(R"("tandem":{"bild":{"rollback":1}})"), HasSubstr("tandem: "));
  EXPECT_THAT(wrong_completion(R"("tandem":{"bild":{},"ngram":{}})"), HasSubstr("tandem: "));
  EXPECT_THAT(wrong_completion(R"("tandem":"bild")"),
              HasSubstr("tandem: a string; allowed: an object"));
  const std::string deep = std::string(30000, '[') + std::string(30000, ']');
  EXPECT_THAT(wrong_completion(R"("tandem":{"bild":)" + deep + "}"), HasSubstr("tandem: "));
}

TEST(OpenAiRequest, StructuredOutputIsWhatOurApiSaysOfIt) {
  EXPECT_TRUE(chat(absl::StrCat(kMessages, R"(,"response_format":{"type":"json_object"})"))
                  .message.has_json_object());
  EXPECT_EQ(chat(absl::StrCat(kMessages, R"(,"response_format":{"type":"json_schema","json_schema":
                {"name":"n","strict":true,"schema":{"type":"string"}}})"))
                .message.json_schema(),
            "{\"type\":\"string\"}");
}

TEST(OpenAiRequest, RefusesByNameWhatIsNotBuilt) {
  for (const char* member :
       {R"("audio":{})", R"("prediction":{})", R"("reasoning_effort":"low")", R"("functions":[])",
        R"("function_call":"auto")", R"("web_search_options":{})", R"("verbosity":"low")",
        R"("store":true)", R"("service_tier":"flex")", R"("modalities":["audio"])",
        R"("tool_choice":"all")", R"("parallel_tool_calls":1)", R"("response_format":{"type":"x"})",
        R"("echo":true)", R"("prompt":"x")", R"("surprise":1)", R"("top_logprobs":3)"}) {
    const std::string name = std::string(member).substr(1, std::string(member).find(':') - 2);
    EXPECT_THAT(wrong_chat(member), HasSubstr(name)) << member;
  }
  for (const char* member :
       {R"("n":3,"best_of":2)", R"("best_of":17)", R"("stream":true,"best_of":2)",
        R"("echo":true,"suffix":"x")", R"("messages":[])", R"("prompt_logprobs":1)",
        R"("mirostat":2)", R"("priority":1)", R"("max_completion_tokens":3)",
        R"("stream_options":{})", R"("top_logprobs":3)"}) {
    const std::string text(member);
    const std::string last = text.substr(text.rfind(",\"") + 1);
    const std::string name = last.substr(last.find('"') + 1, last.find(':') - last.find('"') - 2);
    const bool echo = text.find("echo") != std::string::npos;
    EXPECT_THAT(wrong_completion(member), HasSubstr(echo ? "echo: true" : name)) << member;
  }
  EXPECT_THAT(wrong_completion(R"("stream":true,"stream_options":{"include_obfuscation":true})"),
              HasSubstr("stream_options.include_obfuscation: true; allowed: false or unset"));
}

TEST(OpenAiRequest, RefusesByNameWhatIsOfAnotherType) {
  EXPECT_THAT(wrong_completion(R"("temperature":"SECRET","n":1.5,"stop":[1],"stream":"yes",
                                  "logit_bias":{"a":1},"seed":-2,"max_tokens":3000000000)"),
              AllOf(HasSubstr("temperature: a string; allowed: a number"),
                    HasSubstr("n: 1.5; allowed: a 32-bit integer"), HasSubstr("stop: a number"),
                    HasSubstr("stream: a string"), HasSubstr("logit_bias: "),
                    HasSubstr("seed: -2; allowed: an integer in [0, 2^64-1]"),
                    HasSubstr("max_tokens: 3000000000")));
  EXPECT_THAT(wrong_completion(R"("n":1,"n":2)"), HasSubstr("n: given twice"));
  EXPECT_EQ(completion(R"("seed":"18446744073709551615")").message.seed(), 18446744073709551615U);
  EXPECT_THAT(wrong_chat(R"("max_tokens":3,"max_completion_tokens":4)"), HasSubstr("max_tokens"));
  const auto messages = [](const std::string& value) {
    return wrong(Kind::kChat, R"("model":"m","messages":)" + value);
  };
  EXPECT_THAT(messages("[]"), HasSubstr("messages: 0 of them"));
  EXPECT_THAT(messages("[1]"), HasSubstr("messages[0]: a number"));
  EXPECT_THAT(
      messages(R"([{"role":"user","content":[{"type":"image_url","image_url":"SECRET"}]}])"),
      HasSubstr("messages[0].content[0].type: another type; allowed: \"text\""));
  EXPECT_THAT(
      messages(R"([{"role":"a","tool_calls":[{"function":{"arguments":"SECRET"}}]}])"),
      HasSubstr("messages[0].tool_calls[0].function.arguments: a string that is not a JSON"));
  for (const char* body : {"", "[]", "{", "null", "{\"model\":\"\xFF\"}"}) {
    const auto out = request_from(Kind::kChat, body);
    EXPECT_THAT(std::string(out.status().message()), HasSubstr("body: ")) << body;
  }
}

TEST(OpenAiRequest, ErrorsOfTheEngineGetOpenAisNames) {
  const auto name = [](const char* ours, Kind kind) {
    const absl::Status status = renamed(wrong_field(ours, "d"), kind,
                                        {{"max_new_tokens", "max_completion_tokens"},
                                         {"min_new_tokens", "min_tokens"},
                                         {"json_schema", "guided_json"}});
    return violations_of(status)[0].field;
  };
  EXPECT_EQ(name("max_new_tokens", Kind::kChat), "max_completion_tokens");
  EXPECT_EQ(name("min_new_tokens", Kind::kChat), "min_tokens");
  EXPECT_EQ(name("stop_sequences[2]", Kind::kChat), "stop[2]");
  EXPECT_EQ(name("prompt[3]", Kind::kCompletion), "prompt[3]");
  EXPECT_EQ(name("top_k", Kind::kChat), "tandem.top_k");
  EXPECT_EQ(name("chat.messages[1].role", Kind::kChat), "messages[1].role");
  EXPECT_EQ(name("prompt", Kind::kChat), "messages");
  EXPECT_EQ(name("text", Kind::kCompletion), "prompt");
  EXPECT_EQ(name("top_logprobs", Kind::kCompletion), "logprobs");
  EXPECT_EQ(name("top_logprobs", Kind::kChat), "top_logprobs");
  EXPECT_EQ(name("json_schema", Kind::kChat), "guided_json");
  EXPECT_EQ(name("regex", Kind::kChat), "tandem.regex");
  EXPECT_EQ(name("temperature", Kind::kChat), "temperature");
  EXPECT_EQ(name("n", Kind::kChat), "n");
  EXPECT_EQ(name("ngram.draft_tokens", Kind::kChat), "tandem.ngram.draft_tokens");
  const absl::Status reason = with_reason(wrong_field("prompt", "d"), "CONTEXT_LENGTH_EXCEEDED");
  EXPECT_EQ(std::string(*renamed(reason, Kind::kChat, {}).GetPayload(kReasonPayload)),
            "CONTEXT_LENGTH_EXCEEDED");
  const absl::Status other = absl::NotFoundError("x");
  EXPECT_EQ(renamed(other, Kind::kChat, {}), other);
}

}  // namespace
}  // namespace tandem::openai
