// SPDX-License-Identifier: Apache-2.0
#include "device/rapl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace powerccl::device {
namespace {

constexpr int kZones = 64;  // powercap numbers packages and psys from 0, with gaps after a package went offline
constexpr int kParts = 8;

// What stood in the way, over both roads.
struct Obstacle {
  bool denied = false;
  int number = 0;  // errno of a counter that is there but does not read
};

int open_file(const char* format, ...) __attribute__((format(printf, 1, 2)));
int open_file(const char* format, ...) {
  char path[PATH_MAX];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(path, sizeof path, format, arguments);
  va_end(arguments);
  if (length < 0 || static_cast<size_t>(length) >= sizeof path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  return open(path, O_RDONLY | O_CLOEXEC);
}

// The text of a small file without its newline, and the file is closed; false if it is empty or cannot be read.
bool take_text(int file, char* text, size_t size) {
  if (file < 0) return false;
  const ssize_t length = read(file, text, size - 1);
  close(file);
  text[length > 0 ? length : 0] = '\0';
  text[strcspn(text, "\n")] = '\0';
  return *text != '\0';
}

int64_t parse_number(const char* text) {
  char* end = nullptr;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (end == text || errno != 0 || value < 0 || (*end != '\0' && *end != '\n')) return -1;
  return value;
}

void note(Obstacle* obstacle, int number) {
  if (number == EACCES || number == EPERM) {
    obstacle->denied = true;
  } else {
    obstacle->number = number;
  }
}

bool is_taken(const Rapl* rapl, const char* name) {
  for (int i = 0; i < rapl->domains; ++i)
    if (strcmp(rapl->domain[i].name, name) == 0) return true;
  return false;
}

// Takes the domain over if its counter reads; else closes it.
void add(Rapl* rapl, RaplDomain domain, Obstacle* obstacle) {
  for (char* letter = domain.name; *letter; ++letter)  // it becomes a field of a CSV file
    if (strchr("#,: \t\r\"", *letter)) *letter = '_';
  errno = 0;
  if (rapl->domains < kRaplDomains && rapl_read_uj(&domain) >= 0) {
    rapl->domain[rapl->domains++] = domain;
    return;
  }
  note(obstacle, errno);
  close(domain.file);
}

void add_zone(Rapl* rapl, const char* sysfs, const char* zone, const char* name, Obstacle* obstacle) {
  RaplDomain domain;
  // A second zone of the same name gets a name that the summary does not count: better a part too few.
  snprintf(domain.name, sizeof domain.name, is_taken(rapl, name) ? "%s/%s" : "%s", name, zone);
  domain.file = open_file("%s/class/powercap/%s/energy_uj", sysfs, zone);
  if (domain.file < 0) {
    note(obstacle, errno);
    return;
  }
  char text[32];
  if (take_text(open_file("%s/class/powercap/%s/max_energy_range_uj", sysfs, zone), text, sizeof text)) {
    const int64_t range = parse_number(text);
    domain.range_uj = range > 0 ? range : 0;
  }
  add(rapl, domain, obstacle);
}

// Only intel-rapl: zones, which AMD's are too; intel-rapl-mmio: shows the same packages again.
void open_powercap(Rapl* rapl, const char* sysfs, Obstacle* obstacle) {
  for (int i = 0; i < kZones; ++i) {
    char zone[32];
    char name[24];
    snprintf(zone, sizeof zone, "intel-rapl:%d", i);
    if (!take_text(open_file("%s/class/powercap/%s/name", sysfs, zone), name, sizeof name)) continue;
    add_zone(rapl, sysfs, zone, name, obstacle);
    for (int j = 0; j < kParts; ++j) {
      char part[16];
      char both[48];
      snprintf(zone, sizeof zone, "intel-rapl:%d:%d", i, j);
      if (!take_text(open_file("%s/class/powercap/%s/name", sysfs, zone), part, sizeof part)) continue;
      snprintf(both, sizeof both, "%s/%s", name, part);
      add_zone(rapl, sysfs, zone, both, obstacle);
    }
  }
}

struct PerfEvent {
  const char* name;
  const char* part;  // of the package; "" is all of it
};
constexpr PerfEvent kPerfEvents[] = {{"energy-pkg", ""},
                                     {"energy-cores", "/core"},
                                     {"energy-gpu", "/uncore"},
                                     {"energy-ram", "/dram"},
                                     {"energy-psys", "/psys"}};

// "package-1", or "package-1-die-1" where a counter belongs to a die and the package has been seen.
void name_package(const Rapl* rapl, const char* sysfs, int cpu, char* name, size_t size) {
  char text[32];
  int64_t package = cpu;
  if (take_text(open_file("%s/devices/system/cpu/cpu%d/topology/physical_package_id", sysfs, cpu), text, sizeof text))
    package = parse_number(text);
  snprintf(name, size, "package-%lld", static_cast<long long>(package));
  if (!is_taken(rapl, name)) return;
  int64_t die = cpu;
  if (take_text(open_file("%s/devices/system/cpu/cpu%d/topology/die_id", sysfs, cpu), text, sizeof text))
    die = parse_number(text);
  snprintf(name, size, "package-%lld-die-%lld", static_cast<long long>(package), static_cast<long long>(die));
}

void open_perf_on(Rapl* rapl, const char* sysfs, uint32_t type, int cpu, Obstacle* obstacle) {
  char package[32];
  name_package(rapl, sysfs, cpu, package, sizeof package);
  for (const PerfEvent& event : kPerfEvents) {
    char text[64];
    if (!take_text(open_file("%s/bus/event_source/devices/power/events/%s", sysfs, event.name), text, sizeof text) ||
        strncmp(text, "event=", 6) != 0)
      continue;
    perf_event_attr attributes = {};
    attributes.size = sizeof attributes;
    attributes.type = type;
    attributes.config = strtoull(text + 6, nullptr, 0);
    if (!take_text(open_file("%s/bus/event_source/devices/power/events/%s.scale", sysfs, event.name), text,
                   sizeof text))
      continue;
    RaplDomain domain;
    domain.uj_per_count = strtod(text, nullptr) * 1e6;
    if (!(domain.uj_per_count > 0)) continue;
    domain.file = static_cast<int>(syscall(SYS_perf_event_open, &attributes, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC));
    if (domain.file < 0) {
      note(obstacle, errno);
      continue;
    }
    snprintf(domain.name, sizeof domain.name, "%s%s", package, event.part);
    add(rapl, domain, obstacle);
  }
}

// The PMU's cpumask lists one CPU a package (or die): "0,32" or "0-1".
void open_perf(Rapl* rapl, const char* sysfs, Obstacle* obstacle) {
  char text[256];
  if (!take_text(open_file("%s/bus/event_source/devices/power/type", sysfs), text, sizeof text)) return;
  const auto type = static_cast<uint32_t>(strtoul(text, nullptr, 10));
  if (!take_text(open_file("%s/bus/event_source/devices/power/cpumask", sysfs), text, sizeof text)) return;
  for (char* next = text; *next;) {
    char* end = nullptr;
    const long first = strtol(next, &end, 10);
    if (end == next) return;
    const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
    for (long cpu = first; cpu <= last && rapl->domains < kRaplDomains; ++cpu)
      open_perf_on(rapl, sysfs, type, static_cast<int>(cpu), obstacle);
    if (*end != ',') return;
    next = end + 1;
  }
}

}  // namespace

void rapl_open(Rapl* rapl, const char* sysfs) {
  *rapl = Rapl{};
  Obstacle obstacle;
  rapl->source = "powercap";
  open_powercap(rapl, sysfs, &obstacle);
  if (rapl->domains > 0) return;
  rapl->source = "perf";
  open_perf(rapl, sysfs, &obstacle);
  if (rapl->domains > 0) return;
  rapl->source = "none";
  if (obstacle.denied) {
    snprintf(rapl->reason, sizeof rapl->reason,
             "only root may read the RAPL energy counters; ask for group read access to "
             "/sys/class/powercap/intel-rapl:*/energy_uj, or for kernel.perf_event_paranoid=0");
  } else if (obstacle.number != 0) {
    snprintf(rapl->reason, sizeof rapl->reason, "cannot read the RAPL energy counters: %s", strerror(obstacle.number));
  } else {
    snprintf(rapl->reason, sizeof rapl->reason,
             "no RAPL energy counters on this machine (a virtual machine or container, or the kernel module "
             "intel_rapl_msr is not loaded)");
  }
}

void rapl_close(Rapl* rapl) {
  for (int i = 0; i < rapl->domains; ++i) close(rapl->domain[i].file);
  *rapl = Rapl{};
}

int64_t rapl_read_uj(const RaplDomain* domain) {
  if (domain->uj_per_count > 0) {
    uint64_t count = 0;
    if (read(domain->file, &count, sizeof count) != static_cast<ssize_t>(sizeof count)) return -1;
    return static_cast<int64_t>(static_cast<double>(count) * domain->uj_per_count);
  }
  char text[32];
  const ssize_t length = pread(domain->file, text, sizeof text - 1, 0);
  if (length <= 0) return -1;
  text[length] = '\0';
  return parse_number(text);
}

}  // namespace powerccl::device
