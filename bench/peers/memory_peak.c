// Prints the best GB/s of a = b + s * c on arrays far beyond the caches, one core: bytes read and written, as kernels count theirs.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N = 1 << 25, PART = 1 << 18 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(void) {
  float *a = aligned_alloc(64, N * sizeof(float)), *b = aligned_alloc(64, N * sizeof(float)), *c = aligned_alloc(64, N * sizeof(float));
  if (!a || !b || !c) return 1;
  for (int i = 0; i < N; i++) a[i] = 0, b[i] = i, c[i] = 1;
  // A part at a time, so that a moment without other work is found; each part has left the caches before its next turn.
  double best = 1e9;
  for (double until = now() + 1; now() < until;) {
    for (int part = 0; part < N; part += PART) {
      double started = now();
      for (int i = part; i < part + PART; i++) a[i] = b[i] + 0.5f * c[i];
      double seconds = now() - started;
      if (seconds < best) best = seconds;
    }
    b[0] = a[N - 1];
  }
  if (a[1] != 1.5f) return 1;
  printf("%.1f\n", 3.0 * PART * sizeof(float) / best / 1e9);
  return 0;
}
