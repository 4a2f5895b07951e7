#include "server/edge/bearer_tokens.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tandem {
namespace {

TEST(BearerTokens, Tokens) {
  const auto auth =
      BearerTokens::parse("# people\nann 0123456789abcdef\n\n  fedcba9876543210xyz  \n", "tokens");
  ASSERT_TRUE(auth.ok()) << auth.status();
  EXPECT_EQ(*auth->check("Bearer 0123456789abcdef"), "ann");
  EXPECT_EQ(*auth->check("bearer fedcba9876543210xyz"), "token-4");
  EXPECT_EQ(auth->check("").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(auth->check("Basic 0123456789abcdef").status().code(),
            absl::StatusCode::kUnauthenticated);
  for (const char* wrong : {"Bearer 0123456789abcdee", "Bearer 0123456789abcdef0",
                            "Bearer 0123456789abcde", "Bearer ", "Bearer ann"}) {
    EXPECT_EQ(auth->check(wrong).status().code(), absl::StatusCode::kPermissionDenied) << wrong;
  }
}

TEST(BearerTokens, BadFilesAreRefusedWithoutQuotingSecrets) {
  EXPECT_EQ(std::string(BearerTokens::parse("ann tooshort\n", "f").status().message()),
            "f:1: allowed: NAME TOKEN or TOKEN, with a token of at least 16 characters");
  EXPECT_FALSE(BearerTokens::parse("a b 0123456789abcdef\n", "f").ok());
  EXPECT_FALSE(BearerTokens::parse("# none\n", "f").ok());
  EXPECT_FALSE(BearerTokens::load("/nonexistent").ok());
}

TEST(BearerTokens, ACutOffFileIsRefused) {
  const std::string file = "ann 0123456789abcdef\nbob fedcba9876543210fedcba9876543210\n";
  EXPECT_TRUE(BearerTokens::parse(file, "f").ok());
  // Every prefix that ends within a line.
  for (size_t size = 1; size < file.size(); ++size) {
    if (file[size - 1] == '\n') continue;
    EXPECT_FALSE(BearerTokens::parse(file.substr(0, size), "f").ok()) << size;
  }
  EXPECT_EQ(std::string(BearerTokens::parse("ann 0123456789abcdef", "f").status().message()),
            "f: the last line has no newline; allowed: complete lines");
}

// A header is stripped of all whitespace, so a token cannot begin with any.
TEST(BearerTokens, AnyWhitespaceSeparates) {
  const auto tokens = BearerTokens::parse("ann \v0123456789abcdef\r\n", "f");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens->check("Bearer 0123456789abcdef"), "ann");
}

TEST(BearerTokens, ATokenNamesOneClient) {
  EXPECT_EQ(std::string(BearerTokens::parse("ann 0123456789abcdef\n#\nbob 0123456789abcdef\n", "f")
                            .status()
                            .message()),
            "f:3: the token of line 1; allowed: each token once");
  const auto rotated = BearerTokens::parse(
      "ann 0123456789abcdef\nann fedcba9876543210\nbob aaaaaaaaaaaaaaaa\n", "f");
  ASSERT_TRUE(rotated.ok()) << rotated.status();
  EXPECT_EQ(rotated->names(), (std::set<std::string>{"ann", "bob"}));
  EXPECT_EQ(*rotated->check("Bearer 0123456789abcdef"), "ann");
  EXPECT_EQ(*rotated->check("Bearer fedcba9876543210"), "ann");
}

}  // namespace
}  // namespace tandem
