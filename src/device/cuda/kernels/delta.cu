// The gated delta rule by chunks, in the steps of `wasm/src/gated_delta.rs`, which explains them. A block takes a head, or in the
// backward all heads that share a key head. Its threads share each step, and meet at its end. Matrices have a token a row.

/** A matrix: where it lies, and elements from a row to the next and from a column to the next. */
struct Matrix { const float* at; int row, column; };
DEVICE Matrix rowsOf(const float* at, int width) { return {at, width, 1}; }
DEVICE Matrix columnsOf(const float* at, int width) { return {at, 1, width}; }

/** The result of products: `c = alpha * factor of the row * products + beta * c`; null factors are ones. */
struct Into { float alpha, beta; const float* factors; };
DEVICE Into overwriting(const float* factors = nullptr) { return {1.0f, 0.0f, factors}; }
DEVICE Into adding() { return {1.0f, 1.0f, nullptr}; }

/** `a b` into `c` of `m` rows and `n` columns, `k` products an element. A thread has 4 x 4 elements, neighbours' columns side by side. */
DEVICE_CALL void multiply(int m, int n, int k, Matrix a, Matrix b, float* c, Into into) {
  const int across = (n + 3) / 4, down = (m + 3) / 4;
  for (int tile = threadIdx.x; tile < across * down; tile += blockDim.x) {
    const int i = tile / across * 4, j = tile % across;
    float sum[4][4] = {};
    for (int p = 0; p < k; p++) {
      float x[4], y[4];
      for (int r = 0; r < 4; r++) x[r] = i + r < m ? a.at[(i + r) * a.row + p * a.column] : 0.0f;
      for (int s = 0; s < 4; s++) y[s] = j + s * across < n ? b.at[p * b.row + (j + s * across) * b.column] : 0.0f;
      for (int r = 0; r < 4; r++) {
        for (int s = 0; s < 4; s++) sum[r][s] = fmaf(x[r], y[s], sum[r][s]);
      }
    }
    for (int r = 0; r < 4 && i + r < m; r++) {
      const float factor = into.factors ? into.alpha * into.factors[i + r] : into.alpha;
      for (int s = 0; s < 4; s++) {
        const int column = j + s * across;
        if (column >= n) continue;
        float& to = c[(i + r) * n + column];
        to = into.beta == 0.0f ? factor * sum[r][s] : fmaf(into.beta, to, factor * sum[r][s]);
      }
    }
  }
  __syncthreads();
}

/** A chunk of a head, or the part of it that is in one document, in the scratch of the block, whose floats `launches.ts` counts. */
struct Chunk {
  int len, keys, values;
  i64 token, head, keyHead;                          // the first token's number over all sequences
  bool isFirst;                                      // whether a document begins with it: the state before it is zeros
  float *q, *k, *dq, *dk, *dkColumn, *allDq, *allDk; // [len, keys]
  float *y, *w, *dw, *o;                             // [len, values]
  float *gram, *scores, *dgram, *dscores;            // [len, len]
  float *sums, *falls, *rests, *betas;               // [len]
};
template <class A> DEVICE Chunk chunkOf(const A& a, i64 batch, i64 head, i64 keyHead, i64 number) {
  const i64 first = number * a.chunk < a.seq ? number * a.chunk : a.seq;
  float* at = a.scratch + blockIdx.x * a.room;
  auto take = [&](i64 width) {
    float* own = at;
    at += a.chunk * width;
    return own;
  };
  Chunk c = {(int)(a.seq - first < a.chunk ? a.seq - first : a.chunk), (int)a.keyDim, (int)a.valueDim};
  c.token = batch * a.seq + first, c.head = head, c.keyHead = keyHead;
  c.q = take(c.keys), c.k = take(c.keys), c.dq = take(c.keys), c.dk = take(c.keys), c.dkColumn = take(c.keys);
  c.allDq = take(c.keys), c.allDk = take(c.keys);
  c.y = take(c.values), c.w = take(c.values), c.dw = take(c.values), c.o = take(c.values);
  c.gram = take(a.chunk), c.scores = take(a.chunk), c.dgram = take(a.chunk), c.dscores = take(a.chunk);
  c.sums = take(1), c.falls = take(1), c.rests = take(1), c.betas = take(1);
  return c;
}
/** True if a document begins with a token, by its number over all sequences. */
template <class A> DEVICE bool beginsAt(const A& a, i64 token) { return a.starts && a.starts[token] == token % a.seq; }
/** The part of a chunk from token `from` of it on, as far as its document goes. */
template <class A> DEVICE Chunk partFrom(const A& a, Chunk c, int from) {
  int end = from + 1;
  while (end < c.len && !beginsAt(a, c.token + end)) end++;
  c.isFirst = beginsAt(a, c.token + from), c.token += from, c.len = end - from;
  return c;
}
/** The part of a chunk that ends with token `end` of it, exclusive, from where the last document in it begins. */
template <class A> DEVICE Chunk partUpTo(const A& a, Chunk c, int end) {
  int from = end - 1;
  while (from > 0 && !beginsAt(a, c.token + from)) from--;
  c.isFirst = beginsAt(a, c.token + from), c.token += from, c.len = end - from;
  return c;
}
/** Elements along which something is multiplied by the state before a chunk: none where that is zeros. */
DEVICE int depthOf(const Chunk& c, int elements) { return c.isFirst ? 0 : elements; }
/** Index of a row of a chunk in an array [tokens, heads, width]. */
DEVICE i64 placeIn(const Chunk& c, i64 i, i64 heads, i64 head, i64 width) { return ((c.token + i) * heads + head) * width; }

