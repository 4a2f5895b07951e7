// Measures the time of a step by its parts, and by context, sequences, rows and devices, and that
// of reading a prompt. Weights are random or a file's. Prints Markdown tables, and writes all
// numbers to a CSV file. On a device that replays steps, also prints what became of these.
//
//   build/release/bin/bench_step --csv growth.csv
//
// Times are medians of wall times, from launch() to the result.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "bench/torch/runner.h"
#include "engine/backend/torch/profile.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/base/device_name.h"
#include "engine/base/flags.h"

namespace tandem::bench {
namespace {

struct Settings {
  Options options;
  const RandomBlocks* blocks = nullptr;  // of random weights; null: not in blocks
  double seconds = 1.5;                  // per number
  bool least = false;
  int most_context = 8192;
  int most_prompt = 4096;
  std::vector<std::string> only;
  std::vector<std::string> loras;  // paths of LoRA adapters of the file's model
  std::FILE* csv = nullptr;

  bool wants(const char* table) const {
    return only.empty() || std::find(only.begin(), only.end(), table) != only.end();
  }
  // Whether the table was requested by name.
  bool names(const char* table) const { return !only.empty() && wants(table); }
  void put(const char* table, const std::string& model, double x, double milliseconds) const {
    if (csv != nullptr)
      std::fprintf(csv, "%s,%s,%.12g,%.6f\n", table, model.c_str(), x, milliseconds);
  }
};

struct Model {
  std::string name;
  DecoderConfig config;   // of random weights
  std::string path = {};  // of a file's weights instead
};

// The tables of models from files.
constexpr std::string_view kOfFiles[] = {"step",      "parts",   "rows", "context",
                                         "sequences", "prefill", "loras"};

double milliseconds(Seconds s) { return s.count() * 1e3; }
double microseconds(Seconds s) { return s.count() * 1e6; }

// The median, or the least on a machine with other load.
Seconds typical(std::vector<Seconds> times, bool least) {
  const size_t at = least ? 0 : times.size() / 2;
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(at), times.end());
  return times[at];
}

// Repeats f for `seconds`, at least five times.
std::vector<Seconds> repeat(double seconds, const std::function<Seconds()>& f) {
  f();
  std::vector<Seconds> times;
  const auto start = std::chrono::steady_clock::now();
  while (times.size() < 5 || Seconds(std::chrono::steady_clock::now() - start).count() < seconds) {
    times.push_back(f());
  }
  return times;
}

Seconds step_time(const Settings& s, Runner& runner) {
  return typical(repeat(s.seconds, [&] { return runner.run().wall; }), s.least);
}

// The parts of a step: those of the profile, the rest of the device queue's time, and the thread
// switches.
struct Parts {
  static constexpr size_t kCount = StepProfile::kParts + 2;
  static std::string name(size_t i) {
    if (i < StepProfile::kParts) return std::string(StepProfile::kNames[i]);
    return i == StepProfile::kParts ? "the rest of the device queue" : "thread switches";
  }
  static bool kernel(size_t i) { return i < StepProfile::kParts && i != StepProfile::kPlan; }

