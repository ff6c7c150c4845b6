// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libc/calls.h"

namespace powerccl {
namespace {

// A program may close its standard error and be given the number again for a file of its own, which our lines would
// damage. So what the descriptor stood for is remembered, and anything else gets no line.
struct Place {
  int descriptor = 2;
  bool known = false;
  dev_t device = 0;
  ino_t inode = 0;
};
Place g_place;

bool look(int descriptor, Place* place) {
  struct stat status;
  if (descriptor < 0 || status_of_file(descriptor, &status) != 0) return false;
  *place = {descriptor, true, status.st_dev, status.st_ino};
  return true;
}

__attribute__((constructor)) void loaded() {
  look(2, &g_place);
}

}  // namespace

void log_to(int descriptor) {
  if (!look(descriptor, &g_place)) g_place.known = false;
}

const char* error_text(int error, char* buffer, size_t size) {
  return strerror_r(error, buffer, size);
}

void say(const char* hint, const char* format, ...) {
  char text[1024];
  const int room = sizeof(text);
  int length = snprintf(text, room, "powerccl: ");
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(text + length, room - length, format, arguments);
  va_end(arguments);
  if (length > room - 2) length = room - 2;
  text[length++] = '\n';
  if (hint != nullptr && *hint != '\0' && length < room - 8) {
    length += snprintf(text + length, room - length, "hint: %s", hint);
    if (length > room - 2) length = room - 2;
    text[length++] = '\n';
  }
  Place now;
  if (!g_place.known || !look(g_place.descriptor, &now) || now.device != g_place.device || now.inode != g_place.inode) {
    return;
  }
  // A closed or full stderr is the user's choice; no other place exists for the message.
  [[maybe_unused]] ssize_t written = write(g_place.descriptor, text, length);
}

}  // namespace powerccl