DEVICE float fall(float sum) { return expf(sum < 0.0f ? sum : 0.0f); }
/** Multiplies a matrix [len, len] by the decays; what lies at and above `diagonal` columns behind a row's own becomes 0. */
DEVICE void fade(const Chunk& c, float* x, int diagonal) {
  EACH_COLUMN(at, c.len * c.len) {
    const i64 i = at / c.len, j = at % c.len;
    x[at] = j < i + diagonal ? x[at] * fall(c.sums[i] - c.sums[j]) : 0.0f;
  }
  __syncthreads();
}
DEVICE void scaleRows(const Chunk& c, float* x, const float* factors, int width) {
  EACH_COLUMN(at, c.len * width) x[at] *= factors[at / width];
  __syncthreads();
}
DEVICE double dot(const float* a, const float* b, i64 n) {
  double sum = 0.0;
  EACH_COLUMN(i, n) sum += (double)a[i] * b[i];
  return overBlock(sum, Sum());
}

/** Reads a chunk, and computes its decays, what its queries and keys have to do with the keys before them, and its corrections. */
template <class A> DEVICE void read(const A& a, const Chunk& c, const float* state) {
  EACH_COLUMN(at, c.len * c.keys) {
    const i64 from = placeIn(c, at / c.keys, a.keyHeads, c.keyHead, c.keys) + at % c.keys;
    c.q[at] = a.scale * get(a.q, from);
    c.k[at] = get(a.k, from);
  }
  EACH_COLUMN(at, c.len * c.values) {
    c.y[at] = get(a.v, placeIn(c, at / c.values, a.valueHeads, c.head, c.values) + at % c.values);
  }
  EACH_COLUMN(i, c.len) c.betas[i] = get(a.beta, placeIn(c, i, a.valueHeads, c.head, 1));
  if (threadIdx.x == 0) {
    double sum = 0.0;
    for (int i = 0; i < c.len; i++) c.sums[i] = (float)(sum += a.g[placeIn(c, i, a.valueHeads, c.head, 1)]);
  }
  __syncthreads();
  EACH_COLUMN(i, c.len) c.falls[i] = fall(c.sums[i]), c.rests[i] = fall(c.sums[c.len - 1] - c.sums[i]);
  const Matrix keys = rowsOf(c.k, c.keys);
  multiply(c.len, c.len, c.keys, rowsOf(c.q, c.keys), columnsOf(c.k, c.keys), c.scores, overwriting());
  multiply(c.len, c.len, c.keys, keys, columnsOf(c.k, c.keys), c.gram, overwriting());
  fade(c, c.scores, 1);
  fade(c, c.gram, 0);
  multiply(c.len, c.values, depthOf(c, c.keys), keys, rowsOf(state, c.values), c.w, overwriting(c.falls));
  // A thread solves columns of its own, row after row: `y` holds what is to be learnt, `w` what is known, and then y times beta.
  EACH_COLUMN(e, c.values) {
    for (int i = 0; i < c.len; i++) {
      float sum = c.y[i * c.values + e] - c.w[i * c.values + e];
      for (int j = 0; j < i; j++) sum = fmaf(-c.gram[i * c.len + j], c.w[j * c.values + e], sum);
      c.y[i * c.values + e] = sum;
      c.w[i * c.values + e] = c.betas[i] * sum;
    }
  }
  __syncthreads();
}