  std::array<double, kCount> us{};
  double wall = 0;
};

Parts profile(const Settings& s, Runner& runner) {
  std::array<std::vector<Seconds>, Parts::kCount> parts;
  const std::vector<Seconds> walls = repeat(s.seconds, [&] {
    StepProfile::start();
    const Runner::Time t = runner.run();
    const StepProfile::Times times = StepProfile::stop();
    Seconds inside{};
    for (size_t i = 0; i < times.size(); ++i) {
      parts[i].push_back(times[i]);
      inside += times[i];
    }
    parts[times.size()].push_back(t.busy - inside);
    parts[times.size() + 1].push_back(t.wall - t.busy);
    return t.wall;
  });
  Parts p;
  for (size_t i = 0; i < Parts::kCount; ++i) p.us[i] = microseconds(typical(parts[i], s.least));
  p.wall = microseconds(typical(walls, s.least));
  return p;
}

// The shares of the parts for one sequence and one row.
void step_table(const Settings& s, const Model& m, Runner& runner) {
  runner.shape(1, 256, 1);
  const Parts p = profile(s, runner);
  std::printf(
      "\n### %s: one step at batch 1, context 256\n\n| part | µs | share |\n|---|---:|---:|\n",
      m.name.c_str());
  double kernels = 0;
  for (size_t i = 0; i < Parts::kCount; ++i) {
    std::printf("| %s | %.1f | %.1f %% |\n", Parts::name(i).c_str(), p.us[i],
                100 * p.us[i] / p.wall);
    s.put("step", m.name + ":" + Parts::name(i), 1, p.us[i] / 1e3);
    if (Parts::kernel(i)) kernels += p.us[i];
  }
  std::printf("| **step** | %.1f | kernels %.1f %% |\n", p.wall, 100 * kernels / p.wall);
}

// The parts of steps of several rows, compared with one row.
void parts_table(const Settings& s, const Model& m, Runner& runner) {
  struct Case {
    const char* name;
    int sequences, rows, reads;
  };
  constexpr Case kCases[] = {{"1 row", 1, 1, 1},       {"2 rows", 1, 2, 2},
                             {"4 rows", 1, 4, 4},      {"8 rows", 1, 8, 8},
                             {"8 sequences", 8, 1, 1}, {"64 rows, 1 read", 1, 64, 1}};
  std::vector<Parts> parts;
  for (const Case& c : kCases) {
    runner.shape(c.sequences, 256 - c.rows, c.rows, c.reads);
    parts.push_back(profile(s, runner));
  }
  std::printf("\n### %s: parts in µs of passes that end at context 256\n\n| part |",
              m.name.c_str());
  for (const Case& c : kCases) std::printf(" %s |", c.name);
  std::printf("\n|---|");
  for (size_t i = 0; i < parts.size(); ++i) std::printf("---:|");
  std::printf("\n");
  for (size_t i = 0; i < Parts::kCount; ++i) {
    std::printf("| %s |", Parts::name(i).c_str());
    for (size_t c = 0; c < parts.size(); ++c) {
      std::printf(" %.1f |", parts[c].us[i]);
      s.put("parts", m.name + ":" + Parts::name(i) + ":" + kCases[c].name, kCases[c].rows,
            parts[c].us[i] / 1e3);
    }
    std::printf("\n");
  }
  std::printf("| **step** |");
  for (const Parts& p : parts) std::printf(" %.1f |", p.wall);
  std::printf("\n| to one row |");
  for (const Parts& p : parts) std::printf(" %.2f |", p.wall / parts[0].wall);
  std::printf("\n");
}

void context_table(const Settings& s, const Model& m, Runner& runner) {
  std::printf(
      "\n### %s: time of a token by context\n\n| context | ms | above context 64 |\n"
      "|---:|---:|---:|\n",
      m.name.c_str());
  double first = 0;
  for (int context = 64; context <= s.most_context; context *= 2) {
    runner.shape(1, context - 1, 1);
    const double ms = milliseconds(step_time(s, runner));
    if (first == 0) first = ms;
    std::printf("| %d | %.3f | %.3f |\n", context, ms, ms - first);
    s.put("context", m.name, context, ms);
  }
}

void sequences_table(const Settings& s, const Model& m, Runner& runner) {
  std::printf(
      "\n### %s: a step of many sequences, context 256\n\n"
      "| sequences | ms | tokens/s |\n|---:|---:|---:|\n",
      m.name.c_str());
  for (int n = 1; n <= 64; n *= 2) {
    runner.shape(n, 255, 1);
    const double ms = milliseconds(step_time(s, runner));
    std::printf("| %d | %.3f | %.0f |\n", n, ms, 1e3 * n / ms);
    s.put("sequences", m.name, n, ms);
  }
}

// Contexts of a ragged batch: spread evenly, from an eighth of the longest.
std::vector<int> ragged_contexts(const Settings& s) {
  constexpr int kSequences = 32;
  const int most = std::min(s.most_context, 2048);
  std::vector<int> all;
  for (int i = 0; i < kSequences; ++i) {
    all.push_back(most / 8 + (most - most / 8) * i / (kSequences - 1));
  }
  return all;
}

void ragged_table(const Settings& s, const Model& m, Runner& runner) {
  std::vector<int> pasts = ragged_contexts(s);
  const int most = pasts.back();
  for (int& past : pasts) --past;
  runner.shape(pasts, 1);
  const double ms = milliseconds(step_time(s, runner));
  std::printf("\n### %s: a step of %zu sequences, contexts of %d to %d: %.3f ms\n", m.name.c_str(),
              pasts.size(), pasts.front() + 1, most, ms);
  s.put("ragged", m.name, most, ms);
}

void rows_table(const Settings& s, const Model& m, Runner& runner) {
  std::printf(
      "\n### %s: a pass of several rows of one sequence, all read, context 256\n\n"
      "| rows | ms | to one row |\n|---:|---:|---:|\n",
      m.name.c_str());
  double one = 0;
  for (const int rows : {1, 2, 4, 5, 8, 16, 64, 256}) {
    runner.shape(1, 255, rows);
    const double ms = milliseconds(step_time(s, runner));
    if (one == 0) one = ms;
    std::printf("| %d | %.3f | %.2f |\n", rows, ms, ms / one);
    s.put("rows", m.name, rows, ms);
  }
}

// Steps of 1 and 8 sequences with LoRA adapters, and of 64 rows of a prompt. Steps with adapters
// and steps without take turns, so that other load affects both. Time of processors is the better
// measure on a busy machine, with one thread: others spin while they wait.
void loras_table(const Settings& s, const Model& m, Runner& runner) {
  std::printf(
      "\n### %s: a step with LoRA adapters, context 256\n\n"
      "| sequences | rows | adapters | ms without | ms with | without / with "
      "| processor ms without | with | without / with |\n"
      "|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
      m.name.c_str());
  struct Case {
    int sequences, rows;
    size_t loras;
  };
  constexpr Case kCases[] = {{1, 1, 1}, {8, 1, 1}, {8, 1, 8}, {8, 1, 32}, {1, 64, 1}};
  for (const auto& [sequences, rows, loras] : kCases) {
    if (loras > s.loras.size()) continue;
    runner.shape(sequences, 255, rows, 1);
    std::array<std::vector<Seconds>, 2> walls, processors;
    repeat(s.seconds, [&] {
      for (size_t i = 0; i < 2; ++i) {
        runner.adapt(i == 0 ? 0 : static_cast<int>(loras));
        runner.run();  // so that caches hold what such a step leaves in them
        const std::clock_t start = std::clock();
        walls[i].push_back(runner.run().wall);
        processors[i].emplace_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      }
      return walls[1].back();
    });
    std::printf("| %d | %d | %zu |", sequences, rows, loras);
    for (const auto* times : {&walls, &processors}) {
      const double without = milliseconds(typical((*times)[0], s.least));
      const double with = milliseconds(typical((*times)[1], s.least));
      std::printf(" %.3f | %.3f | %.2f |", without, with, without / with);
      const std::string name = m.name + ":" + std::to_string(sequences) + ":" +
                               std::to_string(rows) + (times == &walls ? "" : ":processor");
      s.put("loras", name + ":without", static_cast<double>(loras), without);
      s.put("loras", name + ":with", static_cast<double>(loras), with);
    }
    std::printf("\n");
  }
}

// Prompts in one pass. Only the logits of the last row are read.
void prefill_table(const Settings& s, const Model& m, Runner& runner) {
  std::printf("\n### %s: a prompt in one pass\n\n| tokens | ms | tokens/s |\n|---:|---:|---:|\n",
              m.name.c_str());
  for (const int rows : {512, 4096}) {
    if (rows > s.most_prompt) continue;
    runner.shape(1, 0, rows, 1);
    const double ms = milliseconds(step_time(s, runner));
    std::printf("| %d | %.3f | %.0f |\n", rows, ms, 1e3 * rows / ms);
    s.put("prefill", m.name, rows, ms);
  }
}

// What became of the steps that graphs can run.
void put_graphs(const Settings& s, const Model& m, const Runner& runner) {
  const GraphCounts counts = runner.graph_counts();
  if (counts.replayed + counts.launched == 0) return;
  std::printf("\n%s: graphs captured %lld, refused %lld; steps replayed %lld, launched %lld\n",
              m.name.c_str(), static_cast<long long>(counts.captured),
              static_cast<long long>(counts.refused), static_cast<long long>(counts.replayed),
              static_cast<long long>(counts.launched));
  if (counts.refused > 0) std::printf("last refusal: %s\n", counts.reason.c_str());
  for (const auto& [name, count] : {std::pair("captured", counts.captured),
                                    {"refused", counts.refused},
                                    {"replayed", counts.replayed},
                                    {"launched", counts.launched}}) {
    s.put("graphs", m.name + ":" + name, static_cast<double>(count), 0);
  }
}

// Calls f(i) repeatedly in n threads. The result is the total number of calls per second.
double rate(int n, double seconds, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  std::vector<int64_t> calls(static_cast<size_t>(n));
  std::atomic<int> ready{0};
  std::atomic<bool> go{false}, stop{false};
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([&, i] {
      f(i);
      ++ready;
      while (!go) std::this_thread::yield();
      int64_t count = 0;
      for (; !stop; ++count) f(i);
      calls[static_cast<size_t>(i)] = count;
    });
  }
  while (ready < n) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go = true;
  std::this_thread::sleep_for(Seconds(seconds));
  stop = true;
  for (std::thread& t : threads) t.join();
  const double took = Seconds(std::chrono::steady_clock::now() - start).count();
  int64_t all = 0;
  for (const int64_t c : calls) all += c;
  return static_cast<double>(all) / took;
}

