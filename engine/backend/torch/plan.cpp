#include "engine/backend/torch/plan.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/base/status.h"
#include "engine/pass/rows.h"

namespace tandem {
namespace {

absl::Status out_of_bounds(absl::string_view what, int64_t value, int64_t limit) {
  return absl::InternalError(absl::StrCat(what, ": ", value, "; limit: ", limit));
}

absl::Status check_pages(std::span<const PageId> pages, int first, int rows, int page_rows,
                         int64_t count, absl::string_view what) {
  if (rows <= first) return absl::OkStatus();
  const int last = (rows - 1) / page_rows;
  if (static_cast<size_t>(last) >= pages.size()) {
    return out_of_bounds(absl::StrCat(what, " beyond the page table"), last,
                         static_cast<int64_t>(pages.size()));
  }
  for (int i = first / page_rows; i <= last; ++i) {
    const PageId page = pages[static_cast<size_t>(i)];
    if (!page.valid() || page.value >= count) return out_of_bounds(what, page.value, count);
  }
  return absl::OkStatus();
}

absl::Status check_late(const Work& work) {
  if (work.late == nullptr || !work.late->load()) return absl::OkStatus();
  return absl::AbortedError("answers of its sequence are late");
}

absl::Status check_head(const Read& read, int to, const ModelShape& shape) {
  if (read.head == kOwnHead) return absl::OkStatus();
  if (!read.head.valid() || read.head.index() >= shape.heads.size()) {
    return out_of_range("head", read.head.value,
                        shape.heads.empty()
                            ? "the model's own: no early head is loaded"
                            : absl::StrCat("the model's own, 0 to ", shape.heads.size() - 1));
  }
  const HeadShape& head = shape.heads[read.head.index()];
  const int at = read.at == kTop ? to : read.at;
  if (at == head.layer) return absl::OkStatus();
  return out_of_range("read layer", at, absl::StrCat(head.layer, " with head ", head.name));
}

int64_t slot_of(std::span<const PageId> pages, int row, int page_rows) {
  return static_cast<int64_t>(pages[static_cast<size_t>(row / page_rows)].value) * page_rows +
         row % page_rows;
}

}  // namespace

void Plan::build(const Batch& batch, const ModelShape& shape, const PoolSize& pool,
                 const ValueStore& store, const WidthOf& width_of, const MemoryOf& memory_of,
                 const CachedOf& cached_of, const HasLora& has_lora) {
  items.assign(batch.works.size(), {});
  token.clear();
  chosen.clear();
  masks.clear();
  embedded.clear();
  replaced.clear();
  columns.clear();
  extra.clear();
  pages.clear();
  memory = {};
  zeros.clear();
  load.clear();
  save.clear();
  captures.clear();
  heads.clear();
  reads = pooled = adapted_rows = 0;
  from_.clear();
  to_.clear();
  additions_.clear();
  for (size_t i = 0; i < batch.works.size(); ++i) {
    const Work& work = batch.works[i];
    Item& item = items[i];
    item.first_row = rows();
    item.first_read = reads;
    item.first_pooled = pooled;
    item.status = check_late(work);
    if (item.status.ok()) item.status = check(work, shape, pool, memory_of, has_lora);
    if (item.status.ok()) item.status = resolve_inputs(work, shape, store, width_of, cached_of);
    if (!item.status.ok()) continue;
    add_rows(work, shape, pool);
    if (shape.encodes || shape.bidirectional) {
      see_all(work, shape.local_window);
    } else {
      add_visibility(work, shape);
    }
    if (shape.reads_memory) add_memory(work);
    add_frontier(work, pool);
    add_reads(work, item);
  }
  if (!chosen.empty()) chosen.resize(token.size());
  mark_replaced();
  cut_segments();
}

void Plan::resolve_chosen(const Batch& batch, const ValueStore& store) {
  if (chosen.empty()) return;
  for (size_t w = 0; w < items.size(); ++w) {
    const Work& work = batch.works[w];
    Item& item = items[w];
    for (int i = 0; item.status.ok() && i < work.count; ++i) {
      const auto row = static_cast<size_t>(item.first_row + work.frontier_rows() + i);
      if (chosen[row].answer < 0) continue;
      const In& in = work.pass->add.in[static_cast<size_t>(work.first + i)];
      const absl::StatusOr<Token> t = store.pick(in.ref, in.id);
      item.status = t.status();
      if (t.ok()) token[row] = *t;
    }
  }
}

void Plan::mark_replaced() {
  const auto mark = [this](const RowCopies& copies) {
    if (replaced.empty()) replaced.assign(token.size(), -1);
    for (const int64_t row : copies.to) replaced[static_cast<size_t>(row)] = 0;
  };
  for (const MaskRows& m : masks) mark(m.copies);
  for (const EmbeddedRows& e : embedded) {
    if (e.replace) mark(e.copies);
  }
}

// Checks that a pass that sees all of its rows is whole, and that a pass with cross-attention names
// its memory.
absl::Status Plan::check_memory(const Work& work, const ModelShape& shape,
                                const MemoryOf& memory_of) {
  const Pass& pass = *work.pass;
  const bool sees_all = shape.encodes || shape.bidirectional;
  if ((pass.see == See::kAll) != sees_all) {
    return absl::InvalidArgumentError(
        absl::StrCat("pass that sees ", sees_all ? "rows before its own" : "all of its rows",
                     "; allowed: ", sees_all ? "all (" : "those before (", shape.name,
                     shape.encodes ? " is an encoder)"
                     : sees_all    ? " is bidirectional)"
                                   : " is a decoder)"));
  }
  const bool whole = work.rows_before() == 0 && work.first == 0 && work.to == shape.layers &&
                     static_cast<size_t>(work.count) == pass.add.size();
  if (sees_all && !whole) {
    return out_of_bounds(shape.encodes ? "rows of an encoder's pass" : "rows of a pass", work.count,
                         work.to);
  }
  const bool reads = pass.memory.valid() || work.memory_rows > 0;
  if (reads != shape.reads_memory) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows of the pass's memory: ", work.memory_rows,
        "; allowed: ", shape.reads_memory ? "1 or more" : "none", " (", shape.architecture, ")"));
  }
  if (!reads) return absl::OkStatus();
  const PoolSize* const pool = memory_of(work.memory_model);
  if (pool == nullptr || work.memory_rows < 1 || (memory.valid() && memory != work.memory_model)) {
    return out_of_bounds("encoder of a pass", work.memory_model.value, memory.value);
  }
  TANDEM_RETURN_IF_ERROR(check_pages(work.memory_pages, 0, work.memory_rows, pool->page_rows,
                                     pool->pages, "memory page"));
  memory = work.memory_model;
  return absl::OkStatus();
}

