#include "client/cli/completion.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

TEST(Completion, NamesEveryCommandAndMethod) {
  for (const char* shell : {"bash", "zsh"}) {
    const std::string script = completion_script(shell, commands());
    for (const Command& command : commands()) {
      EXPECT_NE(script.find(command.name), std::string::npos) << shell << " " << command.name;
    }
    EXPECT_NE(script.find("llm_to_slm"), std::string::npos);
    for (const char* part : {"@COMMANDS@", "@DESCRIBED@", "@VALUES@", "@METHODS@"}) {
      EXPECT_EQ(script.find(part), std::string::npos) << part << " was not replaced";
    }
  }
  EXPECT_EQ(completion_script("fish", commands()), "");
}

TEST(Completion, SummariesCanStandInQuotes) {
  for (const Command& command : commands()) {
    EXPECT_EQ(std::string(command.summary).find_first_of("':"), std::string::npos) << command.name;
  }
}

}  // namespace
}  // namespace tandem::cli
