#include "engine/backend/torch/batch_runner.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/answer_cache.h"
#include "engine/backend/torch/caught.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status behind_a_shortage() {
  return absl::ResourceExhaustedError("follows a batch that ran out of memory");
}

}  // namespace

BatchRunner::BatchRunner(std::string name, const DeviceQueue* queue, TorchShared& shared,
                         const DeviceModels& models, const Worker::Around& around)
    : name_(std::move(name)),
      queue_(queue),
      shared_(shared),
      models_(models),
      mover_(queue),
      thread_(1, around, "a device queue") {}

void BatchRunner::launch(const Batch& batch, Backend::Done done) {
  thread_.post([this, &batch, done = std::move(done)]() mutable { begin(batch, std::move(done)); });
}

void BatchRunner::run(const std::function<void()>& f) {
  std::promise<void> ended;
  thread_.post([&] {
    f();
    ended.set_value();
  });
  ended.get_future().wait();
}

// A batch that runs on the queue as a whole, answers included, stays in flight while the jobs
// already posted begin. A batch that continues it is thus launched before the host has read its
// results: in a chain of drafts the host waits for the first when the device has the last.
void BatchRunner::begin(const Batch& batch, Backend::Done done) {
  const auto start = std::chrono::steady_clock::now();
  const bool drains = !batch.moves.empty() || !batch.forget.empty() ||
                      (batch.behind && out_of_memory_) ||
                      in_flight_.size() == AnswerCache::kMostBatches;
  if (drains) finish_up_to(begun_);
  BatchResult result;
  try {
    absl::StatusOr<Executor*> executor = prepare(batch);
    result.status = executor.status();
    if (executor.ok() && *executor != nullptr) {
      if ((*executor)->start(batch)) {
        out_of_memory_ = false;
        in_flight_.push_back({&batch, *executor, std::move(done), start, ++begun_});
        thread_.post([this, number = begun_] { finish_up_to(number); });
        return;
      }
      finish_up_to(begun_);  // may set out_of_memory_
      if (batch.behind && out_of_memory_) {
        result.status = behind_a_shortage();
      } else {
        (*executor)->run(batch, result.works);
      }
    }
  } catch (...) {
    result.status = caught(name_);
  }
  finish_up_to(begun_);
  result = ended(batch, std::move(result), start);
  out_of_memory_ = absl::IsResourceExhausted(result.status);
  done(std::move(result));
}

void BatchRunner::finish_up_to(int64_t number) {
  while (!in_flight_.empty() && in_flight_.front().number <= number) finish_oldest();
}

void BatchRunner::finish_oldest() {
  InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  BatchResult result;
  try {
    oldest.executor->finish(*oldest.batch, result.works);
  } catch (...) {
    result.status = caught(name_);
  }
  if (out_of_memory_ && oldest.batch->behind && result.status.ok()) {
    result.status = behind_a_shortage();
  }
  result = ended(*oldest.batch, std::move(result), oldest.start);
  out_of_memory_ = absl::IsResourceExhausted(result.status);
  oldest.done(std::move(result));
}

BatchResult BatchRunner::ended(const Batch& batch, BatchResult result,
                               std::chrono::steady_clock::time_point start) {
  if (!result.status.ok()) {
    result.status = wait_after(std::move(result.status));
    result.works.clear();
    result.works.resize(batch.works.size());
    for (WorkResult& w : result.works) w.status = result.status;
  }
  const auto end = std::chrono::steady_clock::now();
  result.busy = end - std::max(start, last_end_);
  last_end_ = end;
  return result;
}

// Work queued before the failure may still run: its memory must not be reused, and moved rows must
// not be read, before it is done. A device that cannot even wait is lost.
absl::Status BatchRunner::wait_after(absl::Status failure) const {
  if (queue_ == nullptr) return failure;
  try {
    queue_->finish();
  } catch (...) {
    const absl::Status after = caught(name_);
    if (!absl::IsResourceExhausted(after)) return absl::UnavailableError(after.message());
  }
  return failure;
}

absl::StatusOr<Executor*> BatchRunner::prepare(const Batch& batch) {
  shared_.values().forget(batch.forget);
  TANDEM_RETURN_IF_ERROR(mover_.put(batch.moves, [this](ModelId id) { return shared_.pool(id); }));
  if (batch.behind && out_of_memory_) return behind_a_shortage();
  if (batch.works.empty()) {
    if (queue_ != nullptr && !batch.moves.empty()) queue_->finish();
    return nullptr;
  }
  const ModelId id = batch.works.front().model;
  const DeviceModel* const model = models_.find(id);
  if (model == nullptr || model->executor == nullptr) {
    return absl::InternalError(absl::StrCat("model ", id.value, " is not on ", name_));
  }
  for (const Work& w : batch.works) {
    if (w.model != id) return absl::InternalError("a batch with works of several models");
  }
  return model->executor.get();
}

}  // namespace tandem
