//! Even split: a link gives each of its flows an equal share, and a flow's rate is the least share on its path.
//!
//! ```text
//! link A  |-- 1/3 --|-- 1/3 --|-- 1/3 --|     a flow over A and B has the rate min(A/3, B/2)
//! link B  |----- 1/2 -----|----- 1/2 ---|     bandwidth of B that the flow leaves stays unused
//! ```
//!
//! A change on a link affects only the flows on that link, not the rest of a connected component.

use super::{BATCH, FlowNetwork, READ};
use std::hint::black_box;

impl FlowNetwork {
    pub(super) fn settle_split(&mut self, now: u64) {
        let mut changed = std::mem::take(&mut self.changed);
        self.affected.clear();
        for batch in changed.chunks(BATCH) {
            self.read_ahead_on(batch);
            self.concern(batch);
        }
        changed.clear();
        self.changed = changed;
        let affected = std::mem::take(&mut self.affected);
        for batch in affected.chunks(BATCH) {
            self.read_ahead(batch.iter().copied());
            for &flow in batch {
                let shares = FlowNetwork::of_flow(&self.cells, self.flows[flow as usize].first)
                    .map(|cell| self.links[cell.link as usize].share);
                let rate = shares.min().unwrap_or(u64::MAX);
                self.set_rate(now, flow, rate);
            }
        }
        self.affected = affected;
    }

    /// Updates the shares of changed links and collects the flows whose rates may change.
    fn concern(&mut self, changed: &[u32]) {
        let FlowNetwork { links, flows, cells, affected, epoch, .. } = self;
        for &link in changed {
            let link = &mut links[link as usize];
            link.changed = false;
            if link.load == 0 {
                link.share = link.capacity;
                continue;
            }
            let old = link.share;
            let new = (link.capacity / link.load).max(link.capacity.min(1));
            link.share = new;
            for cell in FlowNetwork::on_link(cells, link.head) {
                let flow = &mut flows[cell.flow as usize];
                // The change affects a flow that has no rate yet, must slow down, or was limited by this link.
                let concerned = flow.rate == 0 || new < flow.rate || (new > old && flow.rate == old);
                if concerned && flow.epoch != *epoch {
                    flow.epoch = *epoch;
                    affected.push(cell.flow);
                }
            }
        }
    }

    /// Prefetches the flows on several links, as `read_ahead` prefetches the links of flows.
    fn read_ahead_on(&self, links: &[u32]) {
        if links.len() > 1 {
            let head = |link: &u32| self.links[*link as usize].head;
            black_box(links.iter().fold(0, |sum, link| sum ^ head(link)));
            let cells =
                links.iter().flat_map(|link| FlowNetwork::on_link(&self.cells, head(link)).take(READ));
            black_box(cells.fold(0, |sum, cell| sum ^ self.flows[cell.flow as usize].rate));
        }
    }
}
