#include "server/grpc/response_to_proto.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/sampling_params.h"
#include "engine/host/config/settings_proto.h"
#include "engine/host/methods/registry.h"
#include "engine/text/utf8.h"
#include "server/grpc/proto_enums.h"

namespace tandem {
namespace {

// Counts in the API have 32 bits.
int32_t narrow(int64_t n) {
  return static_cast<int32_t>(std::clamp<int64_t>(n, 0, std::numeric_limits<int32_t>::max()));
}

void stats_to_proto(const std::string& method, const MethodStats& in, int64_t completion_tokens,
                    v1::MethodStats* out) {
  out->set_large_passes(narrow(in.large_passes));
  out->set_small_passes(narrow(in.small_passes));
  if (in.large_passes > 0) {
    out->set_tokens_per_pass(static_cast<double>(completion_tokens) /
                             static_cast<double>(in.large_passes));
  }
  const MethodEntry* const entry = find_method(method);
  if (entry && entry->drafts) {
    for (const int64_t n : in.accept_lengths) out->add_accept_lengths(narrow(n));
    out->set_draft_tokens(narrow(in.draft_tokens));
    out->set_small_tokens(narrow(in.small_tokens));
    out->set_large_tokens(narrow(in.large_tokens));
  }
  for (size_t i = 0; entry && i < entry->counters.size(); ++i) {
    const MethodCounter& counter = entry->counters[i];
    const auto* const field = v1::MethodStats::descriptor()->FindFieldByName(counter.name);
    if (!field) continue;
    using google::protobuf::FieldDescriptor;
    if (counter.is_time) {
      out->GetReflection()->SetDouble(out, field, counter.reported(in.own[i]));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      out->GetReflection()->SetInt64(out, field, in.own[i]);
    } else {
      out->GetReflection()->SetInt32(out, field, narrow(in.own[i]));
    }
  }
  if (out->rounds() > 0) {
    out->set_match_rate(static_cast<double>(out->matches()) / out->rounds());
    out->set_predicted_layers(out->predicted_main_layers() + out->worker_layers());
  }
  for (const int64_t n : in.tokens_by_index) out->add_tokens_by_index(narrow(n));
  out->set_large_seconds(in.large_seconds);
  out->set_small_seconds(in.small_seconds);
  out->set_queue_seconds(in.queue_seconds);
  out->set_prefill_seconds(in.prefill_seconds);
  out->set_decode_seconds(in.decode_seconds);
  out->set_mean_batch_rows(in.mean_batch_rows);
  out->set_preemptions(narrow(in.preemptions));
}

// The defaults of unset parameters, in the method's own message.
void defaults_to_proto(const MethodInfo& in, v1::OfferedMethod* out) {
  const auto* const field = v1::OfferedMethod::descriptor()->FindFieldByName(in.method);
  if (!field || !field->message_type()) return;
  put_settings(in.parameters, out->GetReflection()->MutableMessage(out, field));
}

void parameters_to_proto(const MethodInfo& in, v1::OfferedMethod* out) {
  const MethodEntry* const method = find_method(in.method);
  if (!method) return;
  for (const Field& field : method->fields) {
    if (field.by == Field::By::kDeployment) continue;
    v1::Parameter* const parameter = out->add_parameters();
    parameter->set_name(field.name);
    parameter->set_allowed(field.allowed());
    parameter->set_meaning(field.meaning);
    parameter->set_type(kProtoParameterTypes[field.kind]);
    if (field.kind == Field::Kind::kInteger || field.kind == Field::Kind::kNumber) {
      parameter->set_min(field.min);
      if (std::isfinite(field.max)) parameter->set_max(field.max);
    }
    for (const std::string& choice : field.choices) parameter->add_choices(choice);
    const SettingValue* const value = find_setting(in.parameters, field.name);
    if (value) parameter->set_default_value(setting_text(*value));
  }
}

void sampling_to_proto(const SamplingParams& defaults, v1::Model* out) {
  for (const SamplingParameter& p : kSamplingParameters) {
    v1::Parameter* const parameter = out->add_sampling_parameters();
    parameter->set_name(p.name);
    parameter->set_allowed(p.allowed());
    parameter->set_meaning(absl::StrCat(p.help, *p.help ? "; " : "", p.off, ": ", p.off_means));
    parameter->set_type(p.integer ? v1::PARAMETER_TYPE_INTEGER : v1::PARAMETER_TYPE_NUMBER);
    parameter->set_min(p.min);
    parameter->set_max(p.max);
    parameter->set_min_excluded(p.min_excluded);
    const std::optional<double>& value = defaults.*p.member;
    if (value) parameter->set_default_value(setting_text(*value));
  }
}

void trace_to_proto(const PassTrace& in, v1::Trace* out) {
  out->mutable_passes()->Reserve(static_cast<int>(in.passes.size()));
  for (const PassRecord& pass : in.passes) {
    v1::PassRecord* const record = out->add_passes();
    record->set_pass_number(pass.pass);
    record->set_start_us(pass.start_us);
    record->set_end_us(pass.end_us);
    record->set_role(kProtoPassRoles[pass.role]);
    record->set_kind(kProtoPassKinds[pass.kind]);
    record->set_rows(pass.rows);
    record->set_batches(pass.batches);
    record->set_batch_rows(pass.batch_rows);
    record->set_batch_requests(pass.batch_requests);
    record->set_accepted(pass.accepted);
    record->set_rejected(pass.rejected);
  }
  out->set_omitted(narrow(in.omitted));
}

}  // namespace

v1::Method method_to_proto(const std::string& method) {
  return static_cast<v1::Method>(method_number(*v1::Method_descriptor(), method));
}

v1::Contract contract_to_proto(Contract contract) { return kProtoContracts[contract]; }

v1::FinishReason finish_reason_to_proto(FinishReason reason) { return kProtoFinishReasons[reason]; }

v1::Source source_to_proto(Source source) { return kProtoSources[source]; }

void token_to_proto(const TokenInfo& in, const TokenBytes& bytes_of, v1::Token* out) {
  out->set_id(in.id);
  out->set_proposed(source_to_proto(in.provenance.proposed));
  out->set_confirmed(source_to_proto(in.provenance.confirmed));
  out->set_corrected(in.provenance.corrected);
  out->set_pass_number(in.pass);
  if (in.provenance.proposed == Source::kMask || in.provenance.proposed == Source::kEarlyHead) {
    out->set_proposed_index(in.provenance.index);
  }
  if (in.logprob.has_value()) out->set_logprob(*in.logprob);
  if (bytes_of) {
    out->set_bytes(bytes_of(in.id));
    out->set_text(to_valid_utf8(out->bytes()));
  }
  for (const auto& [id, logprob] : in.top) {
    v1::TopLogprob* top = out->add_top_logprobs();
    top->set_id(id);
    top->set_logprob(logprob);
    if (bytes_of) {
      top->set_bytes(bytes_of(id));
      top->set_text(to_valid_utf8(top->bytes()));
    }
  }
}

v1::ToolCall call_to_proto(const CallPart& in) {
  v1::ToolCall out;
  out.set_index(in.index);
  out.set_id(in.id);
  out.set_name(in.name);
  out.set_arguments(in.arguments);
  out.set_broken(in.broken);
  return out;
}

v1::Started started_to_proto(const Started& in) {
  v1::Started out;
  out.set_request_id(in.request_id);
  out.set_prompt_tokens(narrow(in.prompt_tokens));
  out.set_method(method_to_proto(in.method));
  out.set_contract(contract_to_proto(in.contract));
  return out;
}

void usage_to_proto(const Usage& in, v1::Usage* out) {
  out->set_prompt_tokens(narrow(in.prompt_tokens));
  out->set_cached_tokens(narrow(in.cached_tokens));
  out->set_completion_tokens(narrow(in.completion_tokens));
  out->set_reasoning_tokens(narrow(in.reasoning_tokens));
}

v1::Finished finished_to_proto(const Finished& in, double time_to_first_token) {
  v1::Finished out;
  out.set_index(in.index);
  out.set_finish_reason(finish_reason_to_proto(in.reason));
  out.set_stop_sequence(in.stop_sequence);
  out.set_seed(in.seed);
  out.set_tool_calls(in.tool_calls);
  usage_to_proto(in.usage, out.mutable_usage());
  stats_to_proto(in.method, in.stats, in.usage.completion_tokens, out.mutable_stats());
  out.mutable_stats()->set_time_to_first_token_seconds(time_to_first_token);
  if (in.constraint_satisfied) out.set_constraint_satisfied(*in.constraint_satisfied);
  if (in.trace) trace_to_proto(*in.trace, out.mutable_trace());
  return out;
}

v1::Model model_to_proto(const DeploymentInfo& in) {
  v1::Model out;
  out.set_name(in.name);
  for (const MethodInfo& method : in.methods) {
    v1::OfferedMethod* offered = out.add_methods();
    offered->set_method(method_to_proto(method.method));
    offered->set_greedy_contract(contract_to_proto(method.greedy));
    offered->set_sampled_contract(contract_to_proto(method.sampled));
    offered->set_refuses_adapters(method.refuses_adapters);
    defaults_to_proto(method, offered);
    parameters_to_proto(method, offered);
  }
  out.set_default_method(method_to_proto(in.default_method));
  for (const ModelInDeployment& model : in.models) {
    v1::LoadedModel* loaded = out.add_components();
    loaded->set_role(model.role);
    loaded->set_name(model.name);
    loaded->set_architecture(model.architecture);
    loaded->set_device(model.device);
    loaded->set_device_lost(model.device_lost);
    loaded->set_dtype(model.dtype);
    loaded->set_parameter_count(model.parameters);
    loaded->set_weight_bytes(model.weight_bytes);
    loaded->set_layer_count(model.layers);
    loaded->set_hidden_size(model.hidden_size);
    loaded->set_batch_invariant(model.batch_invariant);
  }
  for (const AdapterInfo& adapter : in.adapters) {
    v1::Adapter* const listed = out.add_adapters();
    listed->set_name(adapter.name);
    listed->set_rank(adapter.rank);
    listed->set_weight_bytes(adapter.bytes);
  }
  out.mutable_limits()->set_vocab_size(narrow(in.vocab_size));
  out.mutable_limits()->set_context_length(narrow(in.context_length));
  out.mutable_limits()->set_max_new_tokens(narrow(in.max_new_tokens));
  out.set_has_chat_template(in.has_chat_template);
  out.set_unloaded(in.unloaded);
  sampling_to_proto(in.sampling, &out);
  return out;
}

std::string to_valid_utf8(std::string text) {
  if (valid_utf8_prefix(text) == text.size()) return text;
  std::string out;
  Utf8Assembler assembler;
  assembler.push(text, out);
  assembler.finish(out);
  return out;
}

}  // namespace tandem
