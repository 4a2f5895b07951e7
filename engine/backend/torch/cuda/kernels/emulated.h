// platform.h without a device: checked host implementations of what kernels use. The emulator that
// runs them belongs to the tests (tests/engine/backend/torch/cuda/kernels/emulator.h).
//
// An emulator::Fault ends a launch on:
//   - an access out of bounds or misaligned;
//   - a read of uninitialized memory;
//   - a data race: two threads access the same memory without a barrier in between, and one writes;
//   - a barrier or shuffle that only some threads reach;
//   - too much shared memory;
//   - an access to device memory by a thread that has not waited for the previous launch.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/backend/torch/cuda/kernels/geometry.h"
#include "engine/backend/torch/cuda/kernels/mutants.h"

// NOLINTBEGIN: CUDA's names
#define __global__
#define __device__
#define __host__
#define __shared__ static  // thread blocks run one after another
#define __grid_constant__
#define __launch_bounds__(...)

namespace tandem::cuda {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// Indices of the running thread.
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::cos, std::erf, std::exp, std::fabs, std::fma, std::log, std::max, std::memcpy, std::min,
    std::rint, std::sin, std::sqrt, std::tanh;
// NOLINTEND

namespace emulator {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline Mutant awake = Mutant::kNone;

// Last access to a memory cell: by which thread, between which barriers of which block.
struct Stamp {
  uint32_t launch = 0;
  int32_t block = 0;   // kMany: several
  int32_t thread = 0;  // kMany: several
  uint32_t epoch = 0;  // barriers that the block has passed
};

// Device memory, with a stamp per cell.
class Memory {
 public:
  enum class Kind : uint8_t {
    kGlobal,
    kShared,  // uninitialized at the start of each block
  };

  // cell: bytes tracked as a unit. name: for fault messages.
  Memory(std::string name, void* base, size_t bytes, size_t cell, Kind kind);

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

  // Checked access of the running thread.
  std::byte* to_read(int64_t offset, size_t bytes, size_t alignment);
  std::byte* to_write(int64_t offset, size_t bytes, size_t alignment);

  // Checks a read without performing it (prefetch).
  void check_place(int64_t offset, size_t bytes, size_t alignment);

  void written_by_host(int64_t offset, size_t bytes);
  bool is_written(int64_t offset) const;

 private:
  struct Cell {
    bool written = false;
    Stamp write, read;
  };
  std::byte* touch(int64_t offset, size_t bytes, size_t alignment);

  std::string name_;
  std::byte* base_;
  size_t bytes_, cell_;
  Kind kind_;
  uint32_t claimed_by_ = 0;  // launch that counted this shared memory
  std::vector<Cell> cells_;
};

// Runs the kernel for all threads of all blocks. Throws Fault.
void run(const Geometry& geometry, const std::function<void()>& kernel);

// Barrier of the running thread's block; shuffle of its warp. shuffle() returns lane `from`'s
// value.
void barrier(const std::source_location& where);
uint64_t shuffle(unsigned mask, uint64_t value, int from, const std::source_location& where);

// A lane's operands of a warp-level product: see mma_m16n8k16.
struct Fragments {
  uint32_t a[4], b[2];
};

// Synchronizes like a shuffle. Returns the fragments of all lanes, [kWarp], valid until the lane's
// next synchronization.
const Fragments* meet(const Fragments& own, const std::source_location& where);

// A thread must not access device memory before this call.
void wait_for_last();

[[noreturn]] void null_pointer();

// Reference to an element of device memory, used where a kernel has T&.
template <class T>
class Ref {
 public:
  Ref(Memory* memory, int64_t offset) : memory_(memory), offset_(offset) {}
  Ref(const Ref&) = default;

