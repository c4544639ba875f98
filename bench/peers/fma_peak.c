// Prints the best GFLOP/s of fused multiply-adds on values in registers, one core.
#include <stdio.h>
#include <time.h>

#ifdef __AVX512F__
typedef float V __attribute__((vector_size(64)));
#else
typedef float V __attribute__((vector_size(32)));
#endif
enum { CHAINS = 12, LANES = sizeof(V) / 4, TURNS = 100000 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(void) {
  V sums[CHAINS] = {0};
  V a = {0}, b = {0};
  a += 0.999f;
  b += 0.001f;
  double best = 1e9;
  for (double until = now() + 1; now() < until;) {
    double started = now();
    for (int turn = 0; turn < TURNS; turn++) {
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; i++) sums[i] = sums[i] * a + b;
    }
    double seconds = now() - started;
    if (seconds < best) best = seconds;
  }
  float kept = 0;
  for (int i = 0; i < CHAINS; i++) kept += sums[i][0];
  if (kept == 0) return 1;
  printf("%.1f\n", 2.0 * CHAINS * LANES * TURNS / best / 1e9);
  return 0;
}