template <class dtype> DEVICE void gatedDelta(const gatedDeltaArgs<dtype>& a) {
  const i64 size = a.keyDim * a.valueDim;
  EACH_ROW(place, a.batch * a.valueHeads) {
    float* state = a.state + place * size;
    for (i64 n = 0; n < a.chunks; n++) {
      if (a.states) EACH_COLUMN(i, size) a.states[(place * a.chunks + n) * size + i] = state[i];
      const i64 head = place % a.valueHeads;
      const Chunk all = chunkOf(a, place / a.valueHeads, head, head / (a.valueHeads / a.keyHeads), n);
      for (int done = 0; done < all.len;) {
        const Chunk c = partFrom(a, all, done);
        done += c.len;
        read(a, c, state);
        const Matrix before = rowsOf(state, c.values);
        multiply(c.len, c.values, depthOf(c, c.keys), rowsOf(c.q, c.keys), before, c.o, overwriting(c.falls));
        multiply(c.len, c.values, c.len, rowsOf(c.scores, c.len), rowsOf(c.w, c.values), c.o, adding());
        EACH_COLUMN(at, c.len * c.values) {
          put(a.o, placeIn(c, at / c.values, a.valueHeads, head, c.values) + at % c.values, c.o[at]);
        }
        scaleRows(c, c.k, c.rests, c.keys);
        const Into faded = {1.0f, c.isFirst ? 0.0f : c.falls[c.len - 1], nullptr};
        multiply(c.keys, c.values, c.len, columnsOf(c.k, c.keys), rowsOf(c.w, c.values), state, faded);
      }
    }
  }
}

/** Gradients of the corrections and of what they are made of: `y` becomes that of the values, `betas` that of the betas. */
DEVICE void correctionsBackward(const Chunk& c, const float* dState) {
  multiply(c.len, c.values, c.keys, rowsOf(c.k, c.keys), rowsOf(dState, c.values), c.dw, overwriting(c.rests));
  multiply(c.len, c.values, c.len, columnsOf(c.scores, c.len), rowsOf(c.o, c.values), c.dw, adding());
  // As in the forward, from the last row on. `dw` is left with what each element gives to the gradient of its beta.
  EACH_COLUMN(e, c.values) {
    for (int i = c.len - 1; i >= 0; i--) {
      float sum = c.dw[i * c.values + e];
      for (int j = i + 1; j < c.len; j++) sum = fmaf(-c.gram[j * c.len + i], c.y[j * c.values + e], sum);
      c.dw[i * c.values + e] = sum * c.y[i * c.values + e];
      c.y[i * c.values + e] = c.betas[i] * sum;
    }
  }
  __syncthreads();
  EACH_COLUMN(i, c.len) {
    double sum = 0.0;
    for (int e = 0; e < c.values; e++) sum += c.dw[i * c.values + e];
    c.betas[i] = (float)sum;
  }
  const Matrix corrections = columnsOf(c.w, c.values);
  multiply(c.len, c.len, c.values, rowsOf(c.o, c.values), corrections, c.dscores, overwriting());
  multiply(c.len, c.len, c.values, rowsOf(c.y, c.values), corrections, c.dgram, {-1.0f, 0.0f, nullptr});
  fade(c, c.dscores, 1);
  fade(c, c.dgram, 0);
}

/** Gradients of queries and keys; gives that of the last sum of decays by the keys that are written to the state. */
DEVICE double keysBackward(const Chunk& c, const float* state, const float* dState) {
  const Matrix queries = rowsOf(c.q, c.keys), keys = rowsOf(c.k, c.keys), before = columnsOf(state, c.values);
  multiply(c.len, c.keys, depthOf(c, c.values), rowsOf(c.o, c.values), before, c.dq, overwriting(c.falls));
  multiply(c.len, c.keys, c.len, rowsOf(c.dscores, c.len), keys, c.dq, adding());
  multiply(c.len, c.keys, depthOf(c, c.values), rowsOf(c.y, c.values), before, c.dk, {-1.0f, 0.0f, c.falls});
  multiply(c.len, c.keys, c.len, rowsOf(c.dgram, c.len), keys, c.dk, adding());
  const Matrix after = columnsOf(dState, c.values);
  multiply(c.len, c.keys, c.values, rowsOf(c.w, c.values), after, c.dkColumn, overwriting(c.rests));
  const double last = dot(c.k, c.dkColumn, c.len * c.keys);
  multiply(c.len, c.keys, c.len, columnsOf(c.dscores, c.len), queries, c.dkColumn, adding());
  multiply(c.len, c.keys, c.len, columnsOf(c.dgram, c.len), keys, c.dkColumn, adding());
  return last;
}

