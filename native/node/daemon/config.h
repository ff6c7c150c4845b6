// SPDX-License-Identifier: Apache-2.0
// powerccld's configuration: a TOML file whose keys are those of config.def.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/sharing.h"

namespace powerccl::daemon {

struct Config {
  using number = int64_t;
  using flag = bool;
  using text = std::string;
  using list = std::vector<std::string>;
#define POWERCCLD_KEY(section, name, type, fallback, least, most, about) type section##_##name{};
#include "daemon/config.def"
#undef POWERCCLD_KEY

  // What is made of the texts.
  mode_t socket_bits = 0;
  gid_t socket_gid = static_cast<gid_t>(-1);  // -1: the daemon's own
  std::vector<uid_t> allowed_uids;
  std::vector<gid_t> allowed_gids, admin_gids;
  int level = 0;  // daemon::Level
  Sharing sharing = Sharing::kNewest;

  bool anybody() const { return allowed_uids.empty() && allowed_gids.empty(); }
};

Config default_config();

// Reads TOML over `config`. `origin` names it in messages ("/etc/powerccl/powerccld.toml"). Returns what is wrong, one
// line each ("origin:12: ..."), and leaves `config` alone then. Unknown keys are wrong: a misspelt limit is no limit.
std::vector<std::string> read_config(std::string_view toml, const std::string& origin, Config* config);
std::vector<std::string> read_config_file(const std::string& path, Config* config);

// What is wrong with a text as such a name; empty: nothing.
std::string path_fault(const std::string& path);
std::string socket_path_fault(const std::string& path);
std::string device_files_fault(const std::string& pattern);
// What of the configuration cannot be on this machine: paths as the daemon uses them, and the group of its socket.
std::vector<std::string> check_config(const Config& config);

}  // namespace powerccl::daemon
