// Folders with adapters and heads of a golden model, as in a deployment.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/backend/torch/weights/adapter_file.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/base/config.h"
#include "tests/engine/backend/torch/weights/files.h"

namespace tandem::test {

struct Matrix {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

class AdapterFolders {
 public:
  // Of the model in this directory.
  explicit AdapterFolders(const std::string& model) : base(*load_hf_config(model)) {
    const Checkpoint weights = *Checkpoint::open(model);
    const DecoderLayout layout = *check_decoder(base, weights);
    base.names = layout.names;
    fingerprint = *fingerprint_of(base, layout.tied, weights);
  }

  // fields: those of adapter.json beside format and base.
  ExtraConfig write(const std::string& name, const nlohmann::json& fields,
                    const std::vector<Matrix>& tensors) const {
    nlohmann::json about = fields;
    about["format"] = "tandem-adapter-1";
    about["base"] = {{"vocab_size", base.vocab_size}, {"hidden_size", base.hidden_size},
                     {"layers", base.layers},         {"heads", base.heads},
                     {"kv_heads", base.kv_heads},     {"head_dim", base.head_dim},
                     {"fingerprint", fingerprint}};
    dir_.write(name + "/adapter.json", about.dump());
    std::vector<FileTensor> described;
    std::string numbers;
    for (const Matrix& m : tensors) {
      described.push_back({m.name, "F32", m.shape});
      numbers.append(reinterpret_cast<const char*>(m.values.data()),
                     m.values.size() * sizeof(float));
    }
    std::string file = safetensors_of(described);
    file.replace(file.size() - numbers.size(), numbers.size(), numbers);
    dir_.write(name + "/adapter.safetensors", file);
    return {name, dir_.path() + "/" + name};
  }

  std::string path() const { return dir_.path(); }

  DecoderConfig base;
  std::string fingerprint;  // of the model, in the folders

 private:
  const TempDir dir_;
};

}  // namespace tandem::test
