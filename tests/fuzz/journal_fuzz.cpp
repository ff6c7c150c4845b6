// SPDX-License-Identifier: Apache-2.0
// Any bytes as the clock journal of a run folder, as powerccl-agent finds it: the file is refused with a reason, or
// watched, and whatever its slots say, a device is reset by a name that ends and fits a terminal's line.
//
// The input is a byte that says how the file begins (as it should, or with the input's own bytes), and slots: each a
// byte for its place, one for how much of it is given, and so many bytes. Two scans, with other bytes between them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "agent/guard.h"
#include "device/clock_journal.h"
#include "fuzz.h"

using namespace powerccl;

namespace {

constexpr int kMostSlots = 6;  // finding an owner of another namespace looks through all of /proc

std::string make_folder() {
  // Where there is memory for files, since each input is one.
  char folder[] = "/dev/shm/powerccl-fuzz-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  return folder;
}

void write_slots(const std::string& path, Input* input) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  for (int i = 0; i < kMostSlots && !input->empty(); ++i) {
    const size_t at = offsetof(powerccl_journal, slot) +
                      input->byte() % POWERCCL_JOURNAL_SLOTS * sizeof(powerccl_journal_slot);
    size_t length = input->byte() % (sizeof(powerccl_journal_slot) + 1);
    const uint8_t* bytes = input->bytes(&length);
    REQUIRE(pwrite(fd, bytes, length, static_cast<off_t>(at)) == static_cast<ssize_t>(length));
  }
  close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = make_folder();
  static const int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
  static const int terminal = dup(STDERR_FILENO);
  Input input(data, size);
  device::Journal journal;
  device::Error error;
  REQUIRE(device::journal_open(&journal, folder.c_str(), &error) == device::kOk);
  const std::string path = journal.path;
  device::journal_close(&journal);
  const uint8_t how = input.byte();
  if ((how & 7) == 7) {
    size_t length = input.byte();
    const uint8_t* bytes = input.bytes(&length);
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && pwrite(fd, bytes, length, 0) == static_cast<ssize_t>(length));
    if ((how & 8) != 0) REQUIRE(ftruncate(fd, static_cast<off_t>(length)) == 0);
    close(fd);
  }
  write_slots(path, &input);
  if (device::journal_open_existing(&journal, folder.c_str(), &error) != device::kOk) {
    require_printable(error.text, sizeof error.text);
    REQUIRE(error.text[0] != '\0');
  } else {
    dup2(quiet, STDERR_FILENO);  // the agent says what it does
    int resets = 0;
    {
      agent::Guard guard(
          &journal,
          [&](const char* device, device::Error*) {
            REQUIRE(memchr(device, '\0', sizeof(powerccl_journal_slot::device)) != nullptr);
            return ++resets % 3 == 0 ? device::kSystem : device::kOk;
          },
          (how & 16) != 0);
      guard.scan();
      write_slots(path, &input);
      guard.scan();
      REQUIRE(guard.left_locked() <= POWERCCL_JOURNAL_SLOTS);
    }
    dup2(terminal, STDERR_FILENO);
    device::journal_close(&journal);
  }
  unlink(path.c_str());
  return 0;
}
