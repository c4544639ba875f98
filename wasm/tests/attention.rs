//! Attention against the plain formula, and its backward against central differences of the forward.
mod support;

use fullyshard_wasm::attention::{forward, Shape};
use fullyshard_wasm::attention_backward::{backward, Arrays};
use fullyshard_wasm::dropout::Dropout;
use fullyshard_wasm::workspace::Workspace;
use support::{close, values};

fn shape(seq_q: usize, seq_k: usize, heads: usize, kv_heads: usize, head_dim: usize, causal: bool) -> Shape {
    Shape {
        batch: 1,
        seq_q,
        seq_k,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        stride_q: heads * head_dim,
        stride_k: kv_heads * head_dim,
        stride_v: kv_heads * head_dim,
        scale: 0.4,
        softcap: 0.0,
        causal,
        window: 0,
        mask_rows: 1,
        key_mask: core::ptr::null(),
        starts: core::ptr::null(),
        dropout: Dropout { p: 0.0, key: 0, sample: 0 },
        space: Workspace::here(),
    }
}

/// The output of the plain formula in f64.
fn plain(s: &Shape, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
    let mut o = vec![0.0; s.seq_q * s.heads * s.head_dim];
    for h in 0..s.heads {
        let kv = h / (s.heads / s.kv_heads);
        for i in 0..s.seq_q {
            let row = i * s.stride_q + h * s.head_dim;
            let seen: Vec<usize> = (0..s.seq_k).filter(|j| !s.causal || j + s.seq_q <= i + s.seq_k).collect();
            let weights: Vec<f64> = seen
                .iter()
                .map(|j| {
                    let column = j * s.stride_k + kv * s.head_dim;
                    let score = (0..s.head_dim).map(|d| q[row + d] * k[column + d]).sum::<f64>() * s.scale as f64;
                    let cap = s.softcap as f64;
                    (if cap == 0.0 { score } else { cap * (score / cap).tanh() }).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            for (j, weight) in seen.iter().zip(&weights) {
                for d in 0..s.head_dim {
                    o[row + d] += weight / total * v[j * s.stride_v + kv * s.head_dim + d];
                }
            }
        }
    }
    o
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| *v as f64).collect()
}

/// Gradient of `sum(d_o * plain)` in one of the inputs.
fn slope(s: &Shape, inputs: &[Vec<f64>; 3], which: usize, place: usize, d_o: &[f32]) -> f64 {
    let loss = |step: f64| -> f64 {
        let mut moved = inputs.clone();
        moved[which][place] += step;
        plain(s, &moved[0], &moved[1], &moved[2]).iter().zip(d_o).map(|(o, d)| o * *d as f64).sum()
    };
    let h = 1e-4;
    (8.0 * (loss(h) - loss(-h)) - (loss(2.0 * h) - loss(-2.0 * h))) / (12.0 * h)
}

#[test]
fn forward_and_backward_agree_with_the_formula() {
    let shapes = [
        shape(3, 3, 2, 1, 5, true),
        shape(5, 9, 4, 2, 8, true),
        shape(9, 5, 2, 2, 3, false),
        shape(2, 140, 1, 1, 4, false),
        shape(133, 2, 1, 1, 4, false),
        Shape { softcap: 0.3, ..shape(5, 9, 4, 2, 8, true) },
        Shape { softcap: 2.0, ..shape(2, 140, 1, 1, 4, false) },
    ];
    for s in shapes {
        let (n, m) = (s.seq_q * s.stride_q, s.seq_k * s.stride_k);
        let (q, k, v) = (values(n, 1, -1.0, 1.0), values(m, 2, -1.0, 1.0), values(m, 3, -1.0, 1.0));
        let d_o = values(n, 4, -1.0, 1.0);
        let (mut o, mut lse) = (vec![f32::NAN; n], vec![f32::NAN; s.heads * s.seq_q]);
        let (mut dq, mut dk, mut dv) = (vec![f32::NAN; n], vec![f32::NAN; m], vec![f32::NAN; m]);
        unsafe {
            forward(&s, o.as_mut_ptr(), lse.as_mut_ptr(), q.as_ptr(), k.as_ptr(), v.as_ptr());
            backward(
                &s,
                &Arrays {
                    dq: dq.as_mut_ptr(),
                    dk: dk.as_mut_ptr(),
                    dv: dv.as_mut_ptr(),
                    d_o: d_o.as_ptr(),
                    o: o.as_ptr(),
                    lse: lse.as_ptr(),
                    q: q.as_ptr(),
                    k: k.as_ptr(),
                    v: v.as_ptr(),
                },
            );
        }
        let inputs = [wide(&q), wide(&k), wide(&v)];
        for (at, want) in plain(&s, &inputs[0], &inputs[1], &inputs[2]).iter().enumerate() {
            close(o[at] as f64, *want, 1e-6, 3e-7, "o");
        }
        for (which, gradient) in [&dq, &dk, &dv].into_iter().enumerate() {
            for place in (0..gradient.len()).step_by(1 + gradient.len() / 40) {
                close(gradient[place] as f64, slope(&s, &inputs, which, place, &d_o), 1e-5, 2e-6, "gradient");
            }
        }
    }
}
