#include "server/edge/tls_io.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/edge/peer.h"

namespace tandem {
namespace {

constexpr int kHandshakesPerRound = 4;
// Measured with OpenSSL 3.0: 82 KiB in a handshake with certificates of both sides, 22 KiB after it
// and 60 KiB with a partly read and a partly written record. A client may announce a message of 128
// KiB, which OpenSSL allocates at once.
constexpr size_t kHandshakeBytes = 224 << 10;
constexpr size_t kOpenBytes = 64 << 10;
constexpr size_t kMaxDiscarded = 64 << 10;

constexpr char kPlainText[] = "This port needs HTTPS.\n";

std::string plain_refusal() {
  return std::string(
             "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
             "Content-Length: ") +
         std::to_string(sizeof(kPlainText) - 1) + "\r\n\r\n" + kPlainText;
}

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// A connection.
struct Stream {
  enum class State { kHandshake, kOpen, kRefused };

  HttpIo* io;
  int socket;
  void* tag;         // the server's
  std::string host;  // whose turn its handshake takes
  uint32_t wanted;   // events that the server waits for
  uint32_t watched;  // events that `io` waits for
  State state = State::kHandshake;
  bool ended = false;    // the client has closed its side
  bool failed = false;   // nothing may be written any more
  bool waiting = false;  // for its turn
  bool writing = false;  // the handshake waits to write
  size_t discarded = 0;
  std::unique_ptr<SSL, FreeSsl> ssl;
};

// --- OpenSSL's access to the socket

Stream& stream_of(BIO* bio) { return *static_cast<Stream*>(BIO_get_data(bio)); }

int read_socket(BIO* bio, char* to, int size) {
  BIO_clear_retry_flags(bio);
  Stream& s = stream_of(bio);
  const ssize_t n = s.io->receive(s.socket, to, static_cast<size_t>(size));
  if (n == HttpIo::kLater) BIO_set_retry_read(bio);
  if (n == 0) s.ended = true;
  return n < 0 ? -1 : static_cast<int>(n);
}

int write_socket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const Stream& s = stream_of(bio);
  const ssize_t n = s.io->send(s.socket, {bytes, static_cast<size_t>(size)});
  if (n == HttpIo::kLater) BIO_set_retry_write(bio);
  return n < 0 ? -1 : static_cast<int>(n);
}

long control_socket(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_EOF) return stream_of(bio).ended ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int make_bio(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

BIO_METHOD* socket_method() {
  static BIO_METHOD* const kMethod = [] {
    BIO_METHOD* const made =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tandem socket");
    BIO_meth_set_read(made, read_socket);
    BIO_meth_set_write(made, write_socket);
    BIO_meth_set_ctrl(made, control_socket);
    BIO_meth_set_create(made, make_bio);
    return made;
  }();
  return kMethod;
}

// --- Names

std::string text_of(const ASN1_STRING* from) {
  unsigned char* text = nullptr;
  const int size = ASN1_STRING_to_UTF8(&text, from);
  if (size < 0) return "";
  std::string out(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
  OPENSSL_free(text);
  return out;
}

std::string address_of(const ASN1_OCTET_STRING* from) {
  const int family = ASN1_STRING_length(from) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(from) != 16) return "";
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, ASN1_STRING_get0_data(from), text, sizeof(text));
  return text;
}

std::string first_alternative_name(const X509* certificate) {
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::string out;
  for (int i = 0; i < sk_GENERAL_NAME_num(names) && out.empty(); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_DNS || name->type == GEN_URI || name->type == GEN_EMAIL) {
      out = text_of(name->d.ia5);
    } else if (name->type == GEN_IPADD) {
      out = address_of(name->d.iPAddress);
    }
  }
  GENERAL_NAMES_free(names);
  return out;
}

// The common name, or else the first alternative name. As for gRPC (server/auth.cpp).
std::string name_of(const X509* certificate) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  const std::string common =
      at < 0 ? "" : text_of(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  return common.empty() ? first_alternative_name(certificate) : common;
}

class TlsIo final : public HttpIo {
 public:
  TlsIo(std::unique_ptr<HttpIo> io, std::shared_ptr<const TlsContext> context)
      : io_(std::move(io)), context_(std::move(context)) {}

