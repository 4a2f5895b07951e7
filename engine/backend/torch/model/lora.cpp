#include "engine/backend/torch/model/lora.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/read_ahead.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/load.h"
#include "engine/backend/torch/profile.h"
#include "engine/backend/torch/tensor_access.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// The modules of each stacked layer: f(its modules) until an error.
template <class F>
absl::Status each_layer(const LoraFile& file, const F& f) {
  const std::span all(file.modules);
  for (size_t i = 0, n = 0; i < all.size(); i += n) {
    n = 1;
    while (i + n < all.size() && all[i + n].layer == all[i].layer && all[i + n].part == all[i].part)
      ++n;
    TANDEM_RETURN_IF_ERROR(f(all.subspan(i, n)));
  }
  return absl::OkStatus();
}

// lora_A of the modules, stacked, and lora_B of one.
LinearSpec spec_of_a(const LinearSpec& layer, std::span<const LoraModule> modules) {
  LinearSpec a{.names = {}, .outs = {}, .in = layer.in};
  for (const LoraModule& m : modules) {
    a.names.push_back(m.name + ".lora_A");
    a.outs.push_back(m.rank);
  }
  return a;
}
LinearSpec spec_of_b(const LinearSpec& layer, const LoraModule& m) {
  return {.names = {m.name + ".lora_B"},
          .outs = {layer.outs[m.matrix]},
          .in = m.rank,
          .groups = m.in_order ? HeadGroups{} : layer.groups};
}

// Calls f.operator()<T>() for the type of the CPU's rows.
template <class F>
void for_cpu_type(const at::Tensor& rows, const F& f) {
  const StepProfile::Section section(StepProfile::kProduct);
  if (rows.scalar_type() == at::kDouble) return f.template operator()<double>();
  TORCH_CHECK(rows.scalar_type() == at::kFloat, "additions of ", rows.scalar_type());
  f.template operator()<float>();
}

template <class T>
cpu::Rows<T> rows_in(const LinearInput& input) {
  cpu::Rows<T> rows{.x = data<T>(input.x), .rows = input.x.size(0), .in = input.x.size(1)};
  if (const Norm* const n = input.norm; n != nullptr) {
    rows.norm = {n->kind, data<T>(n->weight), data<T>(n->bias), n->eps};
  }
  return rows;
}

// The type of matrices for the CPU's kernels. kAuto: that of their tensors, if it has 16 bits; bf16
// for fp8.
cpu::WeightType type_of(const LoraFile& file, const LinearSpec& spec, const WeightStore& store,
                        DType dtype) {
  if (store.dtype == DType::kFloat64) return cpu::WeightType::kDouble;
  if (dtype == DType::kBFloat16) return cpu::WeightType::kBFloat16;
  if (dtype == DType::kFloat16) return cpu::WeightType::kHalf;
  if (dtype != DType::kAuto) return cpu::WeightType::kFloat;
  const auto is = [&](SafeDType type) {
    return std::ranges::all_of(spec.names, [&](const std::string& name) {
      const TensorView& view = *file.tensors.find(name + ".weight");
      return view.block == nullptr && view.dtype == type;
    });
  };
  if (is(SafeDType::kBF16) || is(SafeDType::kF8E4M3)) return cpu::WeightType::kBFloat16;
  return is(SafeDType::kF16) ? cpu::WeightType::kHalf : cpu::WeightType::kFloat;
}

}  // namespace

absl::StatusOr<LoraWeights> LoraWeights::load(const LoraFile& file, const DecoderConfig& config,
                                              WeightStore store, DType dtype) {
  store.dtype = store.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  LoraWeights weights;
  weights.rank_ = file.rank;
  TANDEM_RETURN_IF_ERROR(store.ops().add_lora != nullptr
                             ? weights.load_for_kernels(file, config, store)
                             : weights.load_for_cpu(file, config, store, dtype));
  return weights;
}

