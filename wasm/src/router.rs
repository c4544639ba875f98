//! Which experts a token goes to, and by what weights: from the scores of a router, and back to their gradient.
use crate::dtype::Element;
use crate::elementwise::map;
use crate::scratch_areas;
use crate::simd::{max, F32s};
use crate::topk::Queue;
use crate::workspace::Workspace;
use core::ops::Range;

/// Places in `scoring` of the table's functions.
const SIGMOID: u32 = 1;
const SOFTMAX_OF_TOP: u32 = 2;
const SPARSE_MIXER: u32 = 3;
/// Most experts.
const MAX_EXPERTS: usize = 4096;
/// What a sum of weights is divided by is never less.
const LEAST_SUM: f32 = 1e-20;

scratch_areas! { Space {
    scores: MAX_EXPERTS,
    keys: MAX_EXPERTS,
    places: MAX_EXPERTS,
    groups: MAX_EXPERTS,
    gradient: MAX_EXPERTS,
} }

/// How a router chooses.
pub struct Routing {
    pub scoring: u32,
    pub rows: Range<usize>,
    pub experts: usize,
    pub top_k: usize,
    pub groups: usize,
    pub top_groups: usize,
    pub group_best: usize,
    pub normalize: bool,
    pub scale: f32,
    pub jitter: f32,
    pub space: Workspace,
}

impl Routing {
    /// True if weights are divided by their sum. Weights of a softmax have the sum 1.
    fn normalizes(&self) -> bool {
        self.normalize && self.scoring != SOFTMAX_OF_TOP
    }

    /// Scores of all experts, in place of the logits.
    #[inline(never)]
    unsafe fn score(&self, scores: *mut f32) {
        if self.scoring == SIGMOID {
            for i in 0..self.experts {
                let at = scores.add(i);
                at.write((1.0 / (1.0 + libm::exp(-*at as f64))) as f32);
            }
        } else if self.scoring < SIGMOID {
            softmax_in_place(scores, self.experts);
        }
    }

    /// Experts and weights of one token.
    #[inline(never)]
    unsafe fn choose(&self, w: &Space, weights: *mut f32, chosen: *mut i32, bias: *const f32, noise: *const f32) {
        if self.scoring == SPARSE_MIXER {
            return self.mix(w, weights, chosen, noise);
        }
        self.score(w.scores);
        let queue = Queue { keys: w.keys, places: w.places as *mut u32 };
        for i in 0..self.experts {
            let bias = if bias.is_null() { 0.0 } else { bias.add(i).read_unaligned() };
            *w.keys.add(i) = *w.scores.add(i) + bias;
        }
        if self.groups > 1 {
            self.limit_groups(w, queue);
        }
        queue.top(self.experts, self.top_k);
        let mut sum = 0.0;
        for j in 0..self.top_k {
            let place = *queue.places.add(j);
            let weight = *w.scores.add(place as usize);
            chosen.add(j).write_unaligned(place as i32);
            weights.add(j).write_unaligned(weight);
            sum += weight;
        }
        if self.scoring == SOFTMAX_OF_TOP {
            softmax_in_place(weights, self.top_k);
        }
        let divisor = if self.normalizes() { sum + LEAST_SUM } else { 1.0 };
        for j in 0..self.top_k {
            let at = weights.add(j);
            at.write_unaligned(at.read_unaligned() / divisor * self.scale);
        }
    }

    /// Hides experts of all groups but the best, by the sum of each group's best keys.
    unsafe fn limit_groups(&self, w: &Space, queue: Queue) {
        let size = self.experts / self.groups;
        for g in 0..self.groups {
            let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for i in 0..size {
                let key = *w.keys.add(g * size + i);
                if !(key <= first) {
                    second = first;
                    first = key;
                } else if key > second {
                    second = key;
                }
            }
            *w.groups.add(g) = if self.group_best > 1 { first + second } else { first };
        }
        let groups = Queue { keys: w.groups, places: queue.places };
        groups.top(self.groups, self.top_groups);
        for g in self.top_groups..self.groups {
            let hidden = *groups.places.add(g) as usize;
            for i in 0..size {
                *w.keys.add(hidden * size + i) = f32::NEG_INFINITY;
            }
        }
    }

    /// One expert after the other, each by its share of those that are nearly as good (SparseMixer). With noise, [top_k, 2, experts]
    /// of numbers in (0, 1), they are drawn by their shares, and one that is not the best counts whole only a quarter of the times
    /// (Heun's third-order method).
    unsafe fn mix(&self, w: &Space, weights: *mut f32, chosen: *mut i32, noise: *const f32) {
        let mut taken = self.experts;
        for j in 0..self.top_k {
            let best = self.share(w, w.keys, taken);
            let mut weight = 1.0;
            taken = best;
            if !noise.is_null() {
                let noise = noise.add(2 * j * self.experts);
                let mut most = f64::NEG_INFINITY;
                for i in 0..self.experts {
                    // The largest sum of a score and a Gumbel number is a sample of the softmax.
                    let drawn = *w.scores.add(i) as f64 - libm::log(-libm::log(noise.add(i).read_unaligned() as f64));
                    if *w.keys.add(i) > 0.0 && drawn > most {
                        (most, taken) = (drawn, i);
                    }
                }
                if taken != best && !(noise.add(self.experts).read_unaligned() > 0.75) {
                    weight = 0.3333;
                }
            }
            chosen.add(j).write_unaligned(taken as i32);
            weights.add(j).write_unaligned(*w.keys.add(taken) * self.scale * weight);
        }
    }

