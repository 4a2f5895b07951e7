#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/edge/log_queue.h"
#include "server/edge/log_value.h"

namespace tandem {
namespace {

TEST(LogValue, NothingThatAClientSentHidesOrForges) {
  EXPECT_EQ(log_text("plain", false), "plain");
  EXPECT_EQ(log_text("plain", true), "\"plain...\"");
  EXPECT_EQ(log_text("", false), "\"\"");
  EXPECT_EQ(log_text("a=b", false), "\"a=b\"");
  EXPECT_EQ(log_text("l\nevent=x", false), "\"l\\nevent=x\"");
  EXPECT_EQ(log_quoted("\"\\\t\x7f", false), R"("\"\\\u0009\u007f")");
  EXPECT_EQ(log_quoted("a\u2028b\u202Ec\u2066d\uFEFF", false), R"("a\u2028b\u202ec\u2066d\ufeff")");
  EXPECT_EQ(log_quoted("na\u00efve \u20ac \U0001F600", false), "\"na\u00efve \u20ac \U0001F600\"");
}

TEST(LogValue, IllFormedTextBecomesReplacements) {
  const char* const kReplaced = "\"\uFFFD\"";
  for (const char* bad : {"\xff", "\xc3", "\x80", "\xc0"})
    EXPECT_EQ(log_quoted(bad, false), kReplaced);
  EXPECT_EQ(log_quoted("\xed\xa0\x80", false), "\"\uFFFD\uFFFD\uFFFD\"");  // a surrogate
  EXPECT_EQ(log_quoted("\xf0\x80\x80\x80x", false), "\"\uFFFD\uFFFD\uFFFD\uFFFDx\"");
}

TEST(LogValue, NumbersOfJson) {
  for (const char* yes : {"0", "-1", "0.25", "1e+06"}) EXPECT_TRUE(is_json_number(yes)) << yes;
  for (const char* no : {"", "nan", "inf", "-inf", "-"}) EXPECT_FALSE(is_json_number(no)) << no;
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read = Fd(ends[0]);
    write = Fd(ends[1]);
    fcntl(write.get(), F_SETPIPE_SZ, 16384);
  }
  std::string all() {
    std::string out;
    char bytes[4096];
    ssize_t n = 0;
    while ((n = ::read(read.get(), bytes, sizeof(bytes))) > 0) {
      out.append(bytes, static_cast<size_t>(n));
    }
    return out;
  }
  Fd read, write;
};

std::string note(int64_t dropped) { return absl::StrCat("dropped ", dropped); }

TEST(LogQueue, WritesInOrder) {
  Pipe pipe;
  LogQueue queue(pipe.write.get(), 1 << 20, note);
  for (int i = 0; i < 3; ++i) queue.write(absl::StrCat("line ", i));
  EXPECT_TRUE(queue.flush(std::chrono::seconds(60)));
  pipe.write.reset();
  EXPECT_EQ(pipe.all(), "line 0\nline 1\nline 2\n");
  EXPECT_EQ(queue.dropped(), 0);
}

// A pipe without a reader loses lines; when it is read again the log reports how many.
TEST(LogQueue, LoggingNeverWaitsForTheReader) {
  Pipe pipe;
  const std::string line(1000, 'x');
  int64_t lines = 0;
  std::string read;
  {
    LogQueue queue(pipe.write.get(), 100'000, note);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) queue.write(line);
      });
    }
    for (std::thread& thread : threads) thread.join();
    lines = 2000 - queue.dropped();
    EXPECT_GT(queue.dropped(), 1800);
    EXPECT_LT(lines, 200);
    EXPECT_FALSE(queue.flush(std::chrono::milliseconds(1)));
    std::thread reader([&] { read = pipe.all(); });
    EXPECT_TRUE(queue.flush(std::chrono::seconds(60)));
    pipe.write.reset();  // the reader finds the end
    reader.join();
    EXPECT_EQ(queue.dropped(), 2000 - lines);
  }
  EXPECT_EQ(std::count(read.begin(), read.end(), 'x'), lines * 1000);
  int64_t noted = 0;
  for (size_t at = read.find("dropped "); at != std::string::npos;
       at = read.find("dropped ", at + 1)) {
    noted += std::stoll(read.substr(at + 8));
  }
  EXPECT_EQ(noted, 2000 - lines);
}

// A flood of one client's lines leaves space for those of others, and for warnings.
TEST(LogQueue, DropsLinesFairly) {
  Pipe pipe;
  std::string read;
  LogQueue queue(pipe.write.get(), 400'000, note);
  for (int i = 0; i < 1000; ++i) queue.write(std::string(1000, 'f'), {"flood"});
  const int64_t of_flood = queue.dropped();
  EXPECT_GE(of_flood, 880);  // a quarter, and what the pipe holds, were queued
  for (int i = 0; i < 50; ++i) queue.write(std::string(1000, 'o'), {"other"});
  EXPECT_EQ(queue.dropped(), of_flood);
  for (int client = 0; client < 50; ++client) {
    for (int i = 0; i < 50; ++i) {
      queue.write(std::string(1000, 'm'), {absl::StrCat("many", client)});
    }
  }
  const int64_t of_all = queue.dropped();
  EXPECT_GT(of_all, of_flood);
  for (int i = 0; i < 90; ++i) queue.write(std::string(1000, 'w'), {"flood", /*important=*/true});
  EXPECT_EQ(queue.dropped(), of_all);
  for (int i = 0; i < 1000; ++i) queue.write(std::string(1000, 'w'), {"", /*important=*/true});
  EXPECT_GT(queue.dropped(), of_all);  // the queue is bounded for warnings too

  std::thread reader([&] { read = pipe.all(); });
  EXPECT_TRUE(queue.flush(std::chrono::seconds(60)));
  queue.write("flood again", {"flood"});
  EXPECT_TRUE(queue.flush(std::chrono::seconds(60)));
  pipe.write.reset();
  reader.join();
  EXPECT_EQ(std::count(read.begin(), read.end(), 'o') / 1000, 50);
  EXPECT_NE(read.find("flood again"), std::string::npos);
}

TEST(LogQueue, EndsWithoutAReader) {
  Pipe pipe;
  LogQueue queue(pipe.write.get(), 1 << 20, note);
  for (int i = 0; i < 100; ++i) queue.write(std::string(1000, 'x'));
}

TEST(LogQueue, AClosedLogIsNoTrouble) {
  LogQueue queue(-1, 1 << 20, note);
  const Fd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  LogQueue to_full(full.get(), 1 << 20, note);
  for (int i = 0; i < 3; ++i) to_full.write("line");
  EXPECT_TRUE(to_full.flush(std::chrono::seconds(60)));
  EXPECT_EQ(to_full.dropped(), 3);
}

}  // namespace
}  // namespace tandem
