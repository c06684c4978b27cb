// The tests' own ten lines of framework: a check that names its place and value, and a main that reports.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <source_location>
#include <string>
#include <string_view>

#include "specdec/error.h"

namespace specdec::test {

// Counted so that a test binary that checked nothing fails.
inline long checks = 0;

inline void check(bool holds, std::string_view claim = "",
                  std::source_location place = std::source_location::current()) {
  ++checks;
  if (holds) return;
  std::fprintf(stderr, "%s:%u: FAILED %.*s\n", place.file_name(), place.line(),
               static_cast<int>(claim.size()), claim.data());
  std::exit(1);
}

// Checks that `act` throws an Error of this status; returns its message.
template <typename Act>
std::string refuses(Status status, Act act, std::source_location place = std::source_location::current()) {
  try {
    act();
  } catch (const Error& error) {
    check(error.status() == status, std::string("other status: ") + error.what(), place);
    return error.what();
  }
  check(false, "nothing was thrown", place);
  return "";
}

// Runs a test program's body.
template <typename Body>
int run(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
  std::printf("%ld checks passed\n", checks);
  return checks == 0;
}

}  // namespace specdec::test
