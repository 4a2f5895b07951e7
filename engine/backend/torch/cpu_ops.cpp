// The operations of ops.h in the kernels of cpu/.
#include <cstring>
#include <type_traits>

#include "engine/backend/torch/cpu/attention.h"
#include "engine/backend/torch/cpu/elementwise.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/profile.h"
#include "engine/backend/torch/tensor_access.h"
#include "engine/sampling/readout.h"

namespace tandem {
namespace {

// Calls f.operator()<T, R>() for the product type of a tensor.
template <class F>
void for_type(const at::Tensor& t, const F& f) {
  for_number_type<cpu::BFloat16>(t, f);
}

// Calls f.operator()<T, K, R>() for the types of activations and of a cache.
template <class F>
void for_types(const at::Tensor& t, const at::Tensor& kv, const F& f) {
  for_type(t, [&]<class T, class R>() {
    if constexpr (std::is_same_v<R, double>) {
      TORCH_CHECK(kv.scalar_type() == at::kDouble, "no attention to ", kv.scalar_type());
      f.template operator()<double, double, double>();
    } else if (kv.scalar_type() == at::kBFloat16) {
      f.template operator()<T, cpu::BFloat16, R>();
    } else {
      TORCH_CHECK(kv.scalar_type() == at::kFloat, "no attention to ", kv.scalar_type());
      f.template operator()<T, float, R>();
    }
  });
}

template <class K>
cpu::PagedKv<K> paged(const LayerKv& kv, const RowView& rows) {
  return {kv.kv_heads, kv.head_dim, rows.page_rows, static_cast<K*>(kv.keys.mutable_data_ptr()),
          static_cast<K*>(kv.values.mutable_data_ptr())};
}

template <class R>
cpu::Norm<R> norm_of(const Norm& n) {
  return {n.kind, data<R>(n.weight), data<R>(n.bias), n.eps};
}

void embed(at::Tensor& x, const at::Tensor& table, const int32_t* token) {
  const StepProfile::Section section(StepProfile::kEmbed);
  if (table.scalar_type() == at::kHalf) {
    return cpu::embed<_Float16, float>(data<float>(x), data<_Float16>(table), token, x.size(0),
                                       x.size(1));
  }
  for_type(table, [&]<class T, class R>() {
    cpu::embed<T, R>(data<R>(x), data<T>(table), token, x.size(0), x.size(1));
  });
}

void scale_rows(at::Tensor& x, const int32_t* token, double scale) {
  const StepProfile::Section section(StepProfile::kEmbed);
  for_type(x, [&]<class T, class R>() {
    cpu::scale_rows<R>(data<R>(x), token, scale, x.size(0), x.size(1));
  });
}

void add_positions(at::Tensor& x, const at::Tensor& table, const int32_t* token,
                   const int32_t* position) {
  const StepProfile::Section section(StepProfile::kEmbed);
  for_type(table, [&]<class T, class R>() {
    cpu::add_positions<T, R>(data<R>(x), data<T>(table), token, position, x.size(0), x.size(1));
  });
}

void copy_rows(at::Tensor& to, const int64_t* to_index, const at::Tensor& from,
               const int64_t* from_index, int64_t n) {
  const StepProfile::Section section(StepProfile::kEmbed);
  const auto bytes = static_cast<size_t>(from.size(1)) * from.element_size();
  auto* t = static_cast<std::byte*>(to.mutable_data_ptr());
  const auto* f = static_cast<const std::byte*>(from.const_data_ptr());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t ti = to_index != nullptr ? to_index[i] : i;
    const int64_t fi = from_index != nullptr ? from_index[i] : i;
    std::memcpy(t + static_cast<size_t>(ti) * bytes, f + static_cast<size_t>(fi) * bytes, bytes);
  }
}

void norm(at::Tensor& out, const at::Tensor& x, const Norm& norm) {
  const StepProfile::Section section(StepProfile::kNorm);
  for_type(out, [&]<class T, class R>() {
    cpu::norm<T, R>(data<T>(out), data<R>(x), norm_of<R>(norm), x.size(0), x.size(1));
  });
}

void add_norm(at::Tensor& x, const at::Tensor& y, const Norm& norm) {
  const StepProfile::Section section(StepProfile::kNorm);
  for_type(y, [&]<class T, class R>() {
    cpu::add_norm<T, R>(data<R>(x), data<T>(y), norm_of<R>(norm), x.size(0), x.size(1));
  });
}

void norm_heads(at::Tensor& x, int first, int heads, int head_dim, const Norm& norm) {
  const StepProfile::Section section(StepProfile::kNorm);
  for_type(x, [&]<class T, class R>() {
    cpu::norm_heads<T, R>(data<T>(x) + int64_t{first} * head_dim, x.size(1), heads, head_dim,
                          norm_of<R>(norm), x.size(0));
  });
}

void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope) {
  const StepProfile::Section section(StepProfile::kRope);
  for_types(qkv, kv.keys, [&]<class T, class K, class R>() {
    cpu::rope_and_store<T, K, R>(data<T>(qkv), kv.heads, rows, paged<K>(kv, rows),
                                 data<R>(rope.cosine), data<R>(rope.sine));
  });
}

void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale, const DistanceBias& bias) {
  const StepProfile::Section section(StepProfile::kAttention);
  for_types(qkv, kv.keys, [&]<class T, class K, class R>() {
    cpu::attention<T, K, R>({data<T>(qkv), qkv.size(1), data<T>(out), kv.heads}, rows,
                            paged<const K>(kv, rows), scale,
                            {data<R>(bias.table), bias.before, bias.after});
  });
}

void gate(at::Tensor& out, const at::Tensor& gate_up, Activation activation) {
  const StepProfile::Section section(StepProfile::kActivation);
  for_type(out, [&]<class T, class R>() {
    cpu::for_activation(activation, [&]<Activation kind>() {
      cpu::gate<kind, T, R>(data<T>(out), data<T>(gate_up), out.size(0), out.size(1));
    });
  });
}

void activate(at::Tensor& x, Activation activation) {
  const StepProfile::Section section(StepProfile::kActivation);
  for_type(x, [&]<class T, class R>() {
    cpu::for_activation(
        activation, [&]<Activation kind>() { cpu::activate<kind, T, R>(data<T>(x), x.numel()); });
  });
}

void answer_rows(at::Tensor& logits, const RowChanges& changes, const RowQuestion* questions,
                 RowAnswer* answers) {
  for (int64_t r = 0; r < logits.size(0); ++r) {
    const RowQuestion& q = questions[r];
    float* const row = data<float>(logits) + r * logits.size(1);
    answers[r] = answer_row({row, static_cast<size_t>(q.vocab)}, q, changes);
  }
}

void choose(int32_t* to, const int32_t* token, const ChosenToken* chosen, int64_t rows,
            const RowAnswer* cached) {
  for (int64_t r = 0; r < rows; ++r) {
    to[r] = token[r];
    if (chosen[r].answer >= 0) to[r] = chosen[r].of(cached[chosen[r].answer]);
  }
}

}  // namespace

const Ops& cpu_ops() {
  static constexpr Ops kOps{.embed = embed,
                            .scale_rows = scale_rows,
                            .add_positions = add_positions,
                            .copy_rows = copy_rows,
                            .norm = norm,
                            .add_norm = add_norm,
                            .norm_heads = norm_heads,
                            .rope_and_store = rope_and_store,
                            .attention = attention,
                            .gate = gate,
                            .answer_rows = answer_rows,
                            .choose = choose,
                            .activate = activate};
  return kOps;
}

}  // namespace tandem
