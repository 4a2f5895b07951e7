#include "client/cli/conversation.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using Wish = ChatLine::Wish;

TEST(ChatLine, IsSaidOrIsACommand) {
  const auto is = [](const char* line, Wish wish, const std::string& text) {
    const ChatLine parsed = parse_chat_line(line);
    EXPECT_EQ(parsed.wish, wish) << line;
    EXPECT_EQ(parsed.text, text) << line;
  };
  is("  hello there ", Wish::kSay, "hello there");
  is("", Wish::kNothing, "");
  is("   ", Wish::kNothing, "");
  is("/exit", Wish::kExit, "");
  is("/quit", Wish::kExit, "");
  is("/system  Be brief. ", Wish::kSystem, "Be brief.");
  is("/system", Wish::kSystem, "");
  is("/method bild", Wish::kMethod, "bild");
  is("//etc/passwd", Wish::kSay, "/etc/passwd");
  is("/nope x", Wish::kUnknown, "nope");
  is("/", Wish::kUnknown, "");
}

TEST(ChatLine, HelpNamesEveryCommand) {
  for (const char* name : {"/exit", "/help", "/reset", "/retry", "/system TEXT", "/method NAME"}) {
    EXPECT_NE(chat_help().find(name), std::string::npos) << name;
  }
}

std::string shown(const Conversation& conversation) {
  std::string out;
  const v1::Chat chat = conversation.chat();
  for (const v1::ChatMessage& message : chat.messages()) {
    out += message.role() + ":" + message.content() + " ";
  }
  return out;
}

TEST(Conversation, RemembersWhatWasSaid) {
  Conversation c("S");
  c.say("a");
  c.answered("A");
  c.say("b");
  EXPECT_EQ(shown(c), "system:S user:a assistant:A user:b ");
  c.set_system("");
  EXPECT_EQ(shown(c), "user:a assistant:A user:b ");
  c.reset();
  EXPECT_EQ(shown(c), "");
}

TEST(Conversation, ForgetsWhatGotNoAnswer) {
  Conversation c;
  c.say("a");
  c.failed();
  c.say("b");
  EXPECT_EQ(shown(c), "user:b ") << "turns go on alternating";
  c.answered("B");
  c.failed();
  EXPECT_EQ(shown(c), "user:b assistant:B ");
}

TEST(Conversation, TakesTheLastAnswerBack) {
  Conversation c;
  EXPECT_FALSE(c.take_back());
  c.say("a");
  EXPECT_FALSE(c.take_back());
  c.answered("A");
  EXPECT_TRUE(c.take_back());
  EXPECT_EQ(shown(c), "user:a ");
}

}  // namespace
}  // namespace tandem::cli
