// Attention of float32 by tiles of 16 queries and 16 keys, a thread for each pair; what a softmax needs is kept as it goes on, so
// memory is linear in the sequence. Attention of 2-byte floats is in flash.cu. And attention sinks, of all element types.

enum { TILE = 16, MOST_DIM = 256, PARTS = MOST_DIM / TILE };

/** Sums of 16 neighbors. */
template <class T, class F> DEVICE T overTile(T value, F f) {
  for (int step = TILE / 2; step > 0; step >>= 1) value = f(value, __shfl_xor_sync(~0u, value, step));
  return value;
}
template <class T> DEVICE float dot(const T* x, const T* y, i64 n) {
  float sum = 0.0f;
  for (i64 i = 0; i < n; i++) sum = fmaf(get(x, i), get(y, i), sum);
  return sum;
}

template <class dtype> DEVICE void attention(const attentionArgs<dtype>& a) {
  SHARED(float, queries, TILE * MOST_DIM);
  SHARED(float, keys, TILE * MOST_DIM); // and then values
  SHARED(float, weights, TILE * TILE);
  const i64 tiles = (a.seqQ + TILE - 1) / TILE;
  const int row = threadIdx.x / TILE, lane = threadIdx.x % TILE;
  const float infinity = floatOf(0x7f800000);
  EACH_ROW(block, a.batch * a.heads * tiles) {
    const i64 first = block % tiles * TILE, head = block / tiles % a.heads, batch = block / tiles / a.heads;
    const i64 kvHead = head / (a.heads / a.kvHeads), query = first + row;
    __syncthreads();
    for (i64 d = lane; d < a.headDim; d += TILE) {
      queries[row * MOST_DIM + d] = query < a.seqQ ? get(a.q, (batch * a.seqQ + query) * a.strideQ + head * a.headDim + d) : 0.0f;
    }
    float top = -infinity, sum = 0.0f, out[PARTS];
    for (int i = 0; i < PARTS; i++) out[i] = 0.0f;
    for (i64 key0 = beginOfKeys(a, batch, first) / TILE * TILE; key0 < endOfKeys(a, first + TILE - 1); key0 += TILE) {
      const i64 key = key0 + row; // that this thread helps to load
      __syncthreads();
      for (i64 d = lane; d < a.headDim; d += TILE) {
        keys[row * MOST_DIM + d] = key < a.seqK ? get(a.k, (batch * a.seqK + key) * a.strideK + kvHead * a.headDim + d) : 0.0f;
      }
      __syncthreads();
      float score = -infinity;
      if (isSeen(a, batch, query, key0 + lane)) {
        score = 0.0f;
        for (i64 d = 0; d < a.headDim; d++) score = fmaf(queries[row * MOST_DIM + d], keys[lane * MOST_DIM + d], score);
        score = capped(a, score * a.scale);
      }
      const float most = Max()(top, overTile(score, Max()));
      const float base = most == -infinity ? 0.0f : most;
      const float fall = top == most ? 1.0f : expf(top - base), weight = expf(score - base);
      sum = sum * fall + overTile(weight, Sum());
      top = most;
      weights[row * TILE + lane] = weight * dropoutFactor(a, batch, head, query, key0 + lane);
      __syncthreads();
      for (i64 d = lane; d < a.valueDim; d += TILE) {
        keys[row * MOST_DIM + d] = key < a.seqK ? get(a.v, (batch * a.seqK + key) * a.strideV + kvHead * a.valueDim + d) : 0.0f;
      }
      __syncthreads();
      for (int i = 0; i < PARTS; i++) {
        if (i * TILE + lane >= a.valueDim) break;
        float part = out[i] * fall;
        for (int j = 0; j < TILE; j++) part = fmaf(weights[row * TILE + j], keys[j * MOST_DIM + i * TILE + lane], part);
        out[i] = part;
      }
    }
    if (query >= a.seqQ) continue;
    const bool hasSeen = sum != 0.0f;
    if (lane == 0) a.lse[(batch * a.heads + head) * a.seqQ + query] = hasSeen ? top + logf(sum) : -infinity;
    const float inverse = hasSeen ? 1.0f / sum : 0.0f;
    for (int i = 0; i < PARTS; i++) {
      const i64 d = i * TILE + lane;
      if (d < a.valueDim) put(a.o, ((batch * a.seqQ + query) * a.heads + head) * a.valueDim + d, out[i] * inverse);
    }
  }
}

