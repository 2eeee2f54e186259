//! Max-min fairness by progressive filling.
//!
//! All rates of a connected component rise together until a link is full; the flows on that link are frozen at that level, and the
//! other rates rise further. Links that fill at the same level freeze together, so the result does not depend on the order in which
//! flows began. (D. Bertsekas and R. Gallager, "Data Networks", 2nd ed., section 6.5.2.)

use super::filling::{Filling, Open};
use super::{FlowNetwork, LinkState};
use std::cmp::Reverse;

impl FlowNetwork {
    pub(super) fn settle_max_min(&mut self, now: u64) {
        self.collect_components();
        self.fill();
        let rates = std::mem::take(&mut self.filling.rates);
        rates.iter().for_each(|&(flow, rate)| self.set_rate(now, flow, rate));
        self.filling.rates = rates;
    }

    /// Collects every link that flows connect, directly or indirectly, to a changed link.
    fn collect_components(&mut self) {
        let FlowNetwork { links, flows, cells, changed, epoch, filling, .. } = self;
        filling.links.clear();
        filling.place.resize(links.len(), 0);
        let visit = |link: u32, state: &mut LinkState, filling: &mut Filling| {
            if state.epoch != *epoch {
                state.epoch = *epoch;
                filling.place[link as usize] = filling.links.len() as u32;
                let (left, least) = (state.capacity, state.capacity.min(1));
                filling.links.push(Open { link, left, weight: state.load, least });
            }
        };
        for link in changed.drain(..) {
            let state = &mut links[link as usize];
            state.changed = false;
            if state.load > 0 {
                visit(link, state, filling);
            }
        }
        let mut at = 0;
        while let Some(open) = filling.links.get(at) {
            for cell in FlowNetwork::on_link(cells, links[open.link as usize].head) {
                let flow = &mut flows[cell.flow as usize];
                if flow.epoch != *epoch {
                    flow.epoch = *epoch;
                    for crossed in FlowNetwork::of_flow(cells, flow.first) {
                        visit(crossed.link, &mut links[crossed.link as usize], filling);
                    }
                }
            }
            at += 1;
        }
    }

    fn fill(&mut self) {
        let FlowNetwork { links, flows, cells, epoch, filling, .. } = self;
        let Filling { links: open, place, levels, full, rates } = filling;
        // A flow is frozen in this solution as soon as its epoch equals the new one.
        let frozen = epoch.wrapping_add(1);
        *epoch = frozen;
        rates.clear();
        levels.clear();
        levels.extend(open.iter().enumerate().map(|(at, link)| Reverse((link.level(), at as u32))));
        while let Some(&Reverse((level, _))) = levels.peek() {
            full.clear();
            // Takes all links that are full at this level. A link whose level has risen since it was pushed is pushed again.
            while let Some(&Reverse((known, at))) = levels.peek()
                && known <= level
            {
                levels.pop();
                let link = open[at as usize];
                if link.weight > 0 {
                    match link.level() {
                        risen if risen > level => levels.push(Reverse((risen, at))),
                        _ => full.push(at),
                    }
                }
            }
            for &at in full.iter() {
                let head = links[open[at as usize].link as usize].head;
                for cell in FlowNetwork::on_link(cells, head) {
                    let flow = &mut flows[cell.flow as usize];
                    if flow.epoch == frozen {
                        continue;
                    }
                    flow.epoch = frozen;
                    rates.push((cell.flow, level));
                    for crossed in FlowNetwork::of_flow(cells, flow.first) {
                        let weight = u64::from(crossed.weight);
                        let link = &mut open[place[crossed.link as usize] as usize];
                        link.weight -= weight;
                        link.left = link.left.saturating_sub(weight.saturating_mul(level));
                    }
                }
            }
        }
    }
}
