// Gradients of attention of 2-byte floats on tensor cores. Each sum belongs to one warp, which computes the weights
// of its pairs again: nothing is added by two, so the same call gives the same bits. First `dq`, by tiles of queries,
// which also leaves what each query's output and its gradient have in common (`deltas`, in the scratch of the call);
// then `dk` and `dv`, by tiles of keys, over all heads that share them. Weights and gradients of scores are rounded
// to the element type, as products take them.

/** The weight of a step's pair out of the product of its query and key, before dropout. */
template <class A> DEVICE float weightOf(const A& a, float product, float lse) {
  const float log2OfE = 1.4426950408889634f;
  if (a.softcap > 0.0f) return powerOf2((capped(a, product * a.scale) - lse) * log2OfE);
  return powerOf2(fmaf(product, a.scale * log2OfE, -lse * log2OfE));
}
/** The derivative of a pair's bounded score, found from its weight; any number where the weight is 0. */
template <class A> DEVICE float slopeOfWeight(const A& a, float weight, float lse) {
  return a.softcap > 0.0f && weight > 0.0f ? slopeOf(a, logf(weight) + lse) : 1.0f;
}

/**
 * `dq`. Its sums take PARTS * KEY_DIM / 2 registers of a thread, scores and their gradients PARTS * KEYS; these limit
 * a multiprocessor to two blocks, or to three where they are few.
 */
template <class dtype, int KEY_DIM, int VALUE_DIM, int PARTS, int KEYS>
DEVICE void attentionQueryGradients(const attentionBackwardArgs<dtype>& a) {
  enum { OWN = PARTS * PART, ROWS = 4 * OWN };
  DYNAMIC_SHARED(shared);
  dtype* const queries = (dtype*)shared;
  dtype* const outs = queries + ROWS * (KEY_DIM + PAD); // gradients of the output
  dtype* const keys = outs + ROWS * (VALUE_DIM + PAD);
  dtype* const values = keys + 2 * KEYS * (KEY_DIM + PAD);
  const i64 planes = a.batch * a.heads, tiles = (a.seqQ + ROWS - 1) / ROWS;
  const float keeps = (float)(1.0 / (1.0 - a.p)); // what dropout multiplies by what it keeps
  EACH_ROW(block, planes * tiles) {
    const int head = (int)(block % planes % a.heads), batch = (int)(block % planes / a.heads);
    const int kvHead = head / (int)(a.heads / a.kvHeads), first = (int)(tiles - 1 - block / planes) * ROWS;
    const int own = first + warpOf() * OWN, end = endOfKeys(a, first + ROWS - 1);
    const Span span = keysOf(a, batch, own, OWN);
    const auto q = rowsOf(a.q + batch * a.seqQ * a.strideQ + head * a.headDim, a.strideQ, a.seqQ, a.headDim);
    const auto k = rowsOf(a.k + batch * a.seqK * a.strideK + kvHead * a.headDim, a.strideK, a.seqK, a.headDim);
    const auto v = rowsOf(a.v + batch * a.seqK * a.strideV + kvHead * a.valueDim, a.strideV, a.seqK, a.valueDim);
    const i64 outsOfHead = (batch * a.seqQ * a.heads + head) * a.valueDim, outStride = a.heads * a.valueDim;
    const auto dO = rowsOf(a.dO + outsOfHead, outStride, a.seqQ, a.valueDim);
    int key = beginOfKeys(a, batch, first) / KEYS * KEYS;
    __syncthreads(); // all have read the tiles of the block before
    loadTile<KEY_DIM, ROWS>(queries, q, first);
    loadTile<VALUE_DIM, ROWS>(outs, dO, first);
    if (key < end) {
      loadTile<KEY_DIM, KEYS>(keys, k, key);
      loadTile<VALUE_DIM, KEYS>(values, v, key);
    }
    closeCopies();
    Sums<PARTS, KEY_DIM> dq;
    dq.clear();
    float deltas[PARTS][2], lse[PARTS][2];
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int query = own + p * PART + h * 8 + ownRow();
        const i64 place = (batch * a.heads + head) * a.seqQ + query;
        float delta = 0.0f;
        if (query < a.seqQ) {
          const i64 at = outsOfHead + query * outStride;
          for (i64 d = laneOf() & 3; d < a.valueDim; d += 4) delta = fmaf(get(a.dO, at + d), get(a.o, at + d), delta);
        }
        deltas[p][h] = delta = overRow(delta, Sum());
        lse[p][h] = query < a.seqQ ? a.lse[place] : 0.0f;
        if (query < a.seqQ && ownColumn() == 0) a.scratch[place] = delta;
      }
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
      Sums<PARTS, KEYS> weights, gradients;
      weights.clear();
      gradients.clear();
      const dtype* const keyTile = keys + stage * KEYS * (KEY_DIM + PAD);
      multiplyRows<KEY_DIM>(weights, queries + warpOf() * OWN * (KEY_DIM + PAD), keyTile);
      const dtype* const valueTile = values + stage * KEYS * (VALUE_DIM + PAD);
      multiplyRows<VALUE_DIM>(gradients, outs + warpOf() * OWN * (VALUE_DIM + PAD), valueTile);
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
          float& weight = weights.of[p][i / 4][i % 4];
          weight = weightOf(a, weight, lse[p][i % 4 / 2]);
        }
      if (!isOpen) weights.choose(seen, 0.0f);
      if (drops) {
        gradients.multiply(keeps);
        gradients.choose(kept, 0.0f);
      }
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
          float& gradient = gradients.of[p][i / 4][i % 4];
          const float weight = weights.of[p][i / 4][i % 4];
          gradient = weight * (gradient - deltas[p][i % 4 / 2]) * slopeOfWeight(a, weight, lse[p][i % 4 / 2]);
        }
      multiplyHeld<KEY_DIM>(dq, gradients, keyTile);
    }
    awaitCopies<0>(); // where there were no keys
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int query = own + p * PART + h * 8 + ownRow();
        if (query >= a.seqQ) continue;
        storeRow(a.dq + ((batch * a.seqQ + query) * a.heads + head) * a.headDim, (int)a.headDim, dq, p, h, a.scale);
      }
  }
}

