#include "server/grpc/wire_scan.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/grpc/raw_message.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// In slices of `size` bytes, as the transport delivers them.
grpc::ByteBuffer buffer_of(const std::string& bytes, size_t size = 8192) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) slices.emplace_back(bytes.substr(at, size));
  return {slices.data(), slices.size()};
}

template <class Message>
absl::StatusOr<int64_t> scan(const std::string& bytes, size_t slice = 8192) {
  return scan_buffer(buffer_of(bytes, slice), *Message::descriptor());
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// A field with a length, of any size.
std::string delimited(int field, const std::string& value) {
  std::string out(1, static_cast<char>(field << 3 | 2));
  for (size_t left = value.size();; left >>= 7) {
    out += static_cast<char>(left < 128 ? left : (left & 127) | 128);
    if (left < 128) break;
  }
  return out + value;
}

TEST(WireScan, AnOrdinaryRequestPasses) {
  v1::GenerateRequest request;
  request.set_model("m");
  for (int i = 0; i < 100; ++i) {
    v1::ChatMessage* const message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(std::string(1000, 'x'));
    message->add_tool_calls("{}");
  }
  (*request.mutable_logit_bias())[3] = 1.5;
  request.add_stop_token_ids(7);
  request.mutable_bild()->set_fallback_threshold(0.5);
  for (const size_t slice : {1, 7, 8192}) {
    const auto bytes = scan<v1::GenerateRequest>(request.SerializeAsString(), slice);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_GE(*bytes, static_cast<int64_t>(request.SpaceUsedLong()));
    EXPECT_LE(*bytes, 8 * static_cast<int64_t>(request.SpaceUsedLong()));
  }
  EXPECT_TRUE(scan<v1::GenerateRequest>("").ok());
}

// The attack: two bytes a message, and 100 bytes of memory for each.
TEST(WireScan, EmptyMessagesAreLimited) {
  const std::string chat = delimited(5, repeated(std::string("\x0a\x00", 2), 2'000'000));
  ASSERT_EQ(v1::GenerateRequest::descriptor()->FindFieldByName("chat")->number(), 5);
  const absl::Status status = scan<v1::GenerateRequest>(chat).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "chat.messages: more than 4096 of them; allowed: at most 4096");
}

TEST(WireScan, EveryFieldOtherThanRepeatedNumbersIsLimited) {
  const auto* const type = v1::GenerateRequest::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const auto* const field = type->field(i);
    using Field = google::protobuf::FieldDescriptor;
    const bool number =
        field->cpp_type() != Field::CPPTYPE_STRING && field->cpp_type() != Field::CPPTYPE_MESSAGE;
    std::string one;
    const auto tag = [&](int wire_type) {
      const uint32_t value = static_cast<uint32_t>(field->number()) << 3 | wire_type;
      return value < 128
                 ? std::string(1, static_cast<char>(value))
                 : std::string{static_cast<char>(value | 128), static_cast<char>(value >> 7)};
    };
    if (!number) {
      one = tag(2) + std::string(1, '\0');
    } else if (field->cpp_type() == Field::CPPTYPE_DOUBLE) {
      one = tag(1) + std::string(8, '\0');
    } else if (field->cpp_type() == Field::CPPTYPE_FLOAT || field->type() == Field::TYPE_FIXED32) {
      one = tag(5) + std::string(4, '\0');
    } else {
      one = tag(0) + std::string(1, '\0');
    }
    const std::string name(field->name());
    EXPECT_TRUE(scan<v1::GenerateRequest>(repeated(one, 4096)).ok()) << name;
    const absl::Status more = scan<v1::GenerateRequest>(repeated(one, 4097)).status();
    if (number && field->is_repeated()) {
      EXPECT_TRUE(more.ok()) << name << more;
    } else {
      EXPECT_THAT(more.message(), HasSubstr(absl::StrCat(name, ": more than 4096 of them")))
          << name;
    }
  }
}