  operator T() const {  // NOLINT(google-explicit-constructor): as T&
    T x;
    std::memcpy(&x, memory_->to_read(offset_, sizeof(T), alignof(T)), sizeof(T));
    return x;
  }
  template <class U>
    requires(!std::same_as<U, T>)
  explicit operator U() const {
    return static_cast<U>(static_cast<T>(*this));
  }
  const Ref& operator=(T x) const {
    std::memcpy(memory_->to_write(offset_, sizeof(T), alignof(T)), &x, sizeof(T));
    return *this;
  }
  Ref& operator=(const Ref& x) {
    if (this != &x) *this = static_cast<T>(x);
    return *this;
  }
  const Ref& operator+=(T x) const { return *this = static_cast<T>(*this) + x; }
  const Ref& operator*=(T x) const { return *this = static_cast<T>(*this) * x; }

 private:
  Memory* memory_;
  int64_t offset_;
};

}  // namespace emulator

template <class T>
class Ptr {
 public:
  Ptr() = default;
  Ptr(std::nullptr_t) {}  // NOLINT(google-explicit-constructor): as T*
  // at: offset in bytes
  Ptr(emulator::Memory* memory, int64_t at) : memory_(memory), at_(at) {}
  template <class U>
    requires(std::same_as<const U, T>)
  Ptr(const Ptr<U>& p)  // NOLINT(google-explicit-constructor): as T*
      : memory_(p.memory()), at_(p.at()) {}

  emulator::Memory* memory() const { return memory_; }
  int64_t at() const { return at_; }

  auto operator[](int64_t i) const {
    if (memory_ == nullptr) emulator::null_pointer();
    const emulator::Ref<std::remove_const_t<T>> ref(memory_,
                                                    at_ + i * static_cast<int64_t>(sizeof(T)));
    if constexpr (std::is_const_v<T>) {
      return static_cast<std::remove_const_t<T>>(ref);
    } else {
      return ref;
    }
  }
  Ptr operator+(int64_t n) const { return {memory_, at_ + n * static_cast<int64_t>(sizeof(T))}; }
  friend bool operator==(const Ptr& p, std::nullptr_t) { return p.memory_ == nullptr; }
  bool operator==(const Ptr& p) const { return memory_ == p.memory_ && at_ == p.at_; }
  template <class U>
  bool operator<=(const Ptr<U>& p) const {
    return address() <= p.address();
  }
  uintptr_t address() const {
    return reinterpret_cast<uintptr_t>(memory_->base()) + static_cast<uintptr_t>(at_);
  }

 private:
  emulator::Memory* memory_ = nullptr;
  int64_t at_ = 0;
};

// The same memory as words of another type.
template <class Word, class T>
Ptr<const Word> words_of(const Ptr<T>& p) {
  return {p.memory(), p.at()};
}

template <class T>
uintptr_t address_of(const Ptr<T>& p) {
  return p.address();
}

template <class T, int N>
class SharedArray {
 public:
  SharedArray()
      : memory_("shared memory", data_, sizeof(data_), sizeof(T), emulator::Memory::Kind::kShared) {
  }
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;

  emulator::Ref<T> operator[](int64_t i) { return {&memory_, i * static_cast<int64_t>(sizeof(T))}; }

  template <int n>
  void take(int64_t i, T (&x)[n]) {
    constexpr size_t kWord = sizeof(x) % sizeof(uint4) == 0 ? sizeof(uint4) : sizeof(T);
    const int64_t at = i * static_cast<int64_t>(sizeof(T));
    for (size_t b = 0; b < sizeof(x); b += kWord) {
      const std::byte* const from = memory_.to_read(at + static_cast<int64_t>(b), kWord, kWord);
      std::memcpy(reinterpret_cast<std::byte*>(x) + b, from, kWord);
    }
  }
  template <int n>
  void put(int64_t i, const T (&x)[n]) {
    constexpr size_t kWord = sizeof(x) % sizeof(uint4) == 0 ? sizeof(uint4) : sizeof(T);
    const int64_t at = i * static_cast<int64_t>(sizeof(T));
    for (size_t b = 0; b < sizeof(x); b += kWord) {
      std::byte* const to = memory_.to_write(at + static_cast<int64_t>(b), kWord, kWord);
      std::memcpy(to, reinterpret_cast<const std::byte*>(x) + b, kWord);
    }
  }

