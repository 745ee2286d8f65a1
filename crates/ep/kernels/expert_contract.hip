// Sums the experts' outputs of each received row (`ep/contract_rows.h`) into the combine window, which peers pull later, or to a buffer, which
// this rank pushes.
//
// Peers read the window after the flags of the next combine on the stream. Their reads of the last combine are over, because this slot's
// dispatch came after them (`combine.hip`). Only this rank's next combine on the stream reads a buffer.
#include "anabranch/prelude.h"
#include "ep/contract_rows.h"

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif

ANABRANCH_KERNEL(anabranch_ep_expert_contract, ExpertContractArgs, 1024) { contract_rows<EP_ELEMENT>(grid, args); }
