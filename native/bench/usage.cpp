// SPDX-License-Identifier: Apache-2.0
#include "bench/options.h"

namespace powerccl::bench {

const char* usage_text() {
  return R"(powerccl-bench: measure time, bandwidth, clock and energy of collectives

usage: powerccl-bench PATTERN... [options]     sweep sizes, as NCCL tests do
       powerccl-bench train [options]          replay a training step
       powerccl-bench scenario FILE [options]  replay the job in FILE
       powerccl-bench serve [options]          measure what stdin requests

PATTERN: all, or any of all_reduce broadcast reduce all_gather reduce_scatter
         send_receive scatter gather all_to_all
Defaults are in parentheses.

sweep
  -b, --minbytes SIZE     first size (128K)
  -e, --maxbytes SIZE     last size (64M)
  -f, --stepfactor N      factor from one size to the next (2)
  -i, --stepbytes SIZE    difference from one size to the next, instead of -f
  -n, --iters N           least number of operations timed together (20)
  -w, --warmup_iters N    operations before them (1)
  -c, --check N           operations whose results are checked (1); 0: none
  -d, --datatype TYPE     float32 (or float), float16 (or half), bfloat16,
                          float64 (or double), int32, int64, or all
  -o, --op OP             sum, prod, max, min, avg, or all
  -r, --root RANK         root of rooted collectives (0), or all
  -z, --blocking          after each operation, wait for it and for all ranks
  -R, --local_register N  0: ordinary buffers (0); 2: buffers in symmetric
                          windows, for symmetric kernels and copy engines
      --way LIST          how NCCL carries collectives out: plain, symmetric,
                          copy-engine, efficiency, or all. Buffers and
                          communicator are made for each
      --beside LIST       also measure beside computation in another stream:
                          matmul, memory, both, or all. Tells how much either
                          slows the other (matmul on real GPUs needs cuBLAS)
      --products TxWxH    matmul's shape: T tokens, from W wide to H and back in
                          turn, as a layer's perceptron (4096x4096x4096)
  -G, --graph N           capture operations in a CUDA graph, launch it N times
  -I, --events            also time each operation between two CUDA events
      --in-place          also measure the in-place form
      --grouped           build all_to_all, gather and scatter from sends and
                          receives, even if NCCL has the call
      --clocks LIST       repeat at these SM clocks in MHz: 1590,900 or
                          1590:300:15 or default. Real GPUs need --set-clocks;
                          POWERCCL_CLOCKS=dry forbids it
      --clock-socket FD   let another process set the clocks, as
                          `powerccl profile` does (native/bench/README.md)
      --settle SECONDS    unmeasured time after each clock change (0.1)
      --json-lines FILE   write each point to FILE when it is measured
      --resume            continue the FILE of --json-lines
      --skip FILE         skip the points that a --json-lines FILE holds

train
      --model NAME        microllama, opt, gpt2 or distilgpt2 (microllama)
      --iterations N      measured steps (5), after -w unmeasured ones (2)
      --forward-ms X      time of the forward pass, instead of the model's
      --backward-ms X     time of the backward pass, instead of the model's
      --buckets LIST      sizes of gradient buckets, such as 62.5M,581M,62.5M
      --dtype TYPE        type of the gradients, instead of the model's
      --clock MHZ         SM clock of the whole run
      --overlap WHAT      none: communicate after the backward pass; backward:
                          communicate each bucket when its part of the pass is
                          done

scenario (bench/scenarios/*.scn; native/bench/README.md has the language)
      --iterations N      measured iterations (the file's), after -w others (2)
      --seconds S         as many iterations as take about S seconds, instead
      --compute WHAT      what its computation consists of: fma (multiply-adds),
                          matmul (on real GPUs needs cuBLAS), memory, both (fma)
      --products TxWxH    matmul's shape, as in a sweep
      --clock MHZ         SM clock of the whole run

serve (native/bench/README.md has requests and replies)
      --trials-per-process N  trials after which the server ends (32)
  -n, -w, -c (0), -d, -o, -z  defaults for its requests

all
  -g, --gpus N            number of ranks, one per GPU (all GPUs)
      --threads           run ranks as threads of one process (a process
                          each). Under torchrun, mpirun or srun, each of their
                          processes is one rank
      --rendezvous DIR    where their processes find each other (/dev/shm)
      --json FILE         write all results as one object
                          (native/bench/README.md)
      --min-time SECONDS  least time of a measurement, for the energy counter
                          (1; emulated 0.25)
      --no-energy         do not use NVML, and measure no energy
      --sample-ms N       time between NVML samples (10; emulated 2)
      --set-clocks        allow --clocks to change this machine's GPU clocks
  -T, --timeout SECONDS   longest time of a point (300); 0: no limit
      --nccl FILE         libnccl to load (NCCL_LIBRARY, libnccl.so.2 or
                          POWERCCL_NCCL_LIBRARY)

exit codes: 0 success; 1 wrong elements; 2 wrong usage; 3 something is missing,
            or results are invalid; 4 a rank failed; 5 timeout; 128+N signal N
)";
}

}  // namespace powerccl::bench
