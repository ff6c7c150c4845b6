// SPDX-License-Identifier: Apache-2.0
// Which names of a preloaded library are found.
//
// A program may ask whether MPI, NCCL or CUDA is there: by a weak reference or by dlsym(). A library that exports those
// names answers yes in every process. So each exported function is found only while another object of the process
// defines it as well. docs/decisions/0015-names.md says how, and what was rejected.
#pragma once

namespace powerccl::names {

// The address of `name` in the first object behind this library, in load order, that defines it. It may be an object
// that was dlopened without RTLD_GLOBAL. Else, as where this library was dlopened itself, in the first one before it.
// Null: no object defines it. dlsym() is not used, because it keeps what it finds from being unloaded as long as its
// caller stays.
void* definition_behind(const char* name);

// The same, read from the loader's list of objects without any function of libc: for constructors, which run before
// those of sanitizers. Only for functions of libc, and null where this library was dlopened.
void* definition_in_list(const char* name);

// The same as definition_behind, whether behind this library or not: all libraries share an object's copy in the
// program.
void* first_definition(const char* name);

// Ends the process as the loader does where a reference has no definition: its message, exit code 127. `caller` is an
// address in the code that refers to `name`.
[[noreturn]] void end_as_undefined(const char* name, const void* caller);
// The same, with the file of the object that refers to it; empty: the program.
[[noreturn]] void say_undefined(const char* program, const char* object, const char* name);

// Each library that is built with names.cpp defines this. It is called when objects were unloaded since the last call:
// addresses of functions in them are invalid.
void objects_were_unloaded();

}  // namespace powerccl::names
