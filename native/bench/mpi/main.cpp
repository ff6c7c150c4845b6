// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "bench/failure.h"
#include "bench/mpi/launcher.h"
#include "bench/mpi/mpi_api.h"
#include "bench/mpi/options.h"
#include "bench/mpi/report.h"
#include "bench/mpi/tests.h"
#include "bench/version.h"

namespace powerccl::bench::mpi {
namespace {

void complain(const Failure& failure) {
  if (*failure.what() == '\0') return;
  std::fprintf(stderr, "powerccl-bench-mpi: error: %s\n", failure.what());
  if (!failure.hint().empty()) std::fprintf(stderr, "hint: %s\n", failure.hint().c_str());
}

void run_test(const Options& options, const Mpi& mpi, Report& report) {
  switch (options.test) {
    case Test::kWait:
      return run_wait(options, mpi, report);
    case Test::kStencil:
      return run_stencil(options, mpi, report);
    case Test::kLatency:
    case Test::kBandwidth:
    case Test::kBothWays:
      return run_point_to_point(options, mpi, report);
    default:
      return run_collective(options, mpi, report);
  }
}

int run(int argc, char** argv) {
  const Launcher launcher = find_launcher([](const char* name) -> const char* { return std::getenv(name); }, true);
  Options options;
  try {
    options = parse_options(argc, argv);
  } catch (const Failure& failure) {
    if (launcher.rank == 0) complain(failure);
    return failure.code();
  }
  if (options.test == Test::kHelp || options.test == Test::kVersion) {
    if (launcher.rank == 0) std::printf("%s%s", options.test == Test::kHelp ? usage_text() : kVersion, "\n");
    return kExitOk;
  }
  const char* named = std::getenv("POWERCCL_BENCH_MPI_LIBRARY");
  if (options.library.empty() && named != nullptr) options.library = named;
  // Never destroyed: an MPI library does not survive what happens to it after main.
  Mpi* mpi = nullptr;
  try {
    mpi = new Mpi(launcher, options.library, &argc, &argv);
  } catch (const Failure& failure) {
    if (launcher.rank == 0) complain(failure);
    return failure.code();
  }
  Report report(options, *mpi);
  int code = kExitOk;
  try {
    run_test(options, *mpi, report);
    report.write("");
    code = report.wrong() ? kExitWrongElements : kExitOk;
  } catch (const Failure& failure) {
    // All ranks find the same fault before they communicate, except for a file that rank 0 cannot write.
    if (mpi->leads()) complain(failure);
    code = failure.code();
  }
  mpi->call().finalize();
  return code;
}

}  // namespace
}  // namespace powerccl::bench::mpi

int main(int argc, char** argv) {
  try {
    return powerccl::bench::mpi::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "powerccl-bench-mpi: error: %s\n", error.what());
    return powerccl::bench::kExitRankFailed;
  }
}
