//! Gather of embedding rows, and scatter-add of their gradients.
use crate::dtype::Element;
use crate::elementwise::zip;

/// Place of the first id outside `0 .. vocab`, or -1.
///
/// # Safety
/// `ids` holds `n`.
unsafe fn first_outside(ids: *const i32, n: usize, vocab: usize) -> i32 {
    for i in 0..n {
        if ids.add(i).read_unaligned() as u32 as usize >= vocab {
            return i as i32;
        }
    }
    -1
}

/// Rows of `w` by id. Nothing is written if an id is out of range; its place is returned.
///
/// # Safety
/// The arrays hold what the sizes say.
pub unsafe fn gather<T: Element>(y: *mut T, w: *const T, ids: *const i32, n: usize, vocab: usize, cols: usize) -> i32 {
    let outside = first_outside(ids, n, vocab);
    if outside < 0 {
        for i in 0..n {
            let id = ids.add(i).read_unaligned() as usize;
            core::ptr::copy_nonoverlapping(w.add(id * cols), y.add(i * cols), cols);
        }
    }
    outside
}

/// `dw` cleared, then rows of `dy` added in the order of `ids`; ids out of range or equal to `padding` are skipped.
///
/// # Safety
/// The arrays hold what the sizes say.
pub unsafe fn scatter_add<T: Element>(
    dw: *mut f32,
    dy: *const T,
    ids: *const i32,
    n: usize,
    vocab: usize,
    cols: usize,
    padding: i32,
) {
    core::ptr::write_bytes(dw, 0, vocab * cols);
    for i in 0..n {
        let id = ids.add(i).read_unaligned();
        if id == padding || id as u32 as usize >= vocab {
            continue;
        }
        let row = dw.add(id as usize * cols);
        zip(row, row, dy.add(i * cols), cols, |sum, d| sum + d);
    }
}
