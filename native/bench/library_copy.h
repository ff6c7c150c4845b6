// SPDX-License-Identifier: Apache-2.0
// Copies of the NCCL library in memory. The loader knows a library by its file, so a copy is another library, whose
// statics nobody has touched; processes that load the same copy share its pages.
#ifndef POWERCCL_BENCH_LIBRARY_COPY_H
#define POWERCCL_BENCH_LIBRARY_COPY_H
#include <string>

namespace powerccl::bench {

struct NcclFile {
  std::string path;
  int version;
};
// The library that a rank would load, found out in a child process. Failure(kExitMissing) where there is none.
NcclFile find_nccl(const std::string& explicit_path);

class LibraryCopies {
 public:
  explicit LibraryCopies(std::string path) : path_(std::move(path)) {}
  LibraryCopies(const LibraryCopies&) = delete;
  LibraryCopies& operator=(const LibraryCopies&) = delete;

  // A copy that is loaded nowhere, as a file that this process's children can open. Failure(kExitMissing).
  const std::string& current();
  // The current copy stays loaded somewhere: the next is another one.
  void spend() { current_.clear(); }

 private:
  std::string path_, current_;
};

}  // namespace powerccl::bench
#endif
