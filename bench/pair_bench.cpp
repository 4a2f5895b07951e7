// How fast a pair decodes when its models agree as often as asked, beside what its passes allow.
//
//   bench_pair --large DIRECTORY --small DIRECTORY --agreement 0.7,0.8,0.9
//              [--masks ADAPTER --mask-rates 0.5:0.1,0.4:0.1]
//
// Both models run on one CPU device through the real loop; a scripted device between the two
// decides what they answer (engine/backend/scripted). Autoregressive decoding and the methods take
// turns; every answer must be the same. Prints one JSON object: of each method its turns with the
// seconds from the first token to the last, what was accepted, and how many passes of each size it
// took; and of each size of pass the mean time that the device spent on it.
// bench/peers/pair.py makes a page of it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "bench/answer.h"
#include "engine/backend/scripted/scripted_backend.h"
#include "engine/backend/torch/device.h"
#include "engine/base/flags.h"
#include "engine/base/status.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/bild.h"
#include "engine/decode/bita.h"
#include "engine/decode/speculative.h"
#include "engine/sched/loop.h"

namespace tandem {
namespace {

constexpr ModelId kLarge{0}, kSmall{1};
constexpr int kPageRows = 16;

// A batch of one work, by its model and rows.
using PassSize = std::pair<ModelId, int>;

// Counts the batches that pass by, and how long the device spent on each.
class Counter final : public Backend {
 public:
  explicit Counter(Backend* device) : device_(device) {}

  const ModelShape& shape(ModelId model) const override { return device_->shape(model); }
  const PoolSize& pool(ModelId model) const override { return device_->pool(model); }
  void launch(const Batch& batch, Done done) override {
    const PassSize size = batch.works.size() == 1
                              ? PassSize(batch.works[0].model, batch.works[0].run_rows())
                              : PassSize();
    device_->launch(batch, [this, size, done = std::move(done)](BatchResult result) {
      if (size.second > 0) {
        const std::lock_guard lock(mutex_);
        seconds_[size].push_back(seconds(result.busy));
        order_.push_back(size);
      }
      done(std::move(result));
    });
  }

  // Passes since the last call, one after the other.
  std::vector<PassSize> take_passes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(order_, {});
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    order_.clear();
    seconds_.clear();
  }
  std::map<PassSize, std::vector<double>> all_seconds() const {
    const std::lock_guard lock(mutex_);
    return seconds_;
  }

