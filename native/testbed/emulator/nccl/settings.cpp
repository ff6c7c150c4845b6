// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/settings.h"

#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <vector>

namespace powerccl::emulated_nccl {
namespace {

int debug_level() {
  static const int level = [] {
    const char* value = getenv("NCCL_DEBUG");
    if (!value) return kLogNone;
    if (strcasecmp(value, "VERSION") == 0) return kLogVersion;
    if (strcasecmp(value, "WARN") == 0) return kLogWarn;
    if (strcasecmp(value, "INFO") == 0) return kLogInfo;
    if (strcasecmp(value, "TRACE") == 0) return kLogTrace;
    return kLogNone;
  }();
  return level;
}

std::mutex last_error_mutex;
char last_error_text[1024];

// One write a line, so that lines of several ranks do not mix.
void print(const char* level, const char* text) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  char line[1200];
  int length = snprintf(line, sizeof line, "%s:%d:%ld [emulated] NCCL %s %s\n", host, getpid(), syscall(SYS_gettid),
                        level, text);
  if (length >= static_cast<int>(sizeof line)) length = sizeof line - 1;
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line, static_cast<size_t>(length));
}

void put(const char* word, bool keep, bool show, const char* format, va_list arguments) {
  if (!keep && !show) return;
  char text[1024];
  vsnprintf(text, sizeof text, format, arguments);
  if (keep) {
    std::lock_guard lock(last_error_mutex);
    snprintf(last_error_text, sizeof last_error_text, "%s", text);
  }
  if (show) print(word, text);
}

}  // namespace

void log(int level, unsigned long, const char*, int, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put(level == kLogWarn ? "WARN" : "INFO", level == kLogWarn, level <= debug_level(), format, arguments);
  va_end(arguments);
}

void warn(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put("WARN", true, debug_level() >= kLogWarn, format, arguments);
  va_end(arguments);
}

ncclResult_t refuse(ncclResult_t result, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put("WARN", true, debug_level() >= kLogWarn, format, arguments);
  va_end(arguments);
  return result;
}
void info(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put("INFO", false, debug_level() >= kLogInfo, format, arguments);
  va_end(arguments);
}

void error(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put("ERROR", true, true, format, arguments);
  va_end(arguments);
}

// NCCL returns a pointer that stays valid while another thread fails: a copy per thread.
const char* last_error() {
  thread_local char copy[sizeof last_error_text];
  std::lock_guard lock(last_error_mutex);
  memcpy(copy, last_error_text, sizeof copy);
  return copy;
}

namespace {

using emulator::kAlgorithms;
using emulator::kProtocols;
using emulator::NcclSettings;

constexpr const char* kFunctionNames[kFunctions] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
constexpr const char* kAlgorithmNames[kAlgorithms] = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                                      "NVLSTree", "PAT"};
constexpr const char* kProtocolNames[kProtocols] = {"LL", "LL128", "Simple"};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

template <size_t N>
int find(const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; ++i)
    if (strcasecmp(names[i], name.c_str()) == 0) return static_cast<int>(i);
  return -1;
}

// "ring,tree;broadcast:^ring": a list for all functions, then for single ones. Empty: understood.
template <size_t N>
std::string parse_list(const char* text, const char* const (&names)[N], bool (&enabled)[kFunctions][N]) {
  bool first = true;
  for (const std::string& entry : split(text, ';')) {
    const size_t colon = entry.find(':');
    if (colon == std::string::npos && !first)
      return std::string("All entries except the first must have a prefix: \"") + text + "\"";
    first = false;
    const int only = colon == std::string::npos ? -1 : find(kFunctionNames, entry.substr(0, colon));
    if (colon != std::string::npos && only < 0)
      return "Unrecognized prefix token \"" + entry.substr(0, colon) + "\" when parsing \"" + text + "\"";
    std::string list = colon == std::string::npos ? entry : entry.substr(colon + 1);
    const bool excludes = !list.empty() && list.front() == '^';
    if (excludes) list.erase(0, 1);
    for (int function = 0; function < kFunctions; ++function) {
      if (only >= 0 && function != only) continue;
      std::fill(std::begin(enabled[function]), std::end(enabled[function]), excludes);
      for (const std::string& name : split(list, ',')) {
        const int index = find(names, name);
        if (index < 0) return "Unrecognized element token \"" + name + "\" when parsing \"" + text + "\"";
        enabled[function][index] = !excludes;
      }
    }
  }
  return "";
}

