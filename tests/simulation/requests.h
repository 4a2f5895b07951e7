// A plan's requests as the loop receives them, and their expected answers.
#pragma once

#include <vector>

#include "engine/sched/spec.h"
#include "tests/simulation/plan.h"

namespace tandem::simulation {

// A request with n choices is n sequences. The ids of first choices are kStride apart.
inline constexpr int kStride = 16;
inline RequestId id_of(size_t request, int choice = 0) {
  return static_cast<RequestId>(kStride) * (request + 1) + static_cast<RequestId>(choice);
}
inline size_t request_of(RequestId id) { return id / kStride - 1; }
inline int choice_of(RequestId id) { return static_cast<int>(id % kStride); }

// All choices of a request, without listener, series and submission time.
std::vector<SequenceSpec> specs_of(const Plan& plan, size_t index);

// The expected answer, from the references without caches and batches.
std::vector<Token> answer_to(const Plan& plan, size_t index, int choice);

}  // namespace tandem::simulation
