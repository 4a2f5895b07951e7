// Where tests find their data: the sources, or what TANDEM_SOURCE in the environment names, for
// programs that run on another machine than they were built on.
#pragma once

#include <cstdlib>
#include <string>

namespace tandem {

inline std::string source_dir() {
  const char* const named = std::getenv("TANDEM_SOURCE");
  return named != nullptr ? named : TANDEM_SOURCE_DIR;
}

}  // namespace tandem
