//! Commands that libibverbs writes to the device file, in their short and their extended form.

use bytemuck::{Pod, Zeroable, bytes_of};

use super::abi::{
    CommandHead, CreateCq, CreateCqAnswer, CreateQp, CreateQpAnswer, DeregMr, DestroyQp, DeviceAnswer,
    DriverContextAnswer, DriverCreateAhAnswer, DriverCreateCq, DriverCreateCqAnswer, DriverCreateQp,
    DriverCreateQpAnswer, ExtendedAnswer, ExtendedHead, GetContextAnswer, IB_USER_VERBS_CMD_ALLOC_PD,
    IB_USER_VERBS_CMD_COMMAND_MASK, IB_USER_VERBS_CMD_CREATE_AH, IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
    IB_USER_VERBS_CMD_CREATE_CQ, IB_USER_VERBS_CMD_CREATE_QP, IB_USER_VERBS_CMD_DEALLOC_PD,
    IB_USER_VERBS_CMD_DEREG_MR, IB_USER_VERBS_CMD_DESTROY_AH, IB_USER_VERBS_CMD_DESTROY_CQ,
    IB_USER_VERBS_CMD_DESTROY_QP, IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_CMD_GET_CONTEXT,
    IB_USER_VERBS_CMD_MODIFY_QP, IB_USER_VERBS_CMD_QUERY_DEVICE, IB_USER_VERBS_CMD_QUERY_PORT,
    IB_USER_VERBS_CMD_REG_MR, IB_UVERBS_QPT_RC, MLX5_QP_FLAG_BFREG_INDEX, MLX5_QP_FLAG_UAR_PAGE_INDEX,
    ModifyQp, PortAnswer, RegMr, RegMrAnswer,
};
use super::read;
use crate::Errno;
use crate::controls::{Atomics, Link, Step};
use crate::devx::SEND_RECORD;
use crate::driver::{Driver, State};
use crate::nic::memory::Region;
use crate::nic::queue::Place;
use crate::prm::completion;
use crate::prm::entry::BLOCK;

/// A command in either form.
struct Request<'a> {
    number: u32,
    /// What follows the heads. Of commands that have an answer it begins with its address, as in the short form.
    body: Vec<u8>,
    /// The driver's part of an extended command; in the short form it stands at the end of the body.
    driver: Option<&'a [u8]>,
    is_extended: bool,
    answer: u64,
    /// Bytes of room for the answer and for the driver's part of it; in the short form the first is for both.
    room: usize,
    driver_room: usize,
}

/// What a command answers.
#[derive(Default)]
struct Answer {
    core: Vec<u8>,
    driver: Vec<u8>,
}

impl Answer {
    fn of(core: &impl Pod) -> Self {
        Self { core: bytes_of(core).to_vec(), driver: Vec::new() }
    }

    fn with(self, driver: &impl Pod) -> Self {
        Self { driver: bytes_of(driver).to_vec(), ..self }
    }
}

impl<'a> Request<'a> {
    fn of(command: &'a [u8]) -> Option<Self> {
        let head: CommandHead = read(command);
        let number = head.command & IB_USER_VERBS_CMD_COMMAND_MASK;
        let rest = command.get(size_of::<CommandHead>()..)?;
        let (in_words, out_words) = (usize::from(head.in_words), usize::from(head.out_words));
        if head.command & IB_USER_VERBS_CMD_FLAG_EXTENDED == 0 {
            let answer = if out_words == 0 { 0 } else { read(rest) };
            let body = rest.to_vec();
            let room = out_words * 4;
            return Some(Self {
                number,
                body,
                driver: None,
                is_extended: false,
                answer,
                room,
                driver_room: 0,
            });
        }
        let extended: ExtendedHead = read(rest);
        let (core, driver) = rest.get(size_of::<ExtendedHead>()..)?.split_at_checked(in_words * 8)?;
        let mut body = core.to_vec();
        // The one command here that has no answer in its short form.
        if number != IB_USER_VERBS_CMD_MODIFY_QP {
            body.splice(0..0, extended.response.to_ne_bytes());
        }
        Some(Self {
            number,
            body,
            driver: Some(driver),
            is_extended: true,
            answer: extended.response,
            room: out_words * 8,
            driver_room: usize::from(extended.provider_out_words) * 8,
        })
    }

