#include "client/cli/request_flags.h"

#include <gtest/gtest.h>

#include "client/cli/command.h"
#include "client/cli/json.h"
#include "engine/base/sampling_params.h"

namespace tandem::cli {
namespace {

absl::StatusOr<v1::GenerateRequest> request(const std::vector<std::string>& args) {
  RequestFlags request_flags;
  Flags flags;
  request_flags.add_to(&flags);
  const auto rest = flags.parse(args);
  if (!rest.ok()) return rest.status();
  return request_flags.request();
}

std::string error(const std::vector<std::string>& args) {
  const auto result = request(args);
  return result.ok() ? "no error" : std::string(result.status().message());
}

TEST(RequestFlags, FieldsAreFlags) {
  const auto r = request({"--model", "m", "--prompt", "p", "--max-new-tokens=5", "--top-k", "3",
                          "--ignore-eos", "--skip-special-tokens=false", "--stop-sequences", "x",
                          "--stop-sequences", "y", "--stop-token-ids", "1,2", "--seed=7"});
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->text(), "p");
  EXPECT_EQ(r->max_new_tokens(), 5);
  EXPECT_EQ(r->top_k(), 3);
  EXPECT_TRUE(r->ignore_eos());
  EXPECT_TRUE(r->has_skip_special_tokens());
  EXPECT_FALSE(r->skip_special_tokens());
  EXPECT_EQ(r->stop_sequences_size(), 2);
  EXPECT_EQ(r->stop_token_ids_size(), 2);
  EXPECT_EQ(r->seed(), 7u);
  EXPECT_FALSE(r->has_temperature());
}

TEST(RequestFlags, ConstraintsAreFlags) {
  const auto regex = request({"--model=m", "--prompt=p", "--regex=a+"});
  ASSERT_TRUE(regex.ok()) << regex.status();
  EXPECT_EQ(regex->regex(), "a+");
  EXPECT_EQ(error({"--model=m", "--prompt=p", "--regex=a", "--grammar=x"}),
            "constraint: several; allowed: one of --json-schema, --regex, --grammar");
  EXPECT_NE(error({"--model=m", "--prompt=p", "--json-schema=/none"}), "no error");
}

TEST(RequestFlags, ProcessorsAreFlags) {
  const auto r = request({"--model=m", "--prompt=p", "--typical-p=0.5", "--repetition-penalty=1.25",
                          "--presence-penalty=-1", "--frequency-penalty", "0.5", "--logit-bias",
                          "5=1.5", "--logit-bias=7=-100", "--bad-token-ids=1,2",
                          "--min-new-tokens=3", "--raw-logprobs", "--include-eos-token"});
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->typical_p(), 0.5);
  EXPECT_EQ(r->repetition_penalty(), 1.25);
  EXPECT_EQ(r->presence_penalty(), -1);
  EXPECT_EQ(r->frequency_penalty(), 0.5);
  EXPECT_EQ(r->logit_bias().size(), 2u);
  EXPECT_EQ(r->logit_bias().at(5), 1.5);
  EXPECT_EQ(r->logit_bias().at(7), -100);
  EXPECT_EQ(r->bad_token_ids_size(), 2);
  EXPECT_EQ(r->min_new_tokens(), 3);
  EXPECT_TRUE(r->raw_logprobs());
  EXPECT_TRUE(r->include_eos_token());
  EXPECT_EQ(error({"--model=m", "--prompt=p", "--logit-bias=5"}),
            "--logit-bias: \"5\"; allowed: KEY=VALUE");
  EXPECT_EQ(error({"--model=m", "--prompt=p", "--logit-bias=5=much"}),
            "logit_bias.5: \"much\"; allowed: a number");
  EXPECT_EQ(error({"--model=m", "--prompt=p", "--logit-bias=x=1"}),
            "logit_bias.x: \"x\"; allowed: a 32-bit integer");
}

