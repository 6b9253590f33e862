// SPDX-License-Identifier: BSD-3-Clause
// Prints what odr_a.cpp computes; fails if odr_b.cpp, which may be compiled with other flags,
// computes anything else. Compiled for the oldest processor: with the argument avx2 or avx512, b is
// left alone where the processor lacks that.
#include <cstdio>
#include <cstring>
#include <string>

std::string results_a();
std::string results_b();

namespace {
bool processor_has(const char* feature) {
#if defined(__x86_64__)
  if (std::strcmp(feature, "avx2") == 0) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
  if (std::strcmp(feature, "avx512") == 0) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512vl");
  }
#endif
  return std::strcmp(feature, "none") == 0;
}
}  // namespace

int main(int argc, char** argv) {
  const std::string a = results_a();
  std::fputs(a.c_str(), stdout);
  const char* needed = argc > 1 ? argv[1] : "none";
  if (!processor_has(needed)) {
    std::fprintf(stderr, "this processor lacks %s: its half was not run\n", needed);
    return 0;
  }
  const std::string b = results_b();
  if (a != b) {
    std::fprintf(stderr, "the two translation units differ; the second one says\n%s", b.c_str());
    return 1;
  }
  return 0;
}
