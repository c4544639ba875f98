// A part of cudnn.cpp: attention in float64 on tensors as they are described, by plain loops.
#pragma once
#include <math.h>
#include <stdint.h>
#include <vector>
#include "sixteen_bits.hpp"
#include "twin.hpp"

// A tensor of the dims [batch, heads, sequence, dims of a head], of float (0), float16 (2) or bfloat16 (9).
struct Tensor {
  int64_t uid = 0, alignment = 0;
  int type = 0;
  std::vector<int64_t> dims, strides;
  bool isVirtual = false, isByValue = false;
  int bytes() const { return type == 0 || type == 4 ? 4 : 2; }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  bool isLike(std::vector<int64_t> expected, int wanted) const { return dims == expected && type == wanted; }
};

struct Placed {
  Tensor tensor;
  char *at;
  int64_t place(int64_t b, int64_t h, int64_t s, int64_t d) const {
    return b * tensor.strides[0] + h * tensor.strides[1] + s * tensor.strides[2] + d * tensor.strides[3];
  }
  double get(int64_t b, int64_t h, int64_t s, int64_t d) const {
    int64_t i = place(b, h, s, d);
    return tensor.type == 0 ? ((const float *)at)[i] : widen(((const uint16_t *)at)[i], tensor.type == 2);
  }
  void set(int64_t b, int64_t h, int64_t s, int64_t d, double x) const {
    int64_t i = place(b, h, s, d);
    if (tensor.type == 0) ((float *)at)[i] = (float)x;
    else ((uint16_t *)at)[i] = narrow((float)x, tensor.type == 2);
  }
  /** Tells the detector of races: each row, as what lies between rows may be another tensor's. */
  void touch(bool writes) const {
    const std::vector<int64_t> &d = tensor.dims;
    for (int64_t b = 0; b < d[0]; b++)
      for (int64_t h = 0; h < d[1]; h++)
        for (int64_t s = 0; s < d[2]; s++) twinTouch(at + place(b, h, s, 0) * tensor.bytes(), d[3] * tensor.bytes(), writes);
  }
};

struct Attention {
  bool isBackward = false, isCausal = false;
  Placed q, k, v, o, lse, dO, dq, dk, dv;
  double scale = 1, hidden = 0;
  int64_t lengthQ = 0, lengthK = 0; // 0 where the mask begins at the first key
};

static double scoreOf(const Attention &a, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (a.isCausal && i + a.lengthK - a.lengthQ < j) return a.hidden;
  int64_t kv = h / (a.q.tensor.dims[1] / a.k.tensor.dims[1]);
  double sum = 0;
  for (int64_t d = 0; d < a.q.tensor.dims[3]; d++) sum += a.q.get(b, h, i, d) * a.k.get(b, kv, j, d);
  return sum * a.scale;
}

static void forward(const Attention &a) {
  const std::vector<int64_t> &Q = a.q.tensor.dims, &V = a.v.tensor.dims;
  std::vector<double> p(V[2]);
  for (int64_t b = 0; b < Q[0]; b++)
    for (int64_t h = 0; h < Q[1]; h++)
      for (int64_t i = 0; i < Q[2]; i++) {
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < V[2]; j++) most = fmax(most, p[j] = scoreOf(a, b, h, i, j));
        for (int64_t j = 0; j < V[2]; j++) sum += p[j] = exp(p[j] - most);
        a.lse.set(b, h, i, 0, most + log(sum));
        for (int64_t d = 0; d < V[3]; d++) {
          double o = 0;
          for (int64_t j = 0; j < V[2]; j++) o += p[j] / sum * a.v.get(b, h / (Q[1] / V[1]), j, d);
          a.o.set(b, h, i, d, o);
        }
      }
}

static void backward(const Attention &a) {
  const std::vector<int64_t> &Q = a.q.tensor.dims, &V = a.v.tensor.dims;
  int64_t group = Q[1] / V[1];
  std::vector<double> dq(Q[3]), dk, dv;
  for (int64_t b = 0; b < Q[0]; b++)
    for (int64_t kv = 0; kv < V[1]; kv++) {
      dk.assign(V[2] * Q[3], 0);
      dv.assign(V[2] * V[3], 0);
      for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < Q[2]; i++) {
          double mean = 0;
          for (int64_t d = 0; d < V[3]; d++) mean += a.dO.get(b, h, i, d) * a.o.get(b, h, i, d);
          dq.assign(Q[3], 0);
          for (int64_t j = 0; j < V[2]; j++) {
            double p = exp(scoreOf(a, b, h, i, j) - a.lse.get(b, h, i, 0)), dp = 0;
            if (p == 0) continue;
            for (int64_t d = 0; d < V[3]; d++) {
              dp += a.dO.get(b, h, i, d) * a.v.get(b, kv, j, d);
              dv[j * V[3] + d] += p * a.dO.get(b, h, i, d);
            }
            double ds = p * (dp - mean) * a.scale;
            for (int64_t d = 0; d < Q[3]; d++) {
              dq[d] += ds * a.k.get(b, kv, j, d);
              dk[j * Q[3] + d] += ds * a.q.get(b, h, i, d);
            }
          }
          for (int64_t d = 0; d < Q[3]; d++) a.dq.set(b, h, i, d, dq[d]);
        }
      for (int64_t j = 0; j < V[2]; j++) {
        for (int64_t d = 0; d < Q[3]; d++) a.dk.set(b, kv, j, d, dk[j * Q[3] + d]);
        for (int64_t d = 0; d < V[3]; d++) a.dv.set(b, kv, j, d, dv[j * V[3] + d]);
      }
    }
}