 private:
  T data_[N];
  emulator::Memory memory_;
};

struct Stream {};

inline bool mutated(Mutant mutant) { return emulator::awake == mutant; }

template <class... P, class... A>
void launch(Stream, void (*kernel)(P...), const Geometry& g, A&&... arguments) {
  if (g.blocks() == 0) return;
  emulator::run(g, [&] { kernel(static_cast<P>(arguments)...); });
}

// NOLINTBEGIN: CUDA's names
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __double2float_ru(double x) {
  const auto nearest = static_cast<float>(x);
  return nearest < x ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
}
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  emulator::barrier(where);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T x, int lanes,
                  const std::source_location& where = std::source_location::current()) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(T));
  bits = emulator::shuffle(mask, bits, static_cast<int>(threadIdx.x % kWarp) ^ lanes, where);
  std::memcpy(&x, &bits, sizeof(T));
  return x;
}
// NOLINTEND

inline void let_next_begin() {}
inline void wait_for_last() {
  if (!mutated(Mutant::kNoWait)) emulator::wait_for_last();
}

template <class T>
void prefetch(const Ptr<T>& p, int64_t i) {
  if (p == nullptr) emulator::null_pointer();
  p.memory()->check_place(p.at() + i * static_cast<int64_t>(sizeof(T)), sizeof(T), alignof(T));
}

template <class T>
T read_once(const Ptr<const T>& p, int64_t i) {
  return p[i];
}

// Tensor core product. The sum of the 16 products and the addend is computed precisely enough to be
// independent of the order, and rounded once. Devices may round differently. number(): the value of
// 16 bits.
template <class Number>
void mma_m16n8k16(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1, const Number& number,
                  const std::source_location& where) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const emulator::Fragments* const all = emulator::meet({{a.x, a.y, a.z, a.w}, {b0, b1}}, where);
  const auto half = [&](uint32_t two, int which) {
    return static_cast<double>(number(static_cast<uint16_t>(two >> (16 * which))));
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2);
    const int column = 2 * (lane % 4) + i % 2;
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const int at = k % 8 / 2;  // lane among those that share a row of A or a column of B
      const double x = half(all[row % 8 * 4 + at].a[row / 8 + k / 8 * 2], k % 2);
      sum += x * half(all[column * 4 + at].b[k / 8], k % 2);
    }
    c[i] = static_cast<float>(sum);
  }
}

// Exact: 32 products of u8 and s8.
inline void mma_u8s8(int32_t (&c)[4], const uint4& a, uint32_t b0, uint32_t b1,
                     const std::source_location& where = std::source_location::current()) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const emulator::Fragments* const all = emulator::meet({{a.x, a.y, a.z, a.w}, {b0, b1}}, where);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2);
    const int column = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 32; ++k) {
      const int at = k % 16 / 4;
      const uint32_t x = all[row % 8 * 4 + at].a[row / 8 + k / 16 * 2] >> (k % 4 * 8);
      const uint32_t y = all[column * 4 + at].b[k / 16] >> (k % 4 * 8);
      c[i] += static_cast<int32_t>(x & 255) * static_cast<int8_t>(y & 255);
    }
  }
}

inline void mma_bf16(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1,
                     const std::source_location& where = std::source_location::current()) {
  mma_m16n8k16(
      c, a, b0, b1, [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }, where);
}

inline void mma_half(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1,
                     const std::source_location& where = std::source_location::current()) {
  mma_m16n8k16(
      c, a, b0, b1, [](uint16_t x) { return static_cast<float>(std::bit_cast<_Float16>(x)); },
      where);
}

}  // namespace tandem::cuda
