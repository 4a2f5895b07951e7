#include "engine/decode/text_history.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/base/check.h"

namespace tandem {
namespace {

size_t blocks_of(int64_t tokens) {
  return std::max<size_t>(
      2, (static_cast<size_t>(tokens) + TextHistory::kBlock - 1) / TextHistory::kBlock);
}

}  // namespace

TextHistory::TextHistory(int64_t tokens)
    : tokens_(blocks_of(tokens) * kBlock, kEnd),
      before_(tokens_.size()),
      after_(tokens_.size(), kUnlinked),
      heads_(std::bit_ceil(tokens_.size())),
      blocks_(blocks_of(tokens)) {
  for (size_t b = blocks_.size(); b > 0; --b) free_.push_back(b - 1);
}

int64_t TextHistory::bytes_of(int64_t tokens) {
  const size_t blocks = blocks_of(tokens), all = blocks * kBlock;
  const size_t queue = all / 4 * sizeof(Token);
  return static_cast<int64_t>(all * (sizeof(Token) + 2 * sizeof(uint32_t)) + queue +
                              std::bit_ceil(all) * sizeof(uint32_t) +
                              blocks * (sizeof(Block) + sizeof(size_t)));
}

// --- Tenants

const TextHistory::Tenant* TextHistory::tenant_of(const std::string& name) const {
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? nullptr : &found->second;
}

size_t TextHistory::held(const std::string& tenant) const {
  const Tenant* const of = tenant_of(tenant);
  return of == nullptr ? 0 : of->blocks * kBlock;
}

TextHistory::Tenant& TextHistory::open(const std::string& name) {
  const auto [place, fresh] = tenants_.try_emplace(name);
  Tenant& tenant = place->second;
  tenant.used = ++time_;
  if (!fresh) return tenant;
  tenant.id = ++ids_;
  // Each tenant can have a block.
  if (tenants_.size() > std::min(kTenants, blocks_.size())) {
    const auto oldest =
        std::ranges::min_element(tenants_, {}, [](const auto& entry) { return entry.second.used; });
    while (oldest->second.blocks > 0) evict_from(oldest->second);
    while (!oldest->second.queue.empty()) drop_queued(oldest->second);
    tenants_.erase(oldest);
  }
  return tenant;
}

// --- Texts

void TextHistory::add(const std::string& tenant, std::span<const Token> text) {
  const size_t most = capacity() / 4;
  text = text.last(std::min(text.size(), most));
  if (text.size() <= kGram) return;
  Tenant& of = open(tenant);
  while (queued_ + text.size() > most) {
    drop_queued(std::ranges::max_element(tenants_, {}, [](const auto& entry) {
                  return entry.second.queued;
                })->second);
  }
  of.queue.emplace_back(text.begin(), text.end());
  of.queued += text.size();
  queued_ += text.size();
}

void TextHistory::drop_queued(Tenant& tenant) {
  const size_t size = tenant.queue.front().size();
  tenant.queued -= size;
  queued_ -= size;
  end_passage(tenant);
  tenant.queue.pop_front();
  tenant.done = tenant.known_for = 0;
  tenant.known = {};
}

void TextHistory::advance(const std::string& tenant) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  found->second.used = ++time_;
  enter(found->second);
}

// A piece of kCompared tokens is looked up before it is written. What follows a known piece is not
// written, as far as the text follows the known one. Where they part, the last tokens before are
// written, so that a look-up finds what is new by as many tokens as a match has.
void TextHistory::enter(Tenant& tenant) {
  for (size_t left = kSlice; left > 0 && !tenant.queue.empty();) {
    const std::span<const Token> text = tenant.queue.front();
    size_t& done = tenant.done;
    if (follow_known(tenant, text)) {
      --left;
      continue;
    }
    const size_t again = std::min(std::exchange(tenant.known_for, 0), kCompared);
    const std::span<const Token> piece =
        text.subspan(done).first(std::min(kCompared, text.size() - done));
    tenant.known = {};
    if (again == 0 && piece.size() == kCompared) {
      const auto token = [&](size_t i) { return text[i]; };
      const Match found = find(tenant, done + piece.size(), token, kCompared);
      if (found.matched == static_cast<int>(kCompared)) tenant.known = found;
    }
    if (!piece.empty()) write(tenant, text.subspan(done - again, again));
    if (tenant.known.matched == 0 || done > 0) write(tenant, piece);
    if (tenant.known.matched > 0) {
      end_passage(tenant);
      tenant.known_for = piece.size();
    }
    done += piece.size();
    left -= std::min(left, again + piece.size());
    if (done == text.size()) drop_queued(tenant);
  }
}

