// A client's end of a connection, for tests: blocking, with a limit on every wait.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>

#include "absl/strings/numbers.h"
#include "server/edge/socket.h"

namespace tandem::test {

inline Fd unconnected() { return Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

// Connects `fd` to "127.0.0.1:PORT".
inline bool connect_to(const std::string& address, const Fd& fd) {
  int port = 0;
  (void)absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0;
}

// Connected to "127.0.0.1:PORT", from `source`.
inline Fd connect_to(const std::string& address, const std::string& source = "127.0.0.1") {
  Fd fd = unconnected();
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  inet_pton(AF_INET, source.c_str(), &own.sin_addr);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0 ||
      !connect_to(address, fd)) {
    fd.reset();
  }
  return fd;
}

inline bool put(const Fd& fd, const std::string& bytes) {
  return send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

// Whether something (or the end) can be read within a minute.
inline bool readable(const Fd& fd) {
  pollfd polled = {fd.get(), POLLIN, 0};
  return poll(&polled, 1, 60'000) == 1;
}

// All data until the other side closes.
inline std::string read_all(const Fd& fd) {
  std::string out;
  char bytes[4096];
  while (readable(fd)) {
    const ssize_t n = recv(fd.get(), bytes, sizeof(bytes), 0);
    if (n <= 0) break;
    out.append(bytes, static_cast<size_t>(n));
  }
  return out;
}

}  // namespace tandem::test
