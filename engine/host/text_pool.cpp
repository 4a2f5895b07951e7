#include "engine/host/text_pool.h"

#include <utility>

namespace tandem {

TextPool::TextPool(int threads) : alone_(threads == 1) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

TextPool::~TextPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  filled_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void TextPool::post(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  filled_.notify_one();
}

void TextPool::run() {
  std::deque<Job> taken;
  std::unique_lock lock(mutex_);
  for (;;) {
    filled_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    if (alone_) {
      taken.swap(jobs_);  // nobody else would begin them sooner
    } else {
      taken.push_back(std::move(jobs_.front()));
      jobs_.pop_front();
    }
    lock.unlock();
    for (; !taken.empty(); taken.pop_front()) taken.front()();
    lock.lock();
  }
}

}  // namespace tandem