TEST(WireScan, UnknownFieldsAreLimited) {
  const std::string unknown = "\xf8\x7f\x01";  // field 2047
  EXPECT_TRUE(scan<v1::GenerateRequest>(repeated(unknown, 4096)).ok());
  EXPECT_THAT(scan<v1::GenerateRequest>(repeated(unknown, 4097)).status().message(),
              HasSubstr("unknown fields: more than 4096 of them"));
}

TEST(WireScan, NumbersCountByTheirSizeInMemory) {
  v1::DetokenizeRequest request;
  for (int i = 0; i < 500'000; ++i) request.add_token_ids(i % 100);
  const std::string bytes = request.SerializeAsString();
  const auto packed = scan<v1::DetokenizeRequest>(bytes, 100);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_GE(*packed, 500'000 * 8);
  EXPECT_LE(*packed, 500'000 * 40);
  // The same numbers one by one.
  const auto single = scan<v1::DetokenizeRequest>(repeated("\x10\x01", 500'000));
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_GE(*single, 500'000 * 8);
}

TEST(WireScan, MalformedBytesAreRefused) {
  for (const std::string& bytes :
       {std::string("\xff\xff\xff"),
        std::string("\x0a\x05"
                    "ab"),
        std::string("\x0a"), std::string("\x00", 1), std::string("\x0b\x0c"),  // a group
        delimited(5, "\x0a\x7f"), delimited(5, "\x0a\x02\x0a"),
        std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")}) {
    const absl::Status status = scan<v1::GenerateRequest>(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << testing::PrintToString(bytes);
    EXPECT_EQ(status.GetPayload(kReasonPayload), "MALFORMED_REQUEST");
  }
}

// A submessage that contains itself without end is refused at protobuf's own depth.
TEST(WireScan, NestingIsBounded) {
  std::string bytes;
  constexpr int kNestedType = 3;
  for (int i = 0; i < 99; ++i) bytes = delimited(kNestedType, bytes);
  EXPECT_TRUE(scan<google::protobuf::DescriptorProto>(bytes).ok());
  for (int i = 0; i < 2000; ++i) bytes = delimited(kNestedType, bytes);
  EXPECT_FALSE(scan<google::protobuf::DescriptorProto>(bytes).ok());
}

// Random damage: whatever the scan accepts needs no more memory than it says, if it can be parsed.
TEST(WireScan, TheBoundHoldsForDamagedMessages) {
  v1::GenerateRequest request;
  request.set_model("m");
  for (int i = 0; i < 5; ++i) {
    request.mutable_chat()->add_messages()->set_content("hello");
    request.mutable_chat()->add_tools("{}");
    request.add_stop_sequences("a string that is too long for its object");
    request.add_bad_token_ids(i);
    (*request.mutable_logit_bias())[i] = 1;
  }
  const std::string whole = request.SerializeAsString();
  std::mt19937 random(1);
  int parsed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    for (unsigned i = random() % 4; i > 0; --i) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 4);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 20));
      }
      if (bytes.empty()) bytes = whole;
    }
    const auto bound = scan<v1::GenerateRequest>(bytes, 1 + random() % 64);
    v1::GenerateRequest message;
    if (!bound.ok() || !message.ParseFromString(bytes)) continue;
    ++parsed;
    EXPECT_GE(*bound, static_cast<int64_t>(message.SpaceUsedLong()));
  }
  EXPECT_GT(parsed, 1000);
}

TEST(RawMessage, ChargesBeforeItParses) {
  MemoryAccount account(1 << 20);
  auto charge = account.charge("ann", "h", 0);
  ASSERT_TRUE(charge.ok());
  v1::TokenizeRequest small, large, out;
  small.set_text(std::string(10'000, 'x'));
  large.set_text(std::string(400'000, 'x'));
  EXPECT_TRUE(parse_message(buffer_of(small.SerializeAsString()), &out, &*charge).ok());
  EXPECT_GE(account.used(), 40'000);
  const absl::Status refused = parse_message(buffer_of(large.SerializeAsString()), &out, &*charge);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(out.text().size(), 10'000u);  // was not parsed
}

}  // namespace
}  // namespace tandem
