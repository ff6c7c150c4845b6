# Flags shared by every target. powerccl_options: all of them. powerccl_injob: what runs inside somebody else's process.
find_package(Threads REQUIRED)

add_library(powerccl_options INTERFACE)
target_compile_options(powerccl_options INTERFACE -Wall -Wextra -Wshadow -Wno-unused-parameter -fno-semantic-interposition)
# A file is included by its room and name, whichever of the three parts the room stands in.
target_include_directories(powerccl_options INTERFACE ${PROJECT_SOURCE_DIR}/native ${PROJECT_SOURCE_DIR}/native/job
                                                      ${PROJECT_SOURCE_DIR}/native/node ${PROJECT_SOURCE_DIR}/native/testbed)
target_link_libraries(powerccl_options INTERFACE Threads::Threads)
if(POWERCCL_SANITIZE)
  target_compile_options(powerccl_options INTERFACE -fsanitize=${POWERCCL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # It needs the types of all classes with virtual functions. What runs inside a job has no RTTI, so they are not there.
  target_compile_options(powerccl_options INTERFACE -fno-sanitize=vptr)
  target_link_options(powerccl_options INTERFACE -fsanitize=${POWERCCL_SANITIZE})
endif()

# Inside a job there is nothing but libc: no exceptions, no RTTI, no libstdc++. The C driver links, and -z defs makes a
# stray dependency an error of the build rather than of the user's job.
add_library(powerccl_injob INTERFACE)
target_link_libraries(powerccl_injob INTERFACE powerccl_options)
target_compile_options(powerccl_injob INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti -fno-threadsafe-statics>)
if(NOT POWERCCL_SANITIZE) # whose functions have no versions
  target_compile_options(powerccl_injob INTERFACE -include ${PROJECT_SOURCE_DIR}/native/libc/versions.h)
endif()
# Parts of glibc before 2.34, and empty since. Not there where the C library is another.
foreach(name libdl.so.2 libpthread.so.0)
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=${name} OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(found MATCHES "/")
    list(APPEND POWERCCL_OLD_LIBRARIES -l:${name})
  endif()
endforeach()

# powerccl_injob_module(<target> EXPORTS <version script> SOURCES ... LINK ...): a library loaded into a job.
function(powerccl_injob_module target)
  cmake_parse_arguments(ARG "" "EXPORTS;OUTPUT_NAME" "SOURCES;LINK" ${ARGN})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE powerccl_injob ${ARG_LINK})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C PREFIX "" OUTPUT_NAME ${ARG_OUTPUT_NAME}
    LINK_DEPENDS ${ARG_EXPORTS})
  # The symbol table lies apart from code, so that it can be changed; GNU's hash table tells which symbols are exported.
  target_link_options(${target} PRIVATE -Wl,-z,nodelete -Wl,-z,separate-code -Wl,--hash-style=gnu
    -Wl,--version-script=${ARG_EXPORTS})
  # Its _init calls __gmon_start__, if that is not null, through a slot that is bound at the first call. Another library of
  # ours has hidden the name by then (adapters/names.cpp).
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    target_link_options(${target} PRIVATE -Wl,-z,now)
  endif()
  if(POWERCCL_OLD_LIBRARIES)
    target_link_options(${target} PRIVATE -Wl,--push-state,--no-as-needed ${POWERCCL_OLD_LIBRARIES} -Wl,--pop-state)
  endif()
  if(NOT POWERCCL_SANITIZE)
    # Before other constructors ask which functions there are. A sanitizer comes first instead.
    target_link_options(${target} PRIVATE -Wl,-z,defs -Wl,-z,initfirst)
  endif()
endfunction()
