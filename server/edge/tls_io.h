// TLS for HttpServer: an HttpIo that encrypts the connections of another one. Nothing blocks.
//
// A handshake is work for a client that is not authenticated. Each round of wait() advances only a
// few handshakes, in turns by host, so established connections and other hosts wait for no flood of
// them. The server's deadline for a request's head bounds them in time, and memory() in number.
//
// A connection that fails its handshake gets an alert, or, if it speaks plain HTTP, a 400 in plain
// text. The end of the output follows at once, and input is discarded until the client closes.
#pragma once

#include <memory>

#include "server/edge/http_io.h"
#include "server/edge/tls_context.h"

namespace tandem {

// `context` is used by connections that come later.
std::unique_ptr<HttpIo> tls_io(std::unique_ptr<HttpIo> io,
                               std::shared_ptr<const TlsContext> context);

}  // namespace tandem
