// SPDX-License-Identifier: Apache-2.0
#include "daemon/closer.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

namespace powerccl::daemon {
namespace {

constexpr size_t kMostThreads = 64;  // users whose descriptors can hang at a time; the unit allows 128 tasks

struct Waiting {
  std::deque<int> descriptors;
  bool served = false;  // has a thread
};

struct Closer {
  std::mutex mutex;
  std::map<uid_t, Waiting> users;
  size_t threads = 0;
};

// Never destroyed: its threads may outlive main().
Closer& closer() {
  static auto* const made = new Closer;
  return *made;
}

std::map<uid_t, Waiting>::iterator find_unserved(Closer* all) {
  auto at = all->users.begin();
  while (at != all->users.end() && at->second.served) ++at;
  return at;
}

void serve() {
  pthread_setname_np(pthread_self(), "powerccld-close");
  Closer& all = closer();
  std::unique_lock lock(all.mutex);
  for (auto user = find_unserved(&all); user != all.users.end(); user = find_unserved(&all)) {
    user->second.served = true;
    while (!user->second.descriptors.empty()) {
      const int fd = user->second.descriptors.front();
      lock.unlock();
      close(fd);
      lock.lock();
      user->second.descriptors.pop_front();
    }
    all.users.erase(user);
  }
  --all.threads;
}

}  // namespace

void close_later(uid_t uid, int fd) {
  Closer& all = closer();
  const std::lock_guard lock(all.mutex);
  Waiting& user = all.users[uid];
  user.descriptors.push_back(fd);
  if (user.served || all.threads >= kMostThreads) return;
  ++all.threads;
  try {
    std::thread(serve).detach();
  } catch (const std::system_error&) {
    --all.threads;  // the next call tries again
  }
}

void close_socket(uid_t uid, int socket) {
  shutdown(socket, SHUT_RDWR);
  msghdr message{};
  const ssize_t length = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
  // A message has its sender's credentials with it, for which there is no room here; the end has none.
  const bool empty = length <= 0 && (message.msg_flags & MSG_CTRUNC) == 0;
  if (empty)
    close(socket);
  else
    close_later(uid, socket);
}

size_t count_closing(uid_t uid) {
  Closer& all = closer();
  const std::lock_guard lock(all.mutex);
  const auto entry = all.users.find(uid);
  return entry == all.users.end() ? 0 : entry->second.descriptors.size();
}

}  // namespace powerccl::daemon
