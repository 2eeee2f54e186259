//! Even split: a link gives each of its flows an equal share, and a flow goes at the least share on its path.
//!
//! ```text
//! link A  |-- 1/3 --|-- 1/3 --|-- 1/3 --|     a flow over A and B goes at min(A/3, B/2)
//! link B  |----- 1/2 -----|----- 1/2 ---|     what it leaves of B stays unused
//! ```
//!
//! A change on one link concerns the flows on that link only, however the rest is connected.

use super::Network;

impl Network {
    pub(super) fn settle_split(&mut self, now: u64) {
        let Network { links, flows, cells, changed, affected, epoch, .. } = self;
        affected.clear();
        for link in changed.drain(..) {
            let link = &mut links[link as usize];
            link.changed = false;
            if link.load == 0 {
                link.share = link.capacity;
                continue;
            }
            let old = link.share;
            let new = (link.capacity / link.load).max(1);
            link.share = new;
            for cell in Network::on_link(cells, link.head) {
                let flow = &mut flows[cell.flow as usize];
                // It is concerned where it has no rate yet, must slow down, or was held back by this very link.
                let concerned = flow.rate == 0 || new < flow.rate || (new > old && flow.rate == old);
                if concerned && flow.epoch != *epoch {
                    flow.epoch = *epoch;
                    affected.push(cell.flow);
                }
            }
        }
        for at in 0..self.affected.len() {
            let flow = self.affected[at];
            let shares = Network::of_flow(&self.cells, self.flows[flow as usize].first)
                .map(|cell| self.links[cell.link as usize].share);
            let rate = shares.min().unwrap_or(u64::MAX);
            self.set_rate(now, flow, rate);
        }
    }
}