/**
 * `dk` and `dv`, or one of them where a thread has no registers for both: their sums take PARTS * (KEY_DIM +
 * VALUE_DIM) / 2. A warp has PARTS * 16 keys, and goes over the queries that may see them by QUERIES at a time. What
 * is known of a query besides lies where its rows are padded: `lse` after the query, its delta after the output's
 * gradient.
 */
template <class dtype, int KEY_DIM, int VALUE_DIM, int PARTS, int QUERIES, bool HAS_KEYS, bool HAS_VALUES>
DEVICE void attentionKeyGradients(const attentionBackwardArgs<dtype>& a) {
  enum { OWN = PARTS * PART, KEYS = 4 * OWN };
  DYNAMIC_SHARED(shared);
  dtype* const keys = (dtype*)shared;
  dtype* const values = keys + KEYS * (KEY_DIM + PAD);
  dtype* const queries = values + KEYS * (VALUE_DIM + PAD);
  dtype* const outs = queries + 2 * QUERIES * (KEY_DIM + PAD); // gradients of the output
  const i64 planes = a.batch * a.kvHeads, tiles = (a.seqK + KEYS - 1) / KEYS;
  const float keeps = (float)(1.0 / (1.0 - a.p)); // what dropout multiplies by what it keeps
  EACH_ROW(block, planes * tiles) {
    // The first keys, which most queries see where attention is causal, come first.
    const int kvHead = (int)(block % planes % a.kvHeads), batch = (int)(block % planes / a.kvHeads);
    const int group = (int)(a.heads / a.kvHeads);
    const int first = (int)(block / planes) * KEYS, own = first + warpOf() * OWN;
    const int begin = beginOfQueries(a, first), end = endOfQueries(a, batch, first + KEYS - 1);
    const int endOfHeads = begin < end ? (kvHead + 1) * group : kvHead * group;
    const Span span = queriesOf(a, batch, own, OWN);
    const auto load = [&](int stage, int head, int query) {
      const auto q = rowsOf(a.q + batch * a.seqQ * a.strideQ + head * a.headDim, a.strideQ, a.seqQ, a.headDim);
      const i64 outStride = a.heads * a.valueDim;
      const auto dO = rowsOf(a.dO + (batch * a.seqQ * a.heads + head) * a.valueDim, outStride, a.seqQ, a.valueDim);
      dtype* const queryTile = queries + stage * QUERIES * (KEY_DIM + PAD);
      dtype* const outTile = outs + stage * QUERIES * (VALUE_DIM + PAD);
      loadTile<KEY_DIM, QUERIES>(queryTile, q, query);
      loadTile<VALUE_DIM, QUERIES>(outTile, dO, query);
      const int row = (int)threadIdx.x % QUERIES;
      const bool isThere = query + row < a.seqQ;
      const i64 place = (batch * a.heads + head) * a.seqQ + (isThere ? query + row : 0);
      if (threadIdx.x < QUERIES) copyLater4(queryTile + row * (KEY_DIM + PAD) + KEY_DIM, a.lse + place, isThere);
      else if (threadIdx.x < 2 * QUERIES) {
        copyLater4(outTile + row * (VALUE_DIM + PAD) + VALUE_DIM, a.scratch + place, isThere);
      }
    };
    __syncthreads(); // all have read the tiles of the block before
    const auto k = rowsOf(a.k + batch * a.seqK * a.strideK + kvHead * a.headDim, a.strideK, a.seqK, a.headDim);
    const auto v = rowsOf(a.v + batch * a.seqK * a.strideV + kvHead * a.valueDim, a.strideV, a.seqK, a.valueDim);
    loadTile<KEY_DIM, KEYS>(keys, k, first);
    if (HAS_KEYS) loadTile<VALUE_DIM, KEYS>(values, v, first);
    if (kvHead * group < endOfHeads) load(0, kvHead * group, begin);
    closeCopies();
    Sums<PARTS, KEY_DIM> dk;
    Sums<PARTS, VALUE_DIM> dv;
    if (HAS_KEYS) dk.clear();
    if (HAS_VALUES) dv.clear();
    int query = begin, nextQuery = begin, stage = 0;
    for (int head = kvHead * group, nextHead = head; head < endOfHeads; head = nextHead, query = nextQuery, stage ^= 1) {
      awaitCopies<0>();
      __syncthreads(); // this step's tiles are there, and all have read those of the step before
      nextQuery = query + QUERIES;
      if (nextQuery >= end) nextQuery = begin, nextHead++;
      if (nextHead < endOfHeads) load(stage ^ 1, nextHead, nextQuery);
      closeCopies();
      if (!span.has(query, QUERIES)) continue;
      const dtype* const queryTile = queries + stage * QUERIES * (KEY_DIM + PAD);
      const dtype* const outTile = outs + stage * QUERIES * (VALUE_DIM + PAD);
      // Hidden pairs are found while threads hold no scores.
      const bool isOpen = span.isOpen(query, QUERIES), drops = a.p != 0.0;
      u32 seen[PARTS], kept[PARTS];
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        if (!isOpen) seen[p] = seenPairs<QUERIES, true>(a, batch, query, own + p * PART);
        if (drops) kept[p] = keptPairs<QUERIES, true>(a, batch, head, query, own + p * PART);
      }
      Sums<PARTS, QUERIES> weights, gradients;
      weights.clear();
      gradients.clear();
      multiplyRows<KEY_DIM>(weights, keys + warpOf() * OWN * (KEY_DIM + PAD), queryTile);
      if (HAS_KEYS) multiplyRows<VALUE_DIM>(gradients, values + warpOf() * OWN * (VALUE_DIM + PAD), outTile);
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i++) {
          float& weight = weights.of[p][i / 4][i % 4];
          const int row = i / 4 * 8 + ownColumn() + i % 2; // of the query's tile
          weight = weightOf(a, weight, *(const float*)(queryTile + row * (KEY_DIM + PAD) + KEY_DIM));
        }
      if (!isOpen) weights.choose(seen, 0.0f);
      if (drops) {
        gradients.multiply(keeps);
        gradients.choose(kept, 0.0f);
      }
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i++) {
          float& gradient = gradients.of[p][i / 4][i % 4];
          const int row = i / 4 * 8 + ownColumn() + i % 2;
          const float delta = *(const float*)(outTile + row * (VALUE_DIM + PAD) + VALUE_DIM);
          const float weight = weights.of[p][i / 4][i % 4];
          const float lse = *(const float*)(queryTile + row * (KEY_DIM + PAD) + KEY_DIM);
          gradient = weight * (gradient - delta) * slopeOfWeight(a, weight, lse);
        }
      if (HAS_VALUES && drops) {
        weights.multiply(keeps);
        weights.choose(kept, 0.0f);
      }
      if (HAS_VALUES) multiplyHeld<VALUE_DIM>(dv, weights, outTile);
      if (HAS_KEYS) multiplyHeld<KEY_DIM>(dk, gradients, queryTile);
    }
    awaitCopies<0>(); // where there were no queries
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int key = own + p * PART + h * 8 + ownRow();
        if (key >= a.seqK) continue;
        const i64 at = (batch * a.seqK + key) * a.kvHeads + kvHead;
        if (HAS_KEYS) storeRow(a.dk + at * a.headDim, (int)a.headDim, dk, p, h, a.scale);
        if (HAS_VALUES) storeRow(a.dv + at * a.valueDim, (int)a.valueDim, dv, p, h, 1.0f);
      }
  }
}
