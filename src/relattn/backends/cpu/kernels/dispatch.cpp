// The instruction sets that this machine runs, and the hash of the binary's sources.
extern "C" {

int relattn_runs_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return 0;
#endif
}

// AVX-512 and the products of pairs of bfloat16.
int relattn_runs_avx512bf16() {
#if defined(__x86_64__)
  return relattn_runs_avx512() && __builtin_cpu_supports("avx512bf16");
#else
  return 0;
#endif
}

int relattn_runs_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}

const char* relattn_sources() { return RELATTN_SOURCES; }

}  // extern "C"
