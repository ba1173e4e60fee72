//! Readers of the launcher's log: the test harness, or a reader that has stopped reading, has gone away, or never
//! existed.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::ioctl_fionbio;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// The reader at the other end of the launcher's stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogReader {
    /// The harness, which reads every line of stdout; stderr is inherited from the test.
    Harness,
    /// The harness, which reads stdout and stderr as one stream.
    HarnessOfBoth,
    /// The harness, which reads stdout and stderr at the other end of a terminal.
    Terminal,
    /// No reader: stdout is closed.
    Closed,
    /// A reader that has stopped reading: stdout and stderr are one pipe that is full from the start.
    Stopped,
    /// A reader that has gone away: stdout and stderr are one pipe whose read end is closed.
    Gone,
}

/// The stream that the harness reads, or the read end of a pipe that the harness keeps open without reading it.
#[derive(Debug)]
pub(crate) enum Reading {
    Stdout,
    Stream(File),
    Nobody(Option<PipeReader>),
}

impl LogReader {
    /// The command that starts the launcher, without arguments.
    pub(crate) fn command(self, executable: &Path) -> Command {
        if self != Self::Closed {
            return Command::new(executable);
        }
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "exec \"$0\" \"$@\" >&-"]).arg(executable);
        shell
    }

    /// Sets stdout and stderr of the command, and returns the other end.
    pub(crate) fn connect(self, command: &mut Command) -> Reading {
        match self {
            Self::Harness => {
                command.stdout(Stdio::piped());
                Reading::Stdout
            }
            Self::HarnessOfBoth => {
                let (reader, writer) = pipe().expect("a pipe");
                set_both(command, writer);
                Reading::Stream(File::from(OwnedFd::from(reader)))
            }
            Self::Terminal => {
                let (ours, theirs) = terminal();
                set_both(command, theirs);
                Reading::Stream(ours)
            }
            Self::Closed => Reading::Nobody(None),
            Self::Stopped => {
                let (reader, mut writer) = pipe().expect("a pipe");
                fill(&mut writer);
                set_both(command, writer);
                Reading::Nobody(Some(reader))
            }
            Self::Gone => {
                let (_, writer) = pipe().expect("a pipe");
                set_both(command, writer);
                Reading::Nobody(None)
            }
        }
    }
}

fn set_both(command: &mut Command, stream: impl Into<OwnedFd>) {
    let stream = stream.into();
    command.stdout(stream.try_clone().expect("a second descriptor")).stderr(stream);
}

fn fill(writer: &mut PipeWriter) {
    ioctl_fionbio(&*writer, true).expect("a pipe can be non-blocking");
    while writer.write(b"\n").is_ok() {}
    ioctl_fionbio(&*writer, false).expect("a pipe can be blocking");
}

/// Opens a pseudo-terminal and returns both ends.
fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("a terminal of this user");
    let path = ptsname(&ours, Vec::new()).expect("a terminal has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).expect("the other end");
    (ours.into(), theirs.into())
}
