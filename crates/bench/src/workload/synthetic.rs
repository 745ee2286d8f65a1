//! Synthetic tokens and routing: a function of (seed, rank, index).

use super::Error;
use anabranch_conformance::ep::ElementValues as _;
use anabranch_ep::DataType;

/// Where synthetic tokens go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Routing {
    /// K distinct experts, each set equally likely.
    Random,
    /// Distinct experts of the lowest rank that owns any (rank 0, unless there are more ranks than experts);
    /// when it owns fewer than K, the other ids are masked.
    Hot,
    /// K distinct experts, expert `e` drawn with weight `1 / (e + 1)`: the first rank gets the most.
    Skewed,
}

/// A synthetic workload. Rank `r`'s token `t` is the same whatever the numbers of tokens are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Synthetic {
    /// Tokens of each rank; there are as many ranks as entries.
    pub(crate) tokens: Vec<u32>,
    /// Elements of a token, H.
    pub(crate) hidden: usize,
    /// Experts of the whole group, E.
    pub(crate) experts: u32,
    /// Experts per token, K.
    pub(crate) top_k: usize,
    /// Where tokens go.
    pub(crate) routing: Routing,
    /// The share of ids that are masked (-1) on top, 0 to 1; their weights stay.
    pub(crate) masked: f32,
    /// Another seed gives another workload.
    pub(crate) seed: u64,
}

