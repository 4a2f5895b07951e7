// Linked in place of torch_loader.cpp by builds without LibTorch.
#include "absl/strings/str_cat.h"
#include "engine/host/models/loader.h"

namespace tandem {
namespace {

class NoTorchLoader final : public ModelLoader {
 public:
  absl::Status check(const ModelConfig&) const override { return absl::OkStatus(); }
  absl::StatusOr<Backend*> load(const LoadContext&, const DeviceConfig& device,
                                const std::vector<LoadedModel*>&) override {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", device.name(), ": this build has no LibTorch; allowed: fake models"));
  }
  absl::Status finish(const LoadContext&) override { return absl::OkStatus(); }
  void unload(const LoadedModel&) override {}
  absl::StatusOr<std::unique_ptr<OpenLora>> open_lora(const LoadedModel&,
                                                      const std::string&) override {
    return absl::InternalError("a model without a device");  // load() has refused it
  }
  void unload_lora(const LoadedModel&, LoraId) override {}
};

}  // namespace

std::unique_ptr<ModelLoader> make_weights_loader() { return std::make_unique<NoTorchLoader>(); }

}  // namespace tandem
