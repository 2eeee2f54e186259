//! A vector that is cut into parts and joined again.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_kernels::SplitVec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn parts_equal_their_range_and_join_in_place(len in 0..40usize, cuts in prop::collection::vec(0..50usize, 0..6)) {
        let elements: Vec<usize> = (0..len).collect();
        let mut head = SplitVec::from(elements.clone());
        let place = head.as_ptr();
        let mut tails: Vec<SplitVec<usize>> = cuts.iter().map(|&cut| head.split_off(cut)).collect();
        let mut flat = head.to_vec();
        tails.iter().rev().for_each(|tail| flat.extend_from_slice(tail));
        prop_assert_eq!(&flat, &elements);
        std::thread::scope(|scope| {
            tails.iter_mut().for_each(|tail| { scope.spawn(|| tail.iter_mut().for_each(|x| *x += 1)); });
            head.iter_mut().for_each(|x| *x += 1);
        });
        while let Some(tail) = tails.pop() {
            prop_assert!(head.join(tail).is_ok());
        }
        prop_assert_eq!(head.as_ptr(), place);
        prop_assert!(head.iter().zip(&elements).all(|(x, before)| *x == before + 1));
    }
}

#[test]
fn strangers_are_given_back() {
    let mut a = SplitVec::from(vec![1, 2, 3]);
    let last = a.split_off(2);
    let middle = a.split_off(1);
    let last = a.join(last).err().unwrap();
    assert_eq!(last[..], [3]);
    assert!(a.join(SplitVec::from(vec![2])).is_err());
    assert!(a.join(middle).is_ok() && a.join(last).is_ok());
    assert_eq!(a[..], [1, 2, 3]);
}
