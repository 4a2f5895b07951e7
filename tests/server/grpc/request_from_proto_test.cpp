#include "server/grpc/request_from_proto.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/sampling_params.h"
#include "engine/base/violations.h"
#include "engine/host/config/settings_proto.h"
#include "engine/host/methods/registry.h"
#include "tandem/v1/models.pb.h"

namespace tandem {
namespace {

constexpr char kBase[] = "model: \"m\" text: \"p\" ";

v1::GenerateRequest proto(const std::string& fields) {
  v1::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(fields, &request)) << fields;
  return request;
}

absl::StatusOr<GenerateRequest> translate(const std::string& fields) {
  return generate_request_from(proto(kBase + fields));
}

std::string error(const std::string& fields) {
  const auto result = translate(fields);
  if (result.ok()) return "no error";
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << fields;
  return std::string(result.status().message());
}

// Each row of kSamplingParameters is a field of its type with presence, checked against its range.
TEST(RequestFromProto, EverySamplingParameterOfTheTable) {
  using google::protobuf::FieldDescriptor;
  for (const SamplingParameter& p : kSamplingParameters) {
    const auto* const field = v1::GenerateRequest::descriptor()->FindFieldByName(p.name);
    ASSERT_NE(field, nullptr) << p.name;
    EXPECT_TRUE(field->has_presence()) << p.name;
    EXPECT_EQ(field->cpp_type(),
              p.integer ? FieldDescriptor::CPPTYPE_INT32 : FieldDescriptor::CPPTYPE_DOUBLE)
        << p.name;
    const std::string set = std::string(p.name) + ": ";
    const auto good = translate(set + (p.integer ? "7" : "0.5"));
    ASSERT_TRUE(good.ok()) << good.status();
    EXPECT_EQ(good->sampling.*p.member, p.integer ? 7 : 0.5) << p.name;
    EXPECT_EQ(error(set + "-3"), set + "-3; allowed: " + p.allowed());
    if (!p.integer) EXPECT_EQ(error(set + "nan"), set + "nan; allowed: " + p.allowed());
  }
}

TEST(RequestFromProto, DefaultsAreLeftToTheEngine) {
  const auto r = translate("");
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->model, "m");
  EXPECT_EQ(std::get<std::string>(r->prompt), "p");
  EXPECT_EQ(r->method, kAuto);
  EXPECT_EQ(r->require_contract, Contract::kAny);
  EXPECT_FALSE(r->sampling.temperature || r->sampling.top_k || r->sampling.top_p ||
               r->sampling.min_p || r->sampling.typical_p || r->sampling.seed);
  EXPECT_FALSE(r->sampling.repetition_penalty || r->sampling.presence_penalty ||
               r->sampling.frequency_penalty);
  EXPECT_TRUE(r->sampling.logit_bias.empty() && r->sampling.bad_token_ids.empty());
  EXPECT_FALSE(r->stopping.max_new_tokens || r->stopping.min_new_tokens || r->stopping.time_limit);
  EXPECT_FALSE(r->raw_logprobs || r->include_eos_token || r->trace);
  EXPECT_TRUE(r->add_special_tokens);
  EXPECT_TRUE(r->skip_special_tokens);
  EXPECT_FALSE(r->logprobs);
}