// The scaling of two devices of one thread each, compared with that of a loop that reads as many
// bytes as the model's weights.
void devices_table(const Settings& s, const Model& m, const RandomWeights& weights) {
  Options one = s.options;
  one.threads = 1;
  std::vector<std::unique_ptr<Runner>> runners;
  for (int i = 0; i < 2; ++i) {
    runners.push_back(std::make_unique<Runner>(m.config, weights, one, 1024, i));
    runners.back()->shape(1, 256, 1);
  }
  const auto floats = static_cast<size_t>(runners[0]->weight_bytes()) / sizeof(float);
  std::vector<std::vector<float>> memory(2, std::vector<float>(floats, 1.f));
  std::vector<float> sums(64);
  const auto probe = [&](int i) {
    float lane[16] = {};
    const std::vector<float>& x = memory[static_cast<size_t>(i)];
    for (size_t k = 0; k + 16 <= x.size(); k += 16) {
      for (size_t l = 0; l < 16; ++l) lane[l] += x[k + l];
    }
    for (const float l : lane) sums[static_cast<size_t>(i) * 32] += l;
  };
  const auto step = [&](int i) { runners[static_cast<size_t>(i)]->run(); };
  // Interleaved, so that other load on the machine affects all measurements alike.
  std::vector<double> device_scale, probe_scale;
  double device_one = 0;
  for (int i = 0; i < 5; ++i) {
    device_one = rate(1, s.seconds / 2, step);
    device_scale.push_back(rate(2, s.seconds / 2, step) / device_one);
    const double probe_one = rate(1, s.seconds / 2, probe);
    probe_scale.push_back(rate(2, s.seconds / 2, probe) / probe_one);
  }
  std::sort(device_scale.begin(), device_scale.end());
  std::sort(probe_scale.begin(), probe_scale.end());
  std::printf(
      "\n### %s: two virtual devices of one thread each, batch 1, context 256\n\n"
      "| | one | two at once | scaling |\n|---|---:|---:|---:|\n"
      "| steps/s | %.1f | %.1f | %.2f |\n| a loop that reads as many bytes | | | %.2f |\n"
      "| devices / loop | | | %.0f %% |\n",
      m.name.c_str(), device_one, device_one * device_scale[2], device_scale[2], probe_scale[2],
      100 * device_scale[2] / probe_scale[2]);
  s.put("devices", m.name, 2, device_scale[2]);
  s.put("devices:probe", m.name, 2, probe_scale[2]);
}

