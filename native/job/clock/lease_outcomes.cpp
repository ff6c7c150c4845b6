// SPDX-License-Identifier: Apache-2.0
// What becomes of a lease client when it has no lease: refused for good, or asked again later; and what is said of it.
#include <stdio.h>

#include "base/basics.h"
#include "base/log.h"
#include "clock/lease_client.h"

namespace powerccl {
namespace {

constexpr char kAgain[] = "the job continues at the default clock and asks again until it has a lease";
constexpr int kNoPermission = 4;  // NVML_ERROR_NO_PERMISSION
constexpr char kAdministrator[] = "ask the machine's administrator (/etc/powerccl), or use POWERCCL_CLOCKS=dry";

struct Outcome {
  int status;
  bool for_good;
  const char* text;
  const char* hint;
};
constexpr Outcome kOutcomes[] = {
    {POWERCCL_LEASE_BAD_MESSAGE, true, "powerccld does not understand this client",
     "install powerccld and PowerCCL of one release"},
    {POWERCCL_LEASE_NOT_ALLOWED, true, "powerccld does not allow this user to set it", kAdministrator},
    {POWERCCL_LEASE_NO_DEVICE, true, "powerccld has no such device with a clock of its own",
     "`powerccl doctor` shows the GPUs; a MIG slice has no clock"},
    {POWERCCL_LEASE_NONE, false, "powerccld ended the lease", kAgain},
    {POWERCCL_LEASE_DRAINING, false, "powerccld grants no new leases at present", kAgain},
    {POWERCCL_LEASE_RESTORING, false, "powerccld has not restored the clock after the last lease yet", kAgain},
    {POWERCCL_LEASE_TOO_MANY, false, "powerccld has too many sessions", kAgain},
    {POWERCCL_LEASE_SYSTEM, false, "powerccld has an internal error", "read its log: journalctl -u powerccld"},
    {POWERCCL_LEASE_REVOKED, true, "an administrator revoked the lease", kAdministrator},
    {POWERCCL_LEASE_MISSED, false, "powerccld received no message from this process in time and ended its lease",
     kAgain},
    {POWERCCL_LEASE_STOPPING, false, "powerccld stops", kAgain},
    {LeaseClient::kGone, false, "powerccld closed the connection", kAgain},
    {LeaseClient::kSilent, false, "powerccld did not answer in time", kAgain},
    {LeaseClient::kNonsense, true, "the program that answers is not powerccld",
     "set POWERCCL_LEASE_SOCKET to powerccld's socket"},
    {LeaseClient::kOtherVersion, true, "powerccld speaks another version of the lease protocol",
     "install powerccld and PowerCCL of one release"},
};

const Outcome* outcome_of(int status) {
  for (const Outcome& outcome : kOutcomes) {
    if (outcome.status == status) return &outcome;
  }
  return nullptr;
}

// What comes from outside must not write on a terminal what it likes.
void make_printable(char* text) {
  for (; *text != '\0'; ++text) {
    if (static_cast<unsigned char>(*text) < 0x20 || *text == 0x7f) *text = '?';
  }
}

}  // namespace

const char* LeaseClient::explain(int, const char** hint) {
  *hint = hint_;
  return text_;
}

void LeaseClient::set_text(int status, const powerccl_lease_reply* reply, const char* detail) {
  const Outcome* outcome = outcome_of(status);
  const char* answer = reply != nullptr ? reply->text : "";
  hint_ = outcome != nullptr ? outcome->hint : kAgain;
  if (status == kNotReachable) {
    snprintf(text_, sizeof(text_), "cannot connect to powerccld at %s (%s)", socket_path_, detail);
  } else if (status == kNoFile) {
    snprintf(text_, sizeof(text_), "cannot open %s (%s), which powerccld requires as proof of access", answer, detail);
    hint_ = "let the job read and write the GPU's device file";
  } else if (status == POWERCCL_LEASE_HELD && reply != nullptr) {
    snprintf(text_, sizeof(text_), "process %u of user %u has the lease", reply->holder_pid, reply->holder_uid);
  } else if (status > 0) {
    snprintf(text_, sizeof(text_), "powerccld's driver: %s", answer[0] != '\0' ? answer : "no more is known");
    hint_ = status == kNoPermission ? "powerccld itself may not set clocks: run it as root with CAP_SYS_ADMIN"
                                    : "read powerccld's log: journalctl -u powerccld";
  } else {
    const char* outcome_text = outcome != nullptr ? outcome->text : "powerccld refuses";
    const char* more = detail != nullptr ? detail : answer;
    snprintf(text_, sizeof(text_), more[0] != '\0' ? "%s: %s" : "%s%s", outcome_text, more);
  }
  make_printable(text_);
}

// A lost lease ends the connection: then the daemon undoes what was set or is still on its way.
int LeaseClient::lose(int status, const powerccl_lease_reply* reply, const char* detail) {
  set_text(status, reply, detail);
  lease_ = 0;
  unanswered_ns_ = 0;
  connection_.close();
  const Outcome* outcome = outcome_of(status);
  if (status > 0 || status == kNoFile || (outcome != nullptr && outcome->for_good)) {
    refused_ = status;
    return refused_;
  }
  attempt_at_ns_ = monotonic_ns() + back_off_ns_;
  back_off_ns_ = 2 * back_off_ns_ < kLastBackOffNs ? 2 * back_off_ns_ : kLastBackOffNs;
  // Who has the GPU differs from rank to rank; the rest is the same on a host.
  bool* said = status == POWERCCL_LEASE_HELD ? &said_holder_ : &said_;
  if (!*said && (speaks_ || status == POWERCCL_LEASE_HELD)) {
    say(hint_, "cannot set the clock of %s at present: %s", device_, text_);
  }
  *said = true;
  return kClockNotNow;
}

// A lease alone proves little: it may be given and fail immediately, again and again.
void LeaseClient::works() {
  back_off_ns_ = kFirstBackOffNs;
  if ((said_ || said_holder_) && debug_) say(nullptr, "the clock of %s can be set again", device_);
  said_ = said_holder_ = false;
}

}  // namespace powerccl
