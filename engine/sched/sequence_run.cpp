#include "engine/sched/sequence_run.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"

namespace tandem {
namespace {

// A pass of more rows, a prompt's, gives its memory back when it is over.
constexpr size_t kKeptRows = 64;

bool contains(const std::vector<Token>& tokens, Token t) {
  return std::find(tokens.begin(), tokens.end(), t) != tokens.end();
}

}  // namespace

SequenceRun::SequenceRun(SequenceSpec spec, uint64_t order, RunHost* host)
    : spec_(std::move(spec)),
      order_(order),
      host_(host),
      prefix_root_{planted(Bug::kIgnoreSalt) ? "" : spec_.salt, AdapterId(), ""},
      tokens_(spec_.prompt) {}

SequenceRun::~SequenceRun() {
  drop_frame();
  release();
}

std::coroutine_handle<> SequenceRun::start() {
  for (const RoleModel& role : spec_.roles) {
    ModelPools* pools = host_->pools(role.model);
    CacheId id;
    for (const auto& held : caches_) {
      if (held->pools() == pools) id = held->id();  // early exit: two roles, one cache
    }
    if (!id.valid()) {
      id = host_->new_cache_id();
      caches_.push_back(std::make_unique<SequenceCache>(id, pools));
    }
    stages_.emplace_back(role.role, Stage{id, role.to > 0 ? role.to : pools->layers});
  }
  task_ = spec_.method(Gen(this));
  return task_.handle();
}

void SequenceRun::release() {
  TANDEM_CHECK(gate.empty());
  publish(tokens_.size());
  if (planted(Bug::kLeakCache)) {
    for (auto& held : caches_) static_cast<void>(held.release());
  }
  caches_.clear();
}

void SequenceRun::take_over(SequenceRun& leader) {
  TANDEM_CHECK(spec_.prompt == leader.spec_.prompt && spec_.salt == leader.spec_.salt);
  TANDEM_CHECK(stages_.size() == leader.stages_.size());
  for (size_t i = 0; i < stages_.size(); ++i) {
    const CacheId id = stages_[i].second.cache;
    SequenceCache* mine = cache(id);
    SequenceCache* theirs = leader.cache(leader.stages_[i].second.cache);
    TANDEM_CHECK(stages_[i].first == leader.stages_[i].first && mine->pools() == theirs->pools());
    if (mine->rows() > 0 || !has_plain_role(id)) continue;
    const auto fed = theirs->fed();
    const auto [end, _] = std::ranges::mismatch(fed, spec_.prompt);
    const auto rows = std::min({static_cast<int>(end - fed.begin()), theirs->reusable(),
                                static_cast<int>(spec_.prompt.size()) - 1});
    if (rows <= 0) continue;
    mine->fork_from(*theirs, rows);
    taken_over_.push_back(id);
  }
}

PageNeed SequenceRun::need_of(const Want& want) {
  PageNeed need = want.cache->need(want.total, want.cache->pools()->layers);
  if (want.frontier_total > 0) {
    need.frontier = want.cache->need(want.frontier_total, want.frontier_to).frontier;
  }
  return need;
}

bool SequenceRun::can_grant(std::vector<const ModelPools*>* lacking) const {
  const auto fits = [](const PageNeed& need, const ModelPools& pools) {
    return need.kv <= pools.kv.available() && need.frontier <= pools.frontier.available();
  };
  if (wants_.size() == 1 && fits(need_of(wants_[0]), *wants_[0].cache->pools())) return true;
  struct Sum {
    PageNeed need;
    std::map<PageId, int> copies;  // of a shared page: by how many caches
  };
  // Needs of one pool add up: a sequence may have several caches in it.
  std::map<const ModelPools*, Sum> sums;
  for (const Want& want : wants_) {
    Sum& sum = sums[want.cache->pools()];
    const PageNeed need = need_of(want);
    sum.need.kv += need.kv;
    sum.need.frontier += need.frontier;
    for (const PageId page : want.cache->shared_pages(want.total)) ++sum.copies[page];
  }
  bool enough = true;
  for (auto& [pools, sum] : sums) {
    // Where all owners of a page copy it, the last one finds itself alone and needs no copy.
    for (const auto& [page, n] : sum.copies) sum.need.kv -= n == pools->kv.users(page) ? 1 : 0;
    if (fits(sum.need, *pools)) continue;
    if (planted(Bug::kOverGrant) && sums.size() > 1) continue;
    enough = false;
    if (!lacking) break;
    lacking->push_back(pools);
  }
  return enough;
}

void SequenceRun::grant() {
  if (!std::exchange(granted_, true)) {
    const int rows = cache(stage(Role::kLarge, 0).cache)->rows();
    stats_.cached_tokens = std::min<int64_t>(rows, static_cast<int64_t>(spec_.prompt.size()));
  }
  for (const Want& w : wants_) {
    if (w.looked_up) host_->prefix_looked_up(w.adoptable, w.adopted);
    w.cache->reserve(w.total, w.cache->pools()->layers);
    if (w.frontier_total > 0) w.cache->reserve(w.frontier_total, w.frontier_to);
  }
  wants_.clear();
}

// Rows of workers and encoders come in other ways than by running the sequence's tokens.
bool SequenceRun::has_plain_role(CacheId id) const {
  return std::any_of(stages_.begin(), stages_.end(), [id](const auto& s) {
    return s.second.cache == id && (s.first == Role::kLarge || s.first == Role::kSmall);
  });
}

void SequenceRun::adopt() {
  if (!spec_.prefix_cache) return;
  for (Want& want : wants_) {
    SequenceCache* c = want.cache;
    if (!c->pools()->prefix_cache || c->rows() > 0 || want.adoptable < c->pools()->page_rows ||
        !has_plain_role(c->id()) || !c->idle()) {
      continue;
    }
    const uint64_t version = c->pools()->prefixes.version();
    if (want.looked_up == version) continue;
    want.looked_up = version;
    want.adopted = c->adopt(prefix_root_, tokens_, want.adoptable);
  }
}

int64_t SequenceRun::first_pages(const ModelPools& pools) const {
  const auto page_rows = static_cast<size_t>(pools.page_rows);
  int64_t pages = static_cast<int64_t>(tokens_.size() / page_rows) + 1;
  if (!pools.prefix_cache || !spec_.prefix_cache) return pages;
  for (const PageId page :
       pools.prefixes.find(prefix_root_, tokens_, (tokens_.size() - 1) / page_rows)) {
    if (pools.kv.users(page) > 0) --pages;
  }
  return pages;
}

// Makes known what the caches hold of the first `tokens` final tokens.
void SequenceRun::publish(size_t tokens) {
  if (!spec_.prefix_cache) return;
  for (const auto& held : caches_) {
    if (!has_plain_role(held->id()) || (!held->idle() && state != kEnding)) continue;
    held->publish(prefix_root_, std::span<const Token>(tokens_).first(tokens));
  }
}

bool SequenceRun::holds_pages() const {
  return std::any_of(caches_.begin(), caches_.end(),
                     [](const auto& c) { return !c->pages().empty(); });
}

bool SequenceRun::holds_pages_of(std::span<const ModelPools* const> pools) const {
  return std::any_of(caches_.begin(), caches_.end(), [&](const auto& c) {
    return !c->pages().empty() && std::find(pools.begin(), pools.end(), c->pools()) != pools.end();
  });
}

bool SequenceRun::shares_pools_with(const SequenceRun& other) const {
  return std::any_of(spec_.roles.begin(), spec_.roles.end(), [&](const RoleModel& a) {
    return std::any_of(other.spec_.roles.begin(), other.spec_.roles.end(),
                       [&](const RoleModel& b) { return a.model == b.model; });
  });
}

void SequenceRun::count_pages_of(std::span<const ModelPools* const> pools,
                                 PageCounts* counts) const {
  for (const auto& held : caches_) {
    if (std::find(pools.begin(), pools.end(), held->pools()) == pools.end()) continue;
    for (const PageId page : held->pages()) ++(*counts)[{held->pools(), page}];
  }
}

void SequenceRun::evict() {
  TANDEM_CHECK(flights == 0);
  publish(tokens_.size());
  for (auto& held : caches_) held->clear();
  for (Want& want : wants_) want.looked_up.reset();
  ++stats_.preemptions;
  if (planted(Bug::kRedrawAfterEviction)) ++spec_.warp.seed;
}

void SequenceRun::add_caches_of(const ModelPools& pools,
                                std::vector<const SequenceCache*>* caches) const {
  for (const auto& held : caches_) {
    if (held->pools() == &pools) caches->push_back(held.get());
  }
}

// By layers too: with early exit, small and large share a cache. By model, not by cache: a forked
// one plays the same part.
Role SequenceRun::role_of(const SequenceCache& of, int to) const {
  for (const auto& [role, stage] : stages_) {
    if (of.model() == cache(stage.cache)->model() && to == stage.to) return role;
  }
  return Role::kSmall;
}

void SequenceRun::account_chunk(const PassFlight& flight, int batch_rows, Duration busy,
                                bool last) {
  const bool large = flight.role == Role::kLarge;
  if (last) ++(large ? stats_.large_passes : stats_.small_passes);
  (large ? stats_.large_seconds : stats_.small_seconds) += seconds(busy);
  batch_rows_sum_ += batch_rows;
  ++chunks_;
}

void SequenceRun::flight_done(PassFlight& flight) {
  --flights;
  flight.cache->end_pass();
  if (flight.memory) flight.memory->end_reader();
  flight.done = true;
  reuse(&flight);
}

void PassFlight::let_go() {
  held = false;
  sequence->reuse(this);
}

void SequenceRun::reuse(PassFlight* flight) {
  if (!flight->done || flight->held || flight->shared) return;
  if (flight->pass.add.size() > kKeptRows) flight->pass = Pass();
  flight->pass.clear();
  flight->readout = Readout();
  spare_.push_back(flight);
}

SequenceEnd SequenceRun::make_end(absl::Status status) const {
  SequenceEnd end;
  end.status = std::move(status);
  end.reason = reason_;
  end.stop_index = stop_index_;
  end.prompt_tokens = static_cast<int64_t>(spec_.prompt.size());
  end.completion_tokens = emitted_;
  end.stats = stats_;
  if (chunks_ > 0) end.stats.mean_batch_rows = batch_rows_sum_ / static_cast<double>(chunks_);
  const TimePoint now = host_->now();
  const bool admitted = state != kWaiting;
  end.stats.queue_seconds = seconds((admitted ? admitted_at : now) - spec_.submitted);
  if (admitted) {
    const bool first = first_token_at != kNever;
    end.stats.prefill_seconds = seconds((first ? first_token_at : now) - admitted_at);
    if (first) end.stats.decode_seconds = seconds(now - first_token_at);
  }
  return end;
}

Stage SequenceRun::stage(Role role, int i) const {
  for (const auto& [r, stage] : stages_) {
    if (r == role && i-- == 0) return stage;
  }
  TANDEM_CHECK(!"the method asked for a role that its deployment does not have");
  return {};
}

int SequenceRun::rows(Stage stage) const { return cache(stage.cache)->rows(stage.to); }

bool SequenceRun::reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) {
  wants_.clear();
  for (const Need& need : needs) {
    SequenceCache* c = cache(need.stage.cache);
    if (c->idle()) c->settle();
    const int layers = c->pools()->layers;
    auto want = std::find_if(wants_.begin(), wants_.end(), [c](const Want& w) {
      return w.cache == c;  // early exit: two stages of one cache
    });
    if (want == wants_.end()) want = wants_.insert(want, {c, 0, layers, 0, INT_MAX});
    const int total = c->rows(need.stage.to) + need.rows;
    want->total = std::max(want->total, total);
    want->adoptable = std::min(want->adoptable, need.reads_from);
    if (need.stage.to >= layers) continue;
    want->frontier_to = std::min(want->frontier_to, need.stage.to);
    want->frontier_total = std::max(want->frontier_total, total);
  }
  for (const Want& want : wants_) {
    if (std::erase(taken_over_, want.cache->id()) > 0) want.cache->truncate(want.adoptable);
  }
  for (const auto& held : caches_) {  // what the last round did not use
    if (!held->idle()) continue;
    held->release_unused();
    held->know(tokens_);
  }
  publish(tokens_.size() - 1);  // the last token's row may still be dropped
  for (Want& want : wants_) {
    const int known = static_cast<int>(tokens_.size()) - 1;
    want.adoptable = std::min({want.adoptable, want.total, known});
  }
  waiter_ = waiter;
  if (!host_->ask_pages(this)) return false;
  waiter_ = nullptr;
  return true;
}

