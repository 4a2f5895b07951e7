#include "engine/backend/torch/weights/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string message(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(ParseJsonObject, Errors) {
  EXPECT_TRUE(parse_json_object("{\"a\": {\"a\": [{\"a\": 1}, {\"a\": 2}]}}", "f").ok());
  EXPECT_THAT(message(parse_json_object("", "f").status()), HasSubstr("f: not JSON at byte"));
  EXPECT_THAT(message(parse_json_object("{\"a\":1,}", "f").status()), HasSubstr("not JSON"));
  EXPECT_THAT(message(parse_json_object("{\"a\":NaN}", "f").status()), HasSubstr("not JSON"));
  EXPECT_THAT(message(parse_json_object("{\"a\":1e999}", "f").status()), HasSubstr("not JSON"));
  EXPECT_THAT(message(parse_json_object("[1]", "f").status()),
              HasSubstr("f: [1]; allowed: a JSON object"));
  EXPECT_THAT(message(parse_json_object("{\"a\":1,\"b\":{},\"a\":1}", "f").status()),
              HasSubstr("f: \"a\": duplicate key"));
  EXPECT_THAT(message(parse_json_object("{\"a\":" + std::string(1'000'000, '['), "f").status()),
              HasSubstr("f: nested deeper than 32"));
}

TEST(JsonFields, ReadsAndFallsBack) {
  const json object = json::parse(R"({"i": 3, "x": 2.5, "b": true, "t": "s", "n": null,
                                      "one": 7, "many": [1, 2], "max": 9223372036854775807})");
  JsonFields fields(object, "f: ");
  EXPECT_EQ(fields.integer("i", std::nullopt, 1, 3), 3);
  EXPECT_EQ(fields.integer("none", 5, 1, 3), 5);
  EXPECT_EQ(fields.integer("n", 5, 1, 3), 5);
  EXPECT_EQ(fields.integer("max", 5, 1, INT64_MAX), INT64_MAX);
  EXPECT_EQ(fields.number("x", std::nullopt, 0, 3), 2.5);
  EXPECT_EQ(fields.number("i", std::nullopt, 0, 3), 3);
  EXPECT_TRUE(fields.boolean("b", false));
  EXPECT_TRUE(fields.boolean("n", true));
  EXPECT_EQ(fields.text("t", std::nullopt), "s");
  EXPECT_THAT(fields.token_ids("one"), ElementsAre(7));
  EXPECT_THAT(fields.token_ids("many"), ElementsAre(1, 2));
  EXPECT_THAT(fields.token_ids("n"), ElementsAre());
  EXPECT_TRUE(fields.present("n"));
  EXPECT_EQ(fields.find("n"), nullptr);
  EXPECT_TRUE(fields.status().ok()) << fields.status();
}

TEST(JsonFields, KeepsTheFirstError) {
  const json object = json::parse(R"({"i": 3.0, "x": "2"})");
  JsonFields fields(object, "f: ");
  fields.integer("i", 2, 1, 9);
  fields.number("x", std::nullopt, 0, 3);
  EXPECT_EQ(message(fields.status()), "f: i: 3.0; allowed: integers from 1 to 9");
}

TEST(JsonFields, Errors) {
  const json object = json::parse(
      R"({"big": 18446744073709551615, "neg": -1, "word": "w", "list": [1, -2], "flag": 1})");
  const auto first = [&](auto read) {
    JsonFields fields(object, "");
    read(fields);
    return message(fields.status());
  };
  EXPECT_EQ(first([](auto& f) { f.integer("big", 1, 0, INT64_MAX); }),
            "big: 18446744073709551615; allowed: integers from 0 to 9223372036854775807");
  EXPECT_EQ(first([](auto& f) { f.integer("neg", 1, 0, 5); }),
            "neg: -1; allowed: integers from 0 to 5");
  EXPECT_EQ(first([](auto& f) { f.number("word", 1, 0, 5); }),
            "word: \"w\"; allowed: numbers from 0 to 5");
  EXPECT_EQ(first([](auto& f) { f.number("gone", std::nullopt, 0, 5); }), "gone: missing");
  EXPECT_EQ(first([](auto& f) { f.boolean("flag", true); }), "flag: 1; allowed: true, false");
  EXPECT_EQ(first([](auto& f) { f.text("flag", ""); }), "flag: 1; allowed: a string");
  EXPECT_THAT(first([](auto& f) { f.token_ids("list"); }), HasSubstr("list: [1,-2]; allowed: tok"));
  EXPECT_THAT(first([](auto& f) { f.token_ids("big"); }), HasSubstr("allowed: token ids"));
}

}  // namespace
}  // namespace tandem