/// Streams of random numbers of one rank.
#[derive(Clone, Copy)]
enum Stream {
    Tokens = 1,
    Ids = 2,
    Weights = 3,
    Masks = 4,
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// How often a draw that was had before is repeated; then the next free expert is taken, so that the time is
/// bounded when one expert has nearly all the weight.
const REDRAWS: u32 = 16;

impl Synthetic {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::Zero`] (for `ranks`, `hidden`, `experts`, `top_k`), [`Error::Experts`], [`Error::TopK`] when there
    /// are not K distinct experts, [`Error::MaskedRatio`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let sizes = [
            ("ranks", self.tokens.len()),
            ("hidden", self.hidden),
            ("experts", self.experts as usize),
            ("top_k", self.top_k),
        ];
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::Zero { field });
        }
        if self.experts > i32::MAX as u32 {
            return Err(Error::Experts { experts: self.experts });
        }
        if self.top_k > self.experts as usize {
            return Err(Error::TopK { top_k: self.top_k, experts: self.experts });
        }
        if !(0.0..=1.0).contains(&self.masked) {
            return Err(Error::MaskedRatio { ratio: self.masked });
        }
        Ok(())
    }

    /// Writes the elements of this rank's first tokens, as many as `bytes` holds.
    pub(super) fn fill_tokens(&self, rank: u32, element: DataType, bytes: &mut [u8]) {
        let random = self.stream(rank, Stream::Tokens);
        // Each random word makes four elements; the last word may be used in part.
        let words = (0u64..).map(|index| random.at(index));
        match element {
            DataType::Bf16 => {
                let mut blocks = bytes.chunks_exact_mut(8);
                let mut last = 0;
                for (block, word) in blocks.by_ref().zip(words) {
                    block.copy_from_slice(&four_bf16(word).to_le_bytes());
                    last += 1;
                }
                let rest = blocks.into_remainder();
                let length = rest.len();
                rest.copy_from_slice(&four_bf16(random.at(last)).to_le_bytes()[..length]);
            }
            DataType::F32 | DataType::F16 => {
                let width = element.bytes_of(1) as usize;
                for (block, word) in bytes.chunks_mut(4 * width).zip(words) {
                    let four = four_bf16(word);
                    for (place, bytes) in block.chunks_exact_mut(width).enumerate() {
                        let bits = (four >> (16 * place)) as u32 & 0xFFFF;
                        element.encode(&[f32::from_bits(bits << 16)], bytes);
                    }
                }
            }
            // Any code but a NaN's.
            _ => {
                for (block, word) in bytes.chunks_mut(8).zip(words) {
                    for (byte, code) in block.iter_mut().zip(word.to_le_bytes()) {
                        *byte = match element {
                            DataType::F8E4m3 if code & 0x7f == 0x7f => code ^ 1,
                            DataType::F8E4m3Fnuz if code == 0x80 => 1,
                            _ => code,
                        };
                    }
                }
            }
        }
    }

    /// The ids of all tokens of a rank, `[T, K]`; without the tokens.
    ///
    /// # Errors
    /// The errors of [`Self::check`]; [`Error::NoSuchRank`].
    pub(crate) fn ids(&self, rank: u32) -> Result<Vec<i32>, Error> {
        self.check()?;
        let count = self.tokens.get(rank as usize);
        let count = *count.ok_or(Error::NoSuchRank { rank, ranks: self.tokens.len() as u32 })?;
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        self.fill_routing(rank, count as usize, &mut ids, &mut weights);
        Ok(ids)
    }

    /// Appends the ids and weights of this rank's first `count` tokens.
    pub(super) fn fill_routing(&self, rank: u32, count: usize, ids: &mut Vec<i32>, weights: &mut Vec<f32>) {
        let choose = Chooser::new(self);
        let [choices, shares, masks] =
            [Stream::Ids, Stream::Weights, Stream::Masks].map(|s| self.stream(rank, s));
        // Compared with 32 random bits: 0 masks nothing and 1 everything.
        let masked = (f64::from(self.masked) * 4_294_967_296.0) as u64;
        for token in 0..count {
            let first = ids.len();
            choose.token(Sequence::of(&choices, token as u64), self.top_k, ids);
            let mut shares = Sequence::of(&shares, token as u64);
            let mut masks = Sequence::of(&masks, token as u64);
            for id in &mut ids[first..] {
                if masks.next() >> 32 < masked {
                    *id = -1;
                }
            }
            let start = weights.len();
            let mut sum = 0.0f32;
            for _ in 0..self.top_k {
                // 24 bits, never 0.
                let share = ((shares.next() >> 40) + 1) as f32;
                sum += share;
                weights.push(share);
            }
            for weight in &mut weights[start..] {
                *weight /= sum;
            }
        }
    }

    fn stream(&self, rank: u32, stream: Stream) -> Random {
        Random { key: mix(mix(self.seed ^ GOLDEN).wrapping_add(u64::from(rank) << 8 | stream as u64)) }
    }
}

/// The finalizer of splitmix64: every bit of the result depends on every bit of the argument.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Random numbers by index.
struct Random {
    key: u64,
}

impl Random {
    fn at(&self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN)))
    }
}

/// Random numbers of one token, one after the other.
struct Sequence(u64);

impl Sequence {
    fn of(random: &Random, token: u64) -> Self {
        Self(random.at(token))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Evenly within `0..bound`, but for a bias of at most `bound` in 2^64.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Within `0..1`, of 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Four bf16 values: random sign and mantissa, magnitudes from 2^-12 to 2^8.
///
/// The range keeps products with weights normal and finite.
fn four_bf16(word: u64) -> u64 {
    let mut four = 0;
    for place in 0..4 {
        let bits = word >> (16 * place) & 0xFFFF;
        // 8 bits choose among 20 exponents.
        let exponent = 115 + (((bits >> 7 & 0xFF) * 20) >> 8);
        four |= (bits & 0x807F | exponent << 7) << (16 * place);
    }
    four
}

/// Draws the experts of a token.
enum Chooser {
    /// Distinct, uniform over the first experts.
    Uniform(u32),
    /// Distinct, by the running sum of weights.
    Weighted(Vec<f64>),
}

impl Chooser {
    fn new(synthetic: &Synthetic) -> Self {
        match synthetic.routing {
            Routing::Random => Self::Uniform(synthetic.experts),
            // Rank 0 owns the experts below floor(E / R); if that is none, expert 0 is the first that is owned.
            Routing::Hot => Self::Uniform((synthetic.experts / synthetic.tokens.len() as u32).max(1)),
            Routing::Skewed => {
                let mut sum = 0.0;
                let weights = (0..synthetic.experts).map(|expert| {
                    sum += 1.0 / f64::from(expert + 1);
                    sum
                });
                Self::Weighted(weights.collect())
            }
        }
    }

    /// Appends `top_k` ids: distinct experts, then -1 where there are no more.
    fn token(&self, mut random: Sequence, top_k: usize, ids: &mut Vec<i32>) {
        let first = ids.len();
        match self {
            Self::Uniform(experts) => {
                let experts = u64::from(*experts);
                let count = (top_k as u64).min(experts);
                // Floyd's sampling: after the step for `last`, a uniform subset of 0..=last.
                for last in experts - count..experts {
                    let drawn = random.below(last + 1) as i32;
                    let had = ids[first..].contains(&drawn);
                    ids.push(if had { last as i32 } else { drawn });
                }
                // The subset is uniform but its order is not.
                for place in (1..count as usize).rev() {
                    ids.swap(first + place, first + random.below(place as u64 + 1) as usize);
                }
            }
            Self::Weighted(sums) => {
                let total = sums.last().copied().unwrap_or(0.0);
                for _ in 0..top_k.min(sums.len()) {
                    let mut expert = 0;
                    for _ in 0..REDRAWS {
                        let drawn = random.unit() * total;
                        expert = sums.partition_point(|sum| *sum <= drawn).min(sums.len() - 1);
                        if !ids[first..].contains(&(expert as i32)) {
                            break;
                        }
                    }
                    while ids[first..].contains(&(expert as i32)) {
                        expert = (expert + 1) % sums.len();
                    }
                    ids.push(expert as i32);
                }
            }
        }
        ids.resize(first + top_k, -1);
    }
}

#[cfg(test)]
mod tests;
