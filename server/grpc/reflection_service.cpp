#include "server/grpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/grpc/call_timeout.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/raw_message.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

const DescriptorPool& pool() { return *DescriptorPool::generated_pool(); }

void not_found(const char* what, ServerReflectionResponse* out) {
  auto* const error = out->mutable_error_response();
  error->set_error_code(static_cast<int>(grpc::StatusCode::NOT_FOUND));
  error->set_error_message(std::string(what) + ": unknown");
}

// `file` and its transitive imports, each once.
void add_files(const FileDescriptor* file, std::set<std::string>* seen,
               ServerReflectionResponse* out) {
  if (!seen->insert(file->name()).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  out->mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) add_files(file->dependency(i), seen, out);
}

void describe(const FileDescriptor* file, const char* what, ServerReflectionResponse* out) {
  if (file == nullptr) return not_found(what, out);
  std::set<std::string> seen;
  add_files(file, &seen, out);
}

const FileDescriptor* file_of_extension(const std::string& type, int number) {
  const Descriptor* const message = pool().FindMessageTypeByName(type);
  const FieldDescriptor* const field =
      message == nullptr ? nullptr : pool().FindExtensionByNumber(message, number);
  return field == nullptr ? nullptr : field->file();
}

void list_extensions(const std::string& type, ServerReflectionResponse* out) {
  const Descriptor* const message = pool().FindMessageTypeByName(type);
  if (message == nullptr) return not_found("type", out);
  std::vector<const FieldDescriptor*> extensions;
  pool().FindAllExtensions(message, &extensions);
  auto* const list = out->mutable_all_extension_numbers_response();
  list->set_base_type_name(type);
  for (const FieldDescriptor* field : extensions) list->add_extension_number(field->number());
}

}  // namespace

// One stream of alternating requests and responses. Owns itself until OnDone().
class ReflectionService::Call final : public RawReactor {
 public:
  Call(ReflectionService* service, grpc::CallbackServerContext* context)
      : service_(*service), peer_(context->peer()), context_(*context) {}

  void start() {
    const absl::Status entered = service_.calls_.enter(peer_);
    entered_ = entered.ok();
    if (!entered_) return Finish(to_grpc(entered, ""));
    read();
  }

 private:
  // Each request and each response has a time limit.
  void limit_time() { cancel_after(kRequestTime, &context_, &service_.timeouts_, &timeout_); }
  void read() {
    limit_time();
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    timeout_.stop();
    if (!ok) return Finish(grpc::Status::OK);  // no further request
    if (request_.Length() > kMaxRequest) {
      return Finish(to_grpc(out_of_range("request", absl::StrCat(request_.Length(), " bytes"),
                                         absl::StrCat("at most ", kMaxRequest)),
                            ""));
    }
    ServerReflectionRequest message;
    const absl::Status parsed = parse_message(request_, &message);
    request_.Clear();
    if (!parsed.ok()) return Finish(to_grpc(parsed, ""));
    response_ = to_buffer(service_.answer(message));
    limit_time();
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    timeout_.stop();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    read();
  }
  void OnDone() override {
    timeout_.stop();
    if (entered_) service_.calls_.leave(peer_);
    delete this;
  }

  ReflectionService& service_;
  const std::string peer_;
  grpc::CallbackServerContext& context_;  // until OnDone()
  Timeouts::Timeout timeout_;
  bool entered_ = false;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

ReflectionService::ReflectionService(std::vector<std::string> services, OpenCalls* calls,
                                     Timeouts* timeouts)
    : services_(std::move(services)), calls_(*calls), timeouts_(*timeouts) {
  // Links the v1alpha proto, so that it can be described.
  (void)grpc::reflection::v1alpha::ServerReflectionRequest::descriptor();
  for (const char* path : {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                           "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    add_method(path, [this](grpc::CallbackServerContext* context) {
      auto* const call = new Call(this, context);
      call->start();
      return call;
    });
  }
}

ServerReflectionResponse ReflectionService::answer(const ServerReflectionRequest& request) const {
  ServerReflectionResponse out;
  out.set_valid_host(request.host());
  *out.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      describe(pool().FindFileByName(request.file_by_filename()), "file", &out);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      describe(pool().FindFileContainingSymbol(request.file_containing_symbol()), "symbol", &out);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& extension = request.file_containing_extension();
      describe(file_of_extension(extension.containing_type(), extension.extension_number()),
               "extension", &out);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      list_extensions(request.all_extension_numbers_of_type(), &out);
      break;
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services_) {
        out.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      out.mutable_error_response()->set_error_code(
          static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
      out.mutable_error_response()->set_error_message(
          "message_request: none; allowed: one of its fields");
  }
  return out;
}

}  // namespace tandem
