//! Copies of so much that caches would hold none of it when it is read: what is stored goes to memory at once, so that the
//! destination is not read before, and what else the caches hold stays there.
use crate::simd::{copy_line, end_past_caches};
use core::ops::Range;

/// Bytes of a line.
const LINE: usize = 64;

/// Copies the bytes of a range; the arrays may not overlap.
pub unsafe fn copy(n: Range<usize>, dst: *mut u8, src: *const u8) {
    let begin = n.start + n.len().min(dst.add(n.start).align_offset(LINE));
    let end = begin + (n.end - begin) / LINE * LINE;
    copy_bytes(n.start..begin, dst, src);
    for i in (begin..end).step_by(LINE) {
        copy_line(dst.add(i), src.add(i));
    }
    end_past_caches();
    copy_bytes(end..n.end, dst, src);
}

unsafe fn copy_bytes(n: Range<usize>, dst: *mut u8, src: *const u8) {
    core::ptr::copy_nonoverlapping(src.add(n.start), dst.add(n.start), n.len());
}
