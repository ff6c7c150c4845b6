// SPDX-License-Identifier: Apache-2.0
// What a configuration needs of the machine. `--check` and a start go through the same checks.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/config.h"
#include "daemon/socket_place.h"

namespace powerccl::daemon {
namespace {

constexpr size_t kLongestSocket = 107 - (sizeof kRootSuffix - 1);  // sun_path with its NUL
constexpr size_t kLongestPath = 4000;                              // PATH_MAX, less what is added (".lock", ".new")

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

class Checker {
 public:
  explicit Checker(std::vector<std::string>* faults) : faults_(faults) {}

  void wrong(const std::string& key, const std::string& path, const std::string& why) {
    faults_->push_back(key + ": " + path + " " + why);
  }

  // The folder of a file of the daemon. A user who may replace files there could take its place.
  bool folder(const std::string& key, const std::string& path) {
    const std::string folder = folder_of(path);
    struct stat about{};
    if (stat(folder.c_str(), &about) != 0)
      wrong(key, path, "cannot be created: its folder " + folder + ": " + std::strerror(errno));
    else if (!S_ISDIR(about.st_mode))
      wrong(key, path, "cannot be created: " + folder + " is not a folder");
    else if (faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
      wrong(key, path, "cannot be created: its folder " + folder + ": " + std::strerror(errno));
    else if ((about.st_mode & S_IWOTH) != 0 && (about.st_mode & S_ISVTX) == 0)
      wrong(key, path, "is not safe: all users may replace files in " + folder);
    else if (about.st_uid != 0 && about.st_uid != geteuid())
      wrong(key, path, "is not safe: its folder " + folder + " is user " + std::to_string(about.st_uid) + "'s");
    else
      return true;
    return false;
  }

  void regular_file(const std::string& key, const std::string& path) {
    struct stat about{};
    if (lstat(path.c_str(), &about) != 0) {
      if (errno != ENOENT) wrong(key, path, std::string("cannot be looked at: ") + std::strerror(errno));
    } else if (!S_ISREG(about.st_mode)) {
      wrong(key, path, "exists and is not a regular file");
    } else if (faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) != 0) {
      wrong(key, path, std::string("cannot be opened: ") + std::strerror(errno));
    }
  }

 private:
  std::vector<std::string>* faults_;
};

bool may_give_to(gid_t group) {
  if (group == static_cast<gid_t>(-1) || geteuid() == 0 || group == getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  return count > 0 && std::find(groups.begin(), groups.begin() + count, group) != groups.begin() + count;
}

void check_socket(const Config& config, Checker* checker) {
  const std::string& path = config.socket_path;
  if (const std::string why = socket_path_fault(path); !why.empty()) return checker->wrong("socket.path", path, why);
  if (!checker->folder("socket.path", path)) return;
  struct stat about{};
  if (lstat(path.c_str(), &about) == 0 && !S_ISSOCK(about.st_mode))
    checker->wrong("socket.path", path, "exists and is not a socket");
  if (!may_give_to(config.socket_gid))
    checker->wrong("socket.group", config.socket_group, "is none of this user's groups");
}

void check_state_file(const Config& config, Checker* checker) {
  const std::string& path = config.state_file;
  if (const std::string why = path_fault(path); !why.empty()) return checker->wrong("state.file", path, why);
  if (checker->folder("state.file", path)) checker->regular_file("state.file", path);
}

void check_device_files(const Config& config, Checker* checker) {
  const std::string& pattern = config.gpu_device_files;
  const std::string folder = folder_of(pattern.substr(0, pattern.find('%')));
  struct stat about{};
  if (stat(folder.c_str(), &about) != 0 || !S_ISDIR(about.st_mode))
    checker->wrong("gpu.device_files", pattern, "matches no file: there is no folder " + folder);
}

}  // namespace

std::string path_fault(const std::string& path) {
  if (path.empty()) return "is empty";
  if (path[0] != '/') return "does not begin with /";
  if (path.back() == '/') return "is a folder's name";
  if (path.size() > kLongestPath) return "is longer than " + std::to_string(kLongestPath) + " bytes";
  if (std::any_of(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }))
    return "holds a control character";
  return "";
}

std::string socket_path_fault(const std::string& path) {
  if (path.size() > kLongestSocket) return "is longer than " + std::to_string(kLongestSocket) + " bytes";
  return path_fault(path);
}

std::string device_files_fault(const std::string& pattern) {
  if (std::count(pattern.begin(), pattern.end(), '%') != 1) return "must contain one % for the GPU's minor number";
  return path_fault(pattern);
}

std::vector<std::string> check_config(const Config& config) {
  std::vector<std::string> faults;
  Checker checker(&faults);
  check_socket(config, &checker);
  check_state_file(config, &checker);
  check_device_files(config, &checker);
  // Files that the daemon makes beside these.
  const std::string socket = config.socket_path, state = config.state_file;
  if (socket == state || socket + ".lock" == state || socket + kRootSuffix == state || socket == state + ".new" ||
      socket == state + ".bad")
    faults.push_back("state.file: " + state + " is also the socket or its lock");
  return faults;
}

}  // namespace powerccl::daemon
