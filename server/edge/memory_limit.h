// The memory that this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

// The least of the machine's memory and the limits of the process's control groups (version 1 and
// 2), in bytes. 0: unknown. `root`: the folder that holds proc and sys, for tests.
int64_t available_memory(const std::string& root = "");

}  // namespace tandem
