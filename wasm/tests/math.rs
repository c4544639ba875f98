//! Accuracy of the functions of lanes and of rounding to bf16.
mod support;

use fullyshard_wasm::dtype::{Bf16, Element, Half};
use fullyshard_wasm::math;
use fullyshard_wasm::simd::{F32s, LANES};
use support::close;

/// Largest error of `f` over a range, in units of the last place of the true value.
fn worst_ulp(low: f32, high: f32, f: impl Fn(F32s) -> F32s, truth: impl Fn(f64) -> f64) -> f64 {
    let n = 200_000;
    let mut worst = 0.0f64;
    for i in 0..n {
        let x = low + (high - low) * (i as f32 / n as f32);
        let got = f(F32s::splat(x)).lanes()[i % LANES] as f64;
        let want = truth(x as f64);
        let ulp = ((want.abs() as f32).next_up() - want.abs() as f32) as f64;
        let error = (got - want).abs() / ulp;
        assert!(error.is_finite(), "at {x}: {got}, expected {want}");
        worst = worst.max(error);
    }
    worst
}

#[test]
fn functions_are_within_a_few_units_in_the_last_place() {
    assert!(worst_ulp(-87.3, 88.7, math::exp, f64::exp) < 1.5);
    assert!(worst_ulp(-87.3, 0.0, math::exp_of_negative, f64::exp) < 1.5);
    assert!(worst_ulp(-1.0, 1.0, math::exp, f64::exp) < 1.0);
    assert!(worst_ulp(-12.0, 12.0, math::tanh, f64::tanh) < 2.0);
    assert!(worst_ulp(-80.0, 30.0, math::sigmoid, |x| 1.0 / (1.0 + (-x).exp())) < 2.5);
    assert!(worst_ulp(1e-6, 1.0, math::log_of_normal, f64::ln) < 1.5);
    let cdf = |x: f64| 0.5 * libm::erfc(-x / 2f64.sqrt());
    assert!(worst_ulp(-0.74, 6.0, math::normal_cdf, cdf) < 3.0);
    // In the tail the square in the exponent carries its rounding.
    assert!(worst_ulp(-5.0, -0.75, math::normal_cdf, cdf) < 20.0);
    for i in 0..100_000 {
        let u = i as f32 / 100_000.0;
        let (c, s) = math::cos_sin_turns(F32s::splat(u));
        let angle = 2.0 * core::f64::consts::PI * u as f64;
        close(c.lanes()[0] as f64, angle.cos(), 0.0, 1.2e-7, "cos");
        close(s.lanes()[0] as f64, angle.sin(), 0.0, 1.2e-7, "sin");
    }
}

#[test]
fn exp_has_the_right_ends() {
    for (x, want) in
        [(f32::NEG_INFINITY, 0.0), (-200.0, 0.0), (0.0, 1.0), (89.0, f32::INFINITY), (f32::INFINITY, f32::INFINITY)]
    {
        assert_eq!(math::exp(F32s::splat(x)).lanes(), [want; LANES]);
    }
    assert!(math::exp(F32s::splat(f32::NAN)).lanes()[0].is_nan());
    assert!(math::exp_of_negative(F32s::splat(f32::NAN)).lanes()[0].is_nan());
    assert_eq!(math::exp_of_negative(F32s::splat(f32::NEG_INFINITY)).lanes(), [0.0; LANES]);
    assert_eq!(math::exp_of_negative(F32s::splat(-88.0)).lanes(), [0.0; LANES]);
    assert_eq!(math::exp_of_negative(F32s::splat(0.0)).lanes(), [1.0; LANES]);
}

#[test]
fn bf16_rounds_to_nearest_even_in_both_forms() {
    for upper in 0..=u16::MAX {
        for lower in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let value = f32::from_bits((upper as u32) << 16 | lower);
            let got = Bf16::from_f32(value);
            let vector = Bf16::round_lanes(F32s::splat(value)).lanes()[0];
            if value.is_nan() {
                assert!(got.to_f32().is_nan() && vector.is_nan());
                continue;
            }
            assert_eq!(got.to_f32().to_bits(), vector.to_bits());
            let up = lower > 0x8000 || (lower == 0x8000 && upper & 1 == 1);
            assert_eq!(got.0, upper + up as u16, "{value}");
        }
    }
}

/// The nearest f16 of a positive number by dividing by its step, which is exact.
fn nearest_half(value: f32) -> f32 {
    let step = (value.max(2f32.powi(-14)).to_bits() & 0x7f80_0000) as f64;
    let step = f32::from_bits(step as u32) as f64 / 1024.0;
    let rounded = ((value as f64 / step).round_ties_even() * step) as f32;
    if rounded >= 65536.0 {
        f32::INFINITY
    } else {
        rounded
    }
}

#[test]
fn f16_is_exact_widened_and_rounds_to_nearest_even() {
    for bits in 0..0x7c00u16 {
        let value = Half(bits).to_f32();
        let (exponent, mantissa) = ((bits >> 10) as i32, (bits & 0x3ff) as f32);
        let truth =
            if exponent == 0 { mantissa * 2f32.powi(-24) } else { (1024.0 + mantissa) * 2f32.powi(exponent - 25) };
        assert_eq!(value.to_bits(), truth.to_bits());
        assert_eq!(Half(bits | 0x8000).to_f32().to_bits(), (-truth).to_bits());
        assert_eq!(Half::from_f32(value).0, bits);
        let next = if bits == 0x7bff { 65536.0 } else { Half(bits + 1).to_f32() };
        let middle = (value + next) / 2.0;
        for near in [value.next_up(), middle.next_down(), middle, middle.next_up(), next.next_down()] {
            let want = nearest_half(near);
            assert_eq!(Half::from_f32(near).to_f32(), want, "{near}");
            assert_eq!(Half::round_lanes(F32s::splat(-near)).lanes()[LANES - 1], -want, "{near}");
        }
    }
    for (bits, value) in [(0x7c00, f32::INFINITY), (0xfc00, f32::NEG_INFINITY)] {
        assert_eq!(Half(bits).to_f32(), value);
        assert_eq!(Half::from_f32(value).0, bits);
    }
    assert_eq!(Half::from_f32(f32::MAX).0, 0x7c00);
    assert_eq!(Half::from_f32(f32::from_bits(1)).0, 0);
    assert_eq!(Half::from_f32(f32::from_bits(0x7f80_0001)).0, 0x7e00);
    assert_eq!(Half(0x7c01).to_f32().to_bits(), 0x7fc0_2000);
}
