// SPDX-License-Identifier: Apache-2.0
// The published mechanism (Hilgeman, MVAPICH user group 2023): await a request at low power, then make the blocking
// call. For libraries whose idle loop cannot be reached, and to compare with.
//
// A barrier request in front of a collective is right only if every rank of the communicator puts it there. The
// decision depends only on what all ranks see alike: the function, the communicator's size, and its being an
// intra-communicator within one MPI_COMM_WORLD. One agreement of that world at initialisation is the last condition.
// Counts, roots, types and times play no part. A rank whose call the library refuses makes no collective, and no
// barrier either.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#include "adapters/mpi/adapter.h"
#include "device/process.h"

namespace powerccl::mpi {
namespace {

using Call = int (*)(Word, Word, Word, Word, Word, Word, Word);

// A function of the library by its PMPI_ name, looked up once while MPI is up.
struct Named {
  const char* name;
  std::atomic<void*> address{nullptr};

  template <class... Words>
  int operator()(Words... words) {
    void* function = address.load(std::memory_order_acquire);
    if (function == nullptr) {
      function = next_symbol(name);
      if (function == nullptr) return -1;
      address.store(function, std::memory_order_release);
    }
    return reinterpret_cast<int (*)(Words...)>(function)(words...);
  }
  void forget() { address.store(nullptr, std::memory_order_release); }
};

Named g_ibarrier{"PMPI_Ibarrier"}, g_test{"PMPI_Test"}, g_testall{"PMPI_Testall"}, g_testany{"PMPI_Testany"},
    g_testsome{"PMPI_Testsome"}, g_iprobe{"PMPI_Iprobe"}, g_improbe{"PMPI_Improbe"}, g_start{"PMPI_Start"},
    g_request_free{"PMPI_Request_free"};
Named g_irecv[2] = {{"PMPI_Irecv"}, {"PMPI_Irecv_c"}};
Named g_isend[2] = {{"PMPI_Isend"}, {"PMPI_Isend_c"}};
Named g_issend[2] = {{"PMPI_Issend"}, {"PMPI_Issend_c"}};
Named g_send_init[2] = {{"PMPI_Send_init"}, {"PMPI_Send_init_c"}};
Named g_irsend[2] = {{"PMPI_Irsend"}, {"PMPI_Irsend_c"}};

Word address(void* pointer) {
  return reinterpret_cast<Word>(pointer);
}

// Polls `test(flag)` until it says done or fails, waiting in between.
template <class Test>
int await(ThreadState* thread, Test test) {
  for (;;) {
    int done = 0;
    const int result = test(&done);
    if (result != 0 || done != 0) return result;
    thread->waiter.idle(g_adapter.plan, Moved::kUnknown);
  }
}

int await_request(ThreadState* thread, Word* request, Word status) {
  return await(thread, [&](int* done) { return g_test(address(request), address(done), status); });
}

bool send(ThreadState* thread, Named& start, const Word* a, Word* result) {
  Word request = 0;
  int code = start(a[0], a[1], a[2], a[3], a[4], a[5], address(&request));
  if (code == 0) code = await_request(thread, &request, g_adapter.library.status_ignore);
  *result = code;
  return true;
}

// If the library refuses one half of it, the other half must not have begun: a receive would take a later message. So
// the send is prepared first, which has its arguments checked, and begun last.
int exchange(ThreadState* thread, bool large, const Word* a) {
  Word incoming = 0, outgoing = 0;
  int code = g_send_init[large](a[0], a[1], a[2], a[3], a[4], a[10], address(&outgoing));
  if (code != 0) return code;
  code = g_irecv[large](a[5], a[6], a[7], a[8], a[9], a[10], address(&incoming));
  if (code == 0) code = g_start(address(&outgoing));
  if (code == 0) code = await_request(thread, &incoming, a[11]);
  if (code == 0) code = await_request(thread, &outgoing, g_adapter.library.status_ignore);
  g_request_free(address(&outgoing));
  return code;
}

bool barrier_first(ThreadState* thread, Function function, bool large, const Word* a) {
  if (!g_adapter.published_collectives) return false;
  const Word communicator = a[kSignatures[function].comm];
  const CommunicatorKnown known = communicator_of(thread, communicator);
  if (!known.in_world || known.size < 2 || is_refused(thread, function, large, a, known)) return false;
  Word request = 0;
  if (g_ibarrier(communicator, address(&request)) == 0) {
    await_request(thread, &request, g_adapter.library.status_ignore);
  }
  return false;
}

bool by_request(ThreadState* thread, Function function, bool large, const Word* a, Word* result) {
  const Signature& signature = kSignatures[function];
  // Such a call has no peer to wait for, and MPICH 4.0.2 leaves the status of such a request as it was.
  if (function <= kSendrecv && function >= kSend && signature.peer >= 0 &&
      static_cast<int32_t>(a[signature.peer]) == g_adapter.library.proc_null) {
    return false;
  }
  switch (function) {
    case kRecv: {
      Word request = 0;
      int code = g_irecv[large](a[0], a[1], a[2], a[3], a[4], a[5], address(&request));
      if (code == 0) code = await_request(thread, &request, a[6]);
      *result = code;
      return true;
    }
    case kSend:
      return send(thread, g_isend[large], a, result);
    case kSsend:
      return send(thread, g_issend[large], a, result);
    case kRsend:
      return send(thread, g_irsend[large], a, result);
    case kSendrecv: {
      *result = exchange(thread, large, a);
      return true;
    }
    case kProbe:
      *result = await(thread, [&](int* done) { return g_iprobe(a[0], a[1], a[2], address(done), a[3]); });
      return true;
    case kMprobe:
      *result = await(thread, [&](int* done) { return g_improbe(a[0], a[1], a[2], address(done), a[3], a[4]); });
      return true;
    case kWait:
      *result = await(thread, [&](int* done) { return g_test(a[0], address(done), a[1]); });
      return true;
    case kWaitall:
      *result = await(thread, [&](int* done) { return g_testall(a[0], a[1], address(done), a[2]); });
      return true;
    case kWaitany:
      *result = await(thread, [&](int* done) { return g_testany(a[0], a[1], a[2], address(done), a[3]); });
      return true;
    case kWaitsome:
      *result = await(thread, [&](int* done) {
        const int code = g_testsome(a[0], a[1], a[2], a[3], a[4]);
        *done = *pointer_to<int>(a[2]) != 0;  // MPI_UNDEFINED: none was active
        return code;
      });
      return true;
    default:
      if (signature.kind == Kind::COLLECTIVE || signature.kind == Kind::COLLECTIVE_V) {
        return barrier_first(thread, function, large, a);
      }
      return false;
  }
}

// What a rank's mark must say for it to count: the job that the launcher names, host, mode.
void describe(char* text, size_t size) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const char* job = getenv("PMIX_NAMESPACE");
  snprintf(text, size, "%s %s %d", host, job != nullptr ? job : "-", static_cast<int>(g_adapter.settings.collectives));
}

bool member_path(char* path, size_t size, int rank) {
  return static_cast<size_t>(snprintf(path, size, "%s/mpi-member-%d", g_adapter.environment.record_folder, rank)) <
         size;
}

bool is_member(int rank, const char* wanted) {
  char path[PATH_MAX + 32], text[512];
  if (!member_path(path, sizeof(path), rank)) return false;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t length = read(file, text, sizeof(text) - 1);
  close(file);
  if (length <= 0) return false;
  text[length] = '\0';
  char *after_pid = nullptr, *after_start = nullptr;
  const int pid = static_cast<int>(strtol(text, &after_pid, 10));
  const unsigned long long marked = strtoull(after_pid, &after_start, 10);
  if (after_pid == text || after_start == after_pid || *after_start != ' ') return false;
  return marked != 0 && strcmp(after_start + 1, wanted) == 0 && device::process_start_ticks(pid) == marked;
}

}  // namespace

