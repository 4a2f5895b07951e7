// Folders of random LoRA adapters, as PEFT saves them.
#pragma once

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/weights/lora_file.h"
#include "engine/base/config.h"
#include "tests/engine/backend/torch/weights/files.h"

namespace tandem::test {

inline const std::vector<LoraPart> kEveryLoraPart{LoraPart::kQkv, LoraPart::kO, LoraPart::kUp,
                                                  LoraPart::kDown};

class LoraFolders {
 public:
  explicit LoraFolders(DecoderConfig base) : base_(std::move(base)) {}

  // An adapter of these parts of every layer. size: of its numbers; dtype: of its tensors, F32,
  // BF16 or F16
  ExtraConfig write(const std::string& name, int rank, uint64_t seed,
                    const std::vector<LoraPart>& parts = kEveryLoraPart, float size = 0.2F,
                    const std::string& dtype = "F32") const {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0, size);
    std::vector<FileTensor> tensors;
    std::string numbers;
    const auto add = [&](const std::string& tensor, int64_t rows, int64_t columns) {
      tensors.push_back({tensor, dtype, {rows, columns}});
      for (int64_t i = 0; i < rows * columns; ++i) {
        const float x = normal(random);
        const auto put = [&](const auto& bits) {
          numbers.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
        };
        if (dtype == "BF16") {
          put(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
        } else if (dtype == "F16") {
          put(static_cast<_Float16>(x));
        } else {
          put(x);
        }
      }
    };
    for (int layer = 0; layer < base_.layers; ++layer) {
      for (const LoraPart part : parts) {
        const LinearSpec spec = lora_spec(base_, layer, part);
        for (size_t i = 0; i < spec.names.size(); ++i) {
          const std::string stem = "base_model.model." + spec.names[i];
          add(stem + ".lora_A.weight", rank, spec.in);
          add(stem + ".lora_B.weight", spec.outs[i], rank);
        }
      }
    }
    std::string file = safetensors_of(tensors);
    file.replace(file.size() - numbers.size(), numbers.size(), numbers);
    dir_.write(name + "/adapter_model.safetensors", file);
    dir_.write(name + "/adapter_config.json",
               nlohmann::json{{"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", 2 * rank}}.dump());
    return {name, dir_.path() + "/" + name};
  }

 private:
  const DecoderConfig base_;
  const TempDir dir_;
};

}  // namespace tandem::test
