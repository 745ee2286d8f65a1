//! What becomes of a run when the machine itself panics.

use core::any::Any;
use std::sync::atomic::Ordering;

use super::entity::What;
use super::{SeededError, State, Turn, Turns};

impl Turns {
    /// No turn is given any more: the driver thread ends, and attached threads stop waiting for theirs.
    pub(super) fn end_turns(&self, state: &State) {
        self.stopped.store(true, Ordering::SeqCst);
        self.driver.notify_all();
        self.rests.notify_all();
        for entity in state.entities.values() {
            if let What::Seat(seat) = &entity.what {
                seat.wakes.notify_all();
            }
        }
    }

    /// The machine has panicked: the failure says where, every device is lost, and the machine stops.
    pub(super) fn crash(&self, state: &mut State, cause: &(dyn Any + Send)) {
        let text = cause.downcast_ref::<&str>().copied();
        let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
        let cause = text.unwrap_or("of unknown kind").to_owned();
        let doing = match &state.turn {
            Turn::Task(id) => match state.entities.get(id) {
                Some(entity) => format!("this had its turn: {}", entity.describe()),
                None => "something that was over had its turn".to_owned(),
            },
            Turn::End(launch) => format!("kernel {} ended", launch.plan().kernel().name()),
            Turn::Seat(_) | Turn::Idle => "it chose who is next".to_owned(),
        };
        state.has_crashed = true;
        self.fail(state, &self.world.borrow(), SeededError::Panicked { doing, cause }, None);
        self.end_turns(state);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::Arc;

    use anabranch_clock::{Signal, attach};
    use anabranch_hip::{DeviceOrdinal, HipError, Step};
    use anabranch_hip_host::HostConfig;
    use anabranch_hip_host::scheduler::{Scheduler as _, Task};

    use crate::{SeededError, SeededHost, SeededSchedule};

    struct Broken;

    impl Task for Broken {
        fn step(&mut self) -> Step {
            Step::Waiting
        }

        fn panicked(&mut self) -> Step {
            Step::Finished
        }

        // Asked by the driver thread itself, outside what it catches for tasks.
        fn waits_for(&self) -> &'static str {
            panic!("a mistake of this test")
        }
    }

    #[test]
    fn a_panic_of_the_machine_ends_every_wait() {
        let config = HostConfig { devices: 2, wave_width: 4, memory_bytes: 1 << 20, ..HostConfig::default() };
        let machine = SeededHost::new(config, &SeededSchedule::new(1)).unwrap();
        let runtime = machine.runtime();
        let driver = runtime.driver().unwrap();
        let seats = driver.seats(&[0, 1]);
        std::thread::scope(|scope| {
            for (rank, seat) in (0..2).zip(seats) {
                let (driver, machine, runtime) = (Arc::clone(&driver), &machine, &runtime);
                scope.spawn(move || {
                    let _attached = attach(driver, seat);
                    let device = runtime.device(DeviceOrdinal(rank)).unwrap();
                    let stream = device.create_stream().unwrap();
                    let word = device.allocate(8).unwrap();
                    if rank == 0 {
                        // SAFETY: the word is never freed before the stream is lost.
                        unsafe { stream.wait_value64_at_least(word.address(), 1) }.unwrap();
                        machine.scheduler.spawn(None, Box::new(|| Box::new(Broken)));
                        let code = stream.synchronize().unwrap_err().code();
                        assert_eq!(code, Some(HipError::LAUNCH_FAILURE));
                    } else {
                        let ended = std::panic::catch_unwind(|| {
                            let (mutex, signal) = (anabranch_clock::sync::Mutex::new(()), Signal::new());
                            let mut guard = mutex.lock().unwrap();
                            loop {
                                guard = signal.wait(&mutex, guard, None);
                            }
                        });
                        let _: Box<dyn core::any::Any + Send> = ended.err().unwrap();
                    }
                    anabranch_clock::sleep(Duration::from_secs(1));
                    assert_eq!(device.allocate(8).unwrap_err().code(), Some(HipError::LAUNCH_FAILURE));
                    assert!(runtime.device_count().is_err(), "every call fails");
                });
            }
        });
        let failure = machine.failure().unwrap();
        assert!(matches!(&*failure.cause, SeededError::Panicked { .. }), "{failure}");
        let text = failure.to_string();
        assert!(text.contains("an engine waits for its first turn: a mistake of this test"), "{text}");
    }
}
