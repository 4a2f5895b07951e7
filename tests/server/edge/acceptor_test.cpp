#include "server/edge/acceptor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "server/edge/peer.h"
#include "tests/server/edge/sockets.h"

namespace tandem {
namespace {

using test::connect_to;
using test::put;
using test::read_all;

// Holds what is handed over, as gRPC would.
class Holder {
 public:
  explicit Holder(Acceptor::Bounds bounds)
      : acceptor(*listen_on("listen", "127.0.0.1:0"), bounds, std::chrono::seconds(20)) {
    acceptor.start([this](int, int fd) {
      {
        const std::lock_guard lock(mutex_);
        held_.emplace_back(fd);
      }
      more_.notify_all();
    });
  }
  ~Holder() { acceptor.stop(); }

  void wait_for(size_t connections) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        more_.wait_for(lock, std::chrono::minutes(1), [&] { return held_.size() >= connections; }));
  }
  // As many bytes as recv() gives of the oldest.
  ssize_t read_first() {
    const std::lock_guard lock(mutex_);
    char bytes[64];
    return recv(held_[0].get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  }
  bool first_is_readable() {
    const std::lock_guard lock(mutex_);
    return test::readable(held_[0]);
  }
  void close_one() {
    const std::lock_guard lock(mutex_);
    held_.erase(held_.begin());
  }
  size_t held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }

  Acceptor acceptor;

 private:
  std::mutex mutex_;
  std::condition_variable more_;
  std::vector<Fd> held_;
};

TEST(Acceptor, BoundsConnectionsAndCountsThoseThatClose) {
  Holder holder({/*connections=*/2, /*per_host=*/100});
  const Fd first = connect_to(holder.acceptor.address());
  const Fd second = connect_to(holder.acceptor.address());
  holder.wait_for(2);
  const Fd third = connect_to(holder.acceptor.address());
  EXPECT_EQ(read_all(third), "");  // closed
  EXPECT_EQ(holder.acceptor.refused(), 1);
  holder.close_one();
  // A place is free again, as soon as that is noticed.
  std::vector<Fd> more;
  while (holder.held() < 2) {
    more.push_back(connect_to(holder.acceptor.address()));
    ASSERT_LT(more.size(), 100'000U);
  }
  EXPECT_LE(holder.acceptor.open(), 2U);
}

TEST(Acceptor, BoundsConnectionsOfOneHost) {
  Holder holder({/*connections=*/100, /*per_host=*/1});
  const Fd first = connect_to(holder.acceptor.address());
  holder.wait_for(1);
  EXPECT_EQ(read_all(connect_to(holder.acceptor.address())), "");
  EXPECT_EQ(holder.held(), 1U);
}

TEST(Acceptor, ClosesTheConnectionOfAPeer) {
  Holder holder({100, 100});
  const Fd one = connect_to(holder.acceptor.address());
  const Fd other = connect_to(holder.acceptor.address());
  holder.wait_for(2);
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  getsockname(one.get(), reinterpret_cast<sockaddr*>(&name), &length);
  holder.acceptor.close_connection(peer_of(name));
  holder.acceptor.close_connection("ipv4:127.0.0.1:1");  // an unknown peer
  EXPECT_EQ(read_all(one), "");
  pollfd polled = {other.get(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0) << "still open";
}

// What a peer sent before it was found to send too much is not served.
TEST(Acceptor, DropsWhatAClosedPeerHasSent) {
  Holder holder({100, 100});
  const Fd one = connect_to(holder.acceptor.address());
  holder.wait_for(1);
  ASSERT_TRUE(put(one, "calls"));
  ASSERT_TRUE(holder.first_is_readable());
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  getsockname(one.get(), reinterpret_cast<sockaddr*>(&name), &length);
  holder.acceptor.close_connection(peer_of(name));
  EXPECT_LE(holder.read_first(), 0);
  EXPECT_EQ(read_all(one), "");
}

TEST(Acceptor, SendsIdlePeersAway) {
  Holder holder({100, 100});
  const Fd idle = connect_to(holder.acceptor.address());
  const Fd busy = connect_to(holder.acceptor.address());
  holder.wait_for(2);
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  getsockname(busy.get(), reinterpret_cast<sockaddr*>(&name), &length);
  holder.acceptor.close_idle([&](const std::string& peer) { return peer != peer_of(name); });
  EXPECT_EQ(read_all(idle), "");
  pollfd polled = {busy.get(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0) << "still open";
}

// When no descriptor is left connections are closed, and when there are some again they are taken.
TEST(Acceptor, OutlivesALackOfFiles) {
  Holder holder({10'000, 10'000});
  const Fd before = connect_to(holder.acceptor.address());
  holder.wait_for(1);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<Fd> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(test::unconnected());
  // The highest descriptor is the limit: none is left.
  rlimit none = limit;
  none.rlim_cur = static_cast<rlim_t>(clients.back().get()) + 1;
  std::vector<Fd> holes;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (;;) {
    Fd hole(dup(clients[0].get()));
    if (!hole.valid()) break;
    holes.push_back(std::move(hole));
  }
  // Sanitizers need descriptors to say what failed, so nothing is expected before there are some.
  int connected = 0;
  std::vector<std::string> heard;
  for (const Fd& fd : clients) {
    connected += connect_to(holder.acceptor.address(), fd) ? 1 : 0;
    heard.push_back(read_all(fd));
  }
  while (holder.acceptor.refused() < 20) std::this_thread::yield();  // counted when it is closed
  holes.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(connected, 20);
  EXPECT_EQ(heard, std::vector<std::string>(20));
  EXPECT_EQ(holder.acceptor.refused(), 20);
  const Fd after = connect_to(holder.acceptor.address());
  holder.wait_for(2);
}

}  // namespace
}  // namespace tandem
