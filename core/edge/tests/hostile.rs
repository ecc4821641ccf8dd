//! The fuzz targets' entry functions over their corpus, mutated for a while.
//!
//! `HOSTILE_SEED` chooses the dice, `HOSTILE_SECONDS` the time for each target (1).

mod fuzz;

use std::path::Path;
use std::time::{Duration, Instant};

use muster_transport::Dice;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn the_corpus_and_its_mutations_are_survived() {
    let time = Duration::from_secs(number("HOSTILE_SECONDS", 1));
    for (name, target) in fuzz::TARGETS {
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "{name}");
        corpus.iter().for_each(|input| target(input));
        let (mut dice, start) = (Dice::new(number("HOSTILE_SEED", 1)), Instant::now());
        while start.elapsed() < time {
            let mut input = corpus[dice.below(corpus.len() as u64) as usize].clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(input.len() as u64 + 1) as usize;
                match dice.below(4) {
                    0 => input.truncate(at),
                    1 => input.insert(at, dice.roll() as u8),
                    2 => {
                        let other = &corpus[dice.below(corpus.len() as u64) as usize];
                        input.extend_from_slice(other);
                    }
                    _ => {
                        if let Some(byte) = input.get_mut(at) {
                            *byte = dice.roll() as u8;
                        }
                    }
                }
            }
            target(&input);
        }
    }
}
