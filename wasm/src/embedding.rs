//! Gather of embedding rows, and scatter-add of their gradients.
use crate::dtype::Element;
use crate::elementwise::zip;
use crate::simd::LANES;
use crate::status::{Status, ID};
use crate::workspace::Workspace;

/// Rows of `w` by id. An id out of range gives zeros; the first one is noted.
pub unsafe fn gather<T: Element>(
    space: Workspace,
    n: usize,
    vocab: usize,
    cols: usize,
    y: *mut T,
    w: *const T,
    ids: *const i32,
    status: *mut Status,
) {
    let id_of = |i: usize| ids.add(i).read_unaligned();
    // Before the rows are shared, so that the first fault is noted.
    if let Some(i) = (0..n).find(|i| id_of(*i) as isize as usize >= vocab) {
        Status::note(status, ID, i, id_of(i) as f64, vocab);
    }
    space.split(n, cols, |part, _| {
        for i in part {
            let (id, y) = (id_of(i) as isize as usize, y.add(i * cols));
            if id < vocab {
                core::ptr::copy_nonoverlapping(w.add(id * cols), y, cols);
            } else {
                core::ptr::write_bytes(y, 0, cols);
            }
        }
    });
}

/// `dw` cleared, then rows of `dy` added in the order of `ids`; ids out of range or equal to `padding` are skipped.
pub unsafe fn scatter_add<T: Element>(
    space: Workspace,
    n: usize,
    vocab: usize,
    cols: usize,
    padding: i32,
    dw: *mut f32,
    dy: *const T,
    ids: *const i32,
) {
    space.split(vocab, cols, |rows, _| core::ptr::write_bytes(dw.add(rows.start * cols), 0, rows.len() * cols));
    // Any two rows may go to the same one, so columns are shared.
    space.split(cols.div_ceil(LANES), n * LANES, |part, _| {
        let first = part.start * LANES;
        let width = (part.end * LANES).min(cols) - first;
        for i in 0..n {
            let id = ids.add(i).read_unaligned();
            if id == padding || id as isize as usize >= vocab {
                continue;
            }
            let sums = dw.add(id as usize * cols + first);
            zip(sums, sums, dy.add(i * cols + first), width, |sum, d| sum + d);
        }
    });
}