  TimePoint now() const override { return io_->now(); }
  std::string peer(int socket) const override { return io_->peer(socket); }
  void wake() override { io_->wake(); }

  std::string certificate_name(int socket) const override {
    const X509* const certificate = SSL_get0_peer_certificate(streams_.at(socket)->ssl.get());
    return certificate == nullptr ? "" : name_of(certificate);
  }

  // Also of a connection that is not added yet.
  size_t memory(int socket) const override {
    const auto found = streams_.find(socket);
    const bool open = found != streams_.end() && found->second->state == Stream::State::kOpen;
    return open ? kOpenBytes : kHandshakeBytes;
  }

  bool add(int socket, uint32_t events, void* tag) override {
    auto made = std::make_unique<Stream>(Stream{.io = io_.get(),
                                                .socket = socket,
                                                .tag = tag,
                                                .host = host_of(io_->peer(socket)),
                                                .wanted = events,
                                                .watched = kInput | kPeerClosed});
    Stream& s = *made;
    s.ssl.reset(SSL_new(context_->get().get()));
    BIO* const bio = s.ssl == nullptr ? nullptr : BIO_new(socket_method());
    if (bio == nullptr) return false;
    BIO_set_data(bio, &s);
    SSL_set_bio(s.ssl.get(), bio, bio);  // owns it
    SSL_set_accept_state(s.ssl.get());
    streams_[socket] = std::move(made);
    return io_->add(socket, s.watched, &s);
  }

  bool watch(int socket, uint32_t events, void* tag) override {
    Stream& s = *streams_.at(socket);
    s.wanted = events;
    s.tag = tag;
    return watch(s);
  }

  ssize_t receive(int socket, char* to, size_t size) override {
    Stream& s = *streams_.at(socket);
    if (s.state != Stream::State::kOpen) return kLater;
    ERR_clear_error();
    const int n = SSL_read(s.ssl.get(), to, int_of(size));
    if (SSL_pending(s.ssl.get()) > 0) {
      unread_.insert(&s);
    } else {
      unread_.erase(&s);
    }
    if (n > 0) return n;
    const int error = SSL_get_error(s.ssl.get(), n);
    return error == SSL_ERROR_ZERO_RETURN ? 0 : later(s, error, SSL_ERROR_WANT_READ);
  }

  ssize_t send(int socket, absl::string_view bytes) override {
    Stream& s = *streams_.at(socket);
    if (s.state != Stream::State::kOpen) return kLater;
    ERR_clear_error();
    const int n = SSL_write(s.ssl.get(), bytes.data(), int_of(bytes.size()));
    if (n > 0) return n;
    return later(s, SSL_get_error(s.ssl.get(), n), SSL_ERROR_WANT_WRITE);
  }

  // With close_notify the client knows that nothing was cut off.
  void end_output(int socket) override {
    const auto found = streams_.find(socket);
    if (found != streams_.end() && found->second->state == Stream::State::kOpen &&
        !found->second->failed) {
      ERR_clear_error();
      SSL_shutdown(found->second->ssl.get());
    }
    io_->end_output(socket);
  }

  void close(int socket) override {
    if (const auto found = streams_.find(socket); found != streams_.end()) {
      Stream* const s = found->second.get();
      unread_.erase(s);
      if (s->waiting) give_up_turn(s);
      streams_.erase(found);
    }
    io_->close(socket);
  }

  void wait(Duration limit, std::vector<Event>* events) override {
    const bool busy = !hosts_.empty() || std::any_of(unread_.begin(), unread_.end(), wants_input);
    found_.clear();
    io_->wait(busy ? Duration::zero() : limit, &found_);
    for (const Event& event : found_)
      on_event(*static_cast<Stream*>(event.tag), event.what, events);
    for (const Stream* const s : unread_) {
      if (wants_input(s)) events->push_back({s->tag, kInput});
    }
    for (int i = 0; i < kHandshakesPerRound && !hosts_.empty(); ++i) take_turn(events);
  }

 private:
  static int int_of(size_t size) {
    return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
  }
  static bool wants_input(const Stream* s) { return (s->wanted & kInput) != 0; }

