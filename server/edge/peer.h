// Names of peers and hosts.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// The client's end of an HTTP connection.
struct HttpPeer {
  std::string address;           // in gRPC's notation, as peer_of() gives it; "unix:"
  std::string certificate_name;  // in its verified certificate; empty: it has none
};

// In gRPC's notation: "ipv4:10.0.0.7:41234", "ipv6:%5B2001:db8::1%5D:41234"; an IPv4-mapped address
// is IPv4. Empty for unix sockets.
std::string peer_of(const sockaddr_storage& address);
// The part that counts as one host: "10.0.0.7", "2001:db8::/64".
std::string host_of(const sockaddr_storage& address);
// The host of a peer in gRPC's notation. Empty for unix sockets.
std::string host_of(absl::string_view peer);

// Whether a Host header names this machine, with or without a port. Protects against DNS rebinding:
// a page's own host name may resolve to this machine, but a browser sends that name in Host.
bool is_local_name(absl::string_view host);

// The share of `total` that one host may use: three quarters, and at least one less than a total of
// two or more.
template <class Number>
constexpr Number host_share(Number total) {
  const Number others = total < 4 ? 1 : total / 4;
  return total > 1 ? total - others : total;
}

}  // namespace tandem
