//! The line after a job: the ranks that used weft and their traffic, or what is known of the reason why nothing was
//! sent over it.
//!
//! Place in the data flow: last step of `weft run`. The line says what processes have reported. Where that does not
//! suffice for a cause, it lists possible ones as such.

use std::process::ExitStatus;

use weft_fi::observe::report::line::{counted, grouped};

use super::ended_by;
use super::jobs::{Job, Jobs, Tally};
use super::launcher::{Kind, Launcher};
use super::mpi::Mpi;
use super::settings::Settings;

/// A command that has ended.
pub(crate) struct Verdict<'a> {
    pub(super) jobs: Jobs,
    pub(super) launcher: &'a Launcher,
    pub(super) mpi: Option<&'a Mpi>,
    pub(super) settings: &'a Settings,
    pub(super) status: ExitStatus,
}

impl Verdict<'_> {
    /// Whether every known rank used weft, and something was sent over it.
    pub(crate) fn is_complete(&self) -> bool {
        let used_all = |job: &Job| job.size.map_or(job.ranks.used > 0, |size| job.ranks.used >= size);
        self.jobs.sum.carried() && self.jobs.jobs.iter().all(used_all)
    }

    /// The line.
    pub(crate) fn text(&self) -> String {
        if !self.jobs.sum.carried() {
            return format!("nothing was sent over weft: {}", self.reason());
        }
        let (all, sum) = (self.jobs.all(), &self.jobs.sum);
        let mut text = format!("{} used weft: {}", self.users(), sum.traffic(all.unclosed > 0));
        if let [by_weft, left] = self.jobs.collectives
            && (by_weft > 0 || left > 0)
        {
            let most = if self.jobs.are_alike { "" } else { "up to " };
            text += &format!(
                "; {most}{} a rank by weft, {} left to the MPI library",
                counted(by_weft, "collective"),
                grouped(left)
            );
        }
        if all.unclosed > 0 {
            text += &format!("; {}", self.unclosed());
        }
        text += &self.missing();
        if self.own_shm() {
            text += &format!("; between ranks of one host {} may have used its own shared memory", self.mpi_name());
        }
        text + &self.nodes()
    }

    /// Node communicators that were smaller than their hosts.
    fn nodes(&self) -> String {
        let sum = &self.jobs.sum;
        if sum.small_nodes > 0 {
            let count = counted(sum.small_nodes, "node communicator");
            let verb = if sum.small_nodes == 1 { "was smaller than its host" } else { "were smaller than their hosts" };
            return format!("; {count} {verb}; look at the lines `weft-coll: …` above");
        }
        let separates = self.settings.separates_ranks() && self.jobs.has_hydra && sum.completes_nodes == 0;
        if separates && self.jobs.all().used > self.jobs.hosts as u64 {
            let remedy = if self.settings.has_collectives() { "" } else { ", which --collectives mends" };
            return format!("; MPIR_CVAR_NOLOCAL=1 was set, so node communicators had one rank{remedy} (see weft(1))");
        }
        String::new()
    }

    /// The ranks and processes that opened an endpoint.
    fn users(&self) -> String {
        let Jobs { jobs, unranked, hosts, .. } = &self.jobs;
        let ranks = self.jobs.ranks().used;
        let mut text = match self.jobs.size() {
            Some(size) => format!("{ranks} of {}", counted(size, "rank")),
            None if jobs.is_empty() => processes(unranked.used),
            None => counted(ranks, "rank"),
        };
        if jobs.len() > 1 {
            text += &format!(" in {}", counted(jobs.len() as u64, "job"));
        }
        if !jobs.is_empty() && unranked.used > 0 {
            text += &format!(" and {} of no job", processes(unranked.used));
        }
        if *hosts > 1 {
            text += &format!(" on {hosts} hosts");
        }
        text
    }

    /// The ranks that did not use weft.
    fn missing(&self) -> String {
        let ranks = self.jobs.ranks();
        let Some(missing) = self.jobs.size().and_then(|size| size.checked_sub(ranks.used)).filter(|count| *count > 0)
        else {
            return String::new();
        };
        let idle = ranks.loaded.saturating_sub(ranks.used);
        let mut parts = Vec::new();
        if idle > 0 {
            parts.push(format!("{} loaded weft and opened no endpoint of it", counted(idle, "rank")));
        }
        if missing > idle {
            parts.push(format!("{} did not report to have loaded it", counted(missing - idle, "rank")));
        }
        let unused = self.jobs.jobs.iter().filter(|job| job.ranks.used == 0).count();
        let jobs = if unused > 0 {
            format!(" ({} did not use weft at all)", counted(unused as u64, "job"))
        } else {
            String::new()
        };
        format!("; {}{jobs}", parts.join(", "))
    }

    /// The known reasons why nothing was sent.
    fn reason(&self) -> String {
        let all = self.jobs.all();
        if all.used > 0 {
            self.reason_of_users(all)
        } else if all.loaded > 0 {
            self.reason_of_loaded(all)
        } else if let Some((cause, remedy)) = self.mpi.and_then(Mpi::refusal) {
            format!("{cause}; {remedy}")
        } else {
            let none = match self.jobs.size() {
                Some(size) => format!("none of {} reported to have loaded weft", counted(size, "rank")),
                None => "no process reported to have loaded weft".to_owned(),
            };
            match ended_by(self.status) {
                Some(end) => format!("{none}, and {} {end}; look at the messages above", self.command()),
                None => format!(
                    "{none}; possible causes: the program does not use libfabric, its library chose another transport \
                     ({}), or its libfabric did not accept the provider (FI_LOG_LEVEL=info shows where it searches)",
                    self.transport_options()
                ),
            }
        }
    }

    /// Processes have opened endpoints.
    fn reason_of_users(&self, all: Tally) -> String {
        let opened = format!("{} opened endpoints", self.noun(all.used));
        let sum = &self.jobs.sum;
        if let Some(fault) = &self.jobs.fault {
            return format!("{opened}; {fault}");
        }
        if sum.unreached > 0 {
            let peers = counted(sum.unreached, "peer");
            return format!("{opened} and could not reach {peers}; look at the lines `weft: …` above");
        }
        if sum.errors > 0 {
            return format!("{opened}, and weft found faults; look at the lines `weft: …` above");
        }
        if all.unclosed > 0 {
            return format!("{opened} and published no message; {}", self.unclosed());
        }
        if all.used == 1 && self.jobs.size().is_none_or(|size| size == 1) {
            return "the job has one rank, which sent no message".to_owned();
        }
        if self.own_shm() && self.jobs.hosts == 1 {
            let variable = match self.launcher.kind() {
                Kind::IntelHydra => "I_MPI_FABRICS",
                _ => "MPIR_CVAR_NOLOCAL",
            };
            return format!(
                "all ranks are on one host, and {} carried their messages in its own shared memory; they go over weft \
                 without --own-shm and with {variable} unset",
                self.mpi_name()
            );
        }
        format!(
            "{opened} and sent no message; if they do communicate, look for options or variables that choose another \
             transport ({}), and for a launcher of another MPI library",
            self.transport_options()
        )
    }

    /// Processes have loaded the provider, and opened no endpoint.
    fn reason_of_loaded(&self, all: Tally) -> String {
        let loaded = format!("{} loaded weft and opened no endpoint of it", self.noun(all.loaded));
        if let Some(fault) = &self.jobs.fault {
            return format!("{loaded}; {fault}");
        }
        if self.jobs.sum.errors > 0 {
            return format!("{loaded}, because of the faults in the lines `weft: …` above");
        }
        match ended_by(self.status) {
            Some(end) => format!("{loaded}, and {} {end}; look at the messages above", self.command()),
            None => format!(
                "{loaded}; possible causes: options or variables that choose another transport ({}), or another provider",
                self.transport_options()
            ),
        }
    }

    /// A number of ranks, or of processes where no launcher told a rank.
    fn unclosed(&self) -> String {
        let count = self.jobs.all().unclosed;
        let whose = if count == 1 { "its endpoint" } else { "their endpoints" };
        format!("{} ended without closing {whose}", self.noun(count))
    }

    fn noun(&self, count: u64) -> String {
        if self.jobs.jobs.is_empty() { processes(count) } else { counted(count, "rank") }
    }

    fn command(&self) -> &'static str {
        if self.launcher.starts_ranks() { "the launcher" } else { "the command" }
    }

    /// Whether ranks of one host may have exchanged messages by the MPI library's own shared memory.
    fn own_shm(&self) -> bool {
        self.settings.has_own_shm() && self.jobs.all().used > self.jobs.hosts as u64
    }

    /// Options and variables by which users choose a transport.
    fn transport_options(&self) -> &'static str {
        match self.launcher.kind() {
            Kind::Hydra => "MPIR_CVAR_*",
            Kind::IntelHydra => "I_MPI_FABRICS, I_MPI_OFI_*",
            Kind::OpenMpi => "--mca pml, --mca mtl",
            Kind::Oshrun => "SHMEM_OFI_*",
            Kind::Srun | Kind::None => "MPIR_CVAR_*, OMPI_MCA_*, I_MPI_*",
        }
    }

    fn mpi_name(&self) -> &'static str {
        match self.launcher.kind() {
            Kind::Srun | Kind::None => "the MPI library",
            kind => kind.name(),
        }
    }
}

