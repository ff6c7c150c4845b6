// SPDX-License-Identifier: Apache-2.0
// What a rank computed, as one text that it prints at its end: comparing two runs is comparing their output.
#pragma once
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char g_text[1 << 16];
static size_t g_length;

static inline void note(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_length += vsnprintf(g_text + g_length, sizeof(g_text) - g_length, format, arguments);
  va_end(arguments);
}

static inline void note_bytes(const char* name, const void* data, size_t bytes) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ ((const unsigned char*)data)[i]) * 1099511628211u;
  (void)name;  // for the reader: launchers break lines of more than a page
  note(" %08x", (unsigned)(hash ^ hash >> 32));
}

// One write, so that launchers do not mix the lines of two ranks.
static inline void print_notes(int rank) {
  static char line[sizeof(g_text) + 32];
  const int length = snprintf(line, sizeof(line), "rank %d:%s\n", rank, g_text);
  fflush(stdout);
  if (write(1, line, length) != length) _exit(9);
}
