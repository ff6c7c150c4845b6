// SPDX-License-Identifier: Apache-2.0
// A shared library loaded at run time. Handles are closed only where that is asked for: drivers do not survive it.
#ifndef POWERCCL_BENCH_LIBRARY_H
#define POWERCCL_BENCH_LIBRARY_H
#include <dlfcn.h>

#include <string>
#include <vector>

#include "bench/failure.h"

namespace powerccl::bench {

class Library {
 public:
  // Tries each name in turn. `hint` says how to get the library when none loads (Failure kExitMissing).
  template <typename Names>
  static Library open(const Names& names, const std::string& hint) {
    Library library;
    std::string reasons;
    for (const std::string& name : names) {
      library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library.handle_ != nullptr) {
        library.name_ = name;
        return library;
      }
      const char* reason = dlerror();
      reasons += reasons.empty() ? "" : "; ";
      reasons += reason != nullptr ? reason : name;
    }
    throw Failure(kExitMissing, "cannot load a library: " + reasons, hint);
  }

  // The library at `path` and its own symbols, whatever was loaded before it. Failure kExitMissing as above.
  static Library open_alone(const std::string& path, const std::string& hint) {
    Library library = open(std::vector<std::string>{path}, hint);
    library.alone_ = true;
    return library;
  }

  void* handle() const { return handle_; }
  // True if the library has left the process; some never do, and nobody may call it any more either way.
  bool close() {
    dlclose(handle_);
    handle_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle_ == nullptr) return true;
    dlclose(handle_);
    return false;
  }

  template <typename Function>
  void required(Function& function, const char* symbol) const {
    if (!optional(function, symbol)) {
      throw Failure(kExitMissing, name_ + " has no " + symbol, "the library is older than powerccl-bench needs");
    }
  }

  template <typename Function>
  bool optional(Function& function, const char* symbol) const {
    void* its = dlsym(handle_, symbol);
    function = reinterpret_cast<Function>(its != nullptr && !alone_ ? as_linked(its, symbol) : its);
    return function != nullptr;
  }

  // The file that this library was loaded from; its name where that cannot be told. `symbol`: one of its own.
  std::string path(const char* symbol) const { return path_of(dlsym(handle_, symbol)); }

 private:
  // A preloaded library may stand before this one, as it would for a program that is linked with it.
  static void* as_linked(void* its, const char* symbol) {
    void* first = dlsym(RTLD_DEFAULT, symbol);
    return first != nullptr ? first : its;
  }
  std::string path_of(void* function) const {
    Dl_info info{};
    if (function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr) return info.dli_fname;
    return name_;
  }

  void* handle_ = nullptr;
  bool alone_ = false;
  std::string name_;
};

}  // namespace powerccl::bench
#endif
