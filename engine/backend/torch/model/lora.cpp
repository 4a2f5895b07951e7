#include "engine/backend/torch/model/lora.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/backend/torch/cpu/elementwise.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/model/load.h"
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
                       .groups = spec.groups};
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
  weights.rank_ = file.rank;
  if (store.ops().add_lora != nullptr) {
    TANDEM_RETURN_IF_ERROR(weights.load_for_kernels(file, config, store));
    return weights;
  }
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

// Matrices are rearranged on the host: kernels of the device would have to be waited for.
absl::Status LoraWeights::load_for_kernels(const LoraFile& file, const DecoderConfig& config,
                                           const WeightStore& store) {
  const auto place = [&](const at::Tensor& numbers) {
    return numbers_.emplace_back(numbers.to(store.device)).const_data_ptr();
  };
  std::vector<LoraLayer> layers(static_cast<size_t>(config.layers) * kLoraParts);
  const std::span all(file.modules);
  for (size_t i = 0, n = 0; i < all.size(); i += n) {
    const LoraModule& first = all[i];
    n = 0;
    while (i + n < all.size() && all[i + n].layer == first.layer && all[i + n].part == first.part) {
      ++n;
    }
    if (first.layer >= config.layers) continue;
    const auto part = static_cast<size_t>(first.part);
    parts_ |= uint32_t{1} << part;
    LoraLayer& layer = layers[static_cast<size_t>(first.layer) * kLoraParts + part];
    const LinearSpec spec = lora_spec(config, first.layer, first.part);
    TORCH_CHECK(spec.outs.size() <= size_t{kMostLoraMatrices}, "a layer of ", spec.outs.size(),
                " matrices");
    LinearSpec a{.names = {}, .outs = {}, .in = spec.in};
    for (const LoraModule& m : all.subspan(i, n)) {
      a.names.push_back(m.name + ".lora_A");
      a.outs.push_back(m.rank);
      const LinearSpec b{.names = {m.name + ".lora_B"},
                         .outs = {spec.outs[m.matrix]},
                         .in = m.rank,
                         .groups = spec.groups};
      TANDEM_ASSIGN_OR_RETURN(const at::Tensor columns,
                              load_matrix(file.tensors, b, store.residual(), at::kCPU));
      layer.b[m.matrix] = place(columns.t().contiguous());
      layer.rank_end[m.matrix] = m.rank;
      layer.scale[m.matrix] = m.scale;
    }
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor ranks,
                            load_matrix(file.tensors, a, store.residual(), at::kCPU));
    layer.a = place(ranks);
    for (size_t m = 0; m < size_t{kMostLoraMatrices}; ++m) {
      layer.column_end[m] = m < spec.outs.size() ? static_cast<int32_t>(spec.outs[m]) : 0;
      if (m == 0) continue;
      layer.rank_end[m] += layer.rank_end[m - 1];
      layer.column_end[m] += layer.column_end[m - 1];
    }
  }
  const auto bytes = static_cast<int64_t>(layers.size() * sizeof(LoraLayer));
  table_ = at::from_blob(layers.data(), {bytes}, at::kByte).clone().to(store.device);
  return absl::OkStatus();
}

int64_t LoraWeights::bytes() const {
  int64_t n = table_.defined() ? table_.numel() : 0;
  for (const at::Tensor& t : numbers_) n += static_cast<int64_t>(t.nbytes());
  for (const auto& layer : layers_) {
    for (const std::optional<Addition>& addition : layer) {
      if (!addition) continue;
      n += addition->a.bytes();
      for (const Addition::Part& part : addition->parts) n += part.b.bytes();
    }
  }
  return n;
}

at::Tensor LoraProducts::Buffer::view(int64_t rows, int64_t width,
                                      const at::TensorOptions& options) {
  const int64_t n = rows * width;
  if (!all_.defined() || all_.numel() < n) {
    if (all_.defined()) ++row_buffers_moved;
    all_ = at::Tensor();  // free first
    all_ = at::empty({row_bucket(rows) * width}, options);
  }
  return all_.narrow(0, 0, n).view({rows, width});
}

LoraProducts::LoraProducts(const WeightStore& store)
    : ops_(store.ops()), type_(at::TensorOptions().dtype(store.residual()).device(store.device)) {}

void LoraProducts::add(at::Tensor& to, const LinearInput& x, const LoraGroups& loras, int layer,
                       LoraPart part) {
  add_by_kernels(to, x, loras.view, layer, part, /*add=*/true);
  for (const LoraGroup& group : loras.groups) {
    const LoraWeights::Addition* const addition = group.weights->find(layer, part);
    if (addition == nullptr) continue;
    const int64_t* const rows = group.n == to.size(0) ? nullptr : group.rows;
    add_group(to, rows, 0, x, group, *addition);
  }
}

const AddedRows* LoraProducts::sums(const LinearInput& x, const LoraGroups& loras, int layer,
                                    LoraPart part, int64_t outs) {
  if (loras.view.rank > 0) {
    sums_view_ = sums_.view(x.x.size(0), outs, type_);
    if (!add_by_kernels(sums_view_, x, loras.view, layer, part, /*add=*/false)) return nullptr;
    return &added_.emplace(AddedRows{sums_view_, loras.view.added});
  }
  const std::span groups = loras.groups;
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

bool LoraProducts::add_by_kernels(at::Tensor& to, const LinearInput& x, const LoraView& view,
                                  int layer, LoraPart part, bool add) {
  const auto p = static_cast<size_t>(part);
  if (view.rank == 0 || (view.parts >> p & 1) == 0) return false;
  const int matrices = part == LoraPart::kQkv ? 3 : part == LoraPart::kUp ? 2 : 1;
  static_assert(kMostLoraMatrices >= 3);
  at::Tensor ranks = ranks_.view(x.x.size(0), int64_t{matrices} * view.rank, type_);
  // The product before may have applied the norm in its kernel, and left no rows.
  if (x.norm != nullptr) ops_.norm(*x.normed, x.x, *x.norm);
  const StepProfile::Section section(StepProfile::kProduct);
  ops_.add_lora(to, x.norm == nullptr ? x.x : *x.normed,
                {view, static_cast<int64_t>(layer) * static_cast<int64_t>(kLoraParts) +
                           static_cast<int64_t>(p)},
                add, ranks);
  return true;
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
