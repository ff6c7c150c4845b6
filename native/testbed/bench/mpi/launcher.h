// SPDX-License-Identifier: Apache-2.0
// What started this process, by its environment and its ancestors. It decides before MPI_Init which library to load,
// and shows afterwards whether that was the launcher's.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace powerccl::bench::mpi {

enum class LauncherKind { kNone, kOpenMpi, kPmi, kPmix };

struct Launcher {
  LauncherKind kind = LauncherKind::kNone;
  int ranks = 1, rank = 0;           // as announced; 1 and 0 without a launcher
  std::vector<std::string> folders;  // where its library may be beside it
  const char* name() const;
};

using Lookup = std::function<const char*(const char*)>;

// `lookup` is getenv, or a test's. Folders are looked for only where `with_ancestors`.
Launcher find_launcher(const Lookup& lookup, bool with_ancestors);

// What to hand to dlopen in turn: `named` alone if it is not empty. Else the launcher's own library from its folders,
// then the loader's under the launcher's names, then all others.
std::vector<std::string> library_candidates(const Launcher& launcher, const std::string& named);

// Empty, or what is wrong when the library counts `size` ranks but the launcher announced others.
std::string size_mismatch(const Launcher& launcher, int size, const std::string& library);

}  // namespace powerccl::bench::mpi
