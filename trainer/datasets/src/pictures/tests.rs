use super::*;
use crate::testing::by_sample;
use crate::{Augment, AugmentOptions, Batch, RandomCrop};

/// A training sample follows from seed, epoch and number, whatever rank and worker prepares it; a test sample is its centre.
#[test]
fn a_sample_is_the_same_on_any_rank_and_worker() {
    let folder = tempfile::tempdir().unwrap();
    for (class, number) in
        [0u8, 1, 2].into_iter().flat_map(|class| (0..8u8).map(move |number| (class, number)))
    {
        let path = folder.path().join(format!("{class}/{number}.png"));
        let pixel = |x: u32, y: u32| [x as u8 * 3 + number, y as u8 * 5 + class, (x * y) as u8 ^ number];
        let pixels: Vec<u8> = (0..48 * 40).flat_map(|at| pixel(at % 48, at / 48)).collect();
        written::write(&path, &pixels, 48);
    }
    let options =
        PictureOptions { side: 32, resize: 36, mean: [0.0; 3], std: [1.0; 3], test_share: 0.2, seed: 0 };
    let (train, _) = load(folder.path(), &options).unwrap();
    let crop = RandomCrop { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] };
    let epoch = |seed: u64, epoch: u64, world: usize, workers: usize| {
        let options = AugmentOptions { seed, flip: true, crop: Some(crop), ..AugmentOptions::default() };
        let augment = Augment::new(options, train.shape, epoch).unwrap();
        by_sample((&train, train.len()), augment, (world, 3, workers))
    };
    let want = epoch(0, 0, 1, 0);
    assert_eq!(want.len(), train.len());
    assert!(epoch(0, 0, 2, 0) == want && epoch(0, 0, 3, 2) == want);
    for other in [epoch(0, 1, 1, 0), epoch(7, 0, 1, 0)] {
        assert!(want.iter().all(|(sample, picture)| other[sample] != *picture));
    }
    let mut plain = Batch::<f32>::default();
    train.gather(&[0, 1, 2, 3], &mut plain).unwrap();
    assert!((0..4).all(|at| want[&at][..] != plain.x[at * train.features()..][..train.features()]));
}
