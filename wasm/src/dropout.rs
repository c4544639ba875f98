//! Dropout: elements become zero with a probability `p`, the others are divided by `1 - p`. Which ones depends on a stream's key
//! and on the sample that an element belongs to, and its place there: never on the batch or the rank.
use crate::dtype::{load_part, store_part, Element};
use crate::philox::Row;
use crate::simd::{F32s, LANES};
use crate::workspace::Workspace;

/// What is dropped in a call; nothing with a `p` of 0.
#[derive(Clone, Copy)]
pub struct Dropout {
    pub p: f64,
    pub key: u64,
    /// Number of the first sample of the batch; the others follow it.
    pub sample: u64,
}

impl Dropout {
    /// Factors of `n` columns from `first` on, a multiple of 4, for a row of the batch's entry `entry`; up to 3 more are written.
    #[inline(never)]
    pub unsafe fn factors(&self, entry: usize, plane: usize, row: usize, first: usize, n: usize, factors: *mut f32) {
        let source = Row { key: self.key, sample: self.sample + entry as u64, plane, row };
        let dropped = (self.p * 4_294_967_296.0) as u64;
        let kept = (1.0 / (1.0 - self.p)) as f32;
        for c in (0..n).step_by(4) {
            let words = source.words((first + c) / 4);
            for k in 0..4 {
                *factors.add(c + k) = if (words[k] as u64) < dropped { 0.0 } else { kept };
            }
        }
    }
}

/// `row *= factors`, of whole vectors.
#[inline(never)]
pub unsafe fn multiply(n: usize, row: *mut f32, factors: *const f32) {
    for j in (0..n).step_by(LANES) {
        (F32s::load(row.add(j)) * F32s::load(factors.add(j))).store(row.add(j));
    }
}

/// Columns whose factors are made at once.
const COLUMNS: usize = 128;

/// Dropout of [batch, rows, cols], and the backward as well, of gradients; `y` may be `x`.
pub unsafe fn apply<T: Element>(
    space: Workspace,
    batch: usize,
    rows: usize,
    cols: usize,
    dropout: &Dropout,
    y: *mut T,
    x: *const T,
) {
    space.split(batch * rows, 4 * cols, |part, _| {
        let mut factors = [0.0; COLUMNS];
        for place in part {
            for first in (0..cols).step_by(COLUMNS) {
                let n = COLUMNS.min(cols - first);
                dropout.factors(place / rows, 0, place % rows, first, n, factors.as_mut_ptr());
                let at = place * cols + first;
                for j in (0..n).step_by(LANES) {
                    let value = load_part(x.add(at + j), n - j) * F32s::load(factors.as_ptr().add(j));
                    store_part(y.add(at + j), value, n - j);
                }
            }
        }
    });
}
