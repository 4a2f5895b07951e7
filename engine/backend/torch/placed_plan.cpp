#include "engine/backend/torch/placed_plan.h"

#include <algorithm>

#include "engine/backend/torch/prompt_attention.h"

namespace tandem {

void PlacedPlan::place(const Plan& plan, const Questions& asked, int page_rows,
                       const KvPool* memory, const std::vector<LoraColumns>& adapters) {
  size_t lora_bytes = 0;
  for (const LoraColumns& c : adapters) {
    lora_bytes += c.adapter.size() * (sizeof(LoraLayer*) + sizeof(int32_t)) + 2 * size_t{16};
  }
  staging_.begin(plan.array_bytes() + asked.rows.size() * sizeof(RowQuestion) +
                 asked.changes.size() * sizeof(RowChange) + 2 * size_t{16} + lora_bytes);
  views.clear();
  pieces_.clear();
  memories.clear();
  segment_rows.clear();
  loras.clear();
  captures.clear();
  stored.clear();
  pooled.clear();
  masks.clear();
  embedded.clear();
  head_reads.clear();
  token = staging_.place(plan.token);
  replaced = staging_.place(plan.replaced);
  load = place(plan.load);
  save = place(plan.save);
  const int32_t* extra = staging_.place(plan.extra);
  const int32_t* pages = staging_.place(plan.pages);
  const RowView all = place(plan.columns, page_rows, extra, pages);
  position = all.position;
  const int32_t* zeros = staging_.place(plan.zeros);
  for (const Segment& s : plan.segments) {
    const RowColumns& columns = s.all ? plan.columns : s.columns;
    const RowView& view = views.emplace_back(s.all ? all : place(columns, page_rows, extra, pages));
    memories.push_back(place_memory(columns, view, zeros, memory));
    segment_rows.push_back(s.all ? nullptr : staging_.place(s.index));
  }
  for (const LoraColumns& c : adapters) {
    loras.push_back({staging_.place(c.adapter), staging_.place(c.added), c.rank, c.parts});
  }
  for (const Capture& c : plan.captures) {
    captures.push_back(place(c.copies));
    stored.push_back(place(c.stored));
    pooled.push_back(place(c.pooled));
  }
  for (const MaskRows& m : plan.masks) masks.push_back(place(m.copies));
  for (const EmbeddedRows& e : plan.embedded) embedded.push_back(place(e.copies));
  for (const HeadReads& h : plan.heads) head_reads.push_back(staging_.place(h.reads));
  questions = staging_.place(asked.rows);
  changes = staging_.place(asked.changes);
  staging_.upload();
}

PlacedCopies PlacedPlan::place(const RowCopies& copies) {
  return {staging_.place(copies.from), staging_.place(copies.to), copies.size()};
}

RowView PlacedPlan::place(const RowColumns& c, int page_rows, const int32_t* extra,
                          const int32_t* pages) {
  RowView v;
  v.rows = c.rows();
  v.page_rows = page_rows;
  v.position = staging_.place(c.position);
  v.slot = staging_.place(c.slot);
  v.table = staging_.place(c.table);
  v.first_key = staging_.place(c.first_key);
  v.dense_end = staging_.place(c.dense_end);
  v.extra_begin = staging_.place(c.extra_begin);
  v.extra_end = staging_.place(c.extra_end);
  v.prompts = staging_.place(c.prompts);
  if (!c.near_first.empty()) {
    v.near_first = staging_.place(c.near_first);
    v.near_end = staging_.place(c.near_end);
  }
  v.extra = extra;
  v.pages = pages;
  v.most_keys = c.most_keys();
  v.together = RowColumns::together(c.table);
  const std::vector<RowPiece>& pieces = pieces_.emplace_back(pieces_of(c));
  v.pieces = pieces.data();
  v.piece_count = static_cast<int>(pieces.size());
  return v;
}

Memory PlacedPlan::place_memory(const RowColumns& c, const RowView& own, const int32_t* zeros,
                                const KvPool* pool) {
  if (pool == nullptr) return {};
  Memory memory{own, pool};
  RowView& v = memory.rows;
  v.page_rows = pool->size.page_rows;
  v.slot = nullptr;
  v.table = staging_.place(c.memory_table);
  v.first_key = v.extra_begin = v.extra_end = zeros;
  v.dense_end = staging_.place(c.memory_rows);
  v.prompts = nullptr;
  v.most_keys = *std::max_element(c.memory_rows.begin(), c.memory_rows.end());
  v.together = RowColumns::together(c.memory_table);
  v.pieces = nullptr;
  v.piece_count = 0;
  return memory;
}

}  // namespace tandem
