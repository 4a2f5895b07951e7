#include "engine/backend/torch/model/lora.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/backend/torch/cpu/elementwise.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/profile.h"
#include "engine/backend/torch/tensor_access.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::StatusOr<LoraWeights::Addition> load_addition(const LoraFile& file, const LinearSpec& spec,
                                                    std::span<const LoraModule> modules,
                                                    const WeightStore& store) {
  LoraWeights::Addition addition;
  LinearSpec a{.names = {}, .outs = {}, .in = spec.in};
  int64_t first_rank = 0;
  for (const LoraModule& m : modules) {
    a.names.push_back(m.name + ".lora_A");
    a.outs.push_back(m.rank);
    LoraWeights::Addition::Part part;
    part.first_rank = std::exchange(first_rank, first_rank + m.rank);
    part.first_column = std::accumulate(
        spec.outs.begin(), spec.outs.begin() + static_cast<ptrdiff_t>(m.matrix), int64_t{0});
    part.scale = m.scale;
    const LinearSpec b{.names = {m.name + ".lora_B"},
                       .outs = {spec.outs[m.matrix]},
                       .in = m.rank,
                       .groups = m.in_order ? HeadGroups{} : spec.groups};
    TANDEM_ASSIGN_OR_RETURN(part.b, Linear::load(file.tensors, store, b));
    addition.parts.push_back(std::move(part));
  }
  TANDEM_ASSIGN_OR_RETURN(addition.a, Linear::load(file.tensors, store, a));
  return addition;
}

// to[to_row[i], first_column ...] += scale * from[i]. to: [.., width], from: [rows, columns]
template <class T>
void add_scaled(T* to, const int64_t* to_row, int64_t first_row, int64_t width,
                int64_t first_column, const T* from, int64_t rows, int64_t columns, T scale) {
  cpu::parallel_for(rows, cpu::rows_per_range(columns), [=](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t row = to_row == nullptr ? first_row + i : to_row[i];
      T* const at = to + row * width + first_column;
      const T* const added = from + i * columns;
      for (int64_t j = 0; j < columns; ++j) at[j] += scale * added[j];
    }
  });
}

}  // namespace

absl::StatusOr<LoraWeights> LoraWeights::load(const LoraFile& file, const DecoderConfig& config,
                                              WeightStore store) {
  store.dtype = store.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  LoraWeights weights;
  weights.layers_.resize(static_cast<size_t>(config.layers));
  const std::span all(file.modules);
  for (size_t i = 0; i < all.size();) {
    const LoraModule& first = all[i];
    size_t n = 1;
    while (i + n < all.size() && all[i + n].layer == first.layer && all[i + n].part == first.part) {
      ++n;
    }
    if (first.layer < config.layers) {
      TANDEM_ASSIGN_OR_RETURN(
          weights.layers_[static_cast<size_t>(first.layer)][static_cast<size_t>(first.part)],
          load_addition(file, lora_spec(config, first.layer, first.part), all.subspan(i, n),
                        store));
    }
    i += n;
  }
  return weights;
}

int64_t LoraWeights::bytes() const {
  int64_t n = 0;
  for (const auto& layer : layers_) {
    for (const std::optional<Addition>& addition : layer) {
      if (!addition) continue;
      n += addition->a.bytes();
      for (const Addition::Part& part : addition->parts) n += part.b.bytes();
    }
  }
  return n;
}

int64_t LoraWeights::bytes_of(const LoraFile& file, const DecoderConfig& config,
                              const WeightStore& store) {
  const bool exact = store.dtype == DType::kFloat64;
  const bool packs = store.device.is_cpu() && store.kernels == CpuKernels::kOwn;
  const int64_t unit =
      !packs ? 1
             : cpu::PackedMatrix(exact ? cpu::WeightType::kDouble : cpu::WeightType::kFloat, 1, 1)
                   .columns();
  const auto padded = [unit](int64_t outs) { return (outs + unit - 1) / unit * unit; };
  int64_t numbers = 0;
  for (size_t i = 0; i < file.modules.size();) {
    const LoraModule& first = file.modules[i];
    const LinearSpec spec = lora_spec(config, first.layer, first.part);
    int64_t ranks = 0;
    for (; i < file.modules.size() && file.modules[i].layer == first.layer &&
           file.modules[i].part == first.part;
         ++i) {
      const LoraModule& m = file.modules[i];
      ranks += m.rank;
      if (m.layer < config.layers) numbers += padded(spec.outs[m.matrix]) * m.rank;
    }
    if (first.layer < config.layers) numbers += padded(ranks) * spec.in;
  }
  return numbers * (exact ? 8 : 4);
}