/** From the gradient of a chunk's output in `o` and of the state after it to all others; that of `g` takes the place of the sums. */
DEVICE void retreat(const Chunk& c, const float* state, float* dState) {
  correctionsBackward(c, dState);
  const float whole = c.falls[c.len - 1];
  double later = c.isFirst ? 0.0 : whole * dot(state, dState, c.keys * c.values);
  later += keysBackward(c, state, dState);
  // A decay's gradient follows from those of all that it multiplies; a sum holds the decays of all tokens up to its own.
  EACH_COLUMN(i, c.len) {
    double own = 0.0;
    for (i64 at = i * c.keys; at < (i + 1) * c.keys; at++) {
      own += (double)c.q[at] * c.dq[at] + (double)c.k[at] * c.dk[at] - (double)c.k[at] * c.dkColumn[at];
    }
    c.sums[i] = (float)own;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = c.len - 1; i >= 0; i--) c.sums[i] = (float)(later += c.sums[i]);
  }
  if (c.isFirst) { // what is before it is of another document
    EACH_COLUMN(i, c.keys * c.values) dState[i] = 0.0f;
    __syncthreads();
    return;
  }
  scaleRows(c, c.q, c.falls, c.keys);
  scaleRows(c, c.k, c.falls, c.keys);
  multiply(c.keys, c.values, c.len, columnsOf(c.q, c.keys), rowsOf(c.o, c.values), dState, {1.0f, whole, nullptr});
  multiply(c.keys, c.values, c.len, columnsOf(c.k, c.keys), rowsOf(c.y, c.values), dState, {-1.0f, 1.0f, nullptr});
}

template <class dtype> DEVICE void gatedDeltaBackward(const gatedDeltaBackwardArgs<dtype>& a) {
  const i64 size = a.keyDim * a.valueDim, group = a.keyHeads ? a.valueHeads / a.keyHeads : 0;
  EACH_ROW(place, a.batch * a.keyHeads) {
    const i64 batch = place / a.keyHeads, keyHead = place % a.keyHeads;
    for (i64 n = a.chunks - 1; n >= 0; n--) {
      const Chunk all = chunkOf(a, batch, 0, keyHead, n);
      for (int end = all.len; end > 0;) {
        Chunk c = partUpTo(a, all, end);
        end -= c.len;
        EACH_COLUMN(at, c.len * c.keys) c.allDq[at] = c.allDk[at] = 0.0f;
        for (c.head = keyHead * group; c.head < (keyHead + 1) * group; c.head++) {
          const i64 own = batch * a.valueHeads + c.head;
          const float* state = a.states + (own * a.chunks + n) * size;
          read(a, c, state);
          EACH_COLUMN(at, c.len * c.values) {
            c.o[at] = get(a.dO, placeIn(c, at / c.values, a.valueHeads, c.head, c.values) + at % c.values);
          }
          __syncthreads();
          retreat(c, state, a.dState + own * size);
          EACH_COLUMN(i, c.len) {
            a.dg[placeIn(c, i, a.valueHeads, c.head, 1)] = c.sums[i];
            put(a.dbeta, placeIn(c, i, a.valueHeads, c.head, 1), c.betas[i]);
          }
          EACH_COLUMN(at, c.len * c.values) {
            put(a.dv, placeIn(c, at / c.values, a.valueHeads, c.head, c.values) + at % c.values, c.y[at]);
          }
          EACH_COLUMN(at, c.len * c.keys) {
            c.allDq[at] += c.dq[at];
            c.allDk[at] += c.dk[at] + c.dkColumn[at];
          }
          __syncthreads();
        }
        EACH_COLUMN(at, c.len * c.keys) {
          const i64 to = placeIn(c, at / c.keys, a.keyHeads, keyHead, c.keys) + at % c.keys;
          put(a.dq, to, a.scale * c.allDq[at]);
          put(a.dk, to, c.allDk[at]);
        }
      }
    }
  }
}
