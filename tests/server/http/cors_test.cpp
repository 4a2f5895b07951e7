#include "server/http/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using testing::Contains;
using testing::Pair;

HttpMessage message(const std::string& method, const std::string& origin) {
  HttpMessage out;
  out.method = method;
  if (!origin.empty()) out.headers.emplace_back("origin", origin);
  return out;
}

TEST(Cors, OriginsHaveAHostAndNoPath) {
  for (const char* good : {"*", "https://a.example", "http://localhost:3000", "http://[::1]:80"}) {
    EXPECT_TRUE(is_origin(good)) << good;
  }
  for (const char* bad :
       {"", "a.example", "https://", "https://a/b", "https://a\r\nX: y", "null"}) {
    EXPECT_FALSE(is_origin(bad)) << bad;
  }
}

TEST(Cors, OnlyAllowedOriginsMayReadResponses) {
  const std::vector<std::string> allowed = {"https://a.example"};
  EXPECT_THAT(cors_headers(allowed, message("POST", "https://a.example")),
              Contains(Pair("Access-Control-Allow-Origin", "https://a.example")));
  for (const char* other : {"", "https://b.example", "http://a.example", "null"}) {
    const HttpHeaders headers = cors_headers(allowed, message("POST", other));
    ASSERT_EQ(headers.size(), 1U) << other;
    EXPECT_EQ(headers[0], (HttpHeaders::value_type{"Vary", "Origin"}));
  }
  EXPECT_TRUE(cors_headers({}, message("POST", "https://a.example")).empty());
  EXPECT_THAT(cors_headers({"*"}, message("GET", "http://b.example")),
              Contains(Pair("Access-Control-Allow-Origin", "http://b.example")));
  EXPECT_EQ(cors_headers({"*"}, message("GET", "x\r\nEvil: 1")).size(), 1U);
}

TEST(Cors, PreflightsAreAnsweredForAllowedOrigins) {
  HttpMessage preflight = message("OPTIONS", "https://a.example");
  EXPECT_FALSE(preflight_reply({"*"}, preflight).has_value()) << "no preflight";
  preflight.headers.emplace_back("access-control-request-method", "POST");
  preflight.headers.emplace_back("access-control-request-headers", "authorization, x-api-key\r\n:");
  const auto reply = preflight_reply({"https://a.example"}, preflight);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->status, 200);
  EXPECT_THAT(reply->headers,
              Contains(Pair("Access-Control-Allow-Headers", "authorization, x-api-key")));
  EXPECT_FALSE(preflight_reply({"https://b.example"}, preflight).has_value());
  EXPECT_FALSE(preflight_reply({}, preflight).has_value());
}

}  // namespace
}  // namespace tandem
