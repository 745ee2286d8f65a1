//! Groups of one to nine ranks, judged bit by bit: sizes that are odd, prime, no powers of two, that divide neither experts nor tokens, and
//! more than a server of eight GPUs has.

use crate::common::{Case, run};
use anabranch_ep::Mode;

#[test]
fn one_to_nine_ranks_in_both_modes() {
    for ranks in 1..=9 {
        for mode in [Mode::Slotted, Mode::Compact] {
            let mut case = Case::new(ranks, [1, 4, 32][ranks as usize % 3]);
            case.config = case.config.mode(mode);
            assert!(ranks == 1 || !case.config.experts.is_multiple_of(ranks));
            run(&case, 2);
        }
    }
}
