// Tiles of 2-byte floats in shared memory, and their products on tensor cores. A block has four warps; each row of a
// tile of DIM columns is followed by 16 bytes, so that eight rows of a matrix of 8x8 lie in different banks whatever
// DIM is. A step's tile is on its way (`copyLater16`) while the one before is multiplied.

enum { BLOCK = 128, PART = 16, PAD = 8 }; // threads of a block, rows that a warp multiplies at once, elements after a row

DEVICE int laneOf() { return (int)threadIdx.x & 31; }
DEVICE int warpOf() { return (int)threadIdx.x >> 5; }
/**
 * Of a warp's products a lane holds rows `ownRow() + 8h`, and of each 8 columns `ownColumn() + e`, as number 2h + e.
 */
DEVICE int ownRow() { return laneOf() >> 2; }
DEVICE int ownColumn() { return (laneOf() & 3) * 2; }

/** Rows of a matrix in device memory; of one that is not aligned no 16 bytes can be copied at once. */
template <class dtype> struct Rows {
  const dtype* at;
  int stride, count, cols;
  bool isAligned;
};
template <class dtype> DEVICE Rows<dtype> rowsOf(const dtype* at, i64 stride, i64 count, i64 cols) {
  return {at, (int)stride, (int)count, (int)cols, (u64)at % 16 == 0 && stride % 8 == 0 && cols % 8 == 0};
}
/** Loads rows from `first` on into a tile; rows and columns that are not there are zeros. */
template <int DIM, int ROWS, class dtype> DEVICE void loadTile(dtype* tile, const Rows<dtype>& from, int first) {
  if (from.isAligned) {
    enum { CHUNKS = DIM / 8 };
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += BLOCK) {
      const int row = i / CHUNKS, col = i % CHUNKS * 8;
      const bool isThere = first + row < from.count && col < from.cols;
      const dtype* const source = from.at + (isThere ? (i64)(first + row) * from.stride + col : 0);
      copyLater16(tile + row * (DIM + PAD) + col, source, isThere);
    }
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * DIM / 2; i += BLOCK) {
      const int row = i / (DIM / 2), col = i % (DIM / 2) * 2;
      const dtype* const source = from.at + (i64)(first + row) * from.stride + col;
      const bool isThere = first + row < from.count;
      const u32 low = isThere && col < from.cols ? source[0].bits : 0;
      const u32 high = isThere && col + 1 < from.cols ? source[1].bits : 0;
      *(u32*)(tile + row * (DIM + PAD) + col) = low | high << 16;
    }
  }
}

