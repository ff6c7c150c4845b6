// SPDX-License-Identifier: Apache-2.0
// Which devices may have another clock than the default because of this daemon. A mark is on disk before the clock
// changes. So the next daemon, or `powerccld --restore`, can undo the change when this daemon was killed.
//
// The file is a header and fixed slots, each with a checksum. A change rewrites one slot in place and syncs it. Slots
// are aligned so that none crosses a boundary of the disk's sectors. A torn slot, a header of another version or a file
// cut short never counts as "nothing is set". Then doubtful() says that everything must be restored.
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
  uint32_t crc;  // of all that is before
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

  // Whether the file is in memory, where a sync costs nothing.
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
