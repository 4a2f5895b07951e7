#include "client/cli/local_server.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/status.h"

namespace tandem::cli {

absl::StatusOr<LocalServer::Folder> LocalServer::Folder::create() {
  Folder folder;
  std::error_code error;
  std::string name = (std::filesystem::temp_directory_path(error) / "tandem-XXXXXX").string();
  if (error || ::mkdtemp(name.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        name,
        ": cannot create the folder of the server's socket: set TMPDIR to a folder that this "
        "user may write"));
  }
  folder.path_ = std::move(name);
  return folder;
}

LocalServer::Folder::Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, "")) {}

LocalServer::Folder& LocalServer::Folder::operator=(Folder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

LocalServer::Folder::~Folder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<LocalServer> LocalServer::start(const std::vector<std::string>& flags) {
  TANDEM_ASSIGN_OR_RETURN(Folder folder, Folder::create());
  const std::string address = absl::StrCat("unix:", folder.path(), "/grpc");
  const std::string ready = folder.path() + "/ready";
  std::vector<std::string> args = {sibling_program("tandem-server"),
                                   "--listen=" + address,
                                   "--http=off",
                                   "--log-level=warn",
                                   "--grace-seconds=0",
                                   "--port-file=" + ready};
  args.insert(args.end(), flags.begin(), flags.end());
  ChildProcess::Options options;
  options.own_group = true;
  TANDEM_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::start(args, options));
  while (::access(ready.c_str(), F_OK) != 0) {
    if (process.poll().has_value()) {
      return absl::UnavailableError("tandem-server ended; its message is above");
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return LocalServer(std::move(folder), std::move(process), address);
}

}  // namespace tandem::cli
