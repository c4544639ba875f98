//! The status record: the first fault that a kernel met. Kernels return nothing; `src/device/status.ts` reads it.

/// What went wrong; see `ERRORS` there. 0 is nothing.
pub const ID: u32 = 1;
pub const LABEL: u32 = 2;
pub const POSITION: u32 = 3;
pub const NORM: u32 = 4;
pub const INDEX: u32 = 5;

/// The record.
#[repr(C)]
pub struct Status {
    kind: u32,
    unused: u32,
    /// Which element met it. Numbers are f64, as a u32 does not hold the places of large arrays.
    place: f64,
    /// What the value had to be below.
    limit: f64,
    value: f64,
}

impl Status {
    /// Notes a fault unless there is one.
    pub unsafe fn note(status: *mut Status, kind: u32, place: usize, value: f64, limit: usize) {
        if (*status).kind == 0 {
            *status = Status { kind, unused: 0, place: place as f64, limit: limit as f64, value };
        }
    }

    /// Whether there is a fault.
    pub unsafe fn is_set(status: *const Status) -> bool {
        (*status).kind != 0
    }
}
