// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/launcher.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace powerccl::bench::mpi {
namespace {

constexpr int kMostAncestors = 6;  // mpiexec's daemon, perhaps a shell, a profiler or `powerccl run` between

int number(const Lookup& lookup, const char* name, int otherwise) {
  const char* text = lookup(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return *end == '\0' && value >= 0 && value < 1 << 24 ? static_cast<int>(value) : otherwise;
}

int parent_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > text.size()) return 0;
  return static_cast<int>(std::strtol(text.c_str() + name_end + 4, nullptr, 10));
}

// A launcher in PREFIX/bin has its library in PREFIX/lib.
void add_ancestors(std::vector<std::string>& folders) {
  int pid = getppid();
  for (int i = 0; i < kMostAncestors && pid > 1; ++i, pid = parent_of(pid)) {
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
    if (error) continue;
    const std::string name = program.filename().string();
    const bool launches = name.starts_with("hydra_") || name.starts_with("prte") || name.starts_with("orte") ||
                          name.starts_with("mpiexec") || name.starts_with("mpirun");
    if (launches) folders.push_back((program.parent_path().parent_path() / "lib").string());
  }
}

}  // namespace

const char* Launcher::name() const {
  switch (kind) {
    case LauncherKind::kOpenMpi:
      return "Open MPI's launcher";
    case LauncherKind::kPmi:
      return "MPICH's or Intel MPI's launcher (PMI)";
    case LauncherKind::kPmix:
      return "a PMIx launcher";
    case LauncherKind::kNone:
      break;
  }
  return "no launcher";
}

Launcher find_launcher(const Lookup& lookup, bool with_ancestors) {
  Launcher launcher;
  // Open MPI's mpiexec sets PMIX_* too, and a batch system's variables survive into any launcher's job: the narrowest
  // mark comes first.
  if (lookup("OMPI_COMM_WORLD_SIZE") != nullptr) {
    launcher.kind = LauncherKind::kOpenMpi;
    launcher.ranks = number(lookup, "OMPI_COMM_WORLD_SIZE", 1);
    launcher.rank = number(lookup, "OMPI_COMM_WORLD_RANK", 0);
  } else if (lookup("PMI_SIZE") != nullptr || lookup("PMI_FD") != nullptr) {
    launcher.kind = LauncherKind::kPmi;
    launcher.ranks = number(lookup, "PMI_SIZE", 1);
    launcher.rank = number(lookup, "PMI_RANK", 0);
  } else if (lookup("PMIX_RANK") != nullptr) {
    launcher.kind = LauncherKind::kPmix;
    launcher.ranks = number(lookup, "SLURM_STEP_NUM_TASKS", 1);
    launcher.rank = number(lookup, "PMIX_RANK", 0);
  }
  if (launcher.kind == LauncherKind::kNone) return launcher;
  const char* prefix = lookup("OPAL_PREFIX");
  if (launcher.kind == LauncherKind::kOpenMpi && prefix != nullptr) {
    launcher.folders.push_back(std::string(prefix) + "/lib");
  }
  if (with_ancestors) add_ancestors(launcher.folders);
  return launcher;
}

std::vector<std::string> library_candidates(const Launcher& launcher, const std::string& named) {
  if (!named.empty()) return {named};
  const std::vector<std::string> open_mpi{"libmpi.so.40"};
  const std::vector<std::string> mpich{"libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"};
  const bool open_first = launcher.kind == LauncherKind::kOpenMpi || launcher.kind == LauncherKind::kPmix;
  const auto& first = open_first ? open_mpi : mpich;
  const auto& second = open_first ? mpich : open_mpi;
  std::vector<std::string> candidates;
  for (const std::string& folder : launcher.folders) {
    for (const std::string& name : first) {
      const auto path = std::filesystem::path(folder) / name;
      if (access(path.c_str(), R_OK) == 0) candidates.push_back(path.string());
    }
  }
  candidates.insert(candidates.end(), first.begin(), first.end());
  candidates.insert(candidates.end(), second.begin(), second.end());
  return candidates;
}

std::string size_mismatch(const Launcher& launcher, int size, const std::string& library) {
  if (launcher.ranks <= 1 || size == launcher.ranks) return {};
  return std::string(launcher.name()) + " started " + std::to_string(launcher.ranks) + " processes, but to " + library +
         " each of them is one of " + std::to_string(size);
}

}  // namespace powerccl::bench::mpi
