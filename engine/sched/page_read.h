// A read of indexed pages into the host's memory, while the loop runs.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/cache/prefix_index.h"

namespace tandem {

struct PageRead {
  ModelId model;
  std::vector<PrefixIndex::Name> pages;
  // [pages, ModelShape::page_bytes], until `done` is called.
  std::byte* to = nullptr;
  // Called once, on the loop thread. For each page: whether it was still indexed, so that its bytes
  // are there. UNAVAILABLE: the device is lost; other errors are those of a batch.
  std::function<void(absl::StatusOr<std::vector<bool>>)> done;
};

}  // namespace tandem
