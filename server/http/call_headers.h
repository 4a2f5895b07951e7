// The headers of an HTTP request that its call needs.
#pragma once

#include "server/edge/http_reader.h"
#include "server/grpc/call_info.h"
#include "server/http/credentials.h"

namespace tandem {

inline CallHeaders call_headers_of(const HttpMessage& head) {
  return {credentials_of(head), head.header("traceparent"), head.header("x-request-id"),
          gateway_headers([&head](const char* name) { return head.header(name); })};
}

}  // namespace tandem
