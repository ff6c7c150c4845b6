// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace powerccl::agent {

// What NVML offers on this machine, as one JSON object (docs: powerccl-agent --check). Sets nothing.
std::string check_json();

}  // namespace powerccl::agent
