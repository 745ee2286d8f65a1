//! Commands to a driver without a program.

use super::*;
use crate::controls::Controls;

fn driver(name: &str, controls: &Controls) -> Driver {
    let folder = std::env::temp_dir().join(format!("softhca-command-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    Driver::new(Controls { folder, ..controls.clone() }).unwrap()
}

/// Memory as a NIC wants it.
#[repr(align(64))]
struct Aligned([u8; 8192]);

/// A CREATE_CQ and a CREATE_QP on registered memory that is not written.
fn creations(driver: &mut Driver) -> (Vec<u8>, Vec<u8>) {
    let memory = Box::leak(Box::new(Aligned([0; 8192])));
    let umem = driver.add_umem(memory.0.as_ptr() as u64, 8192).into();
    let page = driver.new_page().unwrap();
    driver.map_page(page, Box::leak(Box::new([0u64; 512])).as_ptr() as usize).unwrap();
    let mut cq = vec![0; cq::INPUT];
    for (field, value) in [
        (OPCODE, opcode::CREATE_CQ),
        (cq::DBR_UMEM_VALID, 1),
        (cq::CC, 1),
        (cq::OI, 1),
        (cq::DBR_UMEM_ID, umem),
        (cq::LOG_CQ_SIZE, 0),
        (cq::C_EQN, EVENT_QUEUE.into()),
        (cq::DBR_ADDR, 8184),
        (cq::CQ_UMEM_ID, umem),
        (cq::CQ_UMEM_VALID, 1),
    ] {
        field.set(&mut cq, value);
    }
    let mut qp = vec![0; qp::CREATE_INPUT];
    for (field, value) in [
        (OPCODE, opcode::CREATE_QP),
        (qp::DBR_UMEM_VALID, 1),
        (qp::DBR_UMEM_ID, umem),
        (qp::DBR_ADDR, 8176),
        (qp::WQ_UMEM_ID, umem),
        (qp::WQ_UMEM_VALID, 1),
        (qp::WQ_UMEM_OFFSET, 4096),
        (qp::LOG_SQ_SIZE, 5),
        (qp::RQ_TYPE, NO_RECEIVE_QUEUE),
        (qp::UAR_PAGE, page.into()),
        (qp::CQN_SND, 0x401),
    ] {
        field.set(&mut qp, value);
    }
    (cq, qp)
}

fn run(driver: &mut Driver, input: &[u8]) -> Result<Option<Object>, u8> {
    execute(driver, input, &mut [0; 64])
}

#[test]
fn a_queue_pair_is_made_and_goes_up_in_order() {
    let mut driver = driver("order", &Controls::default());
    let (cq, qp) = creations(&mut driver);
    assert!(matches!(run(&mut driver, &cq), Ok(Some(Object::CompletionQueue))));
    let Ok(Some(Object::Pair(number))) = run(&mut driver, &qp) else { panic!("no queue pair") };
    let mut change = |code| {
        let mut input = vec![0; qp::MODIFY_INPUT];
        OPCODE.set(&mut input, code);
        qp::QPN.set(&mut input, number.into());
        qp::REMOTE_QPN.set(&mut input, number.into());
        run(&mut driver, &input).map(drop)
    };
    assert_eq!(change(opcode::INIT2RTR_QP), Err(Refusal::BAD_STATE.status));
    assert_eq!(change(opcode::RST2INIT_QP), Ok(()));
    assert_eq!(change(opcode::INIT2RTR_QP), Ok(()));
    assert_eq!(change(opcode::RTR2RTS_QP), Ok(()));
    driver.remove_pair(number);
    std::fs::remove_dir_all(&driver.controls.folder).unwrap();
}

#[test]
fn what_a_queue_needs_is_wanted() {
    let mut driver = driver("wanted", &Controls::default());
    let (cq, qp) = creations(&mut driver);
    for (field, value) in [
        (cq::CQ_UMEM_VALID, 0),
        (cq::CQ_UMEM_OFFSET, 8),
        (cq::OI, 0),
        (cq::C_EQN, 0),
        (cq::LOG_CQ_SIZE, 8),
        (cq::DBR_ADDR, 8188),
    ] {
        let mut wrong = cq.clone();
        field.set(&mut wrong, value);
        assert_eq!(run(&mut driver, &wrong).map(drop), Err(3), "{field:?}");
    }
    run(&mut driver, &cq).unwrap();
    for (field, value) in
        [(qp::WQ_UMEM_VALID, 0), (qp::ST, 1), (qp::UAR_PAGE, 2), (qp::LOG_SQ_SIZE, 7), (qp::CQN_SND, 0x402)]
    {
        let mut wrong = qp.clone();
        field.set(&mut wrong, value);
        assert_eq!(run(&mut driver, &wrong).map(drop), Err(3), "{field:?}");
    }
    assert_eq!(run(&mut driver, &qp[..64]).map(drop), Err(0x50));
    std::fs::remove_dir_all(&driver.controls.folder).unwrap();
}

#[test]
fn controls_refuse_steps_and_clocks() {
    let refused_by_devx = Some(Step::CreateCq);
    let mut driver = driver("refuse", &Controls { refused_by_devx, ..Controls::default() });
    let (cq, _) = creations(&mut driver);
    let mut answer = [0; 64];
    assert_eq!(execute(&mut driver, &cq, &mut answer).map(drop), Err(3));
    assert_eq!(answer[..8], [3, 0, 0, 0, 0x00, 0x57, 0xd8, 0xa1]);
    driver.controls =
        Controls { real_time_clock: true, folder: driver.controls.folder, ..Controls::default() };
    let (cq, mut qp) = creations(&mut driver);
    run(&mut driver, &cq).unwrap();
    assert_eq!(run(&mut driver, &qp).map(drop), Err(3));
    qp::TS_FORMAT.set(&mut qp, 1);
    assert!(run(&mut driver, &qp).is_ok());
    std::fs::remove_dir_all(&driver.controls.folder).unwrap();
}

/// The answer to a question for capabilities in force.
fn capabilities(kind: u64, controls: &Controls) -> [u8; QUERY_OUT] {
    let mut input = [0; 16];
    OPCODE.set(&mut input, opcode::QUERY_HCA_CAP);
    OP_MOD.set(&mut input, kind << 1 | IN_FORCE);
    let mut output = [0; QUERY_OUT];
    query_capabilities(&input, &mut output, controls).unwrap();
    OP_MOD.set(&mut input, kind << 1);
    let refused = query_capabilities(&input, &mut [0; QUERY_OUT], controls).map(drop);
    assert_eq!(refused, Err(Refusal::BAD_PARAMETER), "the most that could be is not what is in force");
    let refused = query_capabilities(&input, &mut [0; 64], controls).map(drop);
    assert_eq!(refused, Err(Refusal::BAD_OUTPUT_LENGTH));
    output
}

#[test]
fn atomics_are_those_of_the_controls() {
    for (atomics, operations) in [(Atomics::None, 0), (Atomics::Standard, 3), (Atomics::Extended, 15)] {
        let output = capabilities(kind::ATOMIC, &Controls { atomics, ..Controls::default() });
        assert_eq!(ATOMIC_OPERATIONS.get(&output), operations);
        assert_eq!(ATOMIC_SIZE_QP.get(&output) != 0, operations != 0);
    }
}

#[test]
fn capabilities_lie_where_linux_has_them() {
    let controls = Controls { real_time_clock: true, ..Controls::default() };
    // Bytes of the answer that are not zero, counted by hand from `mlx5_ifc.h`: 16 bytes come before the capabilities.
    let set = |kind, controls: &Controls| -> Vec<(usize, u8)> {
        let output = capabilities(kind, controls);
        output.into_iter().enumerate().filter(|(_, byte)| *byte != 0).collect()
    };
    let extension = (16 + 0x120 / 8, 0x20);
    let roce = (16 + 0x218 / 8, 0x04);
    let syndrome = (16 + 0x270 / 8, 0x10);
    assert_eq!(set(kind::GENERAL, &controls), [extension, roce, syndrome, (16 + 0x440 / 8, 0x40)]);
    assert_eq!(set(kind::ROCE, &controls), [(16 + 3, 0x01)]);
    assert_eq!(set(kind::ATOMIC, &controls).len(), 3);
    assert_eq!(set(kind::GENERAL, &Controls::default()), [extension, roce, syndrome]);
    assert_eq!(set(kind::ROCE, &Controls::default()), []);
    let bare = Controls { hides_first_error: true, link: Link::InfiniBand, ..Controls::default() };
    assert_eq!(set(kind::GENERAL, &bare), []);
}

#[test]
fn a_query_returns_state_and_first_error() {
    let mut driver = driver("query", &Controls::default());
    let (cq, qp) = creations(&mut driver);
    run(&mut driver, &cq).unwrap();
    let Ok(Some(Object::Pair(number))) = run(&mut driver, &qp) else { panic!("no queue pair") };
    let ask = |driver: &mut Driver, with_extension: u64, room: usize| {
        let mut input = [0; 16];
        OPCODE.set(&mut input, opcode::QUERY_QP);
        query::QPC_EXT.set(&mut input, with_extension);
        qp::QPN.set(&mut input, number.into());
        assert_eq!(queried_pair(&input), Some(number));
        let mut output = vec![0xee; room];
        execute(driver, &input, &mut output).map(|_| output)
    };
    // Bytes of both forms of the answer: 0x880 bits, and 0x600 more of the extension.
    let sound = ask(&mut driver, 1, 464).unwrap();
    assert_eq!((sound[24], sound[286], sound[287]), (0, 0, 0));
    assert_eq!(ask(&mut driver, 1, 463), Err(0x51));
    assert_eq!(ask(&mut driver, 0, 272).map(|output| output[24]), Ok(0));
    assert_eq!(ask(&mut driver, 0, 271), Err(0x51));
    let mut stopped = vec![0; 464];
    set_stopped(&mut stopped, Syndrome::REMOTE_ACCESS, true);
    assert_eq!((stopped[24], stopped[286], stopped[287]), (0x60, 0x88, 0x13));
    set_stopped(&mut vec![0; 272], Syndrome::REMOTE_ACCESS, false);
    driver.controls.hides_first_error = true;
    assert_eq!(ask(&mut driver, 1, 464), Err(3));
    driver.set_state(number, State::Error);
    assert_eq!(ask(&mut driver, 0, 272).map(|output| output[24]), Ok(0x60));
    assert_eq!(queried_pair(&qp), None);
    driver.remove_pair(number);
    std::fs::remove_dir_all(&driver.controls.folder).unwrap();
}