at::Tensor LoraProducts::Buffer::view(int64_t rows, int64_t width,
                                      const at::TensorOptions& options) {
  const int64_t n = rows * width;
  if (!all_.defined() || all_.numel() < n) {
    all_ = at::Tensor();  // free first
    all_ = at::empty({n}, options);
  }
  return all_.narrow(0, 0, n).view({rows, width});
}

LoraProducts::LoraProducts(const WeightStore& store)
    : ops_(store.ops()), type_(at::TensorOptions().dtype(store.residual()).device(store.device)) {}

void LoraProducts::add(at::Tensor& to, const LinearInput& x, LoraGroups groups, int layer,
                       LoraPart part) {
  for (const LoraGroup& group : groups) {
    const LoraWeights::Addition* const addition = group.weights->find(layer, part);
    if (addition == nullptr) continue;
    const int64_t* const rows = group.n == to.size(0) ? nullptr : group.rows;
    add_group(to, rows, 0, x, group, *addition);
  }
}

const AddedRows* LoraProducts::sums(const LinearInput& x, LoraGroups groups, int layer,
                                    LoraPart part, int64_t outs) {
  int64_t n = 0;
  for (const LoraGroup& group : groups) {
    n += group.weights->find(layer, part) == nullptr ? 0 : group.n;
  }
  if (n == 0) return nullptr;
  sums_view_ = sums_.view(n, outs, type_);
  sums_view_.zero_();
  sums_row_.assign(static_cast<size_t>(x.x.size(0)), -1);
  int64_t first = 0;
  for (const LoraGroup& group : groups) {
    const LoraWeights::Addition* const addition = group.weights->find(layer, part);
    if (addition == nullptr) continue;
    add_group(sums_view_, nullptr, first, x, group, *addition);
    for (int64_t i = 0; i < group.n; ++i) {
      sums_row_[static_cast<size_t>(group.rows[i])] = static_cast<int32_t>(first + i);
    }
    first += group.n;
  }
  return &added_.emplace(AddedRows{sums_view_, sums_row_.data()});
}

void LoraProducts::add_group(at::Tensor& to, const int64_t* to_row, int64_t first,
                             const LinearInput& x, const LoraGroup& group,
                             const LoraWeights::Addition& addition) {
  const int64_t n = group.n;
  at::Tensor rows = x.x;
  at::Tensor normed;
  if (n < x.x.size(0)) {
    rows = gathered_.view(n, x.x.size(1), type_);
    ops_.copy_rows(rows, nullptr, x.x, group.rows, n);
    if (x.norm != nullptr) normed = normed_.view(n, x.x.size(1), type_);
  } else if (x.norm != nullptr) {
    normed = *x.normed;
  }
  const LinearInput input =
      x.norm == nullptr ? LinearInput(rows) : LinearInput(rows, *x.norm, normed);
  const int64_t all_ranks = addition.a.outs();
  at::Tensor ranks = ranks_.view(n, all_ranks, type_);
  addition.a.into(ranks, input);
  for (const LoraWeights::Addition::Part& part : addition.parts) {
    const int64_t rank = part.b.in();
    at::Tensor own = ranks;
    if (rank < all_ranks) {
      own = some_ranks_.view(n, rank, type_);
      own.copy_(ranks.narrow(1, part.first_rank, rank));
    }
    at::Tensor columns = columns_.view(n, part.b.outs(), type_);
    part.b.into(columns, own);
    TORCH_CHECK(to.is_contiguous() && to.scalar_type() == columns.scalar_type(), "additions of ",
                columns.scalar_type(), " to rows of ", to.scalar_type());
    const StepProfile::Section section(StepProfile::kProduct);
    const auto add_as = [&]<class T>(T scale) {
      add_scaled(data<T>(to), to_row, first, to.size(1), part.first_column,
                 data<T>(std::as_const(columns)), n, columns.size(1), scale);
    };
    if (to.scalar_type() == at::kDouble) {
      add_as(part.scale);
    } else {
      add_as(static_cast<float>(part.scale));
    }
  }
}

}  // namespace tandem