absl::Status LoraWeights::load_for_cpu(const LoraFile& file, const DecoderConfig& config,
                                       const WeightStore& store, DType dtype) {
  layers_.resize(static_cast<size_t>(config.layers));
  memory_bytes_ = bytes_of(file, config, store, dtype);
  memory_ = cpu::allocate_apart(static_cast<size_t>(memory_bytes_));
  std::memset(memory_.get(), 0, static_cast<size_t>(memory_bytes_));
  first_byte_.resize(static_cast<size_t>(config.layers) + 1);
  std::byte* next = memory_.get();
  const auto loaded = each_layer(file, [&](std::span<const LoraModule> modules) -> absl::Status {
    const LoraModule& first = modules.front();
    if (first.layer >= config.layers) return absl::OkStatus();
    const LinearSpec spec = lora_spec(config, first.layer, first.part);
    cpu::LowRankLayer& layer =
        layers_[static_cast<size_t>(first.layer)][static_cast<size_t>(first.part)];
    const LinearSpec a = spec_of_a(spec, modules);
    layer.type = type_of(file, a, store, dtype);
    layer.in = spec.in;
    std::byte* const numbers = next;
    for (const int64_t rank : a.outs) layer.ranks += rank;
    next += cpu::low_rank_a_bytes(layer.type, layer.ranks, spec.in);
    TANDEM_RETURN_IF_ERROR(
        load_rows(file.tensors, a, layer.type, [&](int64_t row, int64_t n, const std::byte* from) {
          cpu::pack_low_rank_a(numbers, layer.type, spec.in, row, n, from);
        }));
    int64_t column = 0, rank = 0;
    for (const int64_t columns : spec.outs) {
      layer.matrices.push_back(
          {.first_column = std::exchange(column, column + columns), .columns = columns});
    }
    for (const LoraModule& module : modules) {
      cpu::LowRankLayer::Matrix& m = layer.matrices[module.matrix];
      const LinearSpec b = spec_of_b(spec, module);
      m.type = type_of(file, b, store, dtype);
      m.rank = module.rank;
      m.first_rank = std::exchange(rank, rank + module.rank);
      m.scale = module.scale;
      std::byte* const to =
          std::exchange(next, next + cpu::low_rank_b_bytes(m.type, m.columns, m.rank));
      TANDEM_RETURN_IF_ERROR(
          load_rows(file.tensors, b, m.type, [&](int64_t row, int64_t n, const std::byte* from) {
            cpu::pack_low_rank_b(to, m.type, m.rank, row, n, from);
          }));
      m.b = to;
    }
    layer.a = numbers;
    layer.end = next;
    first_byte_[static_cast<size_t>(first.layer) + 1] = next - memory_.get();
    return absl::OkStatus();
  });
  TANDEM_RETURN_IF_ERROR(loaded);
  // Layers without additions begin where the one before them ends.
  for (size_t i = 1; i < first_byte_.size(); ++i) {
    first_byte_[i] = std::max(first_byte_[i], first_byte_[i - 1]);
  }
  TORCH_CHECK(next == memory_.get() + memory_bytes_, "an adapter of ", next - memory_.get(),
              " bytes in ", memory_bytes_);
  return absl::OkStatus();
}

// Matrices are rearranged on the host: kernels of the device would have to be waited for.
absl::Status LoraWeights::load_for_kernels(const LoraFile& file, const DecoderConfig& config,
                                           const WeightStore& store) {
  const auto place = [&](const at::Tensor& numbers) {
    return numbers_.emplace_back(numbers.to(store.device)).const_data_ptr();
  };
  std::vector<LoraLayer> layers(static_cast<size_t>(config.layers) * kLoraParts);
  const auto loaded = each_layer(file, [&](std::span<const LoraModule> modules) -> absl::Status {
    const LoraModule& first = modules.front();
    if (first.layer >= config.layers) return absl::OkStatus();
    const auto part = static_cast<size_t>(first.part);
    parts_ |= uint32_t{1} << part;
    LoraLayer& layer = layers[static_cast<size_t>(first.layer) * kLoraParts + part];
    const LinearSpec spec = lora_spec(config, first.layer, first.part);
    TORCH_CHECK(spec.outs.size() <= size_t{kMostLoraMatrices}, "a layer of ", spec.outs.size(),
                " matrices");
    for (const LoraModule& m : modules) {
      TANDEM_ASSIGN_OR_RETURN(
          const at::Tensor columns,
          load_matrix(file.tensors, spec_of_b(spec, m), store.residual(), at::kCPU));
      layer.b[m.matrix] = place(columns.t().contiguous());
      layer.rank_end[m.matrix] = m.rank;
      layer.scale[m.matrix] = m.scale;
    }
    TANDEM_ASSIGN_OR_RETURN(
        const at::Tensor ranks,
        load_matrix(file.tensors, spec_of_a(spec, modules), store.residual(), at::kCPU));
    layer.a = place(ranks);
    for (size_t m = 0; m < size_t{kMostLoraMatrices}; ++m) {
      layer.column_end[m] = m < spec.outs.size() ? static_cast<int32_t>(spec.outs[m]) : 0;
      if (m == 0) continue;
      layer.rank_end[m] += layer.rank_end[m - 1];
      layer.column_end[m] += layer.column_end[m - 1];
    }
    return absl::OkStatus();
  });
  TANDEM_RETURN_IF_ERROR(loaded);
  const auto bytes = static_cast<int64_t>(layers.size() * sizeof(LoraLayer));
  table_ = at::from_blob(layers.data(), {bytes}, at::kByte).clone().to(store.device);
  return absl::OkStatus();
}

