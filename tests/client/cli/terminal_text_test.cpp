#include "client/cli/terminal_text.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tandem::cli {
namespace {

constexpr char kShown[] = "\xEF\xBF\xBD";

TEST(TerminalText, KeepsTextAndItsOwnColors) {
  for (const char* text : {"", "plain\n\ttext",
                           "Gr\xC3\xBC\xC3\x9F"
                           "e \xE2\x82\xAC \xF0\x9F\x98\x80",
                           "\x1b[32mgreen\x1b[0m", "\x1b[31;9m-\x1b[0m"}) {
    EXPECT_EQ(terminal_text(text), text);
  }
}

TEST(TerminalText, ReplacesWhatControlsATerminal) {
  const std::string shown = kShown;
  EXPECT_EQ(terminal_text("\x1b]52;c;YQ==\x07"), shown + "]52;c;YQ==" + shown);  // clipboard
  EXPECT_EQ(terminal_text("\x1b[2J\x1b[H"), shown + "[2J" + shown + "[H");       // clear, home
  EXPECT_EQ(terminal_text("\x1b[8mhidden"), shown + "[8mhidden");
  EXPECT_EQ(terminal_text("a\rb\x7f\b"), "a" + shown + "b" + shown + shown);
  EXPECT_EQ(terminal_text("\xC2\x9B"
                          "2J"),
            shown + "2J");  // C1: CSI
  EXPECT_EQ(terminal_text("\xE2\x80\xAE"
                          "txt"),
            shown + "txt");  // right to left
  EXPECT_EQ(terminal_text(std::string("\0", 1)), shown);
}

TEST(TerminalText, ReplacesBytesThatAreNotUtf8) {
  const std::string shown = kShown;
  EXPECT_EQ(terminal_text("\x9B"), shown);                          // C1 as one byte
  EXPECT_EQ(terminal_text("\xC0\x9B"), shown + shown);              // overlong
  EXPECT_EQ(terminal_text("\xE2\x82"), shown + shown);              // cut off
  EXPECT_EQ(terminal_text("\xED\xA0\x80"), shown + shown + shown);  // a surrogate
}

// No input leaves an escape character but those of the colors, or a C1 byte outside a character.
TEST(TerminalText, NoInputControlsTheTerminal) {
  std::mt19937 random(1);
  const std::string alphabet = "\x1b[]0123;mJ\x07\x9b\xc2\xe2\x80\xae a\n";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (unsigned i = random() % 12; i > 0; --i) text += alphabet[random() % alphabet.size()];
    const std::string safe = terminal_text(text);
    EXPECT_EQ(terminal_text(safe), safe);
    for (size_t i = 0; i < safe.size(); ++i) {
      EXPECT_NE(safe[i], '\x07');
      if (safe[i] == '\x1b') {
        EXPECT_EQ(safe[i + 1], '[');
        EXPECT_NE(safe.find('m', i), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cli
