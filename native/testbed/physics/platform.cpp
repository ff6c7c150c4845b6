// SPDX-License-Identifier: Apache-2.0
#include "physics/platform.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

namespace powerccl::physics {
namespace {

constexpr size_t kMostBytes = 256 * 1024;  // of a file; the largest of ours has 7 KB

constexpr const char* kPatternNames[kPatterns] = {"all_reduce",   "broadcast", "reduce", "all_gather", "reduce_scatter",
                                                  "send_receive", "scatter",   "gather", "all_to_all"};

constexpr const char* kCarrierNames[kCarriers - 1] = {"symmetric", "copy_engine", "efficiency"};

double interpolate(const Line& line, double x, double otherwise) {
  if (line.empty()) return otherwise;
  if (x <= line.front().first) return line.front().second;
  for (size_t i = 1; i < line.size(); ++i) {
    if (x <= line[i].first) {
      const double share = (x - line[i - 1].first) / (line[i].first - line[i - 1].first);
      return line[i - 1].second + share * (line[i].second - line[i - 1].second);
    }
  }
  return line.back().second;
}

// Straight between the points on logarithmic axes both: with bandwidth at most proportional to size no larger operation
// is faster than a smaller one.
double power_law(const SizeCurve& curve, double bytes) {
  SizeCurve logarithms;
  logarithms.reserve(curve.size());
  for (const auto& [size, value] : curve) logarithms.emplace_back(size, std::log2(value));
  return std::exp2(at_size(logarithms, bytes, 0));
}

bool parse_number(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && std::isfinite(value);
}

bool parse_bytes(const std::string& text, double& value) {
  std::string digits = text;
  double scale = 1;
  if (!digits.empty()) {
    const char unit = digits.back();
    if (unit == 'K') scale = 1024.0;
    if (unit == 'M') scale = 1024.0 * 1024;
    if (unit == 'G') scale = 1024.0 * 1024 * 1024;
    if (scale != 1) digits.pop_back();
  }
  if (!parse_number(digits, value)) return false;
  value *= scale;
  return value > 0;
}

// "128K:0.9 256K:1.2": sizes (or plain numbers) and values, ascending
bool parse_curve(const std::string& text, bool sizes, std::vector<std::pair<double, double>>& curve) {
  std::istringstream words(text);
  std::string word;
  curve.clear();
  while (words >> word) {
    const size_t colon = word.find(':');
    if (colon == std::string::npos) return false;
    double x, y;
    if (!(sizes ? parse_bytes(word.substr(0, colon), x) : parse_number(word.substr(0, colon), x))) return false;
    if (!parse_number(word.substr(colon + 1), y)) return false;
    if (!curve.empty() && x <= curve.back().first) return false;
    curve.emplace_back(x, y);
  }
  return !curve.empty();
}

std::string trim(const std::string& text) {
  const size_t from = text.find_first_not_of(" \t\r");
  if (from == std::string::npos) return "";
  return text.substr(from, text.find_last_not_of(" \t\r") - from + 1);
}

// A file's text, fit for a message: it may be long, and mean something to a terminal.
std::string shown(const std::string& text) {
  std::string clean = text.substr(0, 60);
  std::replace_if(clean.begin(), clean.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return clean;
}

using Setter = std::function<bool(const std::string&)>;

// What a file may set: keys of one kind at a time, under a prefix.
class Keys {
 public:
  explicit Keys(std::map<std::string, Setter>& setters, std::string prefix = "")
      : setters_(setters), prefix_(std::move(prefix)) {}

  template <typename Field>
  using Fields = std::initializer_list<std::pair<const char*, Field*>>;

  // Numbers from `low` (with it only if `or_equal`) to `high`.
  void numbers(Fields<double> fields, double low = 0, bool or_equal = true, double high = HUGE_VAL) {
    for (const auto& [key, field] : fields) {
      setters_[prefix_ + key] = [=, number = field](const std::string& text) {
        return parse_number(text, *number) && (*number > low || (or_equal && *number == low)) && *number <= high;
      };
    }
  }
  void wholes(Fields<uint32_t> fields) {
    for (const auto& [key, field] : fields) {
      setters_[prefix_ + key] = [whole = field](const std::string& text) {
        double value;
        if (!parse_number(text, value) || value < 0 || value > 4e9 || value != std::floor(value)) return false;
        *whole = static_cast<uint32_t>(value);
        return true;
      };
    }
  }
  void flags(Fields<bool> fields) {
    for (const auto& [key, field] : fields) {
      setters_[prefix_ + key] = [flag = field](const std::string& text) {
        *flag = text == "1";
        return text == "0" || text == "1";
      };
    }
  }
  void curves(bool sizes, Fields<SizeCurve> fields) {
    for (const auto& [key, field] : fields) {
      setters_[prefix_ + key] = [sizes, curve = field](const std::string& text) {
        return parse_curve(text, sizes, *curve);
      };
    }
  }
  void texts(size_t size, Fields<std::string> fields) {
    for (const auto& [key, field] : fields) {
      setters_[prefix_ + key] = [size, kept = field](const std::string& text) {
        return !(*kept = text).empty() && text.size() < size;
      };
    }
  }

 private:
  std::map<std::string, Setter>& setters_;
  std::string prefix_;
};

void add_platform(std::map<std::string, Setter>& setters, Platform& p) {
#define OF(field) {#field, &p.field}
  Keys keys(setters);
  keys.texts(32, {OF(name)});
  keys.texts(64, {OF(gpu_name)});
  keys.texts(60, {OF(driver_version)});
  keys.wholes({OF(gpus), OF(hosts), OF(multiprocessors), OF(nccl_channels), OF(nccl_warps), OF(compute_major),
               OF(compute_minor), OF(clock_min_mhz), OF(clock_max_mhz), OF(clock_step_mhz), OF(clock_idle_mhz),
               OF(memory_clock_mhz)});
  keys.numbers({OF(network_gbs), OF(network_latency_us), OF(network_hop_us), OF(reference_clock_mhz),
                OF(memory_bound_share), OF(overlap_compute_rate)});
  keys.numbers({OF(kernel_launch_us), OF(hostfunc_us), OF(memop_us), OF(event_us), OF(copy_launch_us),
                OF(copy_host_gbs), OF(copy_device_gbs)});
  keys.numbers(
      {OF(idle_p8_w), OF(idle_drop_ms), OF(static_w), OF(tree_w), OF(compute_w), OF(memory_static_w), OF(memory_w)});
  keys.numbers({OF(comm_clock_w), OF(leakage_w_per_kv), OF(leakage_reference_c), OF(ambient_c), OF(thermal_k_per_w),
                OF(gpu_spread), OF(thermal_tau_ms)});
  keys.numbers({OF(start_temperature_c), OF(power_limit_w), OF(peak_limit_w), OF(governor_period_ms),
                OF(governor_lag_ms), OF(governor_step_mhz), OF(governor_slow_ms), OF(governor_slow_gain)});
  keys.numbers({OF(governor_start_w), OF(link_scale), OF(refresh_ms), OF(energy_read_us), OF(set_clock_call_us),
                OF(set_clock_call_spread), OF(clock_transition_spread), OF(set_clock_stall_us)});
  keys.numbers({{"kernel_compute", &p.kernel.compute}, {"kernel_memory", &p.kernel.memory}});
  keys.numbers({OF(governor_low_w), OF(governor_high_w)}, -HUGE_VAL);
  keys.flags({OF(set_clock_serialised), OF(may_set_clocks)});
  keys.curves(false, {OF(gpu_draws), OF(voltage_v)});
  keys.curves(true, {OF(comm_w)});
#undef OF
  setters["memory"] = [&p](const std::string& text) {
    double bytes;
    if (!parse_bytes(text, bytes) || bytes > 1e18) return false;
    p.memory_bytes = static_cast<uint64_t>(bytes);
    return true;
  };
  setters["clock_transition_us"] = [&p](const std::string& text) {
    double always;
    if (parse_number(text, always)) {
      p.clock_transition_us = {{0, always}};
    } else if (!parse_curve(text, false, p.clock_transition_us)) {
      return false;
    }
    return std::ranges::all_of(p.clock_transition_us, [](const auto& point) { return point.second >= 0; });
  };
}

void add_tuning(std::map<std::string, Setter>& setters, TuningModel& t) {
#define OF(field) {#field, &t.field}
  Keys keys(setters, "tune.");
  keys.numbers({OF(nvls_bandwidth), OF(channel_latency), OF(threads_exponent), OF(buffer_fill),
                OF(socket_workers_exponent), OF(socket_gain), OF(socket_contention), OF(socket_latency)});
  keys.numbers({OF(ll_latency), OF(ll128_latency), OF(tree_latency), OF(nvls_latency), OF(ll_bandwidth),
                OF(ll128_bandwidth), OF(tree_bandwidth), OF(p2p_disabled), OF(shm_disabled)},
               0, false);
  keys.numbers({OF(latency_share), OF(channel_power), OF(buffer_gain), OF(run_noise), OF(op_noise)}, 0, true, 1);
  keys.flags({OF(ll128), OF(noise_always)});
  keys.curves(true, {OF(channel_half)});
#undef OF
}

void add_patterns(std::map<std::string, Setter>& setters, Platform& p) {
  for (size_t i = 0; i < kPatterns; ++i) {
    const std::string name = kPatternNames[i];
    PatternModel& model = p.patterns[i];
    Keys keys(setters, name + ".");
    keys.curves(true, {{"bandwidth_gbs", &model.bandwidth_gbs},
                       {"knee_mhz", &model.knee_mhz},
                       {"boost", &model.boost},
                       {"fall", &model.fall}});
    keys.numbers({{"base_latency_us", &model.base_latency_us}}, 0, false);
    for (size_t way = 0; way < kCarriers - 1; ++way) {
      WayModel& factors = p.ways[way][i];
      Keys(setters, std::string(kCarrierNames[way]) + "." + name + ".")
          .curves(true, {{"time", &factors.time}, {"power", &factors.power}, {"slows", &factors.slows}});
    }
  }
}

// "key = value", and the key is spent. False: `error` says what is wrong with it, and where.
bool apply(const std::string& text, const std::string& where, std::map<std::string, Setter>& keys,
           std::map<std::string, std::string>& in_force, std::string& error) {
  const size_t equals = text.find('=');
  const std::string key = equals == std::string::npos ? text : trim(text.substr(0, equals));
  const auto setter = keys.find(key);
  const char* wrong = equals == std::string::npos                      ? "not `key = value`"
                      : setter == keys.end()                           ? "unknown key, or given twice"
                      : !setter->second(trim(text.substr(equals + 1))) ? "value not understood"
                                                                       : nullptr;
  if (wrong == nullptr) {
    keys.erase(setter);
    in_force[key] = trim(text.substr(equals + 1));
    return true;
  }
  error = where;
  error.append(": ").append(shown(key)).append(": ").append(wrong);
  return false;
}

// FNV-1a, 32 bits: it tells platforms apart by accident, not against intent.
uint32_t fingerprint_of(const std::map<std::string, std::string>& in_force) {
  uint32_t hash = 0x811c9dc5u;
  const auto take = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193u;
  };
  for (const auto& [key, value] : in_force) {
    take(key);
    take("=");
    take(value);
    take("\n");
  }
  return hash;
}

// The text of a plain file; anything else may keep its reader waiting, or never end. Returns what is wrong.
std::string read_text(const std::string& path, std::string* text) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return std::strerror(errno);
  struct stat about{};
  std::string why;
  if (fstat(file, &about) != 0)
    why = std::strerror(errno);
  else if (!S_ISREG(about.st_mode))
    why = "not a regular file";
  char part[4096];
  ssize_t got = 1;
  while (why.empty() && got != 0) {
    got = read(file, part, sizeof part);
    if (got < 0 && errno != EINTR) why = std::strerror(errno);
    if (got > 0) text->append(part, static_cast<size_t>(got));
    if (text->size() > kMostBytes) why = "it is larger than " + std::to_string(kMostBytes) + " bytes";
  }
  close(file);
  return why;
}

// "a.conf:x=1,y=2" -> "a.conf" and {"x=1", "y=2"}. Values have colons of their own, but no commas.
std::pair<std::string, std::vector<std::string>> split_changes(const std::string& path) {
  constexpr std::string_view kEnding = ".conf";
  const size_t ending = path.find(std::string(kEnding) + ":");
  if (ending == std::string::npos) return {path, {}};
  std::vector<std::string> changes;
  std::istringstream text(path.substr(ending + kEnding.size() + 1));
  for (std::string change; std::getline(text, change, ',');) changes.push_back(change);
  return {path.substr(0, ending + kEnding.size()), changes};
}

// What the engine could not live with; the reader's message names the key.
const char* missing(const Platform& p) {
  if (p.name.empty()) return "name is missing";
  if (p.gpu_name.empty()) return "gpu_name is missing";
  if (p.gpus < 1 || p.gpus > kMaxGpus) return "gpus must be 1 to 64";
  if (p.hosts < 1 || p.gpus % p.hosts != 0) return "hosts must divide gpus";
  if (p.hosts > 1 && p.network_gbs <= 0) return "network_gbs is missing: there are several hosts";
  if (p.memory_bytes == 0) return "memory is missing";
  if (p.clock_step_mhz == 0 || p.clock_min_mhz == 0 || p.clock_max_mhz <= p.clock_min_mhz)
    return "clock_*_mhz are missing or make no range";
  if (p.clock_idle_mhz < p.clock_min_mhz || p.clock_idle_mhz > p.clock_max_mhz)
    return "clock_idle_mhz is outside the range";
  if (p.reference_clock_mhz <= 0) return "reference_clock_mhz is missing";
  if (p.memory_bound_share > 1) return "memory_bound_share is a share of 1";
  if (p.kernel.compute > 1 || p.kernel.memory > 1) return "kernel_compute and kernel_memory are shares of 1";
  if (p.overlap_compute_rate <= 0) return "overlap_compute_rate must be above 0";
  if (p.voltage_v.empty()) return "voltage_v is missing";
  if (p.gpu_spread < 0 || p.gpu_spread > 0.5) return "gpu_spread must be from 0 to 0.5";
  for (const auto& [gpu, times] : p.gpu_draws) {
    if (times < 0.5 || times > 2) return "gpu_draws must have factors from 0.5 to 2";
  }
  if (p.power_limit_w <= 0) return "power_limit_w is missing";
  if (p.governor_low_w > p.governor_high_w) return "governor_low_w is above governor_high_w";
  if (p.set_clock_call_spread > 2 || p.clock_transition_spread > 2) return "a spread must be at most 2";
  if (p.link_scale <= 0) return "link_scale must be above 0";
  if (p.refresh_ms <= 0 || p.governor_period_ms <= 0 || p.governor_lag_ms <= 0 || p.thermal_tau_ms <= 0 ||
      p.governor_slow_ms <= 0)
    return "a period or time constant is 0";
  if (p.copy_host_gbs <= 0 || p.copy_device_gbs <= 0) return "copy_*_gbs must be above 0";
  if (p.tune.buffer_gain > 0.24) return "tune.buffer_gain must be below 0.25: four halvings take it away four times";
  for (const PatternModel& model : p.patterns) {
    if (model.bandwidth_gbs.empty()) return "a pattern has no bandwidth_gbs";
    for (const auto& point : model.bandwidth_gbs)
      if (point.second <= 0) return "a bandwidth is not above 0";
  }
  return nullptr;
}

}  // namespace

