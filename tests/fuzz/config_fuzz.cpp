// SPDX-License-Identifier: Apache-2.0
// Any text as powerccld's configuration: what is accepted satisfies the bounds of config.def, and what is refused
// changes nothing.
#include <algorithm>
#include <string>
#include <type_traits>

#include "daemon/config.h"
#include "fuzz.h"

using namespace powerccl::daemon;

namespace {

template <typename T>
void require_bounds(const T& value, int64_t least, int64_t most) {
  if constexpr (std::is_same_v<T, int64_t>) {
    REQUIRE(value >= least && value <= most);
  } else if constexpr (std::is_same_v<T, std::string>) {
    REQUIRE(value.find('\0') == std::string::npos);
  }
}

void require_sense(const Config& config) {
#define POWERCCLD_KEY(section, name, type, fallback, least, most, about) \
  require_bounds(config.section##_##name, least, most);
#include "daemon/config.def"
#undef POWERCCLD_KEY
  REQUIRE(config.socket_bits <= 0777);
  REQUIRE(config.socket_path.size() <= 102);  // with ".root" it fits an address
  for (const std::string* path : {&config.socket_path, &config.state_file, &config.gpu_device_files}) {
    REQUIRE(path->size() > 1 && path->front() == '/' && path->back() != '/');
    for (const char c : *path) REQUIRE(static_cast<unsigned char>(c) >= ' ');
  }
  REQUIRE(std::count(config.gpu_device_files.begin(), config.gpu_device_files.end(), '%') == 1);
  REQUIRE(config.gpu_max_mhz == 0 || config.gpu_min_mhz <= config.gpu_max_mhz);
  REQUIRE(config.gpu_usual_min_mhz <= config.gpu_usual_max_mhz);
  REQUIRE((config.gpu_usual_min_mhz == 0) == (config.gpu_usual_max_mhz == 0));
  // A list that was given must not come out as nobody named, which is everybody allowed.
  REQUIRE(config.allowed_uids.size() == config.access_users.size());
  REQUIRE(config.allowed_gids.size() == config.access_groups.size());
  REQUIRE(config.admin_gids.size() == config.access_admin_groups.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Config usual = default_config();
  Config config = usual;
  config.access_heartbeat_ms = 4711;  // to see whether it was touched
  const auto faults = read_config({reinterpret_cast<const char*>(data), size}, "input", &config);
  if (faults.empty()) {
    require_sense(config);
  } else {
    REQUIRE(config.access_heartbeat_ms == 4711);
    REQUIRE(config.socket_path == usual.socket_path && config.gpu_max_mhz == usual.gpu_max_mhz);
    for (const std::string& fault : faults) REQUIRE(fault.rfind("input:", 0) == 0);
  }
  return 0;
}
