//! Gather of embedding rows, and scatter-add of their gradients.
use crate::dtype::Element;
use crate::elementwise::zip;
use crate::status::{Status, ID};

/// Rows of `w` by id. An id out of range gives zeros; the first one is noted.
pub unsafe fn gather<T: Element>(
    n: usize,
    vocab: usize,
    cols: usize,
    y: *mut T,
    w: *const T,
    ids: *const i32,
    status: *mut Status,
) {
    for i in 0..n {
        let (id, y) = (ids.add(i).read_unaligned(), y.add(i * cols));
        if (id as u32 as usize) < vocab {
            core::ptr::copy_nonoverlapping(w.add(id as usize * cols), y, cols);
        } else {
            core::ptr::write_bytes(y, 0, cols);
            Status::note(status, ID, i, id as f64, vocab);
        }
    }
}

/// `dw` cleared, then rows of `dy` added in the order of `ids`; ids out of range or equal to `padding` are skipped.
pub unsafe fn scatter_add<T: Element>(
    n: usize,
    vocab: usize,
    cols: usize,
    padding: i32,
    dw: *mut f32,
    dy: *const T,
    ids: *const i32,
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
