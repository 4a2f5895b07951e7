// Tool calls of every format, in every split of an answer's tokens into chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/host/requests/stream.h"
#include "engine/text/tool_format.h"
#include "tests/engine/host/byte_level.h"

namespace tandem {
namespace {

// Words as models split such answers; the markers are special tokens.
std::shared_ptr<const Tokenizer> call_tokenizer() {
  auto json = nlohmann::json::parse(testing::byte_level_tokenizer({}));
  size_t id = json["model"]["vocab"].size() + json["added_tokens"].size();
  const auto add = [&](const std::string& text, bool special) {
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", special}});
  };
  for (const char* const word :
       {"{\"name\": \"", "get",    "_weather", "\", \"", "arguments", "parameters", "\": {\"",
        "city",          "\": \"", "Paris",    "\"}}",   "\"}",       "{\"",        "now",
        "```",           "tool",   "_code",    "=\"",    "\")",       "()",         "functools",
        "json",          "Let",    " me",      " look",  "Done",      "{}}",        "\": "}) {
    add(word, false);
  }
  for (const ToolFormat format :
       {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral, ToolFormat::kPhi4}) {
    for (const std::string& marker : marker_tokens(format, {})) add(marker, true);
  }
  return *Tokenizer::parse("words", json.dump(), "{}");
}

// Puts the chunks together, as clients do.
class AssemblingSink final : public Sink {
 public:
  void made(int64_t) override {}
  void started(const Started&) override {}
  void chunk(Chunk event) override {
    ++chunks;
    text += event.text;
    for (const CallPart& part : event.tool_calls) {
      const auto index = static_cast<size_t>(part.index);
      if (index >= calls.size()) calls.resize(index + 1);
      EXPECT_EQ(part.id.empty(), part.name.empty()) << "the first part has both";
      calls[index].id += part.id;
      calls[index].name += part.name;
      calls[index].arguments += part.arguments;
      calls[index].broken |= part.broken;
    }
  }
  void finished(const Finished& event) override {
    complete = event.tool_calls;
    ended.set_value();
  }
  void failed(const absl::Status& status) override {
    ADD_FAILURE() << status;
    ended.set_value();
  }

  // Content, and " #name(arguments)" of each call.
  std::string shown() const {
    std::string out = text;
    for (size_t i = 0; i < calls.size(); ++i) {
      absl::StrAppend(&out, calls[i].broken ? " #broken " : " #", calls[i].name, "(",
                      calls[i].arguments, ")");
      EXPECT_EQ(calls[i].id, call_id(7, 0, static_cast<int>(i)));
    }
    EXPECT_EQ(complete, static_cast<int>(calls.size()));
    return out;
  }

  std::string text;
  std::vector<CallPart> calls;
  int complete = 0;
  int chunks = 0;
  std::promise<void> ended;
};

class CallSplits : public ::testing::Test {
 protected:
  // The answer of a client that gets chunks of these sizes. The last one comes with the end, or
  // before it.
  std::string answer(ToolFormat format, const std::vector<Token>& tokens,
                     const std::vector<size_t>& sizes, bool end_apart) {
    StreamPlan plan;
    plan.tokenizer = tokenizer_;
    plan.answer.emplace();
    plan.answer->syntax = {format, {"get_weather", "now"}, true, {}};
    plan.answer->id_seed = 7;
    for (const std::string& marker : marker_tokens(format, {})) {
      plan.answer->markers.push_back(*tokenizer_->token_id(marker));
    }
    const auto sink = std::make_shared<AssemblingSink>();
    const auto listeners = request_streams(&pool_, std::move(plan), 1, sink, [] {});
    auto next = tokens.begin();
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<Emitted> chunk(sizes[i]);
      for (Emitted& e : chunk) e.token = *next++;
      listeners[0]->on_tokens(chunk);
      if (i + 1 < sizes.size() || end_apart) deliver();
    }
    EXPECT_EQ(next, tokens.end());
    SequenceEnd end;
    end.reason = FinishReason::kEos;
    listeners[0]->on_end(end);
    sink->ended.get_future().wait();
    EXPECT_LE(sink->chunks, static_cast<int>(sizes.size()) + 1);
    return sink->shown();
  }

  std::vector<Token> tokens_of(const std::string& text) const {
    const auto tokens = tokenizer_->encode(text, false, SpecialText::kParse);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return *tokens;
  }

  // Fills `all` with the ways to split `left` tokens into chunks of 1 to 4.
  static void splits(size_t left, std::vector<size_t>& sizes,
                     std::vector<std::vector<size_t>>& all) {
    if (left == 0) all.push_back(sizes);
    for (size_t size = 1; size <= 4 && size <= left; ++size) {
      sizes.push_back(size);
      splits(left - size, sizes, all);
      sizes.pop_back();
    }
  }

  const std::shared_ptr<const Tokenizer> tokenizer_ = call_tokenizer();

 private:
  void deliver() {
    std::promise<void> done;
    pool_.post([&] { done.set_value(); });
    done.get_future().wait();
  }