void forget_requests() {
  for (Named* each :
       {&g_ibarrier, &g_test, &g_testall, &g_testany, &g_testsome, &g_iprobe, &g_improbe, &g_start, &g_request_free})
    each->forget();
  for (Named* forms : {g_irecv, g_isend, g_issend, g_irsend, g_send_init}) {
    forms[0].forget();
    forms[1].forget();
  }
}

bool carried_out(ThreadState* thread, Function function, bool large, const Word* arguments, Word* result) {
  thread->by_request = true;
  const bool done = by_request(thread, function, large, arguments, result);
  thread->by_request = false;
  return done;
}

void register_member() {
  const Environment& environment = g_adapter.environment;
  // With the number, what a process is beyond it: when it started.
  const unsigned long long start = device::process_start_ticks(getpid());
  if (environment.run_folder[0] == '\0' || environment.rank < 0 || start == 0) return;
  char path[PATH_MAX + 32], aside[PATH_MAX + 64], text[512], description[384];
  if (!member_path(path, sizeof(path), environment.rank)) return;
  describe(description, sizeof(description));
  const int length = snprintf(text, sizeof(text), "%d %llu %s", getpid(), start, description);
  snprintf(aside, sizeof(aside), "%s.%d", path, getpid());
  const int file = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  const bool written = write(file, text, static_cast<size_t>(length)) == length;
  close(file);
  if (!written || rename(aside, path) != 0) unlink(aside);
}

// Initialisation is over, so every rank has begun it. Ranks that have the library have left their marks. On one host
// all ranks see the same files, so they decide the same.
bool all_members_here(const Library& library) {
  int size = 0;
  if (library.comm_size(library.comm_world, &size) != 0) return false;
  char wanted[384];
  describe(wanted, sizeof(wanted));
  for (int rank = 0; rank < size; ++rank) {
    if (!is_member(rank, wanted)) return false;
  }
  return true;
}

}  // namespace powerccl::mpi
