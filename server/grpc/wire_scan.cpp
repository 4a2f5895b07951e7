#include "server/grpc/wire_scan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

constexpr int kMaxDepth = 100;  // as protobuf's parser
// A pointer, an allocation's header, and the object of a string or an unknown field.
constexpr int64_t kElementBytes = 64;
constexpr int64_t kNumberBytes = 8;
// Arrays double when they grow, and the old one exists until it is copied.
constexpr int64_t kGrowth = 3;

class Scan {
 public:
  explicit Scan(google::protobuf::io::ZeroCopyInputStream* in) : in_(in) {}

  absl::StatusOr<int64_t> run(int64_t length, const Descriptor& type) {
    bytes_ = object_bytes(type);
    if (message(type)) return bytes_;
    return status_.ok() ? malformed_message(length, type) : status_;
  }

 private:
  // Walks the fields up to the current limit. False: malformed, or `status_` says why.
  bool message(const Descriptor& type) {
    uint32_t last_tag = 0;
    const FieldDescriptor* field = nullptr;
    while (const uint32_t tag = in_.ReadTag()) {
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      if (number == 0) return false;
      if (tag != last_tag) field = type.FindFieldByNumber(number);
      last_tag = tag;
      if (field != nullptr) path_.push_back(field);
      if (!value(WireFormatLite::GetTagWireType(tag), field)) return false;
      if (field != nullptr) path_.pop_back();
    }
    return in_.ConsumedEntireMessage();
  }

  bool value(WireFormatLite::WireType wire_type, const FieldDescriptor* field) {
    switch (wire_type) {
      case WireFormatLite::WIRETYPE_VARINT: {
        uint64_t ignored = 0;
        return number(field) && in_.ReadVarint64(&ignored);
      }
      case WireFormatLite::WIRETYPE_FIXED32:
        return number(field) && in_.Skip(4);
      case WireFormatLite::WIRETYPE_FIXED64:
        return number(field) && in_.Skip(8);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
        uint32_t length = 0;
        if (!in_.ReadVarint32(&length) || length > static_cast<uint32_t>(INT32_MAX)) return false;
        return delimited(field, static_cast<int>(length));
      }
      default:
        return false;  // groups: proto3 has none
    }
  }

  bool number(const FieldDescriptor* field) {
    if (field != nullptr && field->is_repeated() && is_number(*field)) {
      bytes_ += kGrowth * kNumberBytes;
      return true;
    }
    return count(field);
  }

  bool delimited(const FieldDescriptor* field, int length) {
    if (field != nullptr && field->is_repeated() && is_number(*field)) return packed(length);
    if (!count(field)) return false;
    if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      bytes_ += length;
      return in_.Skip(length);
    }
    if (std::ssize(path_) > kMaxDepth) return false;
    bytes_ += object_bytes(*field->message_type());
    const int left = in_.BytesUntilLimit();
    if (left >= 0 && length > left) return false;
    const auto outer = in_.PushLimit(length);
    const bool ok = message(*field->message_type()) && in_.BytesUntilLimit() == 0;
    in_.PopLimit(outer);
    return ok;
  }

  // Each number is at least one byte. Varints are counted by their last bytes.
  bool packed(int length) {
    int64_t numbers = 0;
    while (length > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!in_.GetDirectBufferPointer(&data, &size)) return false;
      size = std::min(size, length);
      const auto* const begin = static_cast<const unsigned char*>(data);
      numbers += std::count_if(begin, begin + size, [](unsigned char c) { return c < 0x80; });
      if (!in_.Skip(size)) return false;
      length -= size;
    }
    bytes_ += kGrowth * kNumberBytes * numbers + kElementBytes;
    return true;
  }

  // Counts an occurrence of a field, all unknown fields together.
  bool count(const FieldDescriptor* field) {
    bytes_ += kElementBytes;
    if (++occurrences_[field] <= kMaxFieldOccurrences) return true;
    const std::string name = field == nullptr
                                 ? "unknown fields"
                                 : absl::StrJoin(path_, ".", [](std::string* out, const auto* f) {
                                     absl::StrAppend(out, std::string(f->name()));
                                   });
    status_ = out_of_range(name, absl::StrCat("more than ", kMaxFieldOccurrences, " of them"),
                           absl::StrCat("at most ", kMaxFieldOccurrences));
    return false;
  }

  static bool is_number(const FieldDescriptor& field) {
    return field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE &&
           field.cpp_type() != FieldDescriptor::CPPTYPE_STRING;
  }

  int64_t object_bytes(const Descriptor& type) {
    int64_t& bytes = object_bytes_[&type];
    if (bytes == 0) {
      const auto* const empty =
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
      // Entries of maps have no objects of their own; two strings and a node are more.
      bytes = kElementBytes +
              (empty == nullptr ? 2 * kElementBytes : static_cast<int64_t>(empty->SpaceUsedLong()));
    }
    return bytes;
  }

  google::protobuf::io::CodedInputStream in_;
  int64_t bytes_ = 0;
  absl::Status status_;
  std::vector<const FieldDescriptor*> path_;
  absl::flat_hash_map<const FieldDescriptor*, int64_t> occurrences_;
  absl::flat_hash_map<const Descriptor*, int64_t> object_bytes_;
};

}  // namespace

absl::StatusOr<int64_t> scan_message(google::protobuf::io::ZeroCopyInputStream* in, int64_t length,
                                     const Descriptor& type) {
  return Scan(in).run(length, type);
}

absl::Status malformed_message(int64_t length, const Descriptor& type) {
  return with_reason(
      out_of_range("request",
                   absl::StrCat(length, " bytes that are not a ", std::string(type.full_name())),
                   "a well-formed message whose strings are valid UTF-8"),
      "MALFORMED_REQUEST");
}

}  // namespace tandem
