// SPDX-License-Identifier: Apache-2.0
// Any bytes as the clock journal of a run folder, as powerccl-agent finds it: the file is refused with a reason, or
// watched, and whatever its slots say, a core is restored by a name that ends and fits a terminal's line.
//
// The input is a byte that says how the file begins (as it should, or with the input's own bytes), and slots: each a
// byte for its place, one for how much of it is given, and so many bytes. Two scans, with other bytes between them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>

#include "agent/guard.h"
#include "device/clock_journal.h"
#include "fuzz.h"

using namespace powerccl;

namespace {

constexpr int kMostSlots = 3;  // finding an owner of another namespace looks through all of /proc

// A run folder where files are memory, since each input is one.
class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_) != nullptr); }
  ~Folder() {
    unlink(journal.c_str());
    rmdir(path_);
  }
  const char* path() const { return path_; }

  // The file as it is made, whatever the input before has left.
  void make_journal() {
    device::Journal made;
    device::Error error;
    if (spoilt) unlink(journal.c_str());
    REQUIRE(device::journal_open(&made, path_, &error) == device::kOk);
    journal = made.path;
    spoilt = false;
    const powerccl_journal_slot blank{};
    for (const unsigned index : written) device::journal_write_slot(&made, index, blank, nullptr);
    written.clear();
    device::journal_close(&made);
  }

  std::string journal;
  std::set<unsigned> written;
  bool spoilt = false;

 private:
  char path_[40] = "/dev/shm/powerccl-fuzz-XXXXXX";
};

void write_slots(Folder* folder, Input* input) {
  const int fd = open(folder->journal.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  for (int i = 0; i < kMostSlots && !input->empty(); ++i) {
    const unsigned index = input->byte() % POWERCCL_JOURNAL_SLOTS;
    const size_t at = offsetof(powerccl_journal, slot) + index * sizeof(powerccl_journal_slot);
    folder->written.insert(index);
    size_t length = input->byte() % (sizeof(powerccl_journal_slot) + 1);
    const uint8_t* bytes = input->bytes(&length);
    REQUIRE(pwrite(fd, bytes, length, static_cast<off_t>(at)) == static_cast<ssize_t>(length));
  }
  close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Folder folder;
  static const int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
  static const int terminal = dup(STDERR_FILENO);
  Input input(data, size);
  folder.make_journal();
  const uint8_t how = input.byte();
  if ((how & 7) == 7) {
    folder.spoilt = true;
    size_t length = input.byte();
    const uint8_t* bytes = input.bytes(&length);
    const int fd = open(folder.journal.c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && pwrite(fd, bytes, length, 0) == static_cast<ssize_t>(length));
    if ((how & 8) != 0) REQUIRE(ftruncate(fd, static_cast<off_t>(length)) == 0);
    close(fd);
  }
  write_slots(&folder, &input);
  device::Journal journal;
  device::Error error;
  if (device::journal_open_existing(&journal, folder.path(), &error) != device::kOk) {
    require_printable(error.text, sizeof error.text);
    REQUIRE(error.text[0] != '\0');
  } else {
    dup2(quiet, STDERR_FILENO);  // the agent says what it does
    int restores = 0;
    {
      agent::Guard guard(&journal, [&](const char* core, device::Error*) {
        require_printable(core, sizeof(powerccl_journal_slot::device));
        return ++restores % 3 == 0 ? device::kSystem : device::kOk;
      });
      guard.scan();
      write_slots(&folder, &input);
      guard.scan();
      REQUIRE(guard.left_marked() <= POWERCCL_JOURNAL_SLOTS);
    }
    dup2(terminal, STDERR_FILENO);
    device::journal_close(&journal);
  }
  return 0;
}
