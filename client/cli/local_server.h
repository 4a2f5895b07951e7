// A tandem-server of this process, on a socket that only this user can reach.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/child_process.h"

namespace tandem::cli {

// Movable. Stops the server and removes its files when it is destroyed.
class LocalServer {
 public:
  // flags: of tandem-server, for the models. Its log (warnings) and the progress of downloads go to
  // standard error. Returns once the models are loaded. UNAVAILABLE: the server ended, and printed
  // why.
  static absl::StatusOr<LocalServer> start(const std::vector<std::string>& flags);

  LocalServer(LocalServer&&) = default;
  LocalServer& operator=(LocalServer&&) = default;
  ~LocalServer() = default;

  const std::string& address() const { return address_; }

 private:
  // A folder under the system's for temporary files, with access for this user only.
  class Folder {
   public:
    static absl::StatusOr<Folder> create();
    Folder(Folder&& other) noexcept;
    Folder& operator=(Folder&& other) noexcept;
    ~Folder();
    const std::string& path() const { return path_; }

   private:
    Folder() = default;
    std::string path_;  // empty: moved from
  };

  LocalServer(Folder folder, ChildProcess process, std::string address)
      : folder_(std::move(folder)), process_(std::move(process)), address_(std::move(address)) {}

  Folder folder_;
  ChildProcess process_;  // ends before its folder goes
  std::string address_;
};

}  // namespace tandem::cli
