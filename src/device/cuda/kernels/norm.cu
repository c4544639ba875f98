// RMSNorm and LayerNorm with their backwards, a block a row. Sums are float64; statistics are kept as float32.

template <class dtype> DEVICE void rmsNorm(const rmsNormArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const dtype* x = a.x + r * a.cols;
    double squares = 0.0;
    EACH_COLUMN(j, a.cols) squares += (double)get(x, j) * get(x, j);
    const float scale = (float)(1.0 / sqrt(overBlock(squares, Sum()) / (double)a.cols + a.eps));
    if (threadIdx.x == 0) a.rstd[r] = scale;
    EACH_COLUMN(j, a.cols) {
      float y = get(x, j) * scale;
      if (a.w && a.zeroCentered) y = (1.0f + get(a.w, j)) * y;
      else if (a.w) y = get(a.w, j) * rounded<dtype>(y); // as transformers rounds it
      put(a.y, r * a.cols + j, y);
    }
  }
}

template <class dtype> DEVICE void rmsNormBackward(const rmsNormBackwardArgs<dtype>& a) {
  const float center = a.zeroCentered && a.w ? 1.0f : 0.0f;
  if (a.dx) EACH_ROW(r, a.rows) {
    const dtype *x = a.x + r * a.cols, *dy = a.dy + r * a.cols;
    const float scale = a.rstd[r];
    double dot = 0.0;
    EACH_COLUMN(j, a.cols) dot += (double)(get(dy, j) * (a.w ? center + get(a.w, j) : 1.0f)) * get(x, j);
    const float mean = (float)(overBlock(dot, Sum()) * scale * scale / (double)a.cols);
    EACH_COLUMN(j, a.cols) {
      const float g = get(dy, j) * (a.w ? center + get(a.w, j) : 1.0f);
      put(a.dx, r * a.cols + j, scale * (g - mean * get(x, j)));
    }
  }
  if (a.dw) EACH(j, a.cols) {
    double sum = 0.0;
    for (i64 r = 0; r < a.rows; r++) {
      const float normal = get(a.x, r * a.cols + j) * a.rstd[r];
      sum += get(a.dy, r * a.cols + j) * (a.zeroCentered ? normal : rounded<dtype>(normal));
    }
    a.dw[j] = (float)sum;
  }
}

template <class dtype> DEVICE void layerNorm(const layerNormArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const dtype* x = a.x + r * a.cols;
    const double n = (double)a.cols;
    double sum = 0.0, deviations = 0.0, squares = 0.0;
    EACH_COLUMN(j, a.cols) sum += get(x, j);
    const float center = (float)(overBlock(sum, Sum()) / n);
    // Deviations from the rounded mean, whose rounding error is taken out of the variance again.
    EACH_COLUMN(j, a.cols) {
      const double d = get(x, j) - center;
      deviations += d;
      squares += d * d;
    }
    deviations = overBlock(deviations, Sum()) / n;
    const double variance = overBlock(squares, Sum()) / n - deviations * deviations;
    const float scale = (float)(1.0 / sqrt(variance + a.eps));
    if (threadIdx.x == 0) {
      a.mean[r] = center;
      a.rstd[r] = scale;
    }
    EACH_COLUMN(j, a.cols) {
      float y = (get(x, j) - center) * scale * (a.w ? get(a.w, j) : 1.0f);
      if (a.b) y = y + get(a.b, j);
      put(a.y, r * a.cols + j, y);
    }
  }
}

template <class dtype> DEVICE void layerNormBackward(const layerNormBackwardArgs<dtype>& a) {
  if (a.dx) EACH_ROW(r, a.rows) {
    const dtype *x = a.x + r * a.cols, *dy = a.dy + r * a.cols;
    const float center = a.mean[r], scale = a.rstd[r];
    double sum = 0.0, dot = 0.0;
    EACH_COLUMN(j, a.cols) {
      const float g = get(dy, j) * (a.w ? get(a.w, j) : 1.0f);
      sum += g;
      dot += (double)g * ((get(x, j) - center) * scale);
    }
    const float meanG = (float)(overBlock(sum, Sum()) / (double)a.cols);
    const float meanGx = (float)(overBlock(dot, Sum()) / (double)a.cols);
    EACH_COLUMN(j, a.cols) {
      const float g = get(dy, j) * (a.w ? get(a.w, j) : 1.0f), normal = (get(x, j) - center) * scale;
      put(a.dx, r * a.cols + j, scale * (g - meanG - normal * meanGx));
    }
  }
  EACH(j, a.cols) {
    double dw = 0.0, db = 0.0;
    for (i64 r = 0; r < a.rows; r++) {
      const float d = get(a.dy, r * a.cols + j);
      dw += d * ((get(a.x, r * a.cols + j) - a.mean[r]) * a.rstd[r]);
      db += d;
    }
    if (a.dw) a.dw[j] = (float)dw;
    if (a.db) a.db[j] = (float)db;
  }
}
