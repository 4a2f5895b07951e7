// What a server has learned about its models and deployments, in a file: the times of batches, and
// how often drafts are accepted. The next server starts with it.
//
//   tandem-statistics 1
//   batches MODEL DEVICE FINGERPRINT: NUMBER NUMBER ...
//   drafts DEPLOYMENT FINGERPRINT: NUMBER ...
//   checksum HEX
//
// Fingerprints are those of the models, their devices' settings and the CPU. Numbers of anything
// else are ignored, and are lost when the file is written.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/config.h"
#include "engine/host/deployment.h"
#include "engine/host/models/loaded_model.h"
#include "engine/sched/loop.h"

namespace tandem {

using SavedStatistics = std::map<std::string, std::vector<double>>;

inline constexpr size_t kMostStatisticsBytes = size_t{16} << 20;

// NOT_FOUND: there is no such file. DATA_LOSS: it is not as write_statistics() left it.
absl::StatusOr<SavedStatistics> read_statistics(const std::string& path);
// Replaces the file at once: readers see the old one or the new one.
absl::Status write_statistics(const std::string& path, const SavedStatistics& statistics);

// Of these models and deployments. REQUIRES: the loop does not run.
SavedStatistics collect_statistics(const EngineConfig& config,
                                   const std::vector<LoadedModel*>& models,
                                   const DeploymentTable& deployments, Loop* loop);
// Returns how many entries of `saved` were theirs.
size_t restore_statistics(const SavedStatistics& saved, const EngineConfig& config,
                          const std::vector<LoadedModel*>& models,
                          const DeploymentTable& deployments, Loop* loop);

}  // namespace tandem
