// Rows by id and by position: embeddings, rotary embedding.

template <class dtype> DEVICE void rope(const ropeArgs<dtype>& a) {
  EACH_ROW(token, a.batch * a.seq) {
    const i64 position = a.positions ? a.positions[token] : token % a.seq;
    const bool isOutside = position < 0 || position >= a.tableRows;
    if (isOutside && threadIdx.x == 0) note(a.status, FAULT_POSITION, token, position, a.tableRows);
    EACH_COLUMN(i, a.heads * a.headDim) {
      dtype* to = a.y + token * a.heads * a.headDim + i;
      if (isOutside) {
        *to = dtype();
        continue;
      }
      const dtype* from = a.x + token * a.strideX + i;
      const i64 d = i % a.headDim - a.start;
      if (d < 0 || d >= 2 * a.half) {
        *to = *from;
        continue;
      }
      const i64 pair = a.interleaved ? d / 2 : d % a.half;
      const bool isSecond = a.interleaved ? d % 2 == 1 : d >= a.half;
      const i64 apart = a.interleaved ? 1 : a.half;
      const float c = a.cos[position * a.half + pair];
      const float s = (a.inverse ? -1.0f : 1.0f) * a.sin[position * a.half + pair];
      const float own = widened(*from), other = widened(isSecond ? from[-apart] : from[apart]);
      *to = narrowed(isSecond ? own * c + other * s : own * c - other * s, dtype());
    }
  }
}

DEVICE void ropeTable(const ropeTableArgs& a) {
  EACH(i, a.positions * a.half) {
    const double angle = (float)(i / a.half) * a.invFreq[i % a.half]; // rounded to float32, as PyTorch does
    a.cos[i] = (float)cos(angle) * a.scale;
    a.sin[i] = (float)sin(angle) * a.scale;
  }
}

template <class dtype> DEVICE void embedding(const embeddingArgs<dtype>& a) {
  EACH_ROW(i, a.n) {
    const int id = a.ids[i];
    const bool isOutside = id < 0 || id >= a.vocab;
    if (isOutside && threadIdx.x == 0) note(a.status, FAULT_ID, i, id, a.vocab);
    EACH_COLUMN(j, a.cols) a.y[i * a.cols + j] = isOutside ? dtype() : a.w[id * a.cols + j];
  }
}

/** A block a row of `dw`, which looks for its id, so that rows are added in the order of `ids`. */
template <class dtype> DEVICE void embeddingBackward(const embeddingBackwardArgs<dtype>& a) {
  SHARED(int, ids, 256);
  EACH_ROW(v, a.vocab) {
    float* dw = a.dw + v * a.cols;
    EACH_COLUMN(j, a.cols) dw[j] = 0.0f;
    if (v == a.paddingIdx) continue;
    for (i64 first = 0; first < a.n; first += blockDim.x) {
      const i64 own = first + threadIdx.x;
      const int isHit = own < a.n && a.ids[own] == v;
      const int hasHits = overBlock(isHit, Max());
      if (!hasHits) continue;
      ids[threadIdx.x] = isHit;
      __syncthreads();
      for (int k = 0; k < (int)blockDim.x; k++) {
        if (ids[k]) EACH_COLUMN(j, a.cols) dw[j] += get(a.dy, (first + k) * a.cols + j);
      }
      __syncthreads(); // before the next ids take their place
    }
  }
}
