//! Tests of the oldest and the newest NCCL library that Allfold supports, as far as they work without a GPU.

use super::super::super::UniqueId;
use super::super::*;
use allfold_standin::abi::each;

#[test]
fn nccl_tells_its_version_and_makes_ids() {
    let told = each("nccl::api::tests::real::nccl_tells_its_version_and_makes_ids", |cuda, _| {
        let table = api().unwrap();
        assert_eq!(version(), Ok(if cuda == 12 { (2, 18, 3) } else { (2, 32, 3) }));
        // Functions of later versions are optional: present in the newest library, absent in the oldest.
        assert_eq!((table.simulate.is_some(), table.shrink.is_some()), (cuda == 13, cuda == 13));
        let (a, b) = (UniqueId::new().unwrap(), UniqueId::new().unwrap());
        assert!(a.0 != b.0 && a.0 != [0; 128], "ids are drawn anew");
        // SAFETY: neither function takes arguments, and the group is empty.
        let answers = unsafe { ((table.group_start)(), (table.group_end)()) };
        assert_eq!(answers, (SUCCESS, SUCCESS), "an empty group");
        println!("CUDA {cuda}: NCCL {:?} makes ids", version().unwrap());
    });
    told.unwrap();
}
