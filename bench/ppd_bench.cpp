// Measures PPD on two processors, next to the prediction of Theorem 4.1 for the same layers.
//
//   bench_ppd --model DIRECTORY --exit-layers 15,22 --candidates 1,3 --rates
//   0.4:0.1:0.05,0.6:0.1:0.05
//
// Three CPU devices with pinned threads: cpu:0 (the first processor) has the whole model, cpu:1
// (the second) its lower layers for a worker, cpu:2 (both) the whole model again, for
// autoregressive decoding on the same number of processors. A scripted device in front of each
// replaces the results (engine/backend/scripted), so that an early layer's candidates are right at
// the given rates. Passes, copies and readouts are real. The modes take turns and must produce the
// same text:
//
//   ar          autoregressive, on cpu:0
//   ar_both     the same on cpu:2
//   ar_beside   the same on cpu:0, while a worker's layers decode another text on cpu:1
//   lower_beside  the same with only the layers below the early one; the difference to ar_beside is
//   the
//               time of the layers above it
//   phases_beside  autoregressive in two passes with the early layer read in between: PPD's main
//               sequence without workers
//   lower, phases  the last two without load on cpu:1
//   ppd         with one worker, which runs all candidates as rows of one pass
//
// The last two modes run with each of --draft-vocabularies: the number of rows of the output matrix
// that an early layer is read with.
//
// Prints one JSON object: for each mode its turns with the seconds from the first to the last
// token, the seconds of each round by the result of the previous round (match or not), the times of
// PPD's phases, and PPD's counts. bench/peers/ppd.py renders it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
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
#include "engine/decode/ppd.h"
#include "engine/sched/loop.h"

namespace tandem {
namespace {

constexpr ModelId kWhole{0}, kWholeOnBoth{1};
constexpr DeviceId kMain{0}, kBeside{1}, kBoth{2};
constexpr int kPageRows = 16;
constexpr int kLongest = 2048;  // rows of the request that loads cpu:1

struct Options {
  std::optional<std::string> model, exit_layers, candidates, draft_vocabularies, rates, dtype;
  std::optional<double> prompt_tokens, new_tokens, turns;
};

// An early layer, with models of the layers below it and of as many layers as lie above it.
struct Exit {
  int layer = 0;
  std::vector<std::vector<double>> rates;  // candidate rates, by draft vocabulary and rank
  ModelId lower, worker;
};

// PPD's main sequence without workers.
Task<void> two_phases(Gen g, int draft_vocabulary) {
  const Stage M = g.stage(Role::kLarge), E = g.stage(Role::kSmall);
  for (;;) {
    Needs needs{{E, g.missing(E)}, {M, g.missing(M)}};
    needs[0].frontier = 1;
    co_await g.round(std::move(needs));
    Pass lower = g.catch_up(E);
    Read early;
    early.rows = last_rows(1, lower.add.size());
    early.warp = g.warp();
    early.warp.vocab = draft_vocabulary;
    early.top = 1;
    lower.reading(std::move(early));
    Readout read = co_await g.submit(std::move(lower));
    (void)read;
    Pass upper = g.catch_up(M);
    upper.reading(g.draw(last_rows(1, upper.add.size())));
    Readout r = co_await g.submit(std::move(upper));
    if (g.emit(g.emitted(r.row[0]))) co_return;
  }
}

struct Contender {
  std::string name;
  const Exit* exit = nullptr;
  int candidates = 0;
  ModelId model = kWhole;
  bool beside = false;  // another text is decoded on cpu:1 meanwhile
  int draft_vocabulary = 0;
  std::vector<double> rates = {};  // candidate rates, by rank

