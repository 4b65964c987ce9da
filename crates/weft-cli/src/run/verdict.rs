//! The line after a job: the ranks that used weft and their traffic, or the reason why nothing was sent over it.
//!
//! Place in the data flow: last step of `weft run`.

use std::collections::BTreeSet;

use weft_fi::observe::report::line::{Line, counted};

use super::launcher::{Kind, Launcher};
use super::mpi::Mpi;
use super::settings::Settings;

/// The result of a job.
pub(crate) struct Verdict {
    /// Processes that loaded the provider.
    loaded: usize,
    /// Processes that opened an endpoint.
    used: u64,
    /// The number of ranks, if the launcher told it.
    size: Option<u64>,
    /// The hosts of processes that opened an endpoint.
    hosts: usize,
    sum: Line,
    /// The reason why nothing was sent.
    reason: String,
    /// Whether ranks of one host may have exchanged messages by the MPI library's own shared memory.
    own_shm: bool,
    launcher: Kind,
}

impl Verdict {
    /// Judges a job by the reports of its processes.
    pub(crate) fn new(reports: &[Line], launcher: &Launcher, mpi: Option<&Mpi>, settings: &Settings) -> Self {
        let mut sum = Line::default();
        reports.iter().for_each(|report| sum.add(report));
        let users = || reports.iter().filter(|report| report.endpoints > 0);
        let hosts: BTreeSet<&str> = users().map(|report| report.host.as_str()).collect();
        let used = users().count() as u64;
        let mut this = Self {
            loaded: reports.len(),
            used,
            size: reports.iter().filter_map(|report| report.size).max(),
            hosts: hosts.len(),
            sum,
            reason: String::new(),
            own_shm: settings.has_own_shm() && used > hosts.len() as u64,
            launcher: launcher.kind(),
        };
        this.reason = this.reason(mpi);
        this
    }

    /// Whether every known rank used weft, and something was sent over it.
    pub(crate) fn is_complete(&self) -> bool {
        self.sum.carried() && self.size.is_none_or(|size| self.used >= size)
    }

    fn reason(&self, mpi: Option<&Mpi>) -> String {
        if self.used > 0 {
            return if self.used == 1 && self.size.is_none_or(|size| size == 1) {
                "the job has one rank, which sent no message".to_owned()
            } else if self.own_shm && self.hosts == 1 {
                let variable = match self.launcher {
                    Kind::IntelHydra => "I_MPI_FABRICS",
                    _ => "MPIR_CVAR_NOLOCAL",
                };
                format!(
                    "all ranks are on one host, and {} carried their messages in its own shared memory; they go over \
                     weft without --own-shm and with {variable} unset",
                    self.mpi_name()
                )
            } else {
                format!(
                    "{} opened endpoints and sent no message; if they do communicate, look for options or variables \
                     that choose another transport ({}), and for a launcher of another MPI library",
                    counted(self.used, "rank"),
                    self.transport_options()
                )
            };
        }
        if self.loaded > 0 {
            return format!(
                "the processes loaded weft, but their library opened no endpoint of it: it does not use libfabric here; \
                 look for options or variables that choose another transport ({})",
                self.transport_options()
            );
        }
        match mpi.and_then(Mpi::refusal) {
            Some((cause, remedy)) => format!("{cause}; {remedy}"),
            None => format!(
                "no process loaded weft: the program does not use libfabric, its library chose another transport ({}), \
                 or its libfabric did not accept the provider; FI_LOG_LEVEL=info shows where it searches",
                self.transport_options()
            ),
        }
    }

    /// Options and variables by which users choose a transport.
    fn transport_options(&self) -> &'static str {
        match self.launcher {
            Kind::Hydra => "MPIR_CVAR_*",
            Kind::IntelHydra => "I_MPI_FABRICS, I_MPI_OFI_*",
            Kind::OpenMpi => "--mca pml, --mca mtl",
            Kind::Oshrun => "SHMEM_OFI_*",
            Kind::Srun | Kind::None => "MPIR_CVAR_*, OMPI_MCA_*, I_MPI_*",
        }
    }

    fn mpi_name(&self) -> &'static str {
        match self.launcher {
            Kind::Srun | Kind::None => "the MPI library",
            kind => kind.name(),
        }
    }

    /// The line.
    pub(crate) fn text(&self) -> String {
        if !self.sum.carried() {
            return format!("nothing was sent over weft: {}", self.reason);
        }
        let ranks = match self.size {
            Some(size) => format!("{} of {}", self.used, counted(size, "rank")),
            None => counted(self.used, "rank"),
        };
        let hosts = if self.hosts > 1 { format!(" on {} hosts", self.hosts) } else { String::new() };
        let mut text = format!("{ranks}{hosts} used weft: {}", self.sum.traffic());
        if self.own_shm {
            text += &format!("; between ranks of one host {} may have used its own shared memory", self.mpi_name());
        }
        if self.size.is_some_and(|size| self.used < size) {
            text += "; the others were killed before they could report, or used another transport";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use weft_fi::observe::report::line::Traffic;

    use super::*;

    fn verdict(reports: &[Line], own_shm: bool) -> Verdict {
        let launcher = Launcher::new(Kind::Hydra, PathBuf::from("/v/bin/mpiexec"));
        let settings = Settings::plain(own_shm);
        Verdict::new(reports, &launcher, None, &settings)
    }

    fn rank(rank: u64, host: &str, messages: u64) -> Line {
        let shm = Traffic { messages, bytes: 8 * messages };
        Line { host: host.to_owned(), pid: rank, rank: Some(rank), size: Some(2), endpoints: 1, shm, ..Line::default() }
    }

    #[test]
    fn a_carried_job_is_told_with_its_traffic() {
        let verdict = verdict(&[rank(0, "a", 3), rank(1, "b", 4)], false);
        assert_eq!(
            verdict.text(),
            "2 of 2 ranks on 2 hosts used weft: 7 messages (56 B) by shm, nothing by TCP, no errors"
        );
        assert!(verdict.is_complete());
    }

    #[test]
    fn missing_ranks_make_a_job_incomplete() {
        let verdict = verdict(&[rank(0, "a", 3)], false);
        assert!(!verdict.is_complete());
        assert!(verdict.text().starts_with("1 of 2 ranks used weft"), "{}", verdict.text());
    }

    #[test]
    fn the_reason_is_told_if_nothing_was_sent() {
        let idle = [rank(0, "a", 0), rank(1, "a", 0)];
        let loaded = [Line { endpoints: 0, ..rank(0, "a", 0) }];
        for (reports, own_shm, reason) in [
            (&idle[..], true, "its own shared memory"),
            (&idle[..], false, "2 ranks opened endpoints and sent no message"),
            (&loaded[..], false, "opened no endpoint"),
            (&[][..], false, "no process loaded weft"),
        ] {
            let verdict = verdict(reports, own_shm);
            assert!(!verdict.is_complete() && verdict.text().contains(reason), "{}", verdict.text());
        }
    }
}
