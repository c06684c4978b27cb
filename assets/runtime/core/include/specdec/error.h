// The one kind of error this library throws. Nothing of it crosses the C interface: `c_api.cc` turns it into
// a code and a message.
#pragma once

#include <stdexcept>
#include <string>

namespace specdec {

// The values are part of the C interface (`specdec_status` in specdec.h).
enum class Status : int {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's arguments; nothing was changed
  kPromptTooLong = 2,    // the prompt does not fit the context; nothing was changed
  kModelFailed = 3,      // a model pass failed or gave NaN; reset before going on
  kPoisoned = 4,         // an earlier pass failed; reset before going on
  kBadFile = 5,          // a file is missing, damaged or of an unsupported kind
  kOutOfMemory = 6,
  kBufferTooSmall = 7,  // the needed size was written; call again with that much room
  kBusy = 8,            // the engine is generating on another thread
  kInternal = 9,
};

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& what) : std::runtime_error(what), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

}  // namespace specdec