absl::Status Plan::check(const Work& work, const ModelShape& shape, const PoolSize& pool,
                         const MemoryOf& memory_of, const HasLora& has_lora) {
  const Pass& pass = *work.pass;
  TANDEM_RETURN_IF_ERROR(check_memory(work, shape, memory_of));
  if (pass.adapter.valid() && pass.adapter.index() >= shape.adapters.size()) {
    return out_of_range("adapter", pass.adapter.value,
                        shape.adapters.empty() ? "none: no adapter of this model is loaded"
                                               : absl::StrCat("0 to ", shape.adapters.size() - 1));
  }
  if (work.lora.valid() && (!has_lora || !has_lora(work.lora))) {
    return out_of_range("lora", work.lora.value, "LoRA adapters of the model that are loaded");
  }
  if (work.to < 1 || work.to > shape.layers) return out_of_bounds("layer", work.to, shape.layers);
  if (work.past < 0 || work.first < 0 || work.count < 0 ||
      static_cast<size_t>(work.first + work.count) > pass.add.size() ||
      pass.add.parent.size() != pass.add.in.size()) {
    return out_of_bounds("added row", work.first + work.count,
                         static_cast<int64_t>(pass.add.size()));
  }
  for (int i = work.first; i < work.first + work.count; ++i) {
    const Row parent = pass.add.parent[static_cast<size_t>(i)];
    if (parent < -1 || parent >= i) return out_of_bounds("parent", parent, i);
  }
  for (size_t i = 0; i < work.frontier.size(); ++i) {
    const int done = work.frontier[i];
    if (done < 1 || done >= work.to || (i > 0 && done > work.frontier[i - 1])) {
      return out_of_bounds("layers done by a frontier row", done, work.to);
    }
  }
  const int rows_after = work.past + work.run_rows();
  if (rows_after > work.past) {
    const int oldest = shape.window > 0 ? std::max(0, work.past - shape.window + 1) : 0;
    TANDEM_RETURN_IF_ERROR(
        check_pages(work.pages, oldest, rows_after, pool.page_rows, pool.pages, "page"));
  }
  const bool saves = work.save_frontier;
  const int frontier_rows_end = saves ? rows_after : work.rows_before();
  TANDEM_RETURN_IF_ERROR(check_pages(work.frontier_pages, work.past, frontier_rows_end,
                                     pool.page_rows, pool.frontier_pages, "frontier page"));
  return check_outputs(work, shape, pool);
}

