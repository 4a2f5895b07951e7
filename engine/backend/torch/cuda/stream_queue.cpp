// A CUDA stream as a command queue.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/stream.h"

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

// Guards the beginning, end and destruction of graphs: LibTorch's generator of a device keeps a set
// of graphs without a lock, and device queues of one GPU share it. Capture and replay do not use
// the set, so device queues capture concurrently.
std::mutex& set_of_graphs() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

// The memory pool of all graphs that live at one time. LibTorch refuses its id after the last of
// them is destroyed.
struct GraphMemory {
  const c10::MempoolId_t id = at::cuda::graph_pool_handle();
};

template <class F>
bool succeeds(const F& f) noexcept {
  try {
    f();
    return true;
  } catch (...) {
    return false;
  }
}

// On the current stream.
class StreamGraph final : public Graph {
 public:
  explicit StreamGraph(std::shared_ptr<const GraphMemory> memory) : memory_(std::move(memory)) {}
  ~StreamGraph() override {
    const std::lock_guard lock(set_of_graphs());
    graph_.reset();
  }

  void begin() {
    const std::lock_guard lock(set_of_graphs());
    graph_->capture_begin(memory_->id, cudaStreamCaptureModeThreadLocal);
    begun_ = true;
  }

  void end() {
    const std::lock_guard lock(set_of_graphs());
    graph_->capture_end();
  }

  void replay() { graph_->replay(); }

  // Ends a failed capture, so that the stream and LibTorch's allocators can be used again. False:
  // LibTorch could not end it.
  bool abandon(const c10::cuda::CUDAStream& stream) noexcept {
    const std::lock_guard lock(set_of_graphs());
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    static_cast<void>(cudaStreamIsCapturing(stream.stream(), &status));
    if (status != cudaStreamCaptureStatusNone) succeeds([&] { graph_->capture_end(); });
    const bool ended = succeeds([&] { graph_->pool(); });
    if (!ended) {
      give_back(stream.device_index());
      // Leaked: the destructor ends the process if LibTorch's generator does not have the object in
      // its set, and an allocator that still has its filter calls it later.
      static_cast<void>(graph_.release());
    }
    static_cast<void>(cudaGetLastError());
    return ended;
  }

 private:
  // Removes the graph's filter from both allocators. capture_begin() sets it. capture_end() removes
  // it only if the capture succeeded, ~CUDAGraph never. If capture_begin() itself threw, an
  // allocator with the filter has also counted a use of the pool.
  void give_back(c10::DeviceIndex device) const noexcept {
    namespace caching = c10::cuda::CUDACachingAllocator;
    const c10::MempoolId_t id = memory_->id;
    if (succeeds([&] { caching::endAllocateToPool(device, id); }) || begun_) {
      succeeds([&] { caching::releasePool(device, id); });
    }
    if (succeeds([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(id); }) || begun_) {
      succeeds([&] { at::getHostAllocator(at::kCUDA)->release_pool(id); });
    }
  }

  const std::shared_ptr<const GraphMemory> memory_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_ = std::make_unique<at::cuda::CUDAGraph>();
  bool begun_ = false;
};

// A tensor's memory, owned by the pointer.
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
    // Zeroed: a graph copies whole areas, also the parts that no array fills.
    return memory_of(at::zeros({static_cast<int64_t>(bytes)},
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

  // Other device queues allocate meanwhile, so capture mode restricts only this thread. Graphs
  // share the memory that they allocate: they run one after the other and leave no results there.
  // After a capture that LibTorch could not end, there are no more captures.
  std::unique_ptr<Graph> capture(std::function<void()> work) override {
    if (gave_up_) throw std::runtime_error("an earlier capture could not be ended");
    const c10::cuda::CUDAStreamGuard here(stream_);
    auto graph = std::make_unique<StreamGraph>(graph_memory());
    try {
      graph->begin();
      work();
      graph->end();
    } catch (...) {
      gave_up_ = !graph->abandon(stream_);
      throw;
    }
    return graph;
  }

  void replay(Graph& graph) override {
    const c10::cuda::CUDAStreamGuard here(stream_);
    static_cast<StreamGraph&>(graph).replay();
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
  std::shared_ptr<const GraphMemory> graph_memory() {
    std::shared_ptr<const GraphMemory> memory = graph_memory_.lock();
    if (memory == nullptr) graph_memory_ = memory = std::make_shared<const GraphMemory>();
    return memory;
  }

  const c10::cuda::CUDAStream stream_;
  std::weak_ptr<const GraphMemory> graph_memory_;  // of living graphs
  bool gave_up_ = false;
};

}  // namespace

std::unique_ptr<Queue> open_queue(int device) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  const c10::cuda::CUDAGuard on_device(index);
  const c10::cuda::CUDAStream stream =
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index);
  stream.synchronize();
  static std::once_flag asked;  // other device queues may be launching
  std::call_once(asked, [] {
    const char* const overlap = std::getenv("TANDEM_CUDA_OVERLAP");
    if (overlap != nullptr) overlap_launches(std::string_view(overlap) != "0");
    const char* const word = std::getenv("TANDEM_CUDA_PROMPT_ATTENTION");
    const std::string_view prompts = word == nullptr ? "" : word;
    use_for_prompts(prompts == "0"       ? PromptLibrary::kNone
                    : prompts == "cudnn" ? PromptLibrary::kCudnn
                                         : PromptLibrary::kFlash);
  });
  // Products accumulate in fp32.
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  at::globalContext().setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  return std::make_unique<StreamQueue>(stream);
}

}  // namespace tandem::cuda
