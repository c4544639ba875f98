//! Test values and comparisons that no NaN slips through.
#![allow(dead_code)]

/// `n` values spread over [low, high), the same each time for a seed.
pub fn values(n: usize, seed: u64, low: f32, high: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            low + (high - low) * ((state >> 40) as f32 / (1u64 << 24) as f32)
        })
        .collect()
}

/// Fails unless `actual` is within `relative * |expected| + absolute`, or both are the same non-finite value.
pub fn close(actual: f64, expected: f64, relative: f64, absolute: f64, what: &str) {
    let fits = if expected.is_finite() {
        (actual - expected).abs() <= relative * expected.abs() + absolute
    } else {
        actual == expected || (actual.is_nan() && expected.is_nan())
    };
    assert!(fits, "{what}: {actual}, expected {expected}");
}
