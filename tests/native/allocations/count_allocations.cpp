// SPDX-License-Identifier: Apache-2.0
// Preloaded: writes down each allocation that a library of PowerCCL's is responsible for, into a file per process in
// the folder COUNT_ALLOCATIONS. Responsible is the first caller that is no part of the C and C++ run-time libraries, so
// that what fopen() allocates counts as its caller's, and what the driver or the job allocates does not count as ours.
//
// Lines: `<CLOCK_MONOTONIC ns> <function> <bytes> <library>+0x<offset>`, and now and then, as proof that the counter
// still counts, `<ns> others <how many so far> -`.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>

// The allocator itself, under the names that glibc exports beside the interposed ones.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

enum class Whose : int { kUnknown, kRunTime, kOurs, kOther };

struct Library {
  std::atomic<int> whose{0};  // stored last
  uintptr_t begin = 0, end = 0;
  char name[40] = "";
};

constexpr int kLibraries = 512, kFrames = 48;
constexpr uint64_t kProofEveryNs = 50000000;
Library g_libraries[kLibraries];
std::atomic<int> g_library_count{0};
std::atomic<uint64_t> g_others{0}, g_proved_ns{0};
std::atomic<int> g_file{-1}, g_file_of{0};

// Counting may allocate; static TLS, since dynamic TLS allocates as well.
__attribute__((tls_model("initial-exec"))) thread_local bool t_counting = false;

class Counting {
 public:
  Counting() : outermost_(!t_counting) { t_counting = true; }
  ~Counting() {
    if (outermost_) t_counting = false;
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  bool outermost() const { return outermost_; }

 private:
  bool outermost_;
};

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

Whose whose(const char* name) {
  if (strncmp(name, "libpowerccl", 11) == 0) return Whose::kOurs;
  for (const char* each : {"libc.so", "libc-", "libstdc++", "libm.so", "libgcc_s", "libpthread", "libdl", "librt",
                           "ld-linux", "ld-", "count-allocations"}) {
    if (strncmp(name, each, strlen(each)) == 0) return Whose::kRunTime;
  }
  return Whose::kOther;
}

struct Search {
  uintptr_t address;
  Library* found;
};

int add_library(dl_phdr_info* info, size_t, void* data) {
  Search* search = static_cast<Search*>(data);
  uintptr_t begin = UINTPTR_MAX, end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const uintptr_t at = info->dlpi_addr + part.p_vaddr;
    if (at < begin) begin = at;
    if (at + part.p_memsz > end) end = at + part.p_memsz;
  }
  if (search->address < begin || search->address >= end) return 0;
  const int place = g_library_count.fetch_add(1);
  if (place >= kLibraries) return 1;
  Library& library = g_libraries[place];
  const char* slash = strrchr(info->dlpi_name, '/');
  snprintf(library.name, sizeof(library.name), "%s", slash != nullptr ? slash + 1 : info->dlpi_name);
  library.begin = begin;
  library.end = end;
  library.whose.store(static_cast<int>(whose(library.name)), std::memory_order_release);
  search->found = &library;
  return 1;
}

const Library* library_of(uintptr_t address) {
  const int count = g_library_count.load();
  for (int i = 0; i < count && i < kLibraries; ++i) {
    const Library& library = g_libraries[i];
    if (library.whose.load(std::memory_order_acquire) == 0) continue;
    if (address >= library.begin && address < library.end) return &library;
  }
  Search search = {address, nullptr};
  dl_iterate_phdr(add_library, &search);
  return search.found;
}

struct Walk {
  int frames = 0;
  uintptr_t address = 0;
  const Library* library = nullptr;
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* data) {
  Walk* walk = static_cast<Walk*>(data);
  const uintptr_t address = _Unwind_GetIP(context);
  if (address == 0 || ++walk->frames > kFrames) return _URC_END_OF_STACK;
  const Library* library = library_of(address - 1);
  if (library == nullptr) return _URC_END_OF_STACK;
  if (library->whose.load(std::memory_order_acquire) == static_cast<int>(Whose::kRunTime)) return _URC_NO_REASON;
  walk->address = address - 1;
  walk->library = library;
  return _URC_END_OF_STACK;
}

