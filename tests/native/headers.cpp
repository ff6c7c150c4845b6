// SPDX-License-Identifier: Apache-2.0
// Nothing: CMake compiles the headers that all tests share for a target that has a source.