 private:
  Backend* const device_;
  mutable std::mutex mutex_;
  std::vector<PassSize> order_;
  std::map<PassSize, std::vector<double>> seconds_;
};

struct Options {
  std::optional<std::string> large, small, agreement, drafts, masks, mask_rates;
  std::optional<double> threads, prompt_tokens, new_tokens, turns, foresight;
};

struct Method {
  std::string name;
  std::function<Task<void>(Gen)> make;
};

// gammas: draft tokens of a round.
absl::StatusOr<std::vector<Method>> methods(const std::string& gammas) {
  std::vector<Method> found;
  int longest = 1;
  for (const absl::string_view text : absl::StrSplit(gammas, ',')) {
    int gamma = 0;
    if (!absl::SimpleAtoi(text, &gamma) || gamma < 1 || gamma > 64) {
      return absl::InvalidArgumentError(
          absl::StrCat("--drafts: ", gammas, "; allowed: numbers in [1, 64] and commas"));
    }
    longest = std::max(longest, gamma);
    const SpeculativeParams a{.draft_tokens = gamma};
    found.push_back(
        {absl::StrCat("speculative, γ ", gamma), [a](Gen g) { return speculative(g, a); }});
  }
  const SpeculativeParams steered{.draft_tokens = longest, .adaptive = true};
  found.push_back({absl::StrCat("speculative, adaptive, γ up to ", longest),
                   [steered](Gen g) { return speculative(g, steered); }});
  const BildParams exact{
      .fallback_threshold = 0.6F, .rollback_threshold = 0.69F, .max_small_run = longest};
  found.push_back({absl::StrCat("BiLD, α_RB 0.69, runs up to ", longest),
                   [exact](Gen g) { return bild(g, exact); }});
  return found;
}

constexpr int kMasks = 3, kCandidates = 5;  // of the largest tree

// BiTA with trees of every kind, and with as much of the largest as pays.
std::vector<Method> methods_with_masks() {
  std::vector<Method> found;
  const auto add = [&](const std::string& name, BitaTreeKind kind, int candidates, bool budget) {
    const BitaParams a{kMasks, candidates, kind, budget};
    found.push_back({absl::StrCat("BiTA, ", name), [a](Gen g) { return bita(g, a); }});
  };
  add("chain", BitaTreeKind::kChain, 1, false);
  add("spine, k 2", BitaTreeKind::kSpine, 2, false);
  add("efficient, k 5", BitaTreeKind::kEfficient, kCandidates, false);
  add("adaptive rows", BitaTreeKind::kEfficient, kCandidates, true);
  return found;
}

// By mask the rates of its candidates.
absl::StatusOr<std::vector<std::vector<double>>> mask_rates(const std::string& value) {
  std::vector<std::vector<double>> found;
  for (const absl::string_view mask : absl::StrSplit(value, ',')) {
    TANDEM_ASSIGN_OR_RETURN(auto by_rank, parse_shares("--mask-rates", mask, ':'));
    found.push_back(std::move(by_rank));
  }
  return found;
}

// How many of each size, but for each model's first one of a prompt: a tree may have as many rows.
std::map<PassSize, int> passes_behind(int prompt_tokens, const std::vector<PassSize>& all) {
  std::map<PassSize, int> counts;
  std::vector<ModelId> begun;
  for (const PassSize& pass : all) {
    const bool first = std::ranges::find(begun, pass.first) == begun.end();
    if (first && pass.second >= prompt_tokens) {
      begun.push_back(pass.first);
    } else {
      ++counts[pass];
    }
  }
  return counts;
}

// One turn of one method.
struct Turn {
  double decode_seconds = 0;  // first token to last
  double all_seconds = 0;     // with the prompt
  std::vector<int64_t> accept_lengths;
  int64_t fallbacks = 0, rollbacks = 0;
  std::map<PassSize, int> passes;  // but for the prompts'
};

class Pair {
 public:
  static absl::StatusOr<std::unique_ptr<Pair>> load(const Options& o) {
    auto pair = std::make_unique<Pair>();
    DeviceConfig config;
    config.threads = o.threads ? static_cast<int>(*o.threads)
                               : static_cast<int>(std::thread::hardware_concurrency());
    TANDEM_ASSIGN_OR_RETURN(pair->device_, TorchDevice::create(config, pair->shared_));
    for (const auto& [id, path] : {std::pair(kLarge, *o.large), std::pair(kSmall, *o.small)}) {
      ModelConfig model;
      model.name = id == kLarge ? "large" : "small";
      model.path = path;
      model.page_rows = kPageRows;
      if (o.masks && id == kLarge) model.extras = {{"masks", *o.masks}};
      TANDEM_RETURN_IF_ERROR(pair->device_->load(id, model));
      const int64_t pages = 2 * (pair->device_->shape(id).max_positions / kPageRows + 1);
      TANDEM_RETURN_IF_ERROR(pair->device_->allocate_pools(id, {kPageRows, pages, pages}));
    }
    const int large = pair->device_->shape(kLarge).vocab_size;
    const int small = pair->device_->shape(kSmall).vocab_size;
    if (large != small) {
      return absl::InvalidArgumentError(
          absl::StrCat("--small: a vocabulary of ", small, "; allowed: that of --large, ", large));
    }
    pair->scripted_ =
        std::make_unique<ScriptedBackend>(pair->device_.get(), &pair->shared_->values());
    pair->scripted_->add_large(kLarge);
    pair->counter_ = std::make_unique<Counter>(pair->scripted_.get());
    const std::vector<LoopModel> models = {{kLarge, DeviceId(0)}, {kSmall, DeviceId(0)}};
    pair->loop_ = std::make_unique<Loop>(LoopOptions(), &pair->clock_,
                                         std::vector<Backend*>{pair->counter_.get()}, models,
                                         &pair->metrics_);
    pair->thread_ = std::thread([loop = pair->loop_.get()] { loop->run(); });
    return absl::StatusOr<std::unique_ptr<Pair>>(std::move(pair));
  }
  Pair() : shared_(std::make_shared<TorchShared>()) {}
  ~Pair() {
    if (!thread_.joinable()) return;
    loop_->quit();
    thread_.join();
  }