absl::Status Plan::check_outputs(const Work& work, const ModelShape& shape,
                                 const PoolSize& pool) const {
  const Pass& pass = *work.pass;
  for (const Work::Output& o : work.outputs) {
    if (o.read < 0 || static_cast<size_t>(o.read) >= pass.read.size()) {
      return out_of_bounds("read", o.read, static_cast<int64_t>(pass.read.size()));
    }
    if (o.run_row < 0 || o.run_row >= work.run_rows()) {
      return out_of_bounds("read row", o.run_row, work.run_rows());
    }
    const Read& read = pass.read[static_cast<size_t>(o.read)];
    const int done =
        o.run_row < work.frontier_rows() ? work.frontier[static_cast<size_t>(o.run_row)] : 0;
    if (read.at != kTop && (read.at < done || read.at > work.to)) {
      return out_of_range("read layer", read.at, absl::StrCat(done, " to ", work.to));
    }
    TANDEM_RETURN_IF_ERROR(check_head(read, work.to, shape));
    if (read.pool && (read.at != kTop || work.to != shape.layers)) {
      return out_of_range("pooled layer", read.at == kTop ? work.to : read.at,
                          absl::StrCat(shape.layers));
    }
    if (read.hidden && (!o.value.valid() || o.value.value >= pool.values)) {
      return out_of_bounds("place of a hidden row", o.value.value, pool.values);
    }
  }
  return absl::OkStatus();
}

absl::Status Plan::add_mask_input(const Pass& pass, int mask, int row, const ModelShape& shape) {
  const int masks = pass.adapter.valid() ? shape.adapters[pass.adapter.index()].masks : 0;
  if (mask < 0 || mask >= masks) {
    return out_of_range(
        "mask row", mask,
        masks == 0 ? "none: the pass has no adapter with masks" : absl::StrCat("0 to ", masks - 1));
  }
  if (work_masks_.empty()) work_masks_.push_back({pass.adapter, {}});
  work_masks_.front().copies.add(mask, row);
  return absl::OkStatus();
}

absl::Status Plan::add_embedded_input(const Work& work, const In& in, const Work::Embed& place,
                                      int row, const ModelShape& shape, const WidthOf& width_of) {
  TANDEM_ASSIGN_OR_RETURN(const int width, width_of(place, in.ref.ticket));
  const AdapterId adapter = work.pass->adapter;
  const int source = adapter.valid() ? shape.adapters[adapter.index()].source : 0;
  const int taken = source > 0 ? source : shape.hidden_size;
  if (width != taken) {
    return out_of_range("width of an embedded row", width,
                        absl::StrCat(taken, source > 0 ? ", the adapter's" : ", the model's"));
  }
  const AdapterId through = source > 0 ? adapter : AdapterId();
  auto group = std::ranges::find_if(work_embedded_, [&](const EmbeddedRows& e) {
    return e.model == place.model && e.replace == in.ref.replace;
  });
  if (group == work_embedded_.end()) {
    group = work_embedded_.insert(group, {through, place.model, in.ref.replace, {}});
  }
  group->copies.add(place.value.value, row);
  return absl::OkStatus();
}

