#include "engine/sched/metrics.h"

#include <algorithm>

#include "engine/base/enum_names.h"

namespace tandem {

const std::vector<double> kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                                .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80};
const std::vector<double> kInterTokenBuckets = {.0005, .001, .002, .004, .006, .008, .01,
                                                .015,  .02,  .025, .05,  .075, .1,   .15,
                                                .2,    .3,   .4,   .5,   .75,  1,    2.5};
const std::vector<double> kRequestBuckets = {.05, .1, .3, .5, .8, 1,  1.5, 2,   2.5, 5,
                                             10,  15, 20, 30, 40, 50, 60,  120, 240, 480};
const std::vector<double> kRowsBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
const std::vector<double> kLengthBuckets = {1,   2,    5,    10,   20,    50,    100,   200,
                                            500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const std::vector<double> kTokensPerPassBuckets = {.25, .5, .75, 1, 1.25, 1.5, 1.75, 2,
                                                   2.5, 3,  3.5, 4, 5,    6,   8};
const std::vector<double> kAcceptLengthBuckets = {0, 1, 2, 3, 4, 5, 6, 8, 10, 16, 32, 64};

void Series::add_method_stats(const MethodStats& stats) {
  draft_tokens.add(stats.draft_tokens);
  for (size_t accepted = 0; accepted < stats.accept_lengths.size(); ++accepted) {
    const int64_t times = stats.accept_lengths[accepted];
    if (times == 0) continue;
    drafts.add(times);
    accepted_tokens.add(static_cast<int64_t>(accepted) * times);
    for (size_t i = 0; i < std::min(accepted, kDraftPositions); ++i) accepted_at[i].add(times);
    accept_length.observe(static_cast<double>(accepted), times);
  }
  for (size_t i = 0; i < own.size(); ++i) own[i].add(stats.own[i]);
  for (size_t i = 0; i < stats.tokens_by_index.size(); ++i) {
    proposed_by[std::min(i, kProposers - 1)].add(stats.tokens_by_index[i]);
  }
}

namespace {

constexpr auto kRejectReasonNames = enum_names<RejectReason>({
    {RejectReason::kQueueFull, "queue_full"},
    {RejectReason::kQueueTokens, "queue_tokens"},
    {RejectReason::kQueueBytes, "queue_bytes"},
    {RejectReason::kQueueClient, "queue_client"},
    {RejectReason::kQueueTime, "queue_time"},
    {RejectReason::kTooLarge, "too_large"},
    {RejectReason::kInvalid, "invalid"},
    {RejectReason::kDraining, "draining"},
    {RejectReason::kDeviceLost, "device_lost"},
    {RejectReason::kPriority, "priority"},
    {RejectReason::kQuotaOpen, "quota_open_requests"},
    {RejectReason::kQuotaRequests, "quota_requests"},
    {RejectReason::kQuotaTokens, "quota_tokens"},
});

}  // namespace

const char* reject_reason_name(RejectReason r) { return kRejectReasonNames[r].data(); }

}  // namespace tandem