// A parameter as NCCL reads it; `otherwise` where it is unset or no number.
long number(const char* name, long otherwise) {
  const char* text = getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long value = strtol(text, &end, 0);
  if (end == text || *end != '\0') {
    info("Invalid value %s for %s, using default %ld.", text, name, otherwise);
    return otherwise;
  }
  info("%s set by environment to %ld.", name, value);
  return value;
}

// POWERCCL_EMULATOR_HANGS: "A=1,B=LL,LL128;C=2" holds if A and B, or C, are set to just that.
bool matches_hangs() {
  const char* text = getenv("POWERCCL_EMULATOR_HANGS");
  if (!text || !*text) return false;
  for (const std::string& configuration : split(text, ';')) {
    std::vector<std::string> wanted;
    for (const std::string& part : split(configuration, ',')) {
      if (part.find('=') == std::string::npos && !wanted.empty())
        wanted.back() += "," + part;
      else
        wanted.push_back(part);
    }
    const bool all = !wanted.empty() && std::all_of(wanted.begin(), wanted.end(), [](const std::string& setting) {
      const size_t equals = setting.find('=');
      if (equals == std::string::npos) return false;
      const char* value = getenv(setting.substr(0, equals).c_str());
      return value && setting.substr(equals + 1) == value;
    });
    if (all) return true;
  }
  return false;
}

// NCCL's bounds of NCCL_NTHREADS: what is no multiple of a warp or too much becomes the most.
uint32_t threads_of(long asked) {
  constexpr long kWarp = 32, kLeast = 64, kMost = 512;
  if (asked <= 0) return 0;
  if (asked % kWarp != 0 || asked > kMost) return kMost;
  return static_cast<uint32_t>(std::max(asked, kLeast));
}

void read_sockets(NcclSettings& wire) {
  constexpr long kMostThreads = 16, kMostSockets = 64;
  const long threads = std::min(number("NCCL_SOCKET_NTHREADS", 0), kMostThreads);
  long sockets = number("NCCL_NSOCKS_PERTHREAD", 0);
  if (threads > 0) wire.socket_threads = static_cast<uint32_t>(threads);
  sockets = std::min(sockets, kMostSockets / std::max(threads, 1L));
  if (sockets > 0) wire.sockets_per_thread = static_cast<uint32_t>(sockets);
}

bool any_set() {
  constexpr const char* kModelled[] = {
      "NCCL_ALGO",          "NCCL_PROTO",      "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",        "NCCL_MIN_NCHANNELS",
      "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS",   "NCCL_BUFFSIZE", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD",
      "NCCL_P2P_DISABLE",   "NCCL_SHM_DISABLE"};
  return std::any_of(std::begin(kModelled), std::end(kModelled), [](const char* name) {
    const char* value = getenv(name);
    return value && *value;
  });
}