  void set_script(double agreement, double foresight,
                  const std::vector<std::vector<double>>& masks) {
    scripted_->set_script({.vocab_size = device_->shape(kLarge).vocab_size,
                           .agreement = agreement,
                           .foresight = foresight,
                           .masks = masks});
  }
  // seed: of the request; the same one gives the same text whatever the method.
  absl::StatusOr<Turn> run(const Method& method, uint64_t seed, int prompt_tokens, int new_tokens,
                           std::vector<Token>* tokens) {
    const auto answer = std::make_shared<Answer>();
    SequenceSpec spec;
    spec.id = ++last_;
    const ScriptedText text({.vocab_size = device_->shape(kLarge).vocab_size}, seed, 0);
    for (int i = 0; i < prompt_tokens; ++i) spec.prompt.push_back(text.large(i));
    spec.method = method.make;
    spec.roles = {{Role::kLarge, kLarge, 0}, {Role::kSmall, kSmall, 0}};
    if (!device_->shape(kLarge).adapters.empty()) spec.roles[0].masks = AdapterId(0);
    spec.extra_rows = bita_tree_rows(BitaTreeKind::kEfficient, kMasks, kCandidates);
    spec.stops.max_new_tokens = new_tokens;
    spec.warp.seed = seed;
    spec.prefix_cache = false;  // or the first of a turn would pay for the others' prompt
    spec.submitted = clock_.now();
    spec.listener = answer;
    counter_->take_passes();
    const TimePoint start = clock_.now();
    loop_->submit(std::move(spec));
    answer->wait();
    Turn turn;
    turn.all_seconds = seconds(clock_.now() - start);
    TANDEM_RETURN_IF_ERROR(answer->end.status);
    const MethodStats& stats = answer->end.stats;
    turn.decode_seconds = stats.decode_seconds;
    turn.accept_lengths = stats.accept_lengths;
    turn.fallbacks = stats.own[BildFigures::kFallbacks];
    turn.rollbacks = stats.own[BildFigures::kRollbacks];
    turn.passes = passes_behind(prompt_tokens, counter_->take_passes());
    *tokens = answer->tokens;
    return turn;
  }
  Counter& counter() { return *counter_; }
  int64_t parameters(ModelId model) const { return device_->shape(model).parameters; }

 private:
  // Destroyed from the last to the first.
  SteadyClock clock_;
  Metrics metrics_;
  std::shared_ptr<TorchShared> shared_;
  std::unique_ptr<TorchDevice> device_;
  std::unique_ptr<ScriptedBackend> scripted_;
  std::unique_ptr<Counter> counter_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
  RequestId last_ = 0;
};

const char* name_of(ModelId model) { return model == kLarge ? "large" : "small"; }

std::string json(const Turn& turn) {
  std::vector<std::string> passes;
  for (const auto& [size, count] : turn.passes) {
    passes.push_back(absl::StrFormat("[\"%s\",%d,%d]", name_of(size.first), size.second, count));
  }
  return absl::StrFormat(
      "{\"decode_seconds\":%.9f,\"seconds\":%.9f,\"accept_lengths\":[%s],\"fallbacks\":%d,"
      "\"rollbacks\":%d,\"passes\":[%s]}",
      turn.decode_seconds, turn.all_seconds, absl::StrJoin(turn.accept_lengths, ","),
      turn.fallbacks, turn.rollbacks, absl::StrJoin(passes, ","));
}

std::string json(const std::map<PassSize, std::vector<double>>& passes) {
  std::vector<std::string> lines;
  for (auto [size, times] : passes) {
    double sum = 0;
    for (const double t : times) sum += t;
    std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2),
                     times.end());
    lines.push_back(absl::StrFormat(
        "{\"model\":\"%s\",\"rows\":%d,\"count\":%d,\"mean_seconds\":%.9f,\"median_seconds\":%.9f}",
        name_of(size.first), size.second, times.size(), sum / static_cast<double>(times.size()),
        times[times.size() / 2]));
  }
  return absl::StrCat("[", absl::StrJoin(lines, ",\n"), "]");
}