/** Sums of a warp: PARTS * 16 rows, COLS columns. */
template <int PARTS, int COLS> struct Sums {
  float of[PARTS][COLS / 8][4];
  DEVICE_METHOD void clear() {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) of[p][n][i] = 0.0f;
  }
  DEVICE_METHOD void multiply(float factor) {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int i = 0; i < COLS / 2; i++) of[p][i / 4][i % 4] *= factor;
  }
  /** Replaces the values of pairs whose bit is 0; see `seenPairs`. */
  DEVICE_METHOD void choose(const u32 (&bits)[PARTS], float otherwise) {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int i = 0; i < COLS / 2; i++) of[p][i / 4][i % 4] = bits[p] >> i & 1 ? of[p][i / 4][i % 4] : otherwise;
  }
};
/** Adds `x yᵀ`: rows of DIM elements of a tile with rows of another. */
template <int DIM, int PARTS, int COLS, class dtype>
DEVICE void multiplyRows(Sums<PARTS, COLS>& sums, const dtype* x, const dtype* y) {
  const int lane = laneOf();
  x += (lane & 15) * (DIM + PAD) + (lane >> 4) * 8;
  y += ((lane & 7) + (lane >> 4) * 8) * (DIM + PAD) + (lane & 8);
#pragma unroll
  for (int k = 0; k < DIM; k += 16) {
    u32 own[PARTS][4];
#pragma unroll
    for (int p = 0; p < PARTS; p++) loadMatrices(own[p], x + p * PART * (DIM + PAD) + k);
#pragma unroll
    for (int n = 0; n < COLS / 16; n++) {
      u32 other[4];
      loadMatrices(other, y + n * 16 * (DIM + PAD) + k);
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        multiplyFragments(sums.of[p][2 * n], own[p], other[0], other[1], dtype());
        multiplyFragments(sums.of[p][2 * n + 1], own[p], other[2], other[3], dtype());
      }
    }
  }
}
/** Adds `x y`: numbers that lanes hold, rounded to the element type, with the rows of a tile of DIM columns. */
template <int DIM, int PARTS, int COLS, class dtype>
DEVICE void multiplyHeld(Sums<PARTS, DIM>& sums, const Sums<PARTS, COLS>& x, const dtype* y) {
  const int lane = laneOf();
  y += (lane & 15) * (DIM + PAD) + (lane >> 4) * 8;
#pragma unroll
  for (int k = 0; k < COLS / 16; k++) {
    u32 own[PARTS][4];
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float(&pairs)[4] = x.of[p][2 * k + i / 2];
        own[p][i] = pairOf(pairs[i % 2 * 2], pairs[i % 2 * 2 + 1], dtype());
      }
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
      u32 other[4];
      loadTransposed(other, y + k * 16 * (DIM + PAD) + n * 16);
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        multiplyFragments(sums.of[p][2 * n], own[p], other[0], other[1], dtype());
        multiplyFragments(sums.of[p][2 * n + 1], own[p], other[2], other[3], dtype());
      }
    }
  }
}
/** Stores a row of a part of sums, times a factor: `cols` elements from `to` on. */
template <int DIM, int PARTS, class dtype>
DEVICE void storeRow(dtype* to, int cols, const Sums<PARTS, DIM>& sums, int p, int h, float factor) {
  const bool isAligned = (u64)to % 4 == 0 && cols % 2 == 0;
#pragma unroll
  for (int n = 0; n < DIM / 8; n++) {
    const int col = n * 8 + ownColumn();
    const float x = sums.of[p][n][2 * h] * factor, y = sums.of[p][n][2 * h + 1] * factor;
    if (isAligned) {
      if (col < cols) *(u32*)(to + col) = pairOf(x, y, dtype());
    } else {
      if (col < cols) put(to, col, x);
      if (col + 1 < cols) put(to, col + 1, y);
    }
  }
}
/** A sum, or the most, of the four lanes that hold a row. */
template <class F> DEVICE float overRow(float value, F f) {
  value = f(value, __shfl_xor_sync(~0u, value, 1));
  return f(value, __shfl_xor_sync(~0u, value, 2));
}

/**
 * Which of the pairs [16, COLS] that a lane holds are seen, and which dropout keeps: bit n * 4 + 2h + e. Rows are
 * queries from `query` on and columns keys from `key` on, or the other way round.
 */
template <int COLS, bool ROWS_ARE_KEYS, class A>
DEVICE u32 seenPairs(const A& a, int batch, int query, int key) {
  u32 seen = 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = (ROWS_ARE_KEYS ? key : query) + ownRow() + 8 * h, first = ROWS_ARE_KEYS ? query : key;
    if (row >= (ROWS_ARE_KEYS ? a.seqK : a.seqQ)) continue;
    const int from = (ROWS_ARE_KEYS ? beginOfQueries(a, row) : beginOfKeys(a, batch, row)) - first;
    const int to = (ROWS_ARE_KEYS ? endOfQueries(a, batch, row) : endOfKeys(a, row)) - first;
#pragma unroll
    for (int i = 0; i < COLS / 4; i++) {
      const int col = i / 2 * 8 + ownColumn() + i % 2;
      if (col >= from && col < to) seen |= 1u << (i / 2 * 4 + 2 * h + i % 2);
    }
  }
  if (!hasMask(a)) return seen;
  u32 unmasked = 0;
#pragma unroll 1
  for (int i = 0; i < COLS / 2; i++) {
    const int row = ownRow() + (i >> 1 & 1) * 8, col = i / 4 * 8 + ownColumn() + (i & 1);
    if ((seen >> i & 1) == 0) continue;
    const int ofQuery = ROWS_ARE_KEYS ? col : row, ofKey = ROWS_ARE_KEYS ? row : col;
    unmasked |= (u32)isUnmasked(a, batch, query + ofQuery, key + ofKey) << i;
  }
  return unmasked;
}
template <int COLS, bool ROWS_ARE_KEYS, class A>
DEVICE u32 keptPairs(const A& a, int batch, int head, int query, int key) {
  u32 kept = 0;
#pragma unroll 1
  for (int i = 0; i < COLS / 2; i++) {
    const int row = ownRow() + (i >> 1 & 1) * 8, col = i / 4 * 8 + ownColumn() + (i & 1);
    const float factor = ROWS_ARE_KEYS ? dropoutFactor(a, batch, head, query + col, key + row)
                                       : dropoutFactor(a, batch, head, query + row, key + col);
    kept |= (u32)(factor != 0.0f) << i;
  }
  return kept;
}
