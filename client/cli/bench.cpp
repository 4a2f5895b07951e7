// `tandem bench`: latencies and throughput of a server under a load.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/load_figures.h"
#include "client/cli/load_plan.h"
#include "client/cli/load_report.h"
#include "client/cli/load_run.h"
#include "client/cli/request_flags.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/version.h"

namespace tandem::cli {
namespace {

constexpr char kBenchIntro[] =
    "tandem bench: measures latency, throughput and goodput of a server under load.\n\n"
    "Usage: tandem bench [PROMPT] [flags]\n\n"
    "  tandem bench --concurrency 1,4,16 --requests 64\n"
    "  tandem bench --rate 2,4,8 --limit-first 0.5 --limit-between 0.05 --html report.html\n"
    "  tandem bench --prompts questions.txt --method bild --rate inf --requests 100\n\n"
    "Closed loop (--concurrency): a fixed number of requests at once; each is sent when another\n"
    "ends. Open loop (--rate): Poisson arrivals, independent of earlier requests. Levels run one\n"
    "after the other. Without a prompt, every request has --prompt-tokens random tokens, so no\n"
    "prefix is shared; the end-of-text token is then ignored, so all outputs have one length.\n\n"
    "Exit status: 0 success, 1 no request succeeded, 2 wrong usage.\n";

constexpr int kPromptTokens = 128;
constexpr int kNewTokens = 64;

struct BenchFlags {
  std::optional<std::string> rate, concurrency, prompts, json_file, html_file;
  std::optional<double> requests, prompt_tokens, load_seed, warm_up;
  Limits limits;

  void add_to(CommandLine* line) {
    Flags* const flags = &line->flags;
    flags->section("Load");
    flags->text("concurrency", "LEVELS", "requests at once, as in 1,4,16 (default 1)",
                &concurrency);
    flags->text("rate", "LEVELS", "requests per second, as in 0.5,2; inf: all at once", &rate);
    flags->number("requests", "N", "requests per level (default 64)", 1, 1e6, &requests);
    flags->number("prompt-tokens", "N", "length of random prompts (default 128)", 1, 1e6,
                  &prompt_tokens);
    flags->text("prompts", "FILE", "prompts, one per line, used in turn", &prompts);
    flags->number("load-seed", "N", "seed of arrivals and random prompts (default 0)", 0, 0x1p53,
                  &load_seed);
    flags->number("warm-up", "N", "unmeasured requests before the first level (default 2)", 0, 1000,
                  &warm_up);
    flags->section("Goodput (requests within these limits)");
    flags->number("limit-first", "SECONDS", "time to the first token (default none)", 0, 1e6,
                  &limits.first_seconds);
    flags->number("limit-between", "SECONDS", "mean time between tokens (default none)", 0, 1e6,
                  &limits.between_seconds);
    flags->number("limit-whole", "SECONDS", "time to the end (default none)", 0, 1e6,
                  &limits.whole_seconds);
    flags->section("Output");
    line->add_format();
    flags->text("json", "FILE", "write the figures with all percentiles to FILE", &json_file);
    flags->text("html", "FILE", "write a page with charts to FILE", &html_file);
  }
  int count() const { return static_cast<int>(requests.value_or(64)); }
  uint64_t seed() const { return static_cast<uint64_t>(load_seed.value_or(0)); }
};

// Makes the requests of all levels.
class Requests {
 public:
  // `common`: the request without a prompt, unless the user gave one.
  static absl::StatusOr<Requests> make(const BenchFlags& flags, v1::GenerateRequest common,
                                       int vocabulary, int count) {
    Requests out;
    if (flags.prompts.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(const std::string text, read_input(*flags.prompts));
      out.texts_ = absl::StrSplit(text, '\n', absl::SkipEmpty());
      if (out.texts_.empty()) return out_of_range("--prompts", *flags.prompts, "a line or more");
    } else if (common.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
      const int tokens = static_cast<int>(flags.prompt_tokens.value_or(kPromptTokens));
      out.ids_ = random_prompts(count, tokens, vocabulary, flags.seed());
      if (!common.has_max_new_tokens()) common.set_max_new_tokens(kNewTokens);
      if (!common.has_ignore_eos()) common.set_ignore_eos(true);
    }
    common.set_return_tokens(true);  // to count tokens as they arrive
    out.common_ = std::move(common);
    return out;
  }
  v1::GenerateRequest at(int index) const {
    v1::GenerateRequest out = common_;
    const auto i = static_cast<size_t>(index);
    if (!texts_.empty()) out.set_text(texts_[i % texts_.size()]);
    if (!ids_.empty()) *out.mutable_token_ids()->mutable_ids() = {ids_[i].begin(), ids_[i].end()};
    return out;
  }

