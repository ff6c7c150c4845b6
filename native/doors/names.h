// SPDX-License-Identifier: Apache-2.0
// Which names of a preloaded library are found.
//
// A program may ask whether MPI, NCCL or CUDA is there: by a weak reference or by dlsym(). A library that exports those
// names answers yes in every process. So each exported function is found only while another object of the process
// defines it as well. docs/decisions/0015-names.md says how, and what was rejected.
#ifndef POWERCCL_DOORS_NAMES_H
#define POWERCCL_DOORS_NAMES_H

namespace powerccl::names {

// The address of `name` in the first object of the process, in load order, that defines it and is not this library. It
// may be an object that was dlopened without RTLD_GLOBAL. Null: no object defines it.
void* definition_behind(const char* name);

// Ends the process as the loader does where a reference has no definition: its message, exit code 127. `caller` is an
// address in the code that refers to `name`.
[[noreturn]] void end_as_undefined(const char* name, const void* caller);

// Each library that is built with names.cpp defines this. It is called when objects were unloaded since the last call:
// addresses of functions in them are invalid.
void objects_were_unloaded();

}  // namespace powerccl::names
#endif
