//! What libibverbs and libmlx5 ask for, from a page and a queue pair to their end, in a process without either.

use bytemuck::bytes_of;

use super::abi::*;
use super::methods::page_of;
use super::{commands, methods};
use crate::Errno;
use crate::controls::{Controls, Step};
use crate::driver::{Driver, Object};

/// Memory as a NIC wants it.
#[repr(align(64))]
struct Aligned([u8; 8192]);

fn driver(name: &str, refused_by_verbs: Option<Step>) -> Driver {
    let folder = std::env::temp_dir().join(format!("softhca-uverbs-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    Driver::new(Controls { folder, refused_by_verbs, ..Controls::default() }).unwrap()
}

/// A command in its short form, with room for an answer of so many bytes, which comes back.
fn short(driver: &mut Driver, number: u32, body: &[u8], room: usize) -> Result<Vec<u8>, Errno> {
    let mut answer = vec![0xee; room];
    let mut command = vec![0; size_of::<CommandHead>()];
    if room > 0 {
        command.extend((answer.as_mut_ptr() as u64).to_ne_bytes());
    }
    command.extend(body);
    let (in_words, out_words) = ((command.len() / 4) as u16, (room / 4) as u16);
    let head = CommandHead { command: number, in_words, out_words };
    command[..size_of::<CommandHead>()].copy_from_slice(bytes_of(&head));
    commands::execute(driver, &command).map(|()| answer)
}

/// A command in its extended form, the driver's part apart.
fn extended(
    driver: &mut Driver,
    number: u32,
    body: &[u8],
    part: &[u8],
    rooms: (usize, usize),
) -> Result<Vec<u8>, Errno> {
    let mut answer = vec![0xee; rooms.0 + rooms.1];
    let head = CommandHead {
        command: number | IB_USER_VERBS_CMD_FLAG_EXTENDED,
        in_words: (body.len() / 8) as u16,
        out_words: (rooms.0 / 8) as u16,
    };
    let behind = ExtendedHead {
        response: answer.as_mut_ptr() as u64,
        provider_in_words: (part.len() / 8) as u16,
        provider_out_words: (rooms.1 / 8) as u16,
        cmd_hdr_reserved: 0,
    };
    let command = [bytes_of(&head), bytes_of(&behind), body, part].concat();
    commands::execute(driver, &command).map(|()| answer)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A doorbell page, mapped: its number.
fn page(driver: &mut Driver) -> u32 {
    let (mut offset, mut length, mut number) = (0u64, 0u64, 0u32);
    let attribute = |attr_id, len, data| Attribute { attr_id, len, flags: 0, attr_data: 0, data };
    let mut attributes = [
        attribute(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0, 0),
        attribute(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, 8, &raw mut offset as u64),
        attribute(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4, &raw mut length as u64),
        attribute(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4, &raw mut number as u64),
    ];
    let mut head: MethodHead = bytemuck::Zeroable::zeroed();
    (head.object_id, head.method_id) = (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC);
    methods::call(driver, &head, &mut attributes).unwrap();
    assert_eq!((length, page_of(offset as i64)), (4096, Some(number)));
    head.object_id = MLX5_IB_OBJECT_UAR + 1;
    assert_eq!(methods::call(driver, &head, &mut attributes), Err(Errno(libc::EPROTONOSUPPORT)));
    let memory: &mut Aligned = Box::leak(Box::new(Aligned([0; _])));
    driver.map_page(number, memory.0.as_mut_ptr() as usize).unwrap();
    number
}

/// A completion queue in the short form and a queue pair in the extended one: its number.
fn pair(driver: &mut Driver) -> Result<u32, Errno> {
    let memory: &mut Aligned = Box::leak(Box::new(Aligned([0; _])));
    let at = memory.0.as_mut_ptr() as u64;
    let mut cq: CreateCq = bytemuck::Zeroable::zeroed();
    cq.cqe = 5;
    let mut part: DriverCreateCq = bytemuck::Zeroable::zeroed();
    (part.buf_addr, part.db_addr) = (at, at + 8184);
    let body = [&bytes_of(&cq)[8..], bytes_of(&part)].concat();
    let made = short(driver, IB_USER_VERBS_CMD_CREATE_CQ, &body, 16)?;
    // Handle, entries less one, number.
    assert_eq!((word(&made, 4), word(&made, 8)), (7, word(&made, 0)));

    let mut qp: CreateQp = bytemuck::Zeroable::zeroed();
    (qp.send_cq_handle, qp.qp_type, qp.max_send_wr) = (word(&made, 0), IB_UVERBS_QPT_RC, 9);
    let mut part: DriverCreateQp = bytemuck::Zeroable::zeroed();
    (part.buf_addr, part.db_addr, part.sq_wqe_count) = (at + 1024, at + 8176, 16);
    (part.flags, part.bfreg_index) = (MLX5_QP_FLAG_UAR_PAGE_INDEX, page(driver));
    let body = [&bytes_of(&qp)[8..], &[0; 16]].concat();
    let made = extended(driver, IB_USER_VERBS_CMD_CREATE_QP, &body, bytes_of(&part), (40, 40))?;
    assert_eq!((word(&made, 8), word(&made, 36), word(&made, 40)), (9, 40, part.bfreg_index));
    Ok(word(&made, 4))
}

fn modify(driver: &mut Driver, number: u32, state: u8) -> Result<(), Errno> {
    let mut asked: ModifyQp = bytemuck::Zeroable::zeroed();
    (asked.qp_handle, asked.attr_mask, asked.qp_state) = (number, 1, state);
    short(driver, IB_USER_VERBS_CMD_MODIFY_QP, bytes_of(&asked), 0).map(drop)
}

#[test]
fn a_queue_pair_is_made_and_goes_up_step_by_step() {
    let mut driver = driver("pair", None);
    let number = pair(&mut driver).unwrap();
    assert_eq!(modify(&mut driver, number, 2), Err(Errno(libc::EINVAL)));
    for state in [1, 2, 3, 6] {
        assert_eq!(modify(&mut driver, number, state), Ok(()), "state {state}");
    }
    let mut destroy: DestroyQp = bytemuck::Zeroable::zeroed();
    destroy.qp_handle = number;
    let socket = driver.controls.folder.join(format!("qp-{number:06x}"));
    assert!(socket.exists());
    short(&mut driver, IB_USER_VERBS_CMD_DESTROY_QP, &bytes_of(&destroy)[8..], 8).unwrap();
    assert!(!socket.exists());
    std::fs::remove_dir_all(&driver.controls.folder).unwrap();
}

#[test]
fn steps_are_refused_as_the_controls_say() {
    let mut refusing = driver("refuse", Some(Step::Rtr));
    let number = pair(&mut refusing).unwrap();
    assert_eq!(modify(&mut refusing, number, 1), Ok(()));
    assert_eq!(modify(&mut refusing, number, 2), Err(Errno(libc::EINVAL)));
    let mut without = driver("without", Some(Step::CreateCq));
    assert_eq!(pair(&mut without), Err(Errno(libc::EINVAL)));
    for driver in [refusing, without] {
        std::fs::remove_dir_all(&driver.controls.folder).unwrap();
    }
}

#[test]
fn an_object_is_asked_about_by_its_own_handle() {
    let mut driver = driver("query", None);
    let number = pair(&mut driver).unwrap();
    let handle = driver.add_object(Object::Pair(number));
    assert_eq!(modify(&mut driver, number, 1), Ok(()));
    let mut ask = |handle: u64, code: u16| {
        let command = [&code.to_be_bytes()[..], &[0; 6], &number.to_be_bytes(), &[0; 4]].concat();
        let mut answer = [0u8; 272];
        let attribute = |attr_id, len, data| Attribute { attr_id, len, flags: 0, attr_data: 0, data };
        let mut attributes = [
            attribute(MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, 0, handle),
            attribute(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, 16, command.as_ptr() as u64),
            attribute(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, 272, answer.as_mut_ptr() as u64),
        ];
        let mut head: MethodHead = bytemuck::Zeroable::zeroed();
        (head.object_id, head.method_id) = (MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_QUERY);
        methods::call(&mut driver, &head, &mut attributes).map(|()| answer[24])
    };
    // QUERY_QP says INIT; another handle, and a command that changes something, are not for this method.
    assert_eq!(ask(handle, 0x50b), Ok(0x10));
    assert_eq!(ask(handle + 1, 0x50b), Err(Errno(libc::EINVAL)));
    assert_eq!(ask(handle, 0x503), Err(Errno(libc::EINVAL)));
    driver.remove_pair(number);
    std::fs::remove_dir_all(&driver.controls.folder).unwrap();
}

#[test]
fn answers_fill_the_room_that_there_is() {
    let mut driver = driver("room", None);
    let device = short(&mut driver, IB_USER_VERBS_CMD_QUERY_DEVICE, &[], size_of::<DeviceAnswer>()).unwrap();
    assert_eq!(word(&device, std::mem::offset_of!(DeviceAnswer, vendor_part_id)), 0x1019);
    // More room than there is to say, and less.
    let port = short(&mut driver, IB_USER_VERBS_CMD_QUERY_PORT, &[0; 8], 64).unwrap();
    assert_eq!(port[size_of::<PortAnswer>()..], [0; 64 - size_of::<PortAnswer>()]);
    assert_eq!(short(&mut driver, IB_USER_VERBS_CMD_ALLOC_PD, &[], 4).unwrap(), 1u32.to_ne_bytes());
    assert_eq!(short(&mut driver, 99, &[], 0), Err(Errno(libc::ENOSYS)));
    assert_eq!(commands::execute(&mut driver, &[0; 4]), Err(Errno(libc::EINVAL)));
    std::fs::remove_dir_all(&driver.controls.folder).unwrap();
}
