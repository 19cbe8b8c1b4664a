#!/bin/bash
# Holds the CUDA kernels to float64 on a GPU, and prints how fast they are.
#
#   tests/cuda/run.sh               build, check, run under compute-sanitizer
#   tests/cuda/run.sh --build-only  build, which needs no GPU
#
# Needs CMake, nvcc and this tree; takes minutes. Exits with 77 without a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
build_only=
case ${1:-} in
  '') ;;
  --build-only) build_only=yes ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' run.sh; exit 2 ;;
esac
build=../../build/cuda_check
export PATH=$PATH:/usr/local/cuda/bin
cmake -S . -B "$build" > "${TMPDIR:-/tmp}/cuda_check_cmake.log" 2>&1 ||
  { cat "${TMPDIR:-/tmp}/cuda_check_cmake.log" >&2; exit 1; }
cmake --build "$build" --parallel "$(nproc)"
[[ -z $build_only ]] || exit 0

# What a check finds wrong, compute-sanitizer may explain.
status=0
"$build/cuda_check" || status=$?
((status != 77)) || exit 77
if ! sanitizer=$(command -v compute-sanitizer); then
  echo "compute-sanitizer is not here: memory and races were not checked."
  exit "$status"
fi
for tool in memcheck racecheck synccheck initcheck; do
  echo "== compute-sanitizer $tool"
  flags=(--short)
  [[ $tool != initcheck ]] || flags+=(--unfilled)
  found=$build/$tool.txt
  "$sanitizer" --tool "$tool" --error-exitcode 1 \
    "$build/cuda_check" "${flags[@]}" > "$found" 2>&1 || status=1
  # The first errors explain the others; all are in the file.
  awk '/^(=========|FAILED)/ && ++lines <= 40' "$found"
  tail -n 1 "$found"
done
exit "$status"
