// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/mpi_api.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/values.h"

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

namespace {

void* address(intptr_t value) {
  return reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr): never looked behind
}

constexpr const char* kHow =
    "install one (`pip install mpich` will do), load its module, or name its libmpi.so with --library";

constexpr const char* kMatching =
    "use the mpiexec that came with this library, or name the launcher's library with --library";

std::string file_of(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  const bool known = dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr;
  return known && map->l_name != nullptr && *map->l_name != '\0' ? map->l_name : otherwise;
}

int abi_major(void* handle) {
  const auto abi_version = reinterpret_cast<int (*)(int*, int*)>(dlsym(handle, "MPI_Abi_get_version"));
  int major = -1;
  int minor = -1;
  if (abi_version == nullptr || abi_version(&major, &minor) != 0) return -1;
  return major;
}

// "MPICH Version:      5.0.2\n..." and "Open MPI v5.0.11, package: ..." without what follows, and blanks as one.
std::string short_version(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, text.find_first_of("\n,"))) {
    const bool blank = c == ' ' || c == '\t';
    if (!blank || (!out.empty() && out.back() != ' ')) out += blank ? ' ' : c;
  }
  return out;
}

// MPICH's library ends the process when it meets a launcher that it does not understand, before anybody can say why.
void warn_of_strangers(const Launcher& launcher, AbiKind kind, const std::string& library) {
  if (launcher.kind != LauncherKind::kOpenMpi || kind != AbiKind::kMpich || launcher.rank != 0) return;
  std::fprintf(stderr,
               "powerccl-bench-mpi: note: %s is not the library of %s\n"
               "hint: should it fail now, %s\n",
               library.c_str(), launcher.name(), kMatching);
}

// Loads the launcher's library, finds out its ABI, and returns its path.
std::string load(const Launcher& launcher, const std::string& named, Abi& abi) {
  void* handle = nullptr;
  std::string path, reasons;
  for (const std::string& candidate : library_candidates(launcher, named)) {
    handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle != nullptr) {
      path = file_of(handle, candidate);
      break;
    }
    const char* reason = dlerror();
    reasons += (reasons.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : candidate);
  }
  if (handle == nullptr) throw Failure(kExitMissing, "cannot load an MPI library: " + reasons, kHow);
  if (dlsym(handle, "MPI_Init") == nullptr) {
    throw Failure(kExitMissing, path + " is no MPI library: it has no MPI_Init", "name a libmpi.so with --library");
  }
  abi = abi_of(abi_of_library(dlsym(handle, "ompi_mpi_comm_world") != nullptr, abi_major(handle)));
  for (const HandleSymbol& each : kOpenMpiSymbols) {
    if (abi.kind != AbiKind::kOpenMpi) break;
    abi.handles.*each.handle = reinterpret_cast<Handle>(dlsym(RTLD_DEFAULT, each.symbol));
    if (abi.handles.*each.handle == 0) throw Failure(kExitMissing, path + " has no " + each.symbol, kHow);
  }
  warn_of_strangers(launcher, abi.kind, path);
  return path;
}

}  // namespace

const Abi& abi_of(AbiKind kind) {
  // MPICH, Intel MPI, MVAPICH: the ABI they have shared since 2014 (libmpi.so.12). Handles are ints with a kind, a size
  // and an index in them.
  static const Abi kMpich{.kind = AbiKind::kMpich,
                          .name = "mpich",
                          .handle_bytes = sizeof(int),
                          .handles = {.world = 0x44000000,
                                      .byte = 0x4c00010d,
                                      .float32 = 0x4c00040a,
                                      .float64 = 0x4c00080b,
                                      .sum = 0x58000003},
                          .ignore_status = address(1),
                          .no_process = -1};
  static const Abi kOpenMpi{.kind = AbiKind::kOpenMpi,
                            .name = "open mpi",
                            .handle_bytes = sizeof(void*),
                            .handles = {},
                            .ignore_status = address(0),
                            .no_process = -2};
  // MPI 5.0, chapter 20: Huffman-coded constants, all below a page.
  static const Abi kStandard{
      .kind = AbiKind::kStandard,
      .name = "mpi standard",
      .handle_bytes = sizeof(void*),
      .handles = {.world = 0x101, .byte = 0x247, .float32 = 0x210, .float64 = 0x214, .sum = 0x21},
      .ignore_status = address(0),
      .no_process = -3};
  switch (kind) {
    case AbiKind::kMpich:
      return kMpich;
    case AbiKind::kOpenMpi:
      return kOpenMpi;
    case AbiKind::kStandard:
      break;
  }
  return kStandard;
}

AbiKind abi_of_library(bool has_openmpi_objects, int abi_major) {
  // In this order: a library of the standard ABI made from Open MPI may well keep its old objects.
  if (abi_major >= 1) return AbiKind::kStandard;
  return has_openmpi_objects ? AbiKind::kOpenMpi : AbiKind::kMpich;
}

Symbol Functions::find(const char* symbol) const {
  const Symbol entry{dlsym(RTLD_DEFAULT, symbol)};
  if (entry.address != nullptr) return entry;
  throw Failure(kExitMissing, library + " has no " + symbol, "name an MPI library with --library");
}

Mpi::Mpi(const Launcher& launcher, const std::string& named, int* argc, char*** argv)
    : functions_(load(launcher, named, abi_)) {
  functions_.init(argc, argv);
  functions_.comm_rank(handle().world, &rank_);
  functions_.comm_size(handle().world, &size_);
  std::vector<char> text(8193);  // the longest of the three ABIs' MPI_MAX_LIBRARY_VERSION_STRING
  int length = 0;
  functions_.library_version(text.data(), &length);
  version_ = short_version(text.data());
  const std::string wrong = size_mismatch(launcher, size_, path());
  if (!wrong.empty()) {
    functions_.finalize();
    // One of n processes that each believe to be rank 0 speaks.
    throw Failure(kExitMissing, launcher.rank == 0 ? wrong : "", kMatching);
  }
}

std::vector<double> Mpi::gather(double value) const {
  std::vector<double> values(leads() ? size_ : 0);
  functions_.gather(&value, 1, handle().float64, values.data(), 1, handle().float64, 0, handle().world);
  return values;
}

double Mpi::sum(double value) const {
  double total = 0;
  functions_.allreduce(&value, &total, 1, handle().float64, handle().sum, handle().world);
  return total;
}

}  // namespace powerccl::bench::mpi
