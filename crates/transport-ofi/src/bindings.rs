//! Types and constants of `libfabric` that this crate uses, laid out as in `rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h`, `fi_eq.h`,
//! `fi_cm.h`, `fi_rma.h`, `fi_atomic.h` and `fi_errno.h` of libfabric 1.17.
//!
//! One list feeds the Rust types and what the test holds against the system's headers (`abi.rs`), so that the two cannot disagree. A type
//! of which the library hands out pointers only is declared as far as it is read, and functions that are not called are addresses.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// What the test of the layouts knows of a type.
#[cfg(test)]
pub(crate) struct Layout {
    /// Its C name.
    pub(crate) name: &'static str,
    /// Its size, where values of it are made here.
    pub(crate) bytes: Option<usize>,
    /// C name and offset of each field.
    pub(crate) fields: &'static [(&'static str, usize)],
}

macro_rules! fabric_types {
    ($($size:ident struct $name:ident = $c_name:literal { $($field:ident: $ty:ty = $c_field:literal,)* })*) => {
        $(
            #[doc = concat!("`", $c_name, "`.")]
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(clippy::struct_field_names, reason = "the names are the header's")]
            pub(crate) struct $name { $(pub(crate) $field: $ty,)* }
        )*

        #[cfg(test)]
        pub(crate) const LAYOUTS: &[Layout] = &[$(Layout {
            name: $c_name,
            bytes: fabric_types!(@$size $name),
            fields: &[$(($c_field, core::mem::offset_of!($name, $field)),)*],
        }),*];
    };
    (@whole $name:ident) => { Some(size_of::<$name>()) };
    (@prefix $name:ident) => { None };
}

/// A function that is not called.
type Unused = *mut c_void;

