// Requests, stream events and descriptions of models: the types of the engine's interface.
//
// They are in the client's terms: text, names, optional fields. requests/resolve.h resolves a
// request against its deployment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/outcome.h"
#include "engine/base/sampling_params.h"
#include "engine/base/settings.h"
#include "engine/text/answer_parser.h"
#include "engine/text/grammar.h"

namespace tandem {

struct DeploymentAdapter;  // engine/host/adapters.h
struct PassTrace;          // engine/sched/pass_trace.h

// Methods have the names of the protos, such as "ngram" (engine/host/methods/registry.h).
inline constexpr char kAuto[] = "auto";                      // the engine chooses
inline constexpr char kAutoregressive[] = "autoregressive";  // always offered, always EXACT

// How the output relates to that of the large model alone. A later one is stricter.
enum class Contract : uint8_t { kAny, kLossy, kDistribution, kExactUpToRounding, kExact };
const char* contract_name(Contract c);  // "ANY", .. "EXACT_UP_TO_ROUNDING", "EXACT"

enum class ToolChoice : uint8_t { kAuto, kRequired };

struct ChatPrompt {
  std::string messages_json;       // JSON array of {role, content, ...}
  std::string tools_json;          // those that may be called: JSON array, or empty
  std::string template_args_json;  // JSON object, or empty
  bool add_generation_prompt = true;
  std::vector<std::string> tool_names = {};  // of the tools; calls are parsed if there are any
  std::vector<int> tool_indexes = {};        // of tools_json in the request, for errors
  ToolChoice tool_choice = ToolChoice::kAuto;
  bool parallel_tool_calls = true;  // false: one call at most
};
using Prompt = std::variant<std::string, std::vector<Token>, ChatPrompt>;

// Unset fields take the value of the model's generation_config.json or GGUF metadata, then the
// default.
struct SamplingFields : SamplingParams {
  std::optional<uint64_t> seed;  // unset: drawn by the engine and reported
};

struct StoppingFields {
  std::optional<int64_t> max_new_tokens;
  // Without max_new_tokens and a default of the model's files: as many as the context leaves, and
  // not LimitsConfig::default_max_new_tokens.
  bool fill_context = false;
  std::optional<int64_t> min_new_tokens;  // no end or stop token before
  std::vector<std::string> stop_sequences;
  std::vector<int64_t> stop_token_ids;  // as the client sent them; checked against the vocabulary
  bool include_stop_sequence = false;
  bool ignore_eos = false;
  std::optional<Duration> time_limit;  // partial text and TIME_LIMIT, not an error
};

struct GenerateRequest {
  // A deployment, "DEPLOYMENT:ADAPTER", or an adapter that one deployment has (host/target.h).
  std::string model;
  std::string adapter;  // a LoRA adapter of the deployment; empty: none
  std::shared_ptr<const DeploymentAdapter> lease = nullptr;  // set by the engine: that adapter
  std::string request_id;  // the client's; empty: the engine makes one
  std::string client;      // for fairness and logs: authenticated identity, or peer address
  std::string host;        // for limits of memory; may be empty
  Prompt prompt;
  bool add_special_tokens = true;   // text prompts only
  bool skip_special_tokens = true;  // in the output text
  bool raw_text = false;            // chats: reasoning and tool calls stay in the text
  std::optional<int64_t> truncate_prompt_tokens;  // keep the last n prompt tokens
  std::string method = kAuto;
  Settings parameters;  // of `method`; unset ones: the deployment's defaults
  Contract require_contract = Contract::kAny;
  SamplingFields sampling;
  std::optional<GrammarSpec> constraint;  // on the answer
  Settings beam;                          // width, length_penalty: of autoregressive decoding
  int64_t n = 1;                          // choices
  StoppingFields stopping;
  bool include_eos_token = false;  // the end or stop token is among the tokens
  bool raw_logprobs = false;       // before processors
  bool logprobs = false;           // of chosen tokens
  int64_t top_logprobs = 0;
  bool trace = false;  // Finished::trace
  int priority = 0;    // larger runs earlier
  TimePoint deadline = kNever;
};

// Is beam.width above 1?
bool searches_beams(const GenerateRequest& request);

struct TokenInfo {
  Token id = -1;
  Provenance provenance;
  std::optional<float> logprob;              // natural log, after processors unless raw_logprobs
  std::vector<std::pair<Token, float>> top;  // best first
  int pass = 0;  // that made it final (engine/sched/pass_trace.h), from 1; 0: none did
};

struct Started {
  std::string request_id;
  int64_t prompt_tokens = 0;
  std::string method;
  Contract contract = Contract::kExact;
};

struct Chunk {
  int index = 0;                  // choice
  std::string text;               // valid UTF-8
  std::vector<TokenInfo> tokens;  // empty if the chunk only releases held-back text
  // Chats: the model's reasoning, and parts of tool calls (engine/text/answer_parser.h).
  std::string reasoning;
  std::vector<CallPart> tool_calls;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of those; with their tags
};

struct Finished {
  int index = 0;
  std::string method;  // of `stats`
  FinishReason reason = FinishReason::kMaxTokens;
  std::string stop_sequence;  // for kStopSequence
  int tool_calls = 0;         // complete ones
  uint64_t seed = 0;
  Usage usage;
  MethodStats stats;
  // Of constrained requests: the text is complete, and not cut off within the constraint.
  std::optional<bool> constraint_satisfied;
  std::shared_ptr<const PassTrace> trace;  // if the request asks for it
};

// Receives the events of one request: `started` once, chunks, and `finished` for each choice after
// its last chunk. `failed` replaces the remaining events; it is the only one of a refused request.
// Calls come one at a time, on an engine thread or within submit(). They must not block.
class Sink {
 public:
  virtual ~Sink() = default;
  // `tokens` more are final; their chunks follow. Called on the loop thread, possibly during
  // another call. Bounds on unread output count from here.
  virtual void made(int64_t tokens) { static_cast<void>(tokens); }
  virtual void started(const Started& event) = 0;
  virtual void chunk(Chunk event) = 0;
  virtual void finished(const Finished& event) = 0;
  virtual void failed(const absl::Status& status) = 0;
};

struct ScoreRequest {
  std::string model;
  std::string adapter;  // as GenerateRequest::adapter, and the lease
  std::shared_ptr<const DeploymentAdapter> lease = nullptr;
  std::string request_id;
  std::string client;
  std::string host;
  Prompt prompt;  // context; scored too when `score_prompt`
  std::variant<std::string, std::vector<Token>> continuation;  // may be empty with score_prompt
  bool score_prompt = false;
  bool add_special_tokens = true;
  int64_t top_logprobs = 0;
  int priority = 0;
  TimePoint deadline = kNever;
  bool part_of_call = false;  // of Engine::open_call: only its tokens count for quotas
};

// An embedding of a text or tokens.
struct EmbedRequest {
  std::string model;
  std::string request_id;
  std::string client;
  std::string host;
  Prompt prompt;                      // text or token ids
  std::optional<std::string> prefix;  // put before the text
  std::string prompt_name;            // EmbeddingSettings::prompts; empty: the default
  bool add_special_tokens = true;
  int64_t dimensions = 0;         // the first ones, normalized again; 0: all
  std::optional<bool> normalize;  // unset: as the model's files say
  int priority = 0;
  TimePoint deadline = kNever;
  bool part_of_call = false;  // as ScoreRequest::part_of_call
};
struct EmbedResult {
  std::vector<float> values;
  Usage usage;
};

// Text to tokens and back. They run no model.
struct TokenizeRequest {
  std::string model;
  std::string client;
  std::string host;
  Prompt prompt;
  bool add_special_tokens = true;
  TimePoint deadline = kNever;
};
struct DetokenizeRequest {
  std::string model;
  std::string client;
  std::string host;
  std::vector<int64_t> token_ids;
  bool skip_special_tokens = true;
  TimePoint deadline = kNever;
};

struct ScoreResult {
  std::vector<TokenInfo> prompt;  // with score_prompt: all but the first have a logprob
  std::vector<TokenInfo> continuation;
  double total_logprob = 0;  // of the continuation, natural log
  Usage usage;
};

// A method that a deployment offers, for requests without parameters.
struct MethodInfo {
  std::string method;
  Contract greedy = Contract::kExact;  // at temperature 0
  Contract sampled = Contract::kExact;
  Settings parameters;  // the deployment's defaults
  bool refuses_adapters = false;
};
struct ModelInDeployment {
  std::string role;  // "large", "small"
  std::string name;
  std::string architecture;  // "llama", "fake"
  std::string device;
  bool device_lost = false;  // failed for good
  std::string dtype;
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  int layers = 0;
  int hidden_size = 0;
  bool batch_invariant = false;
};
struct AdapterInfo {
  std::string name;
  int rank = 0;
  int64_t bytes = 0;
};
struct DeploymentInfo {
  std::string name;
  std::vector<MethodInfo> methods;
  std::string default_method;
  std::vector<ModelInDeployment> models;  // the large one first; replicas one by one
  std::vector<AdapterInfo> adapters;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t max_new_tokens = 0;
  int embedding_width = 0;
  bool has_chat_template = false;
  bool unloaded = false;  // idle: the next request loads its models
  // Of requests: values of all parameters of the table where the request has none.
  SamplingParams sampling;

  // Can it serve any request? An instance of the large model is enough.
  bool available() const {
    return std::ranges::any_of(models, [this](const ModelInDeployment& m) {
      return m.role == models.front().role && !m.device_lost;
    });
  }
};
struct DeviceInfo {
  std::string name;  // "cpu:0"
  bool lost = false;
};

}  // namespace tandem
