# cuda.h and nvml.h come from the wheels nvidia-cuda-runtime and nvidia-nvml-dev (pyproject.toml: build requirements), or
# from an installed CUDA toolkit. Only declarations are used; everything of NVIDIA's is loaded with dlopen at run time.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT POWERCCL_CUDA_INCLUDE AND Python3_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/find-nvidia-headers.py
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(found)
    set(POWERCCL_CUDA_INCLUDE ${found} CACHE PATH "Folder that holds cuda.h and nvml.h")
  endif()
endif()
if(NOT POWERCCL_CUDA_INCLUDE)
  find_path(POWERCCL_CUDA_INCLUDE NAMES cuda.h nvml.h PATHS /usr/local/cuda/include)
endif()
if(NOT EXISTS "${POWERCCL_CUDA_INCLUDE}/cuda.h" OR NOT EXISTS "${POWERCCL_CUDA_INCLUDE}/nvml.h")
  message(FATAL_ERROR "cuda.h and nvml.h not found.\n"
    "hint: run `make`, which sets up .venv with both, or: pip install nvidia-cuda-runtime nvidia-nvml-dev, "
    "or point -DPOWERCCL_CUDA_INCLUDE= at a CUDA toolkit's include folder.")
endif()
add_library(powerccl_nvidia_headers INTERFACE)
target_include_directories(powerccl_nvidia_headers SYSTEM INTERFACE ${POWERCCL_CUDA_INCLUDE})