// True: the next token of the text is the next one of the known passage.
bool TextHistory::follow_known(Tenant& tenant, std::span<const Token> text) {
  const Match& known = tenant.known;
  if (known.matched == 0 || tenant.done == text.size() || text[tenant.done] != known.token) {
    return false;
  }
  if (blocks_[known.place / kBlock].number != known.block) return false;  // evicted since
  tenant.known = behind(known);
  ++tenant.known_for;
  ++tenant.done;
  return true;
}

void TextHistory::end_passage(Tenant& tenant) {
  if (tenant.passage > 0) push(tenant, kEnd);
  tenant.passage = 0;
}

void TextHistory::write(Tenant& tenant, std::span<const Token> tokens) {
  for (const Token t : tokens) {
    push(tenant, t);
    if (++tenant.passage < kGram) continue;
    size_t place = tenant.last * kBlock + blocks_[tenant.last].used - 1;
    std::array<Token, kGram> gram;
    const size_t end = place;
    for (size_t i = kGram; i > 0; --i) {
      if (place == kNone) break;  // the block before was evicted
      gram[i - 1] = tokens_[place];
      if (i > 1) place = place_before(place);
    }
    if (place == kNone) continue;
    link(end, bucket(tenant.id, gram));
  }
}

void TextHistory::push(Tenant& tenant, Token token) {
  if (tenant.last == kNone || blocks_[tenant.last].used == kBlock) add_block(tenant);
  const size_t place = tenant.last * kBlock + blocks_[tenant.last].used++;
  tokens_[place] = token;
}

// --- Blocks

void TextHistory::add_block(Tenant& tenant) {
  if (free_.empty()) {
    // Of equal ones the least recently used one: not this tenant, unless it is the only one.
    const auto victim = std::ranges::max_element(tenants_, {}, [](const auto& entry) {
      return std::pair(entry.second.blocks,
                       std::numeric_limits<uint64_t>::max() - entry.second.used);
    });
    evict_from(victim->second);
  }
  const size_t b = free_.back();
  free_.pop_back();
  blocks_[b] = {++numbers_, tenant.id, 0, tenant.last, kNone};
  if (tenant.last != kNone) blocks_[tenant.last].after = b;
  tenant.last = b;
  if (tenant.first == kNone) tenant.first = b;
  ++tenant.blocks;
}

void TextHistory::evict_from(Tenant& tenant) {
  const size_t b = tenant.first;
  tenant.first = blocks_[b].after;
  if (tenant.first == kNone) {
    tenant.last = kNone;
    tenant.passage = 0;
  } else {
    blocks_[tenant.first].before = kNone;
  }
  --tenant.blocks;
  for (size_t i = 0; i < blocks_[b].used; ++i) unlink(b * kBlock + i);
  blocks_[b] = {};
  free_.push_back(b);
}

size_t TextHistory::place_before(size_t place) const {
  if (place % kBlock > 0) return place - 1;
  const size_t before = blocks_[place / kBlock].before;
  return before == kNone ? kNone : before * kBlock + kBlock - 1;
}

size_t TextHistory::place_after(size_t place) const {
  const Block& block = blocks_[place / kBlock];
  if (place % kBlock + 1 < block.used) return place + 1;
  // A block that has a successor is full, and a successor has a token.
  return block.after == kNone ? kNone : block.after * kBlock;
}

// --- Look-ups

