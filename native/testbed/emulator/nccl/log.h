// SPDX-License-Identifier: Apache-2.0
// NCCL_DEBUG logging as NCCL prints it, and the text behind ncclGetLastError.
#pragma once

namespace powerccl::emulated_nccl {

// Values of NCCL's debug levels and subsystems, as plugins pass them to the logger.
enum LogLevel : int { kLogNone = 0, kLogVersion = 1, kLogWarn = 2, kLogInfo = 3, kLogTrace = 5 };

// The logger that plugins get. Levels above NCCL_DEBUG are dropped.
void log(int level, unsigned long flags, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));

// Printed from NCCL_DEBUG=WARN on, and kept for ncclGetLastError.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));
void info(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Printed whatever NCCL_DEBUG says, and kept for ncclGetLastError: faults that real NCCL would answer with a hang.
void error(const char* format, ...) __attribute__((format(printf, 1, 2)));

const char* last_error();

}  // namespace powerccl::emulated_nccl
