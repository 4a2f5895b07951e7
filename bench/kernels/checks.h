// All checks of kernels against fp64 on the host, at the shapes of a model. They also run on the
// emulated device, with small shapes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "bench/kernels/attention_checks.h"
#include "bench/kernels/block_checks.h"
#include "bench/kernels/fp8_checks.h"
#include "bench/kernels/product_checks.h"
#include "bench/kernels/readout_checks.h"
#include "bench/kernels/report.h"
#include "bench/kernels/row_checks.h"

namespace tandem::cuda::program {

// wants(name): whether this part is asked for. It is asked before each check.
template <class Wants>
void check_all(Report& report, const Shape& s, uint64_t seed, const Wants& wants) {
  for (const int n : {1, 16}) {
    if (wants("elementwise")) check_elementwise(report, s, n, seed + 100);
    for (const int64_t width : {s.hidden, s.inner}) {
      if (wants("fp8")) check_rounded_rows(report, n, width, seed + 150);
    }
  }
  for (const int kv_heads : s.kv_heads) {
    for (const int n : {1, 8, 32}) {
      if (wants("rope")) check_rope(report, s, kv_heads, n, seed + 200);
    }
  }
  uint64_t of_vocab = seed + 300;
  for (const int64_t vocab : {s.vocab, s.long_vocab}) {
    if (wants("readout")) {
      check_readout(report, "readout.vocab_" + std::to_string(vocab), vocab, of_vocab);
    }
    of_vocab += 10;
  }
  for (const int kv_heads : s.kv_heads) {
    for (const Matrix& m : matrices(s, kv_heads)) {
      if (wants("product." + m.name)) check_matrix(report, s, m, seed + 400);
      if (m.name != "gate_up" && m.name != "down") continue;
      for (const QuantType type : {QuantType::kQ80, QuantType::kQ4K}) {
        const std::string name = std::string("blocks.") + name_of(type) + "." + m.name;
        if (wants(name)) check_blocks(report, s, m, type, seed + 500);
      }
    }
  }
  if (!wants("attention")) return;
  const int most = *std::max_element(s.contexts.begin(), s.contexts.end());
  const int64_t rows = int64_t{*std::max_element(s.sequences.begin(), s.sequences.end())} *
                       *std::max_element(s.rows_each.begin(), s.rows_each.end());
  const AttentionScratch scratch(AttentionScratch::size_for(rows, s.heads, s.head_dim, most));
  for (const int kv_heads : s.kv_heads) {
    if (!wants("attention")) return;
    const KvNumbers kv(s, kv_heads, pages_for(s), seed + 600);
    check_all_attention(report, s, kv, scratch);
  }
}

}  // namespace tandem::cuda::program
