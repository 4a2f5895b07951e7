// A stream as a lane's queue.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <optional>
#include <string_view>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/lane.h"

namespace tandem::cuda {
namespace {

class StreamEvent final : public Event {
 public:
  explicit StreamEvent(c10::DeviceIndex device) {
    const c10::cuda::CUDAGuard on_device(device);
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~StreamEvent() override { static_cast<void>(cudaEventDestroy(event)); }

  void synchronize() override { C10_CUDA_CHECK(cudaEventSynchronize(event)); }

  cudaEvent_t event = nullptr;
};

class StreamGraph final : public Graph {
 public:
  at::cuda::CUDAGraph graph;
};

// A tensor's memory for as long as the pointer is kept.
std::shared_ptr<std::byte> memory_of(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.mutable_data_ptr()), [bytes](std::byte*) {}};
}

class StreamQueue final : public Queue {
 public:
  explicit StreamQueue(const c10::cuda::CUDAStream& stream) : stream_(stream) {}

  std::shared_ptr<std::byte> device_memory(size_t bytes) override {
    const c10::cuda::CUDAStreamGuard here(stream_);
    const c10::InferenceMode inference;
    return memory_of(at::empty({static_cast<int64_t>(bytes)},
                               at::TensorOptions().dtype(at::kByte).device(stream_.device())));
  }

  std::shared_ptr<std::byte> host_memory(size_t bytes) override {
    const c10::cuda::CUDAStreamGuard here(stream_);
    const c10::InferenceMode inference;
    return memory_of(at::empty({static_cast<int64_t>(bytes)},
                               at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
  }

  void copy(void* to, const void* from, size_t bytes) override {
    const c10::cuda::CUDAGuard on_device(stream_.device_index());
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.stream()));
  }

  void zero(void* to, size_t bytes) override {
    const c10::cuda::CUDAGuard on_device(stream_.device_index());
    C10_CUDA_CHECK(cudaMemsetAsync(to, 0, bytes, stream_.stream()));
  }

  void launch(std::function<void()> work) override {
    const c10::cuda::CUDAStreamGuard here(stream_);
    work();
  }

  // Other lanes allocate meanwhile, so only this thread is held to what may be captured. Memory
  // that is taken on the way is the graphs' own; they run one after the other and leave nothing
  // there, so they share it.
  std::unique_ptr<Graph> capture(std::function<void()> work) override {
    const c10::cuda::CUDAStreamGuard here(stream_);
    if (!graph_memory_) graph_memory_ = at::cuda::graph_pool_handle();
    auto kept = std::make_unique<StreamGraph>();
    kept->graph.capture_begin(*graph_memory_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      end_capture(kept->graph);
      throw;
    }
    kept->graph.capture_end();
    return kept;
  }

  void replay(Graph& graph) override {
    const c10::cuda::CUDAStreamGuard here(stream_);
    static_cast<StreamGraph&>(graph).graph.replay();
  }

  bool reads(const Queue& other) const override {
    const auto& theirs = static_cast<const StreamQueue&>(other);
    return reads_memory_of(stream_.device_index(), theirs.stream_.device_index());
  }

  std::unique_ptr<Event> event() override {
    return std::make_unique<StreamEvent>(stream_.device_index());
  }

  void record(Event& event) override {
    const c10::cuda::CUDAGuard on_device(stream_.device_index());
    C10_CUDA_CHECK(cudaEventRecord(static_cast<StreamEvent&>(event).event, stream_.stream()));
  }

  void wait(const Event& event) override {
    const c10::cuda::CUDAGuard on_device(stream_.device_index());
    C10_CUDA_CHECK(
        cudaStreamWaitEvent(stream_.stream(), static_cast<const StreamEvent&>(event).event));
  }

  void synchronize() override {
    const c10::cuda::CUDAGuard on_device(stream_.device_index());
    stream_.synchronize();
  }

 private:
  // Of what could not be captured: the stream is to be used again.
  static void end_capture(at::cuda::CUDAGraph& graph) noexcept {
    try {
      graph.capture_end();
    } catch (...) {
      static_cast<void>(cudaGetLastError());
    }
  }

  const c10::cuda::CUDAStream stream_;
  std::optional<c10::MempoolId_t> graph_memory_;
};

}  // namespace

std::unique_ptr<Queue> open_queue(int device) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  const c10::cuda::CUDAGuard on_device(index);
  const c10::cuda::CUDAStream stream =
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index);
  stream.synchronize();
  if (const char* const overlap = std::getenv("TANDEM_CUDA_OVERLAP"); overlap != nullptr) {
    overlap_launches(std::string_view(overlap) != "0");
  }
  // Sums of products stay in fp32.
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  at::globalContext().setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  return std::make_unique<StreamQueue>(stream);
}

}  // namespace tandem::cuda
