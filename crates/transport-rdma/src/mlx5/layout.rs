//! Commands and contexts of the NIC, as bit offsets (`include/linux/mlx5/mlx5_ifc.h`, structures `mlx5_ifc_*_bits`).

use super::field::{Field, Layout};

macro_rules! layout {
    ($(#[$doc:meta])* $module:ident, $name:literal, $bits:literal, { $($field:ident: $offset:literal, $width:literal;)* }) => {
        $(#[$doc])*
        pub(super) mod $module {
            use super::{Field, Layout};
            $(
                #[doc = concat!("`", stringify!($field), "`.")]
                #[allow(non_upper_case_globals, reason = "the names of the programmer's reference")]
                pub(in super::super) const $field: Field = Field::new(stringify!($field), $offset, $width);
            )*
            /// All of it.
            pub(in super::super) const LAYOUT: Layout = Layout { name: $name, bits: $bits, fields: &[$($field),*] };
        }
    };
}

layout! {
    /// Completion queue context.
    cqc, "cqc", 0x200, {
        dbr_umem_valid: 0x06, 1;
        cqe_sz: 0x08, 3;
        cc: 0x0b, 1;
        oi: 0x0e, 1;
        st: 0x14, 4;
        dbr_umem_id: 0x20, 32;
        page_offset: 0x54, 6;
        log_cq_size: 0x63, 5;
        uar_page: 0x68, 24;
        c_eqn: 0xb8, 8;
        log_page_size: 0xc3, 5;
        dbr_addr: 0x1c0, 64;
    }
}

layout! {
    /// Address path, part of the queue pair context.
    ads, "ads", 0x160, {
        pkey_index: 0x10, 16;
        grh: 0x28, 1;
        mlid: 0x29, 7;
        rlid: 0x30, 16;
        ack_timeout: 0x40, 5;
        src_addr_index: 0x48, 8;
        hop_limit: 0x58, 8;
        tclass: 0x64, 8;
        flow_label: 0x6c, 20;
        rgid_rip_high: 0x80, 64;
        rgid_rip_low: 0xc0, 64;
        dscp: 0x10a, 6;
        udp_sport: 0x110, 16;
        eth_prio: 0x121, 3;
        sl: 0x124, 4;
        vhca_port_num: 0x128, 8;
        rmac_47_32: 0x130, 16;
        rmac_31_0: 0x140, 32;
    }
}

layout! {
    /// Queue pair context.
    qpc, "qpc", 0x740, {
        state: 0x00, 4;
        st: 0x08, 8;
        pm_state: 0x13, 2;
        pd: 0x28, 24;
        mtu: 0x40, 3;
        log_msg_max: 0x43, 5;
        log_rq_size: 0x49, 4;
        log_rq_stride: 0x4d, 3;
        no_sq: 0x50, 1;
        log_sq_size: 0x51, 4;
        ts_format: 0x58, 2;
        counter_set_id: 0x60, 8;
        uar_page: 0x68, 24;
        user_index: 0x88, 24;
        log_page_size: 0xa3, 5;
        remote_qpn: 0xa8, 24;
        log_ack_req_freq: 0x380, 4;
        log_sra_max: 0x388, 3;
        retry_count: 0x38d, 3;
        rnr_retry: 0x390, 3;
        next_send_psn: 0x3c8, 24;
        cqn_snd: 0x3e8, 24;
        log_rra_max: 0x488, 3;
        atomic_mode: 0x48c, 4;
        rre: 0x490, 1;
        rwe: 0x491, 1;
        rae: 0x492, 1;
        page_offset: 0x494, 6;
        min_rnr_nak: 0x4a3, 5;
        next_rcv_psn: 0x4a8, 24;
        cqn_rcv: 0x4e8, 24;
        dbr_addr: 0x500, 64;
        rq_type: 0x565, 3;
        cs_req: 0x630, 8;
        cs_res: 0x638, 8;
        dbr_umem_valid: 0x683, 1;
        dbr_umem_id: 0x720, 32;
    }
}

layout! {
    /// `CREATE_CQ`.
    create_cq_in, "create_cq_in", 0x880, {
        opcode: 0x00, 16;
        uid: 0x10, 16;
        op_mod: 0x30, 16;
        cq_umem_offset: 0x280, 64;
        cq_umem_id: 0x2c0, 32;
        cq_umem_valid: 0x2e0, 1;
    }
}

layout! {
    /// `CREATE_QP`.
    create_qp_in, "create_qp_in", 0x880, {
        opcode: 0x00, 16;
        uid: 0x10, 16;
        op_mod: 0x30, 16;
        opt_param_mask: 0x80, 32;
        wq_umem_offset: 0x800, 64;
        wq_umem_id: 0x840, 32;
        wq_umem_valid: 0x860, 1;
    }
}

layout! {
    /// `RST2INIT_QP`, `INIT2RTR_QP` and `RTR2RTS_QP`, which are alike.
    modify_qp_in, "rst2init_qp_in", 0x880, {
        opcode: 0x00, 16;
        uid: 0x10, 16;
        op_mod: 0x30, 16;
        qpn: 0x48, 24;
        opt_param_mask: 0x80, 32;
    }
}

layout! {
    /// The answer to a creation or a change.
    answer, "create_cq_out", 0x80, {
        status: 0x00, 8;
        syndrome: 0x20, 32;
        number: 0x48, 24;
    }
}

layout! {
    /// `QUERY_HCA_CAP`.
    query_hca_cap_in, "query_hca_cap_in", 0x80, {
        opcode: 0x00, 16;
        op_mod: 0x30, 16;
    }
}

layout! {
    /// The answer to `QUERY_HCA_CAP`.
    query_hca_cap_out, "query_hca_cap_out", 0x8080, {
        status: 0x00, 8;
        syndrome: 0x20, 32;
    }
}

layout! {
    /// Capabilities of atomic operations, in the answer to `QUERY_HCA_CAP`.
    atomic_caps, "atomic_caps", 0x800, {
        atomic_req_8B_endianness_mode: 0x40, 2;
        supported_atomic_req_8B_endianness_mode_1: 0x46, 1;
        atomic_operations: 0x90, 16;
        atomic_size_qp: 0xb0, 16;
    }
}

layout! {
    /// General capabilities, in the answer to `QUERY_HCA_CAP`.
    cmd_hca_cap, "cmd_hca_cap", 0x8000, {
        qpc_extension: 0x122, 1;
        roce: 0x21d, 1;
        qp_error_syndrome: 0x273, 1;
        sq_ts_format: 0x440, 2;
    }
}

layout! {
    /// Capabilities of RoCE, in the answer to `QUERY_HCA_CAP`.
    roce_cap, "roce_cap", 0x800, {
        qp_ts_format: 0x1e, 2;
    }
}

layout! {
    /// `QUERY_QP`.
    query_qp_in, "query_qp_in", 0x80, {
        opcode: 0x00, 16;
        uid: 0x10, 16;
        op_mod: 0x30, 16;
        qpc_ext: 0x40, 1;
        qpn: 0x48, 24;
    }
}

layout! {
    /// The answer to `QUERY_QP` with `qpc_ext`.
    query_qp_out, "query_qp_out", 0xe80, {
        status: 0x00, 8;
        syndrome: 0x20, 32;
    }
}

layout! {
    /// Extension of the queue pair context, in the answer to `QUERY_QP`.
    qp_context_extension, "qp_context_extension", 0x600, {
        hw_error_syndrome: 0x60, 8;
        hw_syndrome_type: 0x68, 4;
        vendor_error_syndrome: 0x70, 8;
        syndrome: 0x78, 8;
    }
}

/// Where the completion queue context stands in `create_cq_in`.
pub(super) const CQ_CONTEXT: usize = 0x80;
/// Where the queue pair context stands in `create_qp_in` and `rst2init_qp_in`.
pub(super) const QP_CONTEXT: usize = 0xc0;
/// Where the primary address path stands in the queue pair context.
pub(super) const PRIMARY_PATH: usize = 0xc0;
/// Where the capabilities stand in `query_hca_cap_out`.
pub(super) const CAPABILITY: usize = 0x80;
/// Where the extension of the queue pair context stands in `query_qp_out`.
pub(super) const QP_EXTENSION: usize = 0x880;

/// Every table.
pub(super) const LAYOUTS: [Layout; 15] = [
    cqc::LAYOUT,
    ads::LAYOUT,
    qpc::LAYOUT,
    create_cq_in::LAYOUT,
    create_qp_in::LAYOUT,
    modify_qp_in::LAYOUT,
    answer::LAYOUT,
    query_hca_cap_in::LAYOUT,
    query_hca_cap_out::LAYOUT,
    atomic_caps::LAYOUT,
    cmd_hca_cap::LAYOUT,
    roce_cap::LAYOUT,
    query_qp_in::LAYOUT,
    query_qp_out::LAYOUT,
    qp_context_extension::LAYOUT,
];

/// Numbers of commands (`MLX5_CMD_OP_*`).
pub(super) mod opcode {
    /// `QUERY_HCA_CAP`.
    pub(crate) const QUERY_HCA_CAP: u64 = 0x100;
    /// `CREATE_CQ`.
    pub(crate) const CREATE_CQ: u64 = 0x400;
    /// `CREATE_QP`.
    pub(crate) const CREATE_QP: u64 = 0x500;
    /// `RST2INIT_QP`.
    pub(crate) const RST2INIT_QP: u64 = 0x502;
    /// `INIT2RTR_QP`.
    pub(crate) const INIT2RTR_QP: u64 = 0x503;
    /// `RTR2RTS_QP`.
    pub(crate) const RTR2RTS_QP: u64 = 0x504;
    /// `QUERY_QP`.
    pub(crate) const QUERY_QP: u64 = 0x50b;
}