  bool is_phases() const { return name == "phases" || name == "phases_beside"; }
  std::function<Task<void>(Gen)> method() const {
    if (name == "ppd") {
      return [k = candidates, ids = draft_vocabulary](Gen g) {
        return ppd(g, {.candidates = k, .draft_vocabulary = ids});
      };
    }
    if (is_phases()) return [ids = draft_vocabulary](Gen g) { return two_phases(g, ids); };
    return autoregressive;
  }
};

// Initial rounds, while a worker prefills, which are not typical.
constexpr size_t kBeginning = 3;

struct Turn {
  double seconds = 0;  // first token to last
  MethodStats stats;
  // Seconds of rounds, without the initial ones and the last, which starts no workers.
  std::vector<double> after_miss, after_match;
};

Turn turn_of(const Answer& answer) {
  const MethodStats& stats = answer.end.stats;
  Turn turn{stats.decode_seconds, stats, {}, {}};
  for (size_t i = kBeginning; i + 1 < answer.arrivals.size(); ++i) {
    const Answer::Arrival& before = answer.arrivals[i - 1];
    const double took = std::chrono::duration<double>(answer.arrivals[i].at - before.at).count();
    const bool matched = before.proposed == Source::kEarlyHead;
    (matched ? turn.after_match : turn.after_miss).push_back(took);
  }
  return turn;
}

class Rig {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> load(const Options& o, std::vector<Exit>* exits) {
    auto rig = std::make_unique<Rig>();
    TANDEM_RETURN_IF_ERROR(rig->add_devices());
    TANDEM_RETURN_IF_ERROR(rig->add_model(o, kMain, 0));
    TANDEM_RETURN_IF_ERROR(rig->add_model(o, kBoth, 0));
    const int layers = rig->shape().layers;
    for (Exit& exit : *exits) {
      if (exit.layer < (layers + 1) / 2 || exit.layer >= layers) {
        return absl::InvalidArgumentError(absl::StrCat("--exit-layers: ", exit.layer,
                                                       "; allowed: ", (layers + 1) / 2, " to ",
                                                       layers - 1, ", from half of the layers on"));
      }
      exit.lower = ModelId(static_cast<int64_t>(rig->models_.size()));
      TANDEM_RETURN_IF_ERROR(rig->add_model(o, kMain, exit.layer));
      exit.worker = ModelId(static_cast<int64_t>(rig->models_.size()));
      TANDEM_RETURN_IF_ERROR(rig->add_model(o, kBeside, layers - exit.layer));
    }
    std::vector<Backend*> backends;
    for (const auto& device : rig->scripted_) backends.push_back(device.get());
    rig->loop_ =
        std::make_unique<Loop>(LoopOptions(), &rig->clock_, backends, rig->models_, &rig->metrics_);
    rig->thread_ = std::thread([loop = rig->loop_.get()] { loop->run(); });
    return absl::StatusOr<std::unique_ptr<Rig>>(std::move(rig));
  }
  Rig() : shared_(std::make_shared<TorchShared>()) {}
  ~Rig() {
    if (!thread_.joinable()) return;
    loop_->quit();
    thread_.join();
    // A worker may still run after the last request.
    while (loop_->device_busy()) {
      if (!loop_->step()) std::this_thread::yield();
    }
  }

  const ModelShape& shape() const { return devices_[0]->shape(kWhole); }

  absl::StatusOr<Turn> run(const Contender& c, const ModelId* busy, uint64_t seed,
                           int prompt_tokens, int new_tokens, std::vector<Token>* tokens) {
    Script script{.vocab_size = shape().vocab_size};
    script.early = c.rates;
    for (const auto& device : scripted_) device->set_script(script);
    std::shared_ptr<Answer> other;
    RequestId other_id = 0;
    if (busy) {
      const int rows = std::min(kLongest, shape().max_positions);
      SequenceSpec spec = spec_of(*busy, autoregressive, seed, 8, rows - 8);
      other = submit(std::move(spec), &other_id);
      other->wait_for_first();
    }
    SequenceSpec spec = spec_of(c.model, c.method(), seed, prompt_tokens, new_tokens);
    std::vector<CastRole> roles = spec.roles();
    if (c.name == "ppd" || c.is_phases()) {
      roles.push_back({Role::kSmall, kWhole, c.exit->layer, /*frontier_rows=*/2});
    }
    if (c.name == "ppd") roles.push_back({Role::kWorker, c.exit->worker, 0});
    spec.cast = make_cast(std::move(roles));
    spec.extra_rows = c.candidates;
    RequestId id = 0;
    const std::shared_ptr<Answer> answer = submit(std::move(spec), &id);
    answer->wait();
    if (other) {
      if (other->ended()) return absl::InternalError("cpu:1 was idle before the end");
      loop_->stop(other_id, absl::OkStatus());
      other->wait();
    }
    TANDEM_RETURN_IF_ERROR(answer->end.status);
    *tokens = answer->tokens;
    return turn_of(*answer);
  }

