/**
 * Kernels with and without mistakes, which the double of the CUDA runtime must find.
 *
 * @module
 */

/** A few kernels with and without mistakes; each gets the address of some floats and how many there are. */
export const MISTAKE_TEXT = `
struct Args { float* x; i64 n; };
DEVICE void write(const Args& a) { EACH(i, a.n) a.x[i] = (float)i; }
DEVICE void read(const Args& a) { EACH(i, a.n) if (a.x[i] < 0.0f) a.x[i] = 0.0f; }
DEVICE void beyond(const Args& a) { EACH(i, a.n + 100) a.x[i] = 0.0f; }
DEVICE void reverse(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  a.x[threadIdx.x] = s[255 - threadIdx.x];
}
DEVICE void reverseAtOnce(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  a.x[threadIdx.x] = s[255 - threadIdx.x];
}
DEVICE void rotate(const Args& a) {
  const float next = a.x[(threadIdx.x + 1) % 256];
  __syncthreads();
  a.x[threadIdx.x] = next;
}
DEVICE void rotateAtOnce(const Args& a) { a.x[threadIdx.x] = a.x[(threadIdx.x + 1) % 256]; }
DEVICE void all(const Args& a) { a.x[threadIdx.x] = 1.0f; }
DEVICE void warp(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncwarp();
  a.x[threadIdx.x] = s[threadIdx.x ^ 1];
}
DEVICE void warpAtOnce(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  a.x[threadIdx.x] = s[threadIdx.x ^ 1];
}
DEVICE void load(float* s, const Args& a) {
  if (threadIdx.x < 64) copyLater16(s + 4 * threadIdx.x, a.x + 4 * threadIdx.x, true);
  closeCopies();
}
DEVICE void copy(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = s[255 - threadIdx.x];
}
DEVICE void copyAtOnce(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  __syncthreads();
  const float own = s[255 - threadIdx.x];
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyTooFew(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<1>();
  __syncthreads();
  const float own = s[255 - threadIdx.x];
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyApart(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<0>();
  const float own = s[255 - threadIdx.x];
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyOver(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<0>();
  __syncthreads();
  const float own = s[255 - threadIdx.x];
  load(s, a);
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyForNobody(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
}
DEVICE void matrices(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4];
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  loadMatrices(own, s + 4 * (threadIdx.x % 64));
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void matricesAtOnce(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4];
  s[threadIdx.x] = a.x[threadIdx.x];
  loadMatrices(own, s + 4 * (threadIdx.x % 64));
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void matricesAside(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4];
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  loadMatrices(own, s + 4 * (threadIdx.x % 63) + 1);
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void shuffled(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = __shfl_xor_sync(~0u, a.x[threadIdx.x], 1);
  const float other = __shfl_xor_sync(~0u, 1.0f, 1);
  a.x[threadIdx.x] = s[threadIdx.x ^ 1] + other;
}
DEVICE void uneven(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4] = {0, 0, 0, 0};
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x % 32 == 5) __any_sync(~0u, true);
  else
    loadMatrices(own, s + 4 * (threadIdx.x % 64));
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void beyondShared(const Args& a) {
  DYNAMIC_SHARED(s);
  s[threadIdx.x] = 1;
}
DEVICE void apart(const Args& a) {
  if (threadIdx.x < 32) __syncthreads();
  else
    __syncthreads();
}
`;
/** Their names. */
export const MISTAKE_NAMES: readonly string[] = [...MISTAKE_TEXT.matchAll(/DEVICE void (\w+)\(const Args& a\)/g)].map((
  [, name = ""],
) => name);
