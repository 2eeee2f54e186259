//! Functions that several tests of Allfold use.

pub mod training;

/// How many cases a property is tried on: `PROPTEST_CASES` where that is set, for a longer search, else `usual`.
pub fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}
