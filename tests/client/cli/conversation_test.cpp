#include "client/cli/conversation.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using Action = ChatLine::Action;

TEST(ChatLine, IsSaidOrIsACommand) {
  const auto is = [](const char* line, Action action, const std::string& text) {
    const ChatLine parsed = parse_chat_line(line);
    EXPECT_EQ(parsed.action, action) << line;
    EXPECT_EQ(parsed.text, text) << line;
  };
  is("  hello there ", Action::kAsk, "hello there");
  is("", Action::kNothing, "");
  is("   ", Action::kNothing, "");
  is("/exit", Action::kExit, "");
  is("/quit", Action::kExit, "");
  is("/system  Be brief. ", Action::kSystem, "Be brief.");
  is("/system", Action::kSystem, "");
  is("/method bild", Action::kMethod, "bild");
  is("//etc/passwd", Action::kAsk, "/etc/passwd");
  is("/nope x", Action::kUnknown, "nope");
  is("/", Action::kUnknown, "");
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
  c.add_question("a");
  c.add_answer("A");
  c.add_question("b");
  EXPECT_EQ(shown(c), "system:S user:a assistant:A user:b ");
  c.set_system("");
  EXPECT_EQ(shown(c), "user:a assistant:A user:b ");
  c.reset();
  EXPECT_EQ(shown(c), "");
}

TEST(Conversation, ForgetsWhatGotNoAnswer) {
  Conversation c;
  c.add_question("a");
  c.remove_question();
  c.add_question("b");
  EXPECT_EQ(shown(c), "user:b ") << "turns go on alternating";
  c.add_answer("B");
  c.remove_question();
  EXPECT_EQ(shown(c), "user:b assistant:B ");
}

TEST(Conversation, TakesTheLastAnswerBack) {
  Conversation c;
  EXPECT_FALSE(c.remove_answer());
  c.add_question("a");
  EXPECT_FALSE(c.remove_answer());
  c.add_answer("A");
  EXPECT_TRUE(c.remove_answer());
  EXPECT_EQ(shown(c), "user:a ");
}

}  // namespace
}  // namespace tandem::cli
