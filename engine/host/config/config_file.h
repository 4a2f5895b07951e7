// A deployment file as it was read: the parsed message, and where in the file each field stood, so
// that an error about a value can say file and line.
//
// Immutable after parse(); thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tandem/config/v1/deployment.pb.h"

namespace google::protobuf {
class Message;
}

namespace tandem {

class ConfigFile {
 public:
  // `file_name` is named in errors, and its folder is what paths are relative to.
  static absl::StatusOr<ConfigFile> parse(absl::string_view text, absl::string_view file_name);
  static absl::StatusOr<ConfigFile> load(const std::string& path);
  ~ConfigFile();
  ConfigFile(ConfigFile&&) noexcept;
  ConfigFile& operator=(ConfigFile&&) noexcept;

  const tandem::config::v1::Config& proto() const { return *proto_; }

  // "demo.textproto:12: models[1].path: VALUE; allowed: ALLOWED". `field` is the path of a field,
  // with indices where it repeats; when it is not in the file the line is that of the nearest
  // message around it.
  absl::Status error(absl::string_view field, absl::string_view value,
                     absl::string_view allowed) const;

  // `path` as seen from the file's folder.
  std::string resolve(absl::string_view path) const;

 private:
  struct Locations;
  ConfigFile();

  std::string file_name_;
  std::unique_ptr<tandem::config::v1::Config> proto_;
  std::unique_ptr<Locations> locations_;
};

}  // namespace tandem