size_t TextHistory::bucket(uint64_t tenant, const std::array<Token, kGram>& gram) const {
  uint64_t hash = tenant * 0x9e3779b97f4a7c15;
  for (const Token t : gram) {
    hash = (hash ^ static_cast<uint32_t>(t)) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash & (heads_.size() - 1);
}

void TextHistory::link(size_t place, size_t bucket) {
  const auto number = static_cast<uint32_t>(place + 1);
  before_[place] = std::exchange(heads_[bucket], number);
  after_[place] = kLast | static_cast<uint32_t>(bucket);
  if (before_[place] > 0) after_[before_[place] - 1] = number;
}

void TextHistory::unlink(size_t place) {
  const uint32_t after = std::exchange(after_[place], kUnlinked), before = before_[place];
  if (after == kUnlinked) return;
  ((after & kLast) != 0 ? heads_[after & ~kLast] : before_[after - 1]) = before;
  if (before > 0) after_[before - 1] = after;
}

TextHistory::Match TextHistory::at(size_t place, int matched) const {
  const size_t next = place_after(place);
  if (next == kNone || tokens_[next] == kEnd) return {};
  return {next, blocks_[next / kBlock].number, matched, tokens_[next]};
}

TextHistory::Match TextHistory::behind(const Match& match) const {
  if (match.matched == 0 || blocks_[match.place / kBlock].number != match.block) return {};
  return at(match.place, match.matched);
}

template <class At>
TextHistory::Match TextHistory::find(const Tenant& tenant, size_t size, const At& token,
                                     size_t most) const {
  most = std::min({most, kCompared, size});
  if (most < kGram) return {};
  std::array<Token, kGram> gram;
  for (size_t i = 0; i < kGram; ++i) gram[i] = token(size - kGram + i);
  Match best;
  size_t next = heads_[bucket(tenant.id, gram)];
  int compared = 0;
  for (int i = 0; i < kLinks && compared < kCandidates && next > 0; ++i) {
    const size_t end = next - 1;
    next = before_[end];
    if (blocks_[end / kBlock].tenant != tenant.id) continue;
    size_t matched = 0;
    for (size_t place = end; matched < most && place != kNone; place = place_before(place)) {
      if (tokens_[place] != token(size - 1 - matched)) break;
      ++matched;
    }
    if (matched < kGram) continue;
    ++compared;
    if (static_cast<int>(matched) <= best.matched) continue;
    if (const Match m = at(end, static_cast<int>(matched)); m.matched > 0) best = m;
    if (best.matched == static_cast<int>(most)) break;
  }
  return best;
}

TextHistory::Match TextHistory::find(const std::string& tenant, std::span<const Token> text,
                                     std::span<const Token> tail, int most) const {
  const Tenant* const of = tenant_of(tenant);
  if (of == nullptr || of->blocks == 0 || most < 1) return {};
  const auto token = [&](size_t i) { return i < text.size() ? text[i] : tail[i - text.size()]; };
  return find(*of, text.size() + tail.size(), token, static_cast<size_t>(most));
}

std::string TextHistory::check() const {
  size_t seen = 0, waiting = 0;
  for (const auto& [name, tenant] : tenants_) {
    size_t count = 0, before = kNone;
    for (size_t b = tenant.first; b != kNone; b = blocks_[b].after) {
      const Block& block = blocks_[b];
      if (++count > blocks_.size()) return "a list of blocks has a loop";
      if (block.tenant != tenant.id || block.number == 0) return "a block of another tenant";
      if (block.before != before) return "two blocks do not agree about their order";
      if (block.used == 0 || block.used > kBlock) return "an empty block";
      if (block.after != kNone && block.used < kBlock) return "a block with a gap";
      before = b;
    }
    if (count != tenant.blocks || before != tenant.last) return "the blocks of a tenant";
    seen += count;
    size_t queued = 0;
    for (const std::vector<Token>& text : tenant.queue) queued += text.size();
    if (queued != tenant.queued) return "the queue of a tenant";
    waiting += queued;
  }
  for (const size_t b : free_) {
    if (blocks_[b].number != 0) return "a free block with a number";
  }
  for (size_t place = 0; place < capacity(); ++place) {
    const uint32_t after = after_[place];
    if (after == kUnlinked) continue;
    if (place % kBlock >= blocks_[place / kBlock].used) return "a linked place without a token";
    const uint32_t same = (after & kLast) != 0 ? heads_[after & ~kLast] : before_[after - 1];
    if (same != place + 1) return "two places do not agree about their order";
  }
  if (seen + free_.size() != blocks_.size()) return "a block without an owner";
  if (waiting != queued_ || queued_ > capacity() / 4) return "the queued tokens";
  return tenants_.size() > kTenants ? "too many tenants" : "";
}

}  // namespace tandem