absl::Status Plan::resolve_inputs(const Work& work, const ModelShape& shape,
                                  const ValueStore& store, const WidthOf& width_of,
                                  const CachedOf& cached_of) {
  tokens_.clear();
  work_chosen_.clear();
  work_masks_.clear();
  work_embedded_.clear();
  size_t embeds = 0;
  for (int i = work.first; i < work.first + work.count; ++i) {
    const In& in = work.pass->add.in[static_cast<size_t>(i)];
    const int row = work.frontier_rows() + i - work.first;
    Token t = in.id;
    if (in.kind == In::kChosen) {
      absl::StatusOr<Token> pick = store.pick(in.ref, in.id);
      const std::optional<ChosenToken> cached =
          pick.ok() || !cached_of ? std::nullopt : cached_of(in);
      if (cached) {
        work_chosen_.emplace_back(row, *cached);
        pick = Token{0};
      }
      TANDEM_ASSIGN_OR_RETURN(t, pick);
    } else if (in.kind == In::kMask) {
      TANDEM_RETURN_IF_ERROR(add_mask_input(*work.pass, in.id, row, shape));
    } else if (in.kind == In::kEmbed) {
      if (embeds >= work.embeds.size() || work.embeds[embeds].row != i) {
        return out_of_bounds("embedded row without a place", i, static_cast<int64_t>(embeds));
      }
      TANDEM_RETURN_IF_ERROR(
          add_embedded_input(work, in, work.embeds[embeds++], row, shape, width_of));
    }
    if (in.kind == In::kMask || (in.kind == In::kEmbed && in.ref.replace)) {
      t = -1;
    } else if (t < 0 || t >= shape.vocab_size) {
      return out_of_range("token", t, absl::StrCat("0 to ", shape.vocab_size - 1));
    }
    tokens_.push_back(t);
  }
  // Positions grow along the tree.
  position_ = run_positions(work);
  for (const int p : position_) {
    if (p >= shape.max_positions) return out_of_bounds("position", p, shape.max_positions);
  }
  return absl::OkStatus();
}

// Adds the inputs of one work to the batch's, by batch row instead of run row.
void Plan::add_inputs() {
  const auto add = [this](const RowCopies& from, RowCopies& to) {
    for (size_t i = 0; i < from.to.size(); ++i) to.add(from.from[i], rows() + from.to[i]);
  };
  for (const MaskRows& m : work_masks_) {
    auto group = std::ranges::find(masks, m.adapter, &MaskRows::adapter);
    if (group == masks.end()) group = masks.insert(group, {m.adapter, {}});
    add(m.copies, group->copies);
  }
  for (const EmbeddedRows& e : work_embedded_) {
    auto group = std::ranges::find_if(embedded, [&](const EmbeddedRows& g) {
      return g.adapter == e.adapter && g.model == e.model && g.replace == e.replace;
    });
    if (group == embedded.end()) {
      group = embedded.insert(group, {e.adapter, e.model, e.replace, {}});
    }
    add(e.copies, group->copies);
  }
}