/**
 * The weight of a pair, after dropout, and the gradient of its score; both are 0 where the query does not see the key. `delta` is the sum of
 * what the query's output and its gradient have in common.
 */
template <class dtype>
DEVICE void pairGradient(const attentionBackwardArgs<dtype>& a, i64 batch, i64 head, i64 query, i64 key, float delta,
                         float& weight, float& gradient) {
  weight = gradient = 0.0f;
  if (!isSeen(a, batch, query, key)) return;
  const float lse = a.lse[(batch * a.heads + head) * a.seqQ + query];
  if (lse == -floatOf(0x7f800000)) return;
  const i64 kvHead = head / (a.heads / a.kvHeads);
  const dtype* q = a.q + (batch * a.seqQ + query) * a.strideQ + head * a.headDim;
  const dtype* k = a.k + (batch * a.seqK + key) * a.strideK + kvHead * a.headDim;
  const dtype* v = a.v + (batch * a.seqK + key) * a.strideV + kvHead * a.valueDim;
  const dtype* dO = a.dO + ((batch * a.seqQ + query) * a.heads + head) * a.valueDim;
  const float factor = dropoutFactor(a, batch, head, query, key);
  const float score = capped(a, a.scale * dot(q, k, a.headDim));
  weight = expf(score - lse);
  gradient = weight * (factor * dot(dO, v, a.valueDim) - delta) * slopeOf(a, score);
  weight *= factor;
}

/** The delta of each query of a tile, in shared memory. */
template <class dtype>
DEVICE void deltasOf(const attentionBackwardArgs<dtype>& a, i64 batch, i64 head, i64 first, float* deltas) {
  const i64 query = first + threadIdx.x;
  if (threadIdx.x < TILE) {
    const i64 at = ((batch * a.seqQ + query) * a.heads + head) * a.valueDim;
    deltas[threadIdx.x] = query < a.seqQ ? dot(a.dO + at, a.o + at, a.valueDim) : 0.0f;
  }
}

