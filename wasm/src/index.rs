//! Gather along the middle of [outer, n, inner] by an index, and the scatter-add that is its gradient.
use crate::dtype::{bytes_of, Element};
use crate::elementwise::zip;
use crate::status::{Status, INDEX};

/// An index [outer, m, inner] with strides over an array [outer, n, inner].
pub struct Index {
    pub outer: usize,
    pub n: usize,
    pub m: usize,
    pub inner: usize,
    pub stride_outer: usize,
    pub stride: usize,
    pub stride_inner: usize,
    pub index: *const i32,
    pub status: *mut Status,
}

impl Index {
    /// Calls `f(place, target, length)` for runs of elements, in order: `place` counts elements of [outer, m, inner],
    /// `target` those of [outer, n, inner]. It is None where the index is out of range; the first one is noted.
    #[inline(always)]
    unsafe fn runs(&self, mut f: impl FnMut(usize, Option<usize>, usize)) {
        // One index for all of `inner` moves it as a whole.
        let length = if self.stride_inner == 0 { self.inner } else { 1 };
        for o in 0..self.outer {
            for j in 0..self.m {
                for k in (0..self.inner).step_by(length.max(1)) {
                    let at = o * self.stride_outer + j * self.stride + k * self.stride_inner;
                    let i = self.index.add(at).read_unaligned();
                    let place = (o * self.m + j) * self.inner + k;
                    if (i as isize as usize) < self.n {
                        f(place, Some((o * self.n + i as usize) * self.inner + k), length);
                    } else {
                        Status::note(self.status, INDEX, place, i as f64, self.n);
                        f(place, None, length);
                    }
                }
            }
        }
    }
}

/// `dst` [outer, m, inner] from `src` [outer, n, inner], of any dtype; zeros where the index is out of range.
pub unsafe fn gather(dtype: u32, index: &Index, dst: *mut u8, src: *const u8) {
    let width = bytes_of(dtype);
    index.runs(|place, target, length| {
        let to = dst.add(place * width);
        match target {
            Some(at) => core::ptr::copy_nonoverlapping(src.add(at * width), to, length * width),
            None => core::ptr::write_bytes(to, 0, length * width),
        }
    });
}

/// Adds `src` [outer, m, inner] into `dst` [outer, n, inner] in the order of `src`; what is out of range is left out.
pub unsafe fn scatter_add<T: Element>(index: &Index, dst: *mut f32, src: *const T) {
    index.runs(|place, target, length| {
        if let Some(at) = target {
            let to = dst.add(at);
            zip(to, to, src.add(place), length, |sum, v| sum + v);
        }
    });
}
