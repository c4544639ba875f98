//! Exact sums and the random stream, which must give these very bits.
use fullyshard_wasm::{exact, philox};

fn accumulator() -> Vec<i64> {
    vec![0; exact::WORDS]
}

#[test]
fn a_sum_is_exact_and_rounded_once() {
    let cases: [(&[f64], f64); 7] = [
        (&[], 0.0),
        (&[1e300, 1.0, 1e-300], 1e300),
        (&[9007199254740992.0, 1.0], 9007199254740992.0), // a tie, to even
        (&[9007199254740992.0, 1.0, 5e-324], 9007199254740994.0),
        (&[9007199254740994.0, 1.0], 9007199254740996.0), // a tie, to even
        (&[f64::MAX, f64::MAX], f64::INFINITY),
        (&[5e-324, 5e-324, 2.2250738585072014e-308], 2.2250738585072024e-308),
    ];
    for (terms, want) in cases {
        let mut sum = accumulator();
        for &term in terms {
            unsafe { exact::add(sum.as_mut_ptr(), term) };
        }
        assert_eq!(unsafe { exact::value(sum.as_ptr()) }, want, "{terms:?}");
    }
    let mut sum = accumulator();
    unsafe {
        exact::add(sum.as_mut_ptr(), f64::INFINITY);
        assert_eq!(exact::value(sum.as_ptr()), f64::INFINITY);
        exact::add(sum.as_mut_ptr(), f64::NAN);
        assert!(exact::value(sum.as_ptr()).is_nan());
    }
}

#[test]
fn every_power_of_two_comes_back() {
    for exponent in -1074..1024 {
        let value = libm::scalbn(1.0, exponent);
        let mut sum = accumulator();
        unsafe { exact::add(sum.as_mut_ptr(), value) };
        assert_eq!(unsafe { exact::value(sum.as_ptr()) }, value);
    }
}

/// `digits[i] * 2^(32 i - 1074)`, rounded to nearest even, bit by bit.
fn rounded(digits: &[u64]) -> f64 {
    let mut bits = Vec::new();
    let mut carry: u128 = 0;
    for i in 0..digits.len() + 4 {
        carry += digits.get(i).copied().unwrap_or(0) as u128;
        bits.extend((0..32).map(|bit| carry >> bit & 1 == 1));
        carry >>= 32;
    }
    let Some(top) = bits.iter().rposition(|bit| *bit) else { return 0.0 };
    let drop = (top + 1).saturating_sub(53);
    let mut mantissa = (drop..=top).rev().fold(0u64, |m, bit| m << 1 | bits[bit] as u64);
    let above_half = drop > 1 && bits[..drop - 1].iter().any(|bit| *bit);
    if drop > 0 && bits[drop - 1] && (above_half || mantissa % 2 == 1) {
        mantissa += 1;
    }
    libm::scalbn(mantissa as f64, drop as i32 - 1074)
}

#[test]
fn any_digits_give_their_sum_rounded_once() {
    let mut seed = 1u64;
    for round in 0..3000 {
        let low = (seed % 58) as usize;
        let mut digits = vec![0u64; 66];
        for (limb, digit) in digits.iter_mut().enumerate().skip(low).take(5) {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Carries reach far; some low digits are zero, so that there are ties.
            let shift = if limb % 2 == 0 { 3 } else { 33 };
            *digit = if round % 3 == 0 && limb < low + 3 { 0 } else { seed >> shift };
        }
        if round % 6 == 0 {
            digits[low + 3] = 1 << 21;
            digits[low + 4] = 1 << (round % 32);
        }
        let mut sum = accumulator();
        for (word, digit) in sum.iter_mut().zip(&digits) {
            *word = *digit as i64;
        }
        assert_eq!(unsafe { exact::value(sum.as_ptr()) }, rounded(&digits), "{digits:?}");
    }
}

#[test]
fn digits_of_many_additions_do_not_overflow() {
    // As if 2^31 - 1 terms with full digits had been added.
    let mut sum = accumulator();
    for digit in sum.iter_mut().take(60) {
        *digit = ((1i64 << 31) - 1) * 0xffff_ffff;
    }
    let value = unsafe { exact::value(sum.as_ptr()) };
    // Digit 59 is worth 2^(32 * 59 - 1074), and what lies below adds its 2^-32.
    let want = libm::scalbn(((1i64 << 31) - 1) as f64 * 4294967296.0, 32 * 59 - 1074);
    assert!((value / want - 1.0).abs() < 1e-15, "{value} {want}");
}

#[test]
fn philox_gives_the_published_answers() {
    let ones = u32::MAX;
    assert_eq!(philox::block([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
    assert_eq!(philox::block([ones; 4], [ones; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    let pi = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
    assert_eq!(philox::block(pi, [0xa4093822, 0x299f31d0]), [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
}
