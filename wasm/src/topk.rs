//! The largest of some numbers. Which of equal ones are taken, and in which order they come, is as `torch.topk` decides it on a
//! CPU: by the steps of libstdc++'s `nth_element`, or `partial_sort` where few of many are wanted.
use crate::dtype::Element;
use crate::elementwise::map;
use crate::scratch_areas;
use crate::workspace::Workspace;
use core::mem::swap;
use core::ops::Range;

/// Numbers with their places, which are sorted together.
#[derive(Clone, Copy)]
pub struct Queue {
    pub keys: *mut f32,
    pub places: *mut u32,
}

impl Queue {
    /// Whether item `i` comes before item `j`; a NaN counts as largest.
    unsafe fn before(self, i: usize, j: usize) -> bool {
        let (a, b) = (*self.keys.add(i), *self.keys.add(j));
        (a != a && b == b) || a > b
    }

    unsafe fn swap(self, i: usize, j: usize) {
        swap(&mut *self.keys.add(i), &mut *self.keys.add(j));
        swap(&mut *self.places.add(i), &mut *self.places.add(j));
    }

    /// Numbers the items, and moves the `k` largest of `n`, at least 1, to the front, in order.
    #[inline(never)]
    pub unsafe fn top(self, n: usize, k: usize) {
        for i in 0..n {
            *self.places.add(i) = i as u32;
        }
        if k * 64 <= n {
            return self.partial_sort(0, k, n);
        }
        self.nth_element(n, k - 1);
        // The last one is in its place.
        self.sort(0, k - 1, 2 * (k - 1).max(1).ilog2());
        self.insertion_sort(0, k - 1);
    }

    /// Sorts but for stretches of up to 16 items, by halves, or on a heap where `rounds` of that were not enough.
    unsafe fn sort(self, first: usize, mut last: usize, mut rounds: u32) {
        while last - first > 16 {
            if rounds == 0 {
                return self.partial_sort(first, last, last);
            }
            rounds -= 1;
            let cut = self.partition(first, last);
            self.sort(cut, last, rounds);
            last = cut;
        }
    }

    #[inline(never)]
    unsafe fn insertion_sort(self, first: usize, last: usize) {
        for i in first + 1..last {
            let mut j = i;
            while j > first && self.before(j, j - 1) {
                self.swap(j, j - 1);
                j -= 1;
            }
        }
    }

    unsafe fn nth_element(self, n: usize, nth: usize) {
        let (mut first, mut last) = (0, n);
        let mut rounds = 2 * n.ilog2();
        while last - first > 3 {
            if rounds == 0 {
                self.heap_select(first, nth + 1, last);
                return self.swap(first, nth);
            }
            rounds -= 1;
            let cut = self.partition(first, last);
            if cut <= nth {
                first = cut;
            } else {
                last = cut;
            }
        }
        self.insertion_sort(first, last);
    }

    /// Divides items around the median of three, which becomes the first.
    unsafe fn partition(self, first: usize, last: usize) -> usize {
        let (a, b, c) = (first + 1, first + (last - first) / 2, last - 1);
        let middle = if self.before(a, b) {
            if self.before(b, c) {
                b
            } else if self.before(a, c) {
                c
            } else {
                a
            }
        } else if self.before(a, c) {
            a
        } else if self.before(b, c) {
            c
        } else {
            b
        };
        self.swap(first, middle);
        let (mut left, mut right) = (first + 1, last);
        loop {
            while self.before(left, first) {
                left += 1;
            }
            right -= 1;
            while self.before(first, right) {
                right -= 1;
            }
            if left >= right {
                return left;
            }
            self.swap(left, right);
            left += 1;
        }
    }

    unsafe fn partial_sort(self, first: usize, middle: usize, last: usize) {
        self.heap_select(first, middle, last);
        for len in (1..middle - first).rev() {
            self.swap(first, first + len);
            self.sift(first, 0, len);
        }
    }

    /// A heap of the items from `first` to `middle`, of which the last one in order is the first, holds the largest of all.
    #[inline(never)]
    unsafe fn heap_select(self, first: usize, middle: usize, last: usize) {
        let len = middle - first;
        for root in (0..len / 2).rev() {
            self.sift(first, root, len);
        }
        for i in middle..last {
            if self.before(i, first) {
                self.swap(i, first);
                self.sift(first, 0, len);
            }
        }
    }

    /// Moves the item at `root` of a heap down to a leaf, and up again to where it belongs.
    #[inline(never)]
    unsafe fn sift(self, first: usize, root: usize, len: usize) {
        let mut hole = root;
        while 2 * hole + 1 < len {
            let right = 2 * hole + 2;
            let child = if right < len && !self.before(first + right, first + right - 1) { right } else { right - 1 };
            self.swap(first + hole, first + child);
            hole = child;
        }
        while hole > root && self.before(first + (hole - 1) / 2, first + hole) {
            let parent = (hole - 1) / 2;
            self.swap(first + hole, first + parent);
            hole = parent;
        }
    }
}

/// Most numbers of a row.
pub const MAX_COLS: usize = 1 << 18;

scratch_areas! { Space {
    keys: MAX_COLS,
    places: MAX_COLS,
} }

/// Places of the `k` largest of each row.
pub unsafe fn rows<T: Element>(
    space: Workspace,
    rows: Range<usize>,
    cols: usize,
    k: usize,
    indices: *mut i32,
    x: *const T,
) {
    let f = Space::new(space);
    let queue = Queue { keys: f.keys, places: f.places as *mut u32 };
    for r in if k == 0 || k > cols { 0..0 } else { rows } {
        map(queue.keys, x.add(r * cols), cols, |v| v);
        queue.top(cols, k);
        for i in 0..k {
            indices.add(r * k + i).write_unaligned(*queue.places.add(i) as i32);
        }
    }
}
