// SPDX-License-Identifier: Apache-2.0
// Loading of libcuda and libnccl.
#include "bench/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>

#include "bench/cuda_api.h"
#include "bench/nccl_api.h"
#include "bench/values.h"

namespace powerccl::bench {

Library Library::open(const std::vector<std::string>& names, const std::string& hint, bool alone) {
  Library library;
  library.alone_ = alone;
  std::string reasons;
  for (const std::string& name : names) {
    library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    library.name_ = name;
    if (library.handle_ != nullptr) return library;
    const char* reason = dlerror();
    reasons += (reasons.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : name);
  }
  throw Failure(kExitMissing, "cannot load a library: " + reasons, hint);
}

bool Library::close() {
  dlclose(handle_);
  handle_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle_ == nullptr) return true;
  dlclose(handle_);
  return false;
}

Symbol Library::optional(const char* symbol) const {
  void* own = dlsym(handle_, symbol);
  void* first = own == nullptr || alone_ ? own : dlsym(RTLD_DEFAULT, symbol);
  return {first != nullptr ? first : own};
}

Symbol Library::required(const char* symbol) const {
  const Symbol entry = optional(symbol);
  if (entry.address != nullptr) return entry;
  throw Failure(kExitMissing, name_ + " has no " + symbol, "the library is older than powerccl-bench needs");
}

std::string Library::path(const char* symbol) const {
  Dl_info info{};
  void* function = dlsym(handle_, symbol);
  if (function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr) return info.dli_fname;
  return name_;
}

// ---- CUDA
namespace {

const char* const kNoGpuHint =
    "run on a machine with an NVIDIA GPU, or on an emulated one: powerccl run --emulate t4x8 -- powerccl-bench ...";

const char* const kNoNcclHint =
    "install NCCL (pip install nvidia-nccl-cu13), or name the file: --nccl /path/libnccl.so.2 or NCCL_LIBRARY=...";

std::string words_of(const CudaApi& cuda, CUresult result, const char* otherwise) {
  const char* text = nullptr;
  cuda.get_error_string(result, &text);
  return text != nullptr ? text : otherwise;
}

}  // namespace

Library CudaApi::open() {
  return Library::open({"libcuda.so.1"}, kNoGpuHint);
}

const CudaApi& CudaApi::instance() {
  static const CudaApi api = [] {
    CudaApi loaded;
    const CUresult result = loaded.init(0);
    if (result != CUDA_SUCCESS) {
      throw Failure(kExitMissing, "cuInit: " + words_of(loaded, result, "unknown error"), kNoGpuHint);
    }
    return loaded;
  }();
  return api;
}

void CudaApi::check(CUresult result, const char* doing) const {
  if (result == CUDA_SUCCESS) return;
  throw Failure(kExitRankFailed, std::string(doing) + ": " + words_of(*this, result, "CUDA error") + " (" +
                                     std::to_string(static_cast<int>(result)) + ")");
}

int count_devices() {
  return in_child(
      [] {
        int count = 0;
        const CudaApi& cuda = CudaApi::instance();
        try {
          cuda.check(cuda.device_get_count(&count), "cuDeviceGetCount");
        } catch (const Failure& failure) {
          throw Failure(kExitMissing, failure.what());  // no rank has failed yet
        }
        return count;
      },
      "the process that counts the GPUs died", "try nvidia-smi");
}

// ---- NCCL
std::vector<std::string> nccl_candidates(const std::string& explicit_path) {
  if (!explicit_path.empty()) return {explicit_path};
  if (const std::string chosen = environment("NCCL_LIBRARY"); !chosen.empty()) return {chosen};
  std::vector<std::string> names{"libnccl.so.2"};
  if (const std::string wheel = environment("POWERCCL_NCCL_LIBRARY"); !wheel.empty()) names.push_back(wheel);
  return names;
}

std::shared_ptr<const NcclApi> NcclApi::instance(const std::string& explicit_path) {
  static const auto api = std::make_shared<const NcclApi>(Library::open(nccl_candidates(explicit_path), kNoNcclHint));
  return api;
}

std::shared_ptr<NcclApi> NcclApi::own(const std::string& path) {
  return std::make_shared<NcclApi>(Library::open({path}, kNoNcclHint, true));
}

void NcclApi::check(int result, const char* doing, NcclComm comm) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  const char* last = get_last_error != nullptr ? get_last_error(comm) : nullptr;
  std::string text = std::string(doing) + ": " + get_error_string(result);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  throw NcclFailure(text);
}

std::string nccl_version_text(int version) {
  // Up to 2.8 the code was major * 1000 + minor * 100 + patch.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

NcclFile find_nccl(const std::string& explicit_path) {
  struct Answer {
    int version;
    char path[PATH_MAX];
  };
  const Answer answer = in_child(
      [&] {
        Answer file{};
        const auto nccl = NcclApi::instance(explicit_path);
        nccl->check(nccl->get_version(&file.version), "ncclGetVersion");
        if (realpath(nccl->path.c_str(), file.path) == nullptr) {
          throw Failure(kExitMissing, nccl->path + ": " + std::strerror(errno), "--nccl /path/libnccl.so.2");
        }
        return file;
      },
      "the process that looks for NCCL died", "--nccl FILE names another library");
  return {answer.path, answer.version};
}

const std::string& LibraryCopies::current() {
  if (!current_.empty()) return current_;
  const auto cannot = [&](const char* doing, int error) {
    return Failure(kExitMissing, "cannot copy " + path_ + " into memory: " + doing + ": " + std::strerror(error));
  };
  const int from = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (from < 0) throw cannot("open", errno);
  struct stat about{};
  const int copy = memfd_create("powerccl-nccl", MFD_CLOEXEC);
  bool good = copy >= 0 && fstat(from, &about) == 0;
  for (off_t done = 0; good && done < about.st_size;) {
    good = sendfile(copy, from, &done, static_cast<size_t>(about.st_size - done)) > 0;
  }
  const int error = errno;
  ::close(from);
  if (!good) {
    if (copy >= 0) ::close(copy);
    throw cannot("memfd", error);
  }
  // Never closed: another copy of the same name would be taken for this one while it is loaded.
  current_ = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(copy);
  return current_;
}

}  // namespace powerccl::bench
