#include "server/grpc/reflection_service.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <set>

namespace tandem {
namespace {

using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

class ReflectionServiceTest : public testing::Test {
 protected:
  ServerReflectionResponse ask(void (*set)(ServerReflectionRequest*)) {
    ServerReflectionRequest request;
    request.set_host("h");
    set(&request);
    const ServerReflectionResponse out = service_.answer(request);
    EXPECT_EQ(out.valid_host(), "h");
    EXPECT_EQ(out.original_request().SerializeAsString(), request.SerializeAsString());
    return out;
  }
  static std::set<std::string> files(const ServerReflectionResponse& response) {
    std::set<std::string> names;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      EXPECT_TRUE(names.insert(file.name()).second) << file.name() << " twice";
    }
    return names;
  }

  OpenCalls calls_{{2, 2}, [](const std::string&) {}};
  SteadyClock clock_;
  Timeouts timeouts_{&clock_};
  ReflectionService service_{{"tandem.v1.Generation", "tandem.v1.Models"}, &calls_, &timeouts_};
};

TEST_F(ReflectionServiceTest, ListsWhatIsServed) {
  const auto out = ask([](auto* r) { r->set_list_services("*"); });
  ASSERT_EQ(out.list_services_response().service_size(), 2);
  EXPECT_EQ(out.list_services_response().service(0).name(), "tandem.v1.Generation");
}

TEST_F(ReflectionServiceTest, DescribesAFileWithAllThatItImports) {
  const std::set<std::string> expected = {"tandem/v1/models.proto", "tandem/v1/generation.proto"};
  EXPECT_EQ(files(ask([](auto* r) { r->set_file_by_filename("tandem/v1/models.proto"); })),
            expected);
  EXPECT_EQ(files(ask([](auto* r) { r->set_file_containing_symbol("tandem.v1.Models"); })),
            expected);
  EXPECT_EQ(
      files(ask([](auto* r) { r->set_file_containing_symbol("tandem.v1.Generation.Score"); })),
      std::set<std::string>{"tandem/v1/generation.proto"});
}

TEST_F(ReflectionServiceTest, SaysWhatItDoesNotKnow) {
  const auto code = [](const ServerReflectionResponse& out) {
    return static_cast<grpc::StatusCode>(out.error_response().error_code());
  };
  EXPECT_EQ(code(ask([](auto* r) { r->set_file_by_filename("etc/passwd"); })),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(ask([](auto* r) { r->set_file_containing_symbol(""); })),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(ask([](auto* r) { r->set_all_extension_numbers_of_type("x.Y"); })),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(ask([](auto* r) {
              r->mutable_file_containing_extension()->set_containing_type("tandem.v1.Chat");
            })),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(ask([](auto*) {})), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ReflectionServiceTest, TypesWithoutExtensionsHaveNone) {
  const auto out = ask([](auto* r) { r->set_all_extension_numbers_of_type("tandem.v1.Chat"); });
  EXPECT_EQ(out.all_extension_numbers_response().base_type_name(), "tandem.v1.Chat");
  EXPECT_EQ(out.all_extension_numbers_response().extension_number_size(), 0);
}

}  // namespace
}  // namespace tandem
