#!/usr/bin/env bash
# Make .venv and install the locked packages in it; do nothing when that is already done. Called by `make setup`.
#
#   PYTHON       the Python to make .venv with (default: the first of python3.11, 3.12, 3.13 and python3 that fits)
#   TORCH_INDEX  URL of a package index with CPU-only builds of PyTorch (Linux)
#   WHEELS       folder of wheels to install from instead of the network (made by `make offline-bundle`)
#
# .venv/.ready is written last, and only on success. It names this folder and the content of the files that decide
# what is installed, so a changed lock, a moved checkout and an interrupted set-up are all noticed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
venv=.venv
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
export PIP_USER=0

say() { echo "setup: $*"; }
fail() {
  echo "setup: $1" >&2
  shift
  for line in "$@"; do echo "       $line" >&2; done
  exit 1
}

key() { # what .venv has to match
  echo "$root"
  cat requirements.txt pyproject.toml | cksum
}

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.11, 3.12 or 3.13 is needed; ${PYTHON:-python3} is: $("${PYTHON:-python3}" --version 2>&1 | head -n 1)." \
    "Install one, or name it: make setup PYTHON=/path/to/python3.11"
}

if [ -f "$venv/.ready" ] && [ "$(cat "$venv/.ready")" = "$(key)" ]; then
  exit 0
fi

quiet=(-qq)
if [ -t 1 ]; then quiet=(); fi
source=()
if [ -n "${WHEELS:-}" ]; then
  [ -d "$WHEELS" ] || fail "WHEELS=$WHEELS is not a folder."
  source=(--no-index --find-links "$WHEELS")
fi
# (`${x[@]+"${x[@]}"}` below is "${x[@]}" for bash 3.2, the one on macOS, where x may be empty.)

rm -f "$venv/.ready"
if [ "$(cat "$venv/.home" 2>/dev/null)" = "$root" ] && "${pip[@]}" --version >/dev/null 2>&1; then
  say "bringing .venv up to date"
else
  python=$(find_python)
  say "making .venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" >&2 ||
    fail "no virtual environment could be made." "On Debian and Ubuntu the system Python needs: apt install python3-venv"
  echo "$root" >"$venv/.home"
fi

# On Linux, PyPI's torch is a CUDA build of several GB. A CPU-only build of the same version does; pip takes one from
# TORCH_INDEX, or from wherever its own settings point (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf).
torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)
if [ "$(uname -s)" = Linux ] && ! "${pip[@]}" show -q torch 2>/dev/null; then
  if [ -n "${TORCH_INDEX:-}" ]; then
    say "installing $torch+cpu from TORCH_INDEX"
    "${pip[@]}" install ${quiet[@]+"${quiet[@]}"} --no-deps --extra-index-url "$TORCH_INDEX" "$torch+cpu"
  elif ! "${pip[@]}" install -q --no-deps ${source[@]+"${source[@]}"} "$torch+cpu" 2>/dev/null; then
    say "pip finds no CPU-only build of $torch and takes its default one. On Linux that one includes CUDA: several GB."
    say "To avoid it, stop here and run: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu"
  fi
fi

say "installing the locked packages (a few minutes the first time)"
"${pip[@]}" install ${quiet[@]+"${quiet[@]}"} ${source[@]+"${source[@]}"} -r requirements.txt
"${pip[@]}" install -q --no-index --no-build-isolation --no-deps -e .
key >"$venv/.ready"
say "done"
