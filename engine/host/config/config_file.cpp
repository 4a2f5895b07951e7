#include "engine/host/config/config_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/read_file.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

namespace pb = google::protobuf;

// Larger than any deployment; keeps a wrong path (a weight file) from being read whole.
constexpr std::uintmax_t kMaxFileBytes = 4 << 20;

// Keeps the first error: later ones follow from it.
class FirstError : public pb::io::ErrorCollector {
 public:
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (!message_.has_value()) {
      line_ = line;
      column_ = column;
      message_ = message;
    }
  }
  bool any() const { return message_.has_value(); }
  int line() const { return line_ + 1; }
  int column() const { return column_ + 1; }
  const std::string& message() const { return *message_; }

 private:
  int line_ = 0;
  int column_ = 0;
  std::optional<std::string> message_;
};

// The part of `text` between the first `open` and the following `close`.
std::string between(const std::string& text, const std::string& open, const std::string& close) {
  const size_t from = text.find(open);
  if (from == std::string::npos) return "";
  const size_t start = from + open.size();
  const size_t end = text.find(close, start);
  return end == std::string::npos ? "" : text.substr(start, end - start);
}

// The valid names, which the parser's message leaves out.
std::string allowed_names(const std::string& message) {
  std::vector<std::string> names;
  if (absl::StrContains(message, "has no field named")) {
    const auto* type = pb::DescriptorPool::generated_pool()->FindMessageTypeByName(
        between(message, "Message type \"", "\""));
    for (int i = 0; type != nullptr && i < type->field_count(); ++i) {
      names.push_back(type->field(i)->name());
    }
  } else if (absl::StrContains(message, "nknown enumeration value")) {
    const std::string name = between(message, "for field \"", "\"");
    const auto* file = tandem::config::v1::Config::descriptor()->file();
    for (int i = 0; i < file->message_type_count(); ++i) {
      const auto* field = file->message_type(i)->FindFieldByName(name);
      if (field == nullptr || field->enum_type() == nullptr) continue;
      for (int v = 0; v < field->enum_type()->value_count(); ++v) {
        names.push_back(field->enum_type()->value(v)->name());
      }
    }
  }
  return names.empty() ? "" : absl::StrCat(" Allowed: ", absl::StrJoin(names, ", "), ".");
}

}  // namespace

struct ConfigFile::Locations {
  pb::TextFormat::ParseInfoTree tree;

  // Line of `field`, or of the nearest message around it; 0: unknown.
  int line(absl::string_view field) const {
    const pb::TextFormat::ParseInfoTree* at = &tree;
    const pb::Descriptor* type = tandem::config::v1::Config::descriptor();
    int found = 0;
    for (absl::string_view part : absl::StrSplit(field, '.')) {
      int index = -1;
      if (const size_t bracket = part.find('['); bracket != absl::string_view::npos) {
        if (!absl::SimpleAtoi(part.substr(bracket + 1, part.size() - bracket - 2), &index)) break;
        part = part.substr(0, bracket);
      }
      const pb::FieldDescriptor* descriptor = type->FindFieldByName(std::string(part));
      if (descriptor == nullptr) break;
      if (descriptor->is_repeated() && index < 0) index = 0;
      const auto location = at->GetLocation(descriptor, descriptor->is_repeated() ? index : -1);
      if (location.line < 0) break;
      found = location.line + 1;
      if (descriptor->message_type() == nullptr) break;
      type = descriptor->message_type();
      at = at->GetTreeForNested(descriptor, descriptor->is_repeated() ? index : -1);
      if (at == nullptr) break;
    }
    return found;
  }
};

ConfigFile::ConfigFile() = default;
ConfigFile::~ConfigFile() = default;
ConfigFile::ConfigFile(ConfigFile&&) noexcept = default;
ConfigFile& ConfigFile::operator=(ConfigFile&&) noexcept = default;

absl::StatusOr<ConfigFile> ConfigFile::parse(absl::string_view text, absl::string_view file_name) {
  ConfigFile file;
  file.file_name_ = std::string(file_name);
  file.proto_ = std::make_unique<tandem::config::v1::Config>();
  file.locations_ = std::make_unique<Locations>();

  FirstError errors;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&file.locations_->tree);
  pb::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  if (!parser.Parse(&input, file.proto_.get())) {
    if (!errors.any()) return absl::InvalidArgumentError(absl::StrCat(file_name, ": unreadable"));
    return absl::InvalidArgumentError(absl::StrCat(file_name, ":", errors.line(), ":",
                                                   errors.column(), ": ", errors.message(),
                                                   allowed_names(errors.message())));
  }
  return file;
}

absl::StatusOr<ConfigFile> ConfigFile::load(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot read: ", error.message()));
  }
  if (size > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, " bytes; allowed: at most ",
                                                   kMaxFileBytes, " in a deployment file"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return parse(text, path);
}

absl::Status ConfigFile::error(absl::string_view field, absl::string_view value,
                               absl::string_view allowed) const {
  const int line = locations_->line(field);
  const std::string where = line > 0 ? absl::StrCat(file_name_, ":", line) : file_name_;
  return annotate(out_of_range(field, value, allowed), where);
}

void ConfigFile::set_place(const std::string& path, std::string place) {
  places_[path] = std::move(place);
}

std::string ConfigFile::resolve(absl::string_view path) const {
  if (const auto it = places_.find(std::string(path)); it != places_.end()) return it->second;
  const std::filesystem::path given{std::string(path)};
  if (given.is_absolute()) return given.string();
  return (std::filesystem::path(file_name_).parent_path() / given).lexically_normal().string();
}

}  // namespace tandem