    /// The command's own structure.
    fn core<T: Pod + Zeroable>(&self) -> T {
        read(&self.body)
    }

    /// The driver's, behind a structure of type `T` in the short form.
    fn driver<T, D: Pod + Zeroable>(&self) -> D {
        read(self.driver.unwrap_or_else(|| self.body.get(size_of::<T>()..).unwrap_or_default()))
    }

    /// Puts the answer where the program wants it; room that is left is cleared.
    fn reply(&self, mut answer: Answer) {
        if self.answer == 0 {
            return;
        }
        if self.is_extended {
            let response_length = self.room as u32;
            answer.core.extend(bytes_of(&ExtendedAnswer { comp_mask: 0, response_length }));
            answer.core.resize(self.room, 0);
            answer.driver.resize(self.driver_room, 0);
        }
        let mut bytes = answer.core;
        bytes.extend(answer.driver);
        bytes.resize(self.room + self.driver_room, 0);
        // SAFETY: the program gave address and room for the answer, as it does to the kernel.
        unsafe { (self.answer as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

// What a ConnectX-6 has, or a little less: numbers of queues and pages are those of this NIC's own tables.
const FIRMWARE: u64 = 0x0010_001e_0000_0000;
const GUID: u64 = 0x0200_0000_0000_0001;
const VENDOR: u32 = 0x02c9;
/// `CONNECTX6` of rdma-core's table of devices; the fake `/sys` of run.sh has the same.
const PART: u32 = 0x1019;
const MOST_COMPLETIONS: u32 = 1 << 20;
/// `IBV_ATOMIC_HCA`.
const ATOMIC_HCA: u32 = 1;
/// `IB_PORT_CM_SUP` and `IB_PORT_IP_BASED_GIDS`.
const PORT_CAPABILITIES: u32 = 0x0401_0000;
/// `IBV_PORT_ACTIVE`, `IBV_MTU_4096`, and 4 lanes of 25 Gb/s (`active_width`, `active_speed`), a link that is up.
const PORT_ACTIVE: u8 = 4;
const MTU_4096: u8 = 5;
const WIDTH_4: u8 = 2;
const SPEED_EDR: u8 = 32;
const LINK_UP: u8 = 5;
/// `IBV_LINK_LAYER_INFINIBAND`, `IBV_LINK_LAYER_ETHERNET`.
const LAYER_INFINIBAND: u8 = 1;
const LAYER_ETHERNET: u8 = 2;
/// Any address of a subnet.
const SOME_LID: u16 = 0x11;
const GIDS: u32 = 4;
/// `cmds_supp_uhw`: extended QUERY_DEVICE and CREATE_AH.
const DRIVER_COMMANDS: u8 = 3;
/// Pages of 2^12 bytes.
const LOG_PAGE: u32 = 12;
/// Any address handle, and the Ethernet address of any peer: requests do not go by Ethernet.
const SOME_HANDLE: u32 = 77;
const SOME_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn event_file() -> Result<u32, Errno> {
    // SAFETY: no memory is passed.
    let file = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    u32::try_from(file).map_err(|_| Errno(libc::EMFILE))
}

fn get_context() -> Result<Answer, Errno> {
    let context = DriverContextAnswer {
        qp_tab_size: 1 << 18,
        bf_reg_size: 512,
        cache_line_size: 64,
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: 512,
        max_send_wqebb: 32768,
        max_recv_wr: 32768,
        max_srq_recv_wr: 32767,
        num_ports: 1,
        response_length: size_of::<DriverContextAnswer>() as u32,
        cmds_supp_uhw: DRIVER_COMMANDS,
        eth_min_inline: 1,
        log_uar_size: LOG_PAGE,
        num_uars_per_page: 1,
        // No doorbell registers from the start: the library asks for pages.
        ..DriverContextAnswer::zeroed()
    };
    Ok(Answer::of(&GetContextAnswer { async_fd: event_file()?, num_comp_vectors: 1 }).with(&context))
}

fn query_device(driver: &Driver) -> Answer {
    let atomics = driver.controls.atomics != Atomics::None;
    Answer::of(&DeviceAnswer {
        fw_ver: FIRMWARE,
        node_guid: GUID.to_be(),
        sys_image_guid: GUID.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: !0xfff,
        vendor_id: VENDOR,
        vendor_part_id: PART,
        max_qp: 1 << 17,
        max_qp_wr: 32768,
        max_sge: 30,
        max_sge_rd: 30,
        max_cq: 1 << 16,
        max_cqe: MOST_COMPLETIONS,
        max_mr: 1 << 20,
        max_pd: 1 << 16,
        max_qp_rd_atom: 16,
        max_res_rd_atom: 1 << 20,
        max_qp_init_rd_atom: 16,
        atomic_cap: if atomics { ATOMIC_HCA } else { 0 },
        max_pkeys: 128,
        phys_port_cnt: 1,
        ..DeviceAnswer::zeroed()
    })
}

fn query_port(driver: &Driver) -> Answer {
    let (link_layer, lid) = match driver.controls.link {
        Link::Ethernet => (LAYER_ETHERNET, 0),
        Link::InfiniBand => (LAYER_INFINIBAND, SOME_LID),
    };
    Answer::of(&PortAnswer {
        port_cap_flags: PORT_CAPABILITIES,
        max_msg_sz: crate::nic::MOST_BYTES as u32,
        gid_tbl_len: GIDS,
        pkey_tbl_len: 1,
        lid,
        state: PORT_ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        active_width: WIDTH_4,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        link_layer,
        ..PortAnswer::zeroed()
    })
}

fn register_memory(driver: &mut Driver, request: &Request<'_>) -> Result<Answer, Errno> {
    let asked: RegMr = request.core();
    let region = Region {
        key: 0,
        named: asked.hca_va,
        bytes: asked.length,
        address: asked.start as usize,
        access: asked.access_flags,
    };
    // SAFETY: the program says that this is its memory until it is deregistered, as it does to the kernel.
    let (mr_handle, key) = unsafe { driver.add_region(region)? };
    Ok(Answer::of(&RegMrAnswer { mr_handle, lkey: key, rkey: key }))
}

fn refused(driver: &Driver, step: Step) -> Result<(), Errno> {
    if driver.controls.refused_by_verbs == Some(step) { Err(Errno(libc::EINVAL)) } else { Ok(()) }
}

fn create_cq(driver: &mut Driver, request: &Request<'_>) -> Result<Answer, Errno> {
    refused(driver, Step::CreateCq)?;
    let asked: CreateCq = request.core();
    let memory: DriverCreateCq = request.driver::<CreateCq, _>();
    if asked.cqe >= MOST_COMPLETIONS || !memory.buf_addr.is_multiple_of(completion::BYTES as u64) {
        return Err(Errno(libc::EINVAL));
    }
    // As the kernel: one more than is asked for, to a power of two. The library sized its memory like that.
    let entries = (asked.cqe + 1).next_power_of_two();
    let (ring, record) = (memory.buf_addr as usize, memory.db_addr as usize);
    // SAFETY: the library keeps the queue's memory until the queue is destroyed.
    let cqn = unsafe { driver.add_completions(ring, entries, false, Some(record)) };
    let answer = Answer::of(&CreateCqAnswer { cq_handle: cqn, cqe: entries - 1 });
    Ok(answer.with(&DriverCreateCqAnswer { cqn, reserved: 0 }))
}

fn create_qp(driver: &mut Driver, request: &Request<'_>) -> Result<Answer, Errno> {
    refused(driver, Step::CreateQp)?;
    let asked: CreateQp = request.core();
    let memory: DriverCreateQp = request.driver::<CreateQp, _>();
    if asked.qp_type != IB_UVERBS_QPT_RC {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let names_page = memory.flags & (MLX5_QP_FLAG_BFREG_INDEX | MLX5_QP_FLAG_UAR_PAGE_INDEX) != 0;
    let page = driver.page(memory.bfreg_index).filter(|_| names_page);
    let received = u64::from(memory.rq_wqe_count).checked_shl(memory.rq_wqe_shift);
    let (Some(page), Some(received)) = (page, received) else { return Err(Errno(libc::EINVAL)) };
    let is_aligned = (memory.buf_addr + received).is_multiple_of(BLOCK as u64);
    if !memory.sq_wqe_count.is_power_of_two() || !is_aligned {
        return Err(Errno(libc::EINVAL));
    }
    let place = Place {
        entries: (memory.buf_addr + received) as usize,
        blocks: memory.sq_wqe_count,
        record: memory.db_addr as usize + SEND_RECORD,
        page,
    };
    // SAFETY: the library keeps the queues' memory and the page until the queue pair is destroyed.
    let qpn = unsafe { driver.add_pair(place, asked.send_cq_handle)? };
    let answer = Answer::of(&CreateQpAnswer {
        qp_handle: qpn,
        qpn,
        max_send_wr: asked.max_send_wr,
        max_recv_wr: asked.max_recv_wr,
        max_send_sge: asked.max_send_sge,
        max_recv_sge: asked.max_recv_sge,
        max_inline_data: asked.max_inline_data,
        reserved: 0,
    });
    let bfreg_index = memory.bfreg_index;
    Ok(answer.with(&DriverCreateQpAnswer { bfreg_index, ..DriverCreateQpAnswer::zeroed() }))
}

/// `IBV_QP_STATE`, `IBV_QP_DEST_QPN` of `verbs.h`.
const MASK_STATE: u32 = 1 << 0;
const MASK_DESTINATION: u32 = 1 << 20;

fn modify_qp(driver: &mut Driver, request: &Request<'_>) -> Result<Answer, Errno> {
    let asked: ModifyQp = request.core();
    let number = asked.qp_handle;
    let before = driver.state(number).ok_or(Errno(libc::EINVAL))?;
    if asked.attr_mask & MASK_DESTINATION != 0 {
        driver.set_destination(number, asked.dest_qp_num);
    }
    if asked.attr_mask & MASK_STATE != 0 {
        let wanted = State::of_verbs(asked.qp_state).ok_or(Errno(libc::EINVAL))?;
        if !before.may_become(wanted) {
            return Err(Errno(libc::EINVAL));
        }
        match wanted {
            State::Init => refused(driver, Step::Init)?,
            State::Rtr => refused(driver, Step::Rtr)?,
            State::Rts => refused(driver, Step::Rts)?,
            State::Reset | State::Error => {}
        }
        driver.set_state(number, wanted);
    }
    Ok(Answer::default())
}

fn dispatch(driver: &mut Driver, request: &Request<'_>) -> Result<Answer, Errno> {
    match request.number {
        IB_USER_VERBS_CMD_GET_CONTEXT => get_context(),
        IB_USER_VERBS_CMD_QUERY_DEVICE => Ok(query_device(driver)),
        IB_USER_VERBS_CMD_QUERY_PORT => Ok(query_port(driver)),
        IB_USER_VERBS_CMD_ALLOC_PD => {
            let number = driver.new_protection_domain();
            Ok(Answer::of(&number).with(&number))
        }
        IB_USER_VERBS_CMD_CREATE_AH => {
            let response_length = size_of::<DriverCreateAhAnswer>() as u32;
            let address = DriverCreateAhAnswer { response_length, dmac: SOME_MAC, reserved: [0; 6] };
            Ok(Answer::of(&SOME_HANDLE).with(&address))
        }
        IB_USER_VERBS_CMD_REG_MR => register_memory(driver, request),
        IB_USER_VERBS_CMD_DEREG_MR => {
            driver.remove_region(request.core::<DeregMr>().mr_handle).map(|()| Answer::default())
        }
        IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => Ok(Answer::of(&event_file()?)),
        IB_USER_VERBS_CMD_CREATE_CQ => create_cq(driver, request),
        IB_USER_VERBS_CMD_CREATE_QP => create_qp(driver, request),
        IB_USER_VERBS_CMD_MODIFY_QP => modify_qp(driver, request),
        IB_USER_VERBS_CMD_DESTROY_QP => {
            driver.remove_pair(request.core::<DestroyQp>().qp_handle);
            Ok(Answer::default())
        }
        IB_USER_VERBS_CMD_DEALLOC_PD | IB_USER_VERBS_CMD_DESTROY_AH | IB_USER_VERBS_CMD_DESTROY_CQ => {
            Ok(Answer::default())
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// Executes a command, and puts its answer into the program's memory.
pub(crate) fn execute(driver: &mut Driver, command: &[u8]) -> Result<(), Errno> {
    let request = Request::of(command).ok_or(Errno(libc::EINVAL))?;
    let done = dispatch(driver, &request);
    let failed = done.as_ref().err();
    driver.trace(format_args!("verbs command {}, error {failed:?}", request.number));
    request.reply(done?);
    Ok(())
}