std::span<const std::byte> LoraWeights::between(double from, double to) const {
  const auto byte_of = [&](double place) {
    const auto layer = static_cast<size_t>(place);
    if (layer + 1 >= first_byte_.size()) return memory_bytes_;
    const auto bytes = static_cast<double>(first_byte_[layer + 1] - first_byte_[layer]);
    return first_byte_[layer] + static_cast<int64_t>((place - static_cast<double>(layer)) * bytes);
  };
  const int64_t first = byte_of(from);
  return {memory_.get() + first, static_cast<size_t>(byte_of(to) - first)};
}

int64_t LoraWeights::bytes() const {
  int64_t n = memory_bytes_ + (table_.defined() ? table_.numel() : 0);
  for (const at::Tensor& t : numbers_) n += static_cast<int64_t>(t.nbytes());
  return n;
}

int64_t LoraWeights::bytes_of(const LoraFile& file, const DecoderConfig& config,
                              const WeightStore& store, DType dtype) {
  const bool for_kernels = store.ops().add_lora != nullptr;
  const int64_t number = store.dtype == DType::kFloat64 ? 8 : 4;  // of kernels
  int64_t bytes = 0;
  each_layer(file, [&](std::span<const LoraModule> modules) {
    const LoraModule& first = modules.front();
    if (first.layer >= config.layers) return absl::OkStatus();
    const LinearSpec spec = lora_spec(config, first.layer, first.part);
    const LinearSpec a = spec_of_a(spec, modules);
    int64_t ranks = 0;
    for (const LoraModule& m : modules) {
      const int64_t columns = spec.outs[m.matrix];
      ranks += m.rank;
      bytes += for_kernels ? columns * m.rank * number
                           : cpu::low_rank_b_bytes(type_of(file, spec_of_b(spec, m), store, dtype),
                                                   columns, m.rank);
    }
    bytes += for_kernels ? ranks * spec.in * number
                         : cpu::low_rank_a_bytes(type_of(file, a, store, dtype), ranks, spec.in);
    return absl::OkStatus();
  }).IgnoreError();
  const auto table =
      static_cast<int64_t>(static_cast<size_t>(config.layers) * kLoraParts * sizeof(LoraLayer));
  return bytes + (for_kernels ? table : 0);
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

std::span<const cpu::LowRankRows> LoraProducts::rows_of(std::span<const LoraGroup> groups,
                                                        int layer, LoraPart part) {
  rows_.clear();
  for (const LoraGroup& group : groups) {
    const cpu::LowRankLayer* const own = group.weights->find(layer, part);
    if (own != nullptr) rows_.push_back({own, group.rows, group.n});
  }
  return rows_;
}

void LoraProducts::read_ahead(const LoraGroups& loras, int layer, double from, double to) const {
  if (loras.groups.empty()) return;
  // In layers. Additions to the gate precede its product, which is half of a layer's work.
  constexpr double kAhead = 0.55;
  cpu::ReadAhead& memory = cpu::read_ahead();
  memory.clear();
  for (const LoraGroup& group : loras.groups) {
    memory.add(group.weights->between(layer + from + kAhead, layer + to + kAhead));
  }
}

void LoraProducts::add(at::Tensor& to, const LinearInput& x, const LoraGroups& loras, int layer,
                       LoraPart part) {
  if (add_by_kernels(to, x, loras.view, layer, part, /*add=*/true)) return;
  const std::span rows = rows_of(loras.groups, layer, part);
  if (rows.empty()) return;
  TORCH_CHECK(to.is_contiguous() && to.scalar_type() == x.x.scalar_type(), "additions of ",
              x.x.scalar_type(), " to rows of ", to.scalar_type());
  for_cpu_type(x.x,
               [&]<class T>() { cpu::add_low_rank(data<T>(to), to.size(1), rows_in<T>(x), rows); });
}

const AddedRows* LoraProducts::sums(const LinearInput& x, const LoraGroups& loras, int layer,
                                    LoraPart part, int64_t outs) {
  if (loras.view.rank > 0) {
    sums_view_ = sums_.view(x.x.size(0), outs, type_);
    if (!add_by_kernels(sums_view_, x, loras.view, layer, part, /*add=*/false)) return nullptr;
    return &added_.emplace(AddedRows{sums_view_, loras.view.added});
  }
  const std::span groups = rows_of(loras.groups, layer, part);
  if (groups.empty()) return nullptr;
  int32_t n = 0;
  sums_row_.assign(static_cast<size_t>(x.x.size(0)), -1);
  for (const cpu::LowRankRows& group : groups) {
    for (int64_t i = 0; i < group.n; ++i) sums_row_[static_cast<size_t>(group.rows[i])] = n++;
  }
  if (!sums_view_.defined() || sums_view_.size(0) != n || sums_view_.size(1) != outs) {
    sums_view_ = sums_.view(n, outs, type_);
  }
  for_cpu_type(x.x, [&]<class T>() {
    cpu::low_rank_sums(data<T>(sums_view_), outs, rows_in<T>(x), groups);
  });
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

}  // namespace tandem
