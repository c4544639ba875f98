//! Causal depthwise convolution along a sequence: each channel has its own few weights, the last of them for its own token.
use crate::dtype::{load_part, store_part, Element};
use crate::simd::{F32s, F64s, LANES};
use crate::workspace::Workspace;

/// Most weights of a channel.
pub const MAX_WIDTH: usize = 64;

/// The weights of `count` channels from `w` on; a vector for each place.
#[inline(never)]
unsafe fn load_taps<T: Element>(w: *const T, width: usize, count: usize) -> [F32s; MAX_WIDTH] {
    let mut taps = [F32s::zero(); MAX_WIDTH];
    for (k, tap) in taps.iter_mut().enumerate().take(width) {
        let mut lanes = [0.0; LANES];
        for (l, lane) in lanes.iter_mut().enumerate().take(count) {
            *lane = T::load(w.add(l * width + k));
        }
        *tap = F32s::from_lanes(lanes);
    }
    taps
}

/// Where the documents of sequences begin: for each token [batch, seq] the place in its sequence of its document's first one,
/// at most its own; null where a sequence is one document.
#[derive(Clone, Copy)]
struct Documents {
    starts: *const i32,
    seq: usize,
}

impl Documents {
    /// Tokens of its document before the token `t` of a sequence that begins at token `row`.
    #[inline(always)]
    unsafe fn before(self, row: usize, t: usize) -> usize {
        if self.starts.is_null() {
            return t;
        }
        t.saturating_sub(self.starts.add(row + t).read_unaligned().max(0) as usize)
    }
    /// Whether the token `ahead` of token `t` of a sequence that begins at token `row` is one of its document.
    #[inline(always)]
    unsafe fn has(self, row: usize, t: usize, ahead: usize) -> bool {
        t + ahead < self.seq && self.before(row, t + ahead) >= ahead
    }
}

/// Runs `f` with each token of each sequence: where its sequence begins, and its place there.
#[inline(always)]
fn each_token(batch: usize, seq: usize, mut f: impl FnMut(usize, usize)) {
    for b in 0..batch {
        for t in 0..seq {
            f(b * seq, t);
        }
    }
}

/// `y[b, t, c] = Σ_k w[c, k] * x[b, t + k + 1 - width, c]`, where tokens before the first of a document count as zeros.
pub unsafe fn forward<T: Element>(
    space: Workspace,
    batch: usize,
    seq: usize,
    channels: usize,
    width: usize,
    starts: *const i32,
    y: *mut T,
    x: *const T,
    w: *const T,
) {
    let documents = Documents { starts, seq };
    space.split(channels.div_ceil(LANES), batch * seq * width * LANES, |part, _| {
        for c in part.map(|group| group * LANES) {
            let count = (channels - c).min(LANES);
            let taps = load_taps(w.add(c * width), width, count);
            each_token(batch, seq, |row, t| {
                let (token, before) = (row + t, documents.before(row, t));
                let mut sum = F32s::zero();
                for k in width.saturating_sub(before + 1)..width {
                    sum = taps[k].madd(load_part(x.add((token + k + 1 - width) * channels + c), count), sum);
                }
                store_part(y.add(token * channels + c), sum, count);
            });
        }
    });
}

/// Gradients of both inputs. The gradient of the weights is summed in f64.
pub unsafe fn backward<T: Element>(
    space: Workspace,
    batch: usize,
    seq: usize,
    channels: usize,
    width: usize,
    starts: *const i32,
    dx: *mut T,
    dw: *mut f32,
    dy: *const T,
    x: *const T,
    w: *const T,
) {
    let documents = Documents { starts, seq };
    space.split(channels.div_ceil(LANES), batch * seq * width * LANES, |part, _| {
        for c in part.map(|group| group * LANES) {
            let count = (channels - c).min(LANES);
            for k in 0..if dw.is_null() { 0 } else { width } {
                let mut sum = F64s::zero();
                each_token(batch, seq, |row, t| {
                    let token = row + t;
                    if documents.before(row, t) + k + 1 >= width {
                        let d = load_part(dy.add(token * channels + c), count);
                        let v = load_part(x.add((token + k + 1 - width) * channels + c), count);
                        sum = sum.add(F64s::from(d).mul(F64s::from(v)));
                    }
                });
                for (l, value) in sum.narrowed(1.0).lanes().into_iter().enumerate().take(count) {
                    dw.add((c + l) * width + k).write_unaligned(value);
                }
            }
            if dx.is_null() {
                continue;
            }
            let taps = load_taps(w.add(c * width), width, count);
            each_token(batch, seq, |row, t| {
                let token = row + t;
                let mut sum = F32s::zero();
                for k in 0..width {
                    if !documents.has(row, t, width - 1 - k) {
                        continue;
                    }
                    sum = taps[k].madd(load_part(dy.add((token + width - 1 - k) * channels + c), count), sum);
                }
                store_part(dx.add(token * channels + c), sum, count);
            });
        }
    });
}