TEST(RequestFlags, EveryScalarFieldHasAFlag) {
  RequestFlags request_flags;
  Flags flags;
  request_flags.add_to(&flags);
  const std::string help = flags.help();
  for (const char* flag : {"--temperature",
                           "--top-k",
                           "--top-p",
                           "--min-p",
                           "--typical-p",
                           "--repetition-penalty",
                           "--presence-penalty",
                           "--frequency-penalty",
                           "--seed",
                           "--n ",
                           "--max-new-tokens",
                           "--min-new-tokens",
                           "--stop-sequences",
                           "--stop-token-ids",
                           "--include-stop-sequence",
                           "--ignore-eos",
                           "--skip-special-tokens",
                           "--add-special-tokens",
                           "--truncate-prompt-tokens",
                           "--bad-token-ids",
                           "--logit-bias ID=X",
                           "--raw-logprobs",
                           "--include-eos-token",
                           "--logprobs",
                           "--top-logprobs",
                           "--priority",
                           "--request-id",
                           "--require-contract"}) {
    EXPECT_NE(help.find(flag), std::string::npos) << flag;
  }
}

TEST(RequestFlags, HelpStatesRangesAndDefaults) {
  RequestFlags request_flags;
  Flags flags;
  request_flags.add_to(&flags);
  const std::string help = flags.help();
  for (const SamplingParameter& p : kSamplingParameters) {
    EXPECT_NE(help.find(p.allowed() + "; " + (p.off == 0 ? "0: " : "1: ")), std::string::npos)
        << p.name;
  }
  EXPECT_NE(help.find("for output tokens, once; [-2, 2]; 0: off"), std::string::npos) << help;
}

TEST(RequestFlags, MethodsAndTheirParameters) {
  EXPECT_EQ(request({"--model=m", "--prompt=p", "--method=bild"})->method_case(),
            v1::GenerateRequest::kBild);
  const auto r = request({"--model=m", "--prompt=p", "--method=bild", "--set", "bild.window=4"});
  EXPECT_EQ(r->bild().window(), 4);
  EXPECT_EQ(error({"--model=m", "--prompt=p", "--method=beam"}),
            "--method: \"beam\"; allowed: auto, autoregressive, speculative, bild, bita, ppd, "
            "llm_to_slm, ngram");
}

TEST(RequestFlags, Prompts) {
  EXPECT_EQ(request({"--model=m", "--token-ids=[1, 2]"})->token_ids().ids_size(), 2);
  EXPECT_EQ(request({"--model=m", "--set", "text=x"})->text(), "x");
  EXPECT_EQ(error({"--model=m"}),
            "prompt: none; allowed: one of --prompt, --prompt-file, --token-ids, --chat");
  EXPECT_EQ(error({"--model=m", "--prompt=a", "--token-ids=1"}),
            "prompt: several; allowed: one of --prompt, --prompt-file, --token-ids, --chat");
  EXPECT_EQ(error({"--model=m", "--token-ids=1,x"}),
            "--token-ids: \"x\"; allowed: integers as in 1,2,3");
  EXPECT_EQ(error({"--model=m", "--prompt-file=/nonexistent"}), "/nonexistent: cannot read");
  EXPECT_EQ(request({"--prompt=a"})->model(), "") << "the server may have but one";
}

TEST(RequestFlags, APromptMayStandAlone) {
  RequestFlags flags;
  EXPECT_TRUE(flags.take_arguments({}).ok());
  EXPECT_FALSE(flags.has_prompt());
  EXPECT_TRUE(flags.take_arguments({"def f():"}).ok());
  EXPECT_EQ(flags.request()->text(), "def f():");
  EXPECT_FALSE(flags.take_arguments({"x"}).ok()) << "--prompt and an argument";
  EXPECT_EQ(RequestFlags().take_arguments({"smol", "hello"}).message(),
            "argument: \"hello\"; allowed: one prompt, in quotes (the model goes after --model)");
  RequestFlags input;
  EXPECT_TRUE(input.take_arguments({"-"}).ok());
  EXPECT_EQ(input.prompt_file, "-");
}

TEST(RequestFlags, ASystemMessageMakesAChat) {
  const auto r = request({"--system", "Be brief.", "--prompt", "hi"});
  ASSERT_EQ(r->chat().messages_size(), 2);
  EXPECT_EQ(r->chat().messages(0).role(), "system");
  EXPECT_EQ(r->chat().messages(0).content(), "Be brief.");
  EXPECT_EQ(r->chat().messages(1).role(), "user");
  EXPECT_EQ(r->chat().messages(1).content(), "hi");
  EXPECT_EQ(error({"--system=x", "--token-ids=1"}),
            "--system: \"x\"; allowed: with a text or chat messages");
}