Pass SequenceRun::blank_pass() {
  if (spare_.empty()) return {};
  return std::move(spare_.back()->pass);
}

Flight* SequenceRun::submit(Pass&& pass) {
  if (spare_.empty()) {
    spare_.push_back(passes_.emplace_back(std::make_unique<PassFlight>()).get());
    spare_.back()->sequence = this;
    spare_.back()->request = id();
    spare_.back()->priority = spec_.priority;
  }
  PassFlight* const flight = spare_.back();
  spare_.pop_back();
  SequenceCache* const c = cache(pass.stage.cache);
  if (c->idle()) c->settle();
  flight->id = flight->order = host_->new_ticket_id();
  flight->pass = std::move(pass);
  flight->done = false;
  flight->held = true;
  flight->waiter = nullptr;
  flight->cache = c;
  flight->role = role_of(*c, flight->pass.stage.to);
  flight->device = host_->device_of(c->model());
  prepare(*flight);
  flight->before.clear();
  for (const TicketId ticket : flight->awaits) {
    const auto before = std::find_if(shared_.begin(), shared_.end(),
                                     [ticket](const PassFlight* f) { return f->id == ticket; });
    TANDEM_CHECK(before != shared_.end());  // else it would wait for ever
    flight->before.push_back(*before);
  }
  flight->memory = flight->pass.memory.valid() ? cache(flight->pass.memory) : nullptr;
  if (flight->memory) flight->memory_turn = flight->memory->begin_reader();
  flight->turn = c->begin_pass();
  if (flight->pass.see == See::kAll || flight->memory) {
    c->append_private(flight->pass.stage.to, flight->pass.add);
  } else {
    c->append(flight->pass.stage.to, flight->pass.add);
  }
  ++flights;
  flight->shared = flight->leaves_values;
  if (flight->shared) shared_.push_back(flight);
  host_->enqueue(flight);
  return flight;
}

