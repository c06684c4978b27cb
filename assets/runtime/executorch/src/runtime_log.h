// ExecuTorch reports causes of errors in its log only; this keeps the last line for our own messages.
#pragma once

#include <string>

namespace specdec {

// Starts ExecuTorch once, with its log going here instead of to stderr.
void start_runtime();
// The calling thread's last error line since it was last asked; empty if there is none.
std::string take_runtime_error();

}  // namespace specdec