void Plan::add_rows(const Work& work, const ModelShape& shape, const PoolSize& pool) {
  const auto table = static_cast<int32_t>(pages.size());
  for (const PageId p : work.pages) pages.push_back(p.value);
  prompts_.clear();
  if (!work_masks_.empty()) {
    const size_t adapter = work.pass->adapter.index();
    const int64_t end = first_prompt_page(shape, pool, adapter + 1);
    const auto first = static_cast<int32_t>(work.pages.size()) * pool.page_rows;
    for (int64_t page = first_prompt_page(shape, pool, adapter); page < end; ++page) {
      pages.push_back(static_cast<int32_t>(page));
    }
    for (int i = 0; i < shape.adapters[adapter].prompt_rows; ++i) prompts_.push_back(first + i);
  }
  add_inputs();
  for (const auto& [row, from] : work_chosen_) {
    const size_t at = token.size() + static_cast<size_t>(row);
    if (chosen.size() <= at) chosen.resize(at + 1);
    chosen[at] = from;
  }
  token.insert(token.end(), static_cast<size_t>(work.frontier_rows()), -1);
  token.insert(token.end(), tokens_.begin(), tokens_.end());
  columns.position.insert(columns.position.end(), position_.begin(), position_.end());
  for (int j = 0; j < work.run_rows(); ++j) {
    columns.table.push_back(table);
    columns.slot.push_back(slot_of(work.pages, work.past + j, pool.page_rows));
    from_.push_back(j < work.frontier_rows() ? work.frontier[static_cast<size_t>(j)] : 0);
    to_.push_back(work.to);
    const bool masked = is_mask(work, j) && shape.adapters[work.pass->adapter.index()].additions;
    additions_.push_back(masked ? RowAdditions{.lora = {}, .masks = work.pass->adapter}
                                : RowAdditions{.lora = work.lora, .masks = {}});
    adapted_rows += additions_.back().valid() ? 1 : 0;
  }
}

// A row sees the rows that its parent sees, and itself. Along a chain that is a range of cache
// rows; from the first branch on, rows are listed. A mask row also sees its adapter's prompts,
// which its descendants do not inherit.
void Plan::add_visibility(const Work& work, const ModelShape& shape) {
  const auto n = static_cast<size_t>(work.run_rows());
  const size_t first = columns.position.size() - n;
  if (path_.size() < n) path_.resize(n);
  for (size_t j = 0; j < n; ++j) {
    const int parent = parent_run_row(work, static_cast<int>(j));
    const auto p = static_cast<size_t>(parent);
    const int self = work.past + static_cast<int>(j);
    std::vector<int32_t>& path = path_[j];
    path.clear();
    int dense_end = parent < 0 ? work.past : columns.dense_end[first + p];
    if (parent >= 0) path = path_[p];
    if (path.empty() && dense_end == self) {
      ++dense_end;
    } else {
      path.push_back(self);
    }
    // Positions grow by one along the path; a dense row's position is its number.
    const int position = columns.position[first + j];
    const int oldest = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    const size_t depth = path.size();
    const size_t visible =
        shape.window > 0 ? std::min(depth, static_cast<size_t>(shape.window)) : depth;
    columns.first_key.push_back(std::min(oldest, dense_end));
    columns.dense_end.push_back(dense_end);
    columns.extra_begin.push_back(static_cast<int32_t>(extra.size()));
    extra.insert(extra.end(), path.end() - static_cast<int64_t>(visible), path.end());
    const bool prompted = is_mask(work, static_cast<int>(j));
    if (prompted) extra.insert(extra.end(), prompts_.begin(), prompts_.end());
    columns.prompts.push_back(prompted ? static_cast<int32_t>(prompts_.size()) : 0);
    columns.extra_end.push_back(static_cast<int32_t>(extra.size()));
  }
}

// Every row sees all rows of the pass, which are the first of the cache; in layers with a window
// (0: none) those that are fewer rows away.
void Plan::see_all(const Work& work, int window) {
  const int n = work.run_rows();
  for (int j = 0; j < n; ++j) {
    columns.first_key.push_back(0);
    columns.dense_end.push_back(n);
    if (window > 0) {
      columns.near_first.push_back(std::max(0, j - window + 1));
      columns.near_end.push_back(std::min(n, j + window));
    }
    columns.extra_begin.push_back(static_cast<int32_t>(extra.size()));
    columns.extra_end.push_back(static_cast<int32_t>(extra.size()));
    columns.prompts.push_back(0);
  }
}

void Plan::add_memory(const Work& work) {
  const auto table = static_cast<int32_t>(pages.size());
  for (const PageId p : work.memory_pages) pages.push_back(p.value);
  for (int j = 0; j < work.run_rows(); ++j) {
    columns.memory_table.push_back(table);
    columns.memory_rows.push_back(work.memory_rows);
    zeros.push_back(0);
  }
}

