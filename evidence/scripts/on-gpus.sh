# shellcheck shell=bash
# What scripts on real GPUs share; they source it from the repository's root, behind out=OUT. It sets no clock: the clients
# are dry, and NVLink multicast stays off. Raw results go to OUT.
# POWERCCL_NATIVE names built native files, else build/gpu/stage; `build` makes them there.
# CARRIED: a folder of Python packages that the machine lacks.
set -u
export POWERCCL_CLOCKS=dry NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1
out=$(mkdir -p "$out" && cd "$out" && pwd) || exit 2
export PYTHONPATH=$PWD/python:$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}:${CARRIED:-$PWD/build/carried}
export POWERCCL_NATIVE=${POWERCCL_NATIVE:-$PWD/build/gpu/stage}
export PATH=$PATH:$POWERCCL_NATIVE/bin
limit=${LIMIT:-86400} # seconds of all steps

# step NAME SECONDS COMMAND...: its output is OUT/NAME.log, of which the last $lines are shown. What no time is left for
# is left out.
step() {
  local name=$1 seconds=$2 left=$((limit - SECONDS)) code
  shift 2
  [ "$left" -gt 15 ] || { echo "== $name: no time left"; return 1; }
  echo "== $name at $SECONDS s"
  timeout -k 10 $((seconds < left ? seconds : left)) "$@" > "$out/$name.log" 2>&1
  code=$?
  tail -n "${lines:-3}" "$out/$name.log"
  [ $code = 0 ] || echo "== $name: exit $code"
  return $code
}

# build [CMAKE-OPTIONS]: the native files, unless POWERCCL_NATIVE names some that are there.
build() {
  [ "$POWERCCL_NATIVE" = "$PWD/build/gpu/stage" ] || [ ! -d "$POWERCCL_NATIVE" ] || return 0
  local more=("$@")
  [ -z "${CUDA_HOME:-}" ] || more+=("-DPOWERCCL_CUDA_INCLUDE=$CUDA_HOME/include")
  lines=1 step build 300 bash -c 'cmake -S . -B build/gpu -G Ninja -DPOWERCCL_EMULATOR=OFF "$@" && cmake --build build/gpu --parallel' build "${more[@]}"
}

run_of() { # NAME: the newest run folder of that name
  find "$out/runs" -maxdepth 1 -name "*-$1" | sort | tail -n 1
}
