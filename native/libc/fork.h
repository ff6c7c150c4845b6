// SPDX-License-Identifier: Apache-2.0
// Learns of fork(). glibc's pthread_atfork() is a static function that calls __register_atfork(), which no other libc
// has; musl exports pthread_atfork(). A library that needs either by name does not load with the other libc, and then
// the job's program does not start. So both are weak here, and the one that is there is called.
#pragma once

extern "C" {
int __register_atfork(void (*)(), void (*)(), void (*)(), void*) __attribute__((weak));
int pthread_atfork(void (*)(), void (*)(), void (*)()) noexcept __attribute__((weak));
}

namespace powerccl {

// `function` runs in each forked child. A library that calls this is never unloaded.
inline void call_in_forked_child(void (*function)()) {
  if (__register_atfork != nullptr) {
    __register_atfork(nullptr, nullptr, function, nullptr);
  } else if (pthread_atfork != nullptr) {
    pthread_atfork(nullptr, nullptr, function);
  }
}

}  // namespace powerccl
