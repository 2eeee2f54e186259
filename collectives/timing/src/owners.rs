//! Checks that each link carries the messages of one sender only, or to one receiver only.

use allfold_sim::Crossing;

/// Special values of an owner: no rank has used the link yet (`NOBODY`), or several have (`MANY`).
const NOBODY: u32 = u32::MAX;
const MANY: u32 = u32::MAX - 1;

/// The only sender and the only receiver of each link so far.
pub(crate) struct Owners(Vec<[u32; 2]>);

impl Owners {
    pub(crate) fn new(links: u32) -> Owners {
        Owners(vec![[NOBODY; 2]; links as usize])
    }

    /// Records that a path crosses a link. False if the link may now be shared: it has several senders and several receivers, or
    /// carries several messages of a class at once.
    pub(crate) fn claim(&mut self, crossing: Crossing, sender: u32, receiver: u32) -> bool {
        let owners = &mut self.0[crossing.link.0 as usize];
        for (owner, who) in owners.iter_mut().zip([sender, receiver]) {
            *owner = if *owner == NOBODY || *owner == who { who } else { MANY };
        }
        crossing.weight == 1 && *owners != [MANY; 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_sim::LinkId;

    #[test]
    fn a_link_belongs_to_its_only_sender_or_its_only_receiver() {
        let link = Crossing { link: LinkId(0), weight: 1 };
        let mut owners = Owners::new(1);
        assert!(owners.claim(link, 1, 2));
        assert!(owners.claim(link, 1, 3));
        assert!(!owners.claim(link, 4, 3));
        let mut owners = Owners::new(1);
        assert!(owners.claim(link, 1, 2) && owners.claim(link, 3, 2) && owners.claim(link, 4, 2));
        assert!(!owners.claim(link, 4, 5));
    }

    #[test]
    fn a_link_that_several_flows_of_a_class_cross_belongs_to_nobody() {
        assert!(!Owners::new(1).claim(Crossing { link: LinkId(0), weight: 2 }, 1, 2));
    }
}
