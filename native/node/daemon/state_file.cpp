// SPDX-License-Identifier: Apache-2.0
#include "daemon/state_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace powerccl::daemon {
namespace {

struct Header {
  char magic[8];
  uint32_t version, slots;
  uint32_t doubtful;  // made in place of a file that could not be believed
  uint32_t reserved[26];
  uint32_t crc;
};
static_assert(sizeof(Header) == sizeof(StateSlot), "slots stay aligned");

constexpr char kMagic[8] = {'P', 'W', 'R', 'C', 'C', 'L', 'S', 'T'};
constexpr uint32_t kVersion = 1;
constexpr size_t kFileBytes = sizeof(Header) + kStateSlots * sizeof(StateSlot);

template <typename T>
uint32_t crc_of(const T& record) {
  return crc32_of(&record, offsetof(T, crc));
}

Header make_header(bool doubtful) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.slots = kStateSlots;
  header.doubtful = doubtful ? 1 : 0;
  header.crc = crc_of(header);
  return header;
}

StateSlot make_slot(const std::string& device, uint32_t uid, uint32_t pid) {
  StateSlot slot{};
  std::memcpy(slot.device, device.data(), std::min(device.size(), sizeof slot.device - 1));
  slot.marked = 1;
  slot.uid = uid;
  slot.pid = pid;
  slot.crc = crc_of(slot);
  return slot;
}

StateSlot empty_slot() {
  StateSlot slot{};
  slot.crc = crc_of(slot);
  return slot;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

bool write_all(int fd, const void* data, size_t length) {
  const char* bytes = static_cast<const char*>(data);
  while (length > 0) {
    const ssize_t written = write(fd, bytes, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes += written;
    length -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

uint32_t crc32_of(const void* data, size_t length) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
      table[i] = value;
    }
    return table;
  }();
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint32_t crc = ~0u;
  for (size_t i = 0; i < length; ++i) crc = kTable[(crc ^ bytes[i]) & 0xff] ^ (crc >> 8);
  return ~crc;
}

StateFile::~StateFile() {
  if (fd_ >= 0) close(fd_);
}

bool StateFile::open(const std::string& path, std::string* reason) {
  const auto failed = [&](const char* what) {
    *reason = path + " " + what + ": " + std::strerror(errno);
    return false;
  };
  // A new file is put in place whole, so a name that exists and cannot be believed was once believed.
  for (int attempt = 0; attempt < 4; ++attempt) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd_ < 0 && errno != ENOENT) return failed("cannot be opened");
    if (fd_ < 0 && !make(path, reason)) return false;
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        *reason = path + " belongs to another powerccld, which still runs";
        return false;
      }
      return failed("cannot be locked");
    }
    struct stat held{}, named{};
    if (fstat(fd_, &held) != 0 || stat(path.c_str(), &named) != 0 || held.st_ino != named.st_ino) {
      close(fd_);  // the daemon before took its file away as it ended
      fd_ = -1;
      continue;
    }
    if (load(reason)) return true;
    // Replaced in one step by a file that says so: at no moment is there none, which would mean that nothing is set.
    doubtful_ = true;
    const std::string aside = path + ".bad";
    unlink(aside.c_str());
    if (link(path.c_str(), aside.c_str()) != 0) return failed("cannot be renamed");
    const int damaged = std::exchange(fd_, -1);
    const bool made = make(path, reason);
    close(damaged);
    if (!made) return false;
    close(fd_);
    fd_ = -1;
  }
  return false;
}

bool StateFile::make(const std::string& path, std::string* reason) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  fd_ = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  const Header header = make_header(doubtful_);
  const std::vector<StateSlot> slots(kStateSlots, empty_slot());
  const int folder = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool made = fd_ >= 0 && folder >= 0 && write_all(fd_, &header, sizeof header) &&
                    write_all(fd_, slots.data(), slots.size() * sizeof(StateSlot)) && fsync(fd_) == 0 &&
                    rename(fresh.c_str(), path.c_str()) == 0 && fsync(folder) == 0;
  if (!made) *reason = path + " cannot be made: " + std::strerror(errno);
  if (folder >= 0) close(folder);
  return made;
}

bool StateFile::load(std::string* reason) {
  std::vector<char> bytes(kFileBytes);
  size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = pread(fd_, bytes.data() + length, bytes.size() - length, static_cast<off_t>(length));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (length != bytes.size() || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.version != kVersion ||
      header.slots != kStateSlots || header.crc != crc_of(header)) {
    *reason = "not a state file of this version";
    return false;
  }
  doubtful_ = doubtful_ || header.doubtful != 0;
  left_.clear();
  marked_.clear();
  free_.clear();
  torn_.clear();
  for (size_t i = kStateSlots; i-- > 0;) {
    StateSlot slot;
    std::memcpy(&slot, bytes.data() + sizeof header + i * sizeof slot, sizeof slot);
    const bool whole = slot.crc == crc_of(slot) && slot.device[sizeof slot.device - 1] == '\0' && slot.marked <= 1;
    if (!whole) {
      // A write that was cut short. It stays on disk until everything has been restored: this daemon may be killed too.
      doubtful_ = true;
      torn_.push_back(i);
    } else if (slot.marked == 0) {
      free_.push_back(i);  // the first ones last: they are taken first
    } else {
      marked_[slot.device] = i;
      left_.insert(left_.begin(), slot.device);
    }
  }
  return true;
}

int StateFile::settle_doubt() {
  if (!doubtful_) return 0;
  while (!torn_.empty()) {
    if (const int error = write_slot(torn_.back(), empty_slot()); error != 0) return error;
    free_.push_back(torn_.back());
    torn_.pop_back();
  }
  const Header header = make_header(false);
  if (pwrite(fd_, &header, sizeof header, 0) != sizeof header || fdatasync(fd_) != 0) return errno != 0 ? errno : EIO;
  doubtful_ = false;
  return 0;
}

int StateFile::write_slot(size_t index, const StateSlot& slot) {
  const auto offset = static_cast<off_t>(sizeof(Header) + index * sizeof(StateSlot));
  ssize_t written;
  do {
    written = pwrite(fd_, &slot, sizeof slot, offset);
  } while (written < 0 && errno == EINTR);
  if (written != sizeof slot) return written < 0 ? errno : EIO;
  return fdatasync(fd_) == 0 ? 0 : errno;
}

bool StateFile::marked(const std::string& device) const {
  return marked_.contains(device);
}

int StateFile::mark(const std::string& device, uint32_t uid, uint32_t pid) {
  if (device.empty() || device.size() >= sizeof(StateSlot::device)) return ENAMETOOLONG;
  if (marked(device)) return 0;
  if (free_.empty()) return ENOSPC;
  const int error = write_slot(free_.back(), make_slot(device, uid, pid));
  if (error != 0) return error;
  marked_[device] = free_.back();
  free_.pop_back();
  return 0;
}

int StateFile::clear(const std::string& device) {
  const auto entry = marked_.find(device);
  if (entry == marked_.end()) return 0;
  const int error = write_slot(entry->second, empty_slot());
  if (error != 0) return error;
  free_.push_back(entry->second);
  marked_.erase(entry);
  return 0;
}

bool StateFile::in_memory() const {
  struct statfs about{};
  return fstatfs(fd_, &about) == 0 && (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
}

}  // namespace powerccl::daemon
