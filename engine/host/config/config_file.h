// A parsed deployment file with the line of each field, so that errors about values name file and
// line.
//
// Immutable after parse() and set_place(); then thread-safe.
#pragma once

#include <map>
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
  // `file_name` appears in errors. Its folder is the base of relative paths.
  static absl::StatusOr<ConfigFile> parse(absl::string_view text, absl::string_view file_name);
  static absl::StatusOr<ConfigFile> load(const std::string& path);
  ~ConfigFile();
  ConfigFile(ConfigFile&&) noexcept;
  ConfigFile& operator=(ConfigFile&&) noexcept;

  const tandem::config::v1::Config& proto() const { return *proto_; }

  // "demo.textproto:12: models[1].path: VALUE; allowed: ALLOWED". `field` is a path, with an index
  // for repeated fields. If the field is not set, the line is that of the nearest enclosing
  // message.
  absl::Status error(absl::string_view field, absl::string_view value,
                     absl::string_view allowed) const;

  // `path` relative to the file's folder, or its place.
  std::string resolve(absl::string_view path) const;
  // Makes `place` what `path` resolves to: of a model that was fetched.
  void set_place(const std::string& path, std::string place);

 private:
  struct Locations;
  ConfigFile();

  std::string file_name_;
  std::unique_ptr<tandem::config::v1::Config> proto_;
  std::unique_ptr<Locations> locations_;
  std::map<std::string, std::string> places_;  // by path
};

}  // namespace tandem