TEST(RequestFlags, UsualNamesAreKnown) {
  EXPECT_EQ(error({"--max-tokens=5"}),
            "--max-tokens: no such flag; did you mean --max-new-tokens?");
  EXPECT_EQ(error({"--max_tokens=5"}),
            "--max_tokens: no such flag; did you mean --max-new-tokens?");
  EXPECT_EQ(error({"--stop", "x"}), "--stop: no such flag; did you mean --stop-sequences?");
  EXPECT_EQ(error({"--temprature=1"}), "--temprature: no such flag; did you mean --temperature?");
  EXPECT_EQ(error({"--xyzzy"}), "--xyzzy: no such flag; see --help");
}

TEST(ChatFile, ArrayOfMessages) {
  const auto chat = chat_from_json(
      R"([{"role": "user", "content": "hi", "name": "ann"},
          {"role": "assistant", "content": "", "tool_calls": [{"b": 1, "a": 2}], "why": [1]},
          {"role": "tool", "content": "r", "tool_call_id": "7"},
          {"role": "user", "content": [{"type": "text"}]}])",
      "f");
  ASSERT_TRUE(chat.ok()) << chat.status();
  ASSERT_EQ(chat->messages_size(), 4);
  EXPECT_EQ(chat->messages(0).name(), "ann");
  EXPECT_EQ(chat->messages(1).tool_calls(0), R"({"b":1,"a":2})");  // order kept
  EXPECT_EQ(chat->messages(1).extra(), R"({"why":[1]})");
  EXPECT_EQ(chat->messages(2).tool_call_id(), "7");
  EXPECT_EQ(chat->messages(3).extra(), R"({"content":[{"type":"text"}]})");
  EXPECT_FALSE(chat->has_add_generation_prompt());
}

TEST(ChatFile, ObjectWithTools) {
  const auto chat = chat_from_json(
      R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"z": 1, "a": 1.0}],
          "template_args": {"enable_thinking": false}, "add_generation_prompt": false})",
      "f");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->tools(0), R"({"z":1,"a":1.0})");
  EXPECT_EQ(chat->template_args(), R"({"enable_thinking":false})");
  EXPECT_FALSE(chat->add_generation_prompt());
}

TEST(ChatFile, Errors) {
  EXPECT_EQ(std::string(chat_from_json("[", "f").status().message()), "f: contents: allowed: JSON");
  EXPECT_FALSE(chat_from_json("3", "f").ok());
  EXPECT_FALSE(chat_from_json("{}", "f").ok());
  EXPECT_EQ(std::string(chat_from_json("[3]", "f").status().message()),
            "f: messages[0]: allowed: an object");
  EXPECT_FALSE(chat_from_json(R"({"messages": [], "tool": 1})", "f").ok());
}

TEST(CliJson, WritesAllFieldsByTheirProtoNames) {
  v1::Finished finished;
  finished.set_finish_reason(v1::FINISH_REASON_STOP_SEQUENCE);
  finished.set_seed(18446744073709551615u);
  finished.mutable_stats()->add_accept_lengths(3);
  const Json json = to_json(finished);
  EXPECT_EQ(json["finish_reason"], "STOP_SEQUENCE");
  EXPECT_EQ(json["seed"], 18446744073709551615u);
  EXPECT_EQ(json["index"], 0);
  EXPECT_FALSE(json.contains("usage"));                // unset message
  EXPECT_FALSE(json["stats"].contains("match_rate"));  // unset optional
  EXPECT_EQ(json["stats"]["large_passes"], 0);
  EXPECT_EQ(json["stats"]["accept_lengths"], Json::array({3}));
}

TEST(CliJson, MethodsAndSourcesAreLowerCase) {
  v1::Started started;
  started.set_method(v1::METHOD_LLM_TO_SLM);
  started.set_contract(v1::CONTRACT_EXACT);
  EXPECT_EQ(to_json(started)["method"], "llm_to_slm");
  EXPECT_EQ(to_json(started)["contract"], "EXACT");
  v1::Token token;
  token.set_id(5);
  token.set_proposed(v1::SOURCE_SMALL);
  token.set_confirmed(v1::SOURCE_LARGE);
  EXPECT_EQ(dump(token_to_json(token)),
            R"({"id":5,"provenance":{"proposed":"small","confirmed":"large"}})");
}

TEST(Command, TokenIds) {
  EXPECT_EQ(*parse_token_ids(" 1, 2,3 "), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(*parse_token_ids(""), std::vector<int32_t>());
  EXPECT_FALSE(parse_token_ids("1;2").ok());
}

}  // namespace
}  // namespace tandem::cli
