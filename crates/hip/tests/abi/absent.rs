//! What `hip-sys` does not have, proven to the compiler.

/// What a name below means as long as the old witness has no such name.
struct Missing;

macro_rules! absent {
    ($($witness:path { $($name:ident),* $(,)? })*) => {
        $($(
            #[expect(non_upper_case_globals, reason = "names are HIP's")]
            const $name: Missing = Missing;
            #[expect(non_camel_case_types, reason = "names are HIP's")]
            type $name = Missing;
        )*)*

        /// Inside a block a name of the witness would be found first, and be another type or no `Missing`.
        #[test]
        fn what_is_listed_as_absent_is_absent() {
            $({
                #[expect(unused_imports, reason = "it has none of the names")]
                use $witness::*;
                $(let Missing: $name = $name;)*
            })*
        }
    };
}

absent! {
    crate::abi::old {
        hipDeviceMallocUncached, hipMemRangeHandleType, hipEventRecordExternal, hipEventWaitExternal,
        hipGetDevicePropertiesR0600, hipEventRecordWithFlags,
        hipMemGetHandleForAddressRange,
    }
    crate::abi::old::hipMemoryType { hipMemoryTypeUnregistered }
    crate::abi::old::hipMemAllocationType { hipMemAllocationTypeUncached }
}
