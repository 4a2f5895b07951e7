// What a call of Engine::save_prefixes() has written.
#pragma once

#include <cstdint>

namespace tandem {

struct SavedPrefixes {
  int files = 0;
  int64_t pages = 0;
  int64_t bytes = 0;
};

}  // namespace tandem
