#include "runtime_log.h"

#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <mutex>
#include <utility>

namespace specdec {
namespace {

thread_local std::string last_line;

void keep(et_timestamp_t /*time*/, et_pal_log_level_t level, const char* /*file*/, const char* /*function*/,
          size_t /*line*/, const char* message, size_t length) {
  if (level == kError || level == kFatal) last_line.assign(message, length);
}

}  // namespace

void start_runtime() {
  static std::once_flag once;
  std::call_once(once, [] {
    executorch::runtime::register_pal(executorch::runtime::PalImpl::create(keep, __FILE__));
    executorch::runtime::runtime_init();
  });
}

std::string take_runtime_error() { return std::exchange(last_line, {}); }

}  // namespace specdec