 private:
  v1::GenerateRequest common_;
  std::vector<std::string> texts_;
  std::vector<std::vector<int32_t>> ids_;
};

void send(Client* client, const v1::GenerateRequest& request, const Clock& clock, TimePoint begin,
          Sample* sample) {
  const absl::Status ended = client->generate(request, [&](const v1::GenerateResponse& event) {
    if (event.has_started()) sample->prompt_tokens = event.started().prompt_tokens();
    if (event.has_chunk() && event.chunk().tokens_size() > 0) {
      sample->messages.push_back({clock.now() - begin, event.chunk().tokens_size()});
    }
    return true;
  });
  sample->end = clock.now() - begin;
  if (!ended.ok()) sample->error = status_name(ended.code());
}

absl::StatusOr<std::vector<Level>> measure(const BenchFlags& flags, Client* client,
                                           const v1::GenerateRequest& common, int vocabulary) {
  const bool open = flags.rate.has_value();
  std::vector<double> offered;
  if (open && *flags.rate == "inf") {
    offered = {std::numeric_limits<double>::infinity()};
  } else {
    TANDEM_ASSIGN_OR_RETURN(offered,
                            open ? parse_levels("--rate", *flags.rate)
                                 : parse_levels("--concurrency", flags.concurrency.value_or("1")));
  }
  const SteadyClock clock;
  const int count = flags.count();
  const int warm_up = static_cast<int>(flags.warm_up.value_or(2));
  // No prompt is sent twice, so the prefix cache has none of them.
  TANDEM_ASSIGN_OR_RETURN(const Requests requests,
                          Requests::make(flags, common, vocabulary,
                                         warm_up + count * static_cast<int>(offered.size())));
  int first = 0;
  const Send next = [&](int index, TimePoint begin, Sample* sample) {
    send(client, requests.at(first + index), clock, begin, sample);
  };
  closed_loop(clock, warm_up, 1, next);
  first = warm_up;
  std::vector<Level> levels;
  for (const double load : offered) {
    const std::vector<Sample> samples =
        open ? open_loop(clock, poisson_arrivals(load, count, flags.seed()), next)
             : closed_loop(clock, count, std::max(1, static_cast<int>(std::lround(load))), next);
    levels.push_back(level_of(open ? "rate" : "concurrency", load, samples, flags.limits));
    first += count;
  }
  return levels;
}

int save(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (out.flush()) return kSuccess;
  std::fprintf(stderr, "tandem bench: cannot write %s\n", path.c_str());
  return kFailed;
}

std::vector<std::pair<std::string, std::string>> facts_of(const BenchFlags& flags,
                                                          const v1::GenerateRequest& request) {
  std::vector<std::pair<std::string, std::string>> out = {
      {"model", request.model()},
      {"method",
       request.method_case() == v1::GenerateRequest::METHOD_NOT_SET
           ? "the deployment's default"
           : request.GetReflection()
                 ->GetOneofFieldDescriptor(
                     request, v1::GenerateRequest::descriptor()->FindOneofByName("method"))
                 ->name()},
      {"requests per level", absl::StrCat(flags.count())},
      {"load seed", absl::StrCat(flags.seed())},
      {"tandem", absl::StrCat(kVersion, *kCommit ? " " : "", kCommit)}};
  const auto limit = [&out](const char* name, const std::optional<double>& seconds) {
    if (seconds.has_value()) out.emplace_back(name, absl::StrCat(*seconds, " s"));
  };
  limit("limit of the time to the first token", flags.limits.first_seconds);
  limit("limit of the inter-token latency", flags.limits.between_seconds);
  limit("limit of the request latency", flags.limits.whole_seconds);
  return out;
}

absl::StatusOr<int> run_bench(CommandLine& line) {
  RequestFlags request_flags;
  BenchFlags bench;
  bench.add_to(&line);
  request_flags.add_to(&line.flags);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(CommandLine::kAnyNumber));
  if (!go) return kSuccess;
  TANDEM_RETURN_IF_ERROR(request_flags.take_arguments(line.arguments()));
  if (bench.rate.has_value() && bench.concurrency.has_value()) {
    return out_of_range("--rate and --concurrency", "both", "one of them");
  }
  TANDEM_ASSIGN_OR_RETURN(v1::GenerateRequest request,
                          request_flags.has_prompt() ? request_flags.request()
                                                     : request_flags.request_without_prompt());
  TANDEM_RETURN_IF_ERROR(line.connect(request.mutable_model()));
  TANDEM_ASSIGN_OR_RETURN(const v1::Model model, from_server(line.client().model(request.model())));

  TANDEM_ASSIGN_OR_RETURN(const std::vector<Level> levels,
                          measure(bench, &line.client(), request, model.limits().vocab_size()));
  Json out;
  for (const auto& [name, value] : facts_of(bench, request)) out[name] = value;
  out["levels"] = Json::array();
  size_t done = 0;
  for (const Level& level : levels) {
    out["levels"].push_back(to_json(level));
    done += level.done;
  }
  write_out(line.json() ? dump(out) + "\n" : load_table(levels, bench.limits));
  int status = done > 0 ? kSuccess : kFailed;
  if (bench.json_file && save(*bench.json_file, dump(out, true) + "\n") != kSuccess) {
    status = kFailed;
  }
  if (bench.html_file) {
    const std::string page = report_page(facts_of(bench, request), levels, bench.limits);
    if (save(*bench.html_file, page) != kSuccess) status = kFailed;
  }
  for (const Level& level : levels) {
    for (const auto& [name, count] : level.errors) {
      std::fprintf(stderr, "%s %g: %zu requests ended with %s\n", level.load.c_str(), level.offered,
                   count, name.c_str());
    }
  }
  return status;
}

}  // namespace

Command bench_command() {
  return {"bench", "measure latency and throughput under load", kBenchIntro, run_bench};
}

}  // namespace tandem::cli
