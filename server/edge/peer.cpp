#include "server/edge/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

bool is_mapped(const in6_addr& address) { return IN6_IS_ADDR_V4MAPPED(&address) != 0; }

std::string text_of(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

}  // namespace

std::string peer_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return absl::StrCat("ipv4:", text_of(AF_INET, &v4.sin_addr), ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (is_mapped(v6.sin6_addr)) {
    return absl::StrCat("ipv4:", text_of(AF_INET, v6.sin6_addr.s6_addr + 12), ":",
                        ntohs(v6.sin6_port));
  }
  return absl::StrCat("ipv6:%5B", text_of(AF_INET6, &v6.sin6_addr), "%5D:", ntohs(v6.sin6_port));
}

std::string host_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return text_of(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.ss_family != AF_INET6) return "";
  in6_addr network = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (is_mapped(network)) return text_of(AF_INET, network.s6_addr + 12);
  std::memset(network.s6_addr + 8, 0, 8);
  return absl::StrCat(text_of(AF_INET6, &network), "/64");
}

std::string host_of(absl::string_view peer) {
  const absl::string_view address = peer.substr(0, peer.rfind(':'));
  if (absl::StartsWith(peer, "ipv4:")) return std::string(absl::StripPrefix(address, "ipv4:"));
  if (!absl::StartsWith(peer, "ipv6:")) return "";
  // "%5B", the address, perhaps "%25" and its zone, "%5D".
  std::string text(absl::StripPrefix(address, "ipv6:%5B"));
  sockaddr_storage name = {};
  name.ss_family = AF_INET6;
  auto& v6 = reinterpret_cast<sockaddr_in6&>(name);
  if (inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &v6.sin6_addr) != 1) return text;
  return host_of(name);
}

bool is_local_name(absl::string_view host) {
  host = host.substr(0, host.rfind(']') == host.npos ? host.rfind(':') : host.rfind(']') + 1);
  const bool digits = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "[::1]" || (digits && absl::StartsWith(host, "127."));
}

}  // namespace tandem
