//! Structures and numbers of the kernel's headers `rdma/ib_user_verbs.h`, `rdma/rdma_user_ioctl_cmds.h`, `rdma/mlx5-abi.h` and
//! `rdma/mlx5_user_ioctl_cmds.h`. A test has the compiler compare them (`abi_tests.rs`).

/// Declares structures with the fields of those of a header, and, for the test, a table of them.
macro_rules! mirrored {
    ($($(#[$about:meta])* struct $name:ident = $theirs:literal { $($field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
            pub(crate) struct $name { $(pub(crate) $field: $kind,)* }
        )*

        /// Of each structure: its name there, its size, and its fields.
        #[cfg(test)]
        const STRUCTURES: &[(&str, usize, &[(&str, usize)])] = &[
            $(($theirs, size_of::<$name>(), &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*]),)*
        ];
    };
}

/// Declares numbers with their names in a header, and, for the test, a table of them.
macro_rules! numbers {
    ($($name:ident: $kind:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $kind = $value;)*

        #[cfg(test)]
        const NUMBERS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

mirrored! {
    /// The begin of a written command.
    struct CommandHead = "ib_uverbs_cmd_hdr" {
        command: u32,
        in_words: u16,
        out_words: u16,
    }

    /// Behind it, where the command is an extended one.
    struct ExtendedHead = "ib_uverbs_ex_cmd_hdr" {
        response: u64,
        provider_in_words: u16,
        provider_out_words: u16,
        cmd_hdr_reserved: u32,
    }

    struct GetContextAnswer = "ib_uverbs_get_context_resp" {
        async_fd: u32,
        num_comp_vectors: u32,
    }

    struct DeviceAnswer = "ib_uverbs_query_device_resp" {
        fw_ver: u64,
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        reserved: [u8; 4],
    }

    struct PortAnswer = "ib_uverbs_query_port_resp" {
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        state: u8,
        max_mtu: u8,
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        reserved: u8,
    }

    struct RegMr = "ib_uverbs_reg_mr" {
        response: u64,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }

    struct RegMrAnswer = "ib_uverbs_reg_mr_resp" {
        mr_handle: u32,
        lkey: u32,
        rkey: u32,
    }

    struct DeregMr = "ib_uverbs_dereg_mr" {
        mr_handle: u32,
    }

    /// The extended form has the same fields behind the address of its answer.
    struct CreateCq = "ib_uverbs_create_cq" {
        response: u64,
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        reserved: u32,
    }

    struct CreateCqAnswer = "ib_uverbs_create_cq_resp" {
        cq_handle: u32,
        cqe: u32,
    }

    /// The driver's part of it.
    struct DriverCreateCq = "mlx5_ib_create_cq" {
        buf_addr: u64,
        db_addr: u64,
        cqe_size: u32,
        cqe_comp_en: u8,
        cqe_comp_res_format: u8,
        flags: u16,
        uar_page_index: u16,
        reserved0: u16,
        reserved1: u32,
    }

    struct DriverCreateCqAnswer = "mlx5_ib_create_cq_resp" {
        cqn: u32,
        reserved: u32,
    }

    /// The extended form has the same fields behind the address of its answer.
    struct CreateQp = "ib_uverbs_create_qp" {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
    }

    struct CreateQpAnswer = "ib_uverbs_create_qp_resp" {
        qp_handle: u32,
        qpn: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        reserved: u32,
    }

    /// The driver's part of it, as far as it is read.
    struct DriverCreateQp = "mlx5_ib_create_qp" {
        buf_addr: u64,
        db_addr: u64,
        sq_wqe_count: u32,
        rq_wqe_count: u32,
        rq_wqe_shift: u32,
        flags: u32,
        uidx: u32,
        bfreg_index: u32,
    }

    struct DriverCreateQpAnswer = "mlx5_ib_create_qp_resp" {
        bfreg_index: u32,
        ece_options: u32,
        comp_mask: u32,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        reserved1: u32,
        tir_icm_addr: u64,
    }

    struct Destination = "ib_uverbs_qp_dest" {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    struct ModifyQp = "ib_uverbs_modify_qp" {
        dest: Destination,
        alt_dest: Destination,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }

    struct DestroyQp = "ib_uverbs_destroy_qp" {
        response: u64,
        qp_handle: u32,
        reserved: u32,
    }

    struct DriverContextAnswer = "mlx5_ib_alloc_ucontext_resp" {
        qp_tab_size: u32,
        bf_reg_size: u32,
        tot_bfregs: u32,
        cache_line_size: u32,
        max_sq_desc_sz: u16,
        max_rq_desc_sz: u16,
        max_send_wqebb: u32,
        max_recv_wr: u32,
        max_srq_recv_wr: u32,
        num_ports: u16,
        flow_action_flags: u16,
        comp_mask: u32,
        response_length: u32,
        cqe_version: u8,
        cmds_supp_uhw: u8,
        eth_min_inline: u8,
        clock_info_versions: u8,
        hca_core_clock_offset: u64,
        log_uar_size: u32,
        num_uars_per_page: u32,
        num_dyn_bfregs: u32,
        dump_fill_mkey: u32,
    }

    struct DriverCreateAhAnswer = "mlx5_ib_create_ah_resp" {
        response_length: u32,
        dmac: [u8; 6],
        reserved: [u8; 6],
    }

    /// The begin of what `ioctl` is given.
    struct MethodHead = "ib_uverbs_ioctl_hdr" {
        length: u16,
        object_id: u16,
        method_id: u16,
        num_attrs: u16,
        reserved1: u64,
        driver_id: u32,
        reserved2: u32,
    }

    /// One of the attributes behind it.
    struct Attribute = "ib_uverbs_attr" {
        attr_id: u16,
        len: u16,
        flags: u16,
        attr_data: u16,
        data: u64,
    }
}

numbers! {
    IB_USER_VERBS_CMD_FLAG_EXTENDED: u32 = 0x8000_0000;
    IB_USER_VERBS_CMD_COMMAND_MASK: u32 = 0xff;
    IB_USER_VERBS_CMD_GET_CONTEXT: u32 = 0;
    IB_USER_VERBS_CMD_QUERY_DEVICE: u32 = 1;
    IB_USER_VERBS_CMD_QUERY_PORT: u32 = 2;
    IB_USER_VERBS_CMD_ALLOC_PD: u32 = 3;
    IB_USER_VERBS_CMD_DEALLOC_PD: u32 = 4;
    IB_USER_VERBS_CMD_CREATE_AH: u32 = 5;
    IB_USER_VERBS_CMD_DESTROY_AH: u32 = 8;
    IB_USER_VERBS_CMD_REG_MR: u32 = 9;
    IB_USER_VERBS_CMD_DEREG_MR: u32 = 13;
    IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: u32 = 17;
    IB_USER_VERBS_CMD_CREATE_CQ: u32 = 18;
    IB_USER_VERBS_CMD_DESTROY_CQ: u32 = 20;
    IB_USER_VERBS_CMD_CREATE_QP: u32 = 24;
    IB_USER_VERBS_CMD_MODIFY_QP: u32 = 26;
    IB_USER_VERBS_CMD_DESTROY_QP: u32 = 27;
    IB_UVERBS_QPT_RC: u8 = 2;
    MLX5_QP_FLAG_BFREG_INDEX: u32 = 1 << 3;
    MLX5_QP_FLAG_UAR_PAGE_INDEX: u32 = 1 << 10;
    MLX5_IB_OBJECT_DEVX: u16 = 0x1000;
    MLX5_IB_OBJECT_DEVX_OBJ: u16 = 0x1001;
    MLX5_IB_OBJECT_DEVX_UMEM: u16 = 0x1002;
    MLX5_IB_OBJECT_UAR: u16 = 0x1008;
    MLX5_IB_METHOD_DEVX_OTHER: u16 = 0x1000;
    MLX5_IB_METHOD_DEVX_QUERY_EQN: u16 = 0x1002;
    MLX5_IB_METHOD_DEVX_OBJ_CREATE: u16 = 0x1000;
    MLX5_IB_METHOD_DEVX_OBJ_DESTROY: u16 = 0x1001;
    MLX5_IB_METHOD_DEVX_OBJ_MODIFY: u16 = 0x1002;
    MLX5_IB_METHOD_DEVX_OBJ_QUERY: u16 = 0x1003;
    MLX5_IB_METHOD_DEVX_UMEM_REG: u16 = 0x1000;
    MLX5_IB_METHOD_DEVX_UMEM_DEREG: u16 = 0x1001;
    MLX5_IB_METHOD_UAR_OBJ_ALLOC: u16 = 0x1000;
    MLX5_IB_METHOD_UAR_OBJ_DESTROY: u16 = 0x1001;
    MLX5_IB_ATTR_DEVX_OTHER_CMD_IN: u16 = 0x1000;
    MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT: u16 = 0x1001;
    MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN: u16 = 0x1001;
    MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE: u16 = 0x1000;
    MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN: u16 = 0x1001;
    MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT: u16 = 0x1002;
    MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN: u16 = 0x1001;
    MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT: u16 = 0x1002;
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE: u16 = 0x1000;
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN: u16 = 0x1001;
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT: u16 = 0x1002;
    MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE: u16 = 0x1000;
    MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE: u16 = 0x1000;
    MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR: u16 = 0x1001;
    MLX5_IB_ATTR_DEVX_UMEM_REG_LEN: u16 = 0x1002;
    MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID: u16 = 0x1004;
    MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE: u16 = 0x1000;
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE: u16 = 0x1000;
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET: u16 = 0x1002;
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH: u16 = 0x1003;
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID: u16 = 0x1004;
    RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;
}

/// What extended answers end with, or begin with where they have nothing else: `comp_mask` and `response_length`.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct ExtendedAnswer {
    pub(crate) comp_mask: u32,
    pub(crate) response_length: u32,
}

#[cfg(test)]
#[path = "abi_tests.rs"]
mod tests;
