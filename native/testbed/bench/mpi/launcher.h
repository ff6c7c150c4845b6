// SPDX-License-Identifier: Apache-2.0
// What started this process, as far as its environment and its ancestors tell: before MPI_Init, so that the library of
// that launcher can be chosen, and afterwards, to notice that it was another one's.
#ifndef POWERCCL_BENCH_MPI_LAUNCHER_H
#define POWERCCL_BENCH_MPI_LAUNCHER_H
#include <functional>
#include <string>
#include <vector>

namespace powerccl::bench::mpi {

enum class LauncherKind { kNone, kOpenMpi, kPmi, kPmix };

struct Launcher {
  LauncherKind kind = LauncherKind::kNone;
  int ranks = 1, rank = 0;           // as announced; 1 and 0 without a launcher
  std::vector<std::string> folders;  // where its library may lie beside it
  const char* name() const;
};

using Lookup = std::function<const char*(const char*)>;

// `lookup` is getenv, or a test's. Folders are looked for only where `with_ancestors`.
Launcher find_launcher(const Lookup& lookup, bool with_ancestors);

// What to hand to dlopen in turn: `named` alone if it is not empty, else the launcher's own library from its folders,
// then what the loader finds under the names that go with the launcher, then all others.
std::vector<std::string> library_candidates(const Launcher& launcher, const std::string& named);

// Empty, or what is wrong when the library counts `size` ranks but the launcher announced others.
std::string size_mismatch(const Launcher& launcher, int size, const std::string& library);

}  // namespace powerccl::bench::mpi
#endif
