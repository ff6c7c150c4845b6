// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/mpi_api.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>

#include "bench/failure.h"

namespace powerccl::bench::mpi {
namespace {

constexpr const char* kHow =
    "install one (`pip install mpich` will do), load its module, or name its libmpi.so with --library";

constexpr const char* kMatching =
    "use the mpiexec that came with this library, or name the launcher's library with --library";

template <typename Function>
void find(Function& function, const char* symbol, const std::string& library) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, symbol));
  if (function == nullptr) {
    throw Failure(kExitMissing, library + " has no " + symbol, "name an MPI library with --library");
  }
}

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

}  // namespace

void Mpi::load(const Launcher& launcher, const std::string& named) {
  void* handle = nullptr;
  std::string reasons;
  for (const std::string& candidate : library_candidates(launcher, named)) {
    handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle != nullptr) {
      path_ = file_of(handle, candidate);
      break;
    }
    const char* reason = dlerror();
    reasons += (reasons.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : candidate);
  }
  if (handle == nullptr) throw Failure(kExitMissing, "cannot load an MPI library: " + reasons, kHow);
  if (dlsym(handle, "MPI_Init") == nullptr) {
    throw Failure(kExitMissing, path_ + " is no MPI library: it has no MPI_Init", "name a libmpi.so with --library");
  }
  abi_ = abi_of(abi_of_library(dlsym(handle, "ompi_mpi_comm_world") != nullptr, abi_major(handle)));
  if (abi_.kind == AbiKind::kOpenMpi) {
    for (const HandleSymbol& each : kOpenMpiSymbols) {
      abi_.handles.*each.handle = reinterpret_cast<Handle>(dlsym(RTLD_DEFAULT, each.symbol));
      if (abi_.handles.*each.handle == 0) throw Failure(kExitMissing, path_ + " has no " + each.symbol, kHow);
    }
  }
  Functions& f = functions_;
  find(f.init, "MPI_Init", path_);
  find(f.finalize, "MPI_Finalize", path_);
  find(f.abort, "MPI_Abort", path_);
  find(f.comm_rank, "MPI_Comm_rank", path_);
  find(f.comm_size, "MPI_Comm_size", path_);
  find(f.library_version, "MPI_Get_library_version", path_);
  find(f.send, "MPI_Send", path_);
  find(f.recv, "MPI_Recv", path_);
  find(f.isend, "MPI_Isend", path_);
  find(f.irecv, "MPI_Irecv", path_);
  find(f.waitall, "MPI_Waitall", path_);
  find(f.sendrecv, "MPI_Sendrecv", path_);
  find(f.barrier, "MPI_Barrier", path_);
  find(f.bcast, "MPI_Bcast", path_);
  find(f.reduce, "MPI_Reduce", path_);
  find(f.allreduce, "MPI_Allreduce", path_);
  find(f.allgather, "MPI_Allgather", path_);
  find(f.reduce_scatter, "MPI_Reduce_scatter", path_);
  find(f.alltoall, "MPI_Alltoall", path_);
  find(f.gather, "MPI_Gather", path_);
  find(f.scatter, "MPI_Scatter", path_);
}

Mpi::Mpi(const Launcher& launcher, const std::string& named, int* argc, char*** argv) {
  load(launcher, named);
  warn_of_strangers(launcher, abi_.kind, path_);
  functions_.init(argc, argv);
  functions_.comm_rank(handle().world, &rank_);
  functions_.comm_size(handle().world, &size_);
  std::vector<char> text(8193);  // the longest of the three ABIs' MPI_MAX_LIBRARY_VERSION_STRING
  int length = 0;
  functions_.library_version(text.data(), &length);
  version_ = short_version(text.data());
  const std::string wrong = size_mismatch(launcher, size_, path_);
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