void write_line(const char* text, int length) {
  const char* folder = getenv("COUNT_ALLOCATIONS");
  if (folder == nullptr || length <= 0) return;
  const int process = getpid();
  if (g_file_of.load() != process) {  // the first line, or the first after a fork
    char path[4096];
    snprintf(path, sizeof(path), "%s/%d", folder, process);
    g_file.store(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    g_file_of.store(process);
  }
  [[maybe_unused]] const ssize_t written = write(g_file.load(), text, static_cast<size_t>(length));
}

void count(const char* function, size_t bytes) {
  const Counting counting;
  if (!counting.outermost()) return;
  Walk walk;
  _Unwind_Backtrace(step, &walk);
  const uint64_t now = now_ns();
  char line[160];
  if (walk.library != nullptr && walk.library->whose.load() == static_cast<int>(Whose::kOurs)) {
    const int length =
        snprintf(line, sizeof(line), "%llu %s %zu %s+0x%zx\n", static_cast<unsigned long long>(now), function, bytes,
                 walk.library->name, static_cast<size_t>(walk.address - walk.library->begin));
    return write_line(line, length);
  }
  const uint64_t others = g_others.fetch_add(1) + 1;
  uint64_t proved = g_proved_ns.load();
  if (now - proved < kProofEveryNs || !g_proved_ns.compare_exchange_strong(proved, now)) return;
  write_line(line, snprintf(line, sizeof(line), "%llu others %llu -\n", static_cast<unsigned long long>(now),
                            static_cast<unsigned long long>(others)));
}

template <typename Function>
Function next(const char* name) {
  const Counting counting;
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void* mapped(void* address, size_t length, int protection, int flags, int file, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, length, protection, flags, file, offset));
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void* malloc(size_t size) {
  count("malloc", size);
  return __libc_malloc(size);
}
EXPORTED void* calloc(size_t number, size_t size) {
  count("calloc", number * size);
  return __libc_calloc(number, size);
}
EXPORTED void* realloc(void* memory, size_t size) {
  count("realloc", size);
  return __libc_realloc(memory, size);
}
EXPORTED void* memalign(size_t alignment, size_t size) {
  count("memalign", size);
  return __libc_memalign(alignment, size);
}
EXPORTED void* aligned_alloc(size_t alignment, size_t size) {
  count("aligned_alloc", size);
  return __libc_memalign(alignment, size);
}
EXPORTED int posix_memalign(void** memory, size_t alignment, size_t size) {
  count("posix_memalign", size);
  void* found = __libc_memalign(alignment, size);
  if (found == nullptr) return 12;  // ENOMEM
  *memory = found;
  return 0;
}
EXPORTED void* mmap(void* address, size_t length, int protection, int flags, int file, off_t offset) {
  count("mmap", length);
  return mapped(address, length, protection, flags, file, offset);
}
EXPORTED void* mmap64(void* address, size_t length, int protection, int flags, int file, off_t offset) {
  count("mmap64", length);
  return mapped(address, length, protection, flags, file, offset);
}
EXPORTED int brk(void* end) {
  count("brk", 0);
  static const auto original = next<int (*)(void*)>("brk");
  return original(end);
}
EXPORTED void* sbrk(intptr_t increment) {
  count("sbrk", static_cast<size_t>(increment));
  static const auto original = next<void* (*)(intptr_t)>("sbrk");
  return original(increment);
}
// A thread's stack is mapped inside of libc, where nobody can stand before mmap.
EXPORTED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  count("pthread_create", 0);
  static const auto original =
      next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return original(thread, attributes, body, argument);
}