fabric_types! {
    prefix struct FiInfo = "fi_info" {
        next: *mut FiInfo = "next",
        caps: u64 = "caps",
        mode: u64 = "mode",
        addr_format: u32 = "addr_format",
        src_addrlen: usize = "src_addrlen",
        dest_addrlen: usize = "dest_addrlen",
        src_addr: *mut c_void = "src_addr",
        dest_addr: *mut c_void = "dest_addr",
        handle: *mut Fid = "handle",
        tx_attr: *mut FiTxAttr = "tx_attr",
        rx_attr: *mut c_void = "rx_attr",
        ep_attr: *mut FiEpAttr = "ep_attr",
        domain_attr: *mut FiDomainAttr = "domain_attr",
        fabric_attr: *mut FiFabricAttr = "fabric_attr",
        nic: *mut c_void = "nic",
    }

    prefix struct FiTxAttr = "fi_tx_attr" {
        caps: u64 = "caps",
        mode: u64 = "mode",
        op_flags: u64 = "op_flags",
        msg_order: u64 = "msg_order",
        comp_order: u64 = "comp_order",
        inject_size: usize = "inject_size",
        size: usize = "size",
    }

    prefix struct FiEpAttr = "fi_ep_attr" {
        kind: c_uint = "type",
        protocol: u32 = "protocol",
        protocol_version: u32 = "protocol_version",
        max_msg_size: usize = "max_msg_size",
    }

    prefix struct FiDomainAttr = "fi_domain_attr" {
        domain: *mut FidDomain = "domain",
        name: *mut c_char = "name",
        threading: c_uint = "threading",
        control_progress: c_uint = "control_progress",
        data_progress: c_uint = "data_progress",
        resource_mgmt: c_uint = "resource_mgmt",
        av_type: c_uint = "av_type",
        mr_mode: c_int = "mr_mode",
        mr_key_size: usize = "mr_key_size",
    }

    prefix struct FiFabricAttr = "fi_fabric_attr" {
        fabric: *mut FidFabric = "fabric",
        name: *mut c_char = "name",
        prov_name: *mut c_char = "prov_name",
        prov_version: u32 = "prov_version",
    }

    prefix struct Fid = "fid" {
        fclass: usize = "fclass",
        context: *mut c_void = "context",
        ops: *const FiOps = "ops",
    }

    prefix struct FiOps = "fi_ops" {
        size: usize = "size",
        close: unsafe extern "C" fn(*mut Fid) -> c_int = "close",
        bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int = "bind",
        control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int = "control",
    }

    prefix struct FidFabric = "fid_fabric" {
        fid: Fid = "fid",
        ops: *const FiOpsFabric = "ops",
    }

    prefix struct FiOpsFabric = "fi_ops_fabric" {
        size: usize = "size",
        domain: unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut *mut FidDomain, *mut c_void) -> c_int = "domain",
    }

    prefix struct FidDomain = "fid_domain" {
        fid: Fid = "fid",
        ops: *const FiOpsDomain = "ops",
        mr: *const FiOpsMr = "mr",
    }

    prefix struct FiOpsDomain = "fi_ops_domain" {
        size: usize = "size",
        av_open: unsafe extern "C" fn(*mut FidDomain, *mut FiAvAttr, *mut *mut FidAv, *mut c_void) -> c_int = "av_open",
        cq_open: unsafe extern "C" fn(*mut FidDomain, *mut FiCqAttr, *mut *mut FidCq, *mut c_void) -> c_int = "cq_open",
        endpoint: unsafe extern "C" fn(*mut FidDomain, *mut FiInfo, *mut *mut FidEp, *mut c_void) -> c_int = "endpoint",
    }

    prefix struct FiOpsMr = "fi_ops_mr" {
        size: usize = "size",
        reg: unsafe extern "C" fn(
            *mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void,
        ) -> c_int = "reg",
    }

    prefix struct FidMr = "fid_mr" {
        fid: Fid = "fid",
        mem_desc: *mut c_void = "mem_desc",
        key: u64 = "key",
    }

    whole struct FiAvAttr = "fi_av_attr" {
        kind: c_uint = "type",
        rx_ctx_bits: c_int = "rx_ctx_bits",
        count: usize = "count",
        ep_per_node: usize = "ep_per_node",
        name: *const c_char = "name",
        map_addr: *mut c_void = "map_addr",
        flags: u64 = "flags",
    }

    prefix struct FidAv = "fid_av" {
        fid: Fid = "fid",
        ops: *const FiOpsAv = "ops",
    }

    prefix struct FiOpsAv = "fi_ops_av" {
        size: usize = "size",
        insert: unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int = "insert",
    }

    whole struct FiCqAttr = "fi_cq_attr" {
        size: usize = "size",
        flags: u64 = "flags",
        format: c_uint = "format",
        wait_obj: c_uint = "wait_obj",
        signaling_vector: c_int = "signaling_vector",
        wait_cond: c_uint = "wait_cond",
        wait_set: *mut c_void = "wait_set",
    }

    whole struct FiCqEntry = "fi_cq_entry" {
        op_context: *mut c_void = "op_context",
    }

    // Later libraries have more behind it.
    prefix struct FiCqErrEntry = "fi_cq_err_entry" {
        op_context: *mut c_void = "op_context",
        flags: u64 = "flags",
        len: usize = "len",
        buf: *mut c_void = "buf",
        data: u64 = "data",
        tag: u64 = "tag",
        olen: usize = "olen",
        err: c_int = "err",
        prov_errno: c_int = "prov_errno",
        err_data: *mut c_void = "err_data",
        err_data_size: usize = "err_data_size",
    }

    prefix struct FidCq = "fid_cq" {
        fid: Fid = "fid",
        ops: *const FiOpsCq = "ops",
    }

    prefix struct FiOpsCq = "fi_ops_cq" {
        size: usize = "size",
        read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize = "read",
        readfrom: Unused = "readfrom",
        readerr: unsafe extern "C" fn(*mut FidCq, *mut FiCqErrEntry, u64) -> isize = "readerr",
        sread: Unused = "sread",
        sreadfrom: Unused = "sreadfrom",
        signal: Unused = "signal",
        strerror: Option<
            unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
        > = "strerror",
    }

    prefix struct FidEp = "fid_ep" {
        fid: Fid = "fid",
        ops: Unused = "ops",
        cm: *const FiOpsCm = "cm",
        msg: Unused = "msg",
        rma: *const FiOpsRma = "rma",
        tagged: Unused = "tagged",
        atomic: *const FiOpsAtomic = "atomic",
    }

    prefix struct FiOpsCm = "fi_ops_cm" {
        size: usize = "size",
        setname: Unused = "setname",
        getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int = "getname",
    }

    prefix struct FiOpsRma = "fi_ops_rma" {
        size: usize = "size",
        read: unsafe extern "C" fn(
            *mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void,
        ) -> isize = "read",
        readv: Unused = "readv",
        readmsg: Unused = "readmsg",
        write: unsafe extern "C" fn(
            *mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void,
        ) -> isize = "write",
    }

    prefix struct FiOpsAtomic = "fi_ops_atomic" {
        size: usize = "size",
        write: unsafe extern "C" fn(
            *mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, c_uint, c_uint, *mut c_void,
        ) -> isize = "write",
        writev: Unused = "writev",
        writemsg: Unused = "writemsg",
        inject: Unused = "inject",
        readwrite: unsafe extern "C" fn(
            *mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, u64, c_uint, c_uint,
            *mut c_void,
        ) -> isize = "readwrite",
        readwritev: Unused = "readwritev",
        readwritemsg: Unused = "readwritemsg",
        compwrite: unsafe extern "C" fn(
            *mut FidEp, *const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void, u64, u64,
            u64, c_uint, c_uint, *mut c_void,
        ) -> isize = "compwrite",
        compwritev: Unused = "compwritev",
        compwritemsg: Unused = "compwritemsg",
        writevalid: unsafe extern "C" fn(*mut FidEp, c_uint, c_uint, *mut usize) -> c_int = "writevalid",
        readwritevalid: unsafe extern "C" fn(*mut FidEp, c_uint, c_uint, *mut usize) -> c_int = "readwritevalid",
        compwritevalid: unsafe extern "C" fn(*mut FidEp, c_uint, c_uint, *mut usize) -> c_int = "compwritevalid",
    }

    whole struct FiParam = "fi_param" {
        name: *const c_char = "name",
        kind: c_uint = "type",
        help_string: *const c_char = "help_string",
        value: *const c_char = "value",
    }

    // Room for what a provider keeps with an operation (FI_CONTEXT, FI_CONTEXT2).
    whole struct FiContext2 = "fi_context2" {
        internal: [*mut c_void; 8] = "internal",
    }
}

