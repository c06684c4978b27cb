// Shared by model and runner: an opened program.
#pragma once

#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include <optional>
#include <string>
#include <utility>

#include "runtime_log.h"
#include "specdec/error.h"
#include "specdec/executorch_model.h"

namespace specdec {

// The value of an ExecuTorch result, or an Error with `status` and the runtime's own words.
template <typename T>
T take(executorch::runtime::Result<T> result, Status status, const std::string& what) {
  if (!result.ok()) {
    const std::string cause = take_runtime_error();
    throw Error(status, what + " (ExecuTorch error " + std::to_string(static_cast<int>(result.error())) +
                            (cause.empty() ? "" : ": " + cause) + ")");
  }
  return std::move(result.get());
}

struct ExecuTorchModel::File {
  executorch::extension::MmapDataLoader loader;
  std::optional<executorch::runtime::Program> program;
};

}  // namespace specdec