 private:
  absl::Status add_devices() {
    for (const auto& [device, threads, first] :
         {std::tuple(kMain, 1, 0), {kBeside, 1, 1}, {kBoth, 2, 0}}) {
      DeviceConfig config;
      config.index = static_cast<int>(device.index());
      config.threads = threads;
      config.pin_threads = true;
      config.first_cpu = first;
      TANDEM_ASSIGN_OR_RETURN(devices_.emplace_back(), TorchDevice::create(config, shared_));
      scripted_.push_back(
          std::make_unique<ScriptedBackend>(devices_.back().get(), &shared_->values()));
    }
    return absl::OkStatus();
  }

  // layers 0: all layers, with the results of the large model.
  absl::Status add_model(const Options& o, DeviceId device, int layers) {
    const ModelId id(static_cast<int64_t>(models_.size()));
    TorchDevice& on = *devices_[device.index()];
    ModelConfig config;
    config.name = absl::StrCat("model ", id.value);
    config.path = *o.model;
    config.page_rows = kPageRows;
    config.layers = layers;
    if (o.dtype == "int8") config.dtype = DType::kInt8;
    TANDEM_RETURN_IF_ERROR(on.load(id, config));
    const int64_t rows = std::min(kLongest, on.shape(id).max_positions);
    const int64_t pages = 2 * (rows / kPageRows + 1);
    PoolSize pool{kPageRows, pages, pages};
    pool.retains_top_hidden = device == kBeside;
    TANDEM_RETURN_IF_ERROR(on.allocate_pools(id, pool));
    if (layers == 0) scripted_[device.index()]->add_large(id);
    models_.push_back({id, device});
    return absl::OkStatus();
  }

  SequenceSpec spec_of(ModelId model, std::function<Task<void>(Gen)> method, uint64_t seed,
                       int prompt_tokens, int new_tokens) {
    SequenceSpec spec;
    const ScriptedText text({.vocab_size = shape().vocab_size}, seed, 0);
    for (int i = 0; i < prompt_tokens; ++i) spec.prompt.push_back(text.large(i));
    spec.method = std::move(method);
    spec.cast = make_cast({{Role::kLarge, model, 0}});
    spec.stops.max_new_tokens = new_tokens;
    spec.warp.seed = seed;
    spec.prefix_cache = false;
    return spec;
  }
  std::shared_ptr<Answer> submit(SequenceSpec spec, RequestId* id) {
    auto answer = std::make_shared<Answer>();
    *id = spec.id = ++last_;
    spec.submitted = clock_.now();
    spec.listener = answer;
    loop_->submit(std::move(spec));
    return answer;
  }

  // Destroyed in reverse order.
  SteadyClock clock_;
  Metrics metrics_;
  std::shared_ptr<TorchShared> shared_;
  std::vector<std::unique_ptr<TorchDevice>> devices_;
  std::vector<std::unique_ptr<ScriptedBackend>> scripted_;
  std::vector<LoopModel> models_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
  RequestId last_ = 0;
};

absl::StatusOr<std::vector<int>> parse_numbers(const char* flag, const std::string& value, int low,
                                               int high) {
  std::vector<int> found;
  for (const absl::string_view text : absl::StrSplit(value, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < low || number > high) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", value, "; allowed: numbers in [",
                                                     low, ", ", high, "] and commas"));
    }
    found.push_back(number);
  }
  return found;
}

