#include "client/cli/load_run.h"

#include <algorithm>
#include <atomic>
#include <semaphore>
#include <thread>

#include "engine/base/mutex.h"

namespace tandem::cli {
namespace {

// The most concurrent requests, each with a thread. In an open loop further requests wait, and the
// wait counts as latency.
constexpr int kMostAtOnce = 4096;

}  // namespace

std::vector<Sample> closed_loop(const Clock& clock, int count, int concurrency, const Send& send) {
  std::vector<Sample> samples(static_cast<size_t>(count));
  const TimePoint begin = clock.now();
  std::atomic<int> next{0};
  std::vector<std::thread> senders;
  for (int i = 0; i < std::min({count, concurrency, kMostAtOnce}); ++i) {
    senders.emplace_back([&] {
      for (int index = next++; index < count; index = next++) {
        Sample& sample = samples[static_cast<size_t>(index)];
        sample.due = clock.now() - begin;
        send(index, begin, &sample);
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  return samples;
}

std::vector<Sample> open_loop(const Clock& clock, const std::vector<Duration>& arrivals,
                              const Send& send) {
  std::vector<Sample> samples(arrivals.size());
  std::counting_semaphore<kMostAtOnce> places(kMostAtOnce);
  std::vector<std::thread> requests;  // at most kMostAtOnce
  Mutex mutex;
  std::vector<size_t> ended;  // of requests
  const TimePoint begin = clock.now();
  for (size_t i = 0; i < arrivals.size(); ++i) {
    samples[i].due = arrivals[i];
    if (const Duration early = arrivals[i] - (clock.now() - begin); early > Duration(0)) {
      std::this_thread::sleep_for(early);
    }
    places.acquire();
    size_t at = requests.size();
    {
      const MutexLock lock(&mutex);
      if (!ended.empty()) {
        at = ended.back();
        ended.pop_back();
      }
    }
    if (at == requests.size()) requests.emplace_back();
    if (requests[at].joinable()) requests[at].join();
    requests[at] = std::thread([&, i, at] {
      send(static_cast<int>(i), begin, &samples[i]);
      {
        const MutexLock lock(&mutex);
        ended.push_back(at);
      }
      places.release();
    });
  }
  for (std::thread& request : requests) request.join();
  return samples;
}

}  // namespace tandem::cli