void Plan::add_frontier(const Work& work, const PoolSize& pool) {
  const int first = rows() - work.run_rows();
  for (int j = 0; j < work.frontier_rows(); ++j) {
    load.add(slot_of(work.frontier_pages, work.past + j, pool.page_rows), first + j);
  }
  if (!work.save_frontier) return;
  for (int j = 0; j < work.run_rows(); ++j) {
    save.add(first + j, slot_of(work.frontier_pages, work.past + j, pool.page_rows));
  }
}

void Plan::add_reads(const Work& work, Item& item) {
  for (const Work::Output& o : work.outputs) {
    const Read& read = work.pass->read[static_cast<size_t>(o.read)];
    const int layer = read.at == kTop ? work.to : read.at;
    if (read.head != kOwnHead && read.uses_head()) {
      auto h = std::find_if(heads.begin(), heads.end(),
                            [&](const HeadReads& r) { return r.head == read.head; });
      if (h == heads.end()) h = heads.insert(h, {read.head, {}});
      h->reads.push_back(reads);
    }
    auto c = std::lower_bound(captures.begin(), captures.end(), layer,
                              [](const Capture& a, int b) { return a.at < b; });
    if (c == captures.end() || c->at != layer) c = captures.insert(c, {layer, {}, {}, {}});
    if (read.hidden) {
      c->stored.add(item.first_row + o.run_row, o.value.value);
      continue;
    }
    if (read.pool) {
      c->pooled.add(item.first_row + o.run_row, pooled++);
      ++item.pooled;
      continue;
    }
    c->copies.add(item.first_row + o.run_row, reads++);
    ++item.reads;
  }
}

Token Plan::judged(const Batch& batch, size_t w, size_t i) const {
  const auto& outputs = batch.works[w].outputs;
  const int read = outputs[i].read;
  if (!batch.works[w].pass->read[static_cast<size_t>(read)].judges()) return -1;
  if (i + 1 == outputs.size() || outputs[i + 1].read != read) return -1;
  return token[static_cast<size_t>(items[w].first_row + outputs[i + 1].run_row)];
}

std::vector<ReadBlock> Plan::read_blocks(const Batch& batch, int most) const {
  std::vector<ReadBlock> blocks;
  for (size_t w = 0; w < items.size();) {
    ReadBlock block{w, w, 0, kAllOutputs, items[w].first_read, 0};
    while (block.end < items.size() && block.count + items[block.end].reads <= most) {
      block.count += items[block.end++].reads;
    }
    if (block.end > w) {
      blocks.push_back(block);
      w = block.end;
    } else {
      cut_reads(batch.works[w], w, most, &blocks);
      ++w;
    }
  }
  return blocks;
}

// Adds the pieces of one work. Outputs without head inputs go with the output before them.
void Plan::cut_reads(const Work& work, size_t w, int most, std::vector<ReadBlock>* blocks) const {
  ReadBlock piece{w, w + 1, 0, 0, items[w].first_read, 0};
  for (const Work::Output& o : work.outputs) {
    const bool reads_row = work.pass->read[static_cast<size_t>(o.read)].uses_head();
    if (reads_row && piece.count == most) {
      blocks->push_back(piece);
      piece.from = piece.to;
      piece.first += most;
      piece.count = 0;
    }
    piece.count += reads_row ? 1 : 0;
    ++piece.to;
  }
  blocks->push_back(piece);
}