double at_size(const SizeCurve& curve, double bytes, double otherwise) {
  if (curve.empty()) return otherwise;
  if (bytes <= curve.front().first) return curve.front().second;
  for (size_t i = 1; i < curve.size(); ++i) {
    if (bytes <= curve[i].first) {
      const double from = std::log2(curve[i - 1].first);
      const double share = (std::log2(bytes) - from) / (std::log2(curve[i].first) - from);
      return curve[i - 1].second + share * (curve[i].second - curve[i - 1].second);
    }
  }
  return curve.back().second;
}

const char* pattern_name(Pattern pattern) {
  return kPatternNames[static_cast<size_t>(pattern)];
}

double bus_factor(Pattern pattern, uint32_t nranks) {
  const double n = nranks;
  if (nranks < 1) return 0;
  switch (pattern) {
    case Pattern::kAllReduce:
      return 2 * (n - 1) / n;
    case Pattern::kAllGather:
    case Pattern::kReduceScatter:
    case Pattern::kScatter:
    case Pattern::kGather:
    case Pattern::kAllToAll:
      return (n - 1) / n;
    default:
      return 1;
  }
}

double Platform::bus_bandwidth_gbs(Pattern pattern, double bytes, double clock_mhz, uint32_t) const {
  const PatternModel& model = patterns[static_cast<size_t>(pattern)];
  const double first = model.bandwidth_gbs.front().first;
  // Below the first point the time is what it is there: latency.
  double bandwidth = link_scale * power_law(model.bandwidth_gbs, bytes) * std::min(1.0, bytes / first);
  const double knee = at_size(model.knee_mhz, bytes, clock_min_mhz);
  const double boost = at_size(model.boost, bytes, 0);
  if (clock_mhz >= knee) {
    if (clock_max_mhz > knee)
      bandwidth *= 1 + boost * (clock_max_mhz - std::min<double>(clock_mhz, clock_max_mhz)) / (clock_max_mhz - knee);
  } else {
    bandwidth *= (1 + boost) * std::pow(clock_mhz / knee, at_size(model.fall, bytes, 1));
  }
  return bandwidth;
}

