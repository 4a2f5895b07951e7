#include "engine/backend/torch/plan.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/pass/rows.h"

namespace tandem {
namespace {

absl::Status bad_books(absl::string_view what, int64_t value, int64_t limit) {
  return absl::InternalError(absl::StrCat(what, ": ", value, "; limit: ", limit));
}

absl::Status check_pages(std::span<const PageId> pages, int first, int rows, int page_rows,
                         int64_t count, absl::string_view what) {
  if (rows <= first) return absl::OkStatus();
  const int last = (rows - 1) / page_rows;
  if (static_cast<size_t>(last) >= pages.size()) {
    return bad_books(absl::StrCat(what, " needed beyond the table"), last,
                     static_cast<int64_t>(pages.size()));
  }
  for (int i = first / page_rows; i <= last; ++i) {
    const PageId page = pages[static_cast<size_t>(i)];
    if (!page.valid() || page.value >= count) return bad_books(what, page.value, count);
  }
  return absl::OkStatus();
}

absl::Status check_head(const Read& read, int to, const ModelShape& shape) {
  if (read.hidden) {
    return absl::InvalidArgumentError("read: hidden; allowed: none (values are not kept here yet)");
  }
  if (read.head == kOwnHead) return absl::OkStatus();
  if (!read.head.valid() || read.head.index() >= shape.heads.size()) {
    return out_of_range("head", read.head.value,
                        shape.heads.empty()
                            ? "the model's own: no other is loaded"
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
                 const ValueStore& store) {
  items.assign(batch.works.size(), {});
  token.clear();
  columns.clear();
  extra.clear();
  pages.clear();
  load.clear();
  save.clear();
  captures.clear();
  heads.clear();
  reads = 0;
  from_.clear();
  to_.clear();
  for (size_t i = 0; i < batch.works.size(); ++i) {
    const Work& work = batch.works[i];
    Item& item = items[i];
    item.first_row = rows();
    item.first_read = reads;
    item.status = check(work, shape, pool);
    if (item.status.ok()) item.status = resolve_tokens(work, shape, store);
    if (!item.status.ok()) continue;
    add_rows(work, pool);
    add_visibility(work, shape);
    add_frontier(work, pool);
    add_reads(work, item);
  }
  cut_segments();
}

absl::Status Plan::check(const Work& work, const ModelShape& shape, const PoolSize& pool) const {
  const Pass& pass = *work.pass;
  if (pass.see != See::kCausal || pass.memory.valid() || work.memory_rows > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pass: encoder or cross-attention; allowed: causal (", shape.architecture,
                     " is a decoder)"));
  }
  if (pass.adapter.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapter: ", pass.adapter.value, "; allowed: none of this model is loaded"));
  }
  if (work.to < 1 || work.to > shape.layers) return bad_books("layer", work.to, shape.layers);
  if (work.past < 0 || work.first < 0 || work.count < 0 ||
      static_cast<size_t>(work.first + work.count) > pass.add.size() ||
      pass.add.parent.size() != pass.add.in.size()) {
    return bad_books("added row", work.first + work.count, static_cast<int64_t>(pass.add.size()));
  }
  for (int i = work.first; i < work.first + work.count; ++i) {
    const Row parent = pass.add.parent[static_cast<size_t>(i)];
    if (parent < -1 || parent >= i) return bad_books("parent", parent, i);
  }
  for (size_t i = 0; i < work.frontier.size(); ++i) {
    const int done = work.frontier[i];
    if (done < 1 || done >= work.to || (i > 0 && done > work.frontier[i - 1])) {
      return bad_books("layers done by a frontier row", done, work.to);
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
  for (const Work::Output& o : work.outputs) {
    if (o.read < 0 || static_cast<size_t>(o.read) >= pass.read.size()) {
      return bad_books("read", o.read, static_cast<int64_t>(pass.read.size()));
    }
    if (o.run_row < 0 || o.run_row >= work.run_rows()) {
      return bad_books("read row", o.run_row, work.run_rows());
    }
    const Read& read = pass.read[static_cast<size_t>(o.read)];
    const int done =
        o.run_row < work.frontier_rows() ? work.frontier[static_cast<size_t>(o.run_row)] : 0;
    if (read.at != kTop && (read.at < done || read.at > work.to)) {
      return out_of_range("read layer", read.at, absl::StrCat(done, " to ", work.to));
    }
    TANDEM_RETURN_IF_ERROR(check_head(read, work.to, shape));
  }
  return absl::OkStatus();
}

absl::Status Plan::resolve_tokens(const Work& work, const ModelShape& shape,
                                  const ValueStore& store) {
  chosen_.clear();
  for (int i = work.first; i < work.first + work.count; ++i) {
    const In& in = work.pass->add.in[static_cast<size_t>(i)];
    Token t = -1;
    switch (in.kind) {
      case In::kToken:
        t = in.id;
        break;
      case In::kChosen: {
        TANDEM_ASSIGN_OR_RETURN(t, store.pick(in.ref, in.id));
        break;
      }
      case In::kMask:
      case In::kEmbed:
        return absl::InvalidArgumentError(
            "input row: mask or embedding; allowed: only in a pass with an adapter");
    }
    if (t < 0 || t >= shape.vocab_size) {
      return out_of_range("token", t, absl::StrCat("0 to ", shape.vocab_size - 1));
    }
    chosen_.push_back(t);
  }
  // Positions grow along the tree, so the deepest row decides.
  position_ = run_positions(work);
  for (const int p : position_) {
    if (p >= shape.max_positions) return bad_books("position", p, shape.max_positions);
  }
  return absl::OkStatus();
}

void Plan::add_rows(const Work& work, const PoolSize& pool) {
  const auto table = static_cast<int32_t>(pages.size());
  for (const PageId p : work.pages) pages.push_back(p.value);
  token.insert(token.end(), static_cast<size_t>(work.frontier_rows()), -1);
  token.insert(token.end(), chosen_.begin(), chosen_.end());
  columns.position.insert(columns.position.end(), position_.begin(), position_.end());
  for (int j = 0; j < work.run_rows(); ++j) {
    columns.table.push_back(table);
    columns.slot.push_back(slot_of(work.pages, work.past + j, pool.page_rows));
    from_.push_back(j < work.frontier_rows() ? work.frontier[static_cast<size_t>(j)] : 0);
    to_.push_back(work.to);
  }
}

// A row sees what its parent sees, and itself. While parents are the rows before, that is a range
// of cache rows; from the first branch on, rows are listed.
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
    // Positions along the path go up by one, and a dense row's position is its number.
    const int position = columns.position[first + j];
    const int oldest = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    const size_t depth = path.size();
    const size_t visible =
        shape.window > 0 ? std::min(depth, static_cast<size_t>(shape.window)) : depth;
    columns.first_key.push_back(std::min(oldest, dense_end));
    columns.dense_end.push_back(dense_end);
    columns.extra_begin.push_back(static_cast<int32_t>(extra.size()));
    extra.insert(extra.end(), path.end() - static_cast<int64_t>(visible), path.end());
    columns.extra_end.push_back(static_cast<int32_t>(extra.size()));
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

void Plan::add_reads(const Work& work, const Item& item) {
  for (const Work::Output& o : work.outputs) {
    const Read& read = work.pass->read[static_cast<size_t>(o.read)];
    const int layer = read.at == kTop ? work.to : read.at;
    if (read.head != kOwnHead) {
      auto h = std::find_if(heads.begin(), heads.end(),
                            [&](const HeadReads& r) { return r.head == read.head; });
      if (h == heads.end()) h = heads.insert(h, {read.head, {}});
      h->reads.push_back(reads);
    }
    auto c = std::lower_bound(captures.begin(), captures.end(), layer,
                              [](const Capture& a, int b) { return a.at < b; });
    if (c == captures.end() || c->at != layer) c = captures.insert(c, {layer, {}});
    c->copies.add(item.first_row + o.run_row, reads++);
  }
}

void Plan::cut_segments() {
  // Between two neighbouring borders the set of running rows does not change, and nothing is read.
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
    s.all = static_cast<int>(s.index.size()) == rows();
    if (s.all) {
      s.index.clear();
    } else {
      for (const int r : s.index) s.columns.append(columns, r);
    }
    segments.push_back(std::move(s));
  }
}

size_t Plan::array_bytes() const {
  constexpr size_t kAlign = 16;  // what a staging area may lose per array
  const auto columns_bytes = [](const RowColumns& c) {
    return static_cast<size_t>(c.rows()) * (6 * sizeof(int32_t) + sizeof(int64_t)) + 7 * kAlign;
  };
  const auto copies_bytes = [](const RowCopies& c) {
    return c.from.size() * 2 * sizeof(int64_t) + 2 * kAlign;
  };
  size_t n = (token.size() + extra.size() + pages.size()) * sizeof(int32_t) + 3 * kAlign;
  n += columns_bytes(columns) + copies_bytes(load) + copies_bytes(save);
  for (const Segment& s : segments) {
    n += columns_bytes(s.columns) + s.index.size() * sizeof(int64_t) + kAlign;
  }
  for (const Capture& c : captures) n += copies_bytes(c.copies);
  for (const HeadReads& h : heads) n += h.reads.size() * sizeof(int64_t) + kAlign;
  return n;
}

}  // namespace tandem