void measure_file(const Settings& s, const Model& m) {
  Runner runner(m.path, s.options, 64 * 272, s.loras);
  s.put("weights", m.name, static_cast<double>(runner.weight_bytes()), 0);
  if (s.wants("step")) step_table(s, m, runner);
  if (s.wants("parts")) parts_table(s, m, runner);
  if (s.wants("rows")) rows_table(s, m, runner);
  if (s.wants("context")) context_table(s, m, runner);
  if (s.wants("sequences")) sequences_table(s, m, runner);
  if (s.names("prefill")) prefill_table(s, m, runner);
  if (s.names("loras")) loras_table(s, m, runner);
  put_graphs(s, m, runner);
  std::fflush(stdout);
}

void measure(const Settings& s, const Model& m) {
  if (!m.path.empty()) return measure_file(s, m);
  const RandomWeights weights(m.config, s.blocks);
  if (s.wants("step") || s.wants("parts") || s.wants("context") || s.wants("sequences") ||
      s.wants("rows") || s.names("prefill")) {
    Runner runner(m.config, weights, s.options, 64 * 272);
    if (s.wants("step")) step_table(s, m, runner);
    if (s.wants("parts")) parts_table(s, m, runner);
    if (s.wants("rows")) rows_table(s, m, runner);
    if (s.wants("context")) context_table(s, m, runner);
    if (s.wants("sequences")) sequences_table(s, m, runner);
    if (s.names("prefill")) prefill_table(s, m, runner);
    put_graphs(s, m, runner);
  }
  if (s.names("ragged")) {
    int64_t rows = 0;
    for (const int context : ragged_contexts(s)) rows += context + s.options.page_rows;
    Runner runner(m.config, weights, s.options, rows);
    ragged_table(s, m, runner);
    put_graphs(s, m, runner);
  }
  if (s.wants("devices")) devices_table(s, m, weights);
  std::fflush(stdout);
}

