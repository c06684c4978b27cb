#include "specdec/executorch_model.h"

#include <algorithm>

#include "executorch_file.h"
#include "specdec/json.h"

// The threadpool's own header is not part of the package; these two functions are exported by its library.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t threads);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace specdec {
namespace {

using executorch::extension::MallocMemoryAllocator;
using executorch::extension::MmapDataLoader;
using executorch::runtime::MemoryManager;
using executorch::runtime::Program;

constexpr std::int32_t kFormat = 1;  // of the metadata

std::string read_metadata(const Program& program, const std::string& path) {
  MallocMemoryAllocator memory;
  MemoryManager manager(&memory);
  auto method = take(program.load_method("specdec_metadata", &manager), Status::kBadFile,
                     path + ": not written by `specdec export executorch`");
  if (method.execute() != executorch::runtime::Error::Ok || method.outputs_size() != 1 ||
      !method.get_output(0).isString()) {
    throw Error(Status::kBadFile, path + ": its metadata cannot be read");
  }
  const auto text = method.get_output(0).toString();
  return {text.data(), text.size()};
}

ModelInfo parse(const std::string& text, const std::string& path) {
  ModelInfo info;
  const Json json = Json::parse(text);
  if (json.at("format").integer() != kFormat) {
    throw Error(Status::kBadFile, path + ": made by another version of the kit; export it again");
  }
  info.name = json.at("name").string();
  info.precision = json.at("precision").string();
  info.head_precision = json.at("head_precision").string();
  info.kit_version = json.at("kit_version").string();
  info.executorch_version = json.at("executorch_version").string();
  if (json.at("tokenizer_sha256").is_string()) info.tokenizer_sha256 = json.at("tokenizer_sha256").string();
  const std::pair<const char*, std::int32_t*> numbers[] = {
      {"vocab_size", &info.vocab_size}, {"head_rows", &info.head_rows}, {"context", &info.context},
      {"layers", &info.layers},         {"kv_heads", &info.kv_heads},   {"head_dim", &info.head_dim},
      {"max_tokens", &info.max_tokens}, {"max_rows", &info.max_rows},
  };
  for (const auto& [key, number] : numbers) {
    *number = json.at(key).integer();
    if (*number < 1) throw Error(Status::kBadFile, path + ": its metadata has no sensible " + key);
  }
  if (!json.at("head_ids").is_null()) {
    for (const Json& id : json.at("head_ids").array()) info.head_ids.push_back(id.integer());
    const bool ascending = std::is_sorted(info.head_ids.begin(), info.head_ids.end());
    if (!ascending || info.head_ids.size() != static_cast<std::size_t>(info.head_rows) ||
        info.head_ids.front() < 0 || info.head_ids.back() >= info.vocab_size) {
      throw Error(Status::kBadFile, path + ": its list of head rows makes no sense");
    }
  }
  return info;
}

}  // namespace

void set_threads(std::int32_t threads) {
  if (threads < 1) throw Error(Status::kInvalidArgument, "at least one thread is needed");
  start_runtime();
  executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(
      static_cast<std::uint32_t>(threads));
}

ExecuTorchModel::ExecuTorchModel(const std::string& path) : path_(path) {
  start_runtime();
  take_runtime_error();
  auto loader = take(MmapDataLoader::from(path.c_str(), MmapDataLoader::MlockConfig::NoMlock),
                     Status::kBadFile, path + ": cannot be opened");
  file_ = std::make_unique<File>(std::move(loader), std::nullopt);
  file_->program.emplace(take(Program::load(&file_->loader, Program::Verification::InternalConsistency),
                              Status::kBadFile, path + ": not a whole ExecuTorch program"));
  metadata_ = read_metadata(*file_->program, path);
  info_ = parse(metadata_, path);
}

ExecuTorchModel::~ExecuTorchModel() = default;

ArenaSpec ExecuTorchModel::arena(const std::string& name, std::int32_t context) const {
  return {.name = name,
          .layers = info_.layers,
          .kv_heads = info_.kv_heads,
          .capacity = std::min(context, info_.context),
          .head_dim = info_.head_dim,
          .dtype = Dtype::kFloat32,
          .kind = CacheKind::kFull,
          .window = 0};
}

}  // namespace specdec
