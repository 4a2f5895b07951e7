#include "tests/engine/decode/load_simulation.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/backend/fake/timer.h"
#include "engine/backend/scripted/scripted_backend.h"
#include "engine/decode/draft_pass.h"
#include "engine/decode/pacing/saved_numbers.h"
#include "engine/decode/text_history.h"
#include "engine/sched/loop.h"
#include "tests/engine/decode/pairs.h"

namespace tandem::test {
namespace {

constexpr float kMaskConfidence = 0.6F;
constexpr int kPart = 8;  // tokens of the answer that a prompt contains at a stretch

using Rng = std::mt19937_64;
double uniform(Rng* rng) { return static_cast<double>((*rng)() >> 11) * 0x1p-53; }

// Prompts of `load.prompt` random tokens. Their end, or parts of them, are those of the answer.
class Prompts {
 public:
  Prompts(const Load& load, const ScriptedText& text, RequestId id)
      : load_(load), text_(text), rng_(id) {
    for (int i = 0; i < load.prompt; ++i) prompt_.push_back(any());
    if (load.edits_every > 0) {
      edit();
    } else {
      copy_parts();
    }
  }

  std::vector<Token> take() { return std::move(prompt_); }
  // Of different lengths, so that requests do not begin and end together.
  int answer() { return load_.answer / 2 + below(load_.answer); }

 private:
  int below(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  Token any() { return below(load_.script.vocab_size); }
  Token at(int i) const { return text_.large(load_.prompt + i); }  // of the answer

  void copy_parts() {
    const int parts = std::min(load_.prompt, load_.answer) / kPart;
    for (int part = 0; part < parts; ++part) {
      if (uniform(&rng_) >= load_.copied) continue;
      for (int i = part * kPart; i < (part + 1) * kPart; ++i) {
        prompt_[static_cast<size_t>(i)] = at(i);
      }
    }
  }
  // The prompt is a file, and the answer an edit of it. Passages that begin alike and continue
  // differently follow the file.
  void edit() {
    constexpr int kLongestEdit = 8, kSimilar = 5, kEvery = 32;
    const int length = 3 * load_.answer / 2;
    std::vector<Token> file;
    for (int i = 0; i < length; ++i) {
      file.push_back(at(i));
      if (below(load_.edits_every) > 0) continue;
      i += 1 + below(kLongestEdit);
      for (int n = below(kLongestEdit); n > 0; --n) file.push_back(any());
    }
    for (int i = 0; i < length / kEvery; ++i) {
      const int from = below(length - kSimilar);
      for (int j = 0; j < kSimilar; ++j) file.push_back(at(from + j));
      for (int j = 0; j < kSimilar; ++j) file.push_back(any());
    }
    const size_t size = std::min(file.size(), prompt_.size());
    std::copy_n(file.end() - static_cast<ptrdiff_t>(size), size,
                prompt_.end() - static_cast<ptrdiff_t>(size));
  }

  const Load& load_;
  const ScriptedText& text_;
  Rng rng_;
  std::vector<Token> prompt_;
};

// Answers batches after the device's time, with rows for the scripted device to fill in.
class TimedBackend final : public Backend {
 public:
  TimedBackend(const Load& load, VirtualClock* clock, VirtualTimer* timer, ValueStore* values)
      : load_(load), clock_(clock), timer_(timer), values_(values) {
    shape_.name = "timed";
    shape_.vocab_size = load.script.vocab_size;
    shape_.layers = 1;
    shape_.hidden_size = 1;
    shape_.max_positions = 1 << 20;
    shape_.batch_invariant = true;
    shape_.adapters.resize(kAdapter.index() + 1);
  }

  const ModelShape& shape(ModelId) const override { return shape_; }
  const PoolSize& pool(ModelId) const override { return pool_; }
  void launch(const Batch& batch, Done done) override {
    double busy = 0;
    if (!batch.works.empty()) {
      const bool large = batch.works.front().model == ModelId(0);
      const auto works = static_cast<int>(batch.works.size());
      busy = (large ? load_.large : load_.small).seconds(batch.run_rows(), works);
      ++(large ? large_batches : small_batches);
      if (large) large_works += works;
    }
    const Duration time = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(busy));
    free_at_ = std::max(free_at_, clock_->now()) + time;
    timer_->at(free_at_, [this, &batch, time, done = std::move(done)] {
      BatchResult result;
      result.busy = time;
      for (const Work& work : batch.works) result.works.push_back(blank(work));
      values_->forget(batch.forget);
      done(std::move(result));
    });
  }

  int64_t large_batches = 0, large_works = 0, small_batches = 0;

 private:
  static WorkResult blank(const Work& work) {
    WorkResult answer;
    answer.readout.row.resize(work.outputs.size());
    const auto top = [&](const Work::Output& o) {
      return static_cast<size_t>(work.pass->read[static_cast<size_t>(o.read)].top);
    };
    size_t ranked = 0;
    for (const Work::Output& o : work.outputs) ranked += top(o);
    answer.readout.ranked.resize(ranked);
    ranked = 0;
    for (size_t i = 0; i < work.outputs.size(); ++i) {
      Out& out = answer.readout.row[i];
      out.max_prob = kMaskConfidence;
      out.top = std::span(answer.readout.ranked).subspan(ranked, top(work.outputs[i]));
      ranked += out.top.size();
    }
    return answer;
  }