void SequenceRun::keep(CacheId id, std::span<const Row> path) { idle_cache(id)->keep(path); }
void SequenceRun::truncate(CacheId id, int at_most) { idle_cache(id)->truncate(at_most); }

CacheId SequenceRun::fork(CacheId id) {
  SequenceCache* from = idle_cache(id);
  const CacheId copy = host_->new_cache_id();
  auto forked = std::make_unique<SequenceCache>(copy, from->pools());
  forked->fork_from(*from);
  caches_.push_back(std::move(forked));
  return copy;
}

void SequenceRun::drop(CacheId id) {
  TANDEM_CHECK(std::none_of(stages_.begin(), stages_.end(),
                            [id](const auto& s) { return s.second.cache == id; }));
  const SequenceCache* const dropped = idle_cache(id);
  std::erase_if(caches_, [dropped](const auto& held) { return held.get() == dropped; });
}

void SequenceRun::copy(CacheId from, int begin, int end, CacheId to) {
  SequenceCache* source = idle_cache(from);
  SequenceCache* target = idle_cache(to);
  source->settle();
  host_->order_moves(source->model(), target->model());
  target->copy_from(*source, begin, end);
  host_->order_moves(target->model(), source->model());
}

bool SequenceRun::is_end(Token token) const {
  return contains(spec_.stops.eos, token) || contains(spec_.stops.stop_tokens, token);
}

