#!/usr/bin/env bash
# See that the tests of `make test-mobile` find a compiler for phones' processors (aarch64) and an emulator to run what it
# makes. Installs Debian's where it may (as root); otherwise says in one line what is missing, and those tests are skipped.
set -euo pipefail

missing=()
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  echo "test-mobile: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  if apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    exit 0
  fi
fi
echo "test-mobile: no tests for aarch64 without: ${missing[*]} (Debian, Ubuntu: sudo apt install ${missing[*]})" >&2
