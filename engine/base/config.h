// The validated configuration, as plain structs without protobuf.
//
// The textproto schema is proto/tandem/config/v1; engine/host/config/config.h turns one into the
// other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/enum_names.h"
#include "engine/base/ids.h"
#include "engine/base/settings.h"

namespace tandem {

// The number format of the linear layers' weights. kInt8: CPU devices only. kFloat64: for oracles
// in tests. kInt4: rounded at load to 15 steps per 32 inputs; token embeddings to 8 bits. kQ40:
// rounded at load to Q4_0, unless the file has blocks of 4 bits; token embeddings to 15 steps per
// 32 inputs. kFp8: CUDA devices only; rounded at load to e4m3 with a scale per output; token
// embeddings are bf16.
// kStored: the quantized blocks of the file (GGUF, GPTQ, compressed-tensors), expanded if the
// device has no kernel for a tensor's blocks. kAuto: kStored if the file has blocks; else fp32 on a
// CPU, the file's dtype on CUDA.
enum class DType {
  kAuto,
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kInt8,
  kInt4,
  kQ40,
  kFp8,
  kStored,
};

inline constexpr auto kDTypeNames = enum_names<DType>({
    {DType::kAuto, "auto"},
    {DType::kFloat32, "fp32"},
    {DType::kBFloat16, "bf16"},
    {DType::kFloat16, "fp16"},
    {DType::kFloat64, "fp64"},
    {DType::kInt8, "int8"},
    {DType::kInt4, "int4"},
    {DType::kQ40, "q4_0"},
    {DType::kFp8, "fp8"},
    {DType::kStored, "stored"},
});
inline const char* dtype_name(DType dtype) { return kDTypeNames[dtype].data(); }

enum class CpuKernels { kOwn, kAten };  // kAten: LibTorch's operators, a reference for tests

enum class DeviceKind { kCpu, kCuda };

// One device, written "cpu:0" or "cuda:1". "cpu:0/1" is another device queue of cpu:0: it has its
// own threads (or stream), but shares the weights of cpu:0. CPU devices are virtual: each has its
// own queue, threads and weights, so multi-device code can run without GPUs.
struct DeviceConfig {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  int queue = 0;
  int threads = 0;           // CPU only: threads of its kernels; 0: hardware threads / CPU devices
  int64_t memory_bytes = 0;  // budget for all KV pools of the device; 0: from its free memory
  bool pin_threads = false;  // CPU only: pins each thread to its own processor,
  int first_cpu = 0;         // starting with this one of those that the process may use
  CpuKernels cpu_kernels = CpuKernels::kOwn;
  // A second copy of the weights, for products of few rows. CPU: of the output matrix, in 4 bits
  // (cpu/argmax_screen.h); unset: true. CUDA and CpuKernels::kAten: of all; unset: if it takes at
  // most half of the memory that weights and KV pools leave free.
  std::optional<bool> packed_products = std::nullopt;
  bool graphs = true;  // CUDA only: steps of few rows are captured once and replayed
  // The vector instruction set of the CPU's kernels (engine/backend/torch/cpu/targets.h), the same
  // for all devices of a process; empty: the best that the machine has. For tests and measurements.
  std::string cpu_target;

