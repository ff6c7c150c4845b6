// SPDX-License-Identifier: Apache-2.0
#include "daemon/config.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <set>

#include "daemon/log.h"
#include "daemon/socket_place.h"

#define TOML_EXCEPTIONS 0
// Its assertions fail on wrong files, which it reports as errors anyway.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

namespace powerccl::daemon {
namespace {

constexpr size_t kMostBytes = 1 << 20;

using Faults = std::vector<std::string>;

class Reader {
 public:
  Reader(const toml::table& root, std::string origin, Faults* faults)
      : root_(root), origin_(std::move(origin)), faults_(faults) {}

  void read(const char* section, const char* name, int64_t least, int64_t most, int64_t* value) {
    const toml::node* node = find(section, name);
    if (node == nullptr) return;
    const auto* number = node->as_integer();
    if (number == nullptr) return wrong(*node, section, name, "is not a whole number");
    if (number->get() < least || number->get() > most)
      return wrong(*node, section, name, "is not between " + std::to_string(least) + " and " + std::to_string(most));
    *value = number->get();
  }

  void read(const char* section, const char* name, int64_t, int64_t, bool* value) {
    const toml::node* node = find(section, name);
    if (node == nullptr) return;
    if (!node->is_boolean()) return wrong(*node, section, name, "must be true or false");
    *value = node->as_boolean()->get();
  }

  void read(const char* section, const char* name, int64_t, int64_t, std::string* value) {
    const toml::node* node = find(section, name);
    if (node == nullptr) return;
    if (!node->is_string()) return wrong(*node, section, name, "must be a string in quotes");
    if (node->as_string()->get().find('\0') != std::string::npos)
      return wrong(*node, section, name, "holds a NUL character");
    *value = node->as_string()->get();
  }

  void read(const char* section, const char* name, int64_t, int64_t, std::vector<std::string>* value) {
    const toml::node* node = find(section, name);
    if (node == nullptr) return;
    std::vector<std::string> texts;
    const toml::array* array = node->as_array();
    if (array == nullptr) return wrong(*node, section, name, "must be a list of strings, such as [\"a\", \"b\"]");
    for (const toml::node& item : *array) {
      if (item.is_integer())  // users and groups by number
        texts.push_back(std::to_string(item.as_integer()->get()));
      else if (item.is_string())
        texts.push_back(item.as_string()->get());
      else
        return wrong(item, section, name, "contains a value that is neither a string nor a number");
    }
    *value = std::move(texts);
  }

  void refuse_unknown() {
    for (const auto& [section, node] : root_) {
      const toml::table* table = node.as_table();
      if (table == nullptr) {
        say(node, "`" + std::string(section.str()) + "` is outside any section");
        continue;
      }
      for (const auto& [name, value] : *table) {
        const std::string full = std::string(section.str()) + "." + std::string(name.str());
        if (!known_.contains(full)) say(value, "unknown key `" + full + "`");
      }
    }
  }

  // A fault in the meaning of a key that was read well.
  void wrong(const char* section, const char* name, const std::string& why) {
    const toml::node* node = find(section, name);
    if (node != nullptr)
      wrong(*node, section, name, why);
    else
      faults_->push_back(origin_ + ": " + section + "." + name + " " + why);
  }

 private:
  const toml::node* find(const char* section, const char* name) {
    known_.insert(std::string(section) + "." + name);
    const toml::table* table = root_[section].as_table();
    return table == nullptr ? nullptr : table->get(name);
  }

  void wrong(const toml::node& node, const char* section, const char* name, const std::string& why) {
    say(node, std::string(section) + "." + name + " " + why);
  }

  void say(const toml::node& node, const std::string& what) {
    faults_->push_back(origin_ + ":" + std::to_string(node.source().begin.line) + ": " + what);
  }

