// SPDX-License-Identifier: Apache-2.0
#include "bench/library_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "bench/failure.h"
#include "bench/in_child.h"
#include "bench/nccl_api.h"

namespace powerccl::bench {
NcclFile find_nccl(const std::string& explicit_path) {
  struct Answer {
    int version;
    char path[PATH_MAX];
  };
  const Answer answer = in_child(
      [&] {
        Answer found{};
        const auto nccl = NcclApi::instance(explicit_path);
        nccl->check(nccl->get_version(&found.version), "ncclGetVersion");
        if (realpath(nccl->path.c_str(), found.path) == nullptr) {
          throw Failure(kExitMissing, nccl->path + ": " + std::strerror(errno), "--nccl /path/libnccl.so.2");
        }
        return found;
      },
      "the process that looks for NCCL died", "--nccl FILE names another library");
  return {answer.path, answer.version};
}

const std::string& LibraryCopies::current() {
  if (!current_.empty()) return current_;
  const auto cannot = [&](const char* doing, int error) {
    return Failure(kExitMissing, "cannot copy " + path_ + " into memory: " + doing + ": " + std::strerror(error));
  };
  const int from = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (from < 0) throw cannot("open", errno);
  struct stat about{};
  const int copy = memfd_create("powerccl-nccl", MFD_CLOEXEC);
  bool good = copy >= 0 && fstat(from, &about) == 0;
  for (off_t done = 0; good && done < about.st_size;) {
    good = sendfile(copy, from, &done, static_cast<size_t>(about.st_size - done)) > 0;
  }
  const int error = errno;
  close(from);
  if (!good) {
    if (copy >= 0) close(copy);
    throw cannot("memfd", error);
  }
  // Never closed: another copy of the same name would be taken for this one while it is loaded.
  current_ = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(copy);
  return current_;
}

}  // namespace powerccl::bench
