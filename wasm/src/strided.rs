//! Strided arrays: element-wise functions of two with broadcasting, and copies.
//!
//! Dims that every operand walks evenly are merged before the loops.
use crate::dtype::{bytes_of, load_part, store_part, Element};
use crate::math;
use crate::simd::{F32s, LANES};
use crate::workspace::Workspace;
use core::ops::Range;

/// Most dims of a strided array.
pub const MAX_DIMS: usize = 8;

/// A shape with the strides of `N` operands, merged.
#[derive(Clone, Copy)]
pub struct Walk<const N: usize> {
    ndim: usize,
    shape: [usize; MAX_DIMS],
    strides: [[isize; MAX_DIMS]; N],
}

impl<const N: usize> Walk<N> {
    /// A walk over `ndim` dims (at most `MAX_DIMS`). Sizes and strides are as wide as an address.
    pub unsafe fn new(ndim: usize, sizes: *const usize, steps: [*const isize; N]) -> Walk<N> {
        let mut walk = Walk { ndim: 0, shape: [1; MAX_DIMS], strides: [[0; MAX_DIMS]; N] };
        for d in 0..ndim.min(MAX_DIMS) {
            let size = *sizes.add(d);
            if size == 1 {
                continue;
            }
            let strides: [isize; N] = core::array::from_fn(|k| *steps[k].add(d));
            let last = walk.ndim.wrapping_sub(1);
            let merges = last < MAX_DIMS && (0..N).all(|k| walk.strides[k][last] == strides[k] * size as isize);
            let at = if merges { last } else { walk.ndim };
            if at >= MAX_DIMS {
                break;
            }
            walk.shape[at] = if merges { walk.shape[at] * size } else { size };
            for (k, stride) in strides.iter().enumerate() {
                walk.strides[k][at] = *stride;
            }
            walk.ndim = at + 1;
        }
        walk
    }

    /// Calls `f(offsets, inner size)` for each run along the innermost dim.
    #[inline(always)]
    pub fn runs(&self, mut f: impl FnMut([isize; N], usize)) {
        let inner = self.last();
        let total: usize = self.shape.iter().product();
        let length = self.shape[inner];
        let mut index = [0usize; MAX_DIMS];
        let mut offsets = [0isize; N];
        for _ in 0..total.checked_div(length).unwrap_or(0) {
            f(offsets, length);
            let mut d = inner;
            while d > 0 {
                d -= 1;
                index[d] += 1;
                for k in 0..N {
                    offsets[k] += self.strides[k][d];
                }
                if index[d] < self.shape[d] {
                    break;
                }
                for k in 0..N {
                    offsets[k] -= self.strides[k][d] * self.shape[d] as isize;
                }
                index[d] = 0;
            }
        }
    }

    /// Shares the walk between threads: calls `f(part, offsets)` with walks over parts of the outermost dim, and where each begins in
    /// the operands and, of a dense array of all elements, in that.
    #[inline(always)]
    pub unsafe fn split(&self, space: Workspace, f: impl Fn(&Walk<N>, [isize; N], usize)) {
        let width = self.shape[1..].iter().product();
        space.split(self.shape[0], width, |part: Range<usize>, _| {
            let offsets = core::array::from_fn(|k| self.strides[k][0] * part.start as isize);
            let mut walk = *self;
            walk.shape[0] = part.len();
            f(&walk, offsets, part.start * width);
        });
    }

    /// The innermost dim.
    fn last(&self) -> usize {
        self.ndim.saturating_sub(1) & (MAX_DIMS - 1)
    }

    /// Strides of the innermost dim.
    pub fn inner(&self) -> [isize; N] {
        core::array::from_fn(|k| self.strides[k][self.last()])
    }
}

/// The lanes (or the first `count`) of an operand walked with a stride.
#[inline(always)]
pub unsafe fn gather<T: Element>(p: *const T, stride: isize, count: usize) -> F32s {
    if stride == 1 {
        return load_part(p, count);
    }
    if stride == 0 {
        return F32s::splat(T::load(p));
    }
    gather_apart(p, stride, count)
}

/// Not inlined, as each function of two would hold it twice.
#[inline(never)]
unsafe fn gather_apart<T: Element>(p: *const T, stride: isize, count: usize) -> F32s {
    let mut lanes = [0.0; LANES];
    for i in 0..LANES {
        if i < count {
            lanes[i] = T::load(p.offset(i as isize * stride));
        }
    }
    F32s::from_lanes(lanes)
}

/// `dst = f(a, b)` over a shape; `dst` is dense.
#[inline(always)]
unsafe fn apply<T: Element>(walk: &Walk<2>, dst: *mut T, a: *const T, b: *const T, f: impl Fn(F32s, F32s) -> F32s) {
    let [sa, sb] = walk.inner();
    let mut out = dst;
    walk.runs(|[oa, ob], n| {
        let (pa, pb) = (a.offset(oa), b.offset(ob));
        for i in (0..n).step_by(LANES) {
            let count = (n - i).min(LANES);
            let va = gather(pa.offset(i as isize * sa), sa, count);
            let vb = gather(pb.offset(i as isize * sb), sb, count);
            store_part(out.add(i), f(va, vb), count);
        }
        out = out.add(n);
    });
}

/// A function of two values, by the code of `binaryOp`; `dst` is dense.
pub unsafe fn binary<T: Element>(
    space: Workspace,
    op: u32,
    shape: *const usize,
    ndim: usize,
    a_strides: *const isize,
    b_strides: *const isize,
    dst: *mut T,
    a: *const T,
    b: *const T,
) {
    Walk::new(ndim, shape, [a_strides, b_strides]).split(space, |walk, [oa, ob], begin| {
        let (dst, a, b) = (dst.add(begin), a.offset(oa), b.offset(ob));
        match op {
            0 => apply(walk, dst, a, b, |x, y| x + y),
            1 => apply(walk, dst, a, b, |x, y| x - y),
            2 => apply(walk, dst, a, b, |x, y| x * y),
            3 => apply(walk, dst, a, b, |x, y| x / y),
            4 => apply(walk, dst, a, b, F32s::max),
            5 => apply(walk, dst, a, b, F32s::min),
            6 => apply(walk, dst, a, b, math::pow),
            _ => {}
        }
    });
}

/// Copies between two strided arrays of any dtype.
pub unsafe fn copy(
    space: Workspace,
    dtype: u32,
    shape: *const usize,
    ndim: usize,
    dst_strides: *const isize,
    src_strides: *const isize,
    dst: *mut u8,
    src: *const u8,
) {
    let bytes = bytes_of(dtype) as isize;
    Walk::new(ndim, shape, [dst_strides, src_strides]).split(space, |walk, [od, os], _| {
        let (dst, src) = (dst.offset(od * bytes), src.offset(os * bytes));
        match bytes {
            1 => copy_elements(walk, dst, src),
            2 => copy_elements(walk, dst as *mut u16, src as *const u16),
            8 => copy_elements(walk, dst as *mut u64, src as *const u64),
            _ => copy_elements(walk, dst as *mut u32, src as *const u32),
        }
    });
}

unsafe fn copy_elements<V: Copy>(walk: &Walk<2>, dst: *mut V, src: *const V) {
    let [sd, ss] = walk.inner();
    walk.runs(|[od, os], n| {
        let (d, s) = (dst.offset(od), src.offset(os));
        if sd == 1 && ss == 1 {
            core::ptr::copy(s as *const u8, d as *mut u8, n * core::mem::size_of::<V>());
        } else {
            for i in 0..n as isize {
                d.offset(i * sd).write_unaligned(s.offset(i * ss).read_unaligned());
            }
        }
    });
}
