// SPDX-License-Identifier: Apache-2.0
// Modules and launches. A kernel's code is not run: its parameter `..._declared_ns` gives its duration.
#include <cctype>
#include <cstdlib>
#include <string>

#include "emulator/cuda/state.h"

namespace powerccl::emulator {
namespace {

constexpr uint64_t kUndeclaredNs = 5'000;  // a kernel that declares nothing is a short one
constexpr char kDeclaredSuffix[] = "declared_ns";

std::string without_comments(const char* text) {
  std::string out;
  for (const char* at = text; *at != '\0'; ++at) {
    if (at[0] == '/' && at[1] == '/') {
      while (at[1] != '\0' && at[1] != '\n') ++at;
    } else if (at[0] == '/' && at[1] == '*') {
      at += 2;
      while (*at != '\0' && !(at[0] == '*' && at[1] == '/')) ++at;
      if (*at == '\0') break;
      ++at;
    } else {
      out.push_back(*at);
    }
  }
  return out;
}

bool name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

size_t type_bytes(const std::string& type) {
  size_t digits = type.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(type[digits - 1])) != 0) --digits;
  if (digits == type.size()) return type == ".pred" ? 1 : 0;
  const size_t bits = std::stoul(type.substr(digits));
  return bits <= 128 ? bits / 8 : 0;
}

// ".param .u64 NAME" or ".param .align 8 .b8 NAME[16]"
void add_parameter(const std::string& text, Function& function) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (!word.empty()) words.push_back(word);
      word.clear();
    } else {
      word.push_back(c);
    }
  }
  if (words.size() < 3 || words[0] != ".param") return;
  std::string name = words.back();
  size_t count = 1;
  const size_t bracket = name.find('[');
  if (bracket != std::string::npos) {
    count = std::strtoul(name.c_str() + bracket + 1, nullptr, 10);
    name.resize(bracket);
  }
  size_t bytes = 0;
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] == ".align" || words[i] == ".ptr" || words[i] == ".global") continue;
    if (const size_t of_type = type_bytes(words[i]); of_type != 0 && bytes == 0) bytes = of_type;
  }
  const size_t suffix = sizeof kDeclaredSuffix - 1;
  const bool declares = name.size() >= suffix && name.compare(name.size() - suffix, suffix, kDeclaredSuffix) == 0;
  if (declares && bytes == 8 && count == 1)
    function.declared_ns_index = static_cast<int>(function.parameter_bytes.size());
  function.parameter_bytes.push_back(bytes * count);
}

}  // namespace

bool parse_ptx(const char* text, Module& module) {
  const std::string ptx = without_comments(text);
  if (ptx.find(".version") == std::string::npos) return false;
  size_t at = 0;
  while ((at = ptx.find(".entry", at)) != std::string::npos) {
    at += 6;
    while (at < ptx.size() && std::isspace(static_cast<unsigned char>(ptx[at])) != 0) ++at;
    Function function;
    while (at < ptx.size() && name_character(ptx[at])) function.name.push_back(ptx[at++]);
    while (at < ptx.size() && std::isspace(static_cast<unsigned char>(ptx[at])) != 0) ++at;
    if (at < ptx.size() && ptx[at] == '(') {
      const size_t end = ptx.find(')', at);
      if (end == std::string::npos) return false;
      size_t from = at + 1;
      while (from < end) {
        const size_t comma = std::min(ptx.find(',', from), end);
        add_parameter(ptx.substr(from, comma - from), function);
        from = comma + 1;
      }
      at = end;
    }
    if (!function.name.empty()) module.functions[function.name] = function;
  }
  return !module.functions.empty();
}

namespace {

uint64_t declared_ns(const Function& function, void** parameters, void** extra) {
  if (function.declared_ns_index < 0) return kUndeclaredNs;
  uint64_t value = kUndeclaredNs;
  if (parameters != nullptr) {
    memcpy(&value, parameters[function.declared_ns_index], sizeof value);
    return value;
  }
  if (extra == nullptr) return value;
  const std::byte* buffer = nullptr;
  for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2)
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const std::byte*>(extra[i + 1]);
  if (buffer == nullptr) return value;
  size_t offset = 0;
  for (int i = 0;; ++i) {
    const size_t bytes = function.parameter_bytes[static_cast<size_t>(i)];
    const size_t alignment = bytes >= 8 ? 8 : bytes == 0 ? 1 : bytes;
    offset = (offset + alignment - 1) / alignment * alignment;
    if (i == function.declared_ns_index) break;
    offset += bytes;
  }
  memcpy(&value, buffer + offset, sizeof value);
  return value;
}

CUresult load(CUmodule* module, const void* image) {
  POWERCCL_READY(state);
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto loaded = std::make_unique<Module>();
  if (memcmp(image,
             "\x7f"
             "ELF",
             4) == 0)
    return CUDA_ERROR_NO_BINARY_FOR_GPU;  // machine code says nothing about durations
  if (!parse_ptx(static_cast<const char*>(image), *loaded)) return CUDA_ERROR_INVALID_PTX;
  const std::lock_guard lock(state.mutex);
  *module = reinterpret_cast<CUmodule>(loaded.get());
  state.modules.insert(loaded.release());
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace powerccl::emulator

using namespace powerccl::emulator;

PWE_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load(module, image);
}

PWE_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return load(module, image);
}

PWE_EXPORT CUresult cuModuleUnload(CUmodule handle) {
  State& state = State::get();
  const std::lock_guard lock(state.mutex);
  auto* module = reinterpret_cast<Module*>(handle);
  if (state.modules.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete module;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  State& state = State::get();
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  auto* module = reinterpret_cast<Module*>(handle);
  if (state.modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  const auto entry = module->functions.find(name);
  if (entry == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(&entry->second);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block_size, size_t) {
  if (blocks == nullptr || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = block_size > 1024 ? 0 : 2048 / block_size;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                                   CUstream stream_handle, void** parameters, void** extra) {
  POWERCCL_READY(state);
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0 || block_x * block_y * block_z > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  const auto& function = *reinterpret_cast<const Function*>(handle);
  const std::lock_guard lock(state.mutex);
  StreamState* stream = state.stream_of(stream_handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Node node;
  node.type = Message::kKernel;
  node.declared_ns = declared_ns(function, parameters, extra);
  return state.enqueue(*stream, std::move(node));
}

PWE_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                     void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                        config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, parameters,
                        extra);
}
