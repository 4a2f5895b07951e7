#include "engine/backend/torch/weights/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/model.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 10000;

bool exists(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0;
}

absl::Status no_weights(const std::string& directory) {
  struct stat info{};
  if (::stat(directory.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(directory, ": no such directory"));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": not a directory"));
  }
  const bool pickle = exists(directory + "/pytorch_model.bin") ||
                      exists(directory + "/pytorch_model.bin.index.json");
  return absl::NotFoundError(absl::StrCat(
      directory, ": neither ", kSingle, " nor ", kIndex, " is there",
      pickle ? " (pytorch_model.bin is not read: it can run code; save the model as safetensors)"
             : ""));
}

// A file name without a directory.
bool good_shard_name(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") && !absl::StartsWith(name, ".") &&
         name.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
}

// tensor -> shard, from the index.
absl::StatusOr<std::map<std::string, std::string>> read_index(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxIndexBytes));
  TANDEM_ASSIGN_OR_RETURN(const nlohmann::json index, parse_json_object(text, path));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    return out_of_range(absl::StrCat(path, ": weight_map"),
                        map == index.end() ? "missing" : value_text(*map),
                        "an object of tensor names and file names");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !good_shard_name(shard.get_ref<const std::string&>())) {
      return out_of_range(absl::StrCat(path, ": weight_map: ", quote_value(tensor)),
                          value_text(shard), "names of *.safetensors files in the same directory");
    }
    shard_of.emplace(tensor, shard.get<std::string>());
  }
  return shard_of;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::open(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = checkpoint.where_ = directory;
  if (is_gguf(directory)) {
    TANDEM_RETURN_IF_ERROR(checkpoint.add_gguf(directory));
    return checkpoint;
  }
  if (exists(absl::StrCat(directory, "/", kSingle))) {
    TANDEM_RETURN_IF_ERROR(checkpoint.add_file(kSingle));
    return checkpoint;
  }
  const std::string index_path = absl::StrCat(directory, "/", kIndex);
  if (!exists(index_path)) return no_weights(directory);

  TANDEM_ASSIGN_OR_RETURN(const auto shard_of, read_index(index_path));
  std::map<std::string, std::string> needed_by;  // shard -> one of its tensors
  for (const auto& [tensor, shard] : shard_of) needed_by.emplace(shard, tensor);
  if (needed_by.size() > kMaxShards) {
    return out_of_range(absl::StrCat(index_path, ": number of files"), needed_by.size(),
                        absl::StrCat("at most ", kMaxShards));
  }
  for (const auto& [shard, tensor] : needed_by) {
    if (!exists(absl::StrCat(directory, "/", shard))) {
      return absl::NotFoundError(absl::StrCat(directory, "/", shard, ": no such file, but ", kIndex,
                                              " says that it holds ", quote_value(tensor)));
    }
    TANDEM_RETURN_IF_ERROR(checkpoint.add_file(shard));
  }
  for (const auto& [tensor, shard] : shard_of) {
    const auto there = checkpoint.origin_.find(tensor);
    if (there == checkpoint.origin_.end() || there->second != shard) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": weight_map: ", quote_value(tensor), " is not in ", shard));
    }
  }
  for (const auto& [tensor, shard] : checkpoint.origin_) {
    if (!shard_of.contains(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(directory, "/", shard, ": tensor ",
                                                     quote_value(tensor), " is not in ", kIndex));
    }
  }
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::open_file(const std::string& directory,
                                                 const std::string& file_name, FileAccess access) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.where_ = absl::StrCat(directory, "/", file_name);
  if (!exists(checkpoint.where_)) {
    return absl::NotFoundError(absl::StrCat(checkpoint.where_, ": no such file"));
  }
  TANDEM_RETURN_IF_ERROR(checkpoint.add_file(file_name, access));
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::of_files(const std::string& path,
                                                std::vector<MappedFile> files,
                                                std::map<std::string, TensorView> tensors) {
  Checkpoint checkpoint;
  checkpoint.directory_ = checkpoint.where_ = path;
  TANDEM_RETURN_IF_ERROR(checkpoint.add_files(path, std::move(files), std::move(tensors)));
  return checkpoint;
}

absl::Status Checkpoint::add_file(const std::string& file_name, FileAccess access) {
  const std::string path = absl::StrCat(directory_, "/", file_name);
  TANDEM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, access));
  TANDEM_ASSIGN_OR_RETURN(Safetensors content, parse_safetensors(file.bytes(), path));
  return add(path, file_name, std::move(file), std::move(content.tensors));
}

absl::Status Checkpoint::add_gguf(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::open(path));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, gguf_tensors(gguf.content, path));
  return add_files(path, std::move(gguf.files), std::move(tensors));
}

absl::Status Checkpoint::add_files(const std::string& path, std::vector<MappedFile> files,
                                   std::map<std::string, TensorView> tensors) {
  TANDEM_RETURN_IF_ERROR(add(path, path, std::move(files[0]), std::move(tensors)));
  for (size_t i = 1; i < files.size(); ++i) {  // of a split model
    files[i].will_need();
    files_.push_back(std::move(files[i]));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::add(const std::string& path, const std::string& file_name, MappedFile file,
                             std::map<std::string, TensorView> tensors) {
  file.will_need();
  for (auto& [name, view] : tensors) {
    const auto [there, fresh] = origin_.emplace(name, file_name);
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", quote_value(name), " is also in ", there->second));
    }
    total_bytes_ += static_cast<int64_t>(view.bytes);
    total_elements_ += view.elements();
    tensors_.emplace(name, std::move(view));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, view] : tensors_) names.push_back(name);
  return names;
}

absl::StatusOr<const TensorView*> Checkpoint::require(const std::string& name,
                                                      const std::vector<int64_t>& shape) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(directory_, ": tensor ", quote_value(name),
                                                   ": missing, expected shape ",
                                                   shape_text(shape)));
  }
  if (const std::string wrong = mismatch(*tensor, shape); !wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(directory_, "/", origin_.at(name), ": tensor ",
                                                   quote_value(name), ": ", wrong));
  }
  return tensor;
}

void Checkpoint::done(const TensorView& tensor) const {
  for (const MappedFile& file : files_) {
    const std::byte* begin = file.bytes().data();
    if (tensor.data >= begin && tensor.data < begin + file.bytes().size()) {
      file.dont_need({tensor.data, tensor.bytes});
    }
  }
}

}  // namespace tandem
