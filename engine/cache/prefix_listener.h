// Observes the pages of prefix caches that any request may share: those whose content depends only
// on their tokens (PrefixRoot{}).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/base/ids.h"

namespace tandem {

struct StoredPage {
  uint64_t id = 0;      // differs from that of all other pages, instances and times; not 0
  uint64_t before = 0;  // its predecessor's id; 0: it is the first of a prompt
  std::span<const Token> tokens;
};

class PrefixListener {
 public:
  virtual ~PrefixListener() = default;
  // Called on the loop thread, and before it starts, so they must not block. `model`: the name in
  // the configuration.
  virtual void on_stored(const std::string& model, const StoredPage& page) = 0;
  virtual void on_removed(const std::string& model, uint64_t id) = 0;
};

}  // namespace tandem
