//! Types and constants of `libibverbs` that this crate uses, laid out as in `infiniband/verbs.h` of rdma-core.
//!
//! One list feeds the Rust types and what the tests hold against the system's header (`abi.rs`), so that the two cannot disagree. A
//! type of which the library hands out pointers only is declared as far as it is read.

use core::ffi::{c_int, c_uint, c_void};

/// What the test of the layouts knows of a type.
#[cfg(test)]
pub(crate) struct Layout {
    /// Its C name.
    pub(crate) name: &'static str,
    /// Its size, where values of it are made here and the library takes them to be of the header's size.
    pub(crate) bytes: Option<usize>,
    /// C name and offset of each field.
    pub(crate) fields: &'static [(&'static str, usize)],
}

macro_rules! verbs_types {
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
            bytes: verbs_types!(@$size $name),
            fields: &[$(($c_field, core::mem::offset_of!($name, $field)),)*],
        }),*];
    };
    (@whole $name:ident) => { Some(size_of::<$name>()) };
    (@prefix $name:ident) => { None };
}

verbs_types! {
    prefix struct IbvContext = "ibv_context" {
        device: *mut IbvDevice = "device",
        ops: IbvContextOps = "ops",
        cmd_fd: c_int = "cmd_fd",
        async_fd: c_int = "async_fd",
    }

    // The functions that the header calls inline. Those between are of old interfaces.
    whole struct IbvContextOps = "ibv_context_ops" {
        before_poll: [*mut c_void; 11] = "_compat_query_device",
        poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int> = "poll_cq",
        before_post: [*mut c_void; 13] = "req_notify_cq",
        post_send: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int> = "post_send",
        post_recv: *mut c_void = "post_recv",
        behind_post: [*mut c_void; 5] = "_compat_create_ah",
    }

    prefix struct IbvPd = "ibv_pd" {
        context: *mut IbvContext = "context",
        handle: u32 = "handle",
    }

    prefix struct IbvMr = "ibv_mr" {
        context: *mut IbvContext = "context",
        pd: *mut IbvPd = "pd",
        addr: *mut c_void = "addr",
        length: usize = "length",
        handle: u32 = "handle",
        lkey: u32 = "lkey",
        rkey: u32 = "rkey",
    }

    prefix struct IbvCq = "ibv_cq" {
        context: *mut IbvContext = "context",
    }

    prefix struct IbvQp = "ibv_qp" {
        context: *mut IbvContext = "context",
        qp_context: *mut c_void = "qp_context",
        pd: *mut IbvPd = "pd",
        send_cq: *mut IbvCq = "send_cq",
        recv_cq: *mut IbvCq = "recv_cq",
        srq: *mut c_void = "srq",
        handle: u32 = "handle",
        qp_num: u32 = "qp_num",
        state: c_uint = "state",
        qp_type: c_uint = "qp_type",
    }

    // The size is an argument of the call.
    prefix struct IbvGidEntry = "ibv_gid_entry" {
        // The header's type is aligned to 8 bytes.
        gid: IbvGid = "gid",
        gid_index: u32 = "gid_index",
        port_num: u32 = "port_num",
        gid_type: u32 = "gid_type",
        ndev_ifindex: u32 = "ndev_ifindex",
    }

    whole struct IbvDeviceAttr = "ibv_device_attr" {
        fw_ver: [u8; 64] = "fw_ver",
        node_guid: u64 = "node_guid",
        sys_image_guid: u64 = "sys_image_guid",
        max_mr_size: u64 = "max_mr_size",
        page_size_cap: u64 = "page_size_cap",
        vendor_id: u32 = "vendor_id",
        vendor_part_id: u32 = "vendor_part_id",
        hw_ver: u32 = "hw_ver",
        max_qp: c_int = "max_qp",
        max_qp_wr: c_int = "max_qp_wr",
        device_cap_flags: c_uint = "device_cap_flags",
        max_sge: c_int = "max_sge",
        max_sge_rd: c_int = "max_sge_rd",
        max_cq: c_int = "max_cq",
        max_cqe: c_int = "max_cqe",
        max_mr: c_int = "max_mr",
        max_pd: c_int = "max_pd",
        max_qp_rd_atom: c_int = "max_qp_rd_atom",
        max_ee_rd_atom: c_int = "max_ee_rd_atom",
        max_res_rd_atom: c_int = "max_res_rd_atom",
        max_qp_init_rd_atom: c_int = "max_qp_init_rd_atom",
        max_ee_init_rd_atom: c_int = "max_ee_init_rd_atom",
        atomic_cap: c_uint = "atomic_cap",
        limits_unused_here: [c_int; 14] = "max_ee",
        max_pkeys: u16 = "max_pkeys",
        local_ca_ack_delay: u8 = "local_ca_ack_delay",
        phys_port_cnt: u8 = "phys_port_cnt",
    }

    // `ibv_query_port` of `IBVERBS_1.1` writes no more than `_compat_ibv_port_attr`, which ends at `flags`; `ibv_port_attr` has grown
    // behind that (rdma-core 49).
    prefix struct IbvPortAttr = "ibv_port_attr" {
        state: c_uint = "state",
        max_mtu: c_uint = "max_mtu",
        active_mtu: c_uint = "active_mtu",
        gid_tbl_len: c_int = "gid_tbl_len",
        port_cap_flags: u32 = "port_cap_flags",
        max_msg_sz: u32 = "max_msg_sz",
        bad_pkey_cntr: u32 = "bad_pkey_cntr",
        qkey_viol_cntr: u32 = "qkey_viol_cntr",
        pkey_tbl_len: u16 = "pkey_tbl_len",
        lid: u16 = "lid",
        sm_lid: u16 = "sm_lid",
        lmc: u8 = "lmc",
        max_vl_num: u8 = "max_vl_num",
        sm_sl: u8 = "sm_sl",
        subnet_timeout: u8 = "subnet_timeout",
        init_type_reply: u8 = "init_type_reply",
        active_width: u8 = "active_width",
        active_speed: u8 = "active_speed",
        phys_state: u8 = "phys_state",
        link_layer: u8 = "link_layer",
        flags: u8 = "flags",
        port_cap_flags2: u16 = "port_cap_flags2",
    }

    whole struct IbvQpCap = "ibv_qp_cap" {
        max_send_wr: u32 = "max_send_wr",
        max_recv_wr: u32 = "max_recv_wr",
        max_send_sge: u32 = "max_send_sge",
        max_recv_sge: u32 = "max_recv_sge",
        max_inline_data: u32 = "max_inline_data",
    }

    whole struct IbvQpInitAttr = "ibv_qp_init_attr" {
        qp_context: *mut c_void = "qp_context",
        send_cq: *mut IbvCq = "send_cq",
        recv_cq: *mut IbvCq = "recv_cq",
        srq: *mut c_void = "srq",
        cap: IbvQpCap = "cap",
        qp_type: c_uint = "qp_type",
        sq_sig_all: c_int = "sq_sig_all",
    }

    whole struct IbvGlobalRoute = "ibv_global_route" {
        dgid: IbvGid = "dgid",
        flow_label: u32 = "flow_label",
        sgid_index: u8 = "sgid_index",
        hop_limit: u8 = "hop_limit",
        traffic_class: u8 = "traffic_class",
    }

    whole struct IbvAhAttr = "ibv_ah_attr" {
        grh: IbvGlobalRoute = "grh",
        dlid: u16 = "dlid",
        sl: u8 = "sl",
        src_path_bits: u8 = "src_path_bits",
        static_rate: u8 = "static_rate",
        is_global: u8 = "is_global",
        port_num: u8 = "port_num",
    }

    whole struct IbvQpAttr = "ibv_qp_attr" {
        qp_state: c_uint = "qp_state",
        cur_qp_state: c_uint = "cur_qp_state",
        path_mtu: c_uint = "path_mtu",
        path_mig_state: c_uint = "path_mig_state",
        qkey: u32 = "qkey",
        rq_psn: u32 = "rq_psn",
        sq_psn: u32 = "sq_psn",
        dest_qp_num: u32 = "dest_qp_num",
        qp_access_flags: c_uint = "qp_access_flags",
        cap: IbvQpCap = "cap",
        ah_attr: IbvAhAttr = "ah_attr",
        alt_ah_attr: IbvAhAttr = "alt_ah_attr",
        pkey_index: u16 = "pkey_index",
        alt_pkey_index: u16 = "alt_pkey_index",
        en_sqd_async_notify: u8 = "en_sqd_async_notify",
        sq_draining: u8 = "sq_draining",
        max_rd_atomic: u8 = "max_rd_atomic",
        max_dest_rd_atomic: u8 = "max_dest_rd_atomic",
        min_rnr_timer: u8 = "min_rnr_timer",
        port_num: u8 = "port_num",
        timeout: u8 = "timeout",
        retry_cnt: u8 = "retry_cnt",
        rnr_retry: u8 = "rnr_retry",
        alt_port_num: u8 = "alt_port_num",
        alt_timeout: u8 = "alt_timeout",
        rate_limit: u32 = "rate_limit",
    }

    whole struct IbvSge = "ibv_sge" {
        addr: u64 = "addr",
        length: u32 = "length",
        lkey: u32 = "lkey",
    }

    // `wr` is a union of what writes and reads need with what atomic operations need.
    whole struct IbvSendWr = "ibv_send_wr" {
        wr_id: u64 = "wr_id",
        next: *mut IbvSendWr = "next",
        sg_list: *mut IbvSge = "sg_list",
        num_sge: c_int = "num_sge",
        opcode: c_uint = "opcode",
        send_flags: c_uint = "send_flags",
        imm_data: u32 = "imm_data",
        remote_addr: u64 = "wr.rdma.remote_addr",
        compare_add_or_rkey: CompareAddOrKey = "wr.rdma.rkey",
        swap: u64 = "wr.atomic.swap",
        // Followed by padding.
        atomic_rkey: [u32; 2] = "wr.atomic.rkey",
        remote_srqn: [u32; 2] = "qp_type.xrc.remote_srqn",
        window_or_segmentation: [u64; 6] = "bind_mw.mw",
    }

    whole struct IbvWc = "ibv_wc" {
        wr_id: u64 = "wr_id",
        status: c_uint = "status",
        opcode: c_uint = "opcode",
        vendor_err: u32 = "vendor_err",
        byte_len: u32 = "byte_len",
        imm_data: u32 = "imm_data",
        qp_num: u32 = "qp_num",
        src_qp: u32 = "src_qp",
        wc_flags: c_uint = "wc_flags",
        pkey_index: u16 = "pkey_index",
        slid: u16 = "slid",
        sl: u8 = "sl",
        dlid_path_bits: u8 = "dlid_path_bits",
    }
}