absl::Status bench(const Options& o) {
  if (!o.large || !o.small) {
    return absl::InvalidArgumentError("--large, --small: unset; allowed: a model's directory each");
  }
  const int prompt = static_cast<int>(o.prompt_tokens.value_or(64));
  const int tokens = static_cast<int>(o.new_tokens.value_or(128));
  const int turns = static_cast<int>(o.turns.value_or(5));
  const double foresight = o.foresight.value_or(0.5);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<double> agreements,
                          parse_shares("--agreement", o.agreement.value_or("0.7,0.8,0.9")));
  TANDEM_ASSIGN_OR_RETURN(const auto masks, mask_rates(o.mask_rates.value_or("0.5,0.4,0.35")));
  TANDEM_ASSIGN_OR_RETURN(std::vector<Method> contenders, methods(o.drafts.value_or("3,5,8")));
  if (o.masks) {
    for (Method& m : methods_with_masks()) contenders.push_back(std::move(m));
  }
  contenders.insert(contenders.begin(), {"autoregressive", autoregressive});
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Pair> pair, Pair::load(o));

  std::vector<Token> heard;
  pair->set_script(agreements.front(), foresight, masks);
  for (const Method& m : contenders) {  // buffers grow, pages are touched
    TANDEM_ASSIGN_OR_RETURN(const Turn warm, pair->run(m, 1, prompt, std::min(tokens, 32), &heard));
    (void)warm;
  }
  pair->counter().forget();

  uint64_t seed = 1;
  std::vector<std::string> cases;
  for (const double agreement : agreements) {
    pair->set_script(agreement, foresight, masks);
    std::vector<std::vector<std::string>> lines(contenders.size());
    for (int turn = 0; turn < turns; ++turn) {
      ++seed;
      std::vector<Token> expected;
      for (size_t i = 0; i < contenders.size(); ++i) {
        // Everybody goes first once; autoregressive text is known without being heard first.
        const size_t m = (i + static_cast<size_t>(turn)) % contenders.size();
        TANDEM_ASSIGN_OR_RETURN(const Turn done,
                                pair->run(contenders[m], seed, prompt, tokens, &heard));
        if (expected.empty()) expected = heard;
        if (heard != expected) {
          return absl::InternalError(
              absl::StrCat(contenders[m].name, ": its text is not that of the others"));
        }
        lines[m].push_back(json(done));
      }
    }
    for (size_t m = 0; m < contenders.size(); ++m) {
      cases.push_back(absl::StrFormat("{\"agreement\":%g,\"method\":\"%s\",\"turns\":[%s]}",
                                      agreement, contenders[m].name,
                                      absl::StrJoin(lines[m], ",\n")));
    }
  }
  absl::PrintF(
      "{\"prompt_tokens\":%d,\"new_tokens\":%d,\"foresight\":%g,\"large_parameters\":%d,"
      "\"small_parameters\":%d,\n\"cases\":[%s],\n\"passes\":%s}\n",
      prompt, tokens, foresight, pair->parameters(kLarge), pair->parameters(kSmall),
      absl::StrJoin(cases, ",\n"), json(pair->counter().all_seconds()));
  return absl::OkStatus();
}

int run(const std::vector<std::string>& args) {
  Options o;
  bool help = false;
  Flags flags;
  flags.text("large", "DIR", "the large model's directory", &o.large);
  flags.text("small", "DIR", "the small model's directory", &o.small);
  flags.text("agreement", "LIST", "shares of positions where they agree (0.7,0.8,0.9)",
             &o.agreement);
  flags.text("drafts", "LIST", "draft tokens of a round (3,5,8)", &o.drafts);
  flags.text("masks", "DIR", "masks of the large model, for BiTA", &o.masks);
  flags.text("mask-rates", "LIST",
             "by mask how often its candidates are right, best first (0.5,0.4,0.35)",
             &o.mask_rates);
  flags.number("foresight", "SHARE", "of disagreements where the small model is unsure (0.5)", 0, 1,
               &o.foresight);
  flags.number("threads", "N", "of the device (all)", 1, 1024, &o.threads);
  flags.number("prompt-tokens", "N", "of a prompt (64)", 1, 1 << 20, &o.prompt_tokens);
  flags.number("new-tokens", "N", "of an answer (128)", 2, 1 << 20, &o.new_tokens);
  flags.number("turns", "N", "of every method (5)", 1, 1000, &o.turns);
  flags.toggle("help", "this text", &help);
  const auto rest = flags.parse(args);
  absl::Status status = rest.status();
  if (status.ok() && !rest->empty()) {
    status = absl::InvalidArgumentError(absl::StrCat(rest->front(), ": not a flag"));
  }
  if (help) {
    std::fputs(flags.help().c_str(), stdout);
    return 0;
  }
  if (status.ok()) status = bench(o);
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_pair: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run({argv + 1, argv + argc}); }
