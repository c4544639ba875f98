// A part of cudart.cpp: what lanes of a warp do together (products of fragments, matrices from shared memory), and
// copies to shared memory that arrive no sooner than they are waited for.
#pragma once
#include "cudart_kernels.hpp"

API void *twinDynamicShared() { return sharedMemory(&dynamicPlace, run.dynamicBytes); }

/** An operation of all lanes; they are reported if they do not do the same. */
template <class F> static Lane &together(int what, const F &bring, void (*complete)(Warp &)) {
  int me = (int)(now - run.fibres.data());
  Warp &w = warpOf(me);
  if (w.arrived && w.doing != what) {
    report("'" + run.name + "': lanes of a warp are at different operations");
    w.isMixed = true;
  }
  w.doing = what;
  Lane &lane = w.lanes[me & 31];
  bring(lane);
  meet(~0u, complete);
  return lane;
}

static float bfloat16Of(u32 bits) {
  bits <<= 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static float float16Of(u32 bits) {
  uint16_t half = (uint16_t)bits;
  _Float16 x;
  memcpy(&x, &half, 2);
  return (float)x;
}
/** c [16, 8] += a [16, 16] b [16, 8]: see dev.cuh for what each lane has of them. */
template <float (*valueOf)(u32)> static void multiply(Warp &w) {
  float a[16][16], b[16][8];
  for (int l = 0; l < 32; l++) {
    const u32 *in = w.lanes[l].in;
    int g = l >> 2, t = l & 3;
    for (int r = 0; r < 4; r++)
      for (int e = 0; e < 2; e++) a[g + r % 2 * 8][2 * t + r / 2 * 8 + e] = valueOf(in[4 + r] >> 16 * e & 0xffff);
    for (int r = 0; r < 2; r++)
      for (int e = 0; e < 2; e++) b[2 * t + 8 * r + e][g] = valueOf(in[8 + r] >> 16 * e & 0xffff);
  }
  float c[16][8] = {};
  for (int i = 0; i < 16; i++)
    for (int k = 0; k < 16; k++)
      for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 4; i++) {
      float sum;
      memcpy(&sum, &w.lanes[l].in[i], 4);
      sum += c[(l >> 2) + i / 2 * 8][2 * (l & 3) + i % 2];
      memcpy(&w.lanes[l].out[i], &sum, 4);
    }
}
API void twinMultiply(float *c, const u32 *a, u32 b0, u32 b1, int isBfloat16) {
  const Lane &lane = together(isBfloat16 ? 1 : 2, [&](Lane &own) {
    memcpy(own.in, c, 16);
    memcpy(own.in + 4, a, 16);
    own.in[8] = b0;
    own.in[9] = b1;
  }, isBfloat16 ? multiply<bfloat16Of> : multiply<float16Of>);
  memcpy(c, lane.out, 16);
}

template <bool TRANSPOSED> static void gatherMatrices(Warp &w) {
  for (int l = 0; l < 32; l++)
    for (int m = 0; m < 4; m++) {
      uint16_t pair[2];
      for (int e = 0; e < 2; e++) {
        int row = TRANSPOSED ? 2 * (l & 3) + e : l >> 2, col = TRANSPOSED ? l >> 2 : 2 * (l & 3) + e;
        memcpy(&pair[e], w.lanes[8 * m + row].row + 2 * col, 2);
      }
      w.lanes[l].out[m] = (u32)pair[0] | (u32)pair[1] << 16;
    }
}
/** Where something of shared memory lies; it is reported if it is elsewhere, or not on a multiple of its bytes. */
static bool isInShared(const void *p, int bytes) {
  size_t at = (size_t)((const u8 *)p - run.shared);
  if (at + bytes <= run.sharedUsed && at % bytes == 0) return true;
  const std::string size = std::to_string(bytes);
  report("'" + run.name + "': " + size + " bytes of shared memory are not on a multiple of that, or not there");
  return false;
}
API void twinLoadMatrices(u32 *to, const void *row, int isTransposed) {
  if (!isInShared(row, 16)) row = run.shared;
  else touchShared((size_t)((const u8 *)row - run.shared), 16, false);
  auto bring = [&](Lane &own) { own.row = (const u8 *)row; };
  const Lane &lane = together(3 + isTransposed, bring, isTransposed ? gatherMatrices<true> : gatherMatrices<false>);
  memcpy(to, lane.out, 16);
}

static void markComing(const LateCopy &copy, u8 coming) {
  size_t at = (size_t)(copy.to - run.shared);
  for (size_t i = at / 4; i < (at + copy.bytes) / 4; i++) run.sharedCells[i].coming = coming;
}
API void twinCopyLater(void *to, const void *from, int bytes, int isThere) {
  if (!isInShared(to, bytes)) return;
  if ((u64)from % bytes)
    report("'" + run.name + "': a copy of " + std::to_string(bytes) + " bytes begins elsewhere than on a multiple of that");
  LateCopy copy{(u8 *)to, (const u8 *)from, bytes, isThere != 0, now->groups};
  touchShared((size_t)(copy.to - run.shared), bytes, true);
  memset(to, 0xff, bytes);
  markComing(copy, 1);
  now->copies.push_back(copy);
}
API void twinCloseCopies() { now->groups++; }
API void twinAwaitCopies(int most) {
  while (!now->copies.empty() && now->copies.front().group + most < now->groups) {
    LateCopy copy = now->copies.front();
    now->copies.pop_front();
    markComing(copy, 0);
    touchShared((size_t)(copy.to - run.shared), copy.bytes, true);
    if (copy.isThere) {
      access((void *)copy.from, copy.bytes, false);
      memcpy(copy.to, copy.from, copy.bytes);
    } else memset(copy.to, 0, copy.bytes);
  }
}
API int twinAny(unsigned mask, int isSo) {
  Lane &lane = together(5, [&](Lane &own) { own.in[0] = (u32)(isSo != 0); }, [](Warp &w) {
    u32 any = 0;
    for (const Lane &one : w.lanes) any |= one.in[0];
    for (Lane &one : w.lanes) one.out[0] = any;
  });
  (void)mask;
  return (int)lane.out[0];
}
