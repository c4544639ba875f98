// What goes along a sequence from token to token.

/** Tokens of its document before a token, by its number over all sequences. */
template <class A> DEVICE i64 beforeIt(const A& a, i64 token) {
  const i64 place = token % a.seq, start = a.starts ? a.starts[token] : 0;
  return start <= 0 ? place : start < place ? place - start : 0;
}

template <class dtype> DEVICE void causalConv(const causalConvArgs<dtype>& a) {
  EACH(i, a.batch * a.seq * a.channels) {
    const i64 c = i % a.channels, before = beforeIt(a, i / a.channels);
    float sum = 0.0f;
    for (i64 k = a.width > before + 1 ? a.width - before - 1 : 0; k < a.width; k++) {
      sum = fmaf(get(a.w, c * a.width + k), get(a.x, i + (k + 1 - a.width) * a.channels), sum);
    }
    put(a.y, i, sum);
  }
}

template <class dtype> DEVICE void causalConvBackward(const causalConvBackwardArgs<dtype>& a) {
  if (a.dx) EACH(i, a.batch * a.seq * a.channels) {
    const i64 c = i % a.channels, token = i / a.channels, t = token % a.seq;
    float sum = 0.0f;
    for (i64 k = t + a.width > a.seq ? t + a.width - a.seq : 0; k < a.width; k++) {
      if (beforeIt(a, token + a.width - 1 - k) < a.width - 1 - k) continue; // of another document
      sum = fmaf(get(a.w, c * a.width + k), get(a.dy, i + (a.width - 1 - k) * a.channels), sum);
    }
    put(a.dx, i, sum);
  }
  if (a.dw) EACH_ROW(row, a.channels * a.width) {
    const i64 c = row / a.width, k = row % a.width;
    double sum = 0.0;
    EACH_COLUMN(token, a.batch * a.seq) {
      if (beforeIt(a, token) + k + 1 < a.width) continue;
      sum += (double)get(a.dy, token * a.channels + c) * get(a.x, (token + k + 1 - a.width) * a.channels + c);
    }
    sum = overBlock(sum, Sum());
    if (threadIdx.x == 0) a.dw[row] = (float)sum;
  }
}