  const Load& load_;
  VirtualClock* const clock_;
  VirtualTimer* const timer_;
  ValueStore* const values_;
  TimePoint free_at_{};
  ModelShape shape_;
  PoolSize pool_ = {16, 1 << 14, 0};
};

class Server {
 public:
  explicit Server(const Load& load)
      : load_(load), timed_(load_, &clock_, &timer_, &values_), device_(&timed_, &values_) {
    device_.add_large(ModelId(0));
    device_.set_script(load.script);
    metrics_.series.emplace_back();
    LoopOptions options;
    options.limits.prefill_chunk_rows = 256;
    std::vector<LoopModel> models;
    for (int m = 0; m < 2; ++m) models.push_back({ModelId(m), DeviceId(0), nullptr, false, {}});
    loop_ = std::make_unique<Loop>(options, &clock_, std::vector<Backend*>{&device_}, models,
                                   &metrics_);
    last_id_ = load.first_request - 1;
    if (load.history_tokens > 0) history_ = std::make_shared<TextHistory>(load.history_tokens);
    for (size_t m = 0; m < load.learned.size(); ++m) {
      if (load.learned[m].empty()) continue;
      right_ &= restore(load.learned[m], &loop_->batch_time(ModelId(static_cast<int64_t>(m))));
    }
  }
  ~Server() {
    stopping_ = true;
    loop_->stop_all(absl::CancelledError("the simulation is over"));
    while (tick()) {
    }
  }

  Served serve() {
    const TimePoint start = clock_.now();
    const auto at = [start](double s) {
      return start + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
    };
    for (int i = 0; i < load_.clients; ++i) submit();
    run_until(at(load_.warm));
    const int64_t tokens = tokens_, batches = timed_.large_batches, works = timed_.large_works,
                  small = timed_.small_batches;
    run_until(at(load_.warm + load_.measured));
    const auto more = static_cast<double>(timed_.large_batches - batches);
    return {static_cast<double>(tokens_ - tokens) / load_.measured,
            static_cast<double>(timed_.large_works - works) / more,
            static_cast<double>(timed_.small_batches - small) / more,
            right_,
            requests_,
            {numbers_of(loop_->batch_time(ModelId(0))), numbers_of(loop_->batch_time(ModelId(1)))}};
  }

 private:
  class Listener final : public SequenceListener {
   public:
    Listener(Server* server, RequestId id, const ScriptedText& text, int at)
        : server_(server), id_(id), start_(server->clock_.now()), text_(text), at_(at) {}
    void on_admitted() override {}
    void on_tokens(std::span<Emitted> more) override {
      server_->tokens_ += static_cast<int64_t>(more.size());
      for (const Emitted& e : more) server_->right_ &= e.token == text_.large(at_++);
    }
    void on_end(const SequenceEnd& end) override {
      server_->requests_[id_] = {seconds(server_->clock_.now() - start_), end.stats};
      server_->answered();
    }

   private:
    Server* const server_;
    const RequestId id_;
    const TimePoint start_;
    const ScriptedText text_;
    int at_;
  };

  void submit() {
    SequenceSpec spec;
    spec.id = ++last_id_;
    spec.warp.seed = spec.id;
    const ScriptedText text(load_.script, spec.warp.seed, 0);
    Prompts prompts(load_, text, spec.id);
    spec.prompt = prompts.take();
    spec.history = history_;
    spec.listener = std::make_shared<Listener>(this, spec.id, text, load_.prompt);
    spec.method = load_.method;
    std::vector<CastRole> roles = two_models();
    if (load_.masks > 0) roles[1].mask_adapter = kAdapter;
    if (!load_.two_models) roles.pop_back();
    spec.cast = make_cast(std::move(roles));
    spec.extra_rows = parallel_draft_rows(load_.masks);
    spec.stops.max_new_tokens = prompts.answer();
    spec.series = &metrics_.series.front();
    spec.submitted = clock_.now();
    ++open_;
    loop_->submit(std::move(spec));
  }
  void answered() {
    --open_;
    if (stopping_) return;
    if (!load_.bursts) {
      if (load_.pause <= 0) return submit();
      const std::chrono::duration<double> pause(load_.pause);
      timer_.at(clock_.now() + std::chrono::duration_cast<Duration>(pause), [this] {
        if (!stopping_) submit();
      });
      return;
    }
    if (open_ > 0) return;
    for (int i = 0; i < load_.clients; ++i) submit();
  }
  bool tick() { return loop_->step() || timer_.fire_next(); }
  void run_until(TimePoint end) {
    while (clock_.now() < end && tick()) {
    }
  }

  const Load load_;
  VirtualClock clock_;
  VirtualTimer timer_{&clock_};
  ValueStore values_;
  TimedBackend timed_;
  ScriptedBackend device_;
  Metrics metrics_;
  std::shared_ptr<TextHistory> history_;
  std::unique_ptr<Loop> loop_;
  RequestId last_id_ = 0;
  int open_ = 0;
  bool stopping_ = false, right_ = true;
  int64_t tokens_ = 0;
  std::map<RequestId, Answered> requests_;
};

}  // namespace

double DeviceTime::seconds(int batch_rows, int works) const {
  const auto above =
      std::ranges::find_if(rows, [&](const auto& p) { return p.first >= batch_rows; });
  const double more = (works - 1) * work;
  if (above == rows.end()) return rows.back().second * batch_rows / rows.back().first + more;
  if (above == rows.begin()) return above->second + more;
  const auto& [low, least] = *std::prev(above);
  return std::lerp(least, above->second, (batch_rows - low) / (above->first - low)) + more;
}

Served serve(const Load& load) { return Server(load).serve(); }

}  // namespace tandem::test
