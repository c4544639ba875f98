// Attention of 2-byte floats on tensor cores, after FlashAttention-2: a warp has PARTS * 16 queries, whose weights
// stay in registers between the two products, and goes over the keys by KEYS at a time. Weights are rounded to the
// element type, as products take them. Sums of the output take PARTS * VALUE_DIM / 2 registers of a thread and scores
// PARTS * KEYS / 2; these limit a multiprocessor to two blocks, or to three where they are few. What shared memory
// limits it to is told where the forms are: `tensor_cores.ts`.

template <class dtype, int KEY_DIM, int VALUE_DIM, int PARTS, int KEYS>
DEVICE void attentionTiles(const attentionArgs<dtype>& a) {
  enum { OWN = PARTS * PART, ROWS = 4 * OWN };
  DYNAMIC_SHARED(shared);
  dtype* const queries = (dtype*)shared;
  dtype* const keys = queries + ROWS * (KEY_DIM + PAD);
  dtype* const values = keys + 2 * KEYS * (KEY_DIM + PAD);
  const float infinity = floatOf(0x7f800000), log2OfE = 1.4426950408889634f, ln2 = 0.6931471805599453f;
  const i64 planes = a.batch * a.heads, tiles = (a.seqQ + ROWS - 1) / ROWS;
  const float scale = a.scale * log2OfE, factor = scale > 0.0f && a.softcap == 0.0f ? scale : 1.0f;
  EACH_ROW(block, planes * tiles) {
    // The last queries, which see most keys where attention is causal, come first.
    const int head = (int)(block % planes % a.heads), batch = (int)(block % planes / a.heads);
    const int kvHead = head / (int)(a.heads / a.kvHeads), first = (int)(tiles - 1 - block / planes) * ROWS;
    const int own = first + warpOf() * OWN, end = endOfKeys(a, first + ROWS - 1);
    const Span span = keysOf(a, batch, own, OWN);
    const auto q = rowsOf(a.q + batch * a.seqQ * a.strideQ + head * a.headDim, a.strideQ, a.seqQ, a.headDim);
    const auto k = rowsOf(a.k + batch * a.seqK * a.strideK + kvHead * a.headDim, a.strideK, a.seqK, a.headDim);
    const auto v = rowsOf(a.v + batch * a.seqK * a.strideV + kvHead * a.valueDim, a.strideV, a.seqK, a.valueDim);
    int key = beginOfKeys(a, batch, first) / KEYS * KEYS;
    __syncthreads(); // all have read the tiles of the block before
    loadTile<KEY_DIM, ROWS>(queries, q, first);
    if (key < end) {
      loadTile<KEY_DIM, KEYS>(keys, k, key);
      loadTile<VALUE_DIM, KEYS>(values, v, key);
    }
    closeCopies();
    Sums<PARTS, VALUE_DIM> out;
    out.clear();
    float tops[PARTS][2], sums[PARTS][2];
#pragma unroll
    for (int p = 0; p < PARTS; p++) tops[p][0] = tops[p][1] = -infinity, sums[p][0] = sums[p][1] = 0.0f;
    for (int stage = 0; key < end; key += KEYS, stage ^= 1) {
      awaitCopies<0>();
      __syncthreads(); // this step's tiles are there, and all have read those of the step before
      if (key + KEYS < end) {
        loadTile<KEY_DIM, KEYS>(keys + (stage ^ 1) * KEYS * (KEY_DIM + PAD), k, key + KEYS);
        loadTile<VALUE_DIM, KEYS>(values + (stage ^ 1) * KEYS * (VALUE_DIM + PAD), v, key + KEYS);
      }
      closeCopies();
      if (!span.has(key, KEYS)) continue;
      // Hidden pairs are found while threads hold no scores.
      const bool isOpen = span.isOpen(key, KEYS), drops = a.p != 0.0;
      u32 seen[PARTS], kept[PARTS];
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        if (!isOpen) seen[p] = seenPairs<KEYS, false>(a, batch, own + p * PART, key);
        if (drops) kept[p] = keptPairs<KEYS, false>(a, batch, head, own + p * PART, key);
      }
      Sums<PARTS, KEYS> weights;
      weights.clear();
      multiplyRows<KEY_DIM>(weights, queries + warpOf() * OWN * (KEY_DIM + PAD), keys + stage * KEYS * (KEY_DIM + PAD));
      if (a.softcap > 0.0f) {
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int i = 0; i < KEYS / 2; i++) {
            float& weight = weights.of[p][i / 4][i % 4];
            weight = capped(a, weight * a.scale) * log2OfE;
          }
      } else if (scale <= 0.0f) weights.multiply(scale);
      if (!isOpen) weights.choose(seen, -infinity);
      float falls[PARTS][2];
      bool hasFallen = false;
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float most = tops[p][h];
#pragma unroll
          for (int n = 0; n < KEYS / 8; n++) most = fmaxf(most, fmaxf(weights.of[p][n][2 * h], weights.of[p][n][2 * h + 1]));
          most = overRow(most, Max());
          const float base = most == -infinity ? 0.0f : most, fall = powerOf2((tops[p][h] - base) * factor);
          hasFallen = hasFallen || fall != 1.0f;
          falls[p][h] = fall;
          tops[p][h] = most;
          float sum = sums[p][h] * fall;
#pragma unroll
          for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              float& weight = weights.of[p][n][2 * h + e];
              weight = powerOf2(fmaf(weight, factor, -base * factor));
              sum += weight;
            }
          sums[p][h] = sum;
        }
      if (drops) {
        weights.multiply((float)(1.0 / (1.0 - a.p)));
        weights.choose(kept, 0.0f);
      }
      // If no row has a new maximum, nothing is changed.
      if (__any_sync(~0u, hasFallen)) {
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int n = 0; n < VALUE_DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) out.of[p][n][i] *= falls[p][i / 2];
      }
      multiplyHeld<VALUE_DIM>(out, weights, values + stage * KEYS * (VALUE_DIM + PAD));
    }
    awaitCopies<0>(); // where there were no keys
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int query = own + p * PART + h * 8 + ownRow();
        const float sum = overRow(sums[p][h], Sum());
        if (query >= a.seqQ) continue;
        const bool hasSeen = sum != 0.0f;
        if (ownColumn() == 0) {
          const float lse = hasSeen ? tops[p][h] * factor * ln2 + logf(sum) : -infinity;
          a.lse[(batch * a.heads + head) * a.seqQ + query] = lse;
        }
        const i64 at = ((batch * a.seqQ + query) * a.heads + head) * a.valueDim;
        storeRow(a.o + at, (int)a.valueDim, out, p, h, hasSeen ? 1.0f / sum : 0.0f);
      }
  }
}
