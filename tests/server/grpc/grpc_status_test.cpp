#include "server/grpc/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/edge/status_text.h"

namespace tandem {
namespace {

TEST(GrpcStatus, KeepsCodeAndMessage) {
  const auto status = to_grpc(absl::NotFoundError("model: \"x\""), "req-1");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "model: \"x\"");
  EXPECT_TRUE(to_grpc(absl::OkStatus(), "").ok());
}

TEST(GrpcStatus, FaultsStayInside) {
  for (const auto& fault : {absl::InternalError("secret"), absl::UnknownError("secret"),
                            absl::DataLossError("secret")}) {
    EXPECT_TRUE(is_fault(fault));
    const auto status = to_grpc(fault, "req-1");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
    EXPECT_EQ(status.error_message(), "internal error; request id req-1");
  }
}

google::rpc::Status details_of(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(details.message(), status.error_message());
  return details;
}

// The first detail of this type; an empty one where there is none.
template <class Detail>
Detail detail_of(const grpc::Status& status) {
  Detail detail;
  const google::rpc::Status all = details_of(status);
  for (const auto& any : all.details()) {
    if (any.UnpackTo(&detail)) break;
  }
  return detail;
}

TEST(GrpcStatus, LongMessagesAreCut) {
  const auto status = to_grpc(absl::InvalidArgumentError(std::string(1099, 'x') + "ééé"), "");
  EXPECT_EQ(status.error_message(), std::string(1099, 'x') + "...");
}

// gRPC takes 8 KiB of trailers: the message percent-encoded, the details in base64.
TEST(GrpcStatus, TheLongestErrorFitsItsTrailers) {
  Violations wrong;
  for (int i = 0; i < 100; ++i) {
    std::string value;
    for (int c = 0; c < i * 4; ++c) value += "é";
    wrong.add(out_of_range("stop_sequences[5]", value, "x"));
  }
  const auto status = to_grpc(wrong.status(), std::string(128, 'r'));
  const auto& bad = detail_of<google::rpc::BadRequest>(status);
  EXPECT_GT(bad.field_violations_size(), 5);
  const size_t bytes =
      status.error_message().size() * 3 + (status.error_details().size() + 2) / 3 * 4;
  EXPECT_LT(bytes, 8192 - 256);
}

TEST(GrpcStatus, EveryErrorSaysWhyInAFormForPrograms) {
  const auto info = [](const absl::Status& status) {
    return detail_of<google::rpc::ErrorInfo>(to_grpc(status, "req-1"));
  };
  const auto full = info(with_reason(absl::ResourceExhaustedError("queue full"), "QUEUE_FULL"));
  EXPECT_EQ(full.reason(), "QUEUE_FULL");
  EXPECT_EQ(full.domain(), "tandem");
  EXPECT_EQ(full.metadata().at("request_id"), "req-1");
  EXPECT_EQ(info(out_of_range("n", 0, "1")).reason(), "INVALID_FIELD");
  EXPECT_EQ(info(absl::DeadlineExceededError("late")).reason(), "DEADLINE_EXCEEDED");
  EXPECT_EQ(info(with_reason(absl::InternalError("secret"), "SECRET")).reason(), "INTERNAL");
  EXPECT_EQ(to_grpc(absl::OkStatus(), "").error_details(), "");
}

TEST(GrpcStatus, WrongFieldsAreListed) {
  Violations wrong;
  wrong.add(out_of_range("top_p", 0, "(0, 1]"));
  wrong.add(out_of_range("beam.width", 99, "[1, 16]"));
  const auto status = to_grpc(wrong.status(), "");
  EXPECT_EQ(status.error_message(), "top_p: 0; allowed: (0, 1]\nbeam.width: 99; allowed: [1, 16]");
  const auto bad = detail_of<google::rpc::BadRequest>(status);
  ASSERT_EQ(bad.field_violations_size(), 2);
  EXPECT_EQ(bad.field_violations(0).field(), "top_p");
  EXPECT_EQ(bad.field_violations(0).description(), "0; allowed: (0, 1]");
  EXPECT_EQ(bad.field_violations(1).field(), "beam.width");
  EXPECT_EQ(details_of(to_grpc(absl::NotFoundError("x"), "")).details_size(), 1);
}

TEST(GrpcStatus, RetryHint) {
  absl::Status full = absl::ResourceExhaustedError("queue full");
  full.SetPayload(kRetryPayload, absl::Cord("2500"));
  const auto wait = detail_of<google::rpc::RetryInfo>(to_grpc(full, "")).retry_delay();
  EXPECT_EQ(wait.seconds(), 2);
  EXPECT_EQ(wait.nanos(), 500'000'000);
  full.SetPayload(kRetryPayload, absl::Cord("soon"));
  EXPECT_EQ(detail_of<google::rpc::RetryInfo>(to_grpc(full, "")).retry_delay().seconds(), 1);
}

}  // namespace
}  // namespace tandem