macro_rules! fabric_constants {
    ($($name:ident: $ty:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $ty = $value;)*

        /// Name and value of each, for the test that compares them with the header.
        #[cfg(test)]
        pub(crate) const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64),)*];
    };
}

fabric_constants! {
    FI_RMA: u64 = 1 << 2;
    FI_ATOMIC: u64 = 1 << 4;
    FI_READ: u64 = 1 << 8;
    FI_WRITE: u64 = 1 << 9;
    FI_RECV: u64 = 1 << 10;
    FI_TRANSMIT: u64 = 1 << 11;
    FI_REMOTE_READ: u64 = 1 << 12;
    FI_REMOTE_WRITE: u64 = 1 << 13;
    FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    FI_CONTEXT: u64 = 1 << 59;
    FI_CONTEXT2: u64 = 1 << 52;
    FI_MR_LOCAL: c_int = 1 << 2;
    FI_MR_VIRT_ADDR: c_int = 1 << 4;
    FI_MR_ALLOCATED: c_int = 1 << 5;
    FI_MR_PROV_KEY: c_int = 1 << 6;
    FI_THREAD_SAFE: c_uint = 1;
    FI_PROGRESS_MANUAL: c_uint = 2;
    FI_RM_ENABLED: c_uint = 2;
    FI_EP_RDM: c_uint = 3;
    FI_CQ_FORMAT_CONTEXT: c_uint = 1;
    FI_WAIT_NONE: c_uint = 0;
    FI_ENABLE: c_int = 6;
    FI_UINT8: c_uint = 1;
    FI_UINT16: c_uint = 3;
    FI_UINT32: c_uint = 5;
    FI_UINT64: c_uint = 7;
    FI_SUM: c_uint = 2;
    FI_ATOMIC_WRITE: c_uint = 11;
    FI_CSWAP: c_uint = 12;
    FI_EAGAIN: c_int = 11;
    FI_EACCES: c_int = 13;
    FI_ENODATA: c_int = 61;
    FI_ECONNABORTED: c_int = 103;
    FI_ECONNRESET: c_int = 104;
    FI_ENOTCONN: c_int = 107;
    FI_ESHUTDOWN: c_int = 108;
    FI_ETIMEDOUT: c_int = 110;
    FI_ECONNREFUSED: c_int = 111;
    FI_EHOSTDOWN: c_int = 112;
    FI_EHOSTUNREACH: c_int = 113;
    FI_ECANCELED: c_int = 125;
    FI_EAVAIL: c_int = 259;
    FI_EKEYREJECTED: c_int = 129;
}
