// SPDX-License-Identifier: Apache-2.0
#include "bench/options.h"

namespace powerccl::bench {

const char* usage_text() {
  return R"(powerccl-bench: time, bandwidth, clock and energy of collectives, and of a training step made of them

usage: powerccl-bench PATTERN... [options]     a sweep over sizes, as NCCL tests make it
       powerccl-bench train [options]          a data-parallel training step, replayed
       powerccl-bench scenario FILE [options]  iterations of any training job that FILE describes, replayed
       powerccl-bench serve [options]          trials of NCCL's variables, one after another, as requests on stdin ask

PATTERN: all, or any of all_reduce broadcast reduce all_gather reduce_scatter send_receive scatter gather all_to_all

sweep
  -b, --minbytes SIZE     first size (128K)           -e, --maxbytes SIZE   last size (64M)
  -f, --stepfactor N      next size is N times (2)    -i, --stepbytes SIZE  next size is so much more
  -n, --iters N           operations timed together, at least (20)
  -w, --warmup_iters N    operations before that (1)
  -c, --check N           check the results of N operations against a reference (1); 0: none
  -d, --datatype TYPE     float32 (float) float16 (half) bfloat16 float64 (double) int32 int64, or all
  -o, --op OP             sum prod max min avg, or all
  -r, --root RANK         root of broadcast, reduce, scatter, gather (0), or all
  -z, --blocking          wait for each operation, and for all ranks, before the next
  -G, --graph N           capture the operations in a CUDA graph and launch it N times
  -I, --events            also time each operation between two CUDA events
      --in-place          measure the in-place form too
      --grouped           make all_to_all, gather and scatter of sends and receives even where NCCL has the call
      --clocks LIST       repeat at these SM clocks in MHz: 1590,900 or 1590:300:15 or default. Changing a real
                          GPU's clock needs --set-clocks; POWERCCL_CLOCKS=dry forbids it
      --clock-socket FD   another process sets them (native/bench/README.md); for `powerccl profile`
      --settle SECONDS    run so long unmeasured after each change of clock (0.1)
      --json-lines FILE   write each point when it is measured; --resume: continue FILE
      --skip FILE         leave out the points such a file holds

train
      --model NAME        microllama opt gpt2 distilgpt2 (microllama)
      --iterations N      steps measured (5), after -w unmeasured ones (2)
      --forward-ms X  --backward-ms X  --buckets 62.5M,581M,62.5M  --dtype TYPE    in place of the model's own
      --clock MHZ             the whole run at this clock
      --overlap WHAT      none: synchronise after backward; backward: each bucket as soon as its part is done

scenario (bench/scenarios/*.scn; native/bench/README.md has the language)
      --iterations N      iterations measured (the file's), after -w unmeasured ones (2); --clock MHZ as above

serve (native/bench/README.md has requests and replies)
      --trials-per-process N  end after so many trials (32); -n, -w, -c (0), -d, -o, -z are defaults of its requests

all
  -g, --gpus N            ranks, one a GPU (all there are)
      --threads           ranks are threads of one process (default: a process each). Under torchrun, mpirun or srun
                          each process of theirs is one rank
      --rendezvous DIR    where the processes of such a launcher find each other (/dev/shm)
      --json FILE         all results as one object (native/bench/README.md says what is in it)
      --min-time SECONDS  keep going so long for the sake of the energy counter (1; emulated 0.25)
      --no-energy         no NVML, no energy      --sample-ms N  pause between NVML samples (10; emulated 2)
      --set-clocks        consent to changing this machine's GPU clocks for --clocks
  -T, --timeout SECONDS   give up on a point that takes longer (300); 0: never
      --nccl FILE         the libnccl to load (else NCCL_LIBRARY, libnccl.so.2, POWERCCL_NCCL_LIBRARY)

exit codes: 0 fine, 1 wrong elements, 2 wrong use, 3 something is missing or results are invalid, 4 a rank failed, 5 timeout, 128+n signal n
)";
}

}  // namespace powerccl::bench
