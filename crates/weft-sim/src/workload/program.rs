//! Deferred work, drawn from a seed: programs, counter changes, cancellations, barriers.

use weft_engine::api::{Error, OpFlags};
use weft_engine::program::Errors;

use super::Workload;
use crate::harness::program::deferrable;
use crate::harness::{FREE_COUNTER, Job, RANK_COUNTERS, Signals, Task};
use crate::oracle::Change;

impl Workload {
    pub(super) fn program(&mut self, rank: usize) -> Result<(), Error> {
        match self.rngs[rank].index(100) {
            0..50 => self.submit(rank),
            50..64 => {
                let rng = &mut self.rngs[rank];
                let counter = rng.index(RANK_COUNTERS);
                let change = match rng.index(10) {
                    0..7 => Change::Add(1 + rng.below(4)),
                    7 => Change::AddErrors(1),
                    _ => any_value(rng.below(8), rng.chance(500)),
                };
                self.harness.change(rank, counter, change);
                Ok(())
            }
            64..72 => {
                // A barrier is only given up as a whole.
                let programs = self.harness.oracle().programs_of(rank);
                if !programs.is_empty() {
                    let one = *self.rngs[rank].pick(&programs);
                    self.harness.cancel_programs(rank, |origin| origin.program == one);
                }
                Ok(())
            }
            72..74 => {
                let counter = self.rngs[rank].index(RANK_COUNTERS);
                self.harness
                    .cancel_programs(rank, |origin| origin.barrier.is_none() && origin.counter == Some(counter));
                Ok(())
            }
            _ => self.barrier(rank),
        }
    }

    /// Submits several programs, often for the same counter and the same threshold.
    fn submit(&mut self, rank: usize) -> Result<(), Error> {
        let rng = &mut self.rngs[rank];
        let many = if rng.chance(400) { 1 + rng.index(4) } else { 1 };
        let counter = rng.index(RANK_COUNTERS);
        for _ in 0..many {
            let mut tasks = Vec::new();
            let acts = if self.rngs[rank].chance(700) { 1 } else { self.rngs[rank].index(4) };
            for n in 0..acts {
                if n == 0 || self.rngs[rank].chance(600) {
                    tasks.push(self.draw_wait(rank, counter));
                    if self.rngs[rank].chance(100) {
                        let other = self.rngs[rank].index(RANK_COUNTERS);
                        tasks.push(self.draw_wait(rank, other));
                    }
                }
                tasks.extend(self.draw_job(rank));
            }
            self.harness.submit(rank, tasks, None)?;
        }
        Ok(())
    }

    fn draw_wait(&mut self, rank: usize, counter: usize) -> Task {
        let level = self.harness.level(rank, counter);
        let rng = &mut self.rngs[rank];
        let near = (level.successes + rng.below(8)).saturating_sub(2);
        let threshold = if rng.chance(20) { near + (1 << 40) } else { near };
        let errors = if rng.chance(250) { Errors::Poison } else { Errors::Count };
        Task::Wait(counter, threshold, errors)
    }

    fn draw_job(&mut self, rank: usize) -> Option<Task> {
        let rng = &mut self.rngs[rank];
        let counts = rng.chance(600).then(|| rng.between(FREE_COUNTER, RANK_COUNTERS - 1));
        let job = match rng.index(100) {
            0..28 => {
                let (dest, mut send) = self.draw_send(rank);
                send.flags = deferrable(send.flags, counts);
                Job::Send(dest, send)
            }
            28..48 => Job::Recv(self.draw_recv(rank)),
            n @ 48..64 => {
                let (window, mut rma) = self.draw_rma(rank, n < 56)?;
                rma.flags = deferrable(rma.flags, counts);
                if n < 56 { Job::Write(window, rma) } else { Job::Read(window, rma) }
            }
            64..72 => {
                let (window, mut atomic) = self.draw_atomic(rank)?;
                atomic.flags = deferrable(atomic.flags, counts);
                Job::Atomic(window, Box::new(atomic))
            }
            72..92 => Job::Change(rng.index(RANK_COUNTERS), Change::Add(1 + rng.below(3))),
            92..97 => Job::Change(rng.index(RANK_COUNTERS), any_value(rng.below(8), rng.chance(500))),
            _ => Job::Fail,
        };
        Some(Task::Do(job, counts))
    }

    /// Takes a step of a barrier: gives it up, enters it, or opens one.
    fn barrier(&mut self, rank: usize) -> Result<(), Error> {
        if let Some(broken) = self.harness.barrier_broken(rank)
            && self.rngs[rank].chance(300)
        {
            self.harness.abandon_barrier(broken, rank);
            return Ok(());
        }
        let whole = self.rngs[rank].chance(300);
        if let Some(ahead) = self.harness.barrier_ahead(rank) {
            self.harness.post_barrier(ahead, rank, whole)?;
            self.harness.enter_barrier(ahead, rank);
            return Ok(());
        }
        let rng = &mut self.rngs[rank];
        let mut flags = OpFlags::empty();
        flags.set(OpFlags::DELIVERY, rng.chance(250));
        flags.set(OpFlags::FENCE, rng.chance(50));
        let (write, len) = (rng.chance(400), *rng.pick(&[0, 8, 8, 300]));
        // This is not drawn: every second barrier without writes is an allreduce.
        let sum = !write && self.next_data.is_multiple_of(2);
        let signals = Signals { write, sum, len, flags };
        let Some(barrier) = self.harness.open_barrier(signals) else { return Ok(()) };
        self.cursors.resize(self.harness.windows().len(), 0);
        for member in self.harness.cluster().live_ranks() {
            // Some members post their parts long before they enter.
            let early = self.rngs[member].chance(400) && !self.harness.cluster().is_paused(member);
            if member == rank || early {
                match self.harness.post_barrier(barrier, member, self.rngs[member].chance(300)) {
                    Ok(()) | Err(Error::Again) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.harness.enter_barrier(barrier, rank);
        Ok(())
    }
}

fn any_value(value: u64, errors: bool) -> Change {
    if errors { Change::SetErrors(0) } else { Change::Set(value) }
}
