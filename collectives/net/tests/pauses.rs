#![allow(missing_docs)]
//! A pause of this process. It counts for all deadlines of the process, so that no other test runs here.

use allfold_net::running_time::{LOOK, Late, jump, timeout};
use std::time::Duration;

#[tokio::test]
async fn a_wait_outlasts_a_jump_of_the_clock_and_work_that_is_ready_is_not_late() {
    let work = async {
        jump(Duration::from_secs(1 << 20));
        tokio::time::sleep(LOOK * 2).await;
        7
    };
    assert_eq!(timeout(Duration::from_secs(100), work).await, Ok(7));
    assert_eq!(timeout(Duration::ZERO, async { 7 }).await, Ok(7));
    assert_eq!(timeout(Duration::ZERO, std::future::pending::<()>()).await, Err(Late));
}
