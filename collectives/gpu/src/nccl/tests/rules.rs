//! A table of the behaviour of each function in the NCCL stand-in, and of the test that shows it.

use super::super::api::FUNCTIONS;

/// The rows: function, rule, test.
const RULES: &[(&str, &str, &str)] = &[
    (
        "ncclGetVersion",
        "2.30.3, or the version that a test asks for; ours refuses those before 2.18 and other major versions",
        "places::a_library_that_is_too_old_or_of_another_major_version_is_one_line",
    ),
    (
        "ncclGetUniqueId",
        "a number that no other communicator has",
        "life::a_rank_that_does_not_come_is_a_deadline_that_names_the_others",
    ),
    (
        "ncclCommInitRankConfig",
        "stores the handle at once; waits for all ranks, on a thread if it does not block; two ranks on one GPU are an invalid \
         usage unless allowed, and unless their blocks run at once; an abort ends it",
        "life::a_rank_that_does_not_come_is_a_deadline_that_names_the_others, places::two_ranks_on_one_gpu_give_a_one_line_remedy, \
         places::defect_23_the_blocks_of_ranks_on_one_gpu_run_at_once",
    ),
    (
        "ncclCommGetAsyncError",
        "in progress until a call without blocking is done; a lost peer that a kernel waits for; NULL is an invalid argument",
        "life::defect_3_a_split_waits_for_the_handle_that_comes_later, life::an_abort_refuses_further_use_and_reaches_the_others",
    ),
    (
        "ncclCommUserRank",
        "an invalid argument while in progress",
        "life::defect_3_a_split_waits_for_the_handle_that_comes_later",
    ),
    (
        "ncclCommCount",
        "an invalid argument while in progress",
        "life::defect_3_a_split_waits_for_the_handle_that_comes_later",
    ),
    (
        "ncclCommFinalize",
        "waits for all work and for captured graphs; a second time is an invalid argument",
        "life::defect_21_a_healthy_communicator_is_dropped_in_good_order",
    ),
    (
        "ncclCommDestroy",
        "waits for all work, and until every rank is destroyed or gone",
        "life::defect_21_a_healthy_communicator_is_dropped_in_good_order",
    ),
    (
        "ncclCommAbort",
        "kernels and waiting calls end at once; returns when no captured graph holds work of it; within a group at its end",
        "life::an_abort_waits_for_captured_graphs_and_returns_without_them, calls::a_call_that_nccl_refuses_within_a_group_closes_the_group_first",
    ),
    ("ncclGroupStart", "notes calls until the outermost end", "calls::a_refused_call_leaves_no_group_open"),
    (
        "ncclGroupEnd",
        "connects what is new, which waits for the peers, and queues one kernel; on a thread if it does not block; a refused \
         call makes it do nothing",
        "calls::defect_11_a_call_costs_no_thread, calls::a_call_that_nccl_refuses_within_a_group_closes_the_group_first, faults",
    ),
    (
        "ncclAllReduce",
        "queued on the stream, the same in captures; ranks that disagree, or of which only some replay a graph, never end",
        "calls::a_captured_sum_is_replayed, calls::defect_19_a_sum_that_only_one_rank_captured_is_told_as_a_disagreement",
    ),
    ("ncclBroadcast", "as ncclAllReduce; the root's bytes", "device::tests::every_algorithm_on_a_shim"),
    ("ncclReduce", "as ncclAllReduce; only the root's output", "device::tests::every_algorithm_on_a_shim"),
    (
        "ncclAllGather",
        "as ncclAllReduce; blocks in order of ranks",
        "device::tests::every_algorithm_on_a_shim",
    ),
    (
        "ncclReduceScatter",
        "as ncclAllReduce; the rank's own block",
        "device::tests::every_algorithm_on_a_shim",
    ),
    ("ncclSend", "queued; ends when it is received", "device::tests::every_algorithm_on_a_shim"),
    (
        "ncclRecv",
        "queued; another length than was sent never ends",
        "device::tests::every_algorithm_on_a_shim, faults",
    ),
    (
        "ncclCommSplit",
        "NULL until the child is made, and for colour -1; without blocking it returns success at once, and the parent is in \
         progress until then",
        "life::defect_3_a_split_waits_for_the_handle_that_comes_later",
    ),
    (
        "ncclGroupSimulateEnd",
        "estimates and runs nothing; without blocking it runs the group and leaves -1",
        "calls::defect_4_an_estimate_runs_nothing",
    ),
    (
        "ncclCommShrink",
        "ends what runs, sorts the caller's list, then as ncclCommSplit among the ranks that are left; refused after an \
         asynchronous error",
        "life::defect_3_the_ranks_that_are_left_shrink_after_they_noticed",
    ),
    (
        "ncclMemAlloc",
        "memory of the current device",
        "calls::registered_buffers_are_freed_after_their_registration",
    ),
    (
        "ncclMemFree",
        "an invalid usage while the memory is registered, an invalid argument for memory that is not NCCL's",
        "calls::registered_buffers_are_freed_after_their_registration",
    ),
    (
        "ncclCommRegister",
        "only of NCCL's memory",
        "calls::registered_buffers_are_freed_after_their_registration",
    ),
    (
        "ncclCommDeregister",
        "once for each registration",
        "calls::registered_buffers_are_freed_after_their_registration",
    ),
    (
        "ncclCommWindowRegister",
        "waits until all ranks have called; not before 2.27",
        "calls::registered_buffers_are_freed_after_their_registration, \
         calls::windows_need_a_newer_nccl_than_registered_buffers",
    ),
    (
        "ncclCommWindowDeregister",
        "as ncclCommDeregister",
        "calls::registered_buffers_are_freed_after_their_registration",
    ),
];

#[test]
fn every_function_that_is_called_has_a_rule_and_a_test() {
    for (function, rule, test) in RULES {
        println!("{function:<24} {rule}\n{:<24} shown by {test}", "");
        assert!(FUNCTIONS.contains(function), "{function} is not called");
    }
    for function in FUNCTIONS {
        assert!(RULES.iter().any(|(known, ..)| known == function), "{function} has no rule");
    }
    println!("{} functions, {} rules", FUNCTIONS.len(), RULES.len());
}
