// SPDX-License-Identifier: Apache-2.0
// What runs inside jobs asks for functions of glibc 2.17, of 2012, whichever glibc it is built with. The loader ends a
// program whose preloaded library asks for a version that the program's own glibc does not have: containers have old
// ones. The compiler includes this before each source (cmake/Options.cmake).
//
// A function is here if glibc gave it a new version after 2.17: 2.34 moved libdl and libpthread into libc. Before that
// they are libraries of their own, so ours need those two by name. tests/native/adapters/check_exports.py checks all
// this.
#pragma once

#include <features.h>

#if defined(__GLIBC__) && defined(__x86_64__)
#define POWERCCL_FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__GLIBC__) && defined(__aarch64__)
#define POWERCCL_FIRST_VERSION "GLIBC_2.17"
#endif

#ifdef POWERCCL_FIRST_VERSION
#define POWERCCL_OLD(name) __asm__(".symver " #name "," #name "@" POWERCCL_FIRST_VERSION);
POWERCCL_OLD(dladdr)
POWERCCL_OLD(dlclose)
POWERCCL_OLD(dlerror)
POWERCCL_OLD(dlopen)
POWERCCL_OLD(dlsym)
POWERCCL_OLD(pthread_attr_setstacksize)
POWERCCL_OLD(pthread_create)
POWERCCL_OLD(pthread_detach)
POWERCCL_OLD(pthread_join)
POWERCCL_OLD(pthread_key_create)
POWERCCL_OLD(pthread_setspecific)
POWERCCL_OLD(pthread_sigmask)
#undef POWERCCL_OLD
// Came with 2.12, which on aarch64 is before the first.
#ifdef __x86_64__
__asm__(".symver pthread_setname_np,pthread_setname_np@GLIBC_2.12");
#else
__asm__(".symver pthread_setname_np,pthread_setname_np@" POWERCCL_FIRST_VERSION);
#endif
#undef POWERCCL_FIRST_VERSION
#endif
