//! Threads that share the work of a call: a control block, behind it a working space for each helper, in memory that all of them
//! see. Helpers are threads of the host that have called [`work`]; they run pieces of jobs that the one caller of kernels
//! publishes, and sleep in between. There is neither a lock nor a C library.
//!
//! Note [Who may take a piece]: `state` holds the job's number and which of its pieces nobody has taken, in one word. The job's
//! function and data are written while there is none to take, so who exchanges that word for one with a piece less has read those
//! of the same job. The caller takes the last piece, helpers the first one: so with two threads each stays in its half, whose
//! elements its cache may hold from the call before. A job is done when all its pieces are; who came too late is not waited for.
use crate::workspace::{self, Workspace};
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Runs one piece of a job.
type Run = unsafe fn(data: usize, piece: usize, space: Workspace);

/// Most pieces of a job.
const MAX_PIECES: usize = 0xffff;
/// Pauses of some 50 ns before a thread that waits goes to sleep: about what the host needs from one kernel to the next.
const SPINS: usize = 2000;
const PAGE: usize = 4096;

/// A cache line of its own.
#[repr(C, align(64))]
struct Line<T>(T);

/// The control block.
#[repr(C)]
pub struct Pool {
    /// The caller and its helpers; written by who maps the block, before anything is called.
    threads: f64,
    /// Elements that a piece of work should have at least; likewise.
    least: f64,
    run: Line<AtomicUsize>,
    data: AtomicUsize,
    /// From the upper half down: the job's number, the end of the pieces that nobody has taken, and their begin.
    state: Line<AtomicU64>,
    done: Line<AtomicU32>,
    /// Whether the caller sleeps on `done`.
    waits: AtomicU32,
    /// Helpers that sleep on the upper half of `state`.
    sleepers: Line<AtomicU32>,
    helpers: AtomicU32,
    left: AtomicU32,
    ended: AtomicU32,
}

/// Numbers of `state`.
fn parts(state: u64) -> (u32, usize, usize) {
    ((state >> 32) as u32, (state >> 16) as usize & MAX_PIECES, state as usize & MAX_PIECES)
}

/// A system call of futexes private to the process: 0 waits while the word holds `value`, 1 wakes up to `value` waiters.
unsafe fn futex(word: *const AtomicU32, operation: usize, value: u32) {
    const PRIVATE: usize = 128;
    let (operation, value) = (operation | PRIVATE, value as usize);
    #[cfg(target_arch = "x86_64")]
    asm!("syscall", inout("rax") 202usize => _, in("rdi") word, in("rsi") operation, in("rdx") value, in("r10") 0,
        out("rcx") _, out("r11") _, options(nostack));
    #[cfg(target_arch = "aarch64")]
    asm!("svc #0", in("x8") 98, inout("x0") word => _, in("x1") operation, in("x2") value, in("x3") 0,
        options(nostack));
}
unsafe fn sleep(word: *const AtomicU32, value: u32) {
    futex(word, 0, value);
}
unsafe fn wake(word: *const AtomicU32) {
    futex(word, 1, i32::MAX as u32);
}

/// Returns once the condition holds, or after a while: then false.
fn spin(condition: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if condition() {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

impl Pool {
    pub fn threads(&self) -> usize {
        self.threads as usize
    }
    pub fn least(&self) -> usize {
        self.least as usize
    }
    /// The job's number as a word to sleep on.
    fn number(&self) -> *const AtomicU32 {
        (self.state.0.as_ptr() as *const AtomicU32).wrapping_add(1)
    }

    /// Offers `pieces` of the next job.
    unsafe fn publish(&self, pieces: usize) {
        let (number, _, _) = parts(self.state.0.load(Ordering::Relaxed));
        let next = (number.wrapping_add(1) as u64) << 32 | (pieces as u64) << 16;
        self.state.0.store(next, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) != 0 {
            wake(self.number());
        }
    }

    /// Takes pieces and runs them until there is none; the first one each time, or the last. See Note [Who may take a piece].
    unsafe fn take(&self, first: bool, space: Workspace) {
        let mut state = self.state.0.load(Ordering::Acquire);
        loop {
            let (_, end, begin) = parts(state);
            if begin >= end {
                return;
            }
            let (run, data) = (self.run.0.load(Ordering::Relaxed), self.data.load(Ordering::Relaxed));
            let (piece, next) = if first { (begin, state + 1) } else { (end - 1, state - (1 << 16)) };
            match self.state.0.compare_exchange(state, next, Ordering::SeqCst, Ordering::Acquire) {
                Err(other) => state = other,
                Ok(_) => {
                    core::mem::transmute::<usize, Run>(run)(data, piece, space);
                    self.done.0.fetch_add(1, Ordering::SeqCst);
                    if first && self.waits.load(Ordering::SeqCst) != 0 {
                        wake(&self.done.0);
                    }
                    state = self.state.0.load(Ordering::Acquire);
                }
            }
        }
    }

    /// Runs all pieces of a job, at most [`MAX_PIECES`]; `own` is the caller's working space.
    pub unsafe fn share(&self, pieces: usize, own: Workspace, run: Run, data: usize) {
        self.run.0.store(run as usize, Ordering::Relaxed);
        self.data.store(data, Ordering::Relaxed);
        self.done.0.store(0, Ordering::Relaxed);
        self.publish(pieces);
        self.take(false, own);
        let all = pieces as u32;
        if spin(|| self.done.0.load(Ordering::Acquire) == all) {
            return;
        }
        self.waits.store(1, Ordering::SeqCst);
        loop {
            let done = self.done.0.load(Ordering::SeqCst);
            if done == all {
                break;
            }
            sleep(&self.done.0, done);
        }
        self.waits.store(0, Ordering::SeqCst);
    }

    /// The working space of a helper, which shares nothing further.
    fn space_of(&self, helper: usize) -> Workspace {
        Workspace::alone(self as *const Pool as usize + PAGE + helper * workspace::BYTES)
    }
}

/// Bytes of a control block and what is behind it, of which the threads are written.
pub unsafe fn bytes(pool: *const Pool) -> usize {
    const _: () = assert!(core::mem::size_of::<Pool>() <= PAGE);
    PAGE + ((*pool).threads() - 1) * workspace::BYTES
}

/// How many threads help.
pub unsafe fn helpers(pool: *const Pool) -> usize {
    (*pool).helpers.load(Ordering::SeqCst) as usize
}

/// Helps until the pool ends.
pub unsafe fn work(pool: *const Pool) {
    let pool = &*pool;
    let space = pool.space_of(pool.helpers.fetch_add(1, Ordering::SeqCst) as usize);
    loop {
        let (number, _, _) = parts(pool.state.0.load(Ordering::Acquire));
        let is_over = || parts(pool.state.0.load(Ordering::SeqCst)).0 != number;
        pool.take(true, space);
        if pool.ended.load(Ordering::SeqCst) != 0 {
            break;
        }
        if !spin(is_over) {
            pool.sleepers.0.fetch_add(1, Ordering::SeqCst);
            sleep(pool.number(), number);
            pool.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    pool.left.fetch_add(1, Ordering::SeqCst);
    wake(&pool.left);
}

/// Lets all helpers go and waits until none of them looks at the pool any more.
pub unsafe fn end(pool: *const Pool) {
    let pool = &*pool;
    pool.ended.store(1, Ordering::SeqCst);
    pool.publish(0);
    loop {
        let left = pool.left.load(Ordering::SeqCst);
        if left == pool.helpers.load(Ordering::SeqCst) {
            return;
        }
        sleep(&pool.left, left);
    }
}