double Platform::collective_ns(Pattern pattern, double bytes, double clock_mhz, uint32_t nranks) const {
  const double base = patterns[static_cast<size_t>(pattern)].base_latency_us * 1e3;
  if (bytes <= 0) return base;
  return std::max(base, bytes * bus_factor(pattern, nranks) / bus_bandwidth_gbs(pattern, bytes, clock_mhz, nranks));
}

double Platform::network_ns(Pattern pattern, double bytes, uint32_t nranks, uint32_t of_hosts,
                            uint32_t adapters) const {
  const bool joined =
      pattern == Pattern::kAllReduce || pattern == Pattern::kAllGather || pattern == Pattern::kReduceScatter;
  return bytes * bus_factor(pattern, joined ? of_hosts : nranks) / (network_gbs * adapters);
}

double Platform::network_latency_ns(Pattern pattern, double bytes, uint32_t of_hosts) const {
  const double tree = std::ceil(std::log2(of_hosts)), ring = of_hosts - 1.0;
  const bool has_tree = pattern == Pattern::kAllReduce || pattern == Pattern::kBroadcast || pattern == Pattern::kReduce;
  const double hops = (has_tree ? tree : ring) * (pattern == Pattern::kAllReduce ? 2 : 1);
  constexpr double kMib = 1024.0 * 1024, kPower = 0.4;  // fitted to 4 to 2,048 GPUs with four adapters a host
  const double fills_us = has_tree ? network_hop_us * std::pow(bytes / kMib, kPower) : 0;
  return hops * (network_latency_us + fills_us) * 1e3;
}

