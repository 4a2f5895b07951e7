// ChatTemplate against Transformers' apply_chat_template, and with hostile templates.
#include "engine/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/text/test_data.h"

namespace tandem {
namespace {

using json = nlohmann::ordered_json;  // templates see the order of keys
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHello[] = R"([{"role": "user", "content": "hello"}])";

json chat_goldens() { return json::parse(test::read_text(test::data_path("chat/goldens.json"))); }

std::string dump(const json& value) { return value.is_null() ? "" : value.dump(); }

class TemplateGoldens : public ::testing::TestWithParam<std::string> {};

TEST_P(TemplateGoldens, RendersAsTransformers) {
  const json goldens = chat_goldens();
  const auto chat_template = ChatTemplate::load(test::data_path("chat/" + GetParam()));
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  ASSERT_TRUE((*chat_template)->present());
  int compared = 0;
  int refused = 0;
  for (const json& golden : goldens["cases"]) {
    if (golden["model"] != GetParam()) continue;
    const json& conversation = goldens["conversations"][golden["conversation"].get<size_t>()];
    SCOPED_TRACE(golden["conversation"].dump() + conversation.dump());
    const auto text = (*chat_template)
                          ->render(dump(conversation["messages"]), dump(conversation["tools"]),
                                   dump(golden["extra"]), golden["prompt"].get<bool>());
    if (golden["text"].is_null()) {
      EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << *text;
      EXPECT_THAT(text.status().message(), HasSubstr("chat template "));
      ++refused;
    } else {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, golden["text"].get<std::string>());
      ++compared;
    }
  }
  EXPECT_EQ(compared + refused, 32);
  EXPECT_GE(compared, 16);
}

INSTANTIATE_TEST_SUITE_P(All, TemplateGoldens,
                         ::testing::Values("chatml", "llama2", "llama3", "mistral",
                                           "mistral_single", "zephyr", "gemma", "reasoning"),
                         [](const auto& name) { return name.param; });

absl::StatusOr<std::shared_ptr<const ChatTemplate>> make(const std::string& source,
                                                         ChatTemplateOptions options = {}) {
  test::TemporaryModel model;
  model.write("chat_template.jinja", source);
  return ChatTemplate::load(model.path(), std::move(options));
}

absl::StatusOr<std::string> render(const std::string& source, ChatTemplateOptions options = {},
                                   std::string_view messages = kHello) {
  auto chat_template = make(source, std::move(options));
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)->render(messages, "", "", false);
}

TEST(ChatTemplate, ExpressionsAsInJinja) {
  const json goldens = chat_goldens();
  ASSERT_GE(goldens["expressions"].size(), 40u);
  for (const json& golden : goldens["expressions"]) {
    SCOPED_TRACE(golden["template"].get<std::string>());
    const auto chat_template = make(golden["template"]);
    const auto text = chat_template.ok() ? (*chat_template)
                                               ->render(dump(goldens["messages"]), "",
                                                        dump(goldens["variables"]), false)
                                         : chat_template.status();
    if (golden["text"].is_null()) {
      EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << *text;
    } else {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, golden["text"].get<std::string>());
    }
  }
}

TEST(ChatTemplate, ModelWithoutTemplate) {
  const auto chat_template = ChatTemplate::load(test::data_path("tokenizers/gpt2"));
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  EXPECT_FALSE((*chat_template)->present());
  const auto text = (*chat_template)->render(kHello, "", "", true);
  EXPECT_TRUE(absl::IsFailedPrecondition(text.status()));
  EXPECT_EQ(text.status().message(), "model has no chat template");
}

