#include "server/edge/peer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstdint>

namespace tandem {
namespace {

TEST(Peer, NamesAsGrpcHasThem) {
  sockaddr_storage name = {};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(name);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(7);
  ASSERT_EQ(inet_pton(AF_INET6, "2001:db8:0:1:2::3", &v6.sin6_addr), 1);
  EXPECT_EQ(peer_of(name), "ipv6:%5B2001:db8:0:1:2::3%5D:7");
  EXPECT_EQ(host_of(name), "2001:db8:0:1::/64");
  ASSERT_EQ(inet_pton(AF_INET6, "::ffff:10.0.0.7", &v6.sin6_addr), 1);
  EXPECT_EQ(peer_of(name), "ipv4:10.0.0.7:7");
  EXPECT_EQ(host_of(name), "10.0.0.7");
}

TEST(Peer, HostsOfNames) {
  EXPECT_EQ(host_of("ipv4:10.0.0.7:41234"), "10.0.0.7");
  EXPECT_EQ(host_of("ipv6:%5B2001:db8:0:1:2::3%5D:7"), "2001:db8:0:1::/64");
  EXPECT_EQ(host_of("ipv6:%5Bfe80::1%25eth0%5D:7"), "fe80::/64");
  EXPECT_EQ(host_of("unix:/tmp/x"), "");
  EXPECT_EQ(host_of(""), "");
}

TEST(Peer, LocalNames) {
  for (const char* local :
       {"localhost", "localhost:80", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:80"}) {
    EXPECT_TRUE(is_local_name(local)) << local;
  }
  for (const char* other : {"", ":80", "example.com", "localhost.example", "127.evil.example:80",
                            "10.0.0.1", "[::2]:80", "evil[::1]"}) {
    EXPECT_FALSE(is_local_name(other)) << other;
  }
}

TEST(Peer, OneHostLeavesAQuarterToOthers) {
  EXPECT_EQ(host_share(128), 96);
  EXPECT_EQ(host_share(4), 3);
  EXPECT_EQ(host_share(5), 4);
  // Of few, one is left; the only one belongs to the first host.
  EXPECT_EQ(host_share(3), 2);
  EXPECT_EQ(host_share(2), 1);
  EXPECT_EQ(host_share(1), 1);
  EXPECT_EQ(host_share(0), 0);
  EXPECT_EQ(host_share(uint64_t{1} << 40), 3 * (uint64_t{1} << 38));
}

}  // namespace
}  // namespace tandem
