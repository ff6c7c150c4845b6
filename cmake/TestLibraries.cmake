# GoogleTest and Google Benchmark: the system's (Debian: libgtest-dev, libbenchmark-dev), else those that
# tools/fetch-libraries unpacked under build/deps without root.
set(deps ${PROJECT_SOURCE_DIR}/build/deps/usr)
list(APPEND CMAKE_PREFIX_PATH ${deps})
find_package(GTest QUIET)
find_package(benchmark QUIET)
if(NOT GTest_FOUND)
  message(FATAL_ERROR "GoogleTest not found.\nhint: apt-get install libgtest-dev, or run `make test`, which fetches it without root.")
endif()
include(GoogleTest)