// The named built-in models, or all of them; or the shapes of folders, as NAME=FOLDER; or models
// with weights, as NAME=PATH.
absl::StatusOr<std::vector<Model>> choose_models(const std::vector<std::string>& names,
                                                 const std::vector<std::string>& folders,
                                                 const std::vector<std::string>& files) {
  std::vector<Model> models;
  for (const std::string& text : files) {
    const std::pair<std::string, std::string> file = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (!std::filesystem::exists(file.second)) {
      return absl::NotFoundError("--file: " + text + "; allowed: NAME=PATH of a file or folder");
    }
    models.push_back({file.first, {}, file.second});
  }
  for (const std::string& text : folders) {
    const std::pair<std::string, std::string> shape = absl::StrSplit(text, absl::MaxSplits('=', 1));
    absl::StatusOr<DecoderConfig> config = load_hf_config(shape.second);
    if (!config.ok()) return config.status();
    config->max_positions = code_large().max_positions;  // for all tables
    models.push_back({shape.first, *std::move(config)});
  }
  const bool others = !models.empty();
  const std::vector<Model> known = {{"code-large", code_large()}, {"llama-110m", llama_110m()}};
  for (const Model& m : known) {
    const bool named = std::find(names.begin(), names.end(), m.name) != names.end();
    if (named || (names.empty() && !others)) models.push_back(m);
  }
  return models;
}