double Platform::kernel_w(const Activity& activity, double clock_mhz) const {
  const double f_v2 = fv2(clock_mhz);
  return activity.compute * compute_w * f_v2 + activity.memory * (memory_static_w + memory_w * f_v2);
}

double Platform::communication_w(double bytes, double clock_mhz) const {
  return at_size(comm_w, std::max(bytes, 1.0), 0) + comm_clock_w * fv2(clock_mhz);
}

// The spread is even over its range, in no order of the number.
double Platform::draws(uint32_t gpu) const {
  constexpr double kGolden = 0.618034;
  const double place = gpu * kGolden;
  return (1 + gpu_spread * (2 * (place - std::floor(place)) - 1)) * interpolate(gpu_draws, gpu, 1);
}

double Platform::volts(double clock_mhz) const {
  return interpolate(voltage_v, clock_mhz, 1);
}

double Platform::transition_us(uint32_t target_mhz) const {
  return interpolate(clock_transition_us, target_mhz == 0 ? clock_max_mhz : target_mhz, 0);
}

double Platform::fv2(double clock_mhz) const {
  return clock_mhz * volts(clock_mhz) * volts(clock_mhz);
}

double Platform::snap_mhz(double clock_mhz) const {
  const double steps = std::floor((std::min<double>(clock_mhz, clock_max_mhz) - clock_min_mhz) / clock_step_mhz + 1e-9);
  return clock_min_mhz + std::max(0.0, steps) * clock_step_mhz;
}

