// SPDX-License-Identifier: Apache-2.0
// What tells a process and a host from all others: numbers and names repeat across namespaces and restarts.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

namespace powerccl::device {

// Whether CAP_SYS_ADMIN is in this process's effective set (/proc/self/status, CapEff): what the NVIDIA driver asks for
// before it changes clocks. Root without it, as in an unprivileged container, does not count.
bool process_has_sys_admin();

// Field 22 of /proc/<pid>/stat on the host's clock (abi/host_clock.h); 0 if there is no such process or it is a zombie.
uint64_t process_start_ticks(pid_t pid);

// Whether the process is in a pid namespace below that of this process's /proc, as containers are. False: it is not, or
// /proc does not show it.
bool process_is_contained(pid_t pid);

// This host's name as run folders spell it in file names (gethostname, '/' replaced).
void host_name(char* name, size_t size);
// The 32 digits of the running kernel's boot id, which containers share; empty where it cannot be read.
void boot_id(char* digits, size_t size);
// What tells this host's running kernel from all others: twelve digits of its boot id, or its name where there is none.
void host_identity(char* text, size_t size);

}  // namespace powerccl::device
