//! Tests with algorithms in the form that msccl-tools writes, and with faulty ones.

use super::*;
use crate::check::{Order, check};
use std::fmt::Write;

/// A ring all-reduce in the form that msccl-tools writes, with one block per GPU.
fn ring(n: u32) -> String {
    let mut xml =
        format!("<algo name=\"ring\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"{n}\" ngpus=\"{n}\" ");
    xml += "coll=\"allreduce\" inplace=\"1\">\n";
    for gpu in 0..n {
        let (next, before) = ((gpu + 1) % n, (gpu + n - 1) % n);
        let _ = writeln!(xml, "<gpu id=\"{gpu}\" i_chunks=\"{n}\" o_chunks=\"0\" s_chunks=\"0\">");
        let _ = writeln!(xml, "<tb id=\"0\" send=\"{next}\" recv=\"{before}\" chan=\"0\">");
        for s in 0..2 * n - 1 {
            let kind = match s {
                0 => "s",
                s if s < n - 1 => "rrs",
                s if s == n - 1 => "rrcs",
                s if s < 2 * n - 2 => "rcs",
                _ => "r",
            };
            let at = (gpu + 2 * n - s) % n;
            let _ = write!(xml, "<step s=\"{s}\" type=\"{kind}\" srcbuf=\"i\" srcoff=\"{at}\" ");
            let _ = write!(xml, "dstbuf=\"i\" dstoff=\"{at}\" cnt=\"1\" depid=\"-1\" deps=\"-1\" ");
            let _ = writeln!(xml, "hasdep=\"0\"/>");
        }
        xml += "</tb></gpu>\n";
    }
    xml + "</algo>"
}

#[test]
fn a_ring_is_a_ring() {
    for n in [2, 3, 4, 7, 8] {
        let (collective, table) = ScheduleTable::from_msccl(&ring(n)).unwrap();
        let proof = check(&table, collective, Rank(0)).unwrap();
        let ours = check(&crate::algorithms::RingAllReduce(n), collective, Rank(0)).unwrap();
        assert_eq!((proof.order(), proof.hash()), (ours.order(), ours.hash()), "{n} ranks");
        assert!(table.rounds() <= u64::from(4 * n), "{n} ranks take {} rounds", table.rounds());
        if n > 2 {
            assert_eq!(proof.order(), Some(Order::Positional));
        }
    }
}

/// Two ranks exchange data, received into scratch. By `depid`, the block that reduces waits for the blocks that send and receive.
#[test]
fn blocks_scratch_and_dependencies() {
    let gpu = |id: u32| {
        let peer = 1 - id;
        format!(
            r#"<gpu id="{id}" i_chunks="2" o_chunks="2" s_chunks="2">
                <tb id="0" send="{peer}" recv="-1" chan="0">
                <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
                </tb><tb id="1" send="-1" recv="{peer}" chan="0">
                <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="1"/>
                </tb><tb id="2" send="-1" recv="-1" chan="0">
                <step s="0" type="nop" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="0" depid="0" deps="0" hasdep="0"/>
                <step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="1" deps="0" hasdep="0"/>
                </tb></gpu>"#
        )
    };
    let xml = format!(r#"<algo name="x" ngpus="2" coll="allreduce" inplace="1">{}{}</algo>"#, gpu(0), gpu(1));
    let (collective, table) = ScheduleTable::from_msccl(&xml).unwrap();
    assert_eq!(check(&table, collective, Rank(0)).unwrap().order(), Some(Order::Canonical));
    assert_eq!(table.rounds(), 2);
    assert_eq!(table.step(Rank(0), 0).send, Some((Rank(1), Span::data(0, 2))));
}

proptest::proptest! {
    /// A text with random changes gives a table, or an error that names a line of the text.
    #[test]
    fn any_text_is_read_or_refused(cuts in proptest::collection::vec((0..4000usize, "[-0-9a-z<>\"/ =]{0,3}"), 1..5)) {
        let mut text = ring(3);
        for (at, with) in cuts {
            let at = at % text.len();
            text.replace_range(at..(at + with.len()).min(text.len()), &with);
        }
        match ScheduleTable::from_msccl(&text) {
            Ok((_, table)) => assert_eq!(table.ranks(), 3),
            Err(error) => assert!((1..=text.lines().count()).contains(&error.line), "{error}"),
        }
    }
}

#[test]
fn errors_name_the_line() {
    let wrong = |text: &str| ScheduleTable::from_msccl(text).unwrap_err().to_string();
    assert_eq!(wrong(""), "line 1: the document does not have a root node");
    assert_eq!(wrong("<x/>"), "line 1: <x>; expected <algo>");
    assert_eq!(wrong("<algo ngpus=\"1\" coll=\"custom\"/>"), "line 1: coll=\"custom\" is not a collective");
    assert_eq!(wrong("<algo coll=\"allreduce\"/>"), "line 1: the attribute `ngpus` is missing");
    let ring = ring(2);
    assert_eq!(
        wrong(&ring.replace("rrcs", "rrx").replace("\"s\" srcbuf", "\"s\"\nsrcbuf")).matches("rrx").count(),
        1
    );
    assert!(wrong(&ring.replace("ngpus=\"2\"", "ngpus=\"3\"")).starts_with("line 1: ngpus is 3"));
    assert!(wrong(&ring.replace("recv=\"0\"", "recv=\"-1\"")).contains("where no step receives"));
    assert!(wrong(&ring.replace("type=\"s\"", "type=\"nop\"")).contains("waits here forever"));
    assert!(wrong(&ring.replace("srcoff=\"1\"", "srcoff=\"9\"")).contains("outside its 2 chunks"));
    assert!(wrong("<algo ngpus=\"1\" coll=\"broadcast\"><gpu").starts_with("line 1: "));
}
