// SPDX-License-Identifier: Apache-2.0
// The daemon's metrics in Prometheus' text format.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/server.h"

namespace powerccl::daemon {
namespace {

class Page {
 public:
  void begin(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
    name_ = name;
  }
  void add(double value, const std::string& labels = "") {
    char number[32];
    std::snprintf(number, sizeof number, "%.15g", value);
    text_ += name_ + (labels.empty() ? "" : "{" + labels + "}") + " " + number + "\n";
  }
  void one(const char* name, const char* type, const char* help, double value) {
    begin(name, type, help);
    add(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_, name_;
};

}  // namespace

std::string Server::metrics() const {
  Page page;
  const Counters& counters = table_.counters();
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  page.one("powerccl_lease_sessions", "gauge", "Connections at this moment.", number(sessions_.size()));
  page.begin("powerccl_lease_held", "gauge", "1 while a device is leased.");
  for (size_t i = 0; i < table_.size(); ++i) {
    const DeviceView view = table_.view(i);
    page.add(view.holder != nullptr ? 1 : 0, "device=\"" + view.about->device + "\"");
  }
  page.begin("powerccl_lease_clock_max_hertz", "gauge", "Highest clock a lease has set; 0: default.");
  for (size_t i = 0; i < table_.size(); ++i) {
    const DeviceView view = table_.view(i);
    page.add(view.max_mhz * 1e6, "device=\"" + view.about->device + "\"");
  }
  page.begin("powerccl_lease_restore_pending", "gauge", "1 while a clock is still to be restored.");
  for (size_t i = 0; i < table_.size(); ++i) {
    const DeviceView view = table_.view(i);
    page.add(view.pending ? 1 : 0, "device=\"" + view.about->device + "\"");
  }
  page.one("powerccl_lease_grants_total", "counter", "Leases granted.", number(counters.granted));
  page.one("powerccl_lease_refusals_total", "counter", "Requests of leases and clocks refused.",
           number(counters.refused));
  page.begin("powerccl_lease_ends_total", "counter", "Leases ended, by how.");
  for (int i = 0; i < kEndings; ++i)
    page.add(number(counters.ended[i]), std::string("how=\"") + text_of(static_cast<Ending>(i)) + "\"");
  page.one("powerccl_lease_clock_changes_total", "counter", "Clocks set for leases.", number(counters.changes));
  page.one("powerccl_lease_clock_restores_total", "counter", "Clocks restored.", number(counters.restores));
  page.one("powerccl_lease_clock_superseded_total", "counter", "Clocks not set because a newer request came first.",
           number(counters.superseded));
  page.one("powerccl_lease_clock_clamped_total", "counter", "Clocks moved into the administrator's range.",
           number(counters.clamped));
  page.one("powerccl_lease_driver_failures_total", "counter", "Clocks that the driver could not set.",
           number(counters.driver_failures));
  page.one("powerccl_lease_restore_failures_total", "counter", "Times that the driver could not restore a clock.",
           number(counters.restore_failures));
  page.one("powerccl_lease_driver_seconds_total", "counter", "Time in the driver's calls.",
           number(counters.driver_us) / 1e6);
  page.one("powerccl_lease_requests_total", "counter", "Requests understood.", number(tally_.requests));
  page.one("powerccl_lease_foreign_messages_total", "counter", "Messages by another process than the connection's own.",
           number(tally_.foreign));
  page.one("powerccl_lease_bad_messages_total", "counter", "Messages that are not of the protocol.",
           number(tally_.nonsense));
  page.one("powerccl_lease_replayed_messages_total", "counter", "Messages received again.", number(tally_.replayed));
  page.one("powerccl_lease_turned_away_total", "counter", "Connections refused because there were too many.",
           number(tally_.turned_away));
  page.one("powerccl_lease_delays_total", "counter", "Times that a connection was too fast.", number(tally_.delayed));
  return page.text();
}

void Server::write_metrics() {
  const std::string& path = settings_.config.metrics_file;
  const std::string fresh = path + ".new";
  const std::string text = metrics();
  // The folder may be another user's (node_exporter's): a link or a FIFO there is not opened but replaced.
  unlink(fresh.c_str());
  const int opened = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  std::FILE* file = opened < 0 ? nullptr : fdopen(opened, "w");
  bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr && std::fclose(file) != 0) written = false;
  if (written && std::rename(fresh.c_str(), path.c_str()) == 0) {
    metrics_failed_ = false;
    return;
  }
  if (!metrics_failed_) log(kWarning, "%s cannot be written: %s", path.c_str(), std::strerror(errno));
  metrics_failed_ = true;
}

}  // namespace powerccl::daemon