/** Two kinds of blocks: those of tiles of queries give `dq`, those of tiles of keys `dk` and `dv`, so that nothing is added by two. */
template <class dtype> DEVICE void attentionBackward(const attentionBackwardArgs<dtype>& a) {
  SHARED(float, weights, TILE * TILE);
  SHARED(float, gradients, TILE * TILE);
  SHARED(float, deltas, TILE);
  const i64 queryTiles = (a.seqQ + TILE - 1) / TILE, keyTiles = (a.seqK + TILE - 1) / TILE, tiles = queryTiles + keyTiles;
  const int row = threadIdx.x / TILE, lane = threadIdx.x % TILE;
  const i64 group = a.kvHeads == 0 ? 1 : a.heads / a.kvHeads;
  EACH_ROW(block, a.batch * a.heads * tiles) {
    const i64 tile = block % tiles, head = block / tiles % a.heads, batch = block / tiles / a.heads, kvHead = head / group;
    float own[PARTS], other[PARTS]; // dq, or dk and dv
    for (int i = 0; i < PARTS; i++) own[i] = other[i] = 0.0f;
    if (tile < queryTiles) {
      const i64 first = tile * TILE, query = first + row;
      __syncthreads();
      deltasOf(a, batch, head, first, deltas);
      __syncthreads();
      for (i64 key0 = beginOfKeys(a, batch, first) / TILE * TILE; key0 < endOfKeys(a, first + TILE - 1); key0 += TILE) {
        float weight, gradient;
        pairGradient(a, batch, head, query, key0 + lane, deltas[row], weight, gradient);
        __syncthreads();
        gradients[row * TILE + lane] = gradient;
        __syncthreads();
        for (int j = 0; j < TILE && key0 + j < a.seqK; j++) {
          const dtype* k = a.k + (batch * a.seqK + key0 + j) * a.strideK + kvHead * a.headDim;
          for (int i = 0; i < PARTS && i * TILE + lane < a.headDim; i++) {
            own[i] = fmaf(gradients[row * TILE + j], get(k, i * TILE + lane), own[i]);
          }
        }
      }
      if (query >= a.seqQ) continue;
      for (int i = 0; i < PARTS && i * TILE + lane < a.headDim; i++) {
        put(a.dq, ((batch * a.seqQ + query) * a.heads + head) * a.headDim + i * TILE + lane, a.scale * own[i]);
      }
      continue;
    }
    if (head % group != 0) continue; // one block for all heads that share keys
    const i64 key0 = (tile - queryTiles) * TILE, key = key0 + row;
    for (i64 h = head; h < head + group; h++) {
      for (i64 first = 0; first < a.seqQ; first += TILE) {
        if (key0 >= endOfKeys(a, first + TILE - 1) || key0 + TILE <= beginOfKeys(a, batch, first)) continue;
        __syncthreads();
        deltasOf(a, batch, h, first, deltas);
        __syncthreads();
        float weight, gradient;
        pairGradient(a, batch, h, first + lane, key, deltas[lane], weight, gradient);
        weights[row * TILE + lane] = weight;
        gradients[row * TILE + lane] = gradient;
        __syncthreads();
        for (int j = 0; j < TILE && first + j < a.seqQ; j++) {
          const dtype* q = a.q + (batch * a.seqQ + first + j) * a.strideQ + h * a.headDim;
          const dtype* dO = a.dO + ((batch * a.seqQ + first + j) * a.heads + h) * a.valueDim;
          for (int i = 0; i < PARTS; i++) {
            const i64 d = i * TILE + lane;
            if (d < a.headDim) own[i] = fmaf(gradients[row * TILE + j], get(q, d), own[i]);
            if (d < a.valueDim) other[i] = fmaf(weights[row * TILE + j], get(dO, d), other[i]);
          }
        }
      }
    }
    if (key >= a.seqK) continue;
    for (int i = 0; i < PARTS; i++) {
      const i64 d = i * TILE + lane, at = (batch * a.seqK + key) * a.kvHeads + kvHead;
      if (d < a.headDim) put(a.dk, at * a.headDim + d, a.scale * own[i]);
      if (d < a.valueDim) put(a.dv, at * a.valueDim + d, other[i]);
    }
  }
}

template <class dtype> DEVICE void attentionSinks(const attentionSinksArgs<dtype>& a) {
  EACH(i, a.batch * a.seq * a.heads) {
    const i64 head = i % a.heads, token = i / a.heads, place = (token / a.seq * a.heads + head) * a.seq + token % a.seq;
    const double keys = a.lse[place], sink = get(a.sinks, head), top = Max()(sink, keys);
    const double own = exp(keys - top), other = exp(sink - top);
    a.lse[place] = (float)(top + log(own + other));
    const float share = (float)(own / (own + other));
    for (i64 d = 0; d < a.headDim; d++) put(a.o, i * a.headDim + d, get(a.o, i * a.headDim + d) * share);
  }
}

template <class dtype> DEVICE void attentionSinksBackward(const attentionSinksBackwardArgs<dtype>& a) {
  EACH_ROW(head, a.heads) {
    double sum = 0.0;
    EACH_COLUMN(token, a.batch * a.seq) {
      const i64 at = (token * a.heads + head) * a.headDim, place = (token / a.seq * a.heads + head) * a.seq + token % a.seq;
      sum -= exp((double)get(a.sinks, head) - a.lse[place]) * dot(a.dO + at, a.o + at, a.headDim);
    }
    sum = overBlock(sum, Sum());
    if (threadIdx.x == 0) a.dsinks[head] = (float)sum;
  }
}