void read_lists(Settings& read) {
  for (auto& functions : read.algorithm) std::fill(std::begin(functions), std::end(functions), true);
  for (auto& functions : read.protocol) std::fill(std::begin(functions), std::end(functions), true);
  if (const char* text = getenv("NCCL_PROTO"); text && *text) {
    info("NCCL_PROTO set by environment to %s", text);
    read.protocols_given = true;
    read.protocols_text = text;
    read.complaint = parse_list(text, kProtocolNames, read.protocol);
    // An entry that names no function speaks for all; one that does leaves the others to the platform.
    const std::vector<std::string> entries = split(text, ';');
    for (const std::string& entry : entries) {
      const size_t colon = entry.find(':');
      const int only = colon == std::string::npos ? -1 : find(kFunctionNames, entry.substr(0, colon));
      for (int function = 0; function < kFunctions; ++function)
        if (only < 0 || function == only) read.ll128_asked[function] = read.protocol[function][emulator::kLl128];
    }
  }
  if (const char* text = getenv("NCCL_ALGO"); text && *text) {
    info("NCCL_ALGO set by environment to %s", text);
    read.algorithms_given = true;
    read.algorithms_text = text;
    const std::string complaint = parse_list(text, kAlgorithmNames, read.algorithm);
    if (read.complaint.empty()) read.complaint = complaint;
  }
  if (!read.complaint.empty()) read.valid = ncclInvalidUsage;
}

Settings read() {
  Settings read;
  read_lists(read);
  read.min_channels = static_cast<int>(std::clamp(number("NCCL_MIN_NCHANNELS", 0), 0L, long{kMostChannels}));
  read.max_channels =
      static_cast<int>(std::clamp(number("NCCL_MAX_NCHANNELS", kMostChannels), 1L, long{kMostChannels}));
  const auto ctas = [](const char* name) {
    const long value = number(name, 0);
    if (value > 0 && value <= kMostChannels) return static_cast<int>(value);
    if (value != 0) info("%s %ld is not a valid value, ignored", name, value);
    return kConfigUndefined;
  };
  read.min_ctas = ctas("NCCL_MIN_CTAS");
  read.max_ctas = ctas("NCCL_MAX_CTAS");
  if (const char* policy = getenv("NCCL_CTA_POLICY"); policy && *policy) {
    const std::string prefix = "NCCL_CTA_POLICY_";
    const char* name = strncasecmp(policy, prefix.c_str(), prefix.size()) == 0 ? policy + prefix.size() : policy;
    read.cta_policy = strcasecmp(name, "ZERO") == 0         ? kCtaPolicyZero
                      : strcasecmp(name, "EFFICIENCY") == 0 ? kCtaPolicyEfficiency
                                                            : static_cast<int>(number("NCCL_CTA_POLICY", 0));
  }
  read.windows = number("NCCL_WIN_ENABLE", 1) != 0;
  NcclSettings& wire = read.wire;
  wire.threads = threads_of(number("NCCL_NTHREADS", 0));
  if (const long bytes = number("NCCL_BUFFSIZE", 0); bytes > 0) wire.buffer_bytes = static_cast<uint64_t>(bytes);
  read_sockets(wire);
  if (number("NCCL_P2P_DISABLE", 0) == 1) wire.flags |= NcclSettings::kP2pDisabled;
  if (number("NCCL_SHM_DISABLE", 0) == 1) wire.flags |= NcclSettings::kShmDisabled;
  if (any_set()) wire.flags |= NcclSettings::kTuned;
  if (matches_hangs()) wire.flags |= NcclSettings::kHangs;
  wire.seed = static_cast<uint64_t>(number("POWERCCL_EMULATOR_SEED", 0));
  return read;
}

}  // namespace

const Settings& settings() {
  static const Settings once = read();
  return once;
}

int channels_of(int usual, int config_min, int config_max) {
  const Settings& given = settings();
  int least = given.min_ctas != kConfigUndefined ? given.min_ctas : config_min;
  int most = given.max_ctas != kConfigUndefined ? given.max_ctas : config_max;
  if (least == kConfigUndefined) least = 1;
  if (most == kConfigUndefined) most = kMostChannels;
  if (least > most) {
    info("minCTAs %d is larger than maxCTAs %d, both set to their defaults", least, most);
    least = 1;
    most = kMostChannels;
  }
  const int channels = std::min({usual, given.max_channels, most});
  return std::clamp(std::max({channels, given.min_channels, least}), 1, kMostChannels);
}

}  // namespace powerccl::emulated_nccl