// One list for all, or one for each early layer and draft vocabulary.
absl::StatusOr<std::vector<Exit>> parse_exits(const Options& o, size_t vocabularies) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> layers,
                          parse_numbers("--exit-layers", o.exit_layers.value_or(""), 1, 1023));
  const std::vector<std::string> rates =
      absl::StrSplit(o.rates.value_or("0.5:0.1:0.1"), absl::ByChar(','));
  if (rates.size() != 1 && rates.size() != layers.size() * vocabularies) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rates: ", *o.rates, "; allowed: one, or ", layers.size() * vocabularies,
                     ", for each of --exit-layers with each of --draft-vocabularies"));
  }
  std::vector<Exit> exits;
  for (size_t i = 0; i < layers.size(); ++i) {
    Exit& exit = exits.emplace_back();
    exit.layer = layers[i];
    for (size_t v = 0; v < vocabularies; ++v) {
      const size_t at = rates.size() == 1 ? 0 : i * vocabularies + v;
      TANDEM_ASSIGN_OR_RETURN(exit.rates.emplace_back(), parse_shares("--rates", rates[at], ':'));
    }
  }
  return exits;
}

std::vector<Contender> contenders_of(const std::vector<Exit>& exits, const std::vector<int>& ks,
                                     const std::vector<int>& vocabularies) {
  std::vector<Contender> all = {{"ar"}, {"ar_both", nullptr, 0, kWholeOnBoth}};
  for (const Exit& exit : exits) {
    for (const bool beside : {false, true}) {
      const char* const how = beside ? "_beside" : "";
      if (beside) all.push_back({"ar_beside", &exit, 0, kWhole, true});
      all.push_back({absl::StrCat("lower", how), &exit, 0, exit.lower, beside});
      for (const int ids : vocabularies) {
        all.push_back({absl::StrCat("phases", how), &exit, 0, kWhole, beside, ids});
      }
    }
    for (size_t v = 0; v < vocabularies.size(); ++v) {
      for (const int k : ks) {
        all.push_back({"ppd", &exit, k, kWhole, false, vocabularies[v], exit.rates[v]});
      }
    }
  }
  return all;
}

std::string json(const std::vector<double>& seconds) {
  std::vector<std::string> numbers;
  for (const double one : seconds) numbers.push_back(absl::StrFormat("%.6f", one));
  return absl::StrCat("[", absl::StrJoin(numbers, ","), "]");
}

std::string json(const Turn& turn) {
  const auto& own = turn.stats.own;
  const auto seconds = [&](size_t figure) { return 1e-9 * static_cast<double>(own[figure]); };
  return absl::StrFormat(
      "{\"seconds\":%.9f,\"lower\":%.9f,\"upper\":%.9f,\"barrier\":%.9f,\"worker\":%.9f,"
      "\"rounds\":%d,\"matches\":%d,\"adopted\":%d,"
      "\"copied_rows\":%d,"
      "\"main_layers\":%d,\"predicted_main_layers\":%d,\"worker_layers\":%d,"
      "\"after_miss\":%s,\"after_match\":%s}",
      turn.seconds, seconds(PpdFigures::kLowerTime), seconds(PpdFigures::kUpperTime),
      seconds(PpdFigures::kBarrierTime), seconds(PpdFigures::kWorkerTime), own[PpdFigures::kRounds],
      own[PpdFigures::kMatches], own[PpdFigures::kAdopted], own[PpdFigures::kCopiedRows],
      own[PpdFigures::kMainLayers], own[PpdFigures::kPredictedMainLayers],
      own[PpdFigures::kWorkerLayers], json(turn.after_miss), json(turn.after_match));
}