  // The result of a read or write that transferred nothing. Without renegotiation, a read waits
  // only for input and a write for output. The exception is a client that lets the server answer
  // its key updates and does not read: it would be reported as readable for ever.
  static ssize_t later(Stream& s, int error, int expected) {
    s.failed = error != expected;
    return s.failed ? kBroken : kLater;
  }

  bool watch(Stream& s) {
    uint32_t events = s.wanted;
    if (s.state == Stream::State::kHandshake) {
      events = kPeerClosed | (s.writing ? kOutput : kInput);
    } else if (s.state == Stream::State::kRefused) {
      events = kInput;
    }
    if (events == s.watched) return true;
    s.watched = events;
    return io_->watch(s.socket, events, &s);
  }

  void on_event(Stream& s, uint32_t what, std::vector<Event>* events) {
    // A handshake that waits to write would never see the end of its input.
    const bool left = s.writing && (what & kPeerClosed) != 0;
    if ((what & kFailed) != 0 || s.state == Stream::State::kOpen) {
      events->push_back({s.tag, what});
    } else if (left || (s.state == Stream::State::kRefused && !discard(s))) {
      events->push_back({s.tag, kFailed});
    } else if (s.state == Stream::State::kHandshake && !std::exchange(s.waiting, true)) {
      std::deque<Stream*>& waiting = handshakes_[s.host];
      if (waiting.empty()) hosts_.push_back(s.host);
      waiting.push_back(&s);
    }
  }

  // Advances a handshake of the next host.
  void take_turn(std::vector<Event>* events) {
    std::string host = std::move(hosts_.front());
    hosts_.pop_front();
    const auto found = handshakes_.find(host);
    Stream& s = *found->second.front();
    found->second.pop_front();
    if (found->second.empty()) {
      handshakes_.erase(found);
    } else {
      hosts_.push_back(std::move(host));
    }
    s.waiting = false;
    advance(s, events);
  }

  void give_up_turn(Stream* s) {
    const auto found = handshakes_.find(s->host);
    std::erase(found->second, s);
    if (!found->second.empty()) return;
    handshakes_.erase(found);
    std::erase(hosts_, s->host);
  }

  void advance(Stream& s, std::vector<Event>* events) {
    ERR_clear_error();
    const int done = SSL_do_handshake(s.ssl.get());
    const int error = SSL_get_error(s.ssl.get(), done);
    s.writing = error == SSL_ERROR_WANT_WRITE;
    if (done == 1) {
      s.state = Stream::State::kOpen;
    } else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      if (s.ended) return events->push_back({s.tag, kFailed});
      refuse(s, ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST);
    }
    if (!watch(s)) events->push_back({s.tag, kFailed});
  }

  // OpenSSL has sent an alert.
  void refuse(Stream& s, bool plain) {
    s.state = Stream::State::kRefused;
    s.failed = true;
    if (plain) io_->send(s.socket, plain_refusal());
    io_->end_output(s.socket);
  }

  // Discards input. False: the client has left, or sends too much. If the connection were closed
  // with unread bytes, the kernel would reset it, and the client might not receive the refusal.
  bool discard(Stream& s) {
    std::array<char, 4096> piece;
    const ssize_t n = io_->receive(s.socket, piece.data(), piece.size());
    s.discarded += n > 0 ? static_cast<size_t>(n) : 0;
    return n == kLater || (n > 0 && s.discarded <= kMaxDiscarded);
  }

  const std::unique_ptr<HttpIo> io_;
  const std::shared_ptr<const TlsContext> context_;
  absl::flat_hash_map<int, std::unique_ptr<Stream>> streams_;
  absl::flat_hash_set<Stream*> unread_;  // OpenSSL holds decrypted bytes
  // Handshakes that can advance, by host; none of the queues is empty. And these hosts, in the
  // order of their turns.
  absl::flat_hash_map<std::string, std::deque<Stream*>> handshakes_;
  std::deque<std::string> hosts_;
  std::vector<Event> found_;
};

}  // namespace

std::unique_ptr<HttpIo> tls_io(std::unique_ptr<HttpIo> io,
                               std::shared_ptr<const TlsContext> context) {
  return std::make_unique<TlsIo>(std::move(io), std::move(context));
}

}  // namespace tandem
