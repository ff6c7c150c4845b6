// SPDX-License-Identifier: Apache-2.0
#include "device/error.h"

#include <stdarg.h>
#include <stdio.h>

namespace powerccl::device {

int fail(Error* error, int code, const char* format, ...) {
  if (error) {
    error->code = code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
  }
  return code;
}

const char* hint(int code) {
  switch (code) {
    case kLibraryMissing:
      return "install the NVIDIA driver, or try without a GPU: powerccl run --emulate t4x8 -- ...";
    case kSymbolMissing:
      return "update the NVIDIA driver";
    case kTooSlow:
      return "sample less often: powerccl run --interval-ms 100";
    case 3:  // NVML_ERROR_NOT_SUPPORTED
      return "this GPU does not offer it; locked clocks need Volta or newer";
    case 4:  // NVML_ERROR_NO_PERMISSION
      return "run as root, or give the container CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN)";
    case 9:  // NVML_ERROR_DRIVER_NOT_LOADED
      return "load the driver: modprobe nvidia, then check with nvidia-smi";
    case 15:  // NVML_ERROR_GPU_IS_LOST
    case 16:  // NVML_ERROR_RESET_REQUIRED
      return "the GPU needs a reset or the node a reboot; see dmesg for NVRM: Xid";
    case 18:  // NVML_ERROR_LIB_RM_VERSION_MISMATCH
      return "the driver was updated under the running kernel module: reboot the node";
    default:
      return "";
  }
}

}  // namespace powerccl::device