TEST(ChatTemplate, ClockIsInjected) {
  ChatTemplateOptions options;
  options.now = [] { return absl::FromUnixMicros(1721995200'000042); };
  options.time_zone = [] { return absl::UTCTimeZone(); };
  EXPECT_EQ(*render("{{ strftime_now('%d %b %Y|%H:%M:%S|%f|%j%%|%Z%z|é') }}", options),
            "26 Jul 2024|12:00:00|000042|208%||é");
  EXPECT_EQ(*render("{{ strftime_now('') }}", options), "");
  const std::string year = *render("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GT(year, "2023");
}

TEST(ChatTemplate, ErrorsNameTheTemplate) {
  const auto refused = render("line one\n{{ raise_exception('not like this') }}");
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr("chat_template.jinja:2: "));
  EXPECT_THAT(refused.status().message(), HasSubstr("not like this"));
  for (const char* source : {"{{ x | nofilter }}", "{{ x is notest }}", "{% for %}", "{{ 'x",
                             "{% nope %}", "{{ 1 // 0 }}", "{{ messages.nothing.more }}",
                             "{% include 'other' %}", "{{ messages[0].content.nomethod() }}"}) {
    const auto text = render(source);
    EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << source;
    EXPECT_THAT(text.status().message(), HasSubstr("chat_template.jinja")) << source;
  }
}

// Each fails quickly with INVALID_ARGUMENT naming the template, which stays usable.
TEST(ChatTemplate, RunawaysAreBounded) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% for i in range(1000000000) %}x{% endfor %}", "range"},
      {"{% for i in range(30000) %}{% for j in range(33333) %}{% endfor %}{% endfor %}",
       "instructions"},
      {"{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "recursion"},
      {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion"},
      {"{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}", "writes more than"},
      {"{{ 'x' * 99999999 }}", "writes more than"},
      {"{{ 'x' * 1000000000000 }}", "too large"},
      {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
       "{% endfor %}",
       "memory"},
      {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
       "{% endfor %}",
       "memory"},
      {"{% set a %}{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}", "memory"},
      {"{{ (range(99999) | list * 99999) | list | length }}", ""},
  };
  for (const auto& [source, message] : cases) {
    SCOPED_TRACE(source);
    const auto text = render(source);
    EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << text.status();
    EXPECT_THAT(text.status().message(), HasSubstr("chat_template.jinja"));
    EXPECT_THAT(text.status().message(), HasSubstr(message));
  }
}

TEST(ChatTemplate, LimitsAreOptions) {
  ChatTemplateOptions options;
  options.fuel = 1000;
  options.max_output_bytes = 100;
  EXPECT_TRUE(render("{% for i in range(30) %}x{% endfor %}", options).ok());
  EXPECT_FALSE(render("{% for i in range(500) %}{% endfor %}", options).ok());
  EXPECT_EQ(render("{{ 'x' * 100 }}", options)->size(), 100u);
  EXPECT_FALSE(render("{{ 'x' * 101 }}", options).ok());
}

TEST(ChatTemplate, OnlyTheRenderOverItsMemoryFails) {
  const auto chat_template = make(
      "{% if messages | length > 1 %}{% set ns = namespace(s='x') %}{% for i in range(99) %}"
      "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% endif %}ok");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const std::string two = R"([{"role": "user"}, {"role": "user"}])";
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT((*chat_template)->render(two, "", "", false).status().message(),
                HasSubstr("MiB of memory"));
    EXPECT_EQ(*(*chat_template)->render(kHello, "", "", false), "ok");
  }
}