absl::Status bench(const Options& o) {
  if (!o.model) return absl::InvalidArgumentError("--model: unset; allowed: a directory or a file");
  if (o.dtype && o.dtype != "int8" && o.dtype != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("--dtype: ", *o.dtype, "; allowed: auto, int8"));
  }
  const int prompt = static_cast<int>(o.prompt_tokens.value_or(64));
  const int tokens = static_cast<int>(o.new_tokens.value_or(64));
  const int turns = static_cast<int>(o.turns.value_or(5));
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<int> vocabularies,
      parse_numbers("--draft-vocabularies", o.draft_vocabularies.value_or("0"), 0, 1 << 24));
  TANDEM_ASSIGN_OR_RETURN(std::vector<Exit> exits, parse_exits(o, vocabularies.size()));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> ks,
                          parse_numbers("--candidates", o.candidates.value_or("1,3"), 1, 16));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Rig> rig, Rig::load(o, &exits));
  const std::vector<Contender> contenders = contenders_of(exits, ks, vocabularies);

  std::vector<std::vector<std::string>> lines(contenders.size());
  for (int turn = -1; turn < turns; ++turn) {  // the first turn is a warm-up
    std::vector<Token> expected, heard;
    for (size_t i = 0; i < contenders.size(); ++i) {
      const size_t c = (i + static_cast<size_t>(turn + 1)) % contenders.size();
      const Contender& one = contenders[c];
      const ModelId* const busy = one.beside ? &one.exit->worker : nullptr;
      TANDEM_ASSIGN_OR_RETURN(const Turn done,
                              rig->run(one, busy, static_cast<uint64_t>(turn + 2), prompt,
                                       turn < 0 ? std::min(tokens, 16) : tokens, &heard));
      if (expected.empty()) expected = heard;
      if (heard != expected) {
        return absl::InternalError(absl::StrCat(one.name, ": its text is not that of the others"));
      }
      if (turn >= 0) lines[c].push_back(json(done));
    }
  }
  std::vector<std::string> cases;
  for (size_t c = 0; c < contenders.size(); ++c) {
    const Contender& one = contenders[c];
    cases.push_back(absl::StrFormat(
        "{\"name\":\"%s\",\"exit\":%d,\"candidates\":%d,\"draft_vocabulary\":%d,\"turns\":[%s]}",
        one.name, one.exit ? one.exit->layer : 0, one.candidates, one.draft_vocabulary,
        absl::StrJoin(lines[c], ",\n")));
  }
  absl::PrintF(
      "{\"prompt_tokens\":%d,\"new_tokens\":%d,\"layers\":%d,\"parameters\":%d,\"dtype\":\"%s\",\n"
      "\"cases\":[%s]}\n",
      prompt, tokens, rig->shape().layers, rig->shape().parameters, rig->shape().dtype,
      absl::StrJoin(cases, ",\n"));
  return absl::OkStatus();
}

int run(const std::vector<std::string>& args) {
  Options o;
  bool help = false;
  Flags flags;
  flags.text("model", "PATH", "a directory or a GGUF file", &o.model);
  flags.text("dtype", "TYPE", "auto or int8 (auto)", &o.dtype);
  flags.text("exit-layers", "LIST", "early layers, each from half of the layers on",
             &o.exit_layers);
  flags.text("candidates", "LIST", "tokens that an early layer proposes (1,3)", &o.candidates);
  flags.text("draft-vocabularies", "LIST", "candidates are ids below this; 0: all (0)",
             &o.draft_vocabularies);
  flags.text("rates", "LIST",
             "how often candidates are right, best first: one for all, or by early layer and draft "
             "vocabulary (0.5:0.1:0.1)",
             &o.rates);
  flags.number("prompt-tokens", "N", "of a prompt (64)", 1, 1024, &o.prompt_tokens);
  flags.number("new-tokens", "N", "of an answer (64)", 2, 900, &o.new_tokens);
  flags.number("turns", "N", "of each (5)", 1, 1000, &o.turns);
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
  std::fprintf(stderr, "bench_ppd: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run({argv + 1, argv + argc}); }
