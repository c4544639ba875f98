// Softmax of rows and cross-entropy, a block a row. Sums are float64.

/** The largest of a row, and the sum of the exponentials of what each is below that. */
template <class T> DEVICE double sumOfExp(const T* x, i64 cols, float& top) {
  top = -floatOf(0x7f800000);
  EACH_COLUMN(j, cols) top = Max()(top, get(x, j));
  top = overBlock(top, Max());
  double sum = 0.0;
  EACH_COLUMN(j, cols) sum += expf(get(x, j) - top);
  return overBlock(sum, Sum());
}

template <class dtype> DEVICE void softmax(const softmaxArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const dtype* x = a.x + r * a.cols;
    dtype* y = a.y + r * a.cols;
    float top;
    const double sum = sumOfExp(x, a.cols, top);
    const float logSum = (float)log(sum), inverse = (float)(1.0 / sum);
    EACH_COLUMN(j, a.cols) put(y, j, a.log ? get(x, j) - top - logSum : expf(get(x, j) - top) * inverse);
  }
}

template <class dtype> DEVICE void softmaxBackward(const softmaxBackwardArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const dtype *dy = a.dy + r * a.cols, *y = a.y + r * a.cols;
    double total = 0.0;
    EACH_COLUMN(j, a.cols) total += a.log ? (double)get(dy, j) : (double)get(dy, j) * get(y, j);
    const float sum = (float)overBlock(total, Sum());
    EACH_COLUMN(j, a.cols) {
      const float d = get(dy, j), value = get(y, j);
      put(a.dx, r * a.cols + j, a.log ? d - expf(value) * sum : value * (d - sum));
    }
  }
}

template <class dtype> DEVICE void crossEntropy(const crossEntropyArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const int label = a.labels[r];
    const bool isOutside = label < 0 || label >= a.cols, isIgnored = label == a.ignoreIndex;
    const dtype* x = a.logits + r * a.cols;
    if (isOutside || isIgnored) {
      if (threadIdx.x == 0) {
        a.losses[r] = 0.0f;
        if (!isIgnored) note(a.status, FAULT_LABEL, a.firstRow + r, label, a.cols);
      }
      if (a.dlogits) EACH_COLUMN(j, a.cols) a.dlogits[r * a.cols + j] = dtype();
      continue;
    }
    const float atLabel = get(x, label); // before the gradient takes its place
    float top;
    if (a.labelSmoothing != 0.0 || a.zLoss != 0.0) {
      double mean = 0.0;
      EACH_COLUMN(j, a.cols) mean += (double)get(x, j);
      mean = overBlock(mean, Sum()) / (double)a.cols;
      const double sum = sumOfExp(x, a.cols, top), logSum = log(sum) + top;
      const double own = 1.0 - a.labelSmoothing, shared = a.labelSmoothing / (double)a.cols;
      if (threadIdx.x == 0) {
        a.losses[r] = (float)(logSum - own * atLabel - a.labelSmoothing * mean + a.zLoss * logSum * logSum);
      }
      if (!a.dlogits) continue;
      const float factor = (float)((1.0 + 2.0 * a.zLoss * logSum) / sum);
      EACH_COLUMN(j, a.cols) {
        put(a.dlogits, r * a.cols + j, expf(get(x, j) - top) * factor - (float)shared - (j == label ? (float)own : 0.0f));
      }
      continue;
    }
    const double sum = sumOfExp(x, a.cols, top);
    if (threadIdx.x == 0) a.losses[r] = (float)(log(sum) + ((double)top - atLabel));
    if (!a.dlogits) continue;
    const float inverse = (float)(1.0 / sum);
    EACH_COLUMN(j, a.cols) put(a.dlogits, r * a.cols + j, expf(get(x, j) - top) * inverse - (j == label ? 1.0f : 0.0f));
  }
}
