// SPDX-License-Identifier: Apache-2.0
#include "beliefs.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace powerccl::leases {
namespace {

struct Belief {
  uint32_t client;
  uint32_t life;
  uint16_t gpu;
  bool shared;
  int64_t begin_ns, end_ns;
};

struct Revoking {
  uint16_t gpu;
  int64_t begin_ns, end_ns;
};

class Reader {
 public:
  explicit Reader(const Shared& shared) : shared_(shared) {
    for (const ClientSlot& slot : shared.client) read_revokings(slot);
  }

  void read(uint32_t number) {
    const ClientSlot& slot = shared_.client[number];
    const uint32_t events = slot.events.load();
    const int64_t killed_ns = slot.killed_ns.load();
    for (uint32_t i = 0; i < events; ++i) {
      if (slot.event[i].what != What::kGranted) continue;
      const Event& granted = slot.event[i];
      Belief belief{number,        granted.life,
                    granted.gpu,   granted.detail != 0,
                    granted.at_ns, killed_ns != 0 ? killed_ns : INT64_MAX};
      for (uint32_t j = i + 1; j < events; ++j) {
        const Event& event = slot.event[j];
        if (event.gpu != granted.gpu || (event.what != What::kLeaving && event.what != What::kEnded)) continue;
        belief.end_ns = std::min(belief.end_ns, event.at_ns);
        break;
      }
      // What the daemon said of it may lie unread on the socket of a client that is stopped.
      belief.end_ns = std::min(belief.end_ns, first_revoking(granted.gpu, first_asked_ns(slot, i)));
      belief.end_ns = std::min(belief.end_ns, silent_ns(slot, i, belief.end_ns));
      beliefs_.push_back(belief);
    }
  }

  std::string conflict() {
    std::sort(beliefs_.begin(), beliefs_.end(),
              [](const Belief& a, const Belief& b) { return a.begin_ns < b.begin_ns; });
    for (size_t i = 0; i < beliefs_.size(); ++i) {
      for (size_t j = i + 1; j < beliefs_.size(); ++j) {
        const Belief &first = beliefs_[i], &second = beliefs_[j];
        if (first.gpu != second.gpu || first.life != second.life || first.client == second.client) continue;
        if (first.shared && second.shared) continue;
        if (second.begin_ns >= first.end_ns || second.begin_ns >= second.end_ns) continue;
        char text[160];
        snprintf(text, sizeof text, "GPU %u: client %u was granted it while client %u held it and had %lld us to go",
                 first.gpu, second.client, first.client,
                 static_cast<long long>(std::min(first.end_ns - second.begin_ns, int64_t{1'000'000'000}) / 1000));
        return text;
      }
    }
    return "";
  }

 private:
  // A daemon that reads a connection late, for its rate, may carry one out long after it was sent.
  void read_revokings(const ClientSlot& slot) {
    const uint32_t events = slot.events.load();
    for (uint32_t i = 0; i < events; ++i) {
      const Event& begin = slot.event[i];
      if (begin.what != What::kRevoking) continue;
      // Unanswered, it may be carried out at any time, even behind the end of its connection.
      Revoking revoking{begin.gpu, begin.at_ns, INT64_MAX};
      for (uint32_t j = i + 1; j < events; ++j)
        if (slot.event[j].what == What::kRevoked && slot.event[j].detail == begin.detail)
          revoking.end_ns = slot.event[j].at_ns;
      revokings_.push_back(revoking);
    }
  }

  // Of the requests that this may be the answer to: several may have been on their way.
  static int64_t first_asked_ns(const ClientSlot& slot, uint32_t granted) {
    int64_t first = slot.event[granted].at_ns;
    for (uint32_t i = granted; i-- > 0;) {
      if (slot.event[i].gpu != slot.event[granted].gpu) continue;
      if (slot.event[i].what == What::kGranted) break;
      if (slot.event[i].what == What::kAsking) first = slot.event[i].at_ns;
    }
    return first;
  }

  static int64_t asked_ns(const ClientSlot& slot, uint32_t granted) {
    for (uint32_t i = granted; i-- > 0;)
      if (slot.event[i].what == What::kAsking && slot.event[i].gpu == slot.event[granted].gpu)
        return slot.event[i].at_ns;
    return 0;
  }

  int64_t first_revoking(uint16_t gpu, int64_t since_ns) const {
    int64_t first = INT64_MAX;
    for (const Revoking& revoking : revokings_)
      if ((revoking.gpu == gpu || revoking.gpu == kAllGpus) && revoking.end_ns >= since_ns)
        first = std::min(first, std::max(revoking.begin_ns, since_ns));
    return first;
  }

  // When the client had been silent for so long that it must not count on its lease.
  int64_t silent_ns(const ClientSlot& slot, uint32_t granted, int64_t end_ns) const {
    const int64_t patience_ns = int64_t{shared_.heartbeat_ms} * 500'000;
    int64_t spoken_ns = asked_ns(slot, granted);
    for (uint32_t i = granted; i < slot.events.load() && slot.event[i].at_ns < end_ns; ++i) {
      if (slot.event[i].what != What::kSpoke) continue;
      if (slot.event[i].at_ns - spoken_ns > patience_ns) break;
      spoken_ns = slot.event[i].at_ns;
    }
    return spoken_ns + patience_ns;
  }

  const Shared& shared_;
  std::vector<Revoking> revokings_;
  std::vector<Belief> beliefs_;
};

}  // namespace

std::string find_two_holders(const Shared& shared) {
  Reader reader(shared);
  for (uint32_t number = 0; number < kMostClients; ++number) reader.read(number);
  return reader.conflict();
}

}  // namespace powerccl::leases