void Plan::cut_segments() {
  // Between two neighbouring borders the same rows run, and nothing is read.
  borders_.clear();
  borders_.insert(borders_.end(), from_.begin(), from_.end());
  borders_.insert(borders_.end(), to_.begin(), to_.end());
  for (const Capture& c : captures) borders_.push_back(c.at);
  std::sort(borders_.begin(), borders_.end());
  borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
  segments.clear();
  for (size_t b = 0; b + 1 < borders_.size(); ++b) {
    Segment s;
    s.from = borders_[b];
    s.to = borders_[b + 1];
    for (int r = 0; r < rows(); ++r) {
      const auto i = static_cast<size_t>(r);
      if (from_[i] <= s.from && s.to <= to_[i]) s.index.push_back(r);
    }
    if (s.index.empty()) continue;
    if (adapted_rows > 0) add_loras(s);
    s.all = static_cast<int>(s.index.size()) == rows();
    if (s.all) {
      s.index.clear();
    } else {
      for (const int r : s.index) s.columns.append(columns, r);
    }
    segments.push_back(std::move(s));
  }
}

void Plan::cut_last_layer(const ModelShape& shape) {
  constexpr int kLeast = 4;  // rows that are not read
  if (shape.encodes || segments.empty() || segments.back().to != shape.layers) return;
  std::vector<bool> is_read(token.size());
  const auto mark = [&is_read](const RowCopies& copies) {
    for (const int64_t row : copies.from) is_read[static_cast<size_t>(row)] = true;
  };
  mark(save);
  for (const Capture& c : captures) {
    if (c.at != shape.layers) continue;
    mark(c.copies);
    mark(c.stored);
    mark(c.pooled);
  }
  const Segment& last = segments.back();
  Segment read{shape.layers - 1, shape.layers};
  read.all = false;
  const int n = last.all ? rows() : static_cast<int>(last.index.size());
  for (int i = 0; i < n; ++i) {
    const int row = last.all ? i : static_cast<int>(last.index[static_cast<size_t>(i)]);
    if (!is_read[static_cast<size_t>(row)]) continue;
    read.index.push_back(row);
    read.columns.append(columns, row);
  }
  const auto read_rows = static_cast<int>(read.index.size());
  if (n - read_rows < kLeast) return;
  if (adapted_rows > 0) add_loras(read);
  Segment stored = last;
  stored.from = shape.layers - 1;
  stored.kv_only = true;
  if (last.from == stored.from) {
    segments.pop_back();
  } else {
    --segments.back().to;
  }
  segments.push_back(std::move(stored));
  if (read_rows > 0) segments.push_back(std::move(read));
}

void Plan::add_loras(Segment& s) const {
  for (size_t i = 0; i < s.index.size(); ++i) {
    const RowAdditions& additions = additions_[static_cast<size_t>(s.index[i])];
    if (!additions.valid()) continue;
    auto group = std::ranges::find(s.loras, additions, &LoraRows::additions);
    if (group == s.loras.end()) group = s.loras.insert(group, {additions, {}});
    group->rows.push_back(static_cast<int64_t>(i));
  }
}

size_t Plan::array_bytes() const {
  constexpr size_t kAlign = 16;  // bytes that alignment may cost per array
  const auto columns_bytes = [](const RowColumns& c) {
    return static_cast<size_t>(c.rows()) * (11 * sizeof(int32_t) + sizeof(int64_t)) + 12 * kAlign;
  };
  const auto copies_bytes = [](const RowCopies& c) {
    return c.from.size() * 2 * sizeof(int64_t) + 2 * kAlign;
  };
  size_t n = (token.size() + extra.size() + pages.size() + zeros.size() + replaced.size()) *
                 sizeof(int32_t) +
             5 * kAlign;
  n += columns_bytes(columns) + copies_bytes(load) + copies_bytes(save);
  for (const Segment& s : segments) {
    n += columns_bytes(s.columns) + s.index.size() * sizeof(int64_t) + kAlign;
  }
  for (const Capture& c : captures) {
    n += copies_bytes(c.copies) + copies_bytes(c.stored) + copies_bytes(c.pooled);
  }
  for (const MaskRows& m : masks) n += copies_bytes(m.copies);
  for (const EmbeddedRows& e : embedded) n += copies_bytes(e.copies) + kAlign;
  for (const HeadReads& h : heads) n += h.reads.size() * sizeof(int64_t) + kAlign;
  return n;
}

}  // namespace tandem
