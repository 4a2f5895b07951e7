// Names of those who connect.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// As gRPC names it: "ipv4:10.0.0.7:41234", "ipv6:%5B2001:db8::1%5D:41234"; IPv4 in IPv6 is IPv4.
// Empty for others.
std::string peer_of(const sockaddr_storage& address);
// The part that counts as one client: "10.0.0.7", "2001:db8::/64".
std::string host_of(const sockaddr_storage& address);
// Of a peer's name as gRPC has it. Empty for unix sockets, whose peers have none.
std::string host_of(absl::string_view peer);

// Of `total` places, so many may be one host's: a quarter is left to others, and at least one where
// there are two.
template <class Number>
constexpr Number host_share(Number total) {
  const Number others = total < 4 ? 1 : total / 4;
  return total > 1 ? total - others : total;
}

}  // namespace tandem
