#include "engine/sched/flight.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/pass/token_history.h"

namespace tandem {
namespace {

// The longest prefix of added rows that can run before the rest: a chain of which later rows have
// only the last row as a parent, and which no indivisible read contains.
int splittable_rows(const Pass& pass) {
  if (pass.see == See::kAll) return 0;
  const auto& parent = pass.add.parent;
  const int n = static_cast<int>(parent.size());
  if (n <= 1) return 0;
  // min_parent[i]: smallest parent among rows i .. n-1.
  std::vector<Row> min_parent(static_cast<size_t>(n) + 1, n);
  for (int i = n - 1; i >= 0; --i) {
    const auto k = static_cast<size_t>(i);
    min_parent[k] = std::min(min_parent[k + 1], parent[k]);
  }
  int limit = n - 1;
  for (const Read& read : pass.read) {
    if (!read.keep && !read.judges()) continue;
    for (const Row row : read.rows) limit = std::min(limit, std::max(row, 0));
  }
  int best = 0;
  for (int i = 1; i <= limit; ++i) {
    if (parent[static_cast<size_t>(i) - 1] != i - 2) break;
    if (min_parent[static_cast<size_t>(i)] >= i - 1) best = i;
  }
  return best;
}

// Gives the work what its outputs with penalties need: the tokens of rows not counted before.
void lower_history(const PassFlight& flight, Work* work) {
  work->token_history.reset();
  work->history_begin = 0;
  work->history.clear();
  work->history_chosen.clear();
  const bool counts = std::ranges::any_of(work->outputs, [&](const Work::Output& output) {
    const Warp& warp = flight.pass.read[static_cast<size_t>(output.read)].warp;
    return warp.processors && warp.processors->counts_tokens();
  });
  if (!counts) return;
  const int n = work->rows_before();
  work->token_history = flight.cache->token_history();
  work->history_begin = std::min(work->token_history->known(), n);
  const auto inputs = flight.cache->inputs().subspan(static_cast<size_t>(work->history_begin),
                                                     static_cast<size_t>(n - work->history_begin));
  work->history.assign(inputs.begin(), inputs.end());
  for (const auto& [row, in] : flight.cache->chosen()) {
    if (row >= work->history_begin && row < n) work->history_chosen.emplace_back(row, in);
  }
}

}  // namespace

bool PassFlight::may_run() const {
  if (late != nullptr && late->load()) return false;
  if (!cache->all_launched_before(turn)) return false;
  if (!begun &&
      !cache->transfers_allow(past, frontier, cache->pools()->retains_hidden(pass.stage.to))) {
    return false;
  }
  if (memory && !(memory_device == device ? memory->all_launched_before(memory_turn)
                                          : memory->all_done_before(memory_turn))) {
    return false;
  }
  if (!linked || mutated(Mutation::kLaunchBeforeInput)) return true;
  return std::all_of(before.begin(), before.end(), [this](const PassFlight* f) {
    return f->done || (f->device == device && f->launched());
  });
}

bool PassFlight::follows() const {
  return !cache->all_done_before(turn) || (memory && !memory->all_done_before(memory_turn)) ||
         (linked && std::ranges::any_of(before, [](const PassFlight* f) { return !f->done; }));
}

void prepare(PassFlight& flight) {
  const Pass& pass = flight.pass;
  flight.base = flight.cache->rows();
  flight.past = flight.cache->rows(pass.stage.to);
  flight.frontier.clear();
  if (flight.past < flight.base) flight.frontier = flight.cache->frontier_from(pass.stage.to);
  flight.splittable = splittable_rows(pass);
  flight.outputs = flight.started = 0;
  flight.begun = flight.under_way = false;
  if (flight.linked) {
    flight.awaits.clear();
    flight.before.clear();
    flight.values.clear();
    flight.embeds.clear();
  }
  flight.linked = flight.leaves_values = pass.share;
  for (const In& in : pass.add.in) {
    if (in.kind != In::kChosen && in.kind != In::kEmbed) continue;
    flight.linked = true;
    flight.awaits.push_back(in.ref.ticket);
  }
  for (const Read& read : pass.read) {
    flight.leaves_values |= read.keep || read.hidden;
    flight.outputs += static_cast<int>(read.rows.size());
    if (read.against.valid()) {
      flight.linked = true;
      flight.awaits.push_back(read.against.ticket);
      flight.awaits.insert(flight.awaits.end(), read.against.more.begin(), read.against.more.end());
    }
    for (const Row row : read.rows) {
      TANDEM_CHECK(row < flight.rows() && row >= -static_cast<Row>(flight.frontier.size()));
    }
  }
  flight.linked |= flight.leaves_values;
}

// Sets every field, as `to` is reused.
void lower(const PassFlight& flight, int count, Work* to) {
  Work& work = *to;
  const Pass& pass = flight.pass;
  const SequenceCache& cache = *flight.cache;
  const bool first_chunk = !flight.begun;
  work.pass = &pass;
  work.ticket = flight.id;
  work.request = flight.request;
  work.model = cache.model();
  work.lora = flight.lora;
  work.cache = cache.id();
  work.to = pass.stage.to;
  work.first = flight.started;
  work.count = count;
  work.last = work.first + count == flight.rows();
  work.late = flight.late;
  work.past = first_chunk ? flight.past : flight.base + flight.started;
  work.frontier.clear();
  if (first_chunk && !flight.frontier.empty()) {
    work.frontier.assign(flight.frontier.begin(), flight.frontier.end());
  }
  if (mutated(Mutation::kStaleFrontier)) {
    for (int& done : work.frontier) --done;
  }
  const int page_rows = cache.pools()->page_rows;
  const auto pages = static_cast<size_t>((work.rows_before() + count + page_rows - 1) / page_rows);
  work.pages = cache.pages().first(pages);
  work.save_frontier = cache.pools()->retains_hidden(work.to);
  work.frontier_pages.clear();
  if (work.save_frontier || !work.frontier.empty()) {
    const auto frontier = cache.frontier_pages();
    work.frontier_pages.assign(frontier.begin(), frontier.begin() + static_cast<ptrdiff_t>(std::min(
                                                                        pages, frontier.size())));
  }
  const SequenceCache* const memory = flight.memory;
  work.memory = memory ? memory->id() : CacheId();
  work.memory_model = memory ? memory->model() : ModelId();
  work.memory_rows = memory ? memory->rows() : 0;
  work.memory_pages.clear();
  if (memory) work.memory_pages.assign(memory->pages().begin(), memory->pages().end());
  work.embeds.clear();
  if (flight.linked) {
    for (const Work::Embed& e : flight.embeds) {
      if (e.row >= work.first && e.row < work.first + count) work.embeds.push_back(e);
    }
  }
  work.outputs.clear();
  int out = 0;
  for (size_t r = 0; r < pass.read.size(); ++r) {
    const RowList& rows = pass.read[r].rows;
    for (size_t i = 0; i < rows.size(); ++i, ++out) {
      const Row row = rows[i];
      const bool here = row < 0 ? first_chunk : row >= work.first && row < work.first + count;
      if (!here) continue;
      Work::Output output;
      output.read = static_cast<int>(r);
      output.index = static_cast<int>(i);
      output.run_row = work.frontier_rows() + (row < 0 ? row : row - work.first);
      output.out = out;
      if (pass.read[r].hidden) output.value = flight.values[static_cast<size_t>(out)];
      work.outputs.push_back(output);
    }
  }
  lower_history(flight, &work);
}

void absorb(PassFlight& flight, const Work& work, Readout&& chunk) {
  TANDEM_CHECK(chunk.row.size() == work.outputs.size());
  if (work.last && !work.outputs.empty() &&
      static_cast<int>(work.outputs.size()) == flight.outputs) {
    flight.readout = std::move(chunk);  // the common case: one chunk has all answers
    return;
  }
  Readout& whole = flight.readout;
  whole.row.resize(static_cast<size_t>(flight.outputs));
  flight.top_range.resize(static_cast<size_t>(flight.outputs));
  for (size_t i = 0; i < chunk.row.size(); ++i) {
    const auto out = static_cast<size_t>(work.outputs[i].out);
    whole.row[out] = chunk.row[i];
    flight.top_range[out] = {static_cast<int>(whole.ranked.size()),
                             static_cast<int>(chunk.row[i].top.size())};
    whole.ranked.insert(whole.ranked.end(), chunk.row[i].top.begin(), chunk.row[i].top.end());
  }
  whole.accepted += chunk.accepted;
  if (whole.pooled.empty()) {
    whole.pooled = std::move(chunk.pooled);
  } else {
    for (size_t i = 0; i < chunk.pooled.size(); ++i) whole.pooled[i] += chunk.pooled[i];
  }
  if (!work.last) return;
  for (size_t out = 0; out < whole.row.size(); ++out) {
    const auto [begin, n] = flight.top_range[out];
    whole.row[out].top = std::span<const Ranked>(whole.ranked)
                             .subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
  }
}

}  // namespace tandem
