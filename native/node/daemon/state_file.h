// SPDX-License-Identifier: Apache-2.0
// Which devices may have another clock than the default because of this daemon: on disk before it is so, so that the
// next daemon, or `powerccld --restore`, can undo it when this one was killed.
//
// The file is a header and fixed slots, each with a checksum. A change rewrites one slot in place and syncs it; slots
// are aligned so that none lies across a disk's sectors. What cannot be believed (a torn slot, a header of another
// version, a file cut short) is never taken for "nothing is set": doubtful() tells to restore everything there is.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace powerccl::daemon {

struct StateSlot {
  char device[48];  // a GPU's UUID
  uint32_t marked;
  uint32_t uid, pid;  // of who had it set, for the log
  uint32_t reserved[16];
  uint32_t crc;  // of all that stands before
};
static_assert(sizeof(StateSlot) == 128, "the slot is the format");

inline constexpr size_t kStateSlots = 1024;

class StateFile {
 public:
  StateFile() = default;
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // Opens the file, or makes it where there is none, and takes it for this process alone. False with a reason: it
  // cannot be used, or another daemon has it. A file that cannot be believed is set aside as <path>.bad.
  bool open(const std::string& path, std::string* reason);

  // Devices that were marked when the file was opened.
  const std::vector<std::string>& left() const { return left_; }
  // Whether marks may have been lost.
  bool doubtful() const { return doubtful_; }

  // Everything has been restored. Returns 0 or an errno; until then the doubt is in the file, for the next daemon.
  int settle_doubt();

  // Both return 0 or an errno, and then the mark is as it was or in doubt: nothing may be set.
  int mark(const std::string& device, uint32_t uid, uint32_t pid);
  int clear(const std::string& device);
  bool marked(const std::string& device) const;

  // Whether the file lies in memory, where a sync costs nothing.
  bool in_memory() const;

 private:
  bool load(std::string* reason);
  bool make(const std::string& path, std::string* reason);
  int write_slot(size_t index, const StateSlot& slot);

  int fd_ = -1;
  bool doubtful_ = false;
  std::map<std::string, size_t> marked_;  // the device's slot
  std::vector<size_t> free_, torn_;       // slots
  std::vector<std::string> left_;
};

// CRC-32 (IEEE 802.3), as zlib's.
uint32_t crc32_of(const void* data, size_t length);

}  // namespace powerccl::daemon