TEST(ChatTemplate, BadArguments) {
  const auto chat_template = make("{{ messages | length }}{{ x }}{{ tools is none }}");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const auto call = [&](std::string_view messages, std::string_view tools, std::string_view extra) {
    return (*chat_template)->render(messages, tools, extra, false);
  };
  EXPECT_EQ(*call(kHello, "", ""), "1True");
  EXPECT_EQ(*call(kHello, "null", "null"), "1True");
  EXPECT_EQ(*call(kHello, "[]", R"({"x": 7})"), "17False");
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const std::string_view bad_messages[] = {"",       "null", "{}",   "[]",    "[1]",
                                           "[null]", "[{}",  "\xff", "\"x\"", deep};
  for (const std::string_view bad : bad_messages) {
    const auto text = call(bad, "", "");
    EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << bad.substr(0, 20);
    EXPECT_THAT(text.status().message(), StartsWith("messages"));
  }
  for (const std::string_view bad : {"{}", "[1]", "[", "1", "\xc3"}) {
    EXPECT_THAT(call(kHello, bad, "").status().message(), StartsWith("tools")) << bad;
  }
  for (const std::string_view bad :
       {"[]", "1", "{", R"({"messages": []})", R"({"tools": []})", R"({"chat_template": "x"})",
        R"({"add_generation_prompt": true})"}) {
    EXPECT_THAT(call(kHello, "", bad).status().message(), StartsWith("template arguments")) << bad;
  }
}

TEST(ChatTemplate, BadFiles) {
  const std::pair<std::string, std::string> cases[] = {
      {"chat_template.jinja", "\xff\xfe"},
      {"chat_template.jinja", std::string(9 << 20, 'x')},
      {"chat_template.jinja", std::string(100000, '(')},
      {"chat_template.jinja", "{{ " + std::string(100000, '(') + " }}"},
      {"chat_template.jinja", "{{ " + std::string(100000, '[') + " }}"},
      {"tokenizer_config.json", "{"},
      {"tokenizer_config.json", "[]"},
      {"tokenizer_config.json", std::string(1000000, '[')},
      {"tokenizer_config.json", R"({"chat_template": 7})"},
      {"tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})"},
      {"tokenizer_config.json", R"({"chat_template": "x", "bos_token": 7})"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "y"}}})"},
  };
  for (const auto& [name, text] : cases) {
    SCOPED_TRACE(name + " " + text.substr(0, 60));
    test::TemporaryModel model;
    model.write(name, text);
    const auto chat_template = ChatTemplate::load(model.path());
    if (text[0] == '(') {  // brackets outside a tag are text
      EXPECT_TRUE(chat_template.ok());
      continue;
    }
    ASSERT_TRUE(absl::IsInvalidArgument(chat_template.status())) << chat_template.status();
    EXPECT_THAT(chat_template.status().message(), HasSubstr(name));
  }
}

TEST(ChatTemplate, SeveralWithoutADefault) {
  test::TemporaryModel model;
  model.write("additional_chat_templates/tool_use.jinja", "with tools")
      .write("additional_chat_templates/rag.jinja", "rag");
  const auto chat_template = ChatTemplate::load(model.path());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  EXPECT_EQ(*(*chat_template)->render(kHello, "[]", "", false), "with tools");
  const auto text = (*chat_template)->render(kHello, "", "", false);
  EXPECT_THAT(text.status().message(), HasSubstr("rag, tool_use"));
}

TEST(ChatTemplate, ManyThreadsAgree) {
  const auto chat_template = ChatTemplate::load(test::data_path("chat/chatml"));
  ASSERT_TRUE(chat_template.ok());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const std::string text = "thread " + std::to_string(t);
      const std::string messages = R"([{"role": "user", "content": ")" + text + R"("}])";
      const std::string want =
          "<|im_start|>user\n" + text + "<|im_end|>\n\n<|im_start|>assistant\n\n";
      for (int i = 0; i < 100; ++i) {
        const auto got = (*chat_template)->render(messages, "", "", true);
        wrong[t] += got.ok() && *got == want ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST(ChatTemplate, LongConversations) {
  const auto chat_template = ChatTemplate::load(test::data_path("chat/chatml"));
  ASSERT_TRUE(chat_template.ok());
  json messages = json::array();
  for (int i = 0; i < 5000; ++i) {
    messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(1000, 'x')}});
  }
  const auto text = (*chat_template)->render(messages.dump(), "", "", true);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_GT(text->size(), 5'000'000u);
}

}  // namespace
}  // namespace tandem
