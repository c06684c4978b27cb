#include "specdec/executorch_runner.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <vector>

#include "executorch_file.h"

namespace specdec {
namespace {

using executorch::aten::DimOrderType;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::StridesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::extension::MallocMemoryAllocator;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;

enum Input : std::size_t { kIds, kStart, kRows, kKeys, kValues, kInputs };

// A view of memory as a contiguous tensor; no allocation.
template <std::size_t N>
struct View {
  View(ScalarType type, void* data, std::array<std::int32_t, N> shape) {
    StridesType stride = 1;
    for (std::size_t i = N; i-- > 0;) {
      sizes[i] = shape[i];
      order[i] = static_cast<DimOrderType>(i);
      strides[i] = stride;
      stride *= shape[i];
    }
    impl.emplace(type, static_cast<ssize_t>(N), sizes.data(), data, order.data(), strides.data());
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  EValue value() { return EValue(Tensor(&*impl)); }

  std::array<SizesType, N> sizes{};
  std::array<DimOrderType, N> order{};
  std::array<StridesType, N> strides{};
  std::optional<TensorImpl> impl;
};

}  // namespace

struct ExecuTorchRunner::Program {
  Program(ExecuTorchModel& model, std::size_t max_tokens, std::size_t max_rows)
      : ids(max_tokens), rows(max_rows) {
    const std::string& path = model.path();
    const auto meta = take(model.file_->program->method_meta("forward"), Status::kBadFile,
                           path + ": has no method `forward`");
    if (meta.num_inputs() != kInputs || meta.num_outputs() != 1) {
      throw Error(Status::kBadFile, path + ": its method has " + std::to_string(meta.num_inputs()) +
                                        " inputs and " + std::to_string(meta.num_outputs()) +
                                        " outputs, not 5 and 1");
    }
    for (std::size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      const auto bytes = static_cast<std::size_t>(
          take(meta.memory_planned_buffer_size(i), Status::kBadFile, path + ": bad memory plan"));
      activation_bytes += bytes;
      regions.push_back(std::make_unique<Region>(std::max<std::size_t>(bytes, 1)));
      const std::span<std::byte> region = regions.back()->bytes();
      spans.emplace_back(reinterpret_cast<std::uint8_t*>(region.data()), region.size());
    }
    planned.emplace(
        executorch::runtime::Span<executorch::runtime::Span<std::uint8_t>>(spans.data(), spans.size()));
    manager.emplace(&memory, &*planned, &scratch);
    method.emplace(take(model.file_->program->load_method("forward", &*manager), Status::kBadFile,
                        path + ": cannot be loaded"));
  }

  void set(Input input, EValue value) {
    if (method->set_input(value, input) != executorch::runtime::Error::Ok) {
      throw Error(Status::kModelFailed, "the program refused an input: " + take_runtime_error());
    }
  }

  MallocMemoryAllocator memory, scratch;
  std::vector<std::unique_ptr<Region>> regions;
  std::vector<executorch::runtime::Span<std::uint8_t>> spans;
  std::optional<HierarchicalAllocator> planned;
  std::optional<MemoryManager> manager;
  std::optional<Method> method;
  std::vector<std::int64_t> ids, rows;
  std::int64_t start = 0;
  std::size_t activation_bytes = 0;
};

ExecuTorchRunner::ExecuTorchRunner(ExecuTorchModel& model, KvCache& cache) : model_(model), cache_(cache) {
  const ModelInfo& info = model.info();
  const ArenaSpec& arena = cache.layout().spec;
  if (arena.layers != info.layers || arena.kv_heads != info.kv_heads || arena.head_dim != info.head_dim ||
      arena.capacity > info.context || arena.dtype != Dtype::kFloat32) {
    throw Error(Status::kInvalidArgument, model.path() + ": the cache was made for another model");
  }
  take_runtime_error();
  program_ = std::make_unique<Program>(model, static_cast<std::size_t>(info.max_tokens),
                                       static_cast<std::size_t>(info.max_rows));
  // The pool's own memory: the program reads and writes it where it lies.
  const std::array<std::int32_t, 4> shape{arena.layers, arena.kv_heads, arena.capacity, arena.head_dim};
  View keys(ScalarType::Float, cache.keys(0).data(), shape);
  View values(ScalarType::Float, cache.values(0).data(), shape);
  program_->set(kKeys, keys.value());
  program_->set(kValues, values.value());
}

ExecuTorchRunner::~ExecuTorchRunner() = default;

std::size_t ExecuTorchRunner::activation_bytes() const { return program_->activation_bytes; }

void ExecuTorchRunner::check(std::span<const Token> tokens) const {
  for (const Token token : tokens) {
    if (token < 0 || token >= model_.info().vocab_size) {
      throw Error(Status::kInvalidArgument, "token " + std::to_string(token) +
                                                " is not in the vocabulary of " +
                                                std::to_string(model_.info().vocab_size));
    }
  }
}

std::span<const float> ExecuTorchRunner::forward(std::span<const Token> tokens) {
  const auto most = static_cast<std::size_t>(std::min(model_.info().max_rows, model_.info().max_tokens));
  if (tokens.empty() || tokens.size() > most) {
    throw Error(Status::kInvalidArgument,
                std::to_string(tokens.size()) + " tokens in one pass: it takes 1 to " + std::to_string(most));
  }
  check(tokens);
  return run(tokens, tokens.size());
}

void ExecuTorchRunner::prefill(std::span<const Token> tokens) {
  check(tokens);
  const auto chunk = static_cast<std::size_t>(model_.info().max_tokens);
  while (!tokens.empty()) {
    const auto now = tokens.first(std::min(chunk, tokens.size()));
    run(now, 1);
    tokens = tokens.subspan(now.size());
  }
}

std::span<const float> ExecuTorchRunner::run(std::span<const Token> tokens, std::size_t rows) {
  Program& program = *program_;
  program.start = cache_.begin(static_cast<std::int32_t>(tokens.size()));
  std::copy(tokens.begin(), tokens.end(), program.ids.begin());
  std::iota(program.rows.begin(), program.rows.begin() + static_cast<std::ptrdiff_t>(rows),
            static_cast<std::int64_t>(tokens.size() - rows));
  View<1> ids(ScalarType::Long, program.ids.data(), {static_cast<std::int32_t>(tokens.size())});
  View<1> start(ScalarType::Long, &program.start, {1});
  View<1> wanted(ScalarType::Long, program.rows.data(), {static_cast<std::int32_t>(rows)});
  program.set(kIds, ids.value());
  program.set(kStart, start.value());
  program.set(kRows, wanted.value());
  if (const auto error = program.method->execute(); error != executorch::runtime::Error::Ok) {
    throw Error(Status::kModelFailed,
                "a pass over " + std::to_string(tokens.size()) + " tokens failed (ExecuTorch error " +
                    std::to_string(static_cast<int>(error)) + ": " + take_runtime_error() + ")");
  }
  cache_.commit(static_cast<std::int32_t>(tokens.size()));
  const EValue& output = program.method->get_output(0);
  const std::size_t count = rows * static_cast<std::size_t>(model_.info().head_rows);
  if (!output.isTensor() || output.toTensor().scalar_type() != ScalarType::Float ||
      static_cast<std::size_t>(output.toTensor().numel()) != count) {
    throw Error(Status::kModelFailed, "the program returned something else than logits");
  }
  return {output.toTensor().const_data_ptr<float>(), count};
}

}  // namespace specdec
