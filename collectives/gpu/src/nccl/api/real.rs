//! NCCL itself, the oldest and the newest that Allfold works with, as far as it works without a GPU.

use super::super::UniqueId;
use super::*;
use allfold_standin::abi::each;

#[test]
fn nccl_tells_its_version_and_makes_ids() {
    let told = each("nccl::api::real::nccl_tells_its_version_and_makes_ids", |cuda, _| {
        let table = api().unwrap();
        assert_eq!(version(), Ok(if cuda == 12 { (2, 18, 3) } else { (2, 32, 3) }));
        // Functions of later versions are looked for, and not missed where there are none.
        assert_eq!((table.simulate.is_some(), table.shrink.is_some()), (cuda == 13, cuda == 13));
        let (a, b) = (UniqueId::new().unwrap(), UniqueId::new().unwrap());
        assert!(a.0 != b.0 && a.0 != [0; 128], "ids are drawn anew");
        // SAFETY: neither takes anything; the group is empty.
        let answers = unsafe { ((table.group_start)(), (table.group_end)()) };
        assert_eq!(answers, (SUCCESS, SUCCESS), "an empty group");
        println!("CUDA {cuda}: NCCL {:?} makes ids", version().unwrap());
    });
    told.unwrap();
}
