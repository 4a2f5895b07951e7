// Deployment files: an accepted file is consistent and within its ranges; errors name the place.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "engine/host/config/config.h"
#include "engine/host/methods/registry.h"
#include "tests/fuzz/fuzz.h"

namespace tandem {
namespace {

using fuzz::check;

void check_config(const EngineConfig& c) {
  const auto is_model = [&](const std::string& name) {
    return std::count_if(c.models.begin(), c.models.end(),
                         [&](const ModelConfig& m) { return m.name == name; }) == 1;
  };
  check(!c.models.empty() && !c.deployments.empty(), "nothing to serve");
  for (const ModelConfig& m : c.models) {
    check(is_model(m.name), "two models of a name", m.name);
    std::vector<std::string> devices = m.replicas;
    devices.push_back(m.device);
    for (const std::string& device : devices) {
      check(std::ranges::count(devices, device) == 1, "a device twice", device);
      check(std::ranges::count(c.devices, device, &DeviceConfig::name) == 1,
            "a device that is not there", device);
    }
    check(m.fake.has_value() != !m.path.empty(), "neither a path nor a fake");
    check(m.page_rows >= 1 && m.page_rows <= 1024 && m.kv_pages >= 0, "pages");
    if (m.fake) check(m.fake->vocab_size >= 257 && m.fake->layers >= 1, "fake");
  }
  for (const DeploymentConfig& d : c.deployments) {
    check(is_model(d.large) && (d.small.empty() || is_model(d.small)), "no such model", d.name);
    for (const auto& [name, settings] : d.methods) {
      const MethodEntry* method = find_method(name);
      check(method && !method->check(settings, Field::By::kDeployment), "parameters", name);
    }
  }
  const LimitsConfig& l = c.limits;
  check(l.max_running >= 1 && l.max_waiting >= 0 && l.step_rows >= 1, "limits");
  check(l.queue_seconds > 0 && l.stalled_stream_seconds > 0, "limits");
  for (const auto& [client, weight] : l.client_weights) check(weight >= 1e-3 && weight <= 1e3);
  check(c.text_threads >= 1 && c.text_threads <= 64, "text_threads");
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const auto config = parse_deployment(fuzz::text_of(data, size), "f.textproto");
  if (config.ok()) {
    check_config(*config);
  } else {
    fuzz::check_refusal(config.status());
    check(absl::StartsWith(config.status().message(), "f.textproto"), "no place",
          config.status().ToString());
  }
  return 0;
}