int run(const std::vector<std::string>& args) {
  Settings s;
  std::vector<std::string> names, folders, files;
  std::optional<std::string> csv, device, dtype, kv_dtype;
  std::optional<double> threads, seconds, page_rows, most_context, most_prompt;
  bool help = false, no_graphs = false;
  Flags flags;
  flags.texts("model", "NAME", "code-large, llama-110m; several times for several (both)", &names);
  flags.texts("shape", "NAME=FOLDER", "instead: the shape in FOLDER/config.json; repeatable",
              &folders);
  flags.texts("file", "NAME=PATH", "instead: a GGUF file or a model's folder; repeatable", &files);
  flags.texts("table", "NAME",
              "step, parts, rows, context, sequences, devices (these), ragged, prefill, loras",
              &s.only);
  flags.texts("lora", "PATH", "with --file and the table loras: a LoRA adapter; repeatable",
              &s.loras);
  flags.text("csv", "FILE", "all numbers: table,model,x,milliseconds", &csv);
  flags.text("device", "NAME", "the (first) device: cpu:0 or cuda:0 (cpu:0)", &device);
  flags.text("dtype", "TYPE", "fp32, bf16, fp16, fp8, int8, int4, or blocks: q4_0, .. q6_k (fp32)",
             &dtype);
  flags.text("kv-dtype", "TYPE", "of keys and values: fp32 or bf16 (fp32)", &kv_dtype);
  flags.number("threads", "N", "of a CPU device (2)", 1, 1024, &threads);
  flags.number("page-rows", "N", "rows of a KV page (16)", 1, 1024, &page_rows);
  flags.number("most-context", "N", "of the table context (8192)", 64, 16384, &most_context);
  flags.number("most-prompt", "N", "of the table prefill (4096)", 512, 4096, &most_prompt);
  flags.number("seconds", "S", "time spent on each number (1.5)", 0.01, 600, &seconds);
  flags.toggle("least", "least times instead of medians, for a machine with other load", &s.least);
  flags.toggle("no-graphs", "on CUDA, launch every kernel instead of replaying graphs", &no_graphs);
  flags.toggle("help", "this text", &help);
  const auto rest = flags.parse(args);
  bool good = rest.ok() && rest->empty();
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFp8,
                           DType::kInt8, DType::kInt4}) {
    if (dtype.value_or("fp32") == dtype_name(type)) s.options.dtype = type;
  }
  for (const RandomBlocks& blocks : kRandomBlocks) {
    if (dtype.value_or("fp32") != block_name(blocks)) continue;
    s.blocks = &blocks;
    s.options.dtype = DType::kStored;
  }
  good = good && (s.blocks != nullptr || dtype.value_or("fp32") == dtype_name(s.options.dtype));
  const absl::StatusOr<DeviceConfig> named = parse_device(device.value_or("cpu:0"));
  if (good && !named.ok()) {
    std::fprintf(stderr, "--device: %s; allowed: %s\n", device->c_str(), kDeviceRule);
    return 2;
  }
  if (named.ok()) s.options.device = *named;
  s.options.device.graphs = !no_graphs;
  if (!good || help) {
    const std::string error = rest.ok() ? "" : std::string(rest.status().message()) + "\n";
    std::fprintf(stderr, "%s%s", error.c_str(), flags.help().c_str());
    return help ? 0 : 2;
  }
  for (const std::string& table : s.only) {
    if (files.empty() ? table != "loras"
                      : std::ranges::find(kOfFiles, table) != std::end(kOfFiles)) {
      continue;
    }
    std::fprintf(stderr,
                 "--table: %s; allowed with --file: step, parts, rows, context, sequences, "
                 "prefill, loras\n",
                 table.c_str());
    return 2;
  }
  if (dtype && !files.empty()) {
    std::fprintf(stderr, "--dtype: %s; allowed: unset with --file\n", dtype->c_str());
    return 2;
  }
  s.seconds = seconds.value_or(s.seconds);
  s.options.threads = static_cast<int>(threads.value_or(s.options.threads));
  s.options.page_rows = static_cast<int>(page_rows.value_or(s.options.page_rows));
  s.most_context = static_cast<int>(most_context.value_or(s.most_context));
  s.most_prompt = static_cast<int>(most_prompt.value_or(s.most_prompt));
  if (kv_dtype.value_or("fp32") == "bf16") s.options.kv_dtype = DType::kBFloat16;
  if (csv) {
    s.csv = std::fopen(csv->c_str(), "w");
    if (s.csv == nullptr) {
      std::perror(csv->c_str());
      return 1;
    }
    std::fputs("table,model,x,milliseconds\n", s.csv);
  }
  const absl::StatusOr<std::vector<Model>> models = choose_models(names, folders, files);
  if (!models.ok()) {
    std::fprintf(stderr, "%s\n", std::string(models.status().message()).c_str());
    return 2;
  }
  for (const Model& m : *models) {
    if (s.blocks == nullptr || RandomWeights::fits(m.config, *s.blocks)) continue;
    std::fprintf(stderr, "--dtype: %s; allowed with %s: types whose blocks divide its rows\n",
                 dtype->c_str(), m.name.c_str());
    return 2;
  }
  for (const Model& m : *models) measure(s, m);
  if (s.csv != nullptr) std::fclose(s.csv);
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::run({argv + 1, argv + argc}); }
