//! Every parser on its corpus, mutated: no panic, no hang, no allocation of a size that a text claims.
//!
//! The same functions and seeds as the fuzzers in `fuzz/`, without their nightly compiler: a thousand seeded
//! mutations of each, or as many as `ALLFOLD_MUTATIONS` says. A failure prints the seed of its mutation.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_parsers::{PARSERS, seeds};
use cap::Cap;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::alloc::System;
use std::panic;

/// Counts allocated bytes and refuses more than the limit: an allocation of a size that a file claims ends the test.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 512 << 20);

/// How many bytes parsing a text of a few kilobytes may allocate.
const MOST: usize = 96 << 20;

fn mutate(random: &mut ChaCha8Rng, all: &[Vec<u8>]) -> Vec<u8> {
    let mut text = all[random.random_range(0..all.len())].clone();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=text.len());
        let end = (at + random.random_range(0..40)).min(text.len());
        match random.random_range(0..8) {
            0 => text.truncate(at),
            1 => text.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.random_range(0..8)),
            2 => drop(text.drain(at..end)),
            3 => drop(text.splice(at..at, text[at..end].to_vec())),
            4 => {
                let other = &all[random.random_range(0..all.len())];
                let from = random.random_range(0..=other.len());
                text.truncate(at);
                text.extend_from_slice(&other[from..]);
            }
            5 => {
                let huge: [&[u8]; 6] =
                    [b"4294967295", b"18446744073709551616", b"-1", b"1e308", b"nan", b"0"];
                let digits: Vec<usize> = (0..text.len()).filter(|at| text[*at].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    let first = digits[random.random_range(0..digits.len())];
                    let rest = text[first..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    drop(text.splice(first..first + rest, huge[random.random_range(0..huge.len())].to_vec()));
                }
            }
            6 => text.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.random()),
            _ => {
                let many = text[at..end].repeat(random.random_range(1..200));
                drop(text.splice(at..at, many));
            }
        }
    }
    text
}

#[test]
fn no_mutated_text_panics_a_parser_or_makes_it_allocate() {
    let rounds =
        std::env::var("ALLFOLD_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000u64);
    for parser in &PARSERS {
        let seeds = seeds(parser);
        assert!(!seeds.is_empty(), "{} has no seeds", parser.name);
        for seed in 0..rounds {
            let text = mutate(&mut ChaCha8Rng::seed_from_u64(seed), &seeds);
            let before = MEMORY.allocated();
            MEMORY.set_limit(before + MOST).unwrap();
            let run = panic::catch_unwind(|| parser.read(&text));
            MEMORY.set_limit(512 << 20).unwrap();
            let text = String::from_utf8_lossy(&text);
            assert!(run.is_ok(), "{} panics on seed {seed}:\n{text}", parser.name);
        }
    }
}

/// The limit is real: an allocation of 600 MiB fails.
#[test]
fn the_limit_is_enforced() {
    let mut greedy: Vec<u8> = Vec::new();
    assert!(greedy.try_reserve_exact(600 << 20).is_err());
}