  std::string name() const {
    return (kind == DeviceKind::kCpu ? "cpu:" : "cuda:") + std::to_string(index) +
           (queue > 0 ? "/" + std::to_string(queue) : "");
  }
  friend bool operator==(const DeviceConfig&, const DeviceConfig&) = default;
};

// A closed-form model without weights (engine/backend/fake), for tests and load tests.
struct FakeModelConfig {
  int vocab_size = 257;  // byte tokenizer: 256 bytes and end of text
  int layers = 4;
  int max_positions = 4096;
  double pass_seconds = 0;   // time of a batch, plus
  double row_seconds = 0;    // time per row, plus
  double layer_seconds = 0;  // time per layer, for any number of rows; tests only
  uint64_t seed = 1;
  // The probability that a mask row predicts the token of greedy decoding; independent per row.
  double mask_accuracy = 0;
  std::string trace_file;    // engine/backend/fake/trace.h; empty: none
  bool check_memory = true;  // false: reads are not checked; requires trace_file
  // A script: after the k-th occurrence of `answer_after`, the last one, the model writes answer k
  // and ends the text. Prompts with no or more occurrences have arithmetic answers.
  std::vector<std::string> answers;
  std::string answer_after;   // set at load: what the chat template puts before an answer
  std::string chat_template;  // Jinja; empty: none, or a default with `answers`
  // For tests, called before each batch. True: the device is lost from now on.
  std::function<bool(const std::string& device)> lost;
};

// A head or an adapter of a model, in a folder (weights/adapter_file.h).
struct ExtraConfig {
  std::string name;  // unique in the model
  std::string path;
};

// Consecutive layers of a model on one device.
struct ShardConfig {
  std::string device;
  int layers = 0;
};

struct ModelConfig {
  std::string name;
  std::string path;  // Hugging Face directory; empty for a fake model
  std::optional<FakeModelConfig> fake;
  std::string device = "cpu:0";
  std::vector<std::string> replicas;  // further devices with the same model
  // Its layers by device, beginning with `device`; empty: all on `device`.
  std::vector<ShardConfig> shards;
  DType dtype = DType::kAuto;
  int page_rows = 16;        // rows per KV page
  int64_t kv_pages = 0;      // 0: from the device's budget
  bool prefix_cache = true;  // requests with the same prefix share KV pages
  // Of keys and values: kFloat32, kBFloat16 or kAuto. kAuto is fp32 on a CPU (fp64 with fp64
  // weights) and the dtype on CUDA.
  DType kv_dtype = DType::kAuto;
  // Of LoRA adapters: kFloat32, kBFloat16, kFloat16 or kAuto, that of the file if it has 16 bits,
  // else fp32. CPU devices only; with fp64 weights, adapters are fp64.
  DType adapter_dtype = DType::kAuto;
  int layers = 0;  // uses the first `layers` layers, then the final norm and head; 0: all
  std::vector<ExtraConfig> extras;
  std::vector<ExtraConfig> loras;  // LoRA adapters, by LoraId; others are loaded at run time
};

// A LoRA adapter of a deployment, which requests name in `adapter`.
struct AdapterConfig {
  std::string name;  // unique in the deployment
  LoraId id;         // into ModelConfig::loras of the large model
};

// A deployment, which requests name in `model`: models in roles.
struct DeploymentConfig {
  std::string name;
  std::string large;                     // model names; `large` is required
  std::string small;                     // empty: none
  bool prefix_cache_per_client = false;  // clients do not share prefixes with each other
  // Of earlier requests, for drafts (engine/decode/text_history.h). 0: none.
  int64_t history_tokens = 1 << 18;
  // The method of `auto`. Empty: the fastest exact one (engine/host/methods/plan.h).
  std::string default_method;
  // Syntax of answers to chats (engine/text/tool_format.h). Empty: by the chat template.
  std::string tool_format;  // "hermes", "none", ...
  std::string reasoning_open, reasoning_close;
  bool no_reasoning = false;  // the template's tags are text
  std::vector<AdapterConfig> adapters;
  int64_t adapter_memory_bytes = 0;  // of its adapters, by instance of `large`; 0: no limit
  int max_adapters = 0;              // 0: no limit
  // Unloaded this long after its last request; the next one loads it again. 0: never.
  double unload_after_idle_seconds = 0;
  // By method: default parameters, and fields that only a deployment may set.
  std::map<std::string, Settings> methods;
};

// The order of preemption if KV pages are short.
enum class Preemption {
  kLowestPriority,  // the youngest of these first
  kYoungest,        // independent of priority
};

// Limits of one client. 0: no limit.
struct ClientLimits {
  int max_priority = 0;            // the highest priority that its requests may have
  int max_requests = 0;            // open at once, including waiting ones
  double requests_per_minute = 0;  // admitted; bursts of one minute's worth are allowed
  double tokens_per_minute = 0;    // of prompts and answers together, likewise
  friend bool operator==(const ClientLimits&, const ClientLimits&) = default;
};

struct LimitsConfig {
  int max_running = 256;                 // requests that may hold pages at once
  int max_waiting = 1024;                // requests queued before admission
  int64_t max_waiting_tokens = 1 << 20;  // prompt tokens queued before admission
  int64_t max_waiting_bytes = 64 << 20;  // memory of all requests before admission
  int max_waiting_per_client = 0;        // requests; 0: half of max_waiting, and at least 1
  int step_rows = 512;                   // rows in one batch, prefill chunks included
  int prefill_chunk_rows = 256;          // rows of one sequence's prefill in one batch
  int max_new_tokens = 0;                // cap per request; 0: the model's context
  int default_max_new_tokens = 256;      // when the request names none
  double queue_seconds = 60;             // longest wait before RESOURCE_EXHAUSTED
  Preemption preemption = Preemption::kLowestPriority;
  int max_choices = 16;  // choices of one request
  // Fair shares between clients (engine/sched/fairness.h).
  double fair_prompt_weight = 1;                 // service per prompt token
  double fair_token_weight = 2;                  // service per generated token
  std::map<std::string, double> client_weights;  // share by client; default 1
  ClientLimits default_client;
  std::map<std::string, ClientLimits> clients;  // by client; default_client for all others
  // Slow readers: how long a held request keeps its pages, and when it ends.
  double slow_reader_hold_seconds = 2;
  double stalled_stream_seconds = 600;
};

struct EngineConfig {
  std::vector<DeviceConfig> devices;
  std::vector<ModelConfig> models;
  std::vector<DeploymentConfig> deployments;
  LimitsConfig limits;
  int text_threads = 1;         // detokenization
  int tokenize_threads = 1;     // tokenization of prompts
  std::string statistics_file;  // engine/host/statistics.h; empty: none
  std::string prefix_store;     // a folder (engine/host/prefixes/prefix_store.h); empty: none
  int64_t prefix_store_bytes = int64_t{1} << 30;  // of one file
};

}  // namespace tandem