TEST(RequestFromProto, CarriesEveryField) {
  const auto r = translate(R"(
      request_id: "r-1" add_special_tokens: false truncate_prompt_tokens: 9
      require_contract: CONTRACT_DISTRIBUTION temperature: 0.5 top_k: 3 top_p: 0.25 min_p: 0.125 seed: 11
      typical_p: 0.75 repetition_penalty: 1.25 presence_penalty: -1.5 frequency_penalty: 0.5
      logit_bias { key: 9 value: -2.5 } logit_bias { key: -4 value: 1000 } bad_token_ids: [8, -3]
      min_new_tokens: 2 raw_logprobs: true include_eos_token: true trace: true
      max_new_tokens: 7 stop_sequences: "a" stop_sequences: "bc" stop_token_ids: [1, -2]
      include_stop_sequence: true ignore_eos: true time_limit_seconds: 1.5
      skip_special_tokens: false logprobs: true top_logprobs: 4 priority: -5)");
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->request_id, "r-1");
  EXPECT_FALSE(r->add_special_tokens);
  EXPECT_EQ(r->truncate_prompt_tokens, 9);
  EXPECT_EQ(r->require_contract, Contract::kDistribution);
  EXPECT_EQ(r->sampling.temperature, 0.5);
  EXPECT_EQ(r->sampling.top_k, 3);
  EXPECT_EQ(r->sampling.top_p, 0.25);
  EXPECT_EQ(r->sampling.min_p, 0.125);
  EXPECT_EQ(r->sampling.typical_p, 0.75);
  EXPECT_EQ(r->sampling.repetition_penalty, 1.25);
  EXPECT_EQ(r->sampling.presence_penalty, -1.5);
  EXPECT_EQ(r->sampling.frequency_penalty, 0.5);
  // Tokens, and what is added to them, are the engine's to refuse; in order of ids.
  const std::vector<std::pair<int64_t, double>> bias = {{-4, 1000}, {9, -2.5}};
  EXPECT_EQ(r->sampling.logit_bias, bias);
  EXPECT_EQ(r->sampling.bad_token_ids, (std::vector<int64_t>{8, -3}));
  EXPECT_EQ(r->stopping.min_new_tokens, 2);
  EXPECT_TRUE(r->raw_logprobs);
  EXPECT_TRUE(r->include_eos_token);
  EXPECT_TRUE(r->trace);
  EXPECT_EQ(r->sampling.seed, 11u);
  EXPECT_EQ(r->stopping.max_new_tokens, 7);
  EXPECT_EQ(r->stopping.stop_sequences, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(r->stopping.stop_token_ids, (std::vector<int64_t>{1, -2}));  // the engine's to refuse
  EXPECT_TRUE(r->stopping.include_stop_sequence);
  EXPECT_TRUE(r->stopping.ignore_eos);
  EXPECT_EQ(r->stopping.time_limit, Duration(1'500'000'000));
  EXPECT_FALSE(r->skip_special_tokens);
  EXPECT_TRUE(r->logprobs);
  EXPECT_EQ(r->top_logprobs, 4);
  EXPECT_EQ(r->priority, -5);
}

TEST(RequestFromProto, TopLogprobsImplyLogprobs) {
  EXPECT_TRUE(translate("top_logprobs: 1")->logprobs);
  EXPECT_FALSE(translate("top_logprobs: 0")->logprobs);
}

TEST(RequestFromProto, Methods) {
  for (const char* method :
       {"auto", "autoregressive", "speculative", "bild", "bita", "ppd", "llm_to_slm", "ngram"}) {
    EXPECT_EQ(translate(std::string(method) + " {}")->method, method);
  }
}

// A parameter that the message has and no entry describes would be refused whatever its value; one
// that is described and not in the message could not be asked for.
TEST(RequestFromProto, MessagesAndEntriesAgreeOnEveryParameter) {
  const auto names_in = [](const google::protobuf::Descriptor* message) {
    std::set<std::string> names;
    for (int i = 0; i < message->field_count(); ++i) names.insert(message->field(i)->name());
    return names;
  };
  const auto described = [](const MethodEntry& method) {
    std::set<std::string> names;
    for (const Field& f : method.fields) {
      if (f.by != Field::By::kDeployment) names.insert(f.name);
    }
    return names;
  };
  for (const MethodEntry* method : all_methods()) {
    SCOPED_TRACE(method->name);
    EXPECT_GT(method_number(*v1::Method_descriptor(), method->name), 0);
    const auto* const asked = v1::GenerateRequest::descriptor()->FindFieldByName(method->name);
    ASSERT_NE(asked, nullptr);
    EXPECT_EQ(asked->containing_oneof()->name(), "method");
    EXPECT_EQ(names_in(asked->message_type()), described(*method));
    const auto* const offered = v1::OfferedMethod::descriptor()->FindFieldByName(method->name);
    EXPECT_EQ(offered != nullptr, !method->fields.empty());
  }
  EXPECT_EQ(names_in(v1::Beam::descriptor()), described(beam_entry()));
}

TEST(RequestFromProto, MethodsParametersAreWhatWasSetAndNothingElse) {
  const auto bild = translate(R"(bild { fallback_threshold: 0 rollback_threshold: inf
      max_small_run: 0 verify_eos: false early_exit: true window: 3 })");
  ASSERT_TRUE(bild.ok()) << bild.status();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(bild->parameters, (Settings{{"fallback_threshold", 0.0},
                                        {"rollback_threshold", kInf},
                                        {"max_small_run", 0},
                                        {"verify_eos", false},
                                        {"early_exit", true},
                                        {"window", 3}}));
  const auto speculative = translate(
      "speculative { draft_tokens: 7 pace: PACE_FIXED min_draft_probability: 0 "
      "acceptance: ACCEPTANCE_RATIO }");
  ASSERT_TRUE(speculative.ok()) << speculative.status();
  EXPECT_EQ(speculative->parameters, (Settings{{"draft_tokens", 7},
                                               {"pace", "PACE_FIXED"},
                                               {"min_draft_probability", 0.0},
                                               {"acceptance", "ACCEPTANCE_RATIO"}}));
  EXPECT_EQ(translate("bild {}")->parameters, Settings());

  const auto beam = translate("beam { width: 4 length_penalty: 0.6 }");
  ASSERT_TRUE(beam.ok()) << beam.status();
  EXPECT_EQ(beam->beam, (Settings{{"width", 4}, {"length_penalty", 0.6}}));
  EXPECT_EQ(translate("")->beam, Settings());
}

TEST(RequestFromProto, BoundsAreInclusive) {
  for (const char* ok : {
           "temperature: 0",
           "temperature: -0.0",
           "temperature: 100",
           "top_k: 0",
           "top_k: 2147483647",
           "top_p: 1",
           "top_p: 1e-300",
           "min_p: 0",
           "min_p: 1",
           "seed: 0",
           "seed: 18446744073709551615",
           "max_new_tokens: 1",
           "max_new_tokens: 2147483647",
           "truncate_prompt_tokens: 1",
           "top_logprobs: 20",
           "priority: 100",
           "priority: -100",
           "time_limit_seconds: 86400",
           "typical_p: 1",
           "typical_p: 1e-300",
           "repetition_penalty: 0.01",
           "repetition_penalty: 100",
           "presence_penalty: 2",
           "presence_penalty: -0.0",
           "frequency_penalty: -2",
           "min_new_tokens: 0",
           "min_new_tokens: 2147483647",
           "n: 1",
           "n: 16",
           "beam { width: 1 length_penalty: -10 }",
           "beam { width: 16 length_penalty: 10 }",
           "raw_logprobs: false",
           "include_eos_token: false",
           "bild { fallback_threshold: 0 rollback_threshold: inf max_small_run: 0 window: 64 }",
           "bild { fallback_threshold: 2 rollback_threshold: 0 max_small_run: 4096 window: 1 }",
           "speculative { draft_tokens: 64 min_draft_probability: 1 num_masks: 16 }",
           "speculative { num_masks: 0 }",
           "ngram { draft_tokens: 64 max_ngram: 4 pace: PACE_ADAPTIVE }",
           "bita { num_masks: 16 num_candidates: 1 tree: TREE_FULL pace: PACE_FIXED "
           "draft_vocabulary: 16384 }",
           "ppd { num_candidates: 16 draft_vocabulary: 0 }",
           "llm_to_slm { draft_tokens: 1 }",
           "llm_to_slm { speculative: true pace: PACE_FASTEST min_draft_probability: 0.5 "
           "draft_vocabulary: 16384 num_masks: 2 }",
       }) {
    EXPECT_EQ(error(ok), "no error") << ok;
  }
  // A negative zero is a zero, not a sign to go wrong on later.
  EXPECT_FALSE(std::signbit(*translate("temperature: -0.0")->sampling.temperature));
}

TEST(RequestFromProto, OutOfRangeNamesFieldValueAndRange) {
  const struct {
    const char* fields;
    const char* message;
  } cases[] = {
      {"temperature: -0.001", "temperature: -0.001; allowed: [0, 100]"},
      {"temperature: 100.5", "temperature: 100.5; allowed: [0, 100]"},
      {"temperature: nan", "temperature: nan; allowed: [0, 100]"},
      {"temperature: inf", "temperature: inf; allowed: [0, 100]"},
      {"temperature: -inf", "temperature: -inf; allowed: [0, 100]"},
      {"top_k: -1", "top_k: -1; allowed: [0, 2147483647]"},
      {"top_k: -2147483648", "top_k: -2147483648; allowed: [0, 2147483647]"},
      {"top_p: 0", "top_p: 0; allowed: (0, 1]"},
      {"top_p: -0.0", "top_p: -0; allowed: (0, 1]"},
      {"top_p: 2", "top_p: 2; allowed: (0, 1]"},
      {"top_p: nan", "top_p: nan; allowed: (0, 1]"},
      {"min_p: -1", "min_p: -1; allowed: [0, 1]"},
      {"min_p: 1.5", "min_p: 1.5; allowed: [0, 1]"},
      {"min_p: nan", "min_p: nan; allowed: [0, 1]"},
      {"typical_p: 0", "typical_p: 0; allowed: (0, 1]"},
      {"typical_p: 1.1", "typical_p: 1.1; allowed: (0, 1]"},
      {"typical_p: nan", "typical_p: nan; allowed: (0, 1]"},
      {"repetition_penalty: 0", "repetition_penalty: 0; allowed: [0.01, 100]"},
      {"repetition_penalty: 101", "repetition_penalty: 101; allowed: [0.01, 100]"},
      {"repetition_penalty: nan", "repetition_penalty: nan; allowed: [0.01, 100]"},
      {"presence_penalty: 2.5", "presence_penalty: 2.5; allowed: [-2, 2]"},
      {"presence_penalty: nan", "presence_penalty: nan; allowed: [-2, 2]"},
      {"frequency_penalty: -3", "frequency_penalty: -3; allowed: [-2, 2]"},
      {"frequency_penalty: inf", "frequency_penalty: inf; allowed: [-2, 2]"},
      {"min_new_tokens: -1", "min_new_tokens: -1; allowed: [0, 2147483647]"},
      {"max_new_tokens: 0", "max_new_tokens: 0; allowed: [1, 2147483647]"},
      {"max_new_tokens: -1", "max_new_tokens: -1; allowed: [1, 2147483647]"},
      {"truncate_prompt_tokens: 0", "truncate_prompt_tokens: 0; allowed: [1, 2147483647]"},
      {"top_logprobs: -1", "top_logprobs: -1; allowed: [0, 20]"},
      {"top_logprobs: 21", "top_logprobs: 21; allowed: [0, 20]"},
      {"priority: 101", "priority: 101; allowed: [-100, 100]"},
      {"priority: -101", "priority: -101; allowed: [-100, 100]"},
      {"time_limit_seconds: 0", "time_limit_seconds: 0; allowed: (0, 86400]"},
      {"time_limit_seconds: nan", "time_limit_seconds: nan; allowed: (0, 86400]"},
      {"time_limit_seconds: inf", "time_limit_seconds: inf; allowed: (0, 86400]"},
      {"require_contract: 9",
       "require_contract: 9; allowed: CONTRACT_ANY, CONTRACT_LOSSY, CONTRACT_DISTRIBUTION, "
       "CONTRACT_EXACT_UP_TO_ROUNDING, CONTRACT_EXACT"},
      {"require_contract: CONTRACT_UNSPECIFIED",
       "require_contract: 0; allowed: CONTRACT_ANY, CONTRACT_LOSSY, CONTRACT_DISTRIBUTION, "
       "CONTRACT_EXACT_UP_TO_ROUNDING, CONTRACT_EXACT"},
      {"stop_sequences: \"\"", "stop_sequences[0]: 0 bytes; allowed: 1 to 1024 bytes"},
      {"request_id: \"a b\"",
       "request_id: \"a b\"; allowed: at most 128 characters of printable ASCII without spaces"},
      // Methods' parameters.
      {"speculative { draft_tokens: 0 }", "speculative.draft_tokens: 0; allowed: [1, 64]"},
      {"speculative { draft_tokens: 65 }", "speculative.draft_tokens: 65; allowed: [1, 64]"},
      {"speculative { draft_tokens: 1000000 }",
       "speculative.draft_tokens: 1000000; allowed: [1, 64]"},
      {"speculative { pace: 4 }",
       "speculative.pace: 4; allowed: PACE_FIXED, PACE_ADAPTIVE, PACE_FASTEST"},
      {"bita { pace: PACE_ADAPTIVE }",
       "bita.pace: PACE_ADAPTIVE; allowed: PACE_FIXED, PACE_FASTEST"},
      {"speculative { acceptance: 3 }",
       "speculative.acceptance: 3; allowed: ACCEPTANCE_MATCH, ACCEPTANCE_RATIO"},
      {"speculative { min_draft_probability: nan }",
       "speculative.min_draft_probability: nan; allowed: [0, 1]"},
      {"speculative { min_draft_probability: 1.5 }",
       "speculative.min_draft_probability: 1.5; allowed: [0, 1]"},
      {"ngram { max_ngram: 0 }", "ngram.max_ngram: 0; allowed: [1, 64]"},
      {"bild { fallback_threshold: 2.5 }", "bild.fallback_threshold: 2.5; allowed: [0, 2]"},
      {"bild { fallback_threshold: nan }", "bild.fallback_threshold: nan; allowed: [0, 2]"},
      {"bild { rollback_threshold: -1 }", "bild.rollback_threshold: -1; allowed: [0, inf]"},
      {"bild { rollback_threshold: nan }", "bild.rollback_threshold: nan; allowed: [0, inf]"},
      {"ppd { num_candidates: 0 }", "ppd.num_candidates: 0; allowed: [1, 16]"},
      {"ppd { num_candidates: 17 }", "ppd.num_candidates: 17; allowed: [1, 16]"},
      {"speculative { num_masks: 17 }", "speculative.num_masks: 17; allowed: [0, 16]"},
      {"ppd { draft_vocabulary: -1 }", "ppd.draft_vocabulary: -1; allowed: [0, 16777216]"},
      {"n: 0", "n: 0; allowed: [1, 16]"},
      {"n: -1", "n: -1; allowed: [1, 16]"},
      {"n: 17", "n: 17; allowed: [1, 16]"},
      {"n: 1000000", "n: 1000000; allowed: [1, 16]"},
      {"bild { max_small_run: -1 }", "bild.max_small_run: -1; allowed: [0, 4096]"},
      {"bild { rollback_threshold: -inf }", "bild.rollback_threshold: -inf; allowed: [0, inf]"},
      {"bild { max_small_run: 4097 }", "bild.max_small_run: 4097; allowed: [0, 4096]"},
      {"bild { window: 0 }", "bild.window: 0; allowed: [1, 64]"},
      {"bild { window: 65 }", "bild.window: 65; allowed: [1, 64]"},
      {"beam { width: 0 }", "beam.width: 0; allowed: [1, 16]"},
      {"beam { width: 17 }", "beam.width: 17; allowed: [1, 16]"},
      {"beam { length_penalty: nan }", "beam.length_penalty: nan; allowed: [-10, 10]"},
      {"beam { length_penalty: inf }", "beam.length_penalty: inf; allowed: [-10, 10]"},
  };
  for (const auto& c : cases) EXPECT_EQ(error(c.fields), c.message) << c.fields;
}

TEST(RequestFromProto, Constraints) {
  using Kind = GrammarSpec::Kind;
  const struct {
    const char* fields;
    GrammarSpec spec;
  } cases[] = {
      {"json_schema: \"{}\"", {Kind::kJsonSchema, "{}", ""}},
      {"json_object {} whitespace_pattern: \" \"", {Kind::kJsonObject, "", " "}},
      {"regex: \"a+\"", {Kind::kRegex, "a+", ""}},
      {"choice { texts: [\"yes\", \"n\\\"o\"] }", {Kind::kChoice, "[\"yes\",\"n\\\"o\"]", ""}},
      {"grammar: \"start: A\"", {Kind::kGrammar, "start: A", ""}},
      {"structural_tag: \"{}\"", {Kind::kStructuralTag, "{}", ""}},
  };
  for (const auto& c : cases) {
    const auto request = translate(c.fields);
    ASSERT_TRUE(request.ok()) << c.fields << ": " << request.status();
    EXPECT_EQ(request->constraint, c.spec) << c.fields;
  }
  EXPECT_EQ(translate("")->constraint, std::nullopt);
  EXPECT_EQ(error("regex: \"\""), "regex: empty; allowed: at least one character");
  EXPECT_EQ(error("choice {}"), "choice.texts: empty; allowed: one text or more");
  EXPECT_EQ(error("choice { texts: [\"a\", \"\"] }"),
            "choice.texts[1]: empty; allowed: at least one character");
  EXPECT_EQ(error("regex: \"secret\" whitespace_pattern: \"secret\""),
            "whitespace_pattern: 6 bytes; allowed: unset without json_schema, json_object or "
            "structural_tag");
}

TEST(RequestFromProto, TheEngineKnowsTheAdapters) {
  v1::GenerateRequest request = proto(kBase);
  EXPECT_EQ(generate_request_from(request)->adapter, "");
  request.set_adapter("sql");
  EXPECT_EQ(generate_request_from(request)->adapter, "sql");
  v1::ScoreRequest score;
  score.set_model("m");
  score.set_text("a");
  score.set_continuation_text("b");
  score.set_adapter("sql");
  EXPECT_EQ(score_request_from(score)->adapter, "sql");
}

TEST(RequestFromProto, AllErrorsAreReportedAtOnce) {
  const auto refused = generate_request_from(proto(R"(
      request_id: "a b" chat { messages { role: "" } messages { role: "user" extra: "[]" } }
      truncate_prompt_tokens: 0 bild { fallback_threshold: 3 rollback_threshold: -1 window: 65 }
      require_contract: CONTRACT_UNSPECIFIED temperature: 200 top_p: 0 logit_bias { key: 1 value: 1 }
      n: 50 beam { width: 17 length_penalty: 11 } max_new_tokens: 0 stop_sequences: ["a", ""]
      time_limit_seconds: nan top_logprobs: 21 priority: 101 regex: "a*")"));
  std::vector<std::string> fields;
  for (const Violation& v : violations_of(refused.status())) fields.push_back(v.field);
  EXPECT_EQ(fields,
            (std::vector<std::string>{
                "model", "request_id", "chat.messages[0].role", "chat.messages[1].extra",
                "truncate_prompt_tokens", "bild.fallback_threshold", "bild.rollback_threshold",
                "bild.window", "require_contract", "temperature", "top_p", "n", "beam.width",
                "beam.length_penalty", "max_new_tokens", "stop_sequences[1]", ""}))
      << "the last one counts the others";
}

TEST(RequestFromProto, BoundedLists) {
  v1::GenerateRequest request = proto(kBase);
  for (int i = 0; i < 10000; ++i) request.add_stop_sequences("x");
  EXPECT_EQ(std::string(generate_request_from(request).status().message()),
            "stop_sequences: 10000 of them; allowed: at most 64");
  request.clear_stop_sequences();
  request.add_stop_sequences(std::string(1025, 'x'));
  EXPECT_EQ(std::string(generate_request_from(request).status().message()),
            "stop_sequences[0]: 1025 bytes; allowed: 1 to 1024 bytes");
  request.clear_stop_sequences();
  for (int i = 0; i < 5; ++i) request.add_stop_sequences(std::string(820, 'x'));
  EXPECT_EQ(std::string(generate_request_from(request).status().message()),
            "stop_sequences: 4100 bytes in all of them; allowed: at most 4096");
  request.clear_stop_sequences();
  for (int i = 0; i < 1025; ++i) request.add_stop_token_ids(i);
  EXPECT_EQ(std::string(generate_request_from(request).status().message()),
            "stop_token_ids: 1025 of them; allowed: at most 1024");
  request.clear_stop_token_ids();
  for (int i = 0; i < 1025; ++i) request.add_bad_token_ids(i);
  EXPECT_EQ(std::string(generate_request_from(request).status().message()),
            "bad_token_ids: 1025 of them; allowed: at most 1024");
  request.mutable_bad_token_ids()->Truncate(1024);
  EXPECT_TRUE(generate_request_from(request).ok());
  for (int i = 0; i < 1025; ++i) (*request.mutable_logit_bias())[i] = 1;
  EXPECT_EQ(std::string(generate_request_from(request).status().message()),
            "logit_bias: 1025 of them; allowed: at most 1024");
  request.mutable_logit_bias()->erase(0);
  EXPECT_TRUE(generate_request_from(request).ok());
  request.set_request_id(std::string(129, 'x'));
  EXPECT_FALSE(generate_request_from(request).ok());
}

TEST(RequestFromProto, Prompts) {
  const auto message = [](const char* fields) {
    return std::string(generate_request_from(proto(fields)).status().message());
  };
  EXPECT_EQ(message("text: \"p\""), "model: \"\"; allowed: a name from Models.ListModels");
  EXPECT_EQ(message("model: \"m\""), "prompt: none; allowed: one of text, token_ids, chat");
  EXPECT_EQ(message("model: \"m\" text: \"\""), "text: empty; allowed: at least one character");
  EXPECT_EQ(message("model: \"m\" token_ids {}"), "token_ids: empty; allowed: at least one id");
  EXPECT_EQ(message("model: \"m\" chat {}"), "chat.messages: 0 of them; allowed: 1 to 4096");

  const auto ids = generate_request_from(proto("model: \"m\" token_ids { ids: [1, -1] }"));
  EXPECT_EQ(std::get<std::vector<Token>>(ids->prompt), (std::vector<Token>{1, -1}));
}

TEST(RequestFromProto, ErrorsNeverQuotePrompts) {
  const auto r = generate_request_from(
      proto("model: \"m\" chat { messages { role: \"user\" extra: \"CANARY\" } }"));
  EXPECT_EQ(std::string(r.status().message()),
            "chat.messages[0].extra: not a JSON object (6 bytes); allowed: a JSON object");
}

TEST(ChatJson, KeepsWhatTheClientWrote) {
  const auto r = generate_request_from(proto(R"(model: "m" chat {
      messages { role: "user" content: "a\"b\n\303\251" name: "ann" extra: " { \"x\": 1.0 } " }
      messages { role: "assistant" tool_calls: "{\"z\":1,\"a\":2}" tool_calls: "{}" extra: "{}" }
      messages { role: "tool" content: "c" tool_call_id: "7" }
      tools: "{\"b\": 1}" tools: "{\"a\": 2}" template_args: "{\"k\": false}"
      add_generation_prompt: false })"));
  ASSERT_TRUE(r.ok()) << r.status();
  const auto& chat = std::get<ChatPrompt>(r->prompt);
  EXPECT_EQ(chat.messages_json,
            "[{\"role\":\"user\",\"content\":\"a\\\"b\\n\303\251\",\"name\":\"ann\",\"x\": 1.0},"
            "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"z\":1,\"a\":2},{}]},"
            "{\"role\":\"tool\",\"content\":\"c\",\"tool_call_id\":\"7\"}]");
  EXPECT_EQ(chat.tools_json, "[{\"b\": 1},{\"a\": 2}]");
  EXPECT_EQ(chat.template_args_json, "{\"k\": false}");
  EXPECT_FALSE(chat.add_generation_prompt);
}

TEST(ChatJson, RefusesWhatIsNoJsonObject) {
  for (const char* fields :
       {"messages {}", "messages { role: \"user\" tool_calls: \"[]\" }",
        "messages { role: \"user\" } tools: \"{\"", "messages { role: \"user\" } tools: \"{} {}\"",
        "messages { role: \"user\" } template_args: \"3\""}) {
    const auto r = generate_request_from(proto("model: \"m\" chat { " + std::string(fields) + "}"));
    EXPECT_EQ(r.status().code(), absl::StatusCode::kInvalidArgument) << fields;
  }
}

TEST(ChatJson, DepthIsHarmless) {
  v1::GenerateRequest request = proto("model: \"m\" chat { messages { role: \"user\" } }");
  request.mutable_chat()->add_tools("{\"a\":" + std::string(100'000, '[') +
                                    std::string(100'000, ']') + "}");
  EXPECT_TRUE(generate_request_from(request).ok());  // the template's reader bounds depth
}

TEST(ScoreRequestFromProto, Fields) {
  v1::ScoreRequest in;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "model: \"m\" text: \"p\" continuation_text: \"c\" score_prompt: true top_logprobs: 2 "
      "priority: 3 add_special_tokens: false request_id: \"r\"",
      &in));
  const auto r = score_request_from(in);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(std::get<std::string>(r->continuation), "c");
  EXPECT_TRUE(r->score_prompt);
  EXPECT_EQ(r->top_logprobs, 2);
  EXPECT_EQ(r->priority, 3);
  EXPECT_FALSE(r->add_special_tokens);
  EXPECT_EQ(r->request_id, "r");

  in.set_score_prompt(false);
  in.clear_continuation();
  EXPECT_EQ(std::string(score_request_from(in).status().message()),
            "continuation: empty; allowed: continuation_text or continuation_token_ids, unless "
            "score_prompt");
  in.set_score_prompt(true);
  EXPECT_TRUE(score_request_from(in).ok());
  in.set_top_logprobs(21);
  EXPECT_FALSE(score_request_from(in).ok());
}

TEST(ChatFromProto, IsBoundedBeforeItIsParsed) {
  v1::TokenizeRequest in;
  in.set_model("m");
  in.mutable_chat()->add_messages()->set_role("user");
  in.mutable_chat()->mutable_messages(0)->set_content(std::string(300 << 10, 'x'));  // plain text
  in.mutable_chat()->add_tools("[" + std::string(255 << 10, ' ') + "not JSON");
  EXPECT_THAT(std::string(tokenize_request_from(in).status().message()),
              testing::HasSubstr("chat.tools[0]: not a JSON object"));
  in.mutable_chat()->set_template_args("{" + std::string(1024, ' ') + "}");
  EXPECT_EQ(std::string(tokenize_request_from(in).status().message()),
            "chat: 262155 bytes of JSON; allowed: at most 262144");
}

TEST(TokenizeRequestFromProto, Fields) {
  v1::TokenizeRequest in;
  EXPECT_FALSE(tokenize_request_from(in).ok());
  in.set_model("m");
  EXPECT_FALSE(tokenize_request_from(in).ok());
  in.set_text("");
  EXPECT_TRUE(tokenize_request_from(in).ok());
  EXPECT_TRUE(tokenize_request_from(in)->add_special_tokens);
}

// `fields`: of a chat with the tools f and g.
absl::StatusOr<ChatPrompt> chat_with_tools(const std::string& fields) {
  const auto r = generate_request_from(proto(R"(model: "m" chat { messages { role: "user" }
      tools: "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
      tools: "{\"name\":\"g\"}" )" + fields + "}"));
  if (!r.ok()) return r.status();
  return std::get<ChatPrompt>(r->prompt);
}

TEST(RequestFromProto, ToolsHaveNames) {
  const auto all = chat_with_tools("");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->tool_names, testing::ElementsAre("f", "g"));
  EXPECT_TRUE(all->parallel_tool_calls);
  const auto one = chat_with_tools("allowed_tools: 'g' parallel_tool_calls: false");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(one->tool_names, testing::ElementsAre("g"));
  EXPECT_EQ(one->tools_json, "[{\"name\":\"g\"}]") << "the model sees no others";
  EXPECT_FALSE(one->parallel_tool_calls);
  const auto none = chat_with_tools("tool_choice: TOOL_CHOICE_NONE");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->tools_json.empty());
  EXPECT_TRUE(none->tool_names.empty());
}

TEST(RequestFromProto, RefusesUnknownAllowedTools) {
  EXPECT_THAT(chat_with_tools("allowed_tools: 'SECRET'").status().message(),
              testing::AllOf(testing::HasSubstr("chat.allowed_tools[0]: another name; allowed: a "
                                                "name of chat.tools"),
                             testing::Not(testing::HasSubstr("SECRET"))));
}

}  // namespace
}  // namespace tandem
