// A chat template, a conversation, tools and further arguments, as parts between NUL bytes.
//
// What is rendered is UTF-8 within the limits; nothing else than a refusal may come of all the
// rest. Small limits: what they cost at most is known from the tests.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/text/chat_template.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temp_dir.h"

namespace {

constexpr char kMessages[] =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi \u00e9"},)"
    R"({"role":"assistant","content":"Hello","tool_calls":[{"name":"f","arguments":{"x":[1,2.5]}}]},)"
    R"({"role":"user","content":"Bye"}])";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const test::TempDir folder;
  static const bool once = [] {
    folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    return true;
  }();
  (void)once;
  const auto parts = fuzz::parts_of(data, size, 4);
  folder.write("chat_template.jinja", parts[0]);
  ChatTemplateOptions options;
  options.fuel = 20'000;
  options.max_output_bytes = 1 << 16;
  options.now = [] { return absl::FromUnixSeconds(1'700'000'000); };
  options.time_zone = [] { return absl::UTCTimeZone(); };
  const auto chat = ChatTemplate::load(folder.path(), options);
  if (!chat.ok()) {
    fuzz::check_refusal(chat.status());
    return 0;
  }
  fuzz::check((*chat)->present());
  for (const bool prompt : {false, true}) {
    const auto text =
        (*chat)->render(parts[1].empty() ? kMessages : parts[1], parts[2], parts[3], prompt);
    if (!text.ok()) {
      fuzz::check_refusal(text.status());
      continue;
    }
    fuzz::check(text->size() <= options.max_output_bytes, "too long a text");
    fuzz::check(valid_utf8_prefix(*text) == text->size(), "text that is no UTF-8", *text);
  }
  return 0;
}
