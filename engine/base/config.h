// What a deployment says, after validation: plain structs, no protobuf.
//
// The textproto schema is proto/tandem/config/v1; engine/host/config.h turns one into the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/settings.h"

namespace tandem {

// Numbers of the linear layers' weights. kInt8 is for CPU devices only; kFloat64 is for oracles.
// kInt4: rounded at load to 15 steps for 32 inputs, those of tokens to 8 bits. kStored: in the
// blocks that the file has them in (GGUF, GPTQ, compressed-tensors), and expanded where the
// device's products know none of a tensor's. kAuto: kStored where the file has blocks; else fp32 on
// a CPU, the file's own on CUDA.
enum class DType { kAuto, kFloat32, kBFloat16, kFloat16, kFloat64, kInt8, kInt4, kStored };

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kAuto:
      return "auto";
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kFloat64:
      return "fp64";
    case DType::kInt8:
      return "int8";
    case DType::kInt4:
      return "int4";
    case DType::kStored:
      return "stored";
  }
  return "";
}

enum class CpuKernels { kOwn, kAten };  // kAten: LibTorch's operators, a reference for tests

enum class DeviceKind { kCpu, kCuda };

// One device, written "cpu:0" or "cuda:1"; "cpu:0/1" is a further device queue of cpu:0: threads
// (or a stream) of its own, but the weights that cpu:0 has loaded already. CPU devices are virtual:
// each has its own device queue, threads and weight copies, so that every multi-device path runs on
// a machine without a GPU.
struct DeviceConfig {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  int queue = 0;
  int threads = 0;           // CPU only: threads of its kernels; 0: hardware threads / CPU devices
  int64_t memory_bytes = 0;  // budget for all KV pools of the device; 0: chosen from what is free
  bool pin_threads = false;  // CPU only: each thread stays on a processor of its own,
  int first_cpu = 0;         // the first on this one of those that the process may use
  CpuKernels cpu_kernels = CpuKernels::kOwn;
  // CUDA only (and CpuKernels::kAten): weights are kept a second time, for products of few rows.
  // Unset: where that takes no more than half of what weights and KV pools leave over.
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

// A model made of arithmetic instead of weights (engine/backend/fake), for tests and load tests.
struct FakeModelConfig {
  int vocab_size = 257;  // byte tokenizer: 256 bytes and end of text
  int layers = 4;
  int max_positions = 4096;
  double pass_seconds = 0;   // time that one batch takes, plus
  double row_seconds = 0;    // time per row of it
  double layer_seconds = 0;  // time per layer that it runs, whatever the rows; tests only
  uint64_t seed = 1;
  // How often a mask row's best token is what greedy decoding comes to there. Of each row by
  // itself.
  double mask_accuracy = 0;
  std::string trace_file;    // engine/backend/fake/trace.h; empty: none
  bool check_memory = true;  // false: what a pass reads is believed to be there; wants trace_file
  // For tests, asked before each batch: is this device lost from here on?
  std::function<bool(const std::string& device)> lost;
};

// A head or an adapter that is loaded with a model: a folder (weights/adapter_file.h).
struct ExtraConfig {
  std::string name;  // unique among the model's
  std::string path;
};

// The next layers of a model, and where they lie.
struct ShardConfig {
  std::string device;
  int layers = 0;
};

struct ModelConfig {
  std::string name;
  std::string path;  // Hugging Face directory; empty for a fake model
  std::optional<FakeModelConfig> fake;
  std::string device = "cpu:0";
  std::vector<std::string> replicas;  // further devices that have it, too
  // Its layers on several devices, the first of which is `device`; empty: all are there.
  std::vector<ShardConfig> shards;
  DType dtype = DType::kAuto;  // kAuto: fp32 on CPU, the file's own on CUDA
  int page_rows = 16;          // rows per KV page
  int64_t kv_pages = 0;        // 0: from the device's budget
  bool prefix_cache = true;    // requests with the same beginning share its KV pages
  // Of keys and values: kFloat32, kBFloat16 or kAuto, which on CPU is fp32 (fp64 with fp64) and on
  // CUDA the dtype.
  DType kv_dtype = DType::kAuto;
  int layers = 0;  // only the first so many, with the model's norm and head above them; 0: all
  std::vector<ExtraConfig> extras;
};

// What clients name in `model`: one or more models in roles.
struct DeploymentConfig {
  std::string name;
  std::string large;                     // model names; `large` is always there
  std::string small;                     // empty: none
  bool prefix_cache_per_client = false;  // clients share prefixes with nobody but themselves
  // What `auto` means. Empty: what makes the large model's own tokens fastest, in tandem where that
  // pays (engine/host/methods.h).
  std::string default_method;
  // By method: its parameters where a request names none, and what it needs of the deployment.
  std::map<std::string, Settings> methods;
};

// Who gives up its KV pages first when there are not enough, and comes to them last.
enum class Preemption {
  kLowestPriority,  // and of these the youngest
  kYoungest,        // whatever its priority
};

// What one client may do. Bounds of 0: none.
struct ClientLimits {
  int max_priority = 0;            // of its requests; below it they may ask for any
  int max_requests = 0;            // open at once, those that wait included
  double requests_per_minute = 0;  // that are let in; a minute's worth may come at once
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
  double fair_prompt_weight = 1;                 // service that a prompt token counts as
  double fair_token_weight = 2;                  // and a generated one
  std::map<std::string, double> client_weights;  // share by client; 1 where there is none
  ClientLimits default_client;
  std::map<std::string, ClientLimits> clients;  // by client; default_client for all others
  // A request whose client reads too slowly keeps its pages so long, and ends after so long.
  double slow_reader_hold_seconds = 2;
  double stalled_stream_seconds = 600;
};

struct EngineConfig {
  std::vector<DeviceConfig> devices;
  std::vector<ModelConfig> models;
  std::vector<DeploymentConfig> deployments;
  LimitsConfig limits;
  int text_threads = 1;      // that make text of tokens
  int tokenize_threads = 1;  // that make tokens of prompts
};

}  // namespace tandem
