//! Copies of so much that caches would hold none of it when it is read: what is stored goes to memory at once, so that the
//! destination is not read before, and what else the caches hold stays there.
use crate::simd::{copy_line, end_of_lines, prefetch};
use core::ops::Range;

/// Bytes of a line, and of what the processor's own prefetching does not cross.
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Pages that are copied side by side, and lines of one before those of the next: memory is faster with several rows open.
const PAGES: usize = 4;
const LINES: usize = 2;

/// Copies the bytes of a range; the arrays may not overlap.
pub unsafe fn copy(n: Range<usize>, dst: *mut u8, src: *const u8) {
    let head = n.len().min(dst.add(n.start).align_offset(LINE));
    let begin = n.start + head;
    let middle = begin + (n.end - begin) / (PAGES * PAGE) * (PAGES * PAGE);
    let end = begin + (n.end - begin) / LINE * LINE;
    copy_bytes(n.start..begin, dst, src);
    for block in (begin..middle).step_by(PAGES * PAGE) {
        for i in (block..block + PAGE).step_by(LINES * LINE) {
            for page in (i..i + PAGES * PAGE).step_by(PAGE) {
                for line in (page..page + LINES * LINE).step_by(LINE) {
                    prefetch(src.wrapping_add(line + PAGES * PAGE));
                    copy_line(dst.add(line), src.add(line));
                }
            }
        }
    }
    for i in (middle..end).step_by(LINE) {
        copy_line(dst.add(i), src.add(i));
    }
    end_of_lines();
    copy_bytes(end..n.end, dst, src);
}

unsafe fn copy_bytes(n: Range<usize>, dst: *mut u8, src: *const u8) {
    core::ptr::copy_nonoverlapping(src.add(n.start), dst.add(n.start), n.len());
}