  const toml::table& root_;
  std::string origin_;
  Faults* faults_;
  std::set<std::string> known_;
};

void set_default(const char* text, std::string* value) {
  *value = text;
}
void set_default(const char* text, int64_t* value) {
  std::from_chars(text, text + std::strlen(text), *value);
}
void set_default(const char* text, bool* value) {
  *value = std::strcmp(text, "true") == 0;
}
void set_default(const char*, std::vector<std::string>* value) {
  value->clear();
}

// The line of the first character outside of comments that is not ASCII; 0: none. toml++ 3.3 takes some of them for
// impossible (undefined behaviour). No configuration needs them.
int find_foreign_character(std::string_view toml) {
  int line = 1;
  bool comment = false;
  for (const char c : toml) {
    if (c == '\n') {
      ++line;
      comment = false;
    }
    comment = comment || c == '#';
    if (!comment && static_cast<unsigned char>(c) >= 0x80) return line;
  }
  return 0;
}

template <typename Id>
bool parse_id(const std::string& text, Id* id) {
  uint32_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || end != text.data() + text.size() || number == UINT32_MAX) return false;
  *id = number;
  return true;
}

bool find_user(const std::string& text, uid_t* uid) {
  if (parse_id(text, uid)) return true;
  const passwd* entry = getpwnam(text.c_str());
  if (entry != nullptr) *uid = entry->pw_uid;
  return entry != nullptr;
}

bool find_group(const std::string& text, gid_t* gid) {
  if (parse_id(text, gid)) return true;
  const group* entry = getgrnam(text.c_str());
  if (entry != nullptr) *gid = entry->gr_gid;
  return entry != nullptr;
}

void find_groups(const std::vector<std::string>& texts, const char* name, std::vector<gid_t>* gids, Reader* reader) {
  gids->clear();
  for (const std::string& text : texts) {
    gid_t gid = 0;
    if (find_group(text, &gid))
      gids->push_back(gid);
    else
      reader->wrong("access", name, "names group `" + text + "`, which does not exist on this system");
  }
}

void read_meanings(Config* config, Reader* reader) {
  const std::string& mode = config->socket_mode;
  unsigned bits = 0;
  const auto [end, code] = std::from_chars(mode.data(), mode.data() + mode.size(), bits, 8);
  if (code != std::errc{} || end != mode.data() + mode.size() || bits > 0777)
    reader->wrong("socket", "mode", "must be an octal mode such as \"0660\"");
  config->socket_bits = bits;
  config->socket_gid = static_cast<gid_t>(-1);
  if (!config->socket_group.empty() && !find_group(config->socket_group, &config->socket_gid))
    reader->wrong("socket", "group", "`" + config->socket_group + "` is no group of this system");
  config->allowed_uids.clear();
  for (const std::string& text : config->access_users) {
    uid_t uid = 0;
    if (find_user(text, &uid))
      config->allowed_uids.push_back(uid);
    else
      reader->wrong("access", "users", "names user `" + text + "`, which does not exist on this system");
  }
  find_groups(config->access_groups, "groups", &config->allowed_gids, reader);
  find_groups(config->access_admin_groups, "admin_groups", &config->admin_gids, reader);
  if (!parse_level(config->log_level, &config->level))
    reader->wrong("log", "level", "must be error, warning, info or debug");
  const std::string& sharing = config->gpu_sharing;
  config->sharing = sharing == "none" ? Sharing::kNone : sharing == "highest" ? Sharing::kHighest : Sharing::kNewest;
  if (sharing != "none" && sharing != "highest" && sharing != "newest")
    reader->wrong("gpu", "sharing", "must be newest, highest or none");
  if (config->gpu_max_mhz != 0 && config->gpu_min_mhz > config->gpu_max_mhz)
    reader->wrong("gpu", "min_mhz", "is above gpu.max_mhz");
  if (config->gpu_usual_min_mhz > config->gpu_usual_max_mhz)
    reader->wrong("gpu", "usual_min_mhz", "is above gpu.usual_max_mhz");
  if ((config->gpu_usual_min_mhz == 0) != (config->gpu_usual_max_mhz == 0))
    reader->wrong("gpu", "usual_min_mhz", "and gpu.usual_max_mhz must be set together");
  const auto check = [&](const char* section, const char* name, const std::string& why) {
    if (!why.empty()) reader->wrong(section, name, why);
  };
  check("gpu", "device_files", device_files_fault(config->gpu_device_files));
  check("socket", "path", socket_path_fault(config->socket_path));
  check("state", "file", path_fault(config->state_file));
}

}  // namespace

Config default_config() {
  Config config;
  read_config("", "default", &config);
  return config;
}

std::vector<std::string> read_config(std::string_view toml, const std::string& origin, Config* config) {
  Faults faults;
  if (toml.size() > kMostBytes) return {origin + ": is larger than 1 MB"};
  if (const int line = find_foreign_character(toml); line != 0)
    return {origin + ":" + std::to_string(line) + ": a character that is not ASCII is allowed in comments only"};
  const toml::parse_result parsed = toml::parse(toml, origin);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return {origin + ":" + std::to_string(error.source().begin.line) + ": " + std::string(error.description())};
  }
  Config read;
  Reader reader(parsed.table(), origin, &faults);
#define POWERCCLD_KEY(section, name, type, fallback, least, most, about) \
  set_default(fallback, &read.section##_##name);                         \
  reader.read(#section, #name, least, most, &read.section##_##name);
#include "daemon/config.def"
#undef POWERCCLD_KEY
  reader.refuse_unknown();
  read_meanings(&read, &reader);
  if (faults.empty()) *config = std::move(read);
  return faults;
}

std::vector<std::string> read_config_file(const std::string& path, Config* config) {
  const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);  // a FIFO would keep us waiting
  if (opened < 0) return {path + ": cannot be opened: " + std::strerror(errno)};
  struct stat about{};
  if (fstat(opened, &about) != 0 || !S_ISREG(about.st_mode)) {
    close(opened);
    return {path + ": cannot be read: not a regular file"};
  }
  std::FILE* file = fdopen(opened, "r");
  if (file == nullptr) return {path + ": cannot be read: " + std::strerror(errno)};
  std::string text(kMostBytes + 1, '\0');
  const size_t length = std::fread(text.data(), 1, text.size(), file);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return {path + ": cannot be read"};
  text.resize(length);
  return read_config(text, path, config);
}

// What a configuration needs of the machine. `--check` and a start go through the same checks.
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