    /// Shares of the experts but the one that is taken; those that are too far behind the best have none.
    #[inline(never)]
    unsafe fn share(&self, w: &Space, shares: *mut f32, taken: usize) -> usize {
        let (mut top, mut best) = (f32::NEG_INFINITY, 0);
        for i in 0..self.experts {
            let score = *w.scores.add(i);
            if i != taken && !(score <= top) {
                top = score;
                best = i;
                if score != score {
                    break;
                }
            }
        }
        for i in 0..self.experts {
            let score = *w.scores.add(i);
            let is_far = (top - score) / max(score.abs(), top) > 2.0 * self.jitter;
            *shares.add(i) = if i == taken || is_far { f32::NEG_INFINITY } else { score };
        }
        softmax_in_place(shares, self.experts);
        best
    }

    /// Gradient of the logits, which lie in `w.scores`, of one token.
    #[inline(never)]
    unsafe fn chosen_backward(&self, w: &Space, dweights: *const f32, chosen: *const i32) {
        let expert = |j: usize| chosen.add(j).read_unaligned() as usize;
        let dweight = |j: usize| (dweights.add(j).read_unaligned() * self.scale) as f64;
        core::ptr::write_bytes(w.gradient, 0, self.experts);
        if self.scoring == SPARSE_MIXER {
            let mut taken = self.experts;
            for j in 0..self.top_k {
                self.share(w, w.keys, taken);
                taken = expert(j);
                // What a sample that is not the best counts for in the forward is left out here.
                let d = dweight(j) * *w.keys.add(taken) as f64;
                for i in 0..self.experts {
                    let own = if i == taken { 1.0 } else { 0.0 };
                    *w.gradient.add(i) += (d * (own - *w.keys.add(i) as f64)) as f32;
                }
            }
            return;
        }
        self.score(w.scores);
        // Of the chosen, the scores: `w.keys`.
        let mut sum = 0.0;
        for j in 0..self.top_k {
            *w.keys.add(j) = *w.scores.add(expert(j));
            sum += *w.keys.add(j) as f64;
        }
        if self.scoring == SOFTMAX_OF_TOP {
            softmax_in_place(w.keys, self.top_k);
            sum = 1.0;
        }
        let normalizes = self.normalizes();
        let divisor = if normalizes { sum + LEAST_SUM as f64 } else { 1.0 };
        let score = |j: usize| *w.keys.add(j) as f64;
        let mean = (0..self.top_k).map(|j| dweight(j) * score(j)).sum::<f64>() / sum;
        let dscore = |j: usize| (if normalizes { dweight(j) - mean } else { dweight(j) }) / divisor;
        let dot = (0..self.top_k).map(|j| dscore(j) * score(j)).sum::<f64>();
        for j in 0..self.top_k {
            let (at, s, d) = (w.gradient.add(expert(j)), score(j), dscore(j));
            *at = match self.scoring {
                SIGMOID => d * s * (1.0 - s),
                SOFTMAX_OF_TOP => s * (d - dot),
                _ => d * s,
            } as f32;
        }
        if self.scoring < SIGMOID {
            for i in 0..self.experts {
                *w.gradient.add(i) -= (*w.scores.add(i) as f64 * dot) as f32;
            }
        }
    }
}

/// Experts of each token, the best first, and what their outputs are weighted by.
pub unsafe fn forward<T: Element>(
    routing: &Routing,
    weights: *mut f32,
    chosen: *mut i32,
    logits: *const T,
    bias: *const f32,
    noise: *const f32,
) {
    let w = Space::new(routing.space);
    for r in if routing.experts == 0 || routing.top_k == 0 { 0..0 } else { routing.rows.clone() } {
        load(&w, logits.add(r * routing.experts), routing.experts);
        let at = r * routing.top_k;
        let noise = if noise.is_null() { noise } else { noise.add(2 * at * routing.experts) };
        routing.choose(&w, weights.add(at), chosen.add(at), bias, noise);
    }
}

/// Gradient of the logits.
pub unsafe fn backward<T: Element>(
    routing: &Routing,
    dlogits: *mut T,
    dweights: *const f32,
    chosen: *const i32,
    logits: *const T,
) {
    let w = Space::new(routing.space);
    for r in if routing.experts == 0 { 0..0 } else { routing.rows.clone() } {
        let (at, row) = (r * routing.top_k, r * routing.experts);
        load(&w, logits.add(row), routing.experts);
        routing.chosen_backward(&w, dweights.add(at), chosen.add(at));
        map(dlogits.add(row), w.gradient, routing.experts, |d| d);
    }
}

#[inline(never)]
unsafe fn load<T: Element>(w: &Space, logits: *const T, n: usize) {
    map(w.scores, logits, n, |v: F32s| v);
}

/// In f64, as a router's weights are few and all that an expert gives is multiplied by them.
#[inline(never)]
unsafe fn softmax_in_place(row: *mut f32, n: usize) {
    let at = |i: usize| row.add(i);
    let top = (0..n).fold(f32::NEG_INFINITY, |top, i| max(at(i).read_unaligned(), top)) as f64;
    let exp = |i: usize| libm::exp(at(i).read_unaligned() as f64 - top);
    let sum = (0..n).map(exp).sum::<f64>();
    for i in 0..n {
        at(i).write_unaligned((exp(i) / sum) as f32);
    }
}
