//! Comparisons, whose results are masks of 1 and 0, and choosing by a mask.
use crate::dtype::{bytes_of, Bf16, Half, BF16, F16, I32, U8};
use crate::strided::Walk;
use crate::workspace::Workspace;

/// `dst = op(a, b)` by the code of `compareOp`; `dst` is dense. Values are compared in f64, which holds all of them.
pub unsafe fn compare(
    space: Workspace,
    dtype: u32,
    op: u32,
    shape: *const usize,
    ndim: usize,
    a_strides: *const isize,
    b_strides: *const isize,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
) {
    let walk = Walk::new(ndim, shape, [a_strides, b_strides]);
    let (bytes, strides) = (bytes_of(dtype) as isize, walk.inner());
    walk.split(space, |walk, [oa, ob], begin| {
        let (mut out, a, b) = (dst.add(begin), a.offset(oa * bytes), b.offset(ob * bytes));
        walk.runs(|at, n| {
            match dtype {
                BF16 => compare_row(op, n, out, a as *const Bf16, b as *const Bf16, at, strides, |v| v.to_f32() as f64),
                F16 => {
                    let (a, b) = (a as *const Half, b as *const Half);
                    compare_row(op, n, out, a, b, at, strides, |v| v.to_f32() as f64)
                }
                I32 => compare_row(op, n, out, a as *const i32, b as *const i32, at, strides, |v| v as f64),
                U8 => compare_row(op, n, out, a, b, at, strides, |v| v as f64),
                _ => compare_row(op, n, out, a as *const f32, b as *const f32, at, strides, |v| v as f64),
            }
            out = out.add(n);
        });
    });
}

unsafe fn compare_row<V: Copy>(
    op: u32,
    n: usize,
    dst: *mut u8,
    a: *const V,
    b: *const V,
    at: [isize; 2],
    strides: [isize; 2],
    value: impl Fn(V) -> f64,
) {
    let (a, b) = (a.offset(at[0]), b.offset(at[1]));
    for i in 0..n as isize {
        let x = value(a.offset(i * strides[0]).read_unaligned());
        let y = value(b.offset(i * strides[1]).read_unaligned());
        *dst.offset(i) = holds(op, x, y) as u8;
    }
}

/// Not inlined: a loop for each function would take more room than it is worth.
#[inline(never)]
fn holds(op: u32, x: f64, y: f64) -> bool {
    match op {
        0 => x == y,
        1 => x != y,
        2 => x < y,
        3 => x <= y,
        4 => x > y,
        5 => x >= y,
        6 => x != 0.0 && y != 0.0,
        _ => x != 0.0 || y != 0.0,
    }
}

/// `dst = condition != 0 ? a : b` of any dtype; `dst` is dense.
pub unsafe fn select(
    space: Workspace,
    dtype: u32,
    shape: *const usize,
    ndim: usize,
    condition_strides: *const isize,
    a_strides: *const isize,
    b_strides: *const isize,
    dst: *mut u8,
    condition: *const u8,
    a: *const u8,
    b: *const u8,
) {
    let walk = Walk::new(ndim, shape, [condition_strides, a_strides, b_strides]);
    let (bytes, strides) = (bytes_of(dtype), walk.inner());
    walk.split(space, |walk, [oc, oa, ob], begin| {
        let (mut out, condition) = (dst.add(begin * bytes), condition.offset(oc));
        let (a, b) = (a.offset(oa * bytes as isize), b.offset(ob * bytes as isize));
        walk.runs(|at, n| {
            match bytes {
                1 => select_row(n, out, condition, a, b, at, strides),
                2 => select_row(n, out as *mut u16, condition, a as *const u16, b as *const u16, at, strides),
                8 => select_row(n, out as *mut u64, condition, a as *const u64, b as *const u64, at, strides),
                _ => select_row(n, out as *mut u32, condition, a as *const u32, b as *const u32, at, strides),
            }
            out = out.add(n * bytes);
        });
    });
}

unsafe fn select_row<V: Copy>(
    n: usize,
    dst: *mut V,
    condition: *const u8,
    a: *const V,
    b: *const V,
    at: [isize; 3],
    strides: [isize; 3],
) {
    let (condition, a, b) = (condition.offset(at[0]), a.offset(at[1]), b.offset(at[2]));
    for i in 0..n as isize {
        let chosen =
            if *condition.offset(i * strides[0]) != 0 { a.offset(i * strides[1]) } else { b.offset(i * strides[2]) };
        dst.offset(i).write_unaligned(chosen.read_unaligned());
    }
}
