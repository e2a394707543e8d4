//! Random numbers from a seed, the same on every machine.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that follow from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// True `percent` times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A number of the kind that breaks things: small, at a limit, or anything.
    pub fn nasty(&mut self) -> u64 {
        const LIMITS: [u64; 12] = [
            0,
            1,
            u64::MAX,
            u64::MAX - 1,
            1 << 63,
            1 << 62,
            1 << 60,
            1 << 40,
            u32::MAX as u64,
            1 << 32,
            1 << 31,
            4096,
        ];
        match self.below(4) {
            0 => LIMITS[self.below(LIMITS.len() as u64) as usize],
            1 => self.below(300),
            2 => LIMITS[self.below(LIMITS.len() as u64) as usize].wrapping_sub(self.below(4)),
            _ => self.next_u64(),
        }
    }
}

/// SplitMix64's last step, a hash: every bit of the input moves every bit of the output.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The seed of a test: `RGAPS_SEED`, or another one each time. It is printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var("RGAPS_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("repeat it with RGAPS_SEED={seed}");
    seed
}

#[cfg(test)]
mod tests {
    use super::Random;

    /// What the authors' program prints for this seed. A test's seeds mean the same for ever.
    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let numbers = [(); 3].map(|()| random.next_u64());
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(numbers, expected);
    }
}