int SequenceRun::end_tokens() const {
  return static_cast<int>(spec_.stops.eos.size() + spec_.stops.stop_tokens.size());
}

int SequenceRun::remaining() const {
  return spec_.stops.max_new_tokens - static_cast<int>(emitted_);
}

bool SequenceRun::ends(std::span<const Token> tentative) const {
  if (emitted_ + static_cast<int64_t>(tentative.size()) >= spec_.stops.max_new_tokens) return true;
  if (std::any_of(tentative.begin(), tentative.end(), [this](Token t) { return is_end(t); })) {
    return true;
  }
  return spec_.stops.text && spec_.stops.text->would_stop(tentative);
}

bool SequenceRun::emit(std::vector<Emitted> tokens) {
  TANDEM_CHECK(!ended_);
  size_t taken = 0;
  for (Emitted& e : tokens) {
    if (is_end(e.token)) {
      end_with(contains(spec_.stops.eos, e.token) ? FinishReason::kEos : FinishReason::kStopToken);
      if (spec_.stops.include_end) {
        e.end = true;
        ++taken;
        ++emitted_;
      }
      break;
    }
    tokens_.push_back(e.token);
    ++taken;
    ++emitted_;
    ++(e.provenance.proposed == Source::kLarge ? stats_.large_tokens : stats_.small_tokens);
    if (spec_.stops.text) {
      stop_index_ = spec_.stops.text->push(e.token);
      if (stop_index_ >= 0) {
        end_with(FinishReason::kStopSequence);
        break;
      }
    }
    if (emitted_ >= spec_.stops.max_new_tokens) {
      end_with(FinishReason::kMaxTokens);
      if (!planted(Bug::kOvershootStop)) break;
    }
  }
  if (planted(Bug::kDropToken) && taken > 2) --taken;
  tokens.resize(taken);
  if (planted(Bug::kRepeatToken) && taken > 0 && stats_.preemptions > 0) {
    tokens.insert(tokens.begin(), tokens.front());
  }
  if (taken > 0) {
    const TimePoint now = host_->now();
    Series* series = spec_.series;
    if (first_token_at == kNever) {
      first_token_at = now;
      if (series && request == id()) {  // once a request
        series->time_to_first_token.observe(seconds(now - spec_.submitted));
      }
    } else if (series) {
      series->inter_token_latency.observe(seconds(now - last_token_at));
    }
    last_token_at = now;
    if (planted(Bug::kUncountedToken) && ended_) --taken;
    if (series) series->generated_tokens.add(static_cast<int64_t>(taken));
    host_->tokens_emitted(this, static_cast<int64_t>(taken));
    spec_.listener->on_tokens(std::move(tokens));
  }
  return ended_;
}

SequenceCache* SequenceRun::cache(CacheId id) const {
  const auto it = std::find_if(caches_.begin(), caches_.end(),
                               [id](const auto& held) { return held->id() == id; });
  TANDEM_CHECK(it != caches_.end());
  return it->get();
}

SequenceCache* SequenceRun::idle_cache(CacheId id) const {
  SequenceCache* const found = cache(id);
  TANDEM_CHECK(found->idle());
  return found;
}

}  // namespace tandem
