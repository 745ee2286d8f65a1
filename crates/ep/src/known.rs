//! What the kernels of a plan know of it: the fields of their arguments that have one value in all launches, as constants of the
//! compiler, which make short operations faster.

use anabranch_hip_jit::{Constants, KernelSpec, NullPointer, constants};
use anabranch_shmem::TeamView;

use crate::args::{
    CombineArgs, CombineEngineArgs, CombineNodesArgs, CombinePushArgs, CountArgs, DispatchArgs,
    DispatchEngineArgs, DispatchExpertsArgs, DispatchNodesArgs, DispatchReplayArgs, ExpertContractArgs,
    ExpertExpandArgs, LateWeightsArgs, PlacementView, ReceivedView,
};
use crate::options::Mode;
use crate::plan::{FLAG_STRIDE, Plan};

impl Plan {
    /// A kernel with this plan's numbers as constants: what [`ExpertParallel::new`](crate::ExpertParallel::new) loads.
    #[must_use]
    pub fn known_to(&self, spec: KernelSpec) -> KernelSpec {
        let dispatch = || self.known_dispatch();
        let expand = || self.known_expand();
        spec.knowing(self.known_count())
            .knowing(dispatch())
            .knowing(constants!(DispatchReplayArgs { dispatch: dispatch() }))
            .knowing(constants!(DispatchEngineArgs { dispatch: dispatch() }))
            .knowing(constants!(DispatchNodesArgs { dispatch: dispatch() }))
            .knowing(constants!(DispatchExpertsArgs {
                dispatch: dispatch(),
                experts: expand(),
                totals_stride: self.pair_totals_stride(),
                numbers_word: self.numbers_word(),
                copies: self.expert_copies(),
            }))
            .knowing(expand())
            .knowing(self.known_contract())
            .knowing(self.known_pull())
            .knowing(self.known_push())
            .knowing(constants!(CombineEngineArgs {
                team: self.known_team(),
                fan_out: self.fan_out(),
                row_bytes: self.combine_row_bytes(),
                flag_stride: FLAG_STRIDE,
            }))
            .knowing(constants!(CombineNodesArgs {
                team: self.known_team(),
                fan_out: self.fan_out(),
                row_bytes: self.combine_row_bytes(),
                flag_stride: FLAG_STRIDE,
            }))
            .knowing(constants!(LateWeightsArgs {
                team: self.known_team(),
                fan_out: self.fan_out(),
                top_k: self.config().top_k,
                flag_stride: FLAG_STRIDE,
            }))
    }

    fn known_team(&self) -> Constants<TeamView> {
        constants!(TeamView { size: self.ranks() })
    }

    fn known_placement(&self) -> Constants<PlacementView> {
        let known = constants!(PlacementView { experts: self.config().experts, ranks: self.ranks() });
        if self.config().placement.is_some() {
            return known;
        }
        known.and(constants!(PlacementView { starts: NullPointer, owners: NullPointer }))
    }

    fn known_count(&self) -> Constants<CountArgs> {
        constants!(CountArgs {
            team: self.known_team(),
            placement: self.known_placement(),
            top_k: self.config().top_k,
            experts: self.config().experts,
        })
    }

    /// The numbers of tokens and of rows a source owns are left out: plans of one model differ in them.
    fn known_dispatch(&self) -> Constants<DispatchArgs> {
        let known = constants!(DispatchArgs {
            team: self.known_team(),
            placement: self.known_placement(),
            top_k: self.config().top_k,
            experts: self.config().experts,
            fan_out: self.fan_out(),
            row_bytes: self.row_bytes(),
            meta_bytes: self.meta_bytes(),
            scale_bytes: self.config().given_scale_bytes(),
            flag_stride: FLAG_STRIDE,
        });
        if self.mode() == Mode::Compact {
            known.and(constants!(DispatchArgs { row_stride: 0 }))
        } else {
            known
        }
    }

    fn known_received(&self) -> Constants<ReceivedView> {
        let known = constants!(ReceivedView {
            placement: self.known_placement(),
            ranks: self.ranks(),
            top_k: self.config().top_k,
            meta_bytes: self.meta_bytes(),
        });
        let known = if self.mode() == Mode::Compact {
            known.and(constants!(ReceivedView { row_stride: 0 }))
        } else {
            known
        };
        let experts = self.config().experts;
        match self.config().placement {
            None if experts.is_multiple_of(self.ranks()) => known.and(constants!(ReceivedView {
                local_numbers: NullPointer,
                local_experts: experts / self.ranks(),
            })),
            None => known.and(constants!(ReceivedView { local_numbers: NullPointer })),
            Some(_) => known,
        }
    }

    fn known_expand(&self) -> Constants<ExpertExpandArgs> {
        constants!(ExpertExpandArgs {
            received: self.known_received(),
            row_bytes: self.row_bytes(),
            scale_bytes: self.config().scale_bytes,
        })
    }

    fn known_contract(&self) -> Constants<ExpertContractArgs> {
        constants!(ExpertContractArgs {
            received: self.known_received(),
            row_bytes: self.combine_row_bytes()
        })
    }

    fn known_pull(&self) -> Constants<CombineArgs> {
        constants!(CombineArgs {
            team: self.known_team(),
            fan_out: self.fan_out(),
            row_bytes: self.combine_row_bytes(),
            flag_stride: FLAG_STRIDE,
            top_k: self.config().top_k,
        })
    }

    fn known_push(&self) -> Constants<CombinePushArgs> {
        constants!(CombinePushArgs {
            team: self.known_team(),
            fan_out: self.fan_out(),
            hidden: self.config().hidden,
            wire_bytes: self.combine_wire_bytes(),
            meta_bytes: self.meta_bytes(),
            flag_stride: FLAG_STRIDE,
            top_k: self.config().top_k,
        })
    }
}