  Worker pool_{1};
};

struct Golden {
  ToolFormat format;
  std::string text, expected;
};

constexpr char kNamed[] = R"({"name": "get_weather", "arguments": {"city": "Paris"}})";
constexpr char kLlamaCall[] = R"({"name": "get_weather", "parameters": {"city": "Paris"}})";
constexpr char kWeather[] = R"( #get_weather({"city": "Paris"}))";
constexpr char kPythonWeather[] = R"( #get_weather({"city":"Paris"}))";

TEST_F(CallSplits, OneCall) {
  const Golden goldens[] = {
      {ToolFormat::kHermes, absl::StrCat("<tool_call>\n", kNamed, "\n</tool_call>"), kWeather},
      {ToolFormat::kHermes, kNamed, kWeather},
      {ToolFormat::kLlama3, kLlamaCall, kWeather},
      {ToolFormat::kLlama3, absl::StrCat("<|python_tag|>", kLlamaCall), kWeather},
      {ToolFormat::kMistral, absl::StrCat("[TOOL_CALLS] [", kNamed, "]"), kWeather},
      {ToolFormat::kMistral, R"([TOOL_CALLS]get_weather[ARGS]{"city": "Paris"})", kWeather},
      {ToolFormat::kPhi4, absl::StrCat("<|tool_call|>[", kNamed, "]<|/tool_call|>"), kWeather},
      {ToolFormat::kPhi4, absl::StrCat("functools[", kNamed, "]"), kWeather},
      {ToolFormat::kGemma, "```tool_code\nget_weather(city=\"Paris\")\n```", kPythonWeather},
      {ToolFormat::kGemma, "[get_weather(city=\"Paris\")]", kPythonWeather},
      {ToolFormat::kGemma, kLlamaCall, kWeather},
  };
  for (const Golden& golden : goldens) {
    const std::vector<Token> tokens = tokens_of(golden.text);
    ASSERT_LE(tokens.size(), 14U) << golden.text << ": 5,000 splits";
    std::vector<size_t> sizes;
    std::vector<std::vector<size_t>> all;
    splits(tokens.size(), sizes, all);
    all.push_back({tokens.size()});
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(answer(golden.format, tokens, all[i], i % 2 == 0), golden.expected)
          << golden.text << ::testing::PrintToString(all[i]);
    }
  }
}

// Longer answers: each chunk of 1 to 4 tokens among single tokens, and random splits.
TEST_F(CallSplits, ParallelCallsAndTextAround) {
  const std::string now = R"({"name": "now", "arguments": {}})";
  const std::string llama_now = R"({"name": "now", "parameters": {}})";
  const std::string expected = absl::StrCat("Let me look.Done.", kWeather, " #now({})");
  const Golden goldens[] = {
      {ToolFormat::kHermes,
       absl::StrCat("Let me look.\n<tool_call>\n", kNamed, "\n</tool_call>\n<tool_call>\n", now,
                    "\n</tool_call>\nDone."),
       expected},
      {ToolFormat::kHermes,
       absl::StrCat("Let me look.\n```json\n", kNamed, "\n", now, "\n```\nDone."), expected},
      {ToolFormat::kLlama3, absl::StrCat("Let me look.\n", kLlamaCall, "; ", llama_now, "\nDone."),
       expected},
      {ToolFormat::kLlama3,
       absl::StrCat("Let me look.<|python_tag|>", kLlamaCall, ";", llama_now, "\nDone."), expected},
      {ToolFormat::kMistral,
       absl::StrCat("Let me look. [TOOL_CALLS] [", kNamed, ", ", now, "] Done."), expected},
      {ToolFormat::kMistral,
       R"(Let me look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{} Done.)",
       expected},
      {ToolFormat::kPhi4,
       absl::StrCat("Let me look. <|tool_call|>[", kNamed, ", ", now, "]<|/tool_call|> Done."),
       expected},
      {ToolFormat::kPhi4, absl::StrCat("Let me look.\nfunctools[", kNamed, ", ", now, "]\nDone."),
       expected},
      {ToolFormat::kGemma,
       "Let me look.\n```tool_code\nget_weather(city=\"Paris\")\nnow()\n```\nDone.",
       absl::StrCat("Let me look.Done.", kPythonWeather, " #now({})")},
      {ToolFormat::kGemma, "Let me look.\n[get_weather(city=\"Paris\"), now()]\nDone.",
       absl::StrCat("Let me look.Done.", kPythonWeather, " #now({})")},
  };
  std::mt19937 random(3);
  for (const Golden& golden : goldens) {
    const std::vector<Token> tokens = tokens_of(golden.text);
    const size_t n = tokens.size();
    std::vector<std::vector<size_t>> all = {{n}};
    for (size_t size = 1; size <= 4; ++size) {
      for (size_t at = 0; at + size <= n; ++at) {
        std::vector<size_t> sizes(at, 1);
        sizes.push_back(size);
        sizes.resize(n - size + 1, 1);
        all.push_back(sizes);
      }
    }
    for (int i = 0; i < 500; ++i) {
      std::vector<size_t> sizes;
      for (size_t left = n; left > 0; left -= sizes.back()) {
        sizes.push_back(std::min<size_t>(left, 1 + random() % 4));
      }
      all.push_back(sizes);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(answer(golden.format, tokens, all[i], i % 2 == 0), golden.expected)
          << golden.text << ::testing::PrintToString(all[i]);
    }
  }
}

}  // namespace
}  // namespace tandem