/// `struct ibv_device`: only ever a pointer.
#[repr(C)]
pub(crate) struct IbvDevice {
    opaque: [u8; 0],
}

/// `union ibv_gid`, aligned as its 64-bit halves are.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IbvGid(pub(crate) [u8; 16]);

/// The word of `ibv_send_wr` that is the key of a write or read, and the first operand of an atomic operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union CompareAddOrKey {
    pub(crate) compare_add: u64,
    pub(crate) rkey: u32,
}

macro_rules! verbs_constants {
    ($($name:ident: $ty:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $ty = $value;)*

        /// C name and value of each.
        #[cfg(test)]
        pub(crate) const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

verbs_constants! {
    IBV_ATOMIC_HCA: c_uint = 1;
    IBV_ATOMIC_GLOB: c_uint = 2;
    IBV_PORT_ACTIVE: c_uint = 4;
    IBV_MTU_256: c_uint = 1;
    IBV_MTU_4096: c_uint = 5;
    IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
    IBV_ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
    IBV_ACCESS_REMOTE_READ: c_uint = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC: c_uint = 1 << 3;
    IBV_QPT_RC: c_uint = 2;
    IBV_QPS_INIT: c_uint = 1;
    IBV_QPS_RTR: c_uint = 2;
    IBV_QPS_RTS: c_uint = 3;
    IBV_QPS_ERR: c_uint = 6;
    IBV_QP_STATE: c_int = 1;
    IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
    IBV_QP_PKEY_INDEX: c_int = 1 << 4;
    IBV_QP_PORT: c_int = 1 << 5;
    IBV_QP_AV: c_int = 1 << 7;
    IBV_QP_PATH_MTU: c_int = 1 << 8;
    IBV_QP_TIMEOUT: c_int = 1 << 9;
    IBV_QP_RETRY_CNT: c_int = 1 << 10;
    IBV_QP_RNR_RETRY: c_int = 1 << 11;
    IBV_QP_RQ_PSN: c_int = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
    IBV_QP_SQ_PSN: c_int = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    IBV_QP_DEST_QPN: c_int = 1 << 20;
    IBV_WR_RDMA_WRITE: c_uint = 0;
    IBV_WR_RDMA_READ: c_uint = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
    IBV_SEND_SIGNALED: c_uint = 1 << 1;
    IBV_SEND_INLINE: c_uint = 1 << 3;
    IBV_WC_SUCCESS: c_uint = 0;
    IBV_WC_LOC_LEN_ERR: c_uint = 1;
    IBV_WC_LOC_QP_OP_ERR: c_uint = 2;
    IBV_WC_LOC_PROT_ERR: c_uint = 4;
    IBV_WC_WR_FLUSH_ERR: c_uint = 5;
    IBV_WC_MW_BIND_ERR: c_uint = 6;
    IBV_WC_BAD_RESP_ERR: c_uint = 7;
    IBV_WC_LOC_ACCESS_ERR: c_uint = 8;
    IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
    IBV_WC_REM_ACCESS_ERR: c_uint = 10;
    IBV_WC_REM_OP_ERR: c_uint = 11;
    IBV_WC_RETRY_EXC_ERR: c_uint = 12;
    IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
    IBV_WC_REM_ABORT_ERR: c_uint = 16;
    IBV_WC_FATAL_ERR: c_uint = 19;
    IBV_WC_RESP_TIMEOUT_ERR: c_uint = 20;
    IBV_WC_GENERAL_ERR: c_uint = 21;
}