std::optional<Platform> read_platform(const std::string& path, std::string& error) {
  const auto [file_path, changes] = split_changes(path);
  std::string text;
  if (const std::string why = read_text(file_path, &text); !why.empty()) {
    error = file_path + ": cannot be read: " + why +
            "\nhint: `powerccl run --emulate t4x8` names a built-in platform; a path must lead to a .conf file";
    return std::nullopt;
  }
  return parse_platform(text, file_path, changes, error);
}

std::optional<Platform> parse_platform(const std::string& content, const std::string& file_path,
                                       const std::vector<std::string>& changes, std::string& error) {
  Platform p;
  std::map<std::string, Setter> keys;
  add_platform(keys, p);
  add_patterns(keys, p);
  add_tuning(keys, p.tune);
  // Each key once: the file's lines and the changes take from lists of their own.
  std::map<std::string, Setter> unchanged = keys;
  std::map<std::string, std::string> in_force;
  std::istringstream lines(content);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string text = trim(line.substr(0, line.find('#')));
    if (!text.empty() && !apply(text, file_path + ":" + std::to_string(number), keys, in_force, error)) {
      return std::nullopt;
    }
  }
  for (const std::string& change : changes) {
    if (!apply(trim(change), file_path + ": change", unchanged, in_force, error)) return std::nullopt;
  }
  if (const char* what = missing(p)) {
    error = file_path + ": " + what;
    return std::nullopt;
  }
  p.fingerprint = fingerprint_of(in_force);
  return p;
}

}  // namespace powerccl::physics