/// A number of processes.
fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{} processes", grouped(count)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;

    use weft_fi::observe::report::line::{Counts, Line, Traffic};
    use weft_observe::identity::Identity;

    use super::*;

    /// The line and the completeness of a command under Hydra that ended with a status.
    fn ended(reports: &[Line], own_shm: bool, status: i32) -> (String, bool) {
        let launcher = Launcher::new(Kind::Hydra, PathBuf::from("/v/bin/mpiexec"));
        let settings = Settings::plain(own_shm);
        let (jobs, status) = (Jobs::of(reports, &[]), ExitStatus::from_raw(status));
        let verdict = Verdict { jobs, launcher: &launcher, mpi: None, settings: &settings, status };
        (verdict.text(), verdict.is_complete())
    }

    fn rank(rank: u64, host: &str, messages: u64) -> Line {
        let identity = Identity { host: host.to_owned(), rank: Some(rank), size: Some(2), ..Identity::default() };
        let counts = Counts { endpoints: 1, shm: Traffic { messages, bytes: 8 * messages }, ..Counts::default() };
        Line { identity, pid: rank, counts, ..Line::default() }
    }

    fn with(line: Line, change: fn(&mut Counts)) -> Line {
        let mut line = line;
        change(&mut line.counts);
        line
    }

    #[test]
    fn a_carried_job_is_told_with_its_traffic() {
        let (text, complete) = ended(&[rank(0, "a", 3), rank(1, "b", 4)], false, 0);
        assert_eq!(text, "2 of 2 ranks on 2 hosts used weft: 7 messages (56 B) by shm, nothing by TCP, no errors");
        assert!(complete);
    }

    #[test]
    fn collectives_are_told_for_each_rank() {
        let mut reports = [0, 1].map(|number| with(rank(number, "a", 3), |counts| counts.collectives = 10_000));
        let (text, _) = ended(&reports, false, 0);
        assert!(text.ends_with("; 10,000 collectives a rank by weft, 0 left to the MPI library"), "{text}");
        reports[1].counts.left_collectives = 2;
        let (text, _) = ended(&reports, false, 0);
        assert!(text.ends_with("; up to 10,000 collectives a rank by weft, 2 left to the MPI library"), "{text}");
    }

    #[test]
    fn node_communicators_are_told_only_where_they_lack_ranks() {
        let told = |settings: Settings, change: fn(&mut Counts)| {
            let reports = [0, 1].map(|number| with(rank(number, "a", 3), change));
            let launcher = Launcher::new(Kind::Hydra, PathBuf::from("/v/bin/mpiexec"));
            let mut jobs = Jobs::of(&reports, &[]);
            jobs.has_hydra = true;
            let status = ExitStatus::from_raw(0);
            Verdict { jobs, launcher: &launcher, mpi: None, settings: &settings, status }.nodes()
        };
        let plain = told(Settings::separating(false), |_| {});
        assert!(plain.contains("one rank, which --collectives mends"), "{plain}");
        assert!(told(Settings::separating(true), |_| {}).contains("had one rank (see"));
        assert_eq!(told(Settings::separating(true), |counts| counts.completes_nodes = 1), "");
        let small = told(Settings::separating(true), |counts| {
            counts.completes_nodes = 1;
            counts.small_nodes = 1;
        });
        assert!(small.starts_with("; 2 node communicators were smaller than their hosts"), "{small}");
        assert_eq!(told(Settings::plain(false), |_| {}), "");
    }

    #[test]
    fn killed_ranks_count_by_their_last_record() {
        let reports = [0, 1].map(|number| with(rank(number, "a", 3), |counts| counts.open = 1));
        let (text, complete) = ended(&reports, false, 9);
        assert!(text.starts_with("2 of 2 ranks used weft: at least 6 messages (48 B) by shm"), "{text}");
        assert!(text.ends_with("; 2 ranks ended without closing their endpoints") && complete, "{text}");
    }

    #[test]
    fn missing_ranks_make_a_job_incomplete() {
        let (text, complete) = ended(&[rank(0, "a", 3)], false, 0);
        assert!(!complete && text.starts_with("1 of 2 ranks used weft"), "{text}");
        assert!(text.ends_with("; 1 rank did not report to have loaded it"), "{text}");
        let idle = with(rank(1, "a", 0), |counts| counts.endpoints = 0);
        let (text, _) = ended(&[rank(0, "a", 3), idle], false, 0);
        assert!(text.ends_with("; 1 rank loaded weft and opened no endpoint of it"), "{text}");
    }

    #[test]
    fn a_second_job_without_weft_makes_a_command_incomplete() {
        let mut reports: Vec<Line> = (0..4).map(|number| rank(number % 2, "a", 3 * (1 - number / 2))).collect();
        for line in &mut reports[2..] {
            "second".clone_into(&mut line.identity.job);
            line.counts = Counts::default();
        }
        let (text, complete) = ended(&reports, false, 0);
        assert!(!complete && text.starts_with("2 of 4 ranks in 2 jobs used weft"), "{text}");
        assert!(text.contains("(1 job did not use weft at all)"), "{text}");
    }

    #[test]
    fn no_cause_is_told_without_evidence() {
        let idle = || [rank(0, "a", 0), rank(1, "a", 0)];
        let loaded = || idle().map(|line| with(line, |counts| counts.endpoints = 0));
        let killed = idle().map(|line| with(line, |counts| counts.open = 1));
        let cut_off = idle().map(|line| with(line, |counts| counts.unreached = 1));
        let told = loaded().map(|line| Line { fault: "no interface eth7".to_owned(), ..line });
        let faulty = loaded().map(|line| with(line, |counts| counts.errors = 1));
        for (reports, own_shm, status, reason) in [
            (&idle()[..], true, 0, "its own shared memory"),
            (&idle()[..], false, 0, "2 ranks opened endpoints and sent no message; if they do communicate"),
            (&killed[..], false, 9, "and published no message; 2 ranks ended without closing"),
            (&cut_off[..], false, 1 << 8, "could not reach 2 peers"),
            (&loaded()[..], false, 0, "2 ranks loaded weft and opened no endpoint of it; possible causes"),
            (&loaded()[..], false, 1 << 8, "and the launcher ended with status 1"),
            (&told[..], false, 1 << 8, "2 ranks loaded weft and opened no endpoint of it; no interface eth7"),
            (&faulty[..], false, 1 << 8, "because of the faults in the lines"),
            (&[][..], false, 0, "no process reported to have loaded weft; possible causes"),
            (
                &[][..],
                false,
                255 << 8,
                "no process reported to have loaded weft, and the launcher ended with status 255",
            ),
            (&[][..], false, 15, "and the launcher was ended by SIGTERM; look at the messages"),
        ] {
            let (text, complete) = ended(reports, own_shm, status);
            assert!(!complete && text.starts_with("nothing was sent over weft: ") && text.contains(reason), "{text}");
        }
    }
}
