// SPDX-License-Identifier: Apache-2.0
// Any bytes as a state file: none crashes, no well-formed mark in a file that can be read is lost, and what is damaged
// is doubted until everything was put back.
//
// A file has 128 KiB and a checksum every 128 bytes, which no mutation would hit: so the input is what happens to a
// good file. First byte odd: the input behind it is the file itself. Else changes, each led by its kind: bytes written
// somewhere, a slot marked well, a header that doubts, the file cut short.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "daemon/log.h"
#include "daemon/state_file.h"
#include "fuzz.h"

using namespace powerccl::daemon;

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kRecord = sizeof(StateSlot);
constexpr size_t kFileBytes = (kStateSlots + 1) * kRecord;
constexpr size_t kDoubtAt = 16;  // the header: magic, version, slots, doubtful

std::string folder() {
  static const std::string path = [] {
    std::string made = "/dev/shm/powerccl-fuzz-" + std::to_string(getpid());
    mkdir(made.c_str(), 0700);
    return made;
  }();
  return path;
}

void remove_all() {
  for (const char* end : {"", ".bad", ".new"}) unlink((folder() + "/state" + end).c_str());
  rmdir(folder().c_str());
}

void write_file(const std::string& path, const Bytes& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  REQUIRE(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(fd);
}

const Bytes& good_file() {
  static const Bytes good = [] {
    set_log_level(kError);
    const std::string path = folder() + "/state";
    std::atexit(remove_all);  // before the folder's name goes
    std::string reason;
    {
      StateFile file;
      REQUIRE(file.open(path, &reason));
      REQUIRE(file.mark("GPU-b080afe5-4221-512c-b5c7-a199757ae558", 1000, 4711) == 0);
      REQUIRE(file.mark("GPU-3", 0, 1) == 0);
    }
    Bytes bytes(kFileBytes);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(read(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(kFileBytes));
    close(fd);
    return bytes;
  }();
  return good;
}

void sign(Bytes* file, size_t record) {
  if (file->size() < (record + 1) * kRecord) return;
  uint8_t* begin = file->data() + record * kRecord;
  const uint32_t crc = crc32_of(begin, offsetof(StateSlot, crc));
  std::memcpy(begin + offsetof(StateSlot, crc), &crc, sizeof crc);
}

Bytes make_file(Input input) {
  if ((input.byte() & 1) != 0) {
    size_t length = kFileBytes + 1;
    const uint8_t* bytes = input.bytes(&length);
    return {bytes, bytes + length};
  }
  Bytes file = good_file();
  while (!input.empty()) {
    const uint8_t kind = input.byte() % 5;
    const size_t at = static_cast<size_t>(input.word()) * 3 % kFileBytes;  // anywhere
    const size_t record = at / kRecord;
    size_t length = input.byte();
    const uint8_t* bytes = input.bytes(&length);
    if (kind <= 1) {  // written over; 1: and signed, as another version of this program would have
      const size_t fits = at < file.size() ? std::min(length, file.size() - at) : 0;
      std::copy(bytes, bytes + fits, file.begin() + static_cast<std::ptrdiff_t>(at));
      if (kind == 1) sign(&file, record);
    } else if (kind == 2 && record > 0 && file.size() == kFileBytes) {
      StateSlot slot{};
      std::memcpy(slot.device, bytes, std::min(length, sizeof slot.device - 1));
      slot.marked = 1;
      std::memcpy(file.data() + record * kRecord, &slot, sizeof slot);
      sign(&file, record);
    } else if (kind == 3 && file.size() == kFileBytes) {
      file[kDoubtAt] = static_cast<uint8_t>(length);
      sign(&file, 0);
    } else if (kind == 4) {
      file.resize(std::min(file.size(), at));
    }
  }
  return file;
}

// What a reader that shares no code with the daemon's makes of it.
struct Expected {
  bool header = false, doubtful = false;
  std::vector<std::string> marks;
};

Expected read_file(const Bytes& file) {
  Expected expected;
  const auto number = [&](size_t at) {
    uint32_t value;
    std::memcpy(&value, file.data() + at, sizeof value);
    return value;
  };
  const auto whole = [&](size_t record) {
    return number(record * kRecord + offsetof(StateSlot, crc)) ==
           crc32_of(file.data() + record * kRecord, offsetof(StateSlot, crc));
  };
  if (file.size() < kFileBytes || !whole(0) || std::memcmp(file.data(), "PWRCCLST", 8) != 0 || number(8) != 1 ||
      number(12) != kStateSlots) {
    expected.doubtful = true;
    return expected;
  }
  expected.header = true;
  expected.doubtful = number(kDoubtAt) != 0;
  for (size_t record = 1; record <= kStateSlots; ++record) {
    StateSlot slot;
    std::memcpy(&slot, file.data() + record * kRecord, sizeof slot);
    if (!whole(record) || slot.marked > 1 || slot.device[sizeof slot.device - 1] != '\0')
      expected.doubtful = true;
    else if (slot.marked == 1)
      expected.marks.emplace_back(slot.device);
  }
  return expected;
}

bool holds(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  good_file();
  const std::string path = folder() + "/state";
  const Bytes bytes = make_file(Input(data, size));
  const Expected expected = read_file(bytes);
  for (const char* end : {".bad", ".new"}) unlink((path + end).c_str());
  write_file(path, bytes);
  std::string reason;
  {
    StateFile file;
    REQUIRE(file.open(path, &reason));
    REQUIRE(file.doubtful() == expected.doubtful);
    REQUIRE(file.left().size() == expected.marks.size());
    for (const std::string& mark : expected.marks) REQUIRE(holds(file.left(), mark));
    REQUIRE(expected.header || access((path + ".bad").c_str(), F_OK) == 0);  // somebody may want to look at it
    // It goes on being used while there is doubt: that must cost neither the doubt nor a mark.
    file.mark("GPU-new", 1, 2);
  }
  {
    StateFile file;
    REQUIRE(file.open(path, &reason));
    REQUIRE(file.doubtful() == expected.doubtful);
    for (const std::string& mark : expected.marks) REQUIRE(holds(file.left(), mark));
    const bool full = expected.marks.size() == kStateSlots;
    REQUIRE(full || holds(file.left(), "GPU-new") || expected.doubtful);
    REQUIRE(file.settle_doubt() == 0);
    REQUIRE(!file.doubtful());
    for (const std::string& mark : expected.marks)
      if (!mark.empty()) REQUIRE(file.clear(mark) == 0);
  }
  {
    StateFile file;
    REQUIRE(file.open(path, &reason));
    REQUIRE(!file.doubtful());
  }
  return 0;
}
